"""Stores and atomic updates of one array: apart where each thread touches its own elements, else a race that is named."""

from __future__ import annotations

import warnings

import pytest
import torch
import warp as wp

from warpops import GradientWarning, warp_op

D = wp.float64


@wp.kernel
def next_one(x: wp.array[D], y: wp.array[D]):
    i = wp.tid()
    y[i] = wp.cos(x[i])
    if i + 1 < y.shape[0]:
        y[i + 1] += x[i] * x[i]


@wp.kernel
def total_first(x: wp.array[D], y: wp.array[D]):
    i = wp.tid()
    if i == 0:
        y[1] = D(3.0)
    wp.atomic_add(y, 0, x[i])


@pytest.mark.parametrize("kernel", [next_one, total_first])
def test_a_store_that_meets_another_threads_update_is_named(kernel):
    with pytest.warns(GradientWarning, match="'y' is stored to here, and updated at .*, maybe by another thread"):
        warp_op(kernel, "x[n] -> y[n]", dim="n", init="zeros")


@wp.kernel
def own_row(x: wp.array2d[D], ix: wp.array[int], y: wp.array2d[D]):
    i = wp.tid()
    for k in range(y.shape[1]):
        y[i, k] = D(1.0)
    for k in range(x.shape[1]):
        y[i, ix[k]] += x[i, k] * x[i, k]


def test_updates_of_the_threads_own_row_are_right():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op = warp_op(own_row, "x[n, m], ix[m] -> y[n, q]", sizes="q", dim="n", init="zeros")
    torch.manual_seed(1)
    x, ix = torch.rand(2, 4, dtype=torch.float64, requires_grad=True), torch.tensor([0, 2, 2, 1], dtype=torch.int32)
    assert torch.autograd.gradcheck(lambda x: op(x, ix, 3), [x])
