"""Loops over what a query finds: gradients of what they carry, by finite differences."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from loop_kernels import D, check, uniform
from warpops import warp_op


@wp.kernel
def neighbours(grid: wp.uint64, p: wp.array[wp.vec3], x: wp.array[D], radius: float, y: wp.array[D]):
    i = wp.tid()
    a = x[i]
    for j in wp.hash_grid_query(grid, p[i], radius):
        d = wp.length(p[i] - p[j])
        if d > radius:
            continue
        a = wp.sin(a) * x[j] + D(0.5) * a * D(d)
    y[i] = a * a


@wp.kernel
def neighbours_by_while(grid: wp.uint64, p: wp.array[wp.vec3], x: wp.array[D], radius: float, y: wp.array[D]):
    i = wp.tid()
    a = x[i]
    found = int(0)
    j = int(0)
    query = wp.hash_grid_query(grid, p[i], radius)
    while wp.hash_grid_query_next(query, j):
        if wp.length(p[i] - p[j]) < radius:
            a = a * x[j] + D(0.3)
            found += 1
            if found == 4:
                break
    y[i] = a * D(found) + x[j]


@wp.kernel
def summed(grid: wp.uint64, p: wp.array[wp.vec3], x: wp.array[D], radius: float, y: wp.array[D]):
    i = wp.tid()
    s = D(0.1)
    for j in wp.hash_grid_query(grid, p[i], radius):
        if wp.length(p[i] - p[j]) < radius:
            s += x[j] * x[j]
    y[i] = wp.sqrt(s)


@wp.kernel
def total(grid: wp.uint64, p: wp.array[wp.vec3], x: wp.array[D], radius: float, y: wp.array[D]):
    i = wp.tid()
    s = D(0.0)
    for j in wp.hash_grid_query(grid, p[i], radius):
        d = wp.length(p[i] - p[j])
        s += x[j] * x[i] * D(d)
        y[j] += x[i]
    wp.atomic_add(y, i, s)


@wp.kernel
def fading(grid: wp.uint64, p: wp.array[wp.vec3], x: wp.array[D], radius: float, y: wp.array[D]):
    i = wp.tid()
    s = D(0.0)
    for j in wp.hash_grid_query(grid, p[i], radius):
        s = s * D(0.5) + x[j]
    y[i] = s


@wp.kernel
def latest(grid: wp.uint64, p: wp.array[wp.vec3], x: wp.array[D], radius: float, y: wp.array[D]):
    i = wp.tid()
    last = D(0.0)
    j = int(0)
    query = wp.hash_grid_query(grid, p[i], radius)
    while wp.hash_grid_query_next(query, j):
        last = x[j] * D(2.0)
    y[i] = last


@wp.kernel
def stored(grid: wp.uint64, p: wp.array[wp.vec3], x: wp.array[D], radius: float, y: wp.array[D]):
    i = wp.tid()
    for j in wp.hash_grid_query(grid, p[i], radius):
        y[i] = x[j] * x[i]


@wp.kernel
def sums_of_sums(grid: wp.uint64, p: wp.array[wp.vec3], x: wp.array[D], radius: float, y: wp.array[D]):
    i = wp.tid()
    s, t = D(0.0), D(0.0)
    for j in wp.hash_grid_query(grid, p[i], radius):
        s += x[j]
        t += s
    y[i] = t


@wp.kernel
def sums_in_parts(grid: wp.uint64, p: wp.array[wp.vec3], x: wp.array[D], radius: float, y: wp.array[D]):
    i = wp.tid()
    s = D(0.0)
    v = wp.vec2d(D(0.0), D(0.0))
    for j in wp.hash_grid_query(grid, p[i], radius):
        s = x[j] + s
        v[0] += s
    y[i] = v[0]


@wp.kernel
def boxes(bvh: wp.uint64, low: wp.array[wp.vec3], high: wp.array[wp.vec3], x: wp.array[D], y: wp.array[D]):
    i = wp.tid()
    a = D(1.0)
    j = int(0)
    query = wp.bvh_query_aabb(bvh, low[i], high[i])
    while wp.bvh_query_next(query, j):
        a = a * x[j] + D(0.2) * a * a
    y[i] = a


@wp.kernel
def faces(mesh: wp.uint64, low: wp.array[wp.vec3], high: wp.array[wp.vec3], x: wp.array[D], y: wp.array[D]):
    i = wp.tid()
    a = D(1.0)
    for f in wp.mesh_query_aabb(mesh, low[i], high[i]):
        a = a * x[f] + D(0.2)
    y[i] = a * a


N = 12


@pytest.fixture(scope="module")
def points():
    wp.init()
    return torch.rand(N, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "kernel",
    [neighbours, neighbours_by_while, summed, total, fading, latest, stored, sums_of_sums, sums_in_parts],
    ids=lambda k: k.key,
)
def test_hash_grid(kernel, points):
    grid = wp.HashGrid(4, 4, 4)
    grid.build(wp.from_torch(points, dtype=wp.vec3), 0.5)
    op = warp_op(kernel, "p[n], x[n] -> y[n]", dim="n")
    x = uniform(N, low=0.4, high=1.1)
    check(lambda x: op(grid, points, x, 0.5), x)


def test_bvh(points):
    low, high = points - 0.2, points + 0.2
    bvh = wp.Bvh(wp.from_torch(low, dtype=wp.vec3), wp.from_torch(high, dtype=wp.vec3))
    op = warp_op(boxes, "low[n], high[n], x[n] -> y[n]", dim="n")
    check(lambda x: op(bvh, low, high, x), uniform(N, low=0.4, high=0.9))


def test_mesh(points):
    corners = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    triangles = torch.tensor([0, 1, 2, 0, 2, 3, 0, 3, 1, 1, 3, 2], dtype=torch.int32)
    mesh = wp.Mesh(wp.from_torch(corners, dtype=wp.vec3), wp.from_torch(triangles))
    op = warp_op(faces, "low[n], high[n], x[m] -> y[n]", dim="n")
    check(lambda x: op(mesh, points[:3] - 0.5, points[:3] + 0.5, x), uniform(4, low=0.4, high=0.9))


def test_sums_are_left_to_warp():
    """Their turns may come in any order, and the kernel's own adjoint is the fastest."""
    explained = {k: warp_op(k, "p[n], x[n] -> y[n]", dim="n").explain() for k in (total, fading)}
    assert "the kernel's own adjoint" in explained[total]
    assert "'s' restored at the start of each turn" in explained[fading]
