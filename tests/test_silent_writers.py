"""Functions and builtins that overwrite what they are given: right, or warned of, and the caller's arrays stay."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from warpops import GradientWarning, warp_op

D = wp.float64


@wp.func
def squared_and_moved(a: wp.array[D], i: int, by: D):
    a[i] = a[i] * a[i] + by
    return a[i], by


@wp.kernel
def two_results(x: wp.array[D], z: wp.array[D], y: wp.array[D]):
    i = wp.tid()
    moved, by = squared_and_moved(z, i, x[i])
    y[i] = moved * by


@wp.kernel
def set_again(x: wp.array[D], y: wp.array[D]):
    i = wp.tid()
    turned = wp.transformation(wp.vector(x[i], x[i], x[i]), wp.quaternion(D(0.0), D(0.0), x[i], D(1.0)), dtype=D)
    wp.transform_set_translation(turned, wp.vector(x[i] * x[i], x[i], D(2.0) * x[i]))
    place = wp.transform_get_translation(turned)
    y[i] = place[0] * place[1]


def test_a_writer_of_two_results_is_warned_of_and_leaves_the_callers_array():
    with pytest.warns(GradientWarning, match="'squared_and_moved' stores to an array and returns several values"):
        op = warp_op(two_results, "x[n], z[n] -> z[n], y[n]")
    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    z = torch.tensor([0.5, 1.5], dtype=torch.float64, requires_grad=True)
    before = z.detach().clone()
    left, y = op(x, z)
    assert torch.equal(left, before * before + x.detach())
    (left.sum() + y.sum()).backward()
    assert torch.equal(z.detach(), before)


def test_a_transform_whose_part_is_set_again_is_warned_of():
    with pytest.warns(GradientWarning, match="transform_set_translation gives what it overwrites a gradient"):
        warp_op(set_again)
