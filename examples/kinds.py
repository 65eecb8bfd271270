"""A tour of the kinds of kernels and arguments: structs, generic kernels, tiles, handles, factories.

Run it with ``python examples/kinds.py``. Every op here works the same in eager and in compiled code, with gradients.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import warp as wp

from warpops import WarpOp, warp_op

# --- Structs: a dict, a dataclass, a named tuple or any object with the fields


@wp.struct
class Cloth:
    x: wp.array[wp.vec3]
    v: wp.array[wp.vec3]
    mass: wp.array[float]
    gravity: wp.vec3
    dt: float


@warp_op("s.x[n], s.v[n], s.mass[n] -> s.x[n], s.v[n], energy[n]")  # fields go by dotted names; s.x and s.v are in-out
@wp.kernel
def step(s: Cloth, energy: wp.array[float]):
    i = wp.tid()
    v = s.v[i] + s.gravity * s.dt
    s.v[i] = v
    s.x[i] = s.x[i] + v * s.dt
    energy[i] = 0.5 * s.mass[i] * wp.dot(v, v)


@dataclass
class ClothState:
    x: torch.Tensor
    v: torch.Tensor
    mass: torch.Tensor
    gravity: tuple[float, float, float] = (0.0, 0.0, -9.81)
    dt: float = 0.1


def structs() -> None:
    v = torch.ones(4, 3, requires_grad=True)
    state = ClothState(torch.zeros(4, 3), v, torch.ones(4))
    x, v_new, energy = torch.compile(step, fullgraph=True, backend="aot_eager")(state)
    energy.sum().backward()
    assert v.grad is not None
    torch.testing.assert_close(v.grad, v_new.detach())  # dE/dv = m v
    print(f"struct: moved to z = {x[0, 2].item():.3f}; schema {step.schema}")


# --- Generic kernels: one kernel for every dtype


@warp_op
@wp.kernel
def leaky(x: wp.array[Any], slope: Any, y: wp.array[Any]):
    i = wp.tid()
    y[i] = wp.where(x[i] > x.dtype(0.0), x[i], slope * x[i])


def generics() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.tensor([-1.0, 2.0], dtype=dtype, requires_grad=True)
        y = leaky(x, 0.25)
        (grad,) = torch.autograd.grad(y.sum(), x)
        print(f"generic: {y.dtype}, {y.tolist()}, gradient {grad.tolist()}")


# --- Tiles: one block of threads for each row


@warp_op("x[n, 16] -> y[n]", tiled=True, block_dim=64)
@wp.kernel
def row_norm(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    row = wp.tile_load(x[i], shape=16)
    wp.tile_store(y, wp.tile_sum(row * row), offset=i)


def tiles() -> None:
    x = torch.randn(5, 16, requires_grad=True)
    row_norm(x).sum().backward()
    torch.testing.assert_close(x.grad, 2.0 * x.detach())
    print(f"tiles: norms {[round(value, 2) for value in row_norm(x).tolist()]}")


# --- Handles: the object itself; it lives until the backward ran


@warp_op("p[n] -> d[n]")
@wp.kernel
def distance(mesh: wp.uint64, p: wp.array[wp.vec3], d: wp.array[float]):
    i = wp.tid()
    query = wp.mesh_query_point(mesh, p[i], 1.0e6)
    d[i] = query.sign * wp.length(p[i] - wp.mesh_eval_position(mesh, query.face, query.u, query.v))


def tetrahedron(size: float) -> wp.Mesh:
    corners = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=np.float32) * size
    faces = [0, 2, 1, 0, 1, 3, 0, 3, 2, 1, 2, 3]
    return wp.Mesh(points=wp.array(corners, dtype=wp.vec3), indices=wp.array(faces, dtype=int))


def meshes() -> None:
    call = torch.compile(distance, fullgraph=True, backend="aot_eager")
    points = torch.tensor([[2.0, 2.0, 2.0], [-1.0, 0.2, 0.2]], requires_grad=True)
    for size in (1.0, 0.5):  # a fresh mesh is used, and costs no recompilation after the second
        result = call(tetrahedron(size), points)
        (direction,) = torch.autograd.grad(result.sum(), points)
        print(f"mesh: distances {[round(d, 3) for d in result.tolist()]}, |gradient| {direction.norm(dim=1).tolist()}")


# --- Factories: each op keeps its own constants and functions


def make_activation(function: Any, scale: float) -> WarpOp:
    @warp_op
    @wp.kernel
    def activation(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = function(x[i]) * wp.static(scale)

    return activation


def factories() -> None:
    sine, tanh = make_activation(wp.sin, 2.0), make_activation(wp.tanh, 3.0)
    x = torch.ones(1)
    print(f"factories: {sine.name} gives {sine(x).item():.3f}, {tanh.name} gives {tanh(x).item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="changes nothing: all of it takes seconds")
    parser.parse_args()
    wp.config.log_level = wp.LOG_WARNING
    wp.init()
    structs()
    generics()
    tiles()
    meshes()
    factories()
