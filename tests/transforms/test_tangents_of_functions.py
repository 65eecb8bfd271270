"""Tangents of functions that change local vectors and matrices, in loops, and what calls them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import warp as wp

from derivatives import check_twice
from warpops import GradientError, warp_op

f64 = wp.float64


@wp.struct
class Made:
    value: f64
    at: wp.vec3d


@wp.func
def turned(m: wp.mat22d, a: wp.array2d[f64], i: int, n: int):
    r = m
    for k in range(n):
        r = r * wp.mat22d(wp.cos(a[i, k]), -a[i, k], a[i, k], f64(0.3))
        if r[0, 0] < f64(-0.2):
            return r * f64(2.0)
        r[0, 1] = r[1, 0] * a[i, k]
    return r


@wp.kernel
def matrices(a: wp.array2d[f64], y: wp.array[wp.mat22d]):
    i = wp.tid()
    m = turned(wp.identity(n=2, dtype=f64), a, i, a.shape[1])
    y[i] = turned(m, a, i, 2)


@wp.func
def kept(m: wp.mat22d, a: wp.array2d[f64], log: wp.array[f64], i: int, n: int):
    r = m
    for k in range(n):
        r = r * a[i, k]
        r[0, 1] = r[1, 0] * a[i, k] + f64(1.0)
        if r[0, 0] > f64(9.0):
            return r * f64(2.0)
    log[i] += r[0, 1]
    return r


@wp.kernel
def logged(a: wp.array2d[f64], log: wp.array[f64], y: wp.array[wp.mat22d]):
    i = wp.tid()
    m = kept(wp.identity(n=2, dtype=f64), a, log, i, a.shape[1])
    r = kept(m, a, log, i, 2)
    y[i] = r


@wp.func
def components(x: f64, n: int):
    v = wp.vec3d(x, x * x, f64(1.0))
    m = wp.identity(n=2, dtype=f64)
    s = Made()
    own = wp.zeros(shape=2, dtype=f64)
    for k in range(n):
        v[k % 3] = v[0] * x
        m[0, 1] += v[1]
        s.at[k % 3] = m[0, 1] * x
        s.value += x * x
        own[k % 2] = s.value * x
    return v[0] + m[0, 1] * s.at[1] + s.value + own[0] * own[1]


@wp.func
def applied(f: wp.Function, x: f64, n: int):
    return f(x, n) * x


@wp.kernel
def inside(x: wp.array[f64], n: int, y: wp.array[f64]):
    i = wp.tid()
    y[i] = wp.sin(components(x[i], n) - f64(0.5)) * applied(components, f64(0.3), n) + x[i] * components(x[i], 2)


@wp.func
def stored(x: f64, z: wp.array[f64], i: int):
    z[i] = x * x
    return x * f64(3.0)


@wp.func
def stored_by_another(x: f64, z: wp.array[f64], i: int):
    return stored(x, z, i) * x


@wp.kernel
def order(x: wp.array[f64], y: wp.array[f64], z: wp.array[f64]):
    i = wp.tid()
    y[i] = x[i] * stored_by_another(x[i], z, i)


@wp.func
def large(x: wp.array2d[f64], i: int):
    return x[i, 0] > f64(0.6)


@wp.func
def how_many(x: wp.array2d[f64], i: int):
    return int(x[i, 0] * f64(4.0))


@wp.kernel
def asked(x: wp.array2d[f64], y: wp.array[f64]):
    i = wp.tid()
    s = f64(1.0)
    if large(x, i) or x[i, 1] > f64(1.0):
        s = x[i, 1]
    for _ in range(how_many(x, i)):
        s = s * x[i, 0]
    y[i] = s * x[i, 2] if large(x, i) else s


@wp.func
def put(y: wp.array[f64], i: int, v: f64):
    y[i] = v * v


@wp.func
def handed_on(y: wp.array[f64], i: int, v: f64):
    put(y, i, v)


@wp.kernel
def by_two(x: wp.array[f64], y: wp.array[f64]):
    i = wp.tid()
    handed_on(y, i, x[i])


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.3


CASES: dict[str, tuple[Any, dict[str, Any], tuple[Any, ...]]] = {
    "matrices": (matrices, {}, (rand(3, 4),)),
    "logged": (logged, {"signature": "a[n, m] -> log[n], y[n]"}, (2 * rand(3, 4),)),
    "inside": (inside, {}, (rand(4), 5)),
    "by_two": (by_two, {}, (rand(4),)),
    "asked": (asked, {}, (rand(5, 3),)),
}


@pytest.mark.parametrize("name", CASES)
def test_tangents(name: str) -> None:
    kernel, options, args = CASES[name]
    check_twice(warp_op(kernel, name=f"tangent_functions::{name}", **options), *args)


def test_what_writes_inside_of_an_expression() -> None:
    """A function that another one calls writes: the order of the stores would change."""
    op = warp_op(order, name="tangent_functions::order")
    x = rand(4)
    with pytest.raises(GradientError, match="'stored_by_another' writes to arrays, and is called inside"):
        torch.func.jvp(op, (x,), (x,))
