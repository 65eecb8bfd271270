"""The option ``backward`` where the forward has arrays that may be None, outputs that are null, and numbers that are tensors."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import afresh, check_against, close
from warpops import ArgumentError, SignatureError, warp_op

Array = wp.array[float]


@wp.kernel
def weighted(x: Array, w: Array, y: Array):
    i = wp.tid()
    y[i] = x[i]
    if w:
        y[i] = x[i] * w[i]


@wp.kernel
def weighted_back(x: Array, w: Array, grad_y: Array, grad_x: Array, grad_w: Array):
    i = wp.tid()
    grad_x[i] = grad_y[i]
    if w:
        grad_x[i] = grad_y[i] * w[i]
        grad_w[i] = grad_y[i] * x[i]


@wp.kernel
def weighted_back_by_gradient(x: Array, w: Array, grad_y: Array, grad_x: Array, grad_w: Array):
    i = wp.tid()
    g = grad_y[i]
    if w:
        g *= w[i]
    grad_x[i] = g
    if grad_w:
        grad_w[i] = grad_y[i] * x[i]


@wp.kernel
def shifted(x: Array, bias: Array, y: Array):
    i = wp.tid()
    y[i] = x[i]
    if bias:
        y[i] = x[i] + bias[i]


@wp.kernel
def shifted_back(grad_y: Array, grad_x: Array, grad_bias: Array):
    i = wp.tid()
    grad_x[i] = grad_y[i]
    grad_bias[i] = grad_y[i]


@wp.kernel
def powers(x: Array, want: int, y: Array, extra: Array):
    i = wp.tid()
    y[i] = x[i] * x[i]
    if extra:
        extra[i] = x[i] * 3.0


@wp.kernel
def powers_back(x: Array, extra: Array, grad_y: Array, grad_extra: Array, grad_x: Array):
    i = wp.tid()
    g = 2.0 * x[i] * grad_y[i]
    if grad_extra:
        g += grad_extra[i] * extra[i] / x[i]
    grad_x[i] = g


@wp.kernel
def stepped(x: Array, dt: float, y: Array):
    i = wp.tid()
    y[i] = x[i] * x[i] * dt


@wp.kernel
def stepped_back(x: Array, step: float, cotangent: Array, grad_x: Array):
    i = wp.tid()
    grad_x[i] = 2.0 * x[i] * step * cotangent[i]


STEPPED = {"step": "dt", "cotangent": "grad_y"}

by_weight = warp_op(weighted, "x[n], w[n] -> y[n]", optional="w", backward=weighted_back)
by_gradient = warp_op(weighted, "x[n], w[n] -> y[n]", optional="w", backward=weighted_back_by_gradient)
by_extra = warp_op(powers, "x[n] -> y[n], extra[n * want]", optional="extra", backward=powers_back)
by_step = warp_op(stepped, "x[n] -> y[n]", tensor_scalars="dt", backward=(stepped_back, STEPPED))


@pytest.mark.parametrize("op", [by_weight, by_gradient], ids=["asks for the input", "asks for the gradient"])
def test_an_input_that_is_none_is_null_in_the_backward(mode, op):
    function = afresh(mode, op)
    check_against(lambda x: function(x), lambda x: x * 1.0, (torch.randn(3),))
    check_against(lambda x, w: function(x, w), torch.mul, (torch.randn(3), torch.randn(3)))


def test_second_derivatives_and_vmap_where_an_input_is_none():
    x = torch.randn(3, requires_grad=True)
    (grad,) = torch.autograd.grad(by_weight(x).square().sum(), x, create_graph=True)
    close(torch.autograd.grad(grad.sum(), x)[0], torch.full((3,), 2.0))
    w = torch.randn(2, 3)
    got = torch.func.vmap(torch.func.grad(lambda x: by_weight(x).square().sum()))(w)
    close(got, 2 * w)
    got = torch.func.vmap(torch.func.grad(lambda w: by_weight(w, w).sum()))(w)
    close(got, 2 * w)


def test_a_gradient_of_none_that_the_backward_writes_untested():
    """It would be a write through a null pointer."""
    op = warp_op(shifted, "x[n], bias[n] -> y[n]", optional="bias", backward=shifted_back)
    check_against(op, torch.add, (torch.randn(3), torch.randn(3)))
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(
        ArgumentError, match=f"{op.name}: backward shifted_back: argument 'grad_bias': expected a tensor"
    ):
        op(x).sum().backward()


@pytest.mark.parametrize("want", [1, 0])
def test_an_output_that_is_null_is_null_in_the_backward(mode, want):
    def reference(x):
        return x * x, (x * 3.0)[: 3 * want]

    function = afresh(mode, lambda x: by_extra(x, want))
    x = torch.rand(3) + 0.5
    check_against(function, reference, (x,))
    check_against(lambda x: function(x)[0], lambda x: reference(x)[0], (x,))


def test_second_derivatives_and_vmap_where_an_output_is_null():
    x = torch.rand(3, requires_grad=True)
    (grad,) = torch.autograd.grad(by_extra(x, 0)[0].sum(), x, create_graph=True)
    close(torch.autograd.grad(grad.sum(), x)[0], torch.full((3,), 2.0))
    xs = torch.rand(2, 3)
    close(torch.func.vmap(torch.func.grad(lambda x: by_extra(x, 0)[0].sum()))(xs), 2 * xs)


def test_a_tensor_for_a_number(mode):
    function = afresh(mode, by_step)
    for dt in (0.5, torch.tensor(0.25), torch.tensor(2.0, dtype=torch.float64)):
        check_against(
            lambda x, dt=dt: function(x, dt), lambda x, dt=dt: x * x * float(dt), (torch.randn(3),), wanted=(0,)
        )


def test_a_tensor_for_a_number_twice():
    x = torch.randn(3, requires_grad=True)
    (grad,) = torch.autograd.grad(by_step(x, torch.tensor(0.5)).sum(), x, create_graph=True)
    close(torch.autograd.grad(grad.sum(), x)[0], torch.ones(3))


def test_a_tensor_for_a_number_of_an_op():
    back = warp_op(
        stepped_back, "-> grad_x[n]", dim="n", sizes="n", tensor_scalars="step", name="backward_absent::back"
    )
    op = warp_op(stepped, "x[n] -> y[n]", sizes="m", tensor_scalars="dt", backward=(back, {**STEPPED, "n": "m"}))
    check_against(lambda x: op(x, torch.tensor(0.5), 3), lambda x: x * x * 0.5, (torch.randn(3),))
    back = warp_op(stepped_back, "-> grad_x[n]", dim="n", sizes="n", name="backward_absent::back_of_a_number")
    with pytest.raises(SignatureError, match="argument 'step': expected a 0-d tensor, as the forward's 'dt' is one"):
        warp_op(stepped, "x[n] -> y[n]", sizes="m", tensor_scalars="dt", backward=(back, {**STEPPED, "n": "m"}))
