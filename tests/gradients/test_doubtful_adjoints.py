"""Gradients that can't be had raise, doubtful ones warn once at decoration, and what is no doubt doesn't."""

from __future__ import annotations

import warnings

import pytest
import torch
import warp as wp

from support import check_against, leaf
from warpops import GradientError, GradientWarning, warp_op


@wp.kernel
def compact(x: wp.array[float], count: wp.array[int], y: wp.array[float]):
    i = wp.tid()
    if x[i] > 0.0:
        k = wp.atomic_add(count, 0, 1)
        y[k] = x[i] * x[i]


@wp.kernel
def power_by_loop(x: wp.array[float], n: int, y: wp.array[float]):
    i = wp.tid()
    v = wp.float32(1.0)
    for _ in range(n):
        v = v * x[i]
    y[i] = v


compact_op = warp_op(compact, "x[n] -> count[1], y[n]", dim="n", init="zeros")


def test_slots_from_a_counter_have_no_gradient(mode):
    """Replayed, every thread would get the same slot."""
    x = torch.tensor([1.0, -1.0, 2.0])
    count, y = mode(compact_op)(x)
    assert count.tolist() == [2]
    assert sorted(y.tolist()) == [0.0, 1.0, 4.0]
    with pytest.raises(Exception, match="compact") as caught:
        mode(compact_op)(leaf(x))[1].sum().backward()
    if mode.__name__ == "eager":
        assert isinstance(caught.value, GradientError)
    assert "count" in str(caught.value)


def test_a_doubtful_adjoint_warns_once_at_decoration():
    with pytest.warns(GradientWarning, match="last_wins") as caught:
        op = warp_op(last_wins, "x[n] -> y[1]", dim="n")
    assert len(caught) == 1
    x = torch.tensor([2.0, 3.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert op(x).item() in (4.0, 9.0)
        op(leaf(x)).sum().backward()


def test_a_loop_is_no_doubt(mode):
    op = warp_op(power_by_loop, "x[m] -> y[m]", dim="m")
    check_against(mode(lambda x: op(x, 3)), lambda x: x**3, (torch.tensor([2.0, 3.0]),))


# --- stores by several threads ----------------------------------------------------------------------------------------


@wp.kernel
def last_wins(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[0] = x[i] * x[i]


@wp.kernel
def last_in_a_row(x: wp.array2d[float], y: wp.array[float]):
    i, j = wp.tid()
    y[i] = x[i, j] * x[i, j]


@wp.kernel
def first_alone(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    if i == 0:
        y[0] = x[i] * x[i]


@wp.kernel
def a_mark(x: wp.array[float], y: wp.array[float], mark: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i]
    mark[0] = 1.0


@pytest.mark.parametrize(
    ("kernel", "signature", "raced"),
    [
        (last_wins, "x[n] -> y[1]", True),
        (last_in_a_row, "x[n, m] -> y[n]", True),
        (first_alone, "x[n] -> y[1]", False),
        (a_mark, "x[n] -> y[n], mark[1]", False),
    ],
    ids=["one element", "one a row", "one thread", "no gradient"],
)
def test_stores_of_several_threads_to_one_element_are_warned_of(kernel, signature, raced):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warp_op(kernel, signature, dim="n, m" if "m" in signature.split("->")[0] else "n")
    told = [str(w.message) for w in caught if issubclass(w.category, GradientWarning)]
    assert bool(told) is raced
    assert not raced or "several threads store to one element of 'y'" in told[0]
