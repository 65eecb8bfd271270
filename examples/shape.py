"""Grow a sphere into a shape that is known by its distance field.

Two operators ask Warp's hierarchies of bounding boxes for the nearest of a mesh's triangles. ``distance`` is the signed
distance of points to a fixed ``wp.Mesh``; its gradient is the unit vector that the query has found already, so it has
a backward of its own. ``reach`` is the distance of fixed points to a mesh that moves: its gradient goes to the
vertices of that mesh, by the kernel's own adjoint. The first keeps the sphere in the target, the second pulls it into
the target's arms::

    python examples/shape.py

compares both with brute force in PyTorch, prints the progress, checks that the surfaces meet, and draws them.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import warp as wp
from torch import Tensor

from warpops import warp_op


@wp.kernel
def distance_backward(away: wp.array[wp.vec3], grad_d: wp.array[float], grad_point: wp.array[wp.vec3]):
    i = wp.tid()
    grad_point[i] = grad_d[i] * away[i]


@warp_op("point[n] -> d[n], away[n]", nondiff="away", backward=distance_backward)
@wp.kernel
def distance(mesh: wp.uint64, point: wp.array[wp.vec3], d: wp.array[float], away: wp.array[wp.vec3]):
    """Negative inside; ``away`` is where it grows."""
    i = wp.tid()
    query = wp.mesh_query_point(mesh, point[i], 1.0e6)
    offset = point[i] - wp.mesh_eval_position(mesh, query.face, query.u, query.v)
    d[i] = query.sign * wp.length(offset)
    away[i] = query.sign * wp.normalize(offset)


@warp_op("vertex[v], face[f], point[n] -> d[n]", nondiff="point", dim="n")
@wp.kernel
def reach(
    mesh: wp.uint64,
    vertex: wp.array[wp.vec3],
    face: wp.array[wp.vec3i],
    point: wp.array[wp.vec3],
    d: wp.array[float],
):
    """The gradient takes the place on the face as fixed: moving along it changes the least distance in second order."""
    i = wp.tid()
    query = wp.mesh_query_point_no_sign(mesh, point[i], 1.0e6)
    f, u, v = face[query.face], query.u, query.v
    d[i] = wp.length(point[i] - u * vertex[f[0]] - v * vertex[f[1]] - (1.0 - u - v) * vertex[f[2]])


def triangle_distance(point: Tensor, corners: Tensor) -> Tensor:
    """Of points (..., 3) to triangles (..., 3, 3): to the plane above the inside, else to the nearest side."""
    a, b, c = corners.unbind(-2)
    normal = torch.linalg.cross(b - a, c - a)
    squares, inside = [], torch.tensor(True)
    for start, end in ((a, b), (b, c), (c, a)):
        side, offset = end - start, point - start
        along = ((offset * side).sum(-1) / side.square().sum(-1)).clamp(0.0, 1.0)
        squares.append((offset - along[..., None] * side).square().sum(-1))
        inside = inside & ((torch.linalg.cross(normal, side) * offset).sum(-1) >= 0.0)
    height = ((point - a) * normal).sum(-1).square() / normal.square().sum(-1)
    return torch.where(inside, height, torch.stack(squares).amin(0)).sqrt()


def winding(point: Tensor, corners: Tensor) -> Tensor:
    """How often the triangles (f, 3, 3) wind around each point (n, 3): the sum of their solid angles, 1 inside."""
    a, b, c = (corners - point[:, None, None]).unbind(-2)
    x, y, z = a.norm(dim=-1), b.norm(dim=-1), c.norm(dim=-1)
    volume = (a * torch.linalg.cross(b, c)).sum(-1)
    rest = x * y * z + (a * b).sum(-1) * z + (b * c).sum(-1) * x + (c * a).sum(-1) * y
    return torch.atan2(volume, rest).sum(-1) / (2.0 * math.pi)


def brute_force(corners: Tensor, point: Tensor, signed: bool) -> Tensor:
    with torch.no_grad():  # the search is not differentiated, and goes in pieces that fit into the cache
        nearest = torch.cat([triangle_distance(p[:, None], corners).argmin(-1) for p in point.split(16)])
        inside = torch.cat([winding(p, corners) > 0.5 for p in point.split(16)]) if signed else torch.tensor(False)
    return torch.where(inside, -1.0, 1.0) * triangle_distance(point, corners[nearest])


def compare(name: str, source: Tensor, *both: Callable[[], Tensor]) -> None:
    """Values, gradients and times of the operator and of brute force."""

    def evaluate(run: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        value = run()
        return value.detach(), torch.autograd.grad(value.square().sum(), source)[0]

    off, turned = ((a - b).abs().max().item() for a, b in zip(*map(evaluate, both), strict=True))
    times = [min(timeit.repeat(partial(evaluate, run), number=1, repeat=3)) for run in both]
    print(f"{name}: values differ by {off:.0e} at most, gradients by {turned:.0e}")
    print(f"{name}: {1e3 * times[0]:.1f} ms forward and backward, by brute force in PyTorch {1e3 * times[1]:.0f} ms")
    assert off < 1e-5 and turned < 1e-3, f"{name} and PyTorch disagree"


def icosphere(level: int) -> tuple[Tensor, Tensor]:
    """The icosahedron, its faces divided in four ``level`` times: vertices (v, 3) of length 1, faces (f, 3)."""
    golden = (1.0 + math.sqrt(5.0)) / 2.0
    corners = [(0.0, s, t * golden) for s in (-1.0, 1.0) for t in (-1.0, 1.0)]
    vertex = torch.tensor([c[k:] + c[:k] for c in corners for k in range(3)])
    triples = torch.tensor(list(itertools.combinations(range(12), 3)))
    length = (vertex[triples] - vertex[triples].roll(1, 1)).norm(dim=-1)
    face = triples[(length < 2.1).all(1)]
    face = torch.where(torch.linalg.det(vertex[face])[:, None] < 0.0, face.flip(1), face)  # normals point outward
    for _ in range(level):
        sides = torch.stack([face, face.roll(-1, 1)], -1).sort(-1).values.flatten(0, 1)
        sides, which = sides.unique(dim=0, return_inverse=True)
        middle = len(vertex) + which.view(-1, 3)
        vertex = torch.cat([vertex, vertex[sides].mean(1)])
        face = torch.cat([middle, *(torch.stack([face[:, k], middle[:, k], middle[:, k - 1]], 1) for k in range(3))])
    return torch.nn.functional.normalize(vertex, dim=-1), face.int()


def pinwheel(sphere: Tensor) -> Tensor:
    """The sphere's vertices (v, 3) with five curled arms."""
    turn = torch.arange(5) * (2.0 * math.pi / 5.0)
    arms = torch.stack([turn.cos(), turn.sin(), torch.zeros(5)])
    x, y, z = (sphere * (0.45 + 0.6 * (10.0 * (sphere @ arms - 1.0)).exp().sum(1, keepdim=True))).unbind(1)
    flat = torch.complex(x, y)
    return torch.cat([torch.view_as_real(flat * torch.exp(1.2j * flat.abs())), z[:, None]], 1)


def mesh_of(vertex: Tensor, face: Tensor) -> wp.Mesh:
    """A mesh that shares the tensors' memory."""
    arrays: list[Any] = [wp.from_torch(vertex, dtype=wp.vec3), wp.from_torch(face.flatten())]
    return wp.Mesh(*arrays)


@torch.compile(fullgraph=True)
def distances(target: wp.Mesh, sample: Tensor, mesh: wp.Mesh, vertex: Tensor, face: Tensor) -> tuple[Tensor, Tensor]:
    """The loss, and mean and largest distances of the vertices to the target and of its samples to the mesh."""
    d, gap = distance(target, vertex)[0], reach(mesh, vertex, face, sample)
    # What sticks out costs more: so the sphere grows through the arms, and spans no web between them.
    loss = (torch.where(d > 0.0, 20.0, 1.0) * d.square()).mean() + gap.square().mean()
    return loss, torch.stack([d.abs().mean(), d.abs().max(), gap.mean(), gap.max()]).detach()


def fit(target: wp.Mesh, sample: Tensor, start: Tensor, face: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """The vertices found (v, 3), and mean and largest distances of both kinds by step (steps, 4)."""
    adjacent = torch.zeros(len(start), len(start))
    adjacent[face, face.roll(1, 1)] = 1.0  # the face on the other side adds the way back
    # Smoothed by (1 + a L)^-1, L the graph's Laplacian: a vertex that is pulled takes its surroundings along.
    rough = torch.eye(len(start)) + len(start) / 256.0 * (adjacent.sum(1).diag() - adjacent)
    smooth, handle = torch.linalg.inv(rough), (rough @ start).T.contiguous().requires_grad_()
    vertex, moving = start, start.clone()
    mesh = mesh_of(moving, face)
    adam = torch.optim.Adam([handle], lr=0.1)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    history = torch.empty(steps, 4)
    print("   step         loss   mean distance   largest")
    for step in range(steps):
        vertex = (handle @ smooth).T
        moving.copy_(vertex.detach())
        mesh.refit()  # to the moved points
        loss, history[step] = distances(target, sample, mesh, vertex, face)
        adam.zero_grad()
        loss.backward()
        adam.step()
        decay.step()
        if step % max(1, steps // 10) == 0 or step == steps - 1:
            mean, largest = history[step].view(2, 2).amax(0).tolist()
            print(f"{step + 1:7d} {loss.item():12.3e} {mean:15.5f} {largest:9.4f}", flush=True)
    return vertex.detach(), history


def draw(shapes: dict[str, Any], field: wp.Mesh, face: Tensor, history: Tensor, file: Path) -> None:
    """The shapes, with their distances to the target in colour, and the way there."""
    from matplotlib import cm, colors
    from matplotlib.figure import Figure
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection

    figure = Figure(figsize=(12, 9), layout="constrained")
    scale = cm.ScalarMappable(colors.SymLogNorm(1e-3, vmin=-0.3, vmax=0.3, base=10), "RdBu_r")
    for k, (title, vertex) in enumerate(shapes.items()):
        axes: Any = figure.add_subplot(2, 2, k + 1, projection="3d", elev=50, azim=-60)
        shades = scale.to_rgba(distance(field, vertex[face].mean(1))[0].numpy())
        axes.add_collection3d(Poly3DCollection(vertex[face].numpy(), facecolors=shades, shade=True))
        axes.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(-0.5, 0.5), xlabel="x", ylabel="y", zlabel="z", title=title)
        axes.locator_params(nbins=2)
        axes.set_box_aspect((2, 2, 1), zoom=1.05)
    figure.colorbar(scale, ax=figure.axes[:2], label="signed distance to the target", shrink=0.7, format="%g")
    axes = figure.add_subplot(2, 2, 4, yscale="log", xlabel="step", title="Distances by step")
    labels = (
        "sphere to target, mean",
        "sphere to target, largest",
        "target to sphere, mean",
        "target to sphere, largest",
    )
    for column, what in zip(history.T.numpy(), labels, strict=True):
        axes.plot(column, label=what)
    axes.grid(alpha=0.3)
    axes.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, help="steps of Adam (300; 60 with --quick)")
    parser.add_argument("--quick", action="store_true", help="coarser meshes, and a coarser fit that will do")
    parser.add_argument("--no-plot", action="store_true", help="draw nothing")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "out" / "shape.png", help="the picture")
    options = parser.parse_args()
    steps = options.steps or (60 if options.quick else 300)
    wp.config.log_level = wp.LOG_ERROR  # Warp's greeting would mix with the table
    wp.init()  # wp.from_torch needs it; operators start Warp themselves
    torch.set_num_threads(1)  # as many as Warp has on a CPU, so that the times compare
    torch.manual_seed(0)

    sphere, face = icosphere(3 if options.quick else 4)
    start, target = 0.3 * sphere, pinwheel(sphere)
    field = mesh_of(target, face)
    x, v = (target[::4] + 0.1 * torch.randn_like(target[::4])).requires_grad_(), target.clone().requires_grad_()
    compare("distance", x, lambda: distance(field, x)[0], lambda: brute_force(target[face], x, True))
    compare("reach", v, lambda: reach(field, v, face, x.detach()), lambda: brute_force(v[face], x.detach(), False))
    print(f"{len(start):,} vertices, {len(face):,} triangles, {steps} steps of Adam; the first compiles the graph")
    begin = time.perf_counter()
    result, history = fit(field, target, start, face, steps)
    print(f"took {time.perf_counter() - begin:.1f} s")
    mean, largest = history[-1].view(2, 2).amax(0).tolist()
    if not options.no_plot:
        title = f"After {steps} steps: {mean:.4f} apart in the mean"
        shapes = {f"Start: a sphere of {len(start):,} vertices": start, title: result, "Target": target}
        try:
            draw(shapes, field, face, history, options.output)
        except ImportError:
            print("matplotlib is not installed: no picture")
        else:
            print(f"shapes drawn in {options.output}")
    if mean > (0.03 if options.quick else 0.004) or largest > (0.2 if options.quick else 0.06):
        print(f"FAILED: the surfaces are {mean:.4f} apart in the mean, {largest:.4f} at most")
        return 1
    print(f"the surfaces are {mean:.4f} apart in the mean, {largest:.4f} at most; the shape is 2 wide")
    return 0


if __name__ == "__main__":
    sys.exit(main())
