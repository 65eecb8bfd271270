"""Threads that store to one element: named where it is certain or looks so, and not where each has its own."""

from __future__ import annotations

import warnings

import pytest
import torch
import warp as wp

from support import check_against
from warpops import GradientWarning, warp_op
from warpops.effects import analyse

Array = wp.array[float]
Matrix = wp.array2d[float]


@wp.kernel
def behind_a_guard(x: Matrix, y: Array):
    i, j = wp.tid()
    if i >= x.shape[0]:
        return
    y[i] = x[i, j] * x[i, j]


@wp.kernel
def behind_data(x: Matrix, w: Array, y: Array):
    i, j = wp.tid()
    if w[i] > 0.0:
        y[i] = x[i, j]


@wp.kernel
def through_a_loop(x: Matrix, y: Matrix):
    i, j = wp.tid()
    for k in range(y.shape[1]):
        y[i, k] = x[i, j] * x[i, j]


@wp.kernel
def up_to_the_own(x: Array, y: Array):
    i = wp.tid()
    for k in range(i):
        y[k] = x[i]


@wp.kernel
def into_a_row(x: Matrix, y: Matrix):
    i, j = wp.tid()
    row = y[i]
    row[0] = x[i, j]


@wp.kernel
def into_a_slice(x: Matrix, y: Array):
    i, j = wp.tid()
    rest = y[1:]
    rest[i] = x[i, j]


@wp.kernel
def the_next_too(x: Array, y: Array):
    i = wp.tid()
    y[i] = x[i]
    if i + 1 < y.shape[0]:
        y[i + 1] = x[i] * x[i]


@wp.kernel
def both_triangles(x: Matrix, y: Matrix):
    i, j = wp.tid()
    y[i, j] = x[i, j]
    y[j, i] = 2.0 * x[i, j]


@wp.kernel
def by_twos(x: Array, y: Array):
    i = wp.tid()
    y[i // 2] = x[i]


@wp.kernel
def around(x: Array, n: int, y: Array):
    i = wp.tid()
    y[i % n] = x[i]


@wp.kernel
def kept_inside(x: Array, y: Array):
    i = wp.tid()
    y[wp.min(i, y.shape[0] - 1)] = x[i]


@wp.kernel
def scattered(x: Array, ix: wp.array[int], y: Array):
    i = wp.tid()
    y[ix[i]] = x[i]


@wp.kernel
def where_data_is_large(x: Matrix, w: Array, y: Array):
    i, j = wp.tid()
    if w[j] <= 0.5:
        return
    y[i] = x[i, j] * x[i, j]


@wp.kernel
def by_twos_where_data_is_large(x: Array, y: Array):
    i = wp.tid()
    if x[i] > 0.5:
        y[i // 2] = x[i] * x[i]


RACES = {
    behind_a_guard: ("x[n, m] -> y[n]", {"dim": "n, m"}),
    behind_data: ("x[n, m], w[n] -> y[n]", {"dim": "n, m"}),
    through_a_loop: ("x[n, m] -> y[n, 3]", {"dim": "n, m"}),
    up_to_the_own: ("x[n] -> y[n]", {"dim": "n"}),
    into_a_row: ("x[n, m] -> y[n, 2]", {"dim": "n, m"}),
    into_a_slice: ("x[n, m] -> y[n + 1]", {"dim": "n, m"}),
    the_next_too: ("x[n] -> y[n]", {"dim": "n"}),
    both_triangles: ("x[n, n] -> y[n, n]", {"dim": "n, n"}),
    by_twos: ("x[n] -> y[n]", {"dim": "n"}),
    around: ("x[q] -> y[q]", {"dim": "q"}),
    kept_inside: ("x[n] -> y[3]", {"dim": "n"}),
    scattered: ("x[n], ix[n] -> y[n]", {}),
    where_data_is_large: ("x[n, m], w[m] -> y[n]", {"dim": "n, m"}),
    by_twos_where_data_is_large: ("x[n] -> y[n]", {"dim": "n"}),
}


@pytest.mark.parametrize("kernel", RACES, ids=lambda kernel: kernel.key)
def test_a_race_is_named(kernel):
    signature, options = RACES[kernel]
    with pytest.warns(GradientWarning, match="several threads (may )?store to one element of 'y'"):
        op = warp_op(kernel, signature, **options)
    assert [hazard.arrays for hazard in op._plan.hazards if hazard.kind == "shared"] == [("y",)]


@wp.kernel
def by_one_of_each_row(x: Matrix, y: Array):
    i, j = wp.tid()
    if j == 0:
        y[i] = x[i, j] * x[i, j]


@wp.kernel
def by_the_last(x: Matrix, y: Array):
    i, j = wp.tid()
    if i < x.shape[0] and j == x.shape[1] - 1:
        y[i] = x[i, j] * x[i, j]


@wp.kernel
def own_column(x: Matrix, y: Matrix):
    i, j = wp.tid()
    row = y[i]
    row[j] = x[i, j] * x[i, j]


@wp.kernel
def upper_and_lower(x: Matrix, y: Matrix):
    i, j = wp.tid()
    if i <= j:
        y[i, j] = x[i, j]
        y[j, i] = 2.0 * x[i, j]


@wp.kernel
def every_second(x: Array, y: Array):
    i = wp.tid()
    if i % 2 == 0:
        y[i // 2] = x[i] * x[i]


@wp.kernel
def unravelled(x: Array, y: Matrix):
    i = wp.tid()
    y[i // 2, i % 2] = x[i] * x[i]


@wp.kernel
def turned(x: Array, y: Array):
    i = wp.tid()
    y[(i + 1) % y.shape[0]] = x[i] * x[i]


@wp.kernel
def in_strides(x: Array, stride: int, y: Array):
    i = wp.tid()
    for k in range(i, x.shape[0], stride):
        y[k] = x[k]


@wp.kernel
def first_and_rest(x: Array, y: Array):
    i = wp.tid()
    if i == 0:
        y[0] = x[0]
    y[i + 1] = x[i] * x[i]


@wp.kernel
def by_the_interval(x: Matrix, edges: Array, y: Array):
    i, j = wp.tid()
    if edges[j] <= x[i, 0] and x[i, 0] < edges[j + 1]:
        y[i] = x[i, j] * x[i, j]


@wp.kernel
def by_the_largest(x: Matrix, largest: Array, y: Array):
    i, j = wp.tid()
    if x[i, j] >= largest[i]:
        y[i] = x[i, j]


@wp.kernel
def one_step(x: Array, y: Array, z: Array):
    i = wp.tid()
    for k in range(i, x.shape[0], x.shape[0]):
        y[k] = x[k] * x[k]
    k = i
    while k < z.shape[0]:
        z[k] = x[k] * x[k]
        k += z.shape[0]


OWN = {
    by_one_of_each_row: ("x[n, m] -> y[n]", {"dim": "n, m"}, lambda x: x[:, 0] ** 2),
    by_the_last: ("x[n, m] -> y[n]", {"dim": "n, m"}, lambda x: x[:, -1] ** 2),
    own_column: ("x[n, m] -> y[n, m]", {"dim": "n, m"}, lambda x: x**2),
    upper_and_lower: ("x[n, n] -> y[n, n]", {"dim": "n, n"}, lambda x: x.triu() + 2 * x.triu(0).T - x.diag().diag()),
    every_second: ("x[n] -> y[(n + 1) // 2]", {"dim": "n"}, lambda x: x[::2] ** 2),
    unravelled: ("x[n] -> y[n // 2, 2]", {"dim": "n"}, lambda x: (x**2).view(-1, 2)),
    turned: ("x[n] -> y[n]", {"dim": "n"}, lambda x: (x**2).roll(1)),
    in_strides: ("x[n] -> y[n]", {"dim": "stride"}, None),
    by_the_interval: ("x[n, m], edges[m + 1] -> y[n]", {"dim": "n, m"}, None),
    by_the_largest: ("x[n, m], largest[n] -> y[n]", {"dim": "n, m"}, None),
    one_step: ("x[n] -> y[n], z[m]", {"dim": "q", "sizes": "m, q"}, None),
    first_and_rest: ("x[n] -> y[n + 1]", {"dim": "n"}, lambda x: torch.cat([x[:1], x**2])),
}


def test_more_threads_than_elements_are_told_of_at_the_launch(mode):
    op = warp_op(turned, "x[n] -> y[m]", sizes="m", name="store_races::turned")
    call = mode(op)
    x = torch.rand(4, requires_grad=True)
    for m in (4, 6):
        y = call(x, m)
        torch.autograd.grad(y.sum(), x)
    with pytest.warns(GradientWarning, match=r"store to one element of 'y'.* 4 threads .* 'y' has size 3"):
        torch.autograd.grad(call(x, 3).sum(), x)
    assert "several threads may store to one element of 'y'" in op.explain()


@pytest.mark.parametrize("kernel", OWN, ids=lambda kernel: kernel.key)
def test_threads_with_elements_of_their_own_are_not_warned_of(kernel):
    signature, options, reference = OWN[kernel]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op = warp_op(kernel, signature, **options)
    if reference is not None:
        shape = (4, 4) if "x[n, " in signature else (4,)
        check_against(op, reference, (torch.rand(shape),))


@wp.kernel
def where_it_counted(x: Array, z: Array, y: Array):
    i = wp.tid()
    count = int(0)
    for k in range(x.shape[0]):
        if x[k] > z[i]:
            count += 1
    y[count] = x[i] * x[i]


def test_a_count_under_a_condition_is_of_the_thread_that_counts():
    (hazard,) = analyse(where_it_counted).hazards
    assert hazard.kind == "loop-product"
