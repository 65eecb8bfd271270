"""Which arrays a kernel surely fills, stores once, or reads before it wrote: where it holds, and where it must not be told."""

from __future__ import annotations

import pytest
import warp as wp

from analysed import array, bounds
from test_coordinates import elementwise, outer_product
from warpops.effects import Limit, Premise


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


def test_guards_bound_the_coordinates_of_all_accesses() -> None:
    assert bounds(guarded_by_argument, "x") == bounds(guarded_by_argument, "y") == [(0, (Limit("n"),))]
    assert bounds(guarded_by_other, "y") == [(0, (Limit(("x", 0)),))]
    assert bounds(outer_product, "a") == [(0, (Limit(("y", 0)),))]
    assert bounds(outer_product, "b") == [(1, (Limit(("y", 1)),))]
    assert bounds(half_stored, "y") == [(0, ())]


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


# --- read before it is written ----------------------------------------------------------------------------------------


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
