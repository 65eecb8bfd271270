"""Objects of Warp in programs: kept as long as the run needs them, and checked as an op's are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import warp as wp

from programs import height, spread
from support import close
from warpops import ArgumentError, GradientError, warp_program

F = wp.array[float]
Points = wp.array[wp.vec3]


@pytest.fixture(autouse=True, scope="module")
def warp_ready():
    wp.init()


@wp.kernel
def spread_of_first(grids: wp.array[wp.uint64], p: Points, y: F):
    i = wp.tid()
    total = float(0.0)
    for j in wp.hash_grid_query(grids[0], p[i], 2.0):
        d = p[i] - p[j]
        total += wp.dot(d, d)
    y[i] = total


@warp_program("p[n] -> y[n]")
def own_grid(p: Points, y: F):
    grid = wp.HashGrid(4, 4, 4, device=p.device)
    grid.build(p, 2.0)
    wp.launch(spread, dim=p.shape, inputs=[grid.id, p, y])


@warp_program("p[n] -> y[n]")
def own_grid_in_an_array(p: Points, y: F):
    grid = wp.HashGrid(4, 4, 4, device=p.device)
    grid.build(p, 2.0)
    ids = wp.array([grid.id], dtype=wp.uint64, device=p.device)
    wp.launch(spread_of_first, dim=p.shape, inputs=[ids, p, y])


@warp_program("p[n] -> y[n]")
def own_mesh(p: Points, y: F):
    corners = np.array([[-9, -9, 0], [9, -9, 0], [0, 9, 0]], dtype=np.float32)
    mesh = wp.Mesh(wp.array(corners, dtype=wp.vec3), wp.array([0, 1, 2], dtype=int))
    wp.launch(height, dim=p.shape, inputs=[mesh.id, p, y])


@pytest.mark.parametrize("program", [own_grid, own_grid_in_an_array])
def test_grids_of_the_programs_own(mode, program):
    p = (torch.rand(5, 3) * 0.5).requires_grad_()
    want = ((p[:, None] - p[None]) ** 2).sum((1, 2))
    found = mode(program)(p)
    close(found, want)
    close(torch.autograd.grad(found.sum(), p)[0], torch.autograd.grad(want.sum(), p)[0])


def test_a_mesh_of_the_programs_own(mode):
    p = (torch.rand(4, 3) + torch.tensor([0.0, 0.0, 0.5])).requires_grad_()
    found = mode(own_mesh)(p)
    close(found, p[:, 2])
    close(torch.autograd.grad(found.sum(), p)[0], torch.tensor([[0.0, 0.0, 1.0]]).expand(4, 3), atol=1e-4)


def test_a_grid_built_anew_in_the_program_has_no_gradient():
    @warp_program("p[n] -> y[n], z[n]")
    def two_radii(p: Points, y: F, z: F):
        grid = wp.HashGrid(4, 4, 4, device=p.device)
        grid.build(p, 2.0)
        wp.launch(spread, dim=p.shape, inputs=[grid.id, p, y])
        grid.build(p, 0.5)
        wp.launch(spread, dim=p.shape, inputs=[grid.id, p, z])

    p = torch.rand(5, 3).requires_grad_()
    y, z = two_radii(p)
    z.sum().backward(retain_graph=True)  # of the last one there is
    with pytest.raises(GradientError, match=r"the kernel spread: the wp\.HashGrid given for 'grid' has been modified"):
        y.sum().backward()


def dead():
    return wp.HashGrid(2, 2, 2).id


TRIANGLE = []


def a_mesh():
    if not TRIANGLE:
        points = wp.array(np.eye(3, dtype=np.float32), dtype=wp.vec3)
        TRIANGLE.append(wp.Mesh(points, wp.array([0, 1, 2], dtype=int)))
    return TRIANGLE[0].id


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: 0, "got 0, which no object has"),
        (lambda: np.uint64(0), "got 0, which no object has"),
        (dead, "which no live object has"),
        (a_mesh, "got a Mesh"),
    ],
    ids=["zero", "numpy", "dead", "mesh"],
)
@pytest.mark.parametrize("grad", [False, True])
def test_wrong_handles(make, text, grad):
    handle = make()

    def uses(p: Points, y: F):
        wp.launch(spread, dim=p.shape, inputs=[handle, p, y])

    program = warp_program("p[n] -> y[n]", name=f"program_objects::{'grad' if grad else 'plain'}")(uses)
    with pytest.raises(ArgumentError, match=f"launches spread: argument 'grid': expected a wp.HashGrid.*{text}"):
        program(torch.rand(3, 3, requires_grad=grad))


# --- arrays that are missing ------------------------------------------------------------------------------------------


@wp.kernel
def weighted(x: F, w: F, y: F):
    i = wp.tid()
    y[i] = x[i] * w[i]


@wp.kernel
def maybe_weighted(x: F, w: F, y: F):
    i = wp.tid()
    if w:
        y[i] = x[i] * w[i]
    else:
        y[i] = 2.0 * x[i]


@wp.func
def weight(w: F, i: int):
    if w:
        return w[i]
    return 3.0


@wp.kernel
def weighted_in_a_function(x: F, w: F, y: F):
    i = wp.tid()
    y[i] = x[i] * weight(w, i)


@wp.kernel
def unused(x: F, w: F, y: F):
    i = wp.tid()
    y[i] = 4.0 * x[i]


@wp.struct
class Weights:
    w: F


@wp.kernel
def weighted_by_struct(x: F, given: Weights, y: F):
    i = wp.tid()
    if given.w:
        y[i] = x[i] * given.w[i]
    else:
        y[i] = 5.0 * x[i]


def without(kernel, nothing=None):
    def run(x: F, y: F):
        wp.launch(kernel, dim=x.shape, inputs=[x, nothing() if nothing else None, y])

    return warp_program("x[n] -> y[n]", name=f"program_objects::{kernel.key}")(run)


@pytest.mark.parametrize("grad", [False, True])
def test_none_for_an_array_that_is_used(grad):
    with pytest.raises(ArgumentError, match="launches weighted over 3: 'w': expected an array, got None"):
        without(weighted)(torch.ones(3, requires_grad=grad))


@pytest.mark.parametrize(
    ("kernel", "nothing", "slope"),
    [
        (maybe_weighted, None, 2.0),
        (weighted_in_a_function, None, 3.0),
        (unused, None, 4.0),
        (weighted_by_struct, Weights, 5.0),
    ],
)
def test_none_for_an_array_that_is_tested_or_unused(kernel, nothing, slope):
    x = torch.rand(3, requires_grad=True)
    y = without(kernel, nothing)(x)
    close(y, slope * x)
    close(torch.autograd.grad(y.sum(), x)[0], torch.full((3,), slope))
