"""Grad modes, graphs kept and used again, hooks, saved tensors; and gradients that can't be had, which raise."""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import warp as wp

import kernels
from support import close, compiled, leaf
from warpops import GradientError, warp_op


@wp.kernel(enable_backward=False)
def one_way(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * 3.0


@wp.kernel
def stretched(p: wp.array[wp.vec3d], k: wp.array[wp.float64], y: wp.array[wp.float64]):
    i = wp.tid()
    d = wp.length(p[i]) - wp.float64(0.5)
    y[i] = wp.float64(0.5) * k[i] * d * d


@wp.kernel
def ignores_one(x: wp.array[float], unread: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i]


ignores_one_op = warp_op(ignores_one, "x[n], unread[n] -> y[n]", dim="n")
one_way_op = warp_op(one_way, "x[n] -> y[n]", dim="n")
stretched_op = warp_op(stretched, "p[n], k[n] -> y[n]", dim="n")
X = torch.tensor([1.0, -2.0, 3.0])


@pytest.mark.parametrize(
    "context",
    [torch.no_grad, torch.inference_mode, lambda: torch.set_grad_enabled(False)],
    ids=["no", "inference", "off"],
)
def test_without_grad(mode, context):
    function, x = mode(kernels.square_op), leaf(X)
    with context():
        y = function(x)
        assert not y.requires_grad
        assert y.grad_fn is None
    close(y, X * X)
    function(x).sum().backward()
    close(x.grad, 2 * X)


def test_inference_mode_gives_inference_tensors():
    with torch.inference_mode():
        x = X * 1.0
        y = kernels.square_op(x)
    assert y.is_inference()
    close(kernels.square_op(x), X * X)
    w = leaf(X)
    with pytest.raises(RuntimeError, match="nference"):
        kernels.product_op(x, w).sum().backward()


def test_frozen_inputs():
    w = torch.nn.Parameter(X.clone(), requires_grad=False)
    x = leaf(X)
    kernels.product_op(x, w).sum().backward()
    assert w.grad is None
    assert not kernels.product_op(x.detach(), w).requires_grad


def test_a_graph_is_used_twice(mode):
    p, k = torch.randn(4, 3, dtype=torch.float64), torch.rand(4, dtype=torch.float64)
    p.requires_grad_()
    k.requires_grad_()
    loss = mode(stretched_op)(p, k).sum()
    first = torch.autograd.grad(loss, (p, k), retain_graph=True)
    second = torch.autograd.grad(loss, (p, k), retain_graph=True)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    loss.backward(retain_graph=True)
    loss.backward()
    close(p.grad, 2 * first[0])


def test_gradcheck():
    p, k = torch.randn(3, 3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    p.requires_grad_()
    k.requires_grad_()
    assert torch.autograd.gradcheck(stretched_op, (p, k))
    assert torch.autograd.gradcheck(stretched_op, (p, k), fast_mode=True)


def test_a_graph_is_freed_after_backward():
    x = leaf(X)
    loss = kernels.square_op(x).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("which", ["the learned one", "the constant"])
def test_an_input_changed_before_backward(mode, which):
    x, w = leaf(X), X.clone()
    y = mode(kernels.product_op)(x, w)
    with torch.no_grad():
        (x if which == "the learned one" else w).add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_an_output_changed_before_backward_does_not_matter(mode):
    """It isn't saved: the adjoint doesn't read it."""
    x = leaf(X)
    y = mode(lambda x: kernels.square_op(x))(x)
    with torch.no_grad():
        y.zero_()
    y.sum().backward()
    close(x.grad, 2 * X)


def test_hooks(mode):
    seen = []
    x, w = leaf(X), leaf(X)
    x.register_hook(lambda g: seen.append(g.clone()))
    y = mode(kernels.product_op)(x, w)
    y.register_hook(lambda g: g * 10.0)
    y.sum().backward()
    close(seen[0], 20 * X * X)
    close(w.grad, 10 * X * X)


def test_saved_tensor_hooks(mode):
    packed, unpacked = [], []

    def pack(t):
        packed.append(t)
        return t.clone()

    def unpack(t):
        unpacked.append(t)
        return t

    x, w = leaf(X), leaf(X)
    function = mode(kernels.product_op)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = function(x, w)
    y.sum().backward()
    assert len(packed) == len(unpacked) == 2
    close(x.grad, 2 * X * X)
    close(w.grad, X * X)


def test_gradients_with_allow_unused(mode):
    """None for what isn't in the graph, zeros for an input that the kernel doesn't read."""
    x, w, elsewhere = leaf(X), leaf(X), leaf(X)
    y = mode(kernels.product_op)(x, w)
    gx, gw, none = torch.autograd.grad(y.sum(), (x, w, elsewhere), allow_unused=True)
    close((gx, gw), (2 * X * X, X * X))
    assert none is None
    y = mode(ignores_one_op)(x, w)
    gx, gw = torch.autograd.grad(y.sum(), (x, w), allow_unused=True)
    close((gx, gw), (2 * X, torch.zeros(3)))


def test_checkpointing(mode):
    def run(x, w):
        return torch.utils.checkpoint.checkpoint(kernels.product_op, x, w, use_reentrant=False)

    x, w = leaf(X), leaf(X)
    mode(run)(x, w).sum().backward()
    close(x.grad, 2 * X * X)
    close(w.grad, X * X)


def test_backward_in_anomaly_mode():
    x = leaf(X)
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly(check_nan=True):
        kernels.square_op(x).sum().backward()
    close(x.grad, 2 * X)


# --- what can't be had ------------------------------------------------------------------------------------------------


def test_a_double_backward_past_the_op_is_fine():
    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    y = (x**3 * kernels.cube64_op(x.detach())).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    close(h, (6 * x * x**3).detach())


def test_double_backward_of_compiled_code_raises():
    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(compiled(kernels.cube64_op)(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(g.sum(), x)


def test_a_dual_number_elsewhere_is_no_obstacle():
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, torch.ones(3))
        close(kernels.square_op(X) * 1.0, X * X)
        _, tangent = forward_ad.unpack_dual(dual * kernels.square_op(X))
    close(tangent, X * X)


def test_a_kernel_without_backward(mode):
    function = mode(one_way_op)
    close(function(X), 3 * X)
    with torch.no_grad():
        close(function(leaf(X)), 3 * X)
    with pytest.raises(Exception, match="backward") as caught:
        function(leaf(X)).sum().backward()
    assert "one_way" in str(caught.value)
    if mode.__name__ == "eager":
        assert isinstance(caught.value, GradientError)
