"""No launch indexes an array by ``wp.tid()`` outside its size: neighbours, conditions, clamps, empty axes."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import check_against, close
from warpops import ArgumentError, warp_op


@wp.kernel
def ahead(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i + 1] - x[i]


@wp.kernel
def behind(a: wp.array[float], b: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = a[i] + b[i - 2]


@wp.kernel
def guarded_by_another(a: wp.array[float], b: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    s = a[i]
    if i < a.shape[0]:
        s += b[i]
    y[i] = s


@wp.kernel
def guarded_by_a_number(a: wp.array[float], b: wp.array[float], m: int, y: wp.array[float]):
    i = wp.tid()
    s = a[i]
    if i < m:
        s += b[i]
    y[i] = s


@wp.kernel
def half_clamped(a: wp.array[float], b: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = a[i] + b[wp.max(i - 1, 0)]


@wp.kernel
def clamped(a: wp.array[float], b: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = a[i] + b[wp.clamp(i, 0, b.shape[0] - 1)]


@wp.kernel
def wrapped(a: wp.array[float], b: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = a[i] + b[i % b.shape[0]]


@wp.kernel
def last(a: wp.array[float], b: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = a[i] + b[b.shape[0] - 1]


@wp.kernel
def by_data(x: wp.array[float], h: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(h, wp.clamp(int(x[i]), 0, h.shape[0] - 1), 1.0)


@wp.kernel
def under_conditions(a: wp.array[float], b: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    s = a[i]
    if i > 0:
        s += b[i - 1]
    if i % 2 == 0:
        s += b[i + 3]
    y[i] = s


def ones(n):
    return torch.ones(n)


def refused(call, what):
    with pytest.raises(ArgumentError, match=what):
        call()


def test_a_neighbour_ahead(mode):
    op = mode(warp_op(ahead, "x[n] -> y[n - 1]"))
    check_against(op, lambda x: x[1:] - x[:-1], (torch.randn(6),))
    assert op(torch.randn(1)).shape == (0,)


def test_a_neighbour_ahead_of_the_last():
    op = warp_op(ahead, "x[n] -> y[n]")
    refused(
        lambda: op(ones(6)),
        "argument 'x': its axis 0 has size 6, and the launch has 6 threads on axis 0 of dim, which indexes it plus 1",
    )
    assert op(ones(0)).shape == (0,)


def test_a_neighbour_behind():
    op = warp_op(behind, "a[n], b[m] -> y[n]")
    close(op(ones(8), ones(6)), 2 * ones(8))
    refused(lambda: op(ones(8), ones(5)), "argument 'b': its axis 0 has size 5, .* 8 threads .* indexes it minus 2")
    refused(lambda: op(ones(1), ones(1)), "argument 'b': its axis 0 has size 1, .* it takes at least 2")


def test_a_condition_that_bounds_another_axis():
    op = warp_op(guarded_by_another)
    close(op(ones(3), ones(5)), 2 * ones(3))
    refused(lambda: op(ones(10), ones(3)), "argument 'b': its axis 0 has size 3, and the launch has 10 threads")


def test_a_condition_on_a_number():
    op = warp_op(guarded_by_a_number, "a[n], b -> y[n]")
    close(op(ones(4), ones(3), 3), torch.tensor([2.0, 2.0, 2.0, 1.0]))
    close(op(ones(2), ones(3), 100)[:2], 2 * ones(2))
    refused(lambda: op(ones(10), ones(5), 8), "argument 'b': its axis 0 has size 5, and the launch has 8 threads")


def test_a_clamp_on_one_side():
    op = warp_op(half_clamped, "a[n], b[m] -> y[n]")
    close(op(ones(8), ones(8)), 2 * ones(8))
    refused(lambda: op(ones(8), ones(3)), "argument 'b': its axis 0 has size 3, and the launch has 8 threads")


@pytest.mark.parametrize("kernel", [clamped, wrapped, last], ids=["clamp", "modulo", "last"])
def test_an_empty_axis_has_no_index(kernel, mode):
    op = mode(warp_op(kernel, "a[n], b[m] -> y[n]"))
    close(op(ones(8), ones(3)), 2 * ones(8))
    assert op(ones(0), ones(0)).shape == (0,)
    # Compiled code tells it inside Dynamo's own exception.
    with pytest.raises(
        Exception, match="argument 'b': its axis 0 has size 0, and the kernel indexes it where it takes at least 1"
    ):
        op(ones(8), ones(0))


def test_an_empty_output_has_no_index():
    op = warp_op(by_data, "x[n] -> h[bins]", sizes="bins")
    close(op(torch.tensor([0.5, 2.5, 9.0]), 3), torch.tensor([1.0, 0.0, 2.0]))
    assert op(ones(0), 0).shape == (0,)
    refused(lambda: op(ones(4), 0), "argument 'h': its axis 0 has size 0")


def test_what_cannot_be_told_is_listed():
    op = warp_op(under_conditions, "a[n], b[m] -> y[n]")
    text = " ".join(op.explain().split())
    assert "b, axis 0: indexed by coordinate 0 under a condition" in text
    assert "b, axis 0: indexed by coordinate 0 + 3 under a condition" in text


def test_what_a_size_keeps_in_bounds_is_not_listed():
    op = warp_op(under_conditions, "a[n], b[n] -> y[n]")
    assert "indexed by coordinate 0 under" not in " ".join(op.explain().split())
