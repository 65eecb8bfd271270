"""The remaining options: scratch, sizes, optional, nondiff, and the launch's own."""

from __future__ import annotations

import pytest
import torch
import warp as wp

import kernels
from support import check_against, close, compiled, dirty_allocator, graph_count, leaf, values_and_grads
from warpops import ArgumentError, SignatureError, warp_op


@wp.kernel
def by_steps(x: wp.array[float], work: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    work[i, 0] = x[i] * x[i]
    work[i, 1] = work[i, 0] * x[i]
    y[i] = work[i, 1] + work[i, 0]


@wp.kernel
def histogram(x: wp.array[float], width: float, weight: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(y, int(x[i] / width), weight[i])


@wp.kernel
def maybe(x: wp.array[float], bias: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    v = x[i] * x[i]
    if bias:
        v = v + bias[i] * x[i]
    y[i] = v


@wp.kernel
def defaulted(x: wp.array[float], s: float = 2.0, bias: wp.array[float] = None, y: wp.array[float] = None):
    i = wp.tid()
    v = x[i] * s
    if bias:
        v = v + bias[i]
    y[i] = v


@wp.kernel
def blocks(y: wp.array[wp.int32]):
    i = wp.tid()
    y[i] = wp.block_dim()


scratch_op = warp_op(by_steps, "x[n] -> y[n]", dim="n", scratch="work[n, 2]")
histogram_op = warp_op(histogram, "x[n], weight[n] -> y[bins]", dim="n", sizes="bins")
maybe_op = warp_op(maybe, "x[n], bias[n] -> y[n]", dim="n", optional="bias")
defaulted_op = warp_op(defaulted, "x[n], bias[n] -> y[n]", dim="n")
nondiff_op = warp_op(kernels.product, "x[n], w[n] -> y[n]", dim="n", nondiff="w")


# --- scratch ----------------------------------------------------------------------------------------------------------


def test_scratch_is_no_argument_and_no_result(mode):
    assert "work" not in scratch_op.schema
    dirty_allocator()
    check_against(mode(scratch_op), lambda x: x**3 + x**2, (torch.randn(5),))


def test_scratch_of_several_calls_is_not_shared():
    a, b = leaf(torch.randn(4)), leaf(torch.randn(4))
    first, second = scratch_op(a), scratch_op(b)
    (first.sum() + second.sum()).backward()
    close(a.grad, (3 * a**2 + 2 * a).detach())
    close(b.grad, (3 * b**2 + 2 * b).detach())


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_an_extra_size(mode):
    x, weight = torch.tensor([0.5, 1.5, 1.7, 3.2]), torch.rand(4)
    where = torch.tensor([0, 1, 1, 3])
    check_against(
        mode(lambda w: histogram_op(x, 1.0, w, 5)), lambda w: torch.zeros(5).index_add(0, where, w), (weight,)
    )


def test_an_extra_size_goes_by_keyword_too():
    x = torch.tensor([0.5])
    assert histogram_op(x, 1.0, torch.ones(1), bins=2).shape == (2,)
    assert histogram_op.schema.count("bins") == 1


def test_an_extra_size_is_keyword_only_behind_defaults():
    op = warp_op(defaulted, "x[n], bias[n] -> y[m]", dim="n", sizes="m")
    x = torch.ones(2)
    assert op(x, m=3).tolist() == [2.0, 2.0, 0.0]
    with pytest.raises(TypeError):
        op(x, 2.0, None, 3)


def test_an_extra_size_that_changes_costs_no_recompilation():
    function = compiled(lambda x, n: histogram_op(x, 1.0, x, n))
    x = torch.tensor([0.5, 1.5])
    for n in (2, 3, 5, 9, 17):
        assert function(x, n).shape == (n,)
    assert graph_count() <= 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-1, "the shape of 'y': the size -1 ('bins') is negative"),
        (2.5, "argument 'bins': expected an int (int64), got the float 2.5"),
    ],
)
def test_a_wrong_extra_size(value, text):
    with pytest.raises(ArgumentError) as caught:
        histogram_op(torch.ones(1), 1.0, torch.ones(1), value)
    assert str(caught.value) == f"test_options::histogram: {text}"


# --- optional ---------------------------------------------------------------------------------------------------------


def test_an_optional_array(mode):
    x, bias = torch.randn(4), torch.randn(4)
    check_against(mode(maybe_op), lambda x, b: x * x + b * x, (x, bias))
    check_against(mode(lambda x: maybe_op(x, None)), lambda x: x * x, (x,))
    check_against(mode(lambda x: maybe_op(x)), lambda x: x * x, (x,))


def test_an_optional_array_is_checked_when_it_is_there():
    with pytest.raises(ArgumentError, match="'bias': expected size 4"):
        maybe_op(torch.ones(4), torch.ones(3))
    with pytest.raises(ArgumentError, match="'bias': expected dtype torch.float32"):
        maybe_op(torch.ones(4), torch.ones(4).double())


def test_the_schema_says_optional():
    assert "Tensor? bias" in maybe_op.schema


def test_a_default_of_none_means_the_same(mode):
    x, bias = torch.randn(4), torch.randn(4)
    function = mode(lambda x, **rest: defaulted_op(x, **rest))
    close(function(x), 2 * x)
    close(function(x, s=3.0), 3 * x)
    close(function(x, bias=bias), 2 * x + bias)
    check_against(mode(lambda x, b: defaulted_op(x, 4.0, b)), lambda x, b: 4 * x + b, (x, bias))


def test_a_required_array_can_not_be_none():
    with pytest.raises(ArgumentError, match="'x'.*got None"):
        maybe_op(None, torch.ones(3))


# --- nondiff ----------------------------------------------------------------------------------------------------------


def test_an_input_that_gets_no_gradient(mode):
    x, w = leaf(torch.randn(4)), leaf(torch.randn(4))
    y = mode(nondiff_op)(x, w)
    gx, gw = torch.autograd.grad(y.sum(), (x, w), allow_unused=True)
    close(gx, (2 * x * w).detach())
    assert gw is None


def test_a_result_of_nondiff_inputs_alone_requires_no_grad(mode):
    y = mode(nondiff_op)(torch.randn(4), leaf(torch.randn(4)))
    assert not y.requires_grad


@wp.kernel
def add_squares(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] += x[i] * x[i]


def test_an_in_out_array_that_gets_no_gradient(mode):
    op = warp_op(add_squares, "x[n], y[n] -> y[n]", nondiff="y", name="options::add_squares")
    for call in (mode(op), op.overload):
        for _ in range(3):  # the third call is a remembered one
            y = call(torch.ones(4), leaf(torch.ones(4)))
            assert not y.requires_grad
            close(y, 2 * torch.ones(4))


def test_an_output_of_ints_is_not_differentiable():
    op = warp_op(blocks, "-> y[4]", dim=4)
    assert op().dtype == torch.int32


# --- the launch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", ["n", ("n",), lambda x: x.shape[0], "1 * n", "n * 1"])
def test_every_spelling_of_a_launch_size(dim):
    op = warp_op(kernels.square, "x[n] -> y[n]", dim=dim)
    close(op(torch.tensor([3.0, 4.0])), torch.tensor([9.0, 16.0]))


def test_a_launch_size_of_a_number(mode):
    op = warp_op(kernels.square, "x[n] -> y[n]", dim=2)
    assert mode(op)(torch.tensor([3.0, 4.0, 5.0])).tolist() == [9.0, 16.0, 0.0]


def test_a_smaller_launch_leaves_the_rest_out_of_the_gradient(mode):
    op = warp_op(kernels.square, "x[n] -> y[n]", dim="n // 2")
    _, (grad,) = values_and_grads(mode(op), (torch.ones(4),))
    close(grad, torch.tensor([-2.0, 0.0, 0.0, 0.0]))


@pytest.mark.parametrize("size", [1, 64, 256])
def test_block_dim_reaches_the_launch(size):
    """On the CPU a block is one thread; what counts here is that the option is taken and the result stays right."""
    op = warp_op(kernels.square, "x[n] -> y[n]", dim="n", block_dim=size)
    check_against(op, kernels.square_, (torch.randn(5),))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"scratch": 3}, r"scratch takes names with sizes, as in 'tmp\[n, 3\]', and got 3"),
        ({"scratch": {"t": "n"}}, "scratch takes names with sizes"),
        ({"sizes": "class"}, "sizes takes plain names, and got 'class'"),
        ({"backward": lambda x: x}, "backward takes a kernel or a WarpOp, and got a lambda"),
    ],
)
def test_options_that_mean_nothing(options, text):
    with pytest.raises(SignatureError, match=text):
        warp_op(kernels.square, "x[n] -> y[n]", **options)


def test_scratch_as_a_list():
    op = warp_op(by_steps, "x[n] -> y[n]", dim="n", scratch=["work[n, 2]"])
    close(op(torch.full((2,), 2.0)), torch.full((2,), 12.0))
