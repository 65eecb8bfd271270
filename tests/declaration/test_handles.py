"""Handles of Warp's objects: given as objects or ids, fresh ones at each call, alive until a pending backward ran."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
import warp as wp

from support import INDUCTOR, as_dynamo_says, check_against, close, compiled, eager, graph_count
from warpops import ArgumentError, SignatureError, warp_op
from warpops.arguments.handle import check_handle

pytestmark = pytest.mark.usefixtures("only_new")


@pytest.fixture(autouse=True, scope="module")
def warp_ready():
    """Warp's own objects need a started Warp; ops start it themselves."""
    wp.init()


CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=np.float32)
FACES = np.array(
    [0, 1, 3, 0, 3, 2, 4, 6, 7, 4, 7, 5, 0, 4, 5, 0, 5, 1, 2, 3, 7, 2, 7, 6, 0, 2, 6, 0, 6, 4, 1, 5, 7, 1, 7, 3],
    dtype=np.int32,
)


def cube(half: float) -> wp.Mesh:
    return wp.Mesh(points=wp.array(CORNERS * half, dtype=wp.vec3), indices=wp.array(FACES, dtype=int))


def cube_distance(points: torch.Tensor, half: float) -> torch.Tensor:
    """The distance to a cube of points outside of it."""
    return (points - points.clamp(-half, half)).norm(dim=-1)


@wp.kernel
def distance(mesh: wp.uint64, p: wp.array[wp.vec3], d: wp.array[float]):
    i = wp.tid()
    query = wp.mesh_query_point(mesh, p[i], 1.0e6)
    if query.result:
        closest = wp.mesh_eval_position(mesh, query.face, query.u, query.v)
        d[i] = query.sign * wp.length(p[i] - closest)


@wp.kernel
def neighbours(grid: wp.uint64, p: wp.array[wp.vec3], w: wp.array[float], r: float, y: wp.array[float]):
    i = wp.tid()
    total = wp.float32(0.0)
    for j in wp.hash_grid_query(grid, p[i], r):
        if wp.length(p[i] - p[j]) < r:
            total += w[j]
    y[i] = total


@wp.kernel
def overlaps(
    bvh: wp.uint64, lower: wp.array[wp.vec3], upper: wp.array[wp.vec3], w: wp.array[float], y: wp.array[float]
):
    i = wp.tid()
    query = wp.bvh_query_aabb(bvh, lower[i], upper[i])
    k = wp.int32(0)
    while wp.bvh_query_next(query, k):
        wp.atomic_add(y, i, w[k])


@wp.kernel
def sample(volume: wp.uint64, p: wp.array[wp.vec3], y: wp.array[float]):
    i = wp.tid()
    y[i] = wp.volume_sample_f(volume, p[i], wp.Volume.LINEAR)


distance_op = warp_op(distance, "p[n] -> d[n]")


def outside(n: int = 12) -> torch.Tensor:
    return torch.rand(n, 3) * 2.0 + torch.tensor([1.2, 1.2, -1.0])


def test_mesh_as_object_and_as_id(mode):
    mesh, points = cube(1.0), outside()
    call = mode(distance_op)
    for handle in (mesh, mesh.id):
        check_against(lambda p: call(handle, p), lambda p: cube_distance(p, 1.0), [points])
    close(distance_op(np.uint64(mesh.id), points), cube_distance(points, 1.0))


def test_fresh_mesh_at_each_call_is_used_and_recompiles_once():
    call, points = compiled(distance_op), outside()
    for half in (1.0, 0.9, 0.8, 0.7, 0.6):
        close(call(cube(half), points), cube_distance(points, half))
    assert graph_count() <= 2


@pytest.mark.parametrize("how", [eager, compiled, INDUCTOR])
def test_mesh_lives_until_the_backward_ran(how):
    call = how(distance_op)
    points = outside().requires_grad_()
    call(cube(1.0), points).sum().backward()
    for half in (0.9, 0.5):
        points.grad = None
        mesh = cube(half)
        alive = weakref.ref(mesh)
        result = call(mesh, points)
        del mesh
        gc.collect()
        assert alive() is not None
        other = [cube(0.1) for _ in range(4)]  # what would take its memory
        result.sum().backward()
        close(points.grad, torch.autograd.grad(cube_distance(points, half).sum(), points)[0], rtol=1e-3, atol=1e-3)
        del result, other
        gc.collect()
        assert alive() is None


def test_mesh_lives_under_transforms():
    def value(points):
        return distance_op(cube(0.5), points).sum()

    points = outside()
    close(torch.func.grad(value)(points), torch.func.grad(lambda p: cube_distance(p, 0.5).sum())(points))


def test_mesh_is_not_kept_without_a_backward():
    for call in (distance_op, compiled(distance_op)):
        mesh = cube(1.0)
        alive = weakref.ref(mesh)
        result = call(mesh, outside())
        del mesh
        gc.collect()
        assert alive() is None
        del result


def test_mesh_whose_points_moved(mode):
    mesh, points, call = cube(1.0), outside(), mode(distance_op)
    close(call(mesh, points), cube_distance(points, 1.0))
    mesh.points.assign(CORNERS * 0.5)
    mesh.refit()
    close(call(mesh, points), cube_distance(points, 0.5))


def test_hash_grid(mode):
    points, weights = torch.rand(20, 3), torch.rand(20)
    grid = wp.HashGrid(8, 8, 8)
    grid.build(wp.from_torch(points, dtype=wp.vec3), 0.4)
    call = mode(warp_op(neighbours, "p[n], w[n] -> y[n]", nondiff="p"))
    near = (torch.cdist(points, points) < 0.4).float()
    check_against(lambda w: call(grid, points, w, 0.4), lambda w: near @ w, [weights])


def test_bvh(mode):
    lower, weights = torch.rand(10, 3), torch.rand(10)
    upper = lower + 0.2
    tree = wp.Bvh(wp.from_torch(lower, dtype=wp.vec3), wp.from_torch(upper, dtype=wp.vec3))
    call = mode(warp_op(overlaps, "lower[n], upper[n], w[k] -> y[n]", nondiff="lower, upper"))
    hits = ((lower[:, None] <= upper) & (upper[:, None] >= lower)).all(-1).float()
    check_against(lambda w: call(tree, lower, upper, w), lambda w: hits @ w, [weights])


def test_volume(mode):
    grid = np.arange(8**3, dtype=np.float32).reshape(8, 8, 8)
    volume = wp.Volume.load_from_numpy(grid, min_world=(0.0, 0.0, 0.0), voxel_size=1.0)
    call = mode(warp_op(sample))
    slope = torch.tensor([64.0, 8.0, 1.0])
    points = torch.rand(6, 3) * 4.0 + 1.0
    check_against(lambda p: call(volume, p), lambda p: p @ slope, [points], rtol=1e-3, atol=1e-2)


@wp.struct
class Scene:
    mesh: wp.uint64
    offset: float


@wp.kernel
def distance_in(scene: Scene, p: wp.array[wp.vec3], d: wp.array[float]):
    i = wp.tid()
    query = wp.mesh_query_point(scene.mesh, p[i], 1.0e6)
    d[i] = wp.length(p[i] - wp.mesh_eval_position(scene.mesh, query.face, query.u, query.v)) + scene.offset


def test_mesh_in_a_struct(mode):
    call = mode(warp_op(distance_in, "p[n] -> d[n]"))
    points = outside().requires_grad_()
    result = call({"mesh": cube(0.5), "offset": 1.0}, points)
    gc.collect()
    close(result, cube_distance(points, 0.5) + 1.0)
    want = torch.autograd.grad(cube_distance(points, 0.5).sum(), points)[0]
    close(torch.autograd.grad(result.sum(), points)[0], want, rtol=1e-3, atol=1e-3)


def test_opcheck_takes_the_id():
    mesh = cube(1.0)
    torch.library.opcheck(distance_op.overload, (mesh.id, outside().requires_grad_()))
    assert "SymInt mesh" in distance_op.schema


@pytest.mark.parametrize("value", ["mesh", None, 1.5, torch.zeros(1), object()])
def test_wrong_handle(value):
    with pytest.raises(ArgumentError, match="'mesh': expected"):
        distance_op(value, outside())
    with pytest.raises(Exception, match=as_dynamo_says("'mesh': expected")):
        compiled(distance_op)(value, outside())


def test_object_on_another_device():
    mesh = cube(1.0)
    distance_op(mesh, outside())
    with pytest.raises(ArgumentError, match=r"op: argument 'mesh': expected a Mesh on cuda:0, .* got one on cpu"):
        check_handle("op: argument 'mesh'", frozenset(), mesh.id, torch.device("cuda:0"))


@pytest.mark.parametrize("times", [1, 3], ids=["first", "remembered"])
def test_what_is_no_mesh(mode, times):
    """The kernel would follow the id of a grid, or 0, as the pointer of a mesh."""
    call = mode(lambda mesh, x: distance_op(mesh, x))
    for _ in range(times):
        call(cube(1.0), outside())
    grid = wp.HashGrid(2, 2, 2)
    for value in (grid, grid.id):
        with pytest.raises(
            ArgumentError, match="argument 'mesh': expected a wp.Mesh, as the kernel uses it, got a HashGrid"
        ):
            call(value, outside())
    with pytest.raises(
        ArgumentError, match="argument 'mesh': expected a wp.Mesh, or its id, got 0, which no object has"
    ):
        call(0, outside())


def test_an_id_without_an_object(mode):
    gc.unfreeze()  # no object at all has it
    mesh = cube(1.0)
    handle = mesh.id
    call = mode(lambda handle, x: distance_op(handle, x))
    call(handle, outside())
    del mesh
    gc.collect()
    with pytest.raises(
        ArgumentError, match=f"argument 'mesh': expected a wp.Mesh, or its id, got {handle}, which no live"
    ):
        call(handle, outside())


@wp.kernel
def perhaps(mesh: wp.uint64, x: wp.array[wp.vec3], y: wp.array[float]):
    i = wp.tid()
    y[i] = 1.0
    if mesh != wp.uint64(0):
        query = wp.mesh_query_point(mesh, x[i], 10.0)
        if query.result:
            y[i] = 2.0


def test_an_id_that_the_kernel_looks_at_may_be_0(mode):
    call = mode(warp_op(perhaps, nondiff="x"))
    close(call(0, outside()), torch.ones(len(outside())))
    close(call(cube(1.0), outside()), torch.full((len(outside()),), 2.0))


def test_number_that_is_no_handle(mode):
    call = mode(warp_op(shift))
    for value in (0, 7, 2**63, 2**64 - 1):
        check_against(lambda x: call(value, x), lambda x: x * float(value % 8), [torch.ones(2)])


@wp.kernel
def shift(seed: wp.uint64, x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * float(seed % wp.uint64(8))


def test_types_that_no_argument_stands_for():
    def indexed(x: wp.indexedarray(dtype=float), y: wp.array[float]):
        i = wp.tid()
        y[i] = x[i]

    def fabric(x: wp.fabricarray(dtype=float), y: wp.array[float]):
        i = wp.tid()
        y[i] = x[i]

    def texture(x: wp.Texture2D, y: wp.array[float]):
        i = wp.tid()
        y[i] = 0.0

    def pair(x: tuple[int, float], y: wp.array[float]):
        i = wp.tid()
        y[i] = 0.0

    def call(x: Callable, y: wp.array[float]):
        i = wp.tid()
        y[i] = x(float(i))

    def call_warp(x: wp.Function, y: wp.array[float]):
        i = wp.tid()
        y[i] = x(float(i))

    for kernel, advice in (
        (indexed, r"index the tensor before the call, as in op\(x\[idx\]\)"),
        (fabric, r"take a wp.array"),
        (texture, r"texels as an array"),
        (pair, r"items as separate arguments"),
        (call, r"one kernel per function"),
        (call_warp, r"one kernel per function"),
    ):
        with pytest.raises(SignatureError, match=rf"argument 'x' has the type .*{advice}"):
            warp_op(kernel)
