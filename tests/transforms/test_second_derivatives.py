"""Double backward of kinds of ops, in eager code and in graphs, and what is refused."""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import warp as wp

import kernels
from kinds import KINDS, generic_op, marked_op, relayed_op, rows
from support import close, compiled, ramp
from warpops import GradientError, warp_op

f64 = wp.float64


@wp.kernel
def largest(x: wp.array[wp.vec3d], y: wp.array[wp.vec3d]):
    i = wp.tid()
    wp.atomic_max(y, 0, x[i])


@wp.kernel(enable_backward=False)
def one_way(x: wp.array[f64], y: wp.array[f64]):
    i = wp.tid()
    y[i] = x[i] * x[i]


@wp.func_native("return x * x * x;", adj_snippet="adj_x += 3.0 * x * x * adj_ret;")
def third_power(x: f64) -> f64: ...


@wp.kernel
def native(x: wp.array[f64], y: wp.array[f64]):
    i = wp.tid()
    y[i] = third_power(x[i])


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64) + 0.4


def grad_of_grad(function, x):
    """The gradient of a product of a gradient with what differs in every element."""
    leaves = [t.clone().requires_grad_() for t in x]
    total = sum((r * r.detach().cos()).sum() for r in function(*leaves))
    first = [g for g in torch.autograd.grad(total, leaves, create_graph=True) if g.requires_grad]
    found = [None] * len(x)
    if first:
        found = torch.autograd.grad(sum((g * ramp(g)).sum() for g in first), leaves, allow_unused=True)
    return [torch.zeros_like(t) if f is None else f for f, t in zip(found, x, strict=True)]


@pytest.mark.parametrize("name", rows("gradients", "tangents"))
def test_kinds(name):
    kind = KINDS[name]
    given = kind.draw()
    mine, theirs = (grad_of_grad(*kind.of(function, given)) for function in (kind.call, kind.reference))
    close(mine, theirs, rtol=kind.accuracy, atol=kind.accuracy)


def in_float64(row):
    kind = KINDS[row.id]
    given = kind.draw()
    places = kind.differentiable(given)
    return bool(places) and all(given[k].dtype is torch.float64 for k in places)


@pytest.mark.parametrize("name", [row for row in rows("tangents") if in_float64(row)])
def test_gradgradcheck(name):
    function, x = KINDS[name].of(KINDS[name].call, KINDS[name].draw())
    leaves = [t.requires_grad_() for t in x]
    assert torch.autograd.gradcheck(function, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, leaves, check_fwd_over_rev=True)


def test_an_array_is_changed_once():
    x, grid = rand(4).requires_grad_(), torch.ones(4, dtype=torch.float64)
    (g,) = torch.autograd.grad(marked_op(x, grid).sum(), x, create_graph=True)
    torch.autograd.grad(g.sum(), x)
    close(grid, (1 + x * x).detach())


def test_a_part_of_the_inputs():
    x, w = rand(4).requires_grad_(), rand(4)
    (g,) = torch.autograd.grad(generic_op(x, w).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    close(h, 2 * w)


def test_a_gradient_of_dual_numbers_is_one():
    """Forward over reverse by hand: the gradient that is taken at the level of the tangent has a tangent."""
    x, w, u = rand(4).requires_grad_(), rand(4), rand(4)
    with forward_ad.dual_level():
        y = generic_op(forward_ad.make_dual(x, u), w)
        close(forward_ad.unpack_dual(y).tangent, (2 * x * w * u).detach())
        (g,) = torch.autograd.grad(y.sum(), x)
        close(forward_ad.unpack_dual(g).tangent, 2 * w * u)


def test_the_cotangent_alone():
    """The gradient is linear in the cotangent, and differentiable in it."""
    x, seed = rand(4).requires_grad_(), rand(4).requires_grad_()
    (g,) = torch.autograd.grad(kernels.cube64_op(x), x, seed, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), seed)
    close(h, (3 * x**2).detach())


def test_third_and_fourth_derivative():
    x = rand(4).requires_grad_()
    y = kernels.cube64_op(kernels.cube64_op(x))
    for order in (9, 72, 504, 3024):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        power = {9: 8, 72: 7, 504: 6, 3024: 5}[order]
        close(y.detach(), order * x.detach() ** power)


def test_a_first_gradient_is_the_same_under_create_graph():
    x = rand(4).requires_grad_()
    plain = torch.autograd.grad(relayed_op(x)[1].sum(), x)
    recorded = torch.autograd.grad(relayed_op(x)[1].sum(), x, create_graph=True)
    close(recorded[0].detach(), plain[0])


@pytest.mark.skipif(
    not hasattr(torch._dynamo.config, "trace_autograd_ops"), reason="this torch can't trace autograd.grad"
)
def test_a_gradient_penalty_in_one_graph():
    def loss(x, w):
        y = generic_op(x, w)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.sum() + g.square().sum()

    x, w = rand(4).requires_grad_(), rand(4).requires_grad_()
    want = torch.autograd.grad(loss(x, w), (x, w))
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        got = torch.autograd.grad(compiled(loss)(x, w), (x, w))
    close(got, want)
    close(want[0], (2 * x * w + 8 * x * w * w).detach())


# --- what can't be had ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "shape", "options", "why"),
    [
        (native, (4,), {}, r"the native function 'third_power' has no tangent rule"),
        (
            largest,
            (4, 3),
            {"signature": "x[n] -> y[1]", "init": "zeros"},
            r"'atomic_max' has no tangent rule \(.*:\d+: `wp.atomic_max",
        ),
    ],
    ids=["native", "atomic_max"],
)
def test_refused_when_it_is_asked_for(kernel, shape, options, why):
    op = warp_op(kernel, name=f"second::{kernel.key.split('.')[-1]}_refused", **options)
    x = rand(*shape).requires_grad_()
    (g,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)  # the first gradient is there
    with pytest.raises(GradientError, match=rf"(?s)second::\w+: double backward: {why}.*register_backward"):
        torch.autograd.grad(g.sum(), x)
    with pytest.raises(GradientError, match=rf"(?s)second::\w+: jvp: {why}"):
        torch.func.jvp(op, (rand(*shape),), (rand(*shape),))
    with pytest.raises(GradientError, match=rf"(?s)second::\w+: tangent: {why}"):
        op.tangent(rand(4), tangent_x=rand(4))
    assert "none" in op.explain().split("second derivatives")[1].splitlines()[1]


def test_a_kernel_without_its_backward():
    op = warp_op(one_way, name="second::one_way")
    with pytest.raises(GradientError, match="enable_backward=False"):
        torch.func.jvp(op, (rand(4),), (rand(4),))


def test_explain_says_that_there_are_some():
    text = relayed_op.explain()
    assert "from the tangent kernel, made of the kernel's source" in text


def test_a_backward_of_the_users_own_stays():
    op = warp_op(kernels.cube64, "x[n] -> y[n]", dim="n", name="second::own")
    calls = []

    @op.register_backward
    def backward(ctx, g):
        calls.append(1)
        return 3.0 * ctx.inputs["x"] ** 2 * g

    x = rand(4).requires_grad_()
    (g,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    close(h, (6 * x).detach())
    assert calls == [1]
    close(torch.func.jvp(op, (x.detach(),), (torch.ones_like(x),))[1], (3 * x**2).detach())
    assert "jvp from the tangent kernel" in op.explain().replace("\n", " ").replace("      ", "")
