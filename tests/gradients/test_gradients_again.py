"""Gradients that are taken twice, in loops, and by backwards that change what they are given."""

from __future__ import annotations

import pytest
import torch
import warp as wp

import kernels
from support import close, compiled, eager, leaf
from warpops import warp_op


@wp.kernel
def cube(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i] * x[i]


def harsh():
    """An op whose backward works in the cotangent that it is given."""
    op = warp_op(cube, "x[n] -> y[n]", dim="n")

    @op.register_backward
    def harsh_backward(ctx, grad):
        return grad.mul_(3.0 * ctx.inputs["x"] ** 2)

    return op


@pytest.mark.parametrize("mode", [eager, compiled], ids=["eager", "compiled"])
def test_a_backward_that_changes_its_cotangent_leaves_the_callers_alone(mode):
    op = harsh()
    x, cotangent = leaf(torch.tensor([1.0, 2.0, 3.0])), torch.tensor([1.0, 10.0, 100.0])
    y = mode(lambda x: op(x))(x)
    for _ in range(2):
        (found,) = torch.autograd.grad(y, x, cotangent, retain_graph=True)
        close(found, torch.tensor([3.0, 120.0, 2700.0]))
        assert cotangent.tolist() == [1.0, 10.0, 100.0]


def test_a_cotangent_that_two_ops_share():
    op = harsh()
    x = leaf(torch.tensor([1.0, 2.0, 3.0]))
    (op(x) + op(x)).sum().backward()
    close(x.grad, 6.0 * x.detach() ** 2)


def test_a_backward_that_changes_its_cotangent_is_differentiable():
    op = harsh()
    x = leaf(torch.tensor([1.0, 2.0, 3.0]))
    (first,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    close(second, 6.0 * x.detach())


KINDS = {
    "product": (kernels.product_op, kernels.product_, lambda n: (torch.randn(n), torch.randn(n))),
    "gauss": (kernels.gauss_op, kernels.gauss_, lambda n: (torch.randn(n), torch.randn(3))),
    "in-out": (kernels.multiply_op, lambda x, y: x * y, lambda n: (torch.randn(n), torch.randn(n))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_one_op_taken_twice(kind, mode):
    """Some bindings by hand add the second to the first."""
    op, reference, make = KINDS[kind]
    inputs = [leaf(t) for t in make(4)]
    y = mode(lambda *given: op(*given))(*inputs)
    cotangent = torch.randn_like(y)
    want = torch.autograd.grad(reference(*inputs), inputs, cotangent)
    first = torch.autograd.grad(y, inputs, cotangent, retain_graph=True)
    second = torch.autograd.grad(y, inputs, 2.0 * cotangent, retain_graph=True)
    third = torch.autograd.grad(y, inputs, cotangent)
    for got, again, last, right in zip(first, second, third, want, strict=True):
        close(got, right)
        close(again, 2.0 * right)
        close(last, right)


@pytest.mark.parametrize("kind", KINDS)
def test_an_op_called_in_a_loop_with_other_sizes_between(kind):
    """Launches are remembered by their sizes; the backwards of all come at the end, in one go."""
    op, reference, make = KINDS[kind]
    total, want, every = 0.0, 0.0, []
    for step in range(12):
        inputs = [leaf(t) for t in make(1 + (5 * step) % 7)]
        every += inputs
        total = total + op(*inputs).sin().sum()
        want = want + reference(*inputs).sin().sum()
    expected = torch.autograd.grad(want, every)
    for _ in range(2):
        for got, right in zip(torch.autograd.grad(total, every, retain_graph=True), expected, strict=True):
            close(got, right)


def test_an_op_over_its_own_results():
    x, y = leaf(torch.tensor([1.01, 0.99])), None
    for length in (2, 2, 2):
        y = kernels.square_op(x if y is None else y)
        kernels.square_op(torch.ones(length + 3))
    y.sum().backward()
    close(x.grad, 8.0 * x.detach() ** 7)
