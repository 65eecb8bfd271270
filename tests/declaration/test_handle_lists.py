"""Lists of Warp's objects for arrays of ids: checked one by one, alive until a pending backward ran; tensors of ids elsewhere."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import warp as wp

from support import check_against, close, compiled
from test_handles import cube, cube_distance, outside
from warpops import ArgumentError, GradientError, warp_op, warp_program


@pytest.fixture(autouse=True, scope="module")
def warp_ready():
    """Warp's own objects need a started Warp."""
    wp.init()


@wp.kernel
def distances(meshes: wp.array[wp.uint64], p: wp.array[wp.vec3], d: wp.array2d[float]):
    k, i = wp.tid()
    query = wp.mesh_query_point(meshes[k], p[i], 1.0e6)
    if query.result:
        closest = wp.mesh_eval_position(meshes[k], query.face, query.u, query.v)
        d[k, i] = query.sign * wp.length(p[i] - closest)


@wp.struct
class Scene:
    meshes: wp.array[wp.uint64]
    scale: float


@wp.kernel
def scaled(scene: Scene, p: wp.array[wp.vec3], d: wp.array2d[float]):
    k, i = wp.tid()
    query = wp.mesh_query_point(scene.meshes[k], p[i], 1.0e6)
    if query.result:
        closest = wp.mesh_eval_position(scene.meshes[k], query.face, query.u, query.v)
        d[k, i] = scene.scale * query.sign * wp.length(p[i] - closest)


@wp.kernel
def counts(ids: wp.array[wp.uint64], n: wp.array[int]):
    i = wp.tid()
    n[i] = wp.where(ids[i] == wp.uint64(0), 0, 1)


op = warp_op(distances, "meshes[m], p[n] -> d[m, n]")
of_a_struct = warp_op(scaled, "scene.meshes[m], p[n] -> d[m, n]")
count = warp_op(counts, "ids[m] -> n[m]")


@warp_program("meshes[m], p[n] -> d[m, n]")
def program(meshes: wp.array[wp.uint64], p: wp.array[wp.vec3], d: wp.array2d[float]):
    wp.launch(distances, dim=d.shape, inputs=[meshes, p], outputs=[d])


def to_all(points, halves=(1.0, 0.5)):
    return torch.stack([cube_distance(points, half) for half in halves])


def ids(*meshes):
    return torch.tensor([mesh.id for mesh in meshes], dtype=torch.uint64)


@pytest.mark.parametrize(
    "call",
    [op, program, lambda meshes, p: of_a_struct({"meshes": meshes, "scale": 1.0}, p)],
    ids=["kernel", "program", "struct"],
)
def test_a_list_of_meshes(call):
    meshes, points = [cube(1.0), cube(0.5)], outside()
    for given in (meshes, tuple(meshes), [meshes[0].id, meshes[1]], ids(*meshes), ids(*meshes).view(torch.int64)):
        check_against(lambda p, given=given: call(given, p), to_all, [points])


def test_no_mesh_at_all():
    assert op([], outside(3)).shape == (0, 3)
    assert count([cube(1.0)]).tolist() == [1]
    assert count([]).shape == (0,)


@pytest.mark.usefixtures("only_new")
def test_meshes_live_until_the_backward_ran():
    points = outside().requires_grad_()
    meshes = [cube(1.0), cube(0.5)]
    alive = [weakref.ref(mesh) for mesh in meshes]
    result = op(meshes, points)
    del meshes
    gc.collect()
    assert all(one() is not None for one in alive)
    other = [cube(0.1) for _ in range(4)]  # what would take their memory
    result.sum().backward()
    close(points.grad, torch.autograd.grad(to_all(points).sum(), points)[0], rtol=1e-3, atol=1e-3)
    del result, other
    gc.collect()
    assert all(one() is None for one in alive)


@pytest.mark.usefixtures("only_new")
def test_meshes_are_not_kept_without_a_backward():
    mesh = cube(1.0)
    alive = weakref.ref(mesh)
    result = op([mesh], outside())
    del mesh
    gc.collect()
    assert alive() is None
    del result


def test_meshes_live_under_grad():
    points = outside()
    got = torch.func.grad(lambda p: op([cube(1.0), cube(0.5)], p).sum())(points)
    close(got, torch.autograd.grad(to_all(points.requires_grad_()).sum(), points)[0], rtol=1e-3, atol=1e-3)


def test_a_mesh_of_the_list_was_changed_before_the_backward():
    meshes, points = [cube(1.0), cube(0.5)], outside().requires_grad_()
    result = op(meshes, points)
    meshes[1].refit()
    with pytest.raises(GradientError, match="the wp.Mesh given for 'meshes' has been modified"):
        result.sum().backward()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: wp.HashGrid(2, 2, 2), "item 1: expected a wp.Mesh, as the kernel uses it, got a HashGrid"),
        (lambda: 0, "item 1: expected a wp.Mesh, or its id, got 0, which no object has"),
        (lambda: 12345, "item 1: expected a wp.Mesh, or its id, got 12345, which no live object has"),
        (lambda: None, "item 1: expected a wp.Mesh, Bvh, HashGrid or Volume, or its id .an int., got NoneType"),
        (lambda: 1.5, "item 1: expected a Warp object or its id .an int., got float"),
        (lambda: torch.ones(1), "item 1: expected a Warp object or its id .an int., got Tensor"),
        (lambda: 2**64, "item 1: expected an id of 64 bits, got 18446744073709551616"),
    ],
)
def test_each_is_checked_as_one_that_is_given_alone(wrong, text):
    given = wrong()
    for call in (op, program) if "as the kernel" not in text and "which no" not in text else (op,):
        with pytest.raises(ArgumentError, match=f"argument 'meshes': {text}"):
            call([cube(1.0), given], outside())


def test_compiled_code_takes_a_tensor_of_ids():
    meshes, points = [cube(1.0), cube(0.5)], outside()
    call = compiled(op)
    check_against(lambda p: call(ids(*meshes), p), to_all, [points])
    with pytest.raises(
        Exception, match=r"'meshes': expected a tensor .*, got list; compiled code, export and vmap take a tensor"
    ):
        compiled(op)(meshes, points)


def test_export_takes_a_tensor_of_ids():
    class Distance(torch.nn.Module):
        def forward(self, meshes, points):
            return op(meshes, points)

    meshes, points = [cube(1.0), cube(0.5)], outside()
    exported = torch.export.export(Distance(), (ids(*meshes).view(torch.int64), points))
    close(exported.module()(ids(*meshes).view(torch.int64), points), to_all(points))


def test_vmap_takes_a_tensor_of_ids():
    meshes, points = [cube(1.0), cube(0.5)], torch.stack([outside(), outside()])
    want = torch.stack([to_all(p) for p in points])
    close(torch.vmap(lambda p: op(ids(*meshes).view(torch.int64), p))(points), want)
    with pytest.raises(ArgumentError, match="'meshes': expected a tensor of ids under vmap, got a list of objects"):
        torch.vmap(lambda p: op(meshes, p))(points)
