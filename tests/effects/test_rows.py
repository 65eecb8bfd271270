"""Which arrays an op treats row by row: decided for certain, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import warp as wp

import kernels
from support import close
from warpops import warp_op, warp_program


@wp.struct
class Body:
    pos: wp.array[wp.vec3]
    mass: wp.array[float]
    gravity: float


@wp.func
def halve(v: float):
    return 0.5 * v


@wp.func
def row_sum(row: wp.array[float]):
    total = float(0.0)
    for k in range(row.shape[0]):
        total += row[k]
    return total


@wp.func
def first(x: wp.array[float]):
    return x[0]


@wp.func_native("return v;")
def through(v: float) -> float: ...


@wp.kernel
def plain(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = halve(x[i]) * w[2]


@wp.kernel
def matrix(x: wp.array2d[float], w: wp.array[float], y: wp.array2d[float]):
    i, j = wp.tid()
    y[i, j] = x[i, j] * w[j]


@wp.kernel
def rows(x: wp.array2d[float], y: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    row = x[i]
    y[i] = row_sum(x[i]) + row[0] + float(x.shape[1])
    wp.atomic_add(z, i, y[i])


@wp.kernel
def bodies(s: Body, y: wp.array[wp.vec3]):
    i = wp.tid()
    y[i] = s.pos[i] * s.mass[i] * s.gravity


@wp.kernel
def looked_up(x: wp.array[float], index: wp.array[int], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[index[i]]


@wp.kernel
def neighbours(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] + x[wp.max(i - 1, 0)]


@wp.kernel
def numbered(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * float(i)


@wp.kernel
def seeded(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    state = wp.rand_init(7, i)
    y[i] = x[i] * wp.randf(state)


@wp.kernel
def bounded(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    if i < 2:
        y[i] = x[i]


@wp.kernel
def guarded(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    if i >= x.shape[0]:
        return
    y[i] = 2.0 * x[i]


@wp.kernel
def guarded_body(x: wp.array2d[float], w: wp.array[float], y: wp.array2d[float]):
    i, j = wp.tid()
    if y.shape[0] > i and i < x.shape[0]:
        y[i, j] = x[i, j] * w[2]


@wp.kernel
def guarded_by_another(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    if i < w.shape[0]:
        y[i] = x[i]


@wp.kernel
def guarded_by_another_axis(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    if i < x.shape[1]:
        y[i] = x[i, 0]


@wp.kernel
def last_row(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    if i < x.shape[0] - 1:
        y[i] = x[i]


@wp.kernel
def guarded_by_a_number(x: wp.array[float], n: int, y: wp.array[float]):
    i = wp.tid()
    if i >= n:
        return
    y[i] = x[i]


@wp.kernel
def divided(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] / float(x.shape[0])


@wp.kernel
def crossed(x: wp.array2d[float], y: wp.array2d[float]):
    i, j = wp.tid()
    y[i, j] = x[j, i]


@wp.kernel
def renamed(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    k = i
    y[i] = x[k]


@wp.kernel
def handed_on(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = first(x) + x[i]


@wp.kernel
def twice(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] + float(wp.tid())


@wp.kernel
def assigned(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    if x[i] > 0.0:
        i = 0
    y[i] = x[i]


@wp.kernel
def asked_for(x: wp.array[float], v: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    t = x[i]
    if v and t > 0.0:
        t = t * v[i]
    y[i] = t if not v else t + v[i]


@wp.kernel
def native(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = through(x[i])


@wp.kernel
def summed(x: wp.array[float], total: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i]
    wp.atomic_add(total, 0, x[i])


@wp.kernel
def counted(x: wp.array[float], n: int, y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * float(n)


@wp.kernel
def tiled(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    wp.tile_store(y[i], wp.tile_load(x[i], shape=4))


@wp.kernel
def generic(x: wp.array[Any], y: wp.array[Any]):
    i = wp.tid()
    y[i] = x[i] + x[i]


KNOWN = {
    "a function of numbers, a constant index": (plain, "x[n], w[k] -> y[n]", {}, "x y"),
    "two coordinates": (matrix, "x[n, m], w[m] -> y[n, m]", {}, "x y"),
    "one size for both": (matrix, "x[n, n], w[n] -> y[n, n]", {}, None),
    "rows as views": (rows, "x[n, m] -> y[n], z[n]", {"dim": "n"}, "x y z"),
    "a struct": (bodies, "s.pos[n], s.mass[n] -> y[n]", {}, "s_mass s_pos y"),
    "read by index": (looked_up, "x[k], index[n] -> y[n]", {}, "index y"),
    "read by index, of the same size": (looked_up, "x[n], index[n] -> y[n]", {}, None),
    "generic": (generic, "x[n] -> y[n]", {}, "x y"),
    "neighbours": (neighbours, "x[n] -> y[n]", {}, None),
    "the coordinate as a number": (numbered, "x[n] -> y[n]", {}, None),
    "the coordinate as a seed": (seeded, "x[n] -> y[n]", {"dim": "n"}, None),
    "the coordinate in a condition": (bounded, "x[n] -> y[n]", {"dim": "n"}, None),
    "a guard": (guarded, "x[n] -> y[n]", {"dim": "n"}, "x y"),
    "guards around the body": (guarded_body, "x[n, m], w[k] -> y[n, m]", {"dim": "n, m"}, "x y"),
    "a guard that the launch outruns": (guarded, "x[n] -> y[n]", {"dim": "n + 1"}, None),
    "a guard by another array": (guarded_by_another, "x[n], w[k] -> y[n]", {"dim": "n"}, None),
    "a guard by another axis": (guarded_by_another_axis, "x[n, m] -> y[n]", {"dim": "n"}, None),
    "all rows but the last": (last_row, "x[n] -> y[n]", {"dim": "n"}, None),
    "a guard by a number": (guarded_by_a_number, "x[k] -> y[k]", {"dim": "k"}, None),
    "the size in the kernel": (divided, "x[n] -> y[n]", {}, None),
    "the other axis": (crossed, "x[m, n] -> y[n, m]", {}, None),
    "an alias": (renamed, "x[n] -> y[n]", {}, None),
    "an array handed on": (handed_on, "x[n] -> y[n]", {}, None),
    "tid twice": (twice, "x[n] -> y[n]", {}, None),
    "the coordinate assigned again": (assigned, "x[n] -> y[n]", {"dim": "n"}, None),
    "native code": (native, "x[n] -> y[n]", {}, None),
    "a sum over threads": (summed, "x[n] -> total[1], y[n]", {}, None),
    "a size that the caller gives": (counted, "x[n] -> y[n]", {}, None),
    "a size that the caller gives, of another array": (counted, "x[m] -> y[m]", {}, "x y"),
    "a longer output": (plain, "x[n], w[k] -> y[n + 1]", {"dim": "n"}, None),
    "half of the rows": (plain, "x[n], w[k] -> y[n]", {"dim": "n // 2"}, None),
    "a shape that is computed": (plain, "x[n], w[k]", {"shapes": {"y": lambda x: x.shape[0]}, "dim": "n"}, None),
    "a launch size that is computed": (plain, "x[n], w[k] -> y[n]", {"dim": lambda x: x.shape[0]}, None),
    "another launch size that depends on it": (matrix, "x[n, m], w[k] -> y[n, k]", {"dim": "n, min(n, m, k)"}, None),
    "asked whether it is there": (asked_for, "x[n], v[n] -> y[n]", {"optional": "v"}, "v x y"),
    "tiles": (tiled, "x[n, 4] -> y[n, 4]", {"dim": "n", "tiled": True, "block_dim": 32}, None),
}


@pytest.mark.filterwarnings("ignore:native. Warp's adjoint may be wrong:warpops.GradientWarning")
@pytest.mark.parametrize("what", KNOWN)
def test_decisions(what):
    kernel, signature, options, want = KNOWN[what]
    if what == "a shape that is computed":
        signature = "x[n], w[k] -> y"
    if what == "another launch size that depends on it":
        options = {"dim": "n, min(n, min(m, k))"}
    op = warp_op(kernel, signature, name="test_rows::decided", **options)
    found = op._registration.rows
    assert " ".join(sorted(found.arrays)) == (want or ""), found.why
    text = " ".join(op.explain().split())
    if want:
        assert "tensors sharded on their first axis (DTensor) stay so: " in text
    else:
        assert "tensors sharded on their first axis (DTensor) are gathered: " in text


def test_a_program_has_none():
    @warp_program("x[n] -> y[n]")
    def run(x: wp.array[float], y: wp.array[float]):
        wp.launch(kernels.square, x.shape[0], inputs=[x], outputs=[y])

    assert not run._registration.rows.arrays


@pytest.mark.parametrize("what", [what for what, (*_, want) in KNOWN.items() if want])
def test_part_of_the_rows_gives_that_part(what):
    """What the decision promises, of every op that it says yes to."""
    kernel, signature, options, want = KNOWN[what]
    op = warp_op(kernel, signature, name="test_rows::decided", **options)
    own = want.split()

    def tensor(slot):
        shape = {"w": (5,), "k": (5,), "index": (6,)}.get(slot.name, (6, *(5,) * (slot.leaf.ndim - 1)))
        if slot.leaf.scalar is not None and slot.leaf.scalar.kind == "int":
            return torch.tensor([1, 3, 5, 5, 0, 2], dtype=torch.int32)
        return torch.randn(*shape, *(slot.leaf.component or ()))

    values = {s.name: tensor(s) if s.is_array else 3 for s in op._plan.inputs}

    def run(part):
        given = {n: v[part] if n in own else v for n, v in values.items()}
        if "s_pos" in given:
            given = {"s": {"pos": given["s_pos"], "mass": given["s_mass"], "gravity": 3.0}}
        found = op(**given)
        return found if isinstance(found, tuple) else (found,)

    whole = run(slice(None))
    for part in (slice(0, 3), slice(3, 6), slice(2, 2)):
        for one, all_rows in zip(run(part), whole, strict=True):
            close(one, all_rows[part])
