"""Loops whose number of turns they find themselves: gradients along the path taken, by finite differences."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from loop_kernels import D, check, ints, uniform
from warpops import warp_op


@wp.kernel
def converged(x: wp.array[D], y: wp.array[D]):
    i = wp.tid()
    r = x[i]
    turns = int(0)
    while wp.abs(r * r - x[i]) > D(0.01) and turns < 20:
        r = D(0.5) * (r + x[i] / r)
        turns += 1
    y[i] = r * D(turns)


@wp.kernel
def broken_twice(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    a = D(1.0)
    for k in range(x.shape[1]):
        a = a * x[i, k] + D(0.4)
        if a > D(1.6):
            break
        b = a * a
        if b < D(0.3):
            a = b
            break
        a = wp.sin(b) + a
    y[i] = a * a


@wp.kernel
def skipped(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    a = D(0.7)
    for k in range(x.shape[1]):
        if k % 2 == 1:
            if x[i, k] < D(0.8):
                a = a * D(0.5) + x[i, k] * a
                continue
            a = a + x[i, k]
        else:
            if x[i, k] > D(1.0):
                continue
        a = a * a * x[i, k] + D(0.2)
    y[i] = wp.exp(a)


@wp.kernel
def nested_breaks(x: wp.array2d[D], y: wp.array[D], z: wp.array[D]):
    i = wp.tid()
    total = D(0.1)
    a = D(1.0)
    for k in range(x.shape[1]):
        for j in range(k + 1):
            a = a * x[i, j] + total
            if a > D(1.5):
                a = a * D(0.4)
                break
        total += a * a
        if total > D(6.0):
            break
        a = a * total
    y[i] = total * a
    z[i] = a


@wp.kernel
def nested_whiles(x: wp.array[D], y: wp.array[D]):
    i = wp.tid()
    v = x[i]
    s = D(0.0)
    while v < D(3.0):
        w = v
        while w > D(0.4):
            w = w * D(0.6)
            s = s * w + v * w
        v = v * D(1.5) + w
    y[i] = s * v


@wp.kernel
def three_deep(x: wp.array2d[D], n: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    p = D(1.0)
    for a in range(n[i]):
        q = p
        for b in range(a + 1):
            r = q * x[i, b]
            for c in range(b + 1):
                r = wp.sin(r + x[i, c]) + p
            q = wp.sin(q * r)
        p = wp.cos(q) + D(0.5) * p * q
    y[i] = p * p


@wp.kernel
def gone(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    a = D(1.0)
    for k in range(x.shape[1]):
        a = a * x[i, k] + a * a * D(0.5)
        if a > D(1.2):
            y[i] = a * x[i, k]
            return
    for k in range(x.shape[1]):
        a = a * x[i, k]
        if a < D(0.1):
            y[i] = a * a
            return
    y[i] = wp.exp(a)


@wp.func
def first_over(x: wp.array2d[D], i: int, level: D):
    a = D(0.8)
    for k in range(x.shape[1]):
        for j in range(k + 1):
            a = a * x[i, j] + D(0.3)
            if a > level:
                return a * x[i, k]
        if a < D(0.5):
            return a
        a = a * D(1.1)
    return a * a


@wp.kernel
def returned(x: wp.array2d[D], level: wp.array[D], y: wp.array[D]):
    i = wp.tid()
    r = first_over(x, i, level[i])
    y[i] = r * r + level[i]


@wp.kernel
def searched(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    who = int(0)
    for k in range(x.shape[1]):
        if x[i, k] > D(1.0):
            who = k
            break
    s = D(0.0)
    left = x.shape[1]
    while left > who:
        left = left - 1
        s = s * x[i, left] + x[i, who]
    y[i] = s * x[i, who]


@wp.kernel
def shaken(seed: int, x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    state = wp.rand_init(seed, i)
    a = x[i, 0]
    for k in range(x.shape[1]):
        if wp.randf(state) < 0.3:
            continue
        a = a * x[i, k] * D(wp.randf(state)) + D(wp.randn(state)) * a * a
    y[i] = a * D(wp.randf(state)) * x[i, 0] * x[i, 0]


@wp.kernel
def until_heads(seed: int, x: wp.array[D], y: wp.array[D]):
    i = wp.tid()
    state = wp.rand_init(seed, i)
    a = x[i]
    while wp.randf(state) < 0.8:
        a = wp.sin(a) * D(1.5) + a * D(wp.randf(state))
    y[i] = a * a


X = uniform(4, 5, low=0.3, high=1.5, seed=3)
KERNELS = [broken_twice, skipped, nested_breaks, gone, searched]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.key)
def test_left_early(kernel):
    check(warp_op(kernel), X)


@pytest.mark.parametrize("kernel", [converged, nested_whiles], ids=lambda k: k.key)
def test_while(kernel):
    check(warp_op(kernel), torch.tensor([0.3, 1.0, 2.5, 9.0], dtype=torch.float64, requires_grad=True))


def test_three_deep():
    check(warp_op(three_deep), X, ints(0, 1, 2, 4))


def test_return_through_two_loops():
    check(warp_op(returned), X, torch.tensor([0.9, 1.4, 3.0, 50.0], dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("seed", [1, 7])
def test_random_states(seed):
    for kernel, signature, x in ((shaken, "x[n, m] -> y[n]", X), (until_heads, "x[n] -> y[n]", uniform(6, low=0.2))):
        op = warp_op(kernel, signature, dim="n", name=f"loops::{kernel.key}")
        check(lambda x, op=op: op(seed, x), x)


@wp.func
def escaped(v: D, n: int):
    r = v
    for k in range(n):
        r = r * r + v
        if r > D(1.0):
            return r, k
    return r, n


@wp.func
def handed_on(v: D, n: int):
    for k in range(n):
        if v > D(1.0):
            return escaped(v * v, n)
        v = v * v + D(0.4) + D(k) * D(0.01)
    return v, n


@warp_op("x[n] -> y[n], c[n]", dim="n")
@wp.kernel
def several_results(x: wp.array[D], y: wp.array[D], c: wp.array[int]):
    i = wp.tid()
    a, k = escaped(x[i], x.shape[0])
    b, j = handed_on(x[i], x.shape[0])
    y[i] = a * b
    c[i] = k + j


def test_a_function_of_several_results_is_left_from_a_loop_and_differentiated_twice():
    x = torch.tensor([0.1, 0.6, 0.8, 0.9], dtype=torch.float64, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        return several_results(x)[0]

    assert torch.autograd.gradcheck(function, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, (x,))
