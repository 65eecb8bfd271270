"""An axis that isn't long enough for what is kept inside it; outputs filled by one of two stores; blocks of tiled launches."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import close, compiled
from warpops import ArgumentError, warp_op

Array = wp.array[float]
Matrix = wp.array2d[float]


@wp.kernel
def the_nearest(x: Array, w: Array, y: Array):
    i = wp.tid()
    if x[i] > 0.0:
        y[i] = w[wp.min(i, w.shape[0] - 1)]


@wp.kernel
def if_there_are_any(x: Array, w: Array, y: Array):
    i = wp.tid()
    y[i] = x[i]
    if w.shape[0] > 0:
        y[i] = w[i % w.shape[0]]


@wp.kernel
def if_asked(x: Array, w: Array, wanted: bool, y: Array):
    i = wp.tid()
    y[i] = x[i]
    if wanted:
        y[i] = w[i % w.shape[0]]


@wp.kernel
def from_the_end(x: Array, w: Array, y: Array):
    i = wp.tid()
    y[i] = x[i] + w[w.shape[0] - 3]


@wp.kernel
def below_a_number(x: Array, w: Array, n: int, y: Array):
    i = wp.tid()
    s = x[i]
    if i < n:
        s += w[wp.max(i - 1, 0)]
    y[i] = s


@wp.kernel
def the_second(x: Array, y: Array):
    i = wp.tid()
    y[i] = x[1]


@wp.kernel
def mirrored(x: Array, y: Matrix):
    i, j = wp.tid()
    y[i, j] = x[i] * x[j]
    y[j, i] = x[i] * x[j]


@wp.kernel
def by_lanes(x: Array, y: Matrix):
    i, lane = wp.tid()
    y[i, lane] = x[i]


def test_an_empty_array_is_not_read_behind_a_condition_on_data():
    op = warp_op(the_nearest)
    close(op(torch.tensor([1.0, -1.0, 1.0]), torch.tensor([5.0, 6.0])), torch.tensor([5.0, 0.0, 6.0]))
    with pytest.raises(ArgumentError, match="argument 'w': its axis 0 has size 0.* takes at least 1"):
        op(torch.ones(2), torch.ones(0))
    assert op(torch.ones(0), torch.ones(0)).shape == (0,)


def test_an_empty_array_that_nobody_reads_is_welcome():
    close(warp_op(if_there_are_any)(torch.ones(2), torch.ones(0)), torch.ones(2))
    op = warp_op(if_asked)
    close(op(torch.ones(2), torch.ones(0), False), torch.ones(2))
    assert "w, axis 0: kept inside an axis that takes at least 1" in " ".join(op.explain().split())


def test_an_index_from_the_end_takes_half_of_what_it_goes_back():
    op = warp_op(from_the_end, "x[n], w[m] -> y[n]")
    close(op(torch.zeros(1), torch.tensor([1.0, 2.0, 3.0, 4.0])), torch.tensor([2.0]))
    close(op(torch.zeros(1), torch.tensor([1.0, 2.0])), torch.tensor([2.0]))  # w[-1]
    with pytest.raises(ArgumentError, match="'w': its axis 0 has size 1.* takes at least 2"):
        op(torch.zeros(1), torch.ones(1))


def test_a_bound_of_no_threads_demands_nothing():
    op = warp_op(below_a_number)
    close(op(torch.ones(3), torch.ones(0), 0), torch.ones(3))
    close(op(torch.ones(3), torch.ones(1), 2), torch.tensor([2.0, 2.0, 1.0]))
    with pytest.raises(ArgumentError, match="'w': its axis 0 has size 0"):
        op(torch.ones(3), torch.ones(0), 1)


def test_a_constant_index_and_a_launch_of_nothing():
    op = warp_op(the_second, "-> y[k]", sizes="k", dim="k")
    call = compiled(lambda x, k: op(x, k), dynamic=True)
    for run in (op, call):
        for n in (3, 2):
            close(run(torch.arange(float(n)), n), torch.ones(n))
        assert run(torch.ones(0), 0).shape == (0,)
        with pytest.raises(
            Exception, match="argument 'x': its axis 0 has size 1, and the kernel indexes it with the constant 1"
        ):
            run(torch.ones(1), 4)


@pytest.mark.filterwarnings("ignore::warpops.GradientWarning")
def test_an_output_is_filled_by_the_coordinates_that_store_it():
    op = warp_op(mirrored, "x[n] -> y[k, k]", sizes="k", dim="n, n")
    assert op._plan.slot("y").init == "zeros"
    x = torch.tensor([1.0, 2.0])
    close(op(x, 3)[:2, :2], torch.outer(x, x))
    assert float(op(x, 3)[2].abs().sum()) == 0.0
    assert warp_op(mirrored, "x[n] -> y[n, n]", dim="n, n")._plan.slot("y").init == "empty"


def test_an_axis_that_the_threads_of_a_block_index():
    op = warp_op(by_lanes, "x[n] -> y[n, k]", sizes="k", dim="n", tiled=True, block_dim=32)
    assert op._plan.slot("y").init == "zeros"
    y = op(torch.tensor([3.0, 4.0]), 2)
    close(y[:, 0], torch.tensor([3.0, 4.0]))  # the CPU's blocks have one thread
    with pytest.raises(ArgumentError, match="'y': its axis 1 has size 0"):
        op(torch.ones(2), 0)
    assert '.type == "cpu" else 32' in op.source
