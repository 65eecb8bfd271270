"""Loops in functions, functions that store, generic ones and overloads: gradients by finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import warp as wp

from loop_kernels import D, check, ints, uniform
from warpops import warp_op


@wp.func
def folded(x: wp.array2d[D], i: int, start: D, turns: int):
    a = start
    for k in range(turns):
        a = wp.sin(a) * x[i, k] + a
    return a * a


@wp.func
def both(x: wp.array2d[D], i: int, turns: int):
    a = D(0.5)
    b = D(1.0)
    for k in range(turns):
        a = a * b + x[i, k]
        b = wp.cos(a) * b
    return a * b, b


@wp.func
def scale_at(a: wp.array[D], i: int, v: D):
    a[i] = a[i] * a[i] * v


@wp.func
def stored(x: wp.array2d[D], i: int, y: wp.array[D]):
    a = x[i, 0]
    for k in range(x.shape[1]):
        a = a * x[i, k] + D(0.3)
        if a > D(50.0):
            return a
    y[i] = a * a
    return a + x[i, 1]


@wp.func
def powered(x: Any, turns: int):
    p = x
    for _ in range(turns):
        p = p * x + p
    return p


@wp.func
def blended(x: D, turns: int):
    p = x
    for _ in range(turns):
        p = p * p * x + x
    return p


@wp.func
def blended(x: wp.vec2d, turns: int):  # noqa: F811
    p = x
    for _ in range(turns):
        p = p * wp.dot(p, x) + x
    return p


@wp.func
def searched(x: wp.array2d[D], i: int, level: D):
    for k in range(x.shape[1]):
        if x[i, k] > level:
            return k
    return 0


@wp.kernel
def twice(x: wp.array2d[D], turns: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    a = folded(x, i, x[i, 1], turns[i])
    y[i] = folded(x, i, a, turns[i] + 1) * a


@wp.kernel
def two_results(x: wp.array2d[D], y: wp.array[D], z: wp.array[D]):
    i = wp.tid()
    a, b = both(x, i, x.shape[1])
    y[i] = a * b
    z[i] = b


@wp.kernel
def in_place(z: wp.array[D], x: wp.array2d[D]):
    i = wp.tid()
    scale_at(z, i, folded(x, i, x[i, 0], 3))


@wp.kernel
def stored_inside(x: wp.array2d[D], y: wp.array[D], z: wp.array[D]):
    i = wp.tid()
    r = stored(x, i, y)
    z[i] = r * r


@wp.kernel
def stored_in_turns(x: wp.array2d[D], y: wp.array2d[D], z: wp.array[D]):
    i = wp.tid()
    a = D(1.0)
    for k in range(x.shape[1]):
        a = put(y, i, k, a * x[i, k]) + D(0.5) * a
    z[i] = a * a


@wp.func
def put(y: wp.array2d[D], i: int, k: int, v: D):
    y[i, k] = v * v
    return wp.sin(v)


@wp.kernel
def generic_function(x: wp.array[D], m: wp.array[wp.mat22d], y: wp.array[D], z: wp.array[wp.mat22d]):
    i = wp.tid()
    y[i] = powered(x[i], 3)
    z[i] = powered(m[i], 2)


@wp.kernel
def overloads(x: wp.array[D], v: wp.array[wp.vec2d], y: wp.array[D], z: wp.array[wp.vec2d]):
    i = wp.tid()
    y[i] = blended(x[i], 2)
    z[i] = blended(v[i], 3)


@wp.kernel
def index_found(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    k = searched(x, i, D(0.9))
    a = x[i, k] * x[i, k]
    for j in range(k):
        a = a * x[i, j] + x[i, k]
    y[i] = a


@wp.kernel
def called_in_turns(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    a = x[i, 0]
    for k in range(x.shape[1]):
        a = folded(x, i, a, k) * D(0.1) + a * x[i, k]
    y[i] = a


def fold_with(step):
    @wp.func
    def fold(x: wp.array2d[D], i: int):
        a = D(1.0)
        for k in range(x.shape[1]):
            a = step(a, x[i, k])
        return a

    return fold


@wp.func
def stepped(a: D, b: D):
    return a * b + wp.sin(a)


fold = fold_with(stepped)


@wp.kernel
def named_elsewhere(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    y[i] = fold(x, i)


@wp.kernel
def any_float(x: wp.array2d[Any], y: wp.array[Any]):
    i = wp.tid()
    a = x[i, 0]
    for k in range(x.shape[1]):
        a = a * x[i, k] + x[i, k]
    y[i] = a


X = uniform(3, 5, low=0.3, high=1.2)


def test_called_twice():
    check(warp_op(twice), X, ints(0, 2, 4))


@pytest.mark.parametrize("kernel", [two_results, index_found, called_in_turns], ids=lambda k: k.key)
def test_functions(kernel):
    check(warp_op(kernel), X)


def test_names_of_the_functions_own():
    """What a function's loop calls is looked up where the function was written, for its tangent as well."""
    op = warp_op(named_elsewhere)
    check(op, X)
    x = uniform(2, 3, low=0.3, high=1.2)
    assert torch.autograd.gradgradcheck(op, x)


def test_in_place_in_a_function():
    check(warp_op(in_place, "z[n], x[n, m] -> z[n]"), uniform(3, low=0.4, seed=1), X)


def test_function_that_stores_and_returns():
    check(warp_op(stored_inside), X)


def test_function_that_stores_in_a_loop():
    op = warp_op(stored_in_turns, "x[n, m] -> y[n, m], z[n]", dim="n")
    check(op, X)


def test_generic_function():
    check(warp_op(generic_function), uniform(2), uniform(2, 2, 2, seed=1))


def test_overloads():
    check(warp_op(overloads), uniform(2), uniform(2, 2, seed=1))


def test_generic_kernel():
    op = warp_op(any_float, "x[n, m] -> y[n]", dim="n")
    check(op, X)
    single = X.detach().float().requires_grad_()
    (got,) = torch.autograd.grad(op(single).sum(), single)
    (want,) = torch.autograd.grad(op(X).sum(), X)
    torch.testing.assert_close(got, want.float())
