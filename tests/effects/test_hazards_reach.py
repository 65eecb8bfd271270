"""A need of the adjoint counts only for what reaches a store."""

# Warp takes `int(0)` for a variable, and `0` for a constant; a kernel may compute what it doesn't use.
# ruff: noqa: F841
from __future__ import annotations

import pytest
import warp as wp

from measured import Measured

measured = Measured()


@measured()
def dead_product(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    p = wp.float64(1.0)
    for k in range(n):
        p *= x[k]
    y[i] = x[0]


@measured()
def dead_while(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(1.0)
    while s < x[0]:
        s = s * wp.float64(1.5)
    y[i] = x[1]


@measured("while")
def int_while(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    k = int(0)
    while k < n:
        k += 1
    y[i] = x[1] * wp.float64(k)


@measured()
def counter_loop(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    c = int(0)
    for k in range(n):
        if x[k] > wp.float64(1.3):
            c += 1
    y[i] = x[1] + wp.float64(c)


@measured()
def atomic_old_dead(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    t = wp.atomic_add(y, 3, x[0])
    wp.atomic_add(y, i, x[1])


@measured()
def frac_dead(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    t = wp.frac(x[0] * x[1])
    y[i] = x[0]


@wp.func_native("return x * x;")
def nat(x: wp.float64) -> wp.float64: ...


@measured()
def native_dead(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    t = nat(x[0])
    y[i] = x[0]


@measured()
def vec_fresh(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for k in range(n):
        v = wp.vec3d()
        v[0] = x[k]
        v[1] = x[0]
        s += wp.dot(v, v)
    y[i] = s


@measured("component")
def vec_fresh_after(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for k in range(n):
        v = wp.vec3d(x[0], x[1], x[k])
        s += wp.dot(v, v)
        v[0] = x[k]
        s += v[0]
    y[i] = s


@measured("component", "loop-product")
def vec_kept(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    v = wp.vec3d(x[0], x[1], x[2])
    for k in range(n):
        s += wp.dot(v, v)
        v[0] += x[k]
    y[i] = s


@measured()
def rand_once(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    state = wp.rand_init(7)
    a = wp.randf(state)
    y[i] = wp.float64(a) * x[0] * wp.float64(wp.randf(state))


@measured("loop-product")
def rand_loop(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    state = wp.rand_init(7)
    s = wp.float64(0.0)
    for k in range(n):
        s += wp.float64(wp.randf(state)) * x[k]
    y[i] = s


@pytest.mark.parametrize("name", sorted(measured))
def test_what_reaches_no_store_is_no_hazard(name: str) -> None:
    measured.check(name)
