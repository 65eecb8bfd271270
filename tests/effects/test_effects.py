"""What the analysis concludes of arrays and threads: each conclusion where it holds, and where it must not be drawn."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import warp as wp

from support import HERE
from warpops.effects import ArrayEffects, Effects, Guard, Premise, analyse

# ---------------------------------------------------------------------------------------------------------------------
# Kernels that need no declaration


@wp.kernel
def elementwise(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * 2.0


@wp.kernel
def elementwise4(x: wp.array4d[float], y: wp.array4d[float]):
    i, j, k, m = wp.tid()
    y[i, j, k, m] = x[i][j][k][m] * 2.0


@wp.kernel
def outer_product(a: wp.array[float], b: wp.array[float], y: wp.array2d[float]):
    i, j = wp.tid()
    if i >= y.shape[0] or j >= y.shape[1]:
        return
    y[i, j] = a[i] * b[j]


@wp.kernel
def matmul(a: wp.array2d[float], b: wp.array2d[float], c: wp.array2d[float]):
    i, j = wp.tid()
    s = float(0.0)
    for k in range(a.shape[1]):
        s += a[i, k] * b[k, j]
    c[i, j] = s


@wp.kernel
def gather(x: wp.array[float], idx: wp.array[int], out: wp.array[float]):
    i = wp.tid()
    out[i] = x[idx[i]]


@wp.kernel
def stencil(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    n = x.shape[0]
    left = x[wp.max(i - 1, 0)]
    right = x[wp.min(i + 1, n - 1)]
    y[i] = right - left + x[i]


@wp.kernel
def stencil_by_conditions(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    s = x[i]
    if i > 0:
        s += x[i - 1]
    if i + 1 < x.shape[0]:
        s += x[i + 1]
    y[i] = s


@wp.kernel
def unclamped(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i + 1] - x[i]


@wp.func
def row_sum(row: wp.array[float], scale: float = 2.0):
    s = float(0.0)
    for k in range(row.shape[0]):
        s += row[k] * scale
    return s


@wp.kernel
def row_sums(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = row_sum(scale=3.0, row=x[i])


@wp.kernel
def reduction(x: wp.array[float], loss: wp.array[float]):
    i = wp.tid()
    loss[0] += x[i] * x[i]


@wp.kernel
def single(x: wp.array[float], y: wp.array[float]):
    s = float(0.0)
    for k in range(x.shape[0]):
        s += x[k]
    y[0] = s


@wp.kernel
def renamed(x: wp.array[float], y: wp.array[float]):
    thread = wp.tid()
    k = int(thread)
    alias = y
    alias[k] = x[thread]


def effects_of(kernel: wp.Kernel) -> Effects:
    return analyse(kernel)


def array(kernel: wp.Kernel, name: str) -> ArrayEffects:
    return analyse(kernel).arrays[name]


def coordinates(kernel: wp.Kernel, name: str) -> list[int | None]:
    return [use.coordinate for use in array(kernel, name).axes]


@pytest.mark.parametrize(
    ("kernel", "rank"), [(elementwise, 1), (elementwise4, 4), (outer_product, 2), (matmul, 2), (single, 0)]
)
def test_the_rank_is_that_of_tid(kernel: wp.Kernel, rank: int) -> None:
    assert analyse(kernel).tid_rank == rank


@pytest.mark.parametrize(
    ("kernel", "name", "expected"),
    [
        (elementwise, "x", [0]),
        (elementwise4, "x", [0, 1, 2, 3]),
        (outer_product, "b", [1]),
        (matmul, "a", [0, None]),
        (matmul, "b", [None, 1]),
        (gather, "x", [None]),
        (gather, "idx", [0]),
        (stencil, "x", [0]),
        (row_sums, "x", [0, None]),
        (reduction, "loss", [None]),
        (renamed, "y", [0]),
        (renamed, "x", [0]),
    ],
)
def test_coordinates_index_axes(kernel: wp.Kernel, name: str, expected: list[int | None]) -> None:
    assert coordinates(kernel, name) == expected


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (elementwise, "y"),
        (elementwise4, "y"),
        (outer_product, "y"),
        (matmul, "c"),
        (gather, "out"),
        (stencil, "y"),
        (stencil_by_conditions, "y"),
        (row_sums, "y"),
        (renamed, "y"),
    ],
)
def test_outputs_are_filled_and_stored_once(kernel: wp.Kernel, name: str) -> None:
    found = array(kernel, name)
    assert found.filled, found.filled_why
    assert found.stored_once
    assert not found.reads_back
    assert not found.reads
    assert found.stores[0].file == __file__
    assert analyse(kernel).hazards == ()


def test_clamped_and_guarded_neighbours_fix_no_size_and_forbid_none() -> None:
    for kernel in (stencil, stencil_by_conditions):
        (use,) = array(kernel, "x").axes
        assert (use.coordinate, use.offset, use.clamped, use.uncovered) == (0, False, True, ())
    (use,) = array(unclamped, "x").axes
    assert use.offset


def test_indices_that_are_data_are_not_covered() -> None:
    (use,) = array(gather, "x").axes
    line = analyse(gather).line + 3
    assert use.uncovered == (f"indexed by values of 'idx' (line {line})",)


def test_loops_over_another_axis_are_known() -> None:
    assert array(matmul, "b").axes[0].loops == (("a", 1),)
    assert array(row_sums, "x").axes[1].loops == (("x", 1),)


def test_constants_are_listed() -> None:
    assert array(single, "y").axes[0].constants == (0,)
    assert array(reduction, "loss").axes[0].constants == (0,)


def test_an_atomic_target_is_never_filled_but_keeps_its_cotangent() -> None:
    loss = array(reduction, "loss")
    assert [name for name, _ in loss.atomics] == ["atomic_add"]
    assert not loss.filled
    assert loss.stored_once
    assert not loss.reads_back


# ---------------------------------------------------------------------------------------------------------------------
# Filled or not


@wp.kernel
def guarded_by_argument(x: wp.array[float], y: wp.array[float], n: int):
    i = wp.tid()
    if i >= n:
        return
    y[i] = x[i]


@wp.kernel
def guarded_by_other(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    if i < x.shape[0]:
        y[i] = x[i]


@wp.kernel
def half_stored(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    if x[i] > 0.0:
        y[i] = x[i]


@wp.kernel
def both_stored(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    if x[i] > 0.0:
        y[i] = x[i]
    else:
        y[i] = -x[i]


@wp.kernel
def stored_before_return(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i]
    if x[i] > 0.0:
        return
    y[i] = 0.0


@wp.kernel
def returned_before_store(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    if x[i] > 0.0:
        return
    y[i] = 0.0


@wp.kernel
def transposed_branches(x: wp.array2d[float], y: wp.array2d[float]):
    i, j = wp.tid()
    if x[i, j] > 0.0:
        y[i, j] = 1.0
    else:
        y[j, i] = 2.0


@wp.kernel
def component_only(x: wp.array[float], y: wp.array[wp.vec3]):
    i = wp.tid()
    y[i][0] = x[i]


@wp.kernel
def one_coordinate_of_two(x: wp.array2d[float], y: wp.array[float]):
    i, j = wp.tid()
    y[i] = x[i, j]


@wp.kernel
def diagonal(x: wp.array[float], y: wp.array2d[float]):
    i = wp.tid()
    y[i, i] = x[i]


@wp.kernel
def rows_by_loop(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    for k in range(y.shape[1]):
        y[i, k] = x[i, k]


@wp.kernel
def rows_by_other_loop(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    for k in range(x.shape[1]):
        y[i, k] = x[i, k]


@wp.kernel
def rows_by_broken_loop(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    for k in range(y.shape[1]):
        if x[i, k] > 0.0:
            break
        y[i, k] = x[i, k]


@wp.kernel
def rows_by_skipping_loop(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    for k in range(y.shape[1]):
        if x[i, k] > 0.0:
            continue
        y[i, k] = 1.0


@wp.kernel
def repeated(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    for k in range(x.shape[1]):
        y[i] = x[i, k]


@wp.kernel
def shifted(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    i = i + 1
    y[i] = x[i]


@wp.kernel
def maybe_other(x: wp.array[float], y: wp.array[float], z: wp.array[float], flag: int):
    i = wp.tid()
    target = wp.where(flag > 0, y, z)
    target[i] = x[i]


@wp.kernel
def zeroed_then_added(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = 0.0
    wp.atomic_add(y, i, x[i])


@wp.kernel
def read_of_neighbour(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i]
    x[i] = y[wp.max(i - 1, 0)]


@wp.kernel
def through_view(x: wp.array2d[float], y: wp.array2d[float]):
    i, j = wp.tid()
    row = y[i]
    row[j] = x[i, j]


@wp.func
def clip(v: float):
    if v > 1.0:
        return 1.0
    return v


@wp.func
def store_positive(y: wp.array[float], i: int, v: float):
    if v < 0.0:
        return
    y[i] = v


@wp.kernel
def through_returning_function(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = clip(x[i])


@wp.kernel
def through_function_that_may_not_store(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    store_positive(y, i, x[i])


@wp.kernel
def while_strided(x: wp.array[float], y: wp.array[float], n: int):
    i = wp.tid()
    while i < n:
        y[i] = x[i]
        i += 128


@wp.kernel
def negative_constant(x: wp.array[float], y: wp.array[float]):
    y[0] = x[-1]
    y[-1] = x[0]


@pytest.mark.parametrize(
    ("kernel", "filled", "once"),
    [
        (guarded_by_argument, False, True),
        (guarded_by_other, False, True),
        (half_stored, False, True),
        (both_stored, True, True),
        (stored_before_return, True, False),
        (returned_before_store, False, True),
        (transposed_branches, False, False),
        (component_only, False, False),
        (one_coordinate_of_two, False, False),
        (diagonal, False, False),
        (rows_by_loop, True, True),
        (rows_by_other_loop, False, True),
        (rows_by_broken_loop, False, True),
        (rows_by_skipping_loop, False, True),
        (repeated, False, False),
        (shifted, False, False),
        (maybe_other, False, False),
        (zeroed_then_added, False, False),
        (read_of_neighbour, False, False),
        (through_view, True, False),
        (through_returning_function, True, True),
        (through_function_that_may_not_store, False, True),
        (while_strided, False, False),
        (negative_constant, False, False),
    ],
)
def test_filled_and_stored_once(kernel: wp.Kernel, filled: bool, once: bool) -> None:
    found = array(kernel, "y")
    assert (found.filled, found.stored_once) == (filled, once), found.filled_why


def test_what_filled_supposes() -> None:
    assert array(guarded_by_argument, "y").filled_if == (Premise(0, "n"),)
    assert array(guarded_by_other, "y").filled_if == (Premise(0, ("x", 0)),)
    assert array(rows_by_other_loop, "y").filled_if == (Premise(("y", 1), ("x", 1)),)
    assert array(half_stored, "y").filled_if == ()


def test_guards_dominate_all_accesses() -> None:
    assert [(g.coordinate, g.bound) for g in analyse(guarded_by_argument).guards] == [(0, "n")]
    assert [(g.coordinate, g.bound) for g in analyse(guarded_by_other).guards] == [(0, ("x", 0))]
    assert [(g.coordinate, g.bound) for g in analyse(outer_product).guards] == [(0, ("y", 0)), (1, ("y", 1))]
    assert analyse(half_stored).guards == ()
    assert isinstance(analyse(outer_product).guards[0], Guard)


@wp.kernel
def partly_guarded(x: wp.array[float], y: wp.array[float], z: wp.array[float], m: int):
    i = wp.tid()
    y[i] = x[i]
    if i < m:
        z[i] = x[i]


@wp.kernel
def nested_exit(x: wp.array[float], y: wp.array[float], flag: int):
    i = wp.tid()
    if flag > 0:
        if i >= 10:
            return
    y[i] = x[i]


def test_uses_under_conditions_on_coordinates_are_guarded() -> None:
    assert array(partly_guarded, "z").axes[0].guarded
    assert not array(partly_guarded, "y").axes[0].guarded
    assert not array(partly_guarded, "x").axes[0].guarded
    assert array(nested_exit, "y").axes[0].guarded
    assert not array(half_stored, "y").axes[0].guarded
    assert array(maybe_other, "y").axes[0].guarded


# ---------------------------------------------------------------------------------------------------------------------
# Read before it is written


@wp.kernel
def scaled_in_place(y: wp.array[float], s: wp.array[float]):
    i = wp.tid()
    y[i] = y[i] * s[i]


@wp.kernel
def multiplied_in_place(y: wp.array[float], s: wp.array[float]):
    i = wp.tid()
    y[i] *= s[i]


@wp.kernel
def read_after_write(y: wp.array[float], s: wp.array[float]):
    i = wp.tid()
    y[i] = s[i]
    y[i] = y[i] + 1.0


@wp.kernel
def accumulated_if_asked(y: wp.array[float], s: wp.array[float], flag: int):
    i = wp.tid()
    acc = float(0.0)
    if flag > 0:
        acc = y[i]
    y[i] = acc + s[i]


@wp.kernel
def maximum(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_max(y, 0, x[i])


def test_reads_before_write_only_where_they_are_sure() -> None:
    assert array(scaled_in_place, "y").reads_before_write is not None
    assert array(multiplied_in_place, "y").reads_before_write is not None
    assert array(read_after_write, "y").reads_before_write is None
    assert array(accumulated_if_asked, "y").reads_before_write is None
    assert array(read_of_neighbour, "y").reads_before_write is None
    assert array(elementwise, "y").reads_before_write is None


def test_what_the_adjoint_reads_back() -> None:
    assert array(read_after_write, "y").reads_back
    assert array(maximum, "y").reads_back
    assert not array(elementwise, "y").reads_back


# ---------------------------------------------------------------------------------------------------------------------
# Functions, structs, tiles, pointers


@wp.struct
class Inner:
    vel: wp.array[wp.vec3]


@wp.struct
class Body:
    pos: wp.array[wp.vec3]
    inner: Inner
    count: int


@wp.func
def advance(body: Body, i: int, dt: float):
    body.pos[i] = body.pos[i] + body.inner.vel[i] * dt


@wp.kernel
def step(body: Body, dt: float):
    i = wp.tid()
    if i >= body.count:
        return
    advance(body, i, dt)


@wp.struct
class Node:
    here: wp.array[float]


@wp.kernel
def local_struct(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    node = Node()
    node.here = y
    node.here[i] = x[i]


@wp.func
def square(v: float):
    return v * v


@wp.func
def apply(f: wp.Function, y: wp.array[float], i: int, v: float):
    y[i] = f(v)


@wp.kernel
def function_argument(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    apply(square, y, i, x[i])


@wp.func
def put(y: wp.array[float], i: int, v: float):
    y[i] = v


@wp.func
def put(y: wp.array2d[float], i: int, v: float):  # noqa: F811
    y[i, 0] = v


@wp.kernel
def overloaded(x: wp.array[float], y: wp.array[float], z: wp.array2d[float]):
    i = wp.tid()
    put(y, i, x[i])
    put(z, i, x[i])


@wp.func
def pick(a: wp.array[float], b: wp.array[float], which: int):
    if which == 0:
        return a
    return b


@wp.kernel
def returned_array(a: wp.array[float], b: wp.array[float], y: wp.array[float], which: int):
    i = wp.tid()
    y[i] = pick(a, b, which)[i]


@wp.func
def bump(v: wp.ref[float]):
    v = v + 1.0


@wp.kernel(enable_backward=False)
def by_reference(y: wp.array[float]):
    i = wp.tid()
    bump(y[i])


@wp.func_native("y[i] = x[i];")
def native_copy(x: wp.array[float], y: wp.array[float], i: int): ...


@wp.kernel(enable_backward=False)
def native(x: wp.array[float], y: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    native_copy(x, y, i)
    z[i] = 1.0


@wp.func
def custom(x: wp.array[float], i: int):
    return x[i] * x[i]


@wp.func_grad(custom)
def adj_custom(x: wp.array[float], i: int, adj_ret: float):
    wp.adjoint[x][i] += 2.0 * x[i] * adj_ret


@wp.kernel
def with_custom_gradient(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = custom(x, i) * w[i]


@wp.kernel
def tiled(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    t = wp.tile_load(x, shape=4, offset=i * 4)
    wp.tile_store(y, t * 2.0, offset=i * 4)


@wp.kernel
def sliced(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    part = y[2:6]
    part[i] = x[i]


@wp.kernel(enable_backward=False)
def pointed(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    other = wp.array(ptr=y.ptr, shape=(2,), dtype=float)
    other[i] = x[i]


SCALES = (1.0, 2.0, 3.0)
WIDTH = 3
NEGATE = wp.constant(True)


@wp.kernel
def static_loop(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    s = float(0.0)
    for k in range(wp.static(WIDTH)):
        s += x[i, k] * wp.static(SCALES[k])
    if wp.static(WIDTH > 5):
        y[i + 1] = s
    y[i] = s


def make_kernel(operation: Any) -> wp.Kernel:
    @wp.kernel(module="unique")
    def made(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = operation(x[i])

    return made


from_closure = make_kernel(square)


def test_struct_fields_have_dotted_names() -> None:
    effects = analyse(step)
    assert set(effects.arrays) == {"body.pos", "body.inner.vel"}
    assert effects.arrays["body.pos"].stores
    assert effects.arrays["body.pos"].reads_before_write is not None
    assert not effects.arrays["body.inner.vel"].written
    assert [(g.coordinate, g.bound) for g in effects.guards] == [(0, "body.count")]


@pytest.mark.parametrize("kernel", [local_struct, function_argument, from_closure])
def test_arrays_are_followed_through_structs_and_functions(kernel: wp.Kernel) -> None:
    found = array(kernel, "y")
    assert found.filled, found.filled_why
    assert not found.read
    assert not array(kernel, "x").written


def test_overloads_are_chosen_by_rank() -> None:
    assert array(overloaded, "y").filled
    assert array(overloaded, "z").axes[1].constants == (0,)
    assert not array(overloaded, "z").filled


def test_arrays_returned_by_functions_are_either() -> None:
    assert array(returned_array, "a").read
    assert array(returned_array, "b").read
    assert array(returned_array, "y").filled


def test_references_to_elements_are_read_and_written() -> None:
    found = array(by_reference, "y")
    assert found.read
    assert found.written
    assert not found.stored_once


def test_native_snippets_hide_their_arrays_only() -> None:
    effects = analyse(native)
    assert effects.arrays["x"].escapes
    assert effects.arrays["y"].escapes
    assert effects.arrays["y"].reads_back
    assert not effects.arrays["z"].escapes
    assert effects.arrays["z"].filled
    assert not effects.opaque


def test_pointers_hide_everything() -> None:
    effects = analyse(pointed)
    assert effects.opaque
    assert effects.arrays["y"].escapes
    assert not effects.arrays["y"].filled


def test_custom_gradients_need_a_buffer() -> None:
    assert not array(with_custom_gradient, "x").null_adjoint_safe
    assert array(with_custom_gradient, "w").null_adjoint_safe


def test_tiles_are_seen_whole() -> None:
    effects = analyse(tiled)
    assert effects.tiled
    assert effects.arrays["x"].read
    assert effects.arrays["y"].view_stored
    assert not effects.arrays["y"].stored_once
    assert not effects.arrays["y"].filled
    assert effects.arrays["x"].axes[0].uncovered
    assert not analyse(elementwise).tiled


def test_slices_are_views_of_unknown_offset() -> None:
    found = array(sliced, "y")
    assert found.view_stored
    assert found.axes[0].coordinate is None
    assert not found.filled


def test_static_expressions_are_evaluated() -> None:
    found = array(static_loop, "y")
    assert found.filled
    assert len(found.stores) == 1
    assert array(static_loop, "x").axes[1].constants == (0, 1, 2)


# ---------------------------------------------------------------------------------------------------------------------
# Counters and shared arrays


@wp.kernel
def compacted(x: wp.array[float], counter: wp.array[int], z: wp.array[float]):
    i = wp.tid()
    slot = wp.atomic_add(counter, 0, 1)
    z[slot] = x[i]


@wp.func
def take(counter: wp.array[int], slots: wp.array[int], i: int):
    slot = wp.atomic_add(counter, 0, 1)
    slots[i] = slot
    return slot


@wp.func_replay(take)
def replay_take(counter: wp.array[int], slots: wp.array[int], i: int):
    return slots[i]


@wp.kernel
def compacted_with_replay(x: wp.array[float], counter: wp.array[int], slots: wp.array[int], z: wp.array[float]):
    i = wp.tid()
    slot = take(counter, slots, i)
    z[slot] = x[i]


@wp.kernel
def gauss_seidel(y: wp.array[float]):
    i = wp.tid()
    y[i] = 0.5 * (y[wp.max(i - 1, 0)] + y[i])


@wp.kernel
def private_rows(x: wp.array[float], tmp: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    row = tmp[i]
    for k in range(row.shape[0]):
        row[k] = x[i]
    y[i] = row[0]


def test_counters_are_hazards_without_a_replay() -> None:
    assert [h.kind for h in analyse(compacted).hazards] == ["counter"]
    assert analyse(compacted_with_replay).hazards == ()


def test_arrays_shared_by_threads_are_hazards() -> None:
    assert "shared" in [h.kind for h in analyse(gauss_seidel).hazards]
    assert analyse(private_rows).hazards == ()
    assert analyse(scaled_in_place).hazards == ()


# ---------------------------------------------------------------------------------------------------------------------
# Against runs, and against Warp's own flags

RUN_1D = [
    elementwise,
    stencil,
    stencil_by_conditions,
    guarded_by_other,
    half_stored,
    both_stored,
    stored_before_return,
    returned_before_store,
    through_returning_function,
    through_function_that_may_not_store,
    local_struct,
    function_argument,
    renamed,
]
RUN_2D = [rows_by_loop, rows_by_other_loop, rows_by_broken_loop, rows_by_skipping_loop, through_view]


@pytest.mark.parametrize("kernel", [*RUN_1D, *RUN_2D])
def test_what_is_filled_leaves_no_poison(kernel: wp.Kernel) -> None:
    shape = (5,) if kernel in RUN_1D else (5, 3)
    values = np.linspace(-1.0, 1.0, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    x = wp.array(values, dtype=float, device="cpu")
    y = wp.array(np.full(shape, np.nan, dtype=np.float32), dtype=float, device="cpu")
    effects = analyse(kernel)
    wp.launch(kernel, dim=shape[: effects.tid_rank], inputs=[x, y], device="cpu")
    if effects.arrays["y"].filled:
        assert not np.isnan(y.numpy()).any()
    assert effects.arrays["y"].written
    assert not effects.arrays["x"].written
    np.testing.assert_array_equal(x.numpy(), values)


def test_the_analysis_neither_initialises_nor_builds() -> None:
    script = (
        "import warp as wp\n"
        "import warp.optim\n"
        "import warp._src.context as context\n"
        "from warpops.effects import analyse\n"
        "kernels = [k for m in context.user_modules.values() for k in m.kernels.values()]\n"
        "assert kernels\n"
        "for kernel in kernels:\n"
        "    analyse(kernel)\n"
        "assert context.runtime is None\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=HERE.parent)


def test_kernels_of_warp_itself() -> None:
    """A sample of the installed package's kernels; ``benchmarks/inference.py`` takes all of them."""
    import warp.optim
    import warp.sparse  # noqa: F401

    modules = [m for name, m in wp._src.context.user_modules.items() if name.startswith("warp.")]
    kernels = [kernel for module in modules for kernel in module.kernels.values()]
    assert len(kernels) > 10
    for kernel in kernels:
        effects = analyse(kernel)
        assert effects.tid_rank is not None, kernel.key
        writes = any(found.written or found.escapes for found in effects.arrays.values())
        assert writes or kernel.key.startswith("copy_dense_volume"), kernel.key
