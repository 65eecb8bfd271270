"""One name for the variables of several loops, unrolled ones and run-time ones."""

from __future__ import annotations

import warnings

import pytest
import torch
import warp as wp

from warpops import warp_op

D = wp.float64


@wp.kernel
def in_a_row(x: wp.array2d[D], n: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    s = D(1.0)
    for k in range(3):
        s += x[i, 0] * D(k)
    for k in range(n[i]):
        s = s * x[i, k] + D(k)
    for k in range(2):
        s = s * x[i, k]
    y[i] = s


@wp.kernel
def around(x: wp.array2d[D], n: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    s = D(1.0)
    for k in range(2):
        for m in range(n[i]):
            s = s * x[i, m] + D(k) * x[i, m]
    for k in range(n[i]):
        s = s * x[i, k]
    y[i] = s


@wp.kernel
def used_behind(x: wp.array2d[D], n: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    s = D(1.0)
    for k in range(n[i]):
        s = s * x[i, k]
        for m in range(2):
            s += x[i, m]
    for m in range(n[i]):
        s = s * x[i, m]
        k = m
    y[i] = s * D(k)


@wp.kernel
def a_float_in_the_end(x: wp.array2d[D], n: wp.array[int], y: wp.array[D]):
    """Warp casts the constant of the last loop, and takes the variable for a float from then on."""
    i = wp.tid()
    s = D(1.0)
    for k in range(n[i]):
        s = s * x[i, k] + wp.sin(s)
    for k in range(4, 0, -3):
        s = s * D(0.5) + x[i, 0] / D(k)
    y[i] = s


@wp.kernel
def counted_down_before(x: wp.array2d[D], n: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    s, k = D(1.0), int(n[i])
    while k > 0:
        k -= 1
        s = s * x[i, k] + wp.sin(s)
    for k in range(1, 3):
        s = s * D(0.5) + x[i, 0] / D(k)
    y[i] = s


@wp.kernel
def a_float_inside(x: wp.array2d[D], n: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    s = D(1.0)
    for m in range(n[i]):
        for k in range(3):
            s = s * x[i, k] + wp.sin(s) * x[i, m]
    for k in range(1, 3):
        s = s * D(0.5) + x[i, 0] / D(k)
    y[i] = s


@pytest.mark.parametrize(
    "kernel", [in_a_row, around, used_behind, a_float_in_the_end, counted_down_before, a_float_inside]
)
def test_a_loops_variable_may_be_anothers(kernel):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op = warp_op(kernel, "x[b, q] -> y[b]", dim="b")
    torch.manual_seed(1)
    x, n = torch.rand(3, 3, dtype=torch.float64, requires_grad=True), torch.tensor([2, 3, 1], dtype=torch.int32)
    assert torch.autograd.gradcheck(lambda x: op(x, n), [x], check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x: op(x, n), [x])
