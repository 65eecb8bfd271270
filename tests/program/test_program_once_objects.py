"""Programs whose Python runs once: objects of Warp that they use, and the streams that their calls go to."""

from __future__ import annotations

import gc

import pytest
import torch
import warp as wp

from cuda_stand_in import StandIn
from programs import blur, blur_reference, blur_twice, height, ping_pong, spread
from support import check_against, close, leaf
from test_program_once import program
from warpops import ArgumentError

F = wp.array[float]
Points = wp.array[wp.vec3]


# --- objects of Warp --------------------------------------------------------------------------------------------------


@program("grid", "p[n] -> y[n]")
def grid_program(p: Points, y: F):
    grid = wp.HashGrid(4, 4, 4, device=p.device)
    grid.build(p, 2.0)
    wp.launch(spread, dim=p.shape, inputs=[grid.id, p, y])


def test_a_grid_is_built_anew_at_each_call(runs, way):
    for _ in range(3):
        p = (torch.rand(5, 3) * 0.5).requires_grad_()
        want = ((p[:, None] - p[None]) ** 2).sum((1, 2))
        found = grid_program(p)
        close(found, want)
        close(torch.autograd.grad(found.sum(), p)[0], torch.autograd.grad(want.sum(), p)[0])
    assert runs[0] <= 2


def test_a_mesh_is_made_and_refit_at_each_call(runs):
    @program("mesh", "p[n], corners[k], faces[f], lift[k] -> y[n]", nondiff="corners, lift")
    def mesh_program(p: Points, corners: Points, faces: wp.array[int], lift: Points, y: F):
        moved = wp.clone(corners)
        mesh = wp.Mesh(points=moved, indices=faces)
        wp.copy(moved, lift)
        mesh.refit()
        wp.launch(height, dim=p.shape, inputs=[mesh.id, p, y])

    corners = torch.tensor([[-9.0, -9.0, 0.0], [9.0, -9.0, 0.0], [0.0, 9.0, 0.0]])
    faces = torch.tensor([0, 1, 2], dtype=torch.int32)
    for lift in (1.0, 2.0, -3.0):
        p = (torch.rand(4, 3) + torch.tensor([0.0, 0.0, 5.0])).requires_grad_()
        found = mesh_program(p, corners, faces, corners + torch.tensor([0.0, 0.0, lift]))
        close(found, p[:, 2] - lift)
        close(torch.autograd.grad(found.sum(), p)[0], torch.tensor([[0.0, 0.0, 1.0]]).expand(4, 3), atol=1e-4)
    assert runs == [2]


def test_a_handle_whose_object_is_gone(runs):
    grid = wp.HashGrid(4, 4, 4)
    p = torch.rand(5, 3)
    grid.build(wp.from_torch(p, dtype=wp.vec3), 2.0)
    handle = grid.id

    @program("held_grid", "p[n] -> y[n]")
    def held_grid(p: Points, y: F):
        wp.launch(spread, dim=p.shape, inputs=[handle, p, y])

    for _ in range(2):
        close(held_grid(p), ((p[:, None] - p[None]) ** 2).sum((1, 2)))
    assert runs == [1]
    del grid
    gc.collect()
    with pytest.raises(ArgumentError, match="which no live object has"):
        held_grid(p)


# --- streams ----------------------------------------------------------------------------------------------------------


def test_every_launch_and_call_goes_to_pytorchs_stream(monkeypatch):
    """One scope around the function, or the repetition, makes PyTorch's stream Warp's own."""
    scopes = []

    class Scope:
        def __init__(self, stream, sync_enter=True):
            assert not sync_enter
            self.stream = stream

        def __enter__(self):
            scopes.append(self.stream.cuda_stream)

        def __exit__(self, *error):
            scopes.append(None)

    @program("streamed", scratch="tmp[n]")
    def streamed(x: F, y: F, tmp: F):
        wp.launch(blur, dim=x.shape, inputs=[x], outputs=[tmp])
        wp.launch(blur, dim=x.shape, inputs=[tmp], outputs=[y])

    with StandIn() as cuda:
        cuda.patch(wp, "ScopedStream", Scope)
        for handle in (17, 23, 29):
            cuda.use_stream(0, handle)
            cuda.launched.clear()
            check_against(streamed, blur_reference, [torch.rand(4)])
            assert {launched.stream for launched in cuda.launched if launched.kernel.startswith("blur")} == {handle}
        assert scopes == [17, None, 17, None]


def test_others_are_left_alone(runs):
    """Programs of other tests stay what they were: compiled, under vmap, with a retained graph."""
    for _ in range(2):
        x = leaf(torch.rand(6))
        run = torch.compile(blur_twice, fullgraph=True, backend="aot_eager")
        check_against(run, blur_reference, [x])
        close(
            torch.vmap(ping_pong, in_dims=(0, None))(torch.ones(2, 6) / 2, 3), blur_reference(torch.ones(2, 6) / 2, 3)
        )
