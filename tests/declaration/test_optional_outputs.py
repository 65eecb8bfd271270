"""Outputs that a flag asks for: null in the kernel where a size is 0. And arrays that are None, and used all the same."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import afresh, check_against, close, compiled
from warpops import ArgumentError, SignatureError, warp_op, warp_program

Array = wp.array[float]


@wp.kernel
def asked(x: Array, y: Array, extra: Array):
    i = wp.tid()
    y[i] = x[i] * x[i]
    if extra:
        extra[i] = x[i] * x[i] * x[i]


@wp.kernel
def flagged(x: Array, want: bool, y: Array, extra: wp.array2d[float]):
    i = wp.tid()
    y[i] = x[i] * x[i]
    if want:
        for k in range(2):
            extra[i, k] = x[i] * float(k)


@wp.kernel
def counted(x: Array, want: int, y: Array, extra: Array):
    i = wp.tid()
    y[i] = x[i] * x[i]
    if want == 0:
        return
    extra[i] = x[i] * x[i] * x[i]


@wp.kernel
def other_flag(x: Array, want: int, other: int, y: Array, extra: Array):
    i = wp.tid()
    y[i] = x[i]
    if other != 0:
        extra[i] = x[i]


@wp.kernel
def never_asked(x: Array, want: int, y: Array, extra: Array):
    i = wp.tid()
    y[i] = x[i]
    extra[i] = x[i]


by_size = warp_op(asked, "x[n] -> y[n], extra[n * want]", sizes="want", optional="extra")
by_bool = warp_op(flagged, "x[n] -> y[n], extra[n, 2 * want]", optional="extra")
by_int = warp_op(counted, "x[n] -> y[n], extra[n * want]", optional="extra")


@warp_program("x[n] -> y[n], extra[n * want]", sizes="want", optional="extra")
def program(x: Array, y: Array, extra: Array):
    wp.launch(asked, dim=y.shape[0], inputs=[x], outputs=[y, extra])


def references(want):
    return {
        by_size: lambda x: (x * x, x**3) if want else (x * x, x[:0]),
        by_bool: lambda x: (x * x, torch.stack([0 * x, x], 1)) if want else (x * x, (0 * x)[:, None][:, :0]),
        by_int: lambda x: (x * x, x**3) if want else (x * x, x[:0]),
        program: lambda x: (x * x, x**3) if want else (x * x, x[:0]),
    }


OPS = pytest.mark.parametrize("op", [by_size, by_bool, by_int, program], ids=lambda op: op.name.split("::")[1])


@OPS
@pytest.mark.parametrize("want", [True, False])
def test_an_output_is_made_where_it_is_wanted(mode, op, want):
    flag = want if op is by_bool else int(want)
    check_against(afresh(mode, lambda x: op(x, flag)), references(want)[op], (torch.randn(3),))


@pytest.mark.parametrize("op", [by_size, by_int])
def test_dynamic_sizes_in_compiled_code(op):
    function = compiled(lambda x, want: op(x, want), dynamic=True)
    torch._dynamo.reset()
    for n, want in ((3, 1), (4, 0), (5, 1)):
        check_against(lambda x, want=want: function(x, want), references(want)[op], (torch.randn(n),))


@OPS
def test_the_shape_of_what_is_not_wanted(op):
    x = torch.randn(3, requires_grad=True)
    y, extra = op(x, False if op is by_bool else 0)
    assert extra.shape == ((3, 0) if op is by_bool else (0,))
    (grad,) = torch.autograd.grad([y, extra], x, [torch.ones(3), torch.full_like(extra, float("nan"))])
    close(grad, 2 * x.detach())


@pytest.mark.parametrize("want", [1, 0])
def test_vmap_puts_the_batch_before_it(mode, want):
    x = torch.randn(4, 3)
    function = afresh(mode, torch.vmap(lambda x: by_size(x, want)))
    for _ in range(3):
        y, extra = function(x)
        close(y, x * x)
        assert extra.shape == (4, 3 * want)
        close(extra, x[:, : 3 * want] ** 3)
    grads = torch.func.vmap(torch.func.grad(lambda x: by_size(x, want)[0].sum()))(x)
    close(grads, 2 * x)


@pytest.mark.parametrize("op", [by_size, by_bool, by_int])
@pytest.mark.parametrize("want", [1, 0])
def test_forward_mode_and_second_derivatives(op, want):
    flag = bool(want) if op is by_bool else want
    x, v = torch.randn(3), torch.randn(3)
    got = torch.func.jvp(lambda x: op(x, flag), (x,), (v,))
    wanted = torch.func.jvp(references(want)[op], (x,), (v,))
    for mine, theirs in zip(got, wanted, strict=True):
        close(mine, theirs)
    x.requires_grad_()
    (grad,) = torch.autograd.grad(op(x, flag)[0].sum(), x, create_graph=True)
    close(torch.autograd.grad(grad.sum(), x)[0], torch.full((3,), 2.0))


def test_an_optional_output_fixes_no_launch_size():
    op = warp_op(asked, "x -> y, extra[m]", sizes="m", optional="extra")
    assert [result.shape[0] for result in op(torch.ones(3), 0)] == [3, 0]
    assert [result.shape[0] for result in op(torch.ones(3), 5)] == [3, 5]
    with pytest.raises(ArgumentError, match="argument 'extra': its axis 0 has size 2, and the launch has 3"):
        op(torch.ones(3), 2)


def test_a_kernel_that_never_asks_is_refused_when_decorated():
    message = "optional names the output 'extra', .*without asking whether it is there .if extra:.*`extra.i. = x.i.`"
    with pytest.raises(SignatureError, match=message):
        warp_op(never_asked, "x[n] -> y[n], extra[n * want]", optional="extra")


def test_a_kernel_that_asks_something_else_is_refused_at_the_call(mode):
    op = warp_op(other_flag, "x[n] -> y[n], extra[n * want]", optional="extra")
    x = torch.ones(3)
    assert [result.shape[0] for result in mode(op)(x, 0, 0)] == [3, 0]
    assert [result.shape[0] for result in mode(op)(x, 1, 1)] == [3, 3]
    with pytest.raises(Exception, match="'extra': expected a tensor"):
        afresh(mode, op)(x, 0, 1)
    assert [result.shape[0] for result in op(x[:0], 0, 1)] == [0, 0]


def test_in_out_and_scratch_are_not_optional():
    for signature, options in (
        ("x[n], y[n] -> y[n], extra[n]", {"optional": "y"}),
        ("x[n] -> y[n]", {"scratch": "extra[n]"}),
    ):
        with pytest.raises(SignatureError, match="neither an input nor a fresh output"):
            warp_op(asked, signature, **{"optional": "extra", **options})


# --- inputs -----------------------------------------------------------------------------------------------------------


@wp.kernel
def biased(x: Array, bias: Array, use: int, y: Array):
    i = wp.tid()
    y[i] = x[i]
    if use != 0:
        y[i] = x[i] + bias[i]


@wp.kernel
def always_biased(x: Array, bias: Array, y: Array):
    i = wp.tid()
    y[i] = x[i] + bias[i]


@wp.kernel
def biased_by_size(x: Array, bias: Array, y: Array):
    i = wp.tid()
    total = x[i]
    for k in range(bias.shape[0]):
        total += bias[k]
    y[i] = total


def test_none_for_an_array_that_the_kernel_uses_in_any_case(mode):
    op = warp_op(always_biased, "x[n], bias[n] -> y[n]", optional="bias")
    x = torch.ones(3)
    assert mode(op)(x, x).tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(
        Exception, match="'bias': expected a tensor .*, got None, and the kernel uses it without asking"
    ) as caught:
        afresh(mode, op)(x, None)
    if mode.__name__ == "eager":
        assert isinstance(caught.value, ArgumentError)
    assert op(x[:0], None).shape == (0,)


def test_none_where_a_flag_keeps_the_kernel_from_it():
    op = warp_op(biased, "x[n], bias[n] -> y[n]", optional="bias")
    x = torch.ones(3)
    assert op(x, None, 0).tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(ArgumentError, match="got None, and the kernel uses it where 'use' isn't 0 without asking"):
        op(x, None, 1)


def test_none_where_its_length_is_asked():
    op = warp_op(biased_by_size, "x[n], bias[_] -> y[n]", optional="bias")
    assert op(torch.ones(2), None).tolist() == [1.0, 1.0]
    assert op(torch.ones(2), torch.ones(3)).tolist() == [4.0, 4.0]
