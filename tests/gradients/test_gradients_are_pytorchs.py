"""Gradients belong to PyTorch: fresh tensors, accumulated once, none where none is asked for, nobody's ``.grad`` touched."""

from __future__ import annotations

import pytest
import torch
import warp as wp

import kernels
from support import check_against, close, leaf, values_and_grads
from test_gradient_table import X, Y
from warpops import warp_op


@wp.kernel
def ignores_one(x: wp.array[float], unread: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i]


ignores_one_op = warp_op(ignores_one, "x[n], unread[n] -> y[n]", dim="n")


def test_an_unread_input_gets_zeros(mode):
    _, (_, unread) = values_and_grads(mode(ignores_one_op), (torch.randn(4), torch.randn(4)))
    assert torch.equal(unread, torch.zeros(4))


def test_no_two_gradients_share_storage(mode):
    _, grads = values_and_grads(mode(kernels.product_op), (torch.randn(4), torch.randn(4)))
    places = {g.untyped_storage().data_ptr() for g in grads}
    assert len(places) == 2


def test_a_gradient_is_not_the_cotangent():
    """An in-out gradient is made from a copy; handing out the cotangent itself would tie two tensors together."""
    y, x = leaf(Y), X
    seed = torch.ones(4)
    (got,) = torch.autograd.grad(kernels.multiply_op(x, y), y, seed)
    got.zero_()
    assert torch.equal(seed, torch.ones(4))


def test_one_tensor_twice_gets_the_sum(mode):
    check_against(mode(lambda x: kernels.product_op(x, x)), lambda x: x**3, (torch.randn(4),))


def test_nobodys_grad_is_touched(mode):
    x, w = leaf(torch.randn(4)), leaf(torch.randn(4))
    y = mode(kernels.product_op)(x, w)
    assert x.grad is None
    assert w.grad is None
    torch.autograd.grad(y.sum(), x)
    assert x.grad is None
    assert w.grad is None


def test_leaf_gradients_are_accumulated_once(mode):
    x, w = torch.randn(4), torch.nn.Parameter(torch.randn(4))
    function = mode(kernels.product_op)
    function(x, w).sum().backward()
    close(w.grad, x * x)
    function(x, w).sum().backward()
    close(w.grad, 2 * x * x)
    w.grad = torch.full_like(w, 10.0)
    function(x, w).sum().backward()
    close(w.grad, x * x + 10.0)


def test_several_outputs_of_which_some_are_used(mode):
    function = mode(kernels.spring_op)
    losses = {
        "first": lambda e, f: e.sum(),
        "second": lambda e, f: (f * f).sum(),
        "both": lambda e, f: e.sum() + f[:, 1].sum(),
        "second detached": lambda e, f: (e * f.detach()[:, 0]).sum(),
        "first twice": lambda e, f: (e * e).sum() + e.mean(),
    }
    p, k = torch.randn(4, 3), torch.rand(4)
    for name, loss in losses.items():
        results = []
        for f in (function, kernels.spring_):
            a, b = leaf(p), leaf(k)
            loss(*f(a, b)).backward()
            results.append((a.grad, b.grad))
        for mine, theirs in zip(*results, strict=True):
            close(mine, theirs, name)


@pytest.mark.parametrize("which", [(0,), (1,), (0, 1), ()], ids=["x", "w", "both", "none"])
def test_only_the_gradients_that_are_asked_for(mode, which):
    x, w = leaves = [torch.randn(4).requires_grad_(i in which) for i in range(2)]
    y = mode(kernels.product_op)(x, w)
    assert y.requires_grad == bool(which)
    if which:
        y.sum().backward()
    want = (2 * x * w, x * x)
    for i, tensor in enumerate(leaves):
        if i in which:
            close(tensor.grad, want[i].detach())
        else:
            assert tensor.grad is None
