"""What a program costs, against the custom_op that one would write by hand for the same launches.

    python benchmarks/programs.py                   # the table, with its bounds
    python benchmarks/programs.py --strict          # exit status 1 if a bound doesn't hold
    python benchmarks/programs.py --device cuda

1, 2 and 4 launches in a row; a neighbour search in a ``wp.HashGrid``, and distances to a ``wp.Mesh``, which are made anew in
each call. By hand is ``torch.library.custom_op`` with ``register_autograd``, as in ``rivals.py``: it saves what the backward
needs, but for the grid and the mesh, which an operator can't save, and its backward makes again. Timing is that of
``overhead.py``.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import warp as wp

from common import Bar, Call, Samples, clock_for, environment, interleave, judge, microseconds, table, write_json
from overhead import and_backward
from rivals import logistic
from warpops import WarpOp, warp_program
from warpops.launch import native
from warpops.launch.launcher import FAST

Array = wp.array[float]
Points = wp.array[wp.vec3]
Function = Callable[..., torch.Tensor]
RADIUS = 0.3


@wp.kernel
def spread(grid: wp.uint64, p: Points, y: Array):
    i = wp.tid()
    total = wp.float32(0.0)
    for j in wp.hash_grid_query(grid, p[i], RADIUS):
        d = p[i] - p[j]
        total += wp.dot(d, d)
    y[i] = total


@wp.kernel
def distance(mesh: wp.uint64, p: Points, y: Array):
    i = wp.tid()
    query = wp.mesh_query_point(mesh, p[i], 1.0e6)
    y[i] = wp.length(p[i] - wp.mesh_eval_position(mesh, query.face, query.u, query.v))


# --- programs ---------------------------------------------------------------------------------------------------------


@warp_program("x[n] -> y[n]", name="programs::chain_1")
def chain_1(x: Array, y: Array):
    wp.launch(logistic, dim=x.shape, inputs=[x], outputs=[y])


@warp_program("x[n] -> y[n]", scratch="a[n]", name="programs::chain_2")
def chain_2(x: Array, y: Array, a: Array):
    wp.launch(logistic, dim=x.shape, inputs=[x], outputs=[a])
    wp.launch(logistic, dim=x.shape, inputs=[a], outputs=[y])


@warp_program("x[n] -> y[n]", scratch="a[n], b[n], c[n]", name="programs::chain_4")
def chain_4(x: Array, y: Array, a: Array, b: Array, c: Array):
    wp.launch(logistic, dim=x.shape, inputs=[x], outputs=[a])
    wp.launch(logistic, dim=x.shape, inputs=[a], outputs=[b])
    wp.launch(logistic, dim=x.shape, inputs=[b], outputs=[c])
    wp.launch(logistic, dim=x.shape, inputs=[c], outputs=[y])


@warp_program("p[n] -> y[n]", name="programs::neighbours")
def neighbours(p: Points, y: Array):
    grid = wp.HashGrid(8, 8, 8, device=p.device)
    grid.build(p, RADIUS)
    wp.launch(spread, dim=p.shape, inputs=[grid.id, p], outputs=[y])


@warp_program("p[n], corners[k], faces[f] -> y[n]", nondiff="corners", name="programs::distances")
def distances(p: Points, corners: Points, faces: wp.array[int], y: Array):
    mesh = wp.Mesh(corners, faces)
    wp.launch(distance, dim=p.shape, inputs=[mesh.id, p], outputs=[y])


# --- by hand ----------------------------------------------------------------------------------------------------------


def as_array(tensor: torch.Tensor, dtype: Any = wp.float32) -> wp.array:
    return wp.from_torch(tensor, dtype=dtype, requires_grad=False)


def chain_by_hand(count: int) -> Function:
    """The launches of ``count`` in a row; the operator returns what lies between them, too, for its backward."""

    @torch.library.custom_op(f"by_hand::chain_{count}", mutates_args=())
    def forward_op(x: torch.Tensor) -> list[torch.Tensor]:
        made = [torch.empty_like(x) for _ in range(count)]
        arrays = [as_array(tensor) for tensor in (x, *made)]
        for source, target in itertools.pairwise(arrays):
            wp.launch(logistic, dim=source.shape, inputs=[source], outputs=[target], device=source.device)
        return made

    @forward_op.register_fake
    def forward_fake(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.empty_like(x) for _ in range(count)]

    @torch.library.custom_op(f"by_hand::chain_{count}_adjoint", mutates_args=())
    def adjoint_op(x: torch.Tensor, made: list[torch.Tensor], cotangent: torch.Tensor) -> torch.Tensor:
        arrays = [as_array(tensor) for tensor in (x, *made)]
        gradients = [torch.zeros_like(x) for _ in range(count)]
        adjoints = [as_array(tensor) for tensor in (*gradients, cotangent.clone())]
        for k in reversed(range(count)):
            wp.launch(
                logistic,
                dim=arrays[k].shape,
                inputs=[arrays[k]],
                outputs=[arrays[k + 1]],
                adj_inputs=[adjoints[k]],
                adj_outputs=[adjoints[k + 1]],
                device=arrays[k].device,
                adjoint=True,
            )
        return gradients[0]

    @adjoint_op.register_fake
    def adjoint_fake(x: torch.Tensor, made: list[torch.Tensor], cotangent: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def keep(ctx: Any, inputs: tuple[torch.Tensor], output: list[torch.Tensor]) -> None:
        ctx.save_for_backward(*inputs, *output)

    def differentiate(ctx: Any, cotangents: list[torch.Tensor | None]) -> torch.Tensor:
        x, *made = ctx.saved_tensors
        assert cotangents[-1] is not None
        return adjoint_op(x, made, cotangents[-1])

    forward_op.register_autograd(differentiate, setup_context=keep)
    return lambda x: forward_op(x)[-1]


def object_by_hand(kernel: wp.Kernel, make: Callable[..., Any]) -> Function:
    """A launch of a kernel that takes the object that ``make`` makes of the arrays, points and a result."""

    @torch.library.custom_op(f"by_hand::{kernel.key}", mutates_args=())
    def forward_op(p: torch.Tensor, more: list[torch.Tensor]) -> torch.Tensor:
        y = torch.zeros(p.shape[0], device=p.device)
        points = as_array(p, wp.vec3)
        made = make(points, *more)
        wp.launch(kernel, dim=points.shape, inputs=[made.id, points], outputs=[as_array(y)], device=points.device)
        return y

    @forward_op.register_fake
    def forward_fake(p: torch.Tensor, more: list[torch.Tensor]) -> torch.Tensor:
        return p.new_empty(p.shape[0])

    @torch.library.custom_op(f"by_hand::{kernel.key}_adjoint", mutates_args=())
    def adjoint_op(p: torch.Tensor, more: list[torch.Tensor], y: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
        gradient = torch.zeros_like(p)
        points = as_array(p, wp.vec3)
        made = make(points, *more)
        wp.launch(
            kernel,
            dim=points.shape,
            inputs=[made.id, points],
            outputs=[as_array(y)],
            adj_inputs=[None, as_array(gradient, wp.vec3)],
            adj_outputs=[as_array(cotangent.clone())],
            device=points.device,
            adjoint=True,
        )
        return gradient

    @adjoint_op.register_fake
    def adjoint_fake(
        p: torch.Tensor, more: list[torch.Tensor], y: torch.Tensor, cotangent: torch.Tensor
    ) -> torch.Tensor:
        return torch.empty_like(p)

    def keep(ctx: Any, inputs: tuple[torch.Tensor, list[torch.Tensor]], output: torch.Tensor) -> None:
        ctx.save_for_backward(inputs[0], output, *inputs[1])

    def differentiate(ctx: Any, cotangent: torch.Tensor) -> tuple[torch.Tensor, list[None]]:
        p, y, *more = ctx.saved_tensors
        return adjoint_op(p, more, y, cotangent), [None for _ in more]

    forward_op.register_autograd(differentiate, setup_context=keep)
    return lambda p, *more: forward_op(p, list(more))


def a_grid(points: wp.array) -> wp.HashGrid:
    grid = wp.HashGrid(8, 8, 8, device=points.device)
    grid.build(points, RADIUS)
    return grid


def a_mesh(points: wp.array, corners: torch.Tensor, faces: torch.Tensor) -> wp.Mesh:
    return wp.Mesh(as_array(corners, wp.vec3), as_array(faces, wp.int32))


# --- the table --------------------------------------------------------------------------------------------------------

OURS, BY_HAND = "program", "by hand"
LIMITS = {"1 launch": 0.7, "2 launches": 0.7, "4 launches": 0.7, "a HashGrid": 1.1, "a Mesh": 1.1}
MODES = ("forward", "forward + backward")


def pairs(size: int, device: str) -> dict[str, tuple[WarpOp, Function, tuple[torch.Tensor, ...]]]:
    """The program, the same by hand, and what both take."""
    x, p = torch.rand(size, device=device), torch.rand(size, 3, device=device)
    corners = torch.tensor([[-9.0, -9.0, 0.0], [9.0, -9.0, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, -9.0]], device=device)
    faces = torch.tensor([0, 1, 2, 0, 1, 3, 1, 2, 3, 2, 0, 3], dtype=torch.int32, device=device)
    return {
        "1 launch": (chain_1, chain_by_hand(1), (x,)),
        "2 launches": (chain_2, chain_by_hand(2), (x,)),
        "4 launches": (chain_4, chain_by_hand(4), (x,)),
        "a HashGrid": (neighbours, object_by_hand(spread, a_grid), (p,)),
        "a Mesh": (distances, object_by_hand(distance, a_mesh), (p, corners, faces)),
    }


def calls(size: int, device: str) -> dict[str, Call]:
    """Keys are "what / mode / whose"."""
    found: dict[str, Call] = {}
    for what, (ours, by_hand, given) in pairs(size, device).items():
        leaf = given[0].clone().requires_grad_()
        torch.testing.assert_close(ours(*given), by_hand(*given))
        for whose, function in ((OURS, ours), (BY_HAND, by_hand)):
            found[f"{what} / {MODES[0]} / {whose}"] = lambda function=function, given=given: function(*given)
            found[f"{what} / {MODES[1]} / {whose}"] = and_backward(
                lambda x, function=function, more=given[1:]: function(x, *more), leaf
            )
    return found


def bars(samples: Samples) -> list[Bar]:
    return [
        Bar(
            f"{what}: {mode}, of the custom_op by hand",
            samples.ratio(f"{what} / {mode} / {OURS}", f"{what} / {mode} / {BY_HAND}"),
            limit,
        )
        for what, limit in LIMITS.items()
        for mode in MODES
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=64, help="elements of each array")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--strict", action="store_true", help="exit status 1 if a bound is missed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if FAST:
        native.make()
    timing = {"rounds": options.rounds, "device": options.device, "clock": clock_for(options.device)}
    samples = interleave(calls(options.size, options.device), **timing)

    about = environment(options.device)
    print(", ".join(f"{key} {value}" for key, value in about.items()) + f"; {options.size} elements")
    for mode in MODES:
        rows = [
            [what, *(microseconds(samples.median(f"{what} / {mode} / {whose}")) for whose in (OURS, BY_HAND))]
            for what in LIMITS
        ]
        table(f"{mode}, µs a call", ["", OURS, BY_HAND], rows)
    print()
    result = bars(samples)
    missed = judge(result)
    write_json(
        options.json,
        {
            "benchmark": "programs",
            "environment": about,
            "size": options.size,
            "rounds": options.rounds,
            "median_us": {name: round(samples.median(name) * 1e6, 3) for name in samples.seconds},
            "bars": [{"what": bar.what, "value": round(bar.value, 4), "limit": bar.limit} for bar in result],
        },
    )
    return missed if options.strict else 0


if __name__ == "__main__":
    sys.exit(main())
