"""Forward mode: jvp, dual numbers, jacfwd, hessian, linearize, and transforms over them, against PyTorch's own."""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import warp as wp
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import kernels
from kinds import KINDS, rows
from support import INDUCTOR, close, compiled, leaves, ramp
from warpops import GradientError, warp_op

F = torch.func


@wp.struct
class Spring:
    stiff: wp.array[wp.float64]
    along: wp.array[wp.vec3d]
    rest: wp.float64


@wp.kernel
def pull(s: Spring, x: wp.array[wp.vec3d], y: wp.array[wp.float64]):
    i = wp.tid()
    d = wp.dot(s.along[i], x[i]) - s.rest
    y[i] = s.stiff[i] * d * d * d


@wp.kernel
def scattered(x: wp.array[wp.float64], at: wp.array[int], y: wp.array[wp.float64], n: wp.array[int]):
    i = wp.tid()
    wp.atomic_add(y, at[i], x[i] * x[i])
    n[i] = at[i]


@warp_op(mutates="grid", name="tangents::bump")
@wp.kernel
def bump_op(x: wp.array[float], grid: wp.array[float]):
    i = wp.tid()
    grid[i] = grid[i] + x[i] * x[i]


pull_op = warp_op(pull)
scattered_op = warp_op(scattered, "x[k], at[k] -> y[3], n[k]", name="tangents::scattered")


def rand(*shape, dtype=torch.float32):
    return torch.rand(*shape, dtype=dtype) + 0.25


def drawn(name):
    """The op and its reference as functions of the differentiable tensors; those, and a tangent of each."""
    kind = KINDS[name]
    given = kind.draw()
    (op, x), (reference, _) = kind.of(kind.call, given), kind.of(kind.reference, given)
    return op, reference, x, tuple(torch.randn_like(t) for t in x)


def alike(name, got, want):
    close(got, want, rtol=KINDS[name].accuracy, atol=KINDS[name].accuracy)


DIFFERENTIABLE = rows("gradients", "tangents", "dual numbers")


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_jvp(name):
    op, reference, x, v = drawn(name)
    alike(name, jvp(op, x, v), jvp(reference, x, v))
    for place in range(len(x)):

        def one(f, place=place):
            return jvp(lambda t: f(*x[:place], t, *x[place + 1 :]), (x[place],), (v[place],))

        alike(name, one(op), one(reference))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_dual_numbers(name):
    op, reference, x, v = drawn(name)
    with forward_ad.dual_level():
        found = [map(forward_ad.unpack_dual, f(*map(forward_ad.make_dual, x, v))) for f in (op, reference)]
        for got, want in zip(*found, strict=True):
            alike(name, got.primal, want.primal)
            alike(name, got.tangent, want.tangent)


@pytest.mark.parametrize("name", rows("gradients", "dual numbers"))
def test_dual_numbers_as_cotangents(name):
    op, reference, x, _ = drawn(name)
    x = leaves(x)
    with forward_ad.dual_level():
        found = []
        for f in (op, reference):
            y = [r for r in f(*x) if r.requires_grad]
            moved = [forward_ad.make_dual(ramp(r), r.detach().cos()) for r in y]
            found.append([forward_ad.unpack_dual(g) for g in torch.autograd.grad(y, x, moved, materialize_grads=True)])
        for got, want in zip(*found, strict=True):
            alike(name, got.primal, want.primal)
            alike(name, torch.zeros_like(got.primal) if got.tangent is None else got.tangent, want.tangent)


def test_dual_numbers_of_the_overload():
    x, v = rand(4), torch.randn(4)
    with forward_ad.dual_level():
        close(forward_ad.unpack_dual(kernels.square_op.overload(forward_ad.make_dual(x, v))).tangent, 2 * x * v)


@pytest.mark.parametrize("name", ["one input", "vectors", "in-out"])
def test_jacobians_and_hessians(name):
    op, reference, x, _ = drawn(name)
    where = tuple(range(len(x)))
    close(jacfwd(op, argnums=where)(*x), jacrev(reference, argnums=where)(*x))

    def total(f):
        return lambda *x: f(*x)[0].square().sum()

    want = hessian(total(reference), argnums=where)(*x)
    close(hessian(total(op), argnums=where)(*x), want)
    close(jacrev(jacrev(total(op), argnums=where), argnums=where)(*x), want)
    close(jacrev(jacfwd(total(op), argnums=where), argnums=where)(*x), want)
    close(jacfwd(jacfwd(total(op), argnums=where), argnums=where)(*x), want)
    if name == "one input":
        close(jacfwd(hessian(total(op)))(*x), jacfwd(hessian(total(reference)))(*x))


@pytest.mark.parametrize("name", ["one input", "vectors", "in-out", "two outputs", "struct", "program", "generic"])
def test_forward_mode_in_forward_mode(name):
    """PyTorch alone gives zeros for an autograd function."""
    op, reference, x, v = drawn(name)
    alike(name, along(along(op, v), v)(*x), along(along(reference, v), v)(*x))

    def slopes(f):
        return grad(lambda *x: sum(r.square().sum() for r in f(*x)), tuple(range(len(x))))

    alike(name, along(along(slopes(op), v), v)(*x), along(along(slopes(reference), v), v)(*x))


def along(f, v):
    return lambda *x: jvp(f, x, v)[1]


def test_transforms_over_and_under_vmap():
    x, w, v = rand(3, 4), rand(4), torch.randn(3, 4)
    op, reference = kernels.product_op, kernels.product_
    for run in (
        lambda f: vmap(lambda x, v: jvp(lambda x: f(x, w), (x,), (v,)))(x, v),
        lambda f: jvp(vmap(f, (0, None)), (x, w), (v, w)),
        lambda f: vmap(hessian(lambda x: f(x, w).square().sum()))(x),
        lambda f: vmap(lambda x, v: jvp(grad(lambda x: f(x, w).sum()), (x,), (v,)))(x, v),
        lambda f: vmap(lambda x, v: along(along(grad(lambda x: f(x, w).square().sum()), (v,)), (v,))(x))(x, v),
        lambda f: along(vmap(jacfwd(grad(lambda x: f(x, w).square().sum()))), (v,))(x),
        lambda f: grad(lambda x: vmap(grad(lambda x: f(x, w).square().sum()))(x).square().sum())(x),
        lambda f: vmap(jacfwd(f, argnums=1), (0, None))(x, w),
    ):
        close(run(op), run(reference))


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # so has torch.func.linearize of torch.mul
def test_linearize():
    x, v = rand(4), torch.randn(4)
    close(F.linearize(kernels.square_op, x)[1](v), 2 * x * v)


def changed(x):
    grid = torch.zeros_like(x)
    bump_op(x, grid)
    return grid


def slope(x):
    return torch.autograd.grad(kernels.square_op(x).sum(), x)[0]


@pytest.mark.parametrize("f", [lambda x: kernels.square_op(x), changed], ids=["functional", "mutates"])
@pytest.mark.parametrize("mode", [compiled, INDUCTOR])
def test_a_graph_that_was_traced_without_tangents_has_none(mode, f):
    x = rand(4)
    graph = mode(f)
    for _ in range(2):  # a launch that is remembered too
        close(graph(x), x * x)
    with forward_ad.dual_level(), pytest.raises(GradientError, match="traced without tangents"):
        graph(forward_ad.make_dual(x, x))
    with forward_ad.dual_level():
        close(graph(x), x * x)


@pytest.mark.parametrize("name", ["one input", "in-out", "program", "generic"])
def test_tangents_inside_of_compiled_code(name):
    op, _, x, v = drawn(name)

    def slope(x, v):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(op(*map(forward_ad.make_dual, x, v))[0]).tangent

    with pytest.raises(Exception, match="tangents aren't followed inside of compiled code"):
        compiled(slope)(x, v)


def test_a_graph_that_was_traced_with_its_gradient_has_no_other():
    x = rand(4).requires_grad_()
    graph = make_fx(slope)(x)
    close(graph(x.detach()), 2 * x.detach())
    with forward_ad.dual_level(), pytest.raises(GradientError, match="traced without tangents"):
        graph(forward_ad.make_dual(x.detach(), x.detach()))
    with pytest.raises(GradientError, match="kernels::square: .* can't be differentiated once more"):
        graph(x)


def test_reverse_over_forward():
    x, v = rand(4).requires_grad_(), torch.randn(4)
    with forward_ad.dual_level():
        slope = forward_ad.unpack_dual(kernels.square_op(forward_ad.make_dual(x, v))).tangent
        (g,) = torch.autograd.grad(slope.sum(), x)
    close(g, 2 * v)


def test_what_has_no_tangent_stays_plain():
    x, at = rand(4, dtype=torch.float64), torch.tensor([0, 1, 1, 2], dtype=torch.int32)
    with forward_ad.dual_level():
        y, n = scattered_op(forward_ad.make_dual(x, torch.ones_like(x)), at)
        assert forward_ad.unpack_dual(n).tangent is None
        want = torch.zeros(3, dtype=x.dtype).index_add(0, at.long(), 2 * x)
        close(forward_ad.unpack_dual(y).tangent, want)
        assert forward_ad.unpack_dual(scattered_op(x, at)[0]).tangent is None


def test_an_input_named_in_nondiff_has_a_tangent_of_zero():
    op = warp_op(kernels.product, "x[n], w[n] -> y[n]", dim="n", nondiff="w", name="tangents::nondiff")
    x, w, v = rand(4), rand(4), torch.randn(4)
    close(jvp(op, (x, w), (v, v))[1], 2 * x * w * v)
