"""The adjoint of a kernel that reads a shape wraps a negative index as the kernel does, and writes inside the arrays only."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import check_against, compiled, ramp
from warpops import GradientError, warp_op, warp_program

Array = wp.array[wp.float64]
Matrix = wp.array2d[wp.float64]


@wp.kernel
def periodic(x: Array, y: Array):
    i = wp.tid()
    y[i] = x[i] * x[i - 1] + x[(i + 1) % x.shape[0]]


@wp.kernel
def periodic_columns(x: Matrix, y: Matrix):
    i, j = wp.tid()
    n = x.shape[1]
    y[i, j - 1] = x[i, j] * x[i - 1, j - 1] + x[i, (j + 1) % n]
    if y.shape[0] < 0:
        y[i, j] = x[i, j]


@wp.func
def before(values: Array, i: int):
    if values.shape[0] > 2:
        return values[i - 1]
    return values[i]


@wp.kernel
def through_a_function(x: Array, y: Array):
    i = wp.tid()
    y[i] = before(x, i) * x[i - 2]


@wp.func
def own(values: Array, i: int):
    return values[i]


@wp.func_grad(own)
def own_gradient(values: Array, i: int, adj_ret: wp.float64):
    wp.adjoint[values][i] += adj_ret


@wp.kernel
def with_a_gradient_of_its_own(x: Array, y: Array):
    i = wp.tid()
    y[i] = own(x, i) * x[i - 1] * wp.float64(x.shape[0])


@wp.kernel
def with_a_gradient_and_no_negative_index(x: Array, y: Array):
    i = wp.tid()
    y[i] = own(x, i) * own(x, i) * wp.float64(x.shape[0])


def of_periodic(x):
    return x * x.roll(1) + x.roll(-1)


def numbers(*shape):
    return torch.rand(shape, dtype=torch.float64) + 0.5


def test_a_periodic_stencil(mode):
    check_against(mode(warp_op(periodic, "x[n] -> y[n]")), of_periodic, (numbers(5),))


def test_a_periodic_stencil_called_again():
    op = warp_op(periodic, "x[n] -> y[n]")
    x = numbers(6).requires_grad_()
    want = torch.autograd.grad((of_periodic(x) * ramp(x)).sum(), x)[0]
    for run in (op, op, op, compiled(op)):
        got = torch.autograd.grad((run(x) * ramp(x)).sum(), x)[0]
        torch.testing.assert_close(got, want)


@pytest.mark.filterwarnings("ignore::warpops.GradientWarning")
def test_stores_at_negative_indices(mode):
    op = mode(warp_op(periodic_columns, "x[n, m] -> y[n, m]", dim="n, m"))

    def reference(x):
        return (x * x.roll((1, 1), (0, 1)) + x.roll(-1, 1)).roll(-1, 1)

    check_against(op, reference, (numbers(3, 4),))


def test_a_function_that_reads_the_shape():
    check_against(warp_op(through_a_function, "x[n] -> y[n]"), lambda x: x.roll(1) * x.roll(2), (numbers(5),))


def test_a_program_s_launch():
    @warp_program("x[n] -> y[n]")
    def around(x: Array, y: Array):
        wp.launch(periodic, dim=x.shape[0], inputs=[x], outputs=[y])

    check_against(around, of_periodic, (numbers(5),))


def test_a_custom_gradient_takes_the_argument():
    op = warp_op(with_a_gradient_of_its_own, "x[n] -> y[n]")
    x = numbers(4)
    torch.testing.assert_close(op(x), x * x.roll(1) * 4)
    with pytest.raises(GradientError, match="reads the shape of 'x'.*custom gradient.*register_backward"):
        op(x.requires_grad_()).sum().backward()
    check_against(warp_op(with_a_gradient_and_no_negative_index, "x[n] -> y[n]"), lambda x: x * x * 4, (numbers(4),))
