"""Stores at indices that a loop steps from each thread's coordinate: threads meet, unless there are as many as the step."""

from __future__ import annotations

import warnings

import pytest
import torch
import warp as wp

from warpops import GradientWarning, warp_op

D = wp.float64


@wp.kernel
def by_two(x: wp.array[D], y: wp.array[D]):
    i = wp.tid()
    k = i
    while k < y.shape[0]:
        y[k] = x[i] * x[i]
        k += 2


@wp.kernel
def by_threads(x: wp.array[D], y: wp.array[D], n: int):
    i = wp.tid()
    for k in range(i, y.shape[0], n):
        y[k] = x[i] * x[i]


@wp.kernel
def counted_before(x: wp.array[D], y: wp.array[D], n: int):
    i = wp.tid()
    k = i + 1
    while k < y.shape[0] - n:
        k = k + n
        y[k] = x[i] * x[i]


@wp.kernel
def without_start(x: wp.array[D], y: wp.array[D]):
    i = wp.tid()
    k = int(0)
    while k < y.shape[0]:
        y[k] = x[i]
        k += 1


@wp.kernel
def rows(x: wp.array2d[D], y: wp.array2d[D], n: int):
    i, j = wp.tid()
    k = j
    while k < y.shape[1]:
        y[i, k] = x[i, j] * x[i, j]
        k += n


@pytest.mark.parametrize(
    ("kernel", "signature", "dim"),
    [
        (by_two, "x[n] -> y[m]", "n"),
        (by_two, "x[n] -> y[m]", 3),
        (by_threads, "x[k] -> y[m]", "k"),
        (counted_before, "x[k] -> y[m]", "k"),
        (without_start, "x[n] -> y[m]", "n"),
        (rows, "x[k, q] -> y[k, m]", "k, q"),
        (rows, "x[n, q] -> y[n, m]", "n, q"),
    ],
)
def test_several_threads_at_one_element_are_named(kernel, signature, dim):
    with pytest.warns(GradientWarning, match="several threads (may )?store to one element of 'y'"):
        warp_op(kernel, signature, dim=dim, sizes="m")


@pytest.mark.parametrize(
    ("kernel", "signature", "dim", "given"),
    [
        (by_two, "x[n] -> y[m]", 2, [(2,)]),
        (by_threads, "x[n] -> y[m]", "n", [(3,), 3]),
        (counted_before, "x[n] -> y[m]", "n", [(3,), 3]),
        (rows, "x[k, n] -> y[k, m]", "k, n", [(2, 3), 3]),
    ],
)
def test_as_many_threads_as_the_step_are_apart(kernel, signature, dim, given):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op = warp_op(kernel, signature, dim=dim, sizes="m")
    torch.manual_seed(1)
    x = torch.rand(given[0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: op(x, *given[1:], 8), [x])
