"""Second derivatives and forward mode of programs: launch by launch, where each kernel has a tangent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import warp as wp
from torch.autograd import forward_ad

from derivatives import check_twice
from programs import append, blur_twice, no_backward, ping_pong64
from support import close, inductor
from warpops import GradientError, warp_program
from warpops.program.run import Runner

D = wp.array[wp.float64]
D2 = wp.array2d[wp.float64]
F = wp.array[float]
Points = wp.array[wp.vec3d]


@wp.kernel
def product64(x: D, w: D, y: D):
    i = wp.tid()
    y[i] = x[i] * wp.sin(w[i])


@wp.kernel
def square_in_place64(y: D):
    i = wp.tid()
    y[i] = y[i] * y[i]


@wp.kernel
def total64(x: D, total: D):
    i = wp.tid()
    wp.atomic_add(total, 0, x[i] * x[i] * x[i])


@wp.kernel
def gather64(x: D, index: wp.array[int], y: D):
    i = wp.tid()
    y[i] = x[index[i]] * x[index[i]]


@wp.kernel
def shift(index: wp.array[int], by: int):
    i = wp.tid()
    index[i] = (index[i] + by) % index.shape[0]


@wp.kernel
def constant(y: D, value: wp.float64):
    i = wp.tid()
    y[i] = value


@wp.kernel
def clamped(x: D, low: D, y: D):
    i = wp.tid()
    wp.atomic_min(low, 0, x[i])
    y[i] = x[i] * x[i]


@wp.kernel
def generic_cube(x: wp.array[Any], y: wp.array[Any]):
    i = wp.tid()
    y[i] = x[i] * x[i] * x[i]


@wp.struct
class Pair:
    a: D
    n: wp.array[int]
    b: D
    s: wp.float64


@wp.kernel
def combine64(pair: Pair, y: D):
    i = wp.tid()
    y[i] = pair.a[pair.n[i]] * wp.sin(pair.b[i]) * pair.s


@wp.kernel
def spread64(grid: wp.uint64, p: Points, y: D):
    i = wp.tid()
    total = wp.float64(0.0)
    for j in wp.hash_grid_query(grid, p[i], wp.float64(2.0)):
        d = p[i] - p[j]
        total += wp.dot(d, d) * wp.dot(d, d)
    y[i] = total


@wp.kernel
def height64(mesh: wp.uint64, x: F, y: F):
    i = wp.tid()
    query = wp.mesh_query_point(mesh, wp.vec3(x[i], 0.0, 1.0), 1.0e6)
    y[i] = wp.length(wp.vec3(x[i], 0.0, 1.0) - wp.mesh_eval_position(mesh, query.face, query.u, query.v))


def program(name, signature="x[n] -> y[n]", **options):
    return warp_program(signature, name=f"program_derivatives::{name}", **options)


@program("update", "y[n], w[n] -> y[n]", scratch="tmp[n]")
def update(y: D, w: D, tmp: D):
    wp.launch(product64, dim=y.shape, inputs=[y, w], outputs=[tmp])
    wp.launch(product64, dim=y.shape, inputs=[tmp, y], outputs=[y])
    wp.launch(square_in_place64, dim=y.shape, inputs=[y])


@program("normalise", "x[n] -> y[n], total[1]")
def normalise(x: D, y: D, total: D):
    wp.launch(total64, dim=x.shape, inputs=[x], outputs=[total])
    wp.launch(product64, dim=1, inputs=[x, total], outputs=[y])
    wp.launch(product64, dim=x.shape[0] - 1, inputs=[x[1:], x[:-1]], outputs=[y[1:]])


@program("library", scratch="a[n], b[n]")
def library(x: D, y: D, a: D, b: D):
    """Copies, whole and in part, fills and scans, over arrays that held something before."""
    wp.launch(product64, dim=x.shape, inputs=[x, x], outputs=[a])
    wp.copy(b, a, dest_offset=1, src_offset=0, count=3)
    wp.utils.array_scan(b, a, inclusive=False)
    b.fill_(2.0)
    b[2:].zero_()
    wp.launch(product64, dim=x.shape, inputs=[a, a], outputs=[y])
    a.zero_()
    wp.copy(y[1:], b[:-1])
    wp.copy(y[:1], x[:1])
    wp.launch(square_in_place64, dim=y.shape, inputs=[y])


@program("own", "x[n] -> u[3, n]")
def own(x: D, u: D2):
    """Rows of one array, and arrays of the program's own."""
    wp.copy(u[0], x)
    for row in range(2):
        made = wp.zeros(x.shape, dtype=wp.float64, device=x.device)
        wp.launch(product64, dim=x.shape, inputs=[u[row], u[row]], outputs=[made])
        other = wp.clone(made)
        wp.launch(product64, dim=x.shape, inputs=[other, made], outputs=[u[row + 1]])


@program("walk", "x[n], start[n] -> y[n]", scratch="index[n], tmp[n]")
def walk(x: D, start: wp.array[int], y: D, index: wp.array[int], tmp: D):
    wp.copy(index, start)
    wp.launch(gather64, dim=x.shape, inputs=[x, index], outputs=[tmp])
    wp.launch(shift, dim=x.shape, inputs=[index, 2])
    wp.launch(gather64, dim=x.shape, inputs=[tmp, index], outputs=[y])


@program("cubes", scratch="tmp[n]")
def cubes(x: wp.array[Any], y: wp.array[Any], tmp: wp.array[Any]):
    wp.launch(generic_cube, dim=x.shape, inputs=[x], outputs=[tmp])
    wp.launch(generic_cube, dim=x.shape, inputs=[tmp], outputs=[y])


@program("pairs", "pair.a[n], pair.n[n], pair.b[n] -> y[n]", scratch="tmp[n]")
def pairs(pair: Pair, y: D, tmp: D):
    wp.launch(combine64, dim=y.shape, inputs=[pair], outputs=[tmp])
    again = Pair()
    again.a, again.n, again.b, again.s = tmp, pair.n, pair.b, wp.float64(2.0)
    wp.launch(combine64, dim=y.shape, inputs=[again], outputs=[y])


@program("grid", "p[n] -> y[n]")
def neighbours(p: Points, y: D):
    grid = wp.HashGrid(4, 4, 4, device=p.device, dtype=wp.float64)
    grid.build(p, 2.0)
    wp.launch(spread64, dim=p.shape, inputs=[grid.id, p, y])


def doubles(*sizes):
    generator = torch.Generator().manual_seed(1)
    return torch.rand(*sizes, generator=generator, dtype=torch.float64) + 0.2


START = torch.tensor([3, 0, 1, 2], dtype=torch.int32)
KINDS = {
    "ping-pong": (ping_pong64, doubles(4)),
    "in-out": (update, doubles(4), doubles(4) + 1.0),
    "atomics and views": (normalise, doubles(4)),
    "copies, fills and scans": (library, doubles(4)),
    "rows and own arrays": (own, doubles(3)),
    "indices": (walk, doubles(4), START),
    "generic": (cubes, doubles(3)),
    "struct": (lambda a, b: pairs({"a": a, "n": START, "b": b, "s": 0.5}), doubles(4), doubles(4) + 0.5),
    "grid": (neighbours, doubles(4, 3)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_against_differences(kind):
    """Twice, since the second time what was launched is launched again."""
    op, *args = KINDS[kind]
    for scale in (1.0, 1.1):
        check_twice(op, *(a * scale if a.is_floating_point() else a for a in args))


def test_third_order_and_nested_transforms():
    def function(x):
        return ping_pong64(x).sum()

    x = doubles(3)
    hessian = torch.func.hessian(function)
    close(hessian(x), torch.func.jacrev(torch.func.jacrev(function))(x))
    close(torch.func.jacrev(torch.func.jacfwd(function))(x), hessian(x))
    third = torch.func.jacfwd(hessian)(x)
    u = 1e-5 * torch.eye(3, dtype=torch.float64)
    moved = torch.stack([(hessian(x + d) - hessian(x - d)) / 2e-5 for d in u], -1)
    torch.testing.assert_close(third, moved, rtol=1e-5, atol=1e-6)
    batch = torch.stack([x, 2.0 * x])
    close(torch.vmap(hessian)(batch), torch.stack([hessian(one) for one in batch]))
    close(
        torch.vmap(lambda x, u: torch.func.jvp(ping_pong64, (x,), (u,))[1])(batch, batch),
        torch.stack([torch.func.jvp(ping_pong64, (one,), (one,))[1] for one in batch]),
    )


def test_dual_numbers():
    x, u = doubles(4), doubles(4)
    want = torch.func.jvp(ping_pong64, (x,), (u,))
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(ping_pong64(forward_ad.make_dual(x, u)))
        close(found.primal, want[0])
        close(found.tangent, want[1])


def test_the_tangent_op():
    y, w, u = doubles(4), doubles(4), doubles(4)
    assert update.tangent.schema.endswith(
        "(Tensor y, Tensor w, Tensor? tangent_y=None, Tensor? tangent_w=None) -> (Tensor, Tensor)"
    )
    value, tangent = update.tangent(y, w, tangent_w=u)
    close(value, update(y, w))
    close(tangent, torch.func.jvp(lambda w: update(y, w), (w,), (u,))[1])
    assert not update.tangent(y, w)[1].any()
    x = {"a": y.float().double(), "n": START, "b": w, "s": 0.5}
    close(pairs.tangent(x, tangent_pair_b=u)[1], torch.func.jvp(lambda b: pairs({**x, "b": b}), (w,), (u,))[1])
    text = " ".join(ping_pong64.explain().split())
    assert "each launch that of the kernel's tangent, where it has one" in text


def test_its_python_runs_once_as_well(monkeypatch):
    count, call = [0], Runner._call

    def counted(self, run, values):
        count[0] += 1
        call(self, run, values)

    monkeypatch.setattr(Runner, "_call", counted)

    @program("once", scratch="tmp[n]")
    def once(x: D, y: D, tmp: D):
        wp.launch(product64, dim=x.shape, inputs=[x, x], outputs=[tmp])
        wp.launch(product64, dim=x.shape, inputs=[tmp, x], outputs=[y])

    for _ in range(3):
        x = doubles(4).requires_grad_()
        (grad,) = torch.autograd.grad(once(x).sum(), x, create_graph=True)
        (grad * grad).sum().backward()
    assert count == [3]  # forward, backward, and backward of the tangent


def test_only_the_inputs_that_have_a_tangent():
    """What follows from the others alone is launched as it is, whether it has a tangent or not."""

    @program("parts", "x[n], w[n] -> y[n]", scratch="z[n], low[1]")
    def parts(x: D, w: D, y: D, z: D, low: D):
        wp.launch(clamped, dim=w.shape, inputs=[w, low], outputs=[z])
        wp.launch(product64, dim=x.shape, inputs=[x, z], outputs=[y])

    x, w, u = doubles(4), doubles(4), doubles(4)
    y, tangent = torch.func.jvp(lambda x: parts(x, w), (x,), (u,))
    close(y, x * torch.sin(w * w))
    close(tangent, u * torch.sin(w * w))
    with pytest.raises(
        GradientError, match=r"the kernel clamped, which has none: .*atomic_min.*test_program_derivatives.py:\d+"
    ):
        torch.func.jvp(lambda w: parts(x, w), (w,), (u,))


def test_a_tangent_that_is_overwritten():
    """What an array held has no part in what is stored there without a tangent."""

    @program("overwritten", scratch="tmp[n]")
    def overwritten(x: D, y: D, tmp: D):
        wp.launch(product64, dim=x.shape, inputs=[x, x], outputs=[tmp])
        wp.launch(product64, dim=x.shape, inputs=[x, tmp], outputs=[y])
        wp.launch(constant, dim=2, inputs=[tmp, wp.float64(3.0)])
        wp.launch(product64, dim=2, inputs=[x, tmp], outputs=[y])

    def reference(x):
        return torch.cat([x[:2] * torch.sin(torch.full_like(x[:2], 3.0)), x[2:] * torch.sin(x[2:] * torch.sin(x[2:]))])

    x, u = doubles(4), doubles(4)
    for got, want in zip(*(torch.func.jvp(f, (x,), (u,)) for f in (overwritten, reference)), strict=True):
        close(got, want)
    check_twice(overwritten, x)


def test_mutated_arrays_and_inputs_without_a_gradient():
    @program("stepped", "x[n], w[n] -> y[n]", mutates="state", nondiff="w")
    def stepped(x: D, w: D, state: D, y: D):
        wp.launch(product64, dim=x.shape, inputs=[x, state], outputs=[y])
        wp.launch(product64, dim=x.shape, inputs=[y, w], outputs=[state])
        wp.launch(product64, dim=x.shape, inputs=[state, y], outputs=[y])

    def reference(x, w, state):
        y = x * torch.sin(state)
        return y * torch.sin(w) * torch.sin(y)

    x, w, u = doubles(4).requires_grad_(), doubles(4), doubles(4)
    hessians = []
    for function in (stepped, reference):
        (grad,) = torch.autograd.grad(function(x, w, doubles(4)).sum(), x, create_graph=True)
        hessians.append(torch.autograd.grad((grad * u).sum(), x)[0])
    close(*hessians)


def test_a_backward_of_the_users_own_stays():
    @program("halved")
    def halved(x: D, y: D):
        wp.launch(product64, dim=x.shape, inputs=[x, x], outputs=[y])

    halved.register_backward(lambda ctx, grad: 7.0 * grad * ctx.inputs["x"])
    x, u = doubles(3).requires_grad_(), doubles(3)
    (grad,) = torch.autograd.grad(halved(x).sum(), x, create_graph=True)
    close(torch.autograd.grad(grad.sum(), x)[0], torch.full_like(x, 7.0))
    close(
        torch.func.jvp(halved, (x.detach(),), (u,))[1],
        torch.func.jvp(lambda x: x * torch.sin(x), (x.detach(),), (u,))[1],
    )


@pytest.mark.skipif(
    not hasattr(torch._dynamo.config, "trace_autograd_ops"), reason="this torch can't trace autograd.grad"
)
@pytest.mark.parametrize("compiled", [lambda f: torch.compile(f, fullgraph=True, backend="aot_eager"), inductor])
def test_a_gradient_penalty_in_one_graph(compiled):
    def penalty(x, scale):
        (grad,) = torch.autograd.grad((ping_pong64(x * scale)).sum(), x, create_graph=True)
        return (grad * grad).sum()

    x, scale = doubles(4).requires_grad_(), doubles(1).requires_grad_()
    want = torch.autograd.grad(penalty(x, scale), (x, scale))
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        got = torch.autograd.grad(compiled(penalty)(x, scale), (x, scale))
    for one, other in zip(got, want, strict=True):
        close(one, other)


# --- what has none ----------------------------------------------------------------------------------------------------


def by_sorting(x: F, y: F, keys: F, index: wp.array[int]):
    wp.copy(keys, x, count=x.size)
    wp.utils.radix_sort_pairs(keys, index, x.size)
    wp.copy(y, keys, count=x.size)


def by_reading(x: F, y: F, keys: F, index: wp.array[int]):
    y.fill_(float(x.numpy().max()))


def by_counting(x: F, y: F, keys: F, index: wp.array[int]):
    wp.launch(append, dim=x.shape, inputs=[x, index, y])


def without_backward(x: F, y: F, keys: F, index: wp.array[int]):
    wp.launch(no_backward, dim=x.shape, inputs=[x, y])


def by_a_mesh(x: F, y: F, keys: F, index: wp.array[int]):
    corners = np.array([[-9, -9, 0], [9, -9, 0], [0, 9, 0]], dtype=np.float32)
    mesh = wp.Mesh(wp.array(corners, dtype=wp.vec3), wp.array([0, 1, 2], dtype=int))
    wp.launch(height64, dim=x.shape, inputs=[mesh.id, x, y])


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (by_sorting, r"wp\.utils\.radix_sort_pairs, which has none"),
        (by_reading, "reads an array as numbers"),
        (by_counting, "the kernel append, which has none: .*"),
        (without_backward, "the kernel no_backward, which has none: .*enable_backward=False"),
        (by_a_mesh, r"the kernel height64, which has none: .*mesh_.*test_program_derivatives.py:\d+"),
    ],
)
def test_refused_when_it_is_asked_for(function, text):
    op = program(function.__name__, scratch="keys[2 * n], index[2 * n]")(function)
    x = torch.rand(4)
    assert op(x).shape == (4,)
    with pytest.raises(
        GradientError, match=rf"program_derivatives::{function.__name__}: the program's tangent passes .*{text}"
    ):
        torch.func.jvp(op, (x,), (x,))
    assert op(x).shape == (4,)


def test_double_backward_is_what_it_should_be():
    x = torch.rand(6, requires_grad=True)
    (grad,) = torch.autograd.grad(blur_twice(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)

    def reference(x):
        for _ in range(2):
            x = 0.5 * x * x + 0.25 * (x.roll(-1) + x.roll(1))
        return x

    (grad,) = torch.autograd.grad(reference(x).sum(), x, create_graph=True)
    close(second, torch.autograd.grad(grad.sum(), x)[0])


def test_an_exported_program_is_differentiated_twice():
    class Net(torch.nn.Module):
        def forward(self, y, w):
            return update(y, w)

    y, w = doubles(4).requires_grad_(), doubles(4).requires_grad_()
    exported = torch.export.export(Net(), (y.detach(), w.detach()))
    hessians = []
    for function in (update, exported.module(), exported.run_decompositions().module()):
        grads = torch.autograd.grad(function(y, w).sum(), (y, w), create_graph=True)
        hessians.append(torch.autograd.grad(sum((grad * grad).sum() for grad in grads), (y, w)))
    for one in hessians[1:]:
        for got, want in zip(one, hessians[0], strict=True):
            close(got, want)
