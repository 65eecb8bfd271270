"""Run-time loops in loops that Warp unrolls: all copies of the inner loop share one memory, and each has its own states."""

from __future__ import annotations

import warnings

import pytest
import torch
import warp as wp

from warpops import warp_op

D = wp.float64


@wp.kernel
def products(x: wp.array2d[D], n: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    s = D(1.0)
    for k in range(3):
        for m in range(n[i]):
            s = s * wp.sin(x[i, m]) + x[i, k]
    y[i] = s


@wp.kernel
def left_early(x: wp.array2d[D], n: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    v = wp.vec2d(x[i, 0], D(0.5))
    for _ in range(2):
        c = int(0)
        while c < n[i]:
            v = wp.vec2d(v[1] * x[i, c], v[0] * v[0] + D(1.0))
            if v[0] > D(1.5):
                break
            c += 1
    y[i] = v[0] * v[1]


@wp.kernel
def between(x: wp.array2d[D], n: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    s = x[i, 0]
    for m in range(n[i]):
        s = s * x[i, m]
        for k in range(2):
            t = s
            for q in range(n[i] - k):
                t = t * x[i, q] + s
            s = s + t * x[i, k]
    y[i] = s


@pytest.mark.parametrize("kernel", [products, left_early, between])
def test_each_copy_of_a_loop_has_its_own_states(kernel):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op = warp_op(kernel, "x[b, q] -> y[b]", dim="b")
    torch.manual_seed(2)
    x, n = torch.rand(3, 3, dtype=torch.float64, requires_grad=True), torch.tensor([2, 3, 1], dtype=torch.int32)
    assert torch.autograd.gradcheck(lambda x: op(x, n), [x])
