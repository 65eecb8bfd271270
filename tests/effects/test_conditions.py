"""What a condition implies is no more than it says: threads that it lets through are counted, or listed."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import close
from warpops import ArgumentError, warp_op

Array = wp.array[float]


@wp.kernel
def up_to_and_with(a: Array, b: Array, last: int, y: Array):
    i = wp.tid()
    s = a[i]
    if i <= last:
        s += b[i]
    y[i] = s


@wp.kernel
def counted_backwards(a: Array, b: Array, n: int, y: Array):
    i = wp.tid()
    s = a[i]
    if n + 1 > i:
        s += b[i]
    y[i] = s


@wp.kernel
def between(a: Array, b: Array, n: int, y: Array):
    i = wp.tid()
    s = a[i]
    if 0 <= i < n:
        s += b[i]
    y[i] = s


@wp.kernel
def one_too_late(a: Array, y: Array):
    i = wp.tid()
    if i > y.shape[0]:
        return
    y[i] = a[i]


@wp.kernel
def outside_of_a_range(a: Array, low: int, high: int, y: Array):
    i = wp.tid()
    if i < low or i > high:
        y[i] = a[i]


@wp.kernel
def not_both(a: Array, low: int, high: int, y: Array):
    i = wp.tid()
    if not (i >= low and i <= high):
        y[i] = a[i]


@wp.kernel
def left_if_asked(a: Array, n: int, flag: int, y: Array):
    i = wp.tid()
    if i >= n and flag == 0:
        return
    y[i] = a[i]


@wp.kernel
def left_in_a_loop(a: Array, n: int, y: Array):
    i = wp.tid()
    for _ in range(2):
        if 0 < i < n:
            break
        y[i] = a[i]


@wp.kernel
def next_or_own(a: Array, b: Array, y: Array):
    i = wp.tid()
    y[i] = a[i] * b[i + 1 if i + 1 < b.shape[0] else i]


@wp.func
def before(i: int):
    if i > 0:
        return i - 1
    return i


@wp.kernel
def own_or_one_before(a: Array, b: Array, y: Array):
    i = wp.tid()
    y[i] = a[i] * b[before(i)]


@wp.kernel
def if_it_is_there(a: Array, b: Array, y: Array):
    i = wp.tid()
    s = a[i]
    if b.shape[0] > 2:
        s += b[2]
    for k in range(a.shape[0]):
        if k < b.shape[0]:
            s += b[k]
    y[i] = s


@wp.kernel
def both_lengths(a: Array, b: Array, y: Array):
    i = wp.tid()
    s = a[i]
    if i + 1 < a.shape[0] and i + 1 < b.shape[0]:
        s += b[i + 1]
    y[i] = s


def numbers(n):
    return torch.arange(1.0, n + 1.0)


def listed(op, name):
    return any(f"{name}, axis 0: indexed by" in line for line in op.explain().splitlines())


@pytest.mark.parametrize("kernel", [up_to_and_with, counted_backwards])
def test_a_bound_that_is_included_is_reached(kernel):
    op = warp_op(kernel)
    close(op(numbers(5), numbers(4), 3), numbers(5) + torch.tensor([1.0, 2.0, 3.0, 4.0, 0.0]))
    with pytest.raises(ArgumentError, match="argument 'b': its axis 0 has size 3"):
        op(numbers(5), numbers(3), 3)
    assert not listed(op, "b")


def test_a_bound_of_both_sides_is_exact():
    op = warp_op(between)
    close(op(numbers(3), numbers(2), 2), torch.tensor([2.0, 4.0, 3.0]))
    with pytest.raises(ArgumentError, match="argument 'b': its axis 0 has size 1"):
        op(numbers(3), numbers(1), 2)


def test_the_thread_at_the_length_is_outside():
    op = warp_op(one_too_late, "a[n] -> y[k]", sizes="k", dim="n")
    close(op(numbers(3), 3), numbers(3))
    with pytest.raises(ArgumentError, match="'y': its axis 0 has size 2"):
        op(numbers(3), 2)


@pytest.mark.filterwarnings("ignore::warpops.GradientWarning")
@pytest.mark.parametrize("kernel", [outside_of_a_range, not_both, left_if_asked, left_in_a_loop])
def test_what_one_of_two_conditions_lets_through_is_listed(kernel):
    op = warp_op(kernel, "a[q] -> y[k]", sizes="k", dim="q")
    assert listed(op, "y")
    assert op(numbers(4), *[1] * (len(op._plan.inputs) - 2), 4).shape == (4,)
    assert not listed(warp_op(kernel, "a[q] -> y[q]", dim="q"), "y")


def test_each_choice_of_a_conditional_index_is_kept_in_bounds():
    op = warp_op(next_or_own)
    close(op(numbers(2), numbers(3)), torch.tensor([1.0 * 2.0, 2.0 * 3.0]))
    with pytest.raises(ArgumentError, match="argument 'b': its axis 0 has size 2"):
        op(numbers(5), numbers(2))


def test_each_result_of_a_function_counts():
    close(warp_op(own_or_one_before)(numbers(3), numbers(2)), torch.tensor([1.0, 2.0, 6.0]))
    assert listed(warp_op(own_or_one_before), "b")
    assert not listed(warp_op(own_or_one_before, "a[n], b[n] -> y[n]"), "b")


def test_what_conditions_prove_is_demanded_of_nobody():
    op = warp_op(if_it_is_there)
    close(op(numbers(2), numbers(1)), torch.tensor([2.0, 3.0]))
    close(op(numbers(2), numbers(0)), numbers(2))
    close(warp_op(both_lengths)(numbers(4), numbers(2)), torch.tensor([3.0, 2.0, 3.0, 4.0]))
    assert not listed(op, "b")
    assert not listed(warp_op(both_lengths), "b")
