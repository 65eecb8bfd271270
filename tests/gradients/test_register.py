"""``register_backward`` and ``register_vmap``: the user's own rules on an op."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import check_against, close, compiled, graph_count
from warpops import warp_op


@wp.kernel
def cube(x: wp.array[wp.float64], s: float, y: wp.array[wp.float64]):
    i = wp.tid()
    y[i] = wp.float64(s) * x[i] * x[i] * x[i]


@wp.kernel
def two_results(x: wp.array[float], w: wp.array[float], y: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    y[i] = wp.exp(x[i]) * w[i]
    z[i] = x[i]


def make(name):
    return warp_op(cube, "x[n] -> y[n]", dim="n", name=f"test_register::{name}")


def cube_backward(ctx, grad):
    """Of ops that PyTorch can differentiate: double backward comes for free."""
    x, s = ctx.inputs["x"], ctx.inputs["s"]
    return 3.0 * s * x * x * grad, None


X = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def test_a_backward_of_torch_ops(mode):
    op = make("torch_ops")
    op.register_backward(cube_backward)
    check_against(mode(lambda x: op(x, 2.0)), lambda x: 2.0 * x**3, (X,), rtol=1e-9)


def test_double_backward():
    op = make("double")
    op.register_backward(cube_backward)
    x = X.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: op(x, 2.0), (x,))
    assert torch.autograd.gradgradcheck(lambda x: op(x, 2.0), (x,))


def test_outputs_are_there_by_name(mode):
    op = warp_op(two_results, "x[n], w[n] -> y[n], z[n]", dim="n", name="test_register::outputs")

    def backward(ctx, grad_y, grad_z):
        x, w, y = ctx.inputs["x"], ctx.inputs["w"], ctx.outputs["y"]
        grad_y = torch.zeros_like(y) if grad_y is None else grad_y
        grad_z = torch.zeros_like(x) if grad_z is None else grad_z
        return y * grad_y + grad_z, y / w * grad_y

    op.register_backward(backward)
    check_against(mode(op), lambda x, w: (x.exp() * w, x * 1.0), (torch.randn(4), torch.rand(4) + 1.0))
    check_against(mode(lambda x, w: op(x, w)[0]), lambda x, w: x.exp() * w, (torch.randn(4), torch.rand(4) + 1.0))


def test_it_replaces_what_compiled_code_did_before():
    op = make("replaced")
    function = compiled(lambda x: op(x, 1.0))
    x = X.clone().requires_grad_()
    (before,) = torch.autograd.grad(function(x).sum(), x)
    close(before, 3 * X * X)
    name = str(op.overload)
    op.register_backward(lambda ctx, grad: (100.0 * grad, None))
    assert str(op.overload) != name, "compiled graphs must not find the old gradient under the same name"
    (after,) = torch.autograd.grad(function(x).sum(), x)
    close(after, torch.full((3,), 100.0, dtype=torch.float64))
    (bare,) = torch.autograd.grad(torch.ops.test_register.replaced(x, 1.0).sum(), x)
    close(bare, torch.full((3,), 100.0, dtype=torch.float64))


def test_the_wrong_number_of_gradients_is_told():
    op = make("wrong")
    op.register_backward(lambda ctx, grad: (grad, None, None, None))
    x = X.clone().requires_grad_()
    with pytest.raises(Exception, match="test_register::wrong.*4.*2"):
        op(x, 1.0).sum().backward()


def test_opcheck_with_a_backward_of_one_s_own():
    op = make("checked")
    op.register_backward(cube_backward)
    results = torch.library.opcheck(op.overload, (X.clone().requires_grad_(), 2.0))
    assert set(results.values()) == {"SUCCESS"}, results


@wp.kernel
def wave(x: wp.array[float], order: int, y: wp.array[float]):
    i = wp.tid()
    y[i] = wp.sin(x[i] + 1.5707964 * float(order))


@wp.kernel
def gather(table: wp.array[float], index: wp.array[int], y: wp.array[float]):
    i = wp.tid()
    y[i] = table[index[i]]


@wp.kernel
def scatter(g: wp.array[float], index: wp.array[int], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(y, index[i], g[i])


def test_ints_and_sizes_in_a_backward_of_one_s_own_stay_symbolic():
    """A registered backward that calls ops is traced with symbolic ints, once for all of them."""
    wave_op = warp_op(wave, "x[n] -> y[n]")
    wave_op.register_backward(lambda ctx, g: (g * wave_op(ctx.inputs["x"], ctx.inputs["order"] + 1), None))
    gather_op = warp_op(gather, "table[m], index[n] -> y[n]")
    scatter_op = warp_op(scatter, "g[n], index[n] -> y[k]", sizes="k")
    gather_op.register_backward(lambda ctx, g: (scatter_op(g, ctx.inputs["index"], ctx.inputs["table"].shape[0]), None))
    function = compiled(lambda x, k, index: gather_op(wave_op(x, k), index), dynamic=True)
    for order, size in ((2, 4), (3, 5), (4, 6), (5, 7)):
        x, index = torch.rand(size, requires_grad=True), torch.arange(size, dtype=torch.int32) // 2
        (grad,) = torch.autograd.grad(function(x, order, index).sum(), x)
        counts = torch.bincount(index, minlength=size)
        close(grad, torch.cos(x + 1.5707964 * order) * counts)
    assert graph_count() == 1


def test_a_vmap_rule_of_one_s_own():
    op = make("mapped")
    calls = []

    def rule(info, in_dims, x, s):
        calls.append((info.batch_size, in_dims[0]))
        x = x.movedim(in_dims[0], 0)
        return op(x.reshape(-1), s).reshape(x.shape), 0

    op.register_vmap(rule)
    batch = torch.randn(3, 4, dtype=torch.float64)
    close(torch.vmap(lambda x: op(x, 2.0))(batch), 2.0 * batch**3)
    assert calls == [(3, 0)]


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (lambda grad: 1.0, "returned for 'x' a float; expected a tensor or None"),
        (lambda grad: grad[:2], r"returned for 'x' a gradient of shape \(2,\); expected \(3,\)"),
        (lambda grad: grad.sum(), r"returned for 'x' a gradient of shape \(\); expected \(3,\)"),
    ],
)
def test_a_registered_backward_that_returns_no_gradient(mode, returned, text):
    op = warp_op(cube)
    op.register_backward(lambda ctx, grad: (returned(grad), None))
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(Exception, match=text):
        mode(lambda x: op(x, 2.0))(x).sum().backward()


def test_a_registered_backward_that_leaves_a_sum_to_pytorch():
    op = warp_op(cube)
    op.register_backward(lambda ctx, grad: (grad.expand(2, 3), None))
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    op(x, 2.0).sum().backward()
    assert x.grad.tolist() == [2.0] * 3
