"""Which array axes the threads' coordinates index, read from kernels that need no declaration."""

from __future__ import annotations

import pytest
import warp as wp

from analysed import array, coordinates
from warpops.effects import analyse


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
        assert (use.coordinate, use.offset, use.uncovered) == (0, False, ())
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
