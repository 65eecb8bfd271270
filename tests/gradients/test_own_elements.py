"""Elements that a thread stores to again after it has used what they held: gradients by finite differences."""

from __future__ import annotations

import pytest
import warp as wp

from loop_kernels import D, check, uniform
from warpops import GradientWarning, warp_op


@wp.kernel
def scaled(x: wp.array[D], w: wp.array[D], y: wp.array[D]):
    i = wp.tid()
    y[i] = x[i] * x[i]
    y[i] = y[i] * w[i] * y[i]
    y[i] += wp.sin(y[i]) * x[i]


@wp.kernel
def in_branches(x: wp.array[D], y: wp.array[wp.vec2d]):
    i = wp.tid()
    y[i] = wp.vec2d(x[i], x[i] * x[i])
    if x[i] > D(0.0):
        y[i] = y[i] * y[i][1]
    y[i] = y[i] * wp.dot(y[i], y[i])


@wp.kernel
def in_turns(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    y[i] = D(0.5)
    for k in range(x.shape[1]):
        y[i] = y[i] * x[i, k] + y[i] * y[i] * D(0.3)
        if y[i] > D(1.5):
            break


def test_stored_again():
    check(warp_op(scaled, "x[n], w[n] -> y[n]"), uniform(5), uniform(5, seed=1))


def test_stored_again_in_branches():
    check(warp_op(in_branches, "x[n] -> y[n]"), uniform(5))


def test_stored_in_each_turn():
    check(warp_op(in_turns, "x[n, m] -> y[n]"), uniform(4, 5, low=0.4, high=1.4))


def test_elements_by_two_indices():
    @wp.kernel
    def shifted(x: wp.array[D], y: wp.array2d[D]):
        i = wp.tid()
        y[i, 0] = x[i] * x[i]
        y[i, 1] = y[i, 0] * y[i, 0]
        y[i, 0] = y[i, 1] * x[i]

    with pytest.warns(GradientWarning, match="'y' is stored to again"):
        warp_op(shifted, "x[n] -> y[n, 2]", dim="n")
