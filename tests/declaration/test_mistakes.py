"""Mistakes that people make with the decorator and with a call: each is told in words that name what to write instead."""

from __future__ import annotations

import re

import pytest
import torch
import warp as wp

import kernels
import warpops.testing
from warpops import ArgumentError, SignatureError, warp_op, warp_program


@pytest.mark.parametrize("function", [warp_op, warp_program])
def test_an_unknown_option(function):
    with pytest.raises(
        TypeError, match=r"unexpected keyword argument 'shape'; did you mean 'shapes'\? The options are name, "
    ):
        function("x[n] -> y[n]", shape={"y": "n"})
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'zzz'\. The options are name, .*, backward"):
        function("x[n] -> y[n]", zzz=1)


def test_options_are_told_of_what_they_belong_to():
    with pytest.raises(TypeError, match="block_dim, tiled$"):
        warp_op(kernels.square, zzz=1)
    with pytest.raises(TypeError, match=r"warp_program\(\) .* 'dim'"):
        warp_program("x[n] -> y[n]", dim="n")


@pytest.mark.parametrize("signatures", [("x[n] -> y[n]", "y[n]"), (kernels.square, "x[n] -> y[n]", "y[n]")])
def test_two_signatures(signatures):
    with pytest.raises(TypeError, match="takes a kernel and a signature, and got"):
        warp_op(*signatures)


@pytest.mark.parametrize(
    ("given", "named", "text"),
    [
        ((torch.ones(3), torch.empty(3)), {}, "got 2 positional arguments"),
        ((torch.ones(3),), {"out": torch.empty(3)}, "got argument 'out'"),
        ((torch.ones(3),), {"y": torch.empty(3)}, "got argument 'y'"),
    ],
)
def test_a_result_that_is_given(given, named, text):
    with pytest.raises(TypeError, match=rf"{text}, and takes \(x.*: outputs are made by the op and returned \('y'\)"):
        kernels.square_op(*given, **named)


def test_an_argument_that_is_missing_or_unknown_is_python_s_error():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        kernels.square_op()
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        kernels.square_op(torch.ones(3), z=1)
    with pytest.raises(
        TypeError, match=r"scale\(\) got an unexpected keyword argument 'ss'; did you mean 's'\? It takes \(x"
    ):
        kernels.scale_op(torch.ones(3), ss=1.0)


def test_what_isn_t_a_tensor_is_told_how_to_become_one():
    with pytest.raises(ArgumentError, match=r"got array; convert it with wp\.to_torch"):
        kernels.square_op(wp.ones(3, dtype=float))
    with pytest.raises(ArgumentError, match=r"got layout torch\.sparse_coo; convert it with \.to_dense\(\)"):
        kernels.square_op(torch.ones(3).to_sparse())


def test_a_parameter_for_a_number_is_told_where_it_has_a_gradient():
    with pytest.raises(
        ArgumentError, match=r"gradient would be lost\), or take an array of one element in the kernel, s\[0\]"
    ):
        kernels.scale_op(torch.ones(3), torch.nn.Parameter(torch.tensor(2.0)))


def test_a_size_that_nothing_binds_comes_before_the_choice_of_a_launch():
    with pytest.raises(SignatureError, match="'k' of 'y' uses 'k', which no input's brackets bind"):
        warp_op(kernels.square, "x[n] -> y[k]")


def test_an_error_of_the_user_s_own_stays_what_it_is():
    @warp_op("x[n] -> y[n]", dim=lambda x: len(None))
    def odd(x: wp.array[float], y: wp.array[float]):
        y[wp.tid()] = x[wp.tid()]

    with pytest.raises(TypeError, match="NoneType"):
        odd(torch.ones(3))


def test_the_two_decorators_in_the_wrong_order():
    with pytest.raises(SignatureError, match=r"write @warp_op first, and @wp\.kernel under it"):

        @wp.kernel
        @warp_op
        def turned(x: wp.array[float], y: wp.array[float]):
            y[wp.tid()] = x[wp.tid()]


def test_checking_what_is_no_op():
    with pytest.raises(ArgumentError, match="takes an op, which @warp_op makes of a kernel"):
        warpops.testing.check(lambda x: x, torch.ones(3))


def added(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] += x[i]


def counted(x: wp.array[float], sums: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(sums, int(x[i]) * 0, x[i])


def total(x: wp.array[float], sums: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(sums, 0, x[i])


X = torch.tensor([1.0, 2.0])
Y = torch.tensor([10.0, 20.0])


@pytest.mark.parametrize(
    ("kernel", "sizes", "want"),
    [(added, {}, [[1.0, 2.0], [11.0, 22.0]]), (counted, {"sums_size": 2}, [[3.0, 0.0], [13.0, 20.0]])],
)
def test_what_is_added_to_may_mean_three_things(kernel, sizes, want):
    """Each of the lines that the message shows works as it stands."""
    with pytest.raises(SignatureError) as caught:
        warp_op(kernel)
    lines = re.findall(r"@warp_op\((.*)\) +# (.*)", str(caught.value))
    assert [meaning for _, meaning in lines] == [
        "added up from zero, and returned",
        "added to what is given, and returned: in-out",
        "added to the caller's own, in place",
    ]
    zero, given, in_place = (
        eval(f"warp_op(kernel, {arguments})", {"warp_op": warp_op, "kernel": kernel}) for arguments, _ in lines
    )
    assert zero(X, **sizes).tolist() == want[0]
    y = Y.clone()
    assert given(X, y).tolist() == want[1]
    assert y.equal(Y)
    assert in_place(X, y) is None
    assert y.tolist() == want[1]


def test_a_sum_in_one_element_is_an_output_of_one():
    with pytest.raises(SignatureError) as caught:
        warp_op(total)
    assert '@warp_op("x[n] -> sums[1]") ' in str(caught.value)
    assert warp_op(total, "x[n] -> sums[1]")(X).tolist() == [3.0]


@pytest.mark.parametrize(
    "options", [{"init": "junk"}, {"dim": -1}, {"signature": "x["}, {"name": "junk"}, {"sizes": "class"}]
)
def test_a_kernel_in_a_function_is_called_by_its_plain_name(options):
    @wp.kernel
    def inner(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = x[i]

    with pytest.raises(SignatureError, match="^inner: "):
        warp_op(inner, **options)


def test_a_backward_in_a_function_is_called_by_its_plain_name():
    @wp.kernel
    def inner(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = x[i]

    @wp.kernel
    def inner_back(junk: wp.array[float], grad_x: wp.array[float]):
        i = wp.tid()
        grad_x[i] = junk[i]

    with pytest.raises(SignatureError, match="^inner: backward inner_back takes 'junk', which"):
        warp_op(inner, backward=inner_back)
