"""A mesh that a program makes: its vertices get no gradient, and the program says so."""

from __future__ import annotations

import warnings

import pytest
import torch
import warp as wp

from warpops import GradientWarning, warp_op, warp_program


@wp.kernel
def distances(mesh: wp.uint64, x: wp.array[wp.vec3], d: wp.array[float]):
    i = wp.tid()
    query = wp.mesh_query_point(mesh, x[i], 10.0)
    if query.result:
        d[i] = wp.length(x[i] - wp.mesh_eval_position(mesh, query.face, query.u, query.v))


def measure(points: wp.array[wp.vec3], faces: wp.array[int], x: wp.array[wp.vec3], d: wp.array[float]):
    mesh = wp.Mesh(points=points, indices=faces)
    wp.launch(distances, dim=x.shape[0], inputs=[mesh.id, x, d])


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    points = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    return points, torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([[0.2, 0.3, 0.5]])


def test_vertices_that_require_a_gradient_are_warned_of() -> None:
    program = warp_program("points[n], faces[m], x[k] -> d[k]", name="test_mesh::moved")(measure)
    points, faces, x = tensors()
    with pytest.warns(GradientWarning, match="makes a mesh of arrays that require a gradient"):
        program(points.requires_grad_(), faces, x).sum().backward()


def test_points_alone_are_right_and_silent() -> None:
    program = warp_program("points[n], faces[m], x[k] -> d[k]", name="test_mesh::still")(measure)
    points, faces, x = tensors()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program(points, faces, x.requires_grad_()).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.tensor([[0.0, 0.0, 1.0]]))


def test_a_given_mesh_whose_points_require_a_gradient_is_warned_of() -> None:
    op = warp_op("x[k] -> d[k]", name="test_mesh::given")(distances)
    points, faces, x = tensors()
    x.requires_grad_()
    indices = wp.from_torch(faces)
    moved = wp.Mesh(wp.from_torch(points.clone().requires_grad_(), dtype=wp.vec3), indices)
    with pytest.warns(GradientWarning, match="the points of the mesh given for 'mesh' require a gradient"):
        op(moved, x).sum().backward()
    still = wp.Mesh(wp.from_torch(points, dtype=wp.vec3), indices)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GradientWarning)
        op(still, x).sum().backward()
