"""Objects of Warp that change between a forward and its backward: as loud as a changed tensor."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import INDUCTOR, close, compiled, eager
from test_handles import CORNERS, cube, cube_distance, distance_op, neighbours, outside
from warpops import GradientError, warp_op


@pytest.fixture(autouse=True, scope="module")
def warp_ready():
    wp.init()


def refit(mesh):
    mesh.points.assign(CORNERS * 0.5)
    mesh.refit()


def other_points(mesh):
    mesh.points = wp.array(CORNERS * 0.5, dtype=wp.vec3)


@pytest.mark.parametrize("change", [refit, other_points])
@pytest.mark.parametrize("how", [eager, compiled, INDUCTOR])
def test_a_mesh_that_was_moved(how, change):
    call, mesh, points = how(distance_op), cube(1.0), outside().requires_grad_()
    result = call(mesh, points)
    change(mesh)
    with pytest.raises(GradientError, match=r"wp\.Mesh given for 'mesh' has been modified"):
        result.sum().backward()
    points.grad = None
    call(mesh, points).sum().backward()
    close(points.grad, torch.autograd.grad(cube_distance(points, 0.5).sum(), points)[0], rtol=1e-3, atol=1e-3)


def test_a_mesh_over_a_tensor_that_changed():
    vertices = torch.from_numpy(CORNERS.copy())
    mesh = wp.Mesh(wp.from_torch(vertices, dtype=wp.vec3), cube(1.0).indices)
    points = outside().requires_grad_()
    result = distance_op(mesh, points)
    vertices.mul_(0.5)
    with pytest.raises(GradientError, match="has been modified"):
        result.sum().backward()


def test_under_transforms():
    mesh, points = cube(1.0), outside()
    result, pull = torch.func.vjp(lambda p: distance_op(mesh, p), points)
    mesh.refit()
    with pytest.raises(GradientError, match="has been modified"):
        pull(torch.ones_like(result))


def test_a_grid_built_anew():
    op = warp_op(neighbours, "p[n], w[n] -> y[n]", name="handles_changed::neighbours")
    points, w = torch.rand(6, 3), torch.rand(6).requires_grad_()
    grid = wp.HashGrid(4, 4, 4)
    grid.build(wp.from_torch(points, dtype=wp.vec3), 0.5)
    result = op(grid, points, w, 0.5)
    near = (torch.cdist(points, points) < 0.5).float()
    close(torch.autograd.grad(result.sum(), w, retain_graph=True)[0], near.sum(0))
    grid.build(wp.from_torch(points * 2.0, dtype=wp.vec3), 0.5)
    with pytest.raises(GradientError, match=r"wp\.HashGrid given for 'grid' has been modified"):
        result.sum().backward()


def test_a_change_after_the_backward_is_fine():
    mesh, points = cube(1.0), outside().requires_grad_()
    for half in (1.0, 0.5):
        mesh.points.assign(CORNERS * half)
        mesh.refit()
        points.grad = None
        distance_op(mesh, points).sum().backward()
        close(points.grad, torch.autograd.grad(cube_distance(points, half).sum(), points)[0], rtol=1e-3, atol=1e-3)
