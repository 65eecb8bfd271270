"""One table of kinds of ops, which opcheck, compiled code, export, ``torch.func``, second derivatives, ``testing.check``,
DTensor and CUDA all run through: a new kind is one row of ``KINDS``.

A test takes its rows by ``rows("its word")``; a row says in ``without`` which words it is left out for, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import warp as wp

import kernels
from support import as_tuple, check_against, close
from warpops import WarpOp, warp_op, warp_program

Function = Callable[..., Any]
f64 = wp.float64

WORDS = {
    "compiled": "in one graph, by aot_eager and by Inductor",
    "opcheck": "torch.library.opcheck",
    "exported": "torch.export, saved and loaded",
    "check": "warpops.testing.check raises no alarm",
    "gradients": "there are some",
    "tangents": "forward mode, and second derivatives",
    "dual numbers": "forward mode alone",
    "vmap": "under vmap, and under grad with it",
    "dtensor": "sharded on the first axis over two processes",
    "cuda": "on a CUDA device",
}
"""What the kinds run through."""


@dataclass(frozen=True)
class Kind:
    """A call of an op, and the same in PyTorch."""

    op: WarpOp
    draw: Callable[[], tuple[Any, ...]]
    """The arguments of one call, as ``op.overload`` takes them."""
    reference: Function
    """What the op computes, in PyTorch alone; for an array that is changed in place, what it then holds comes last."""
    without: Mapping[str, str] = field(default_factory=dict)
    """What the kind is left out for, and why."""
    loop: str = ""
    """Why a vmap of it is a loop, not one launch."""
    pack: Function = lambda *given: given
    """The overload's arguments as a user gives them."""
    wanted: Sequence[int] | None = None
    """The places of the arguments that get gradients; by default all floating tensors."""
    changed: int | None = None
    """The place of the array that is changed in place."""
    accuracy: float = 1e-4

    def call(self, *given: Any) -> Any:
        """The op as a function, which changes no argument."""
        if self.changed is None:
            return self.op(*self.pack(*given))
        own = list(given)
        own[self.changed] = own[self.changed].clone()
        result = self.op(*self.pack(*own))
        return (*(() if result is None else as_tuple(result)), own[self.changed])

    def differentiable(self, given: Sequence[Any]) -> tuple[int, ...]:
        """The places of the arguments that get gradients."""
        if "gradients" in self.without:
            return ()
        found = (k for k, a in enumerate(given) if isinstance(a, torch.Tensor) and a.is_floating_point())
        return tuple(k for k in found if self.wanted is None or k in self.wanted)

    def agree(self, function: Function, given: Sequence[Any]) -> None:
        """``function`` computes what the reference does, gradients too where there are any."""
        places = self.differentiable(given)
        if places:
            check_against(function, self.reference, given, places, self.accuracy, self.accuracy)
        else:
            close(as_tuple(function(*given)), as_tuple(self.reference(*given)))

    def of(self, function: Function, given: Sequence[Any]) -> tuple[Function, tuple[torch.Tensor, ...]]:
        """``function`` of the differentiable arguments alone, its floating results alone; and those arguments."""
        places = self.differentiable(given)

        def alone(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            values = list(given)
            for place, tensor in zip(places, tensors, strict=True):
                values[place] = tensor
            results = as_tuple(function(*values))
            return tuple(r for r in results[: self.results(results)] if r.is_floating_point())

        return alone, tuple(given[k] for k in places)

    def results(self, found: Sequence[Any]) -> int:
        """How many of them are the op's own, not an array that it changed."""
        return len(found) - (self.changed is not None)


# --- kernels ----------------------------------------------------------------------------------------------------------


@wp.func
def row_sum(row: wp.array[float]):
    total = float(0.0)
    for j in range(row.shape[0]):
        total += row[j]
    return total


@wp.struct
class Body:
    pos: wp.array[wp.vec3]
    mass: wp.array[float]
    gravity: float


@wp.kernel
def sums(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    row = x[i]
    y[i] = row_sum(x[i]) * row[0]


@wp.kernel
def store_by_row(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    row = y[i]
    for j in range(3):
        row[j] = x[i, j] * x[i, j]


@wp.kernel
def running_sum(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    y[i, 0] = x[i, 0] * x[i, 0]
    for j in range(1, x.shape[1]):
        y[i, j] = y[i, j - 1] + x[i, j] * x[i, j]


@wp.kernel
def powers(x: wp.array[float], n: int, y: wp.array[float]):
    i = wp.tid()
    v = float(1.0)
    for _ in range(n):
        v = v * x[i]
    y[i] = v


@wp.kernel
def highest(x: wp.array[float], group: wp.array[wp.int32], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_max(y, group[i], x[i])


@wp.kernel
def turned(m: wp.array[wp.mat33], p: wp.array[wp.vec3], y: wp.array[wp.vec3]):
    i = wp.tid()
    y[i] = m[i] * p[i]


@wp.kernel
def by_value(x: wp.array[float], v: wp.vec3, m: wp.mat22, q: wp.quat, t: wp.transform, k: wp.vec2i, y: wp.array[float]):
    i = wp.tid()
    p = wp.transform_get_translation(t)
    y[i] = x[i] * (v[0] + 10.0 * v[2] + m[0, 1] + 2.0 * m[1, 0] + q[3] + p[1] + float(k[0]))


@wp.kernel
def square_ints(x: wp.array[int], y: wp.array[int]):
    i = wp.tid()
    y[i] = x[i] * x[i]


@wp.kernel
def rounded(x: wp.array[float], low: wp.array[wp.int32], sign: wp.array[wp.bool]):
    i = wp.tid()
    low[i] = wp.int32(wp.floor(x[i]))
    sign[i] = x[i] < 0.0


@wp.kernel
def half_square(x: wp.array[wp.float16], y: wp.array[wp.float16]):
    i = wp.tid()
    y[i] = wp.max(x[i], wp.float16(0.0)) * x[i]


@wp.kernel
def relayed(x: wp.array[f64], tmp: wp.array[f64], y: wp.array[f64], z: wp.array[f64]):
    i = wp.tid()
    tmp[i] = wp.exp(x[i])
    y[i] = tmp[i] * x[i]
    z[i] = y[i] * y[i]


@wp.kernel
def stepped(y: wp.array[f64], x: wp.array[f64]):
    i = wp.tid()
    y[i] = y[i] * y[i] * x[i]


@wp.kernel
def generic(x: wp.array[Any], w: wp.array[Any], y: wp.array[Any]):
    i = wp.tid()
    y[i] = x[i] * x[i] * w[i]


@wp.kernel
def maybe(x: wp.array[f64], w: wp.array[f64], y: wp.array[f64]):
    i = wp.tid()
    y[i] = x[i] * x[i]
    if w:
        y[i] = x[i] * w[i] * w[i]


@wp.kernel
def marked(x: wp.array[f64], grid: wp.array[f64], y: wp.array[f64]):
    i = wp.tid()
    y[i] = x[i] * x[i] * x[i] * grid[i]
    grid[i] = grid[i] + x[i] * x[i]


@wp.kernel
def falling(body: Body, y: wp.array[wp.vec3]):
    i = wp.tid()
    y[i] = body.pos[i] * body.mass[i] * body.gravity


@wp.kernel(module="unique")
def tile_squares(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    tile = wp.tile_load(x[i], shape=4)
    wp.tile_store(y, wp.tile_sum(tile * tile), offset=i)


@wp.kernel
def four_axes(x: wp.array4d[float], y: wp.array4d[float]):
    i, j, k, m = wp.tid()
    y[i, j, k, m] = x[i, j, k, m] * x[i, j, k, m]


@wp.kernel
def slope(n: int, s: float, y: wp.array[float]):
    i = wp.tid()
    y[i] = float(i) * s


sums_op = warp_op(sums, "x[n, m] -> y[n]", dim="n")
store_by_row_op = warp_op(store_by_row, "x[n, 3] -> y[n, 3]", dim="n")
running_sum_op = warp_op(running_sum, "x[n, m] -> y[n, m]", dim="n")
powers_op = warp_op(powers, "x[m] -> y[m]", dim="m")
highest_op = warp_op(highest, "x[n], group[n] -> y[k]", dim="n", sizes="k", init=float("-inf"))
turned_op = warp_op(turned)
by_value_op = warp_op(by_value)
square_ints_op = warp_op(square_ints)
rounded_op = warp_op(rounded)
half_square_op = warp_op(half_square)
relayed_op = warp_op(relayed, "x[n] -> y[n], z[n]", scratch="tmp[n]")
stepped_op = warp_op(stepped, "y[n], x[n] -> y[n]")
generic_op = warp_op(generic)
maybe_op = warp_op(maybe, "x[n], w[n] -> y[n]", optional="w")
marked_op = warp_op(marked, "x[n], grid[n] -> y[n]", mutates="grid")
nondiff_op = warp_op(kernels.product, "x[n], w[n] -> y[n]", dim="n", nondiff="w", name="kinds::nondiff")
timed_op = warp_op(kernels.scale, "x[n] -> y[n]", dim="n", tensor_scalars="s", name="kinds::timed")
falling_op = warp_op(falling, "body.pos[n], body.mass[n] -> y[n]")
tile_op = warp_op(tile_squares, "x[n, 4] -> y[n]", dim="n", tiled=True, block_dim=32)
computed_op = warp_op(
    kernels.square, shapes={"y": lambda x: x.shape[0]}, dim=lambda x: x.shape[0], name="kinds::computed"
)
four_axes_op = warp_op(four_axes, "x[a, b, c, d] -> y[a, b, c, d]", dim="a, b, c, d")
slope_op = warp_op(slope, "-> y[n]", dim="n")


@warp_program("x[n] -> y[n]")
def program_op(x: wp.array[float], y: wp.array[float]):
    between = wp.zeros_like(x)
    wp.launch(kernels.square, x.shape[0], inputs=[x], outputs=[between])
    wp.launch(kernels.product, x.shape[0], inputs=[between, x], outputs=[y])


# --- the table --------------------------------------------------------------------------------------------------------


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape) + 0.25


def rand64(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64) + 0.4


def index() -> torch.Tensor:
    return torch.randint(3, (3,), dtype=torch.int32)


def scattered(x: torch.Tensor, at: torch.Tensor, k: int) -> torch.Tensor:
    return x.new_zeros(k).index_add(0, at.long(), x * x)


def relayed_(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.exp() * x, (x.exp() * x) ** 2


def by_value_(x: torch.Tensor, v: Any, m: Any, q: Any, t: Any, k: Any) -> torch.Tensor:
    return x * (v[0] + 10.0 * v[2] + m[1] + 2.0 * m[2] + q[3] + t[1] + k[0])


NO_GRADIENT = {"gradients": "ints and bools have no gradient"}
IN_PLACE = "what changes an array in place is no function of its arguments"
MUTATES = {"vmap": f"{IN_PLACE}: test_vmap.py::test_in_place_changes_are_refused"}
NO_TENSOR = "no tensor is among the arguments"

KINDS: dict[str, Kind] = {
    "one input": Kind(kernels.square_op, lambda: (rand(4),), kernels.square_),
    "two inputs": Kind(kernels.product_op, lambda: (rand(5), rand(5)), kernels.product_),
    "two outputs": Kind(kernels.spring_op, lambda: (rand(4, 3), rand(4)), kernels.spring_),
    "vectors": Kind(kernels.weigh_op, lambda: (rand(4, 3), rand(4)), kernels.weigh_),
    "matrices": Kind(turned_op, lambda: (rand(3, 3, 3), rand(3, 3)), lambda m, p: (m @ p[..., None])[..., 0]),
    "grid": Kind(kernels.gauss_op, lambda: (rand(4), rand(3)), kernels.gauss_),
    "strided": Kind(kernels.triple_op, lambda: (rand(4, 6).t()[::2],), kernels.triple_),
    "expanded": Kind(
        kernels.triple_op,
        lambda: (rand(1, 6).expand(3, 6),),
        kernels.triple_,
        {"dual numbers": "PyTorch makes no dual number of an expanded tensor"},
    ),
    "empty": Kind(kernels.triple_op, lambda: (rand(0, 6),), kernels.triple_),
    "one element": Kind(kernels.product_op, lambda: (rand(1), rand(1)), kernels.product_),
    "four axes": Kind(four_axes_op, lambda: (rand(2, 2, 1, 2),), kernels.square_, loop="Warp has four axes"),
    "numbers": Kind(kernels.mixed_op, lambda: (rand(3), 2.0, 3, True), kernels.mixed_),
    "vectors by value": Kind(
        by_value_op,
        lambda: (rand(2), [1.0, 2.0, 3.0], [0.0, 5.0, 7.0, 0.0], [0.0, 0.0, 0.0, 1.5], [0.0, 4.0, *[0.0] * 5], [6, 1]),
        by_value_,
    ),
    "a number in a tensor": Kind(
        timed_op,
        lambda: (rand(3), torch.tensor(2.0)),
        lambda x, s: x * s,
        loop="a number can't differ within a launch",
        wanted=(0,),
    ),
    "struct": Kind(
        falling_op,
        lambda: (rand(5, 3), rand(5), 3.0),
        lambda pos, mass, gravity: pos * mass[:, None] * gravity,
        pack=lambda pos, mass, gravity: ({"pos": pos, "mass": mass, "gravity": gravity},),
    ),
    "accumulating": Kind(kernels.scatter_op, lambda: (rand(3), index(), 3), scattered),
    "partly filled": Kind(kernels.keep_op, lambda: (rand(3), torch.rand(3) > 0.4), lambda x, keep: x * x * keep),
    "extremes": Kind(
        highest_op,
        lambda: (torch.randn(3), index(), 3),
        lambda x, at, k: x.new_full((k,), float("-inf")).scatter_reduce(0, at.long(), x, "amax"),
    ),
    "in-out": Kind(kernels.multiply_op, lambda: (rand(4), rand(4)), lambda x, y: x * y),
    "in-out, float64": Kind(stepped_op, lambda: (rand64(4), rand64(4)), lambda y, x: y * y * x),
    "read back": Kind(running_sum_op, lambda: (rand(3, 4),), lambda x: (x * x).cumsum(-1)),
    "stored by a view": Kind(store_by_row_op, lambda: (rand(3, 3),), kernels.square_),
    "read by a view": Kind(sums_op, lambda: (rand(3, 4),), lambda x: x.sum(-1) * x[:, 0]),
    "a loop": Kind(powers_op, lambda: (rand(4), 3), lambda x, n: x**n),
    "tile": Kind(tile_op, lambda: (rand(3, 4),), lambda x: (x * x).sum(-1)),
    "scratch": Kind(relayed_op, lambda: (rand64(4),), relayed_),
    "float64": Kind(kernels.cube64_op, lambda: (rand64(4),), lambda x: x**3),
    "float16": Kind(
        half_square_op, lambda: (torch.tensor([0.5, -0.7, 1.5, -2.0]).half(),), lambda x: x.relu() * x, accuracy=4e-3
    ),
    "generic": Kind(generic_op, lambda: (rand64(4), rand64(4)), kernels.product_),
    "optional": Kind(maybe_op, lambda: (rand64(4), rand64(4)), lambda x, w: x * w * w),
    "optional left out": Kind(maybe_op, lambda: (rand64(4), None), lambda x, w: x * x),
    "nondiff": Kind(nondiff_op, lambda: (rand(3), rand(3)), kernels.product_, wanted=(0,)),
    "computed shape": Kind(computed_op, lambda: (rand(4),), kernels.square_),
    "ints": Kind(square_ints_op, lambda: (torch.tensor([1, 2, 5], dtype=torch.int32),), kernels.square_, NO_GRADIENT),
    "ints and bools of floats": Kind(
        rounded_op, lambda: (torch.randn(5) * 3,), lambda x: (x.floor().int(), x < 0), NO_GRADIENT
    ),
    "changed in place": Kind(
        kernels.step_op,
        lambda: (rand(3), rand(3), 0.5),
        lambda x, v, dt: x + v * dt,
        {"gradients": IN_PLACE, **MUTATES},
        changed=0,
    ),
    "changed in place, and an output": Kind(
        marked_op,
        lambda: (rand64(4), torch.ones(4, dtype=torch.float64)),
        lambda x, grid: (x**3 * grid, (grid + x * x).detach()),
        MUTATES,
        wanted=(0,),
        changed=1,
    ),
    "no tensors": Kind(
        slope_op,
        lambda: (3, 2.0),
        lambda n, s: torch.arange(n) * s,
        {"gradients": NO_TENSOR, "vmap": NO_TENSOR, "dtensor": NO_TENSOR, "cuda": NO_TENSOR},
    ),
    "program": Kind(
        program_op,
        lambda: (rand(4),),
        lambda x: x**5,
        loop="a program",
    ),
}


def rows(*words: str) -> list[Any]:
    """The names of the kinds, for ``parametrize``; one that is left out for any of the words is skipped, and says why."""
    assert words and all(word in WORDS for word in words)
    made = []
    for name, kind in KINDS.items():
        why = [kind.without[word] for word in words if word in kind.without]
        made.append(pytest.param(name, id=name, marks=[pytest.mark.skip(reason=why[0])] if why else []))
    return made
