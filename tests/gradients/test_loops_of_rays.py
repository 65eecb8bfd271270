"""What a mesh's query finds has a gradient: in loops that make a number of it, turn by turn, and behind them."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import close
from warpops import GradientWarning, warp_op


@wp.kernel
def power(mesh: wp.uint64, o: wp.array[wp.vec3], d: wp.array[wp.vec3], n: int, y: wp.array[float]):
    i = wp.tid()
    hit = wp.mesh_query_ray(mesh, o[i], d[i], 100.0)
    total = float(1.0)
    for _ in range(n):
        total = total * hit.t
    y[i] = total


@wp.kernel
def through(mesh: wp.uint64, o: wp.array[wp.vec3], d: wp.array[wp.vec3], n: int, y: wp.array[float]):
    i = wp.tid()
    p = o[i]
    total = float(0.0)
    for _ in range(n):
        hit = wp.mesh_query_ray(mesh, p, d[i], 100.0)
        if not hit.result:
            break
        p = p + d[i] * (hit.t + 1.0e-3)
        total = total * 0.5 + hit.t
    y[i] = total


@wp.kernel
def march(mesh: wp.uint64, o: wp.array[wp.vec3], d: wp.array[wp.vec3], n: int, y: wp.array[float]):
    i = wp.tid()
    p = o[i]
    t = float(0.0)
    for _ in range(n):
        near = wp.mesh_query_point(mesh, p, 10.0)
        t = wp.length(p - wp.mesh_eval_position(mesh, near.face, near.u, near.v))
        if t < 0.05:
            break
        p = p + 0.5 * t * d[i]
    y[i] = t * t + p[0]


@wp.kernel
def kept(mesh: wp.uint64, o: wp.array[wp.vec3], d: wp.array[wp.vec3], n: int, y: wp.array[float]):
    i = wp.tid()
    p = o[i]
    hit = wp.mesh_query_ray(mesh, p, d[i], 0.1)
    for _ in range(n):
        if hit.result:
            break
        p = p + 2.0 * d[i] * p[1]
        hit = wp.mesh_query_ray(mesh, p, d[i], 0.2)
    y[i] = hit.t * hit.t + p[0]


@pytest.fixture(scope="module")
def mesh():
    wp.init()
    corners = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    faces = torch.tensor([0, 2, 1, 0, 1, 3, 0, 3, 2, 1, 2, 3], dtype=torch.int32)
    return wp.Mesh(wp.from_torch(corners, dtype=wp.vec3), wp.from_torch(faces))


@pytest.mark.parametrize("kernel", [power, through, march], ids=lambda kernel: kernel.key)
@pytest.mark.parametrize("turns", [1, 2, 5])
def test_gradients_of_what_is_found(kernel, turns, mesh):
    op = warp_op(kernel, name="loops_of_rays::found")
    given = torch.tensor([[[-0.5, 0.1, 0.1]], [[1.0, 0.1, 0.05]]])
    gradients = torch.autograd.grad(op(mesh, *given.requires_grad_(), turns).sum(), given)[0]
    step, want = 1e-2, torch.zeros_like(given)
    for place in range(given.numel()):
        moved = torch.zeros(given.numel())
        moved[place] = step
        more, less = (op(mesh, *(given.detach() + moved.reshape(given.shape) * sign), turns) for sign in (1, -1))
        want.view(-1)[place] = (more - less).item() / (2 * step)
    close(gradients, want, rtol=2e-2, atol=2e-3)


def test_what_is_found_can_not_be_kept_for_what_is_behind_the_loop():
    with pytest.warns(GradientWarning, match="can't be kept; take numbers out of it in the loop"):
        warp_op(kept)
