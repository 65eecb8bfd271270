"""What Warp's adjoint has right, measured against finite differences, and that each place it hasn't is a hazard.

A hazard missed is a silent wrong gradient; a hazard on a kernel whose gradient is right is a nuisance, and each one
that remains is listed. A new Warp that differs fails here first.
"""

# Warp takes `int(0)` for a variable, and `0` for a constant; a kernel may call `wp.tid()` for nothing.
# ruff: noqa: F841, E741
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import warp as wp

from support import WARP
from warpops.effects import analyse

POINTS = (np.array([1.1, 1.4, 0.9, 1.7]), np.array([1.6, 0.7, 1.9, 1.25]))
WEIGHTS = np.array([1.0, 0.7, 0.3, 0.2])
SIZE = 4

KERNELS: dict[str, wp.Kernel] = {}


def measured(function: Callable[..., None]) -> wp.Kernel:
    """Make a kernel of ``(x, y, n)`` that is launched with one thread."""
    kernel = wp.kernel(function)
    KERNELS[function.__name__] = kernel
    return kernel


@measured
def dyn_sum(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = s + x[j] * x[j]
    y[i] = s * s


@measured
def dyn_prod(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(1.0)
    for j in range(n):
        s = s * x[j]
    y[i] = s


@measured
def dyn_decay(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = s * wp.float64(0.5) + x[j]
    y[i] = s


@measured
def dyn_max(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(-10.0)
    for j in range(n):
        s = wp.max(s, x[j])
    y[i] = s


@measured
def dyn_ifmax(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(-10.0)
    for j in range(n):
        if x[j] > s:
            s = x[j]
    y[i] = s


@measured
def dyn_count(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    c = int(0)
    for j in range(n):
        s = s + x[c] * x[j]
        c = c + 1
    y[i] = s


@measured
def dyn_fcount(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    c = wp.float64(0.0)
    for j in range(n):
        s = s + c * x[j]
        c = c + wp.float64(1.0)
    y[i] = s


@measured
def dyn_prefix(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = s + x[j]
        y[j] = s


@measured
def dyn_prefix_sq(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = s + x[j]
        y[j] = s * s


@measured
def dyn_break(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        if j >= 2:
            break
        s = s + x[j] * x[j]
    y[i] = s


@measured
def dyn_break_data(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        if x[j] > wp.float64(1.3):
            break
        s = s + x[j] * x[j]
    y[i] = s


@measured
def dyn_break_end(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = s + x[j] * x[j]
        if j >= 1:
            break
    y[i] = s


@measured
def dyn_continue(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        if j == 1:
            continue
        s = s + x[j] * x[j]
    y[i] = s


@measured
def dyn_return(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    for j in range(n):
        if j == 2:
            y[i] = x[j] * x[j]
            return


@measured
def dyn_if_sum(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        if x[j] > wp.float64(1.2):
            s = s + x[j] * x[j]
    y[i] = s


@measured
def dyn_aug(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s += x[j] * x[j]
    y[i] = s


@measured
def dyn_nested(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        t = wp.float64(0.0)
        for l in range(n):
            t = t + x[l] * x[j]
        s = s + t * t
    y[i] = s


@measured
def dyn_reset(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    t = wp.float64(0.0)
    for j in range(n):
        t = x[j] * x[j]
        s = s + t * t
    y[i] = s + t


@measured
def dyn_static_prod_in(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        p = wp.float64(1.0)
        for l in range(3):
            p = p * x[l]
        s = s + p * x[j]
    y[i] = s


@measured
def static_prod(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(1.0)
    for j in range(4):
        s = s * x[j]
    y[i] = s


@measured
def static_break(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(4):
        if j == 2:
            break
        s = s + x[j] * x[j]
    y[i] = s


@measured
def long_const_prod(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(1.0)
    for j in range(20):
        s = s * x[j % 4]
    y[i] = s


@measured
def while_sum(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    j = int(0)
    while j < n:
        s = s + x[j] * x[j]
        j = j + 1
    y[i] = s


@measured
def while_lin(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    j = int(0)
    while j < n:
        s = s + x[j]
        j = j + 1
    y[i] = s


@measured
def while_only_index(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    j = int(0)
    while j < n - 1:
        j = j + 1
    y[i] = x[j] * x[j]


@measured
def while_cond_data(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = x[0]
    while s < wp.float64(10.0):
        s = s * wp.float64(2.0)
    y[i] = s


@measured
def comp_over_dot(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    d = wp.dot(v, v)
    v[0] = x[3]
    y[i] = d + v[0]


@measured
def comp_over_ext(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    d = v[0] * v[0]
    v[0] = x[3]
    y[i] = d + v[0] * v[0]


@measured
def comp_over_ext_dot(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    v[0] = x[3] * x[3]
    y[i] = wp.dot(v, v)


@measured
def comp_self(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    v[0] = v[0] * v[0]
    y[i] = wp.dot(v, v)


@measured
def comp_aug(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    v[0] += x[3]
    v[1] *= x[3]
    y[i] = wp.dot(v, v)


@measured
def comp_aug_after(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    d = wp.dot(v, v)
    v[0] += x[3]
    y[i] = d + v[0]


@measured
def comp_fill(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d()
    for j in range(3):
        v[j] = x[j] * x[j]
    y[i] = wp.dot(v, v)


@measured
def comp_fill_dyn(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec4d()
    for j in range(n):
        v[j] = x[j] * x[j]
    y[i] = wp.dot(v, v)


@measured
def comp_alias(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    w = v
    w[0] = x[3]
    y[i] = v[0] * v[0]


@measured
def comp_linear(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    w = v + v
    v[0] = x[3]
    y[i] = w[0] + w[1] * v[0]


@measured
def comp_mul(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    w = v * x[1]
    v[0] = x[3]
    y[i] = w[0] + v[0]


@measured
def comp_mul_const(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    w = v * wp.float64(3.0)
    v[0] = x[3]
    y[i] = w[0] + v[0]


@measured
def comp_if(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    if n > 2:
        v[0] = x[3]
    y[i] = wp.dot(v, v)


@measured
def local_arr(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    t = wp.zeros(shape=4, dtype=wp.float64)
    t[0] = x[0] * x[0]
    a = t[0] * t[0]
    t[0] = x[1]
    y[i] = a + t[0] * t[0]


@measured
def over_arr(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = x[0]
    a = y[i] * y[i]
    y[i] = x[1] * a


@measured
def where_carried(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = wp.where(x[j] > wp.float64(1.2), s + x[j], s)
    y[i] = s


@measured
def dyn_break_noncarried(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    for j in range(n):
        if j > 1:
            break
        y[j] = x[j] * x[j]


@measured
def dyn_vec_comp_acc(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d()
    for j in range(n):
        v[0] += x[j] * x[j]
        v[1] = v[1] + x[j]
    y[i] = v[0] + v[1]


@measured
def dyn_carried_div(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = s + x[j]
        s = s / x[0]
    y[i] = s


@measured
def dyn_swap(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    a = x[0]
    b = x[1]
    for j in range(n):
        t = a
        a = b + x[j]
        b = t
    y[i] = a + wp.float64(3.0) * b


@wp.struct
class Pair:
    a: wp.float64
    v: wp.vec3d


@wp.func
def scale_field(p: Pair, by: wp.float64):
    p.a = p.a * by
    return p.a


@wp.func
def add_to_field(p: Pair, by: wp.float64):
    p.a = p.a + by
    return p.a


@wp.func
def replace_field(p: Pair, by: wp.float64):
    p.a = by
    return p.a * by


@wp.func
def scale_copy(p: Pair, by: wp.float64):
    q = p
    q.a = q.a * by
    return q.a


@measured
def field_of_argument_scaled(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    p = Pair()
    p.a = x[i]
    y[i] = scale_field(p, x[i + 1]) + p.a


@measured
def field_of_argument_added_to(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    p = Pair()
    p.a = x[i]
    y[i] = add_to_field(p, x[i + 1]) * p.a


@measured
def field_of_argument_replaced(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    p = Pair()
    p.a = x[i]
    y[i] = replace_field(p, x[i + 1]) + p.a


@measured
def field_of_copy_scaled(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    p = Pair()
    p.a = x[i]
    y[i] = scale_copy(p, x[i + 1]) + p.a


@measured
def loc_arr_simple(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    t = wp.zeros(shape=4, dtype=wp.float64)
    t[0] = x[0] * x[0]
    y[i] = t[0] * x[1]


@measured
def loc_arr_acc(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    t = wp.zeros(shape=4, dtype=wp.float64)
    for j in range(4):
        t[j] = x[j] * x[j]
    y[i] = t[0] + t[3]


@measured
def struct_set(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = Pair()
    s.a = x[0] * x[0]
    y[i] = s.a * s.a


@measured
def struct_over(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = Pair()
    s.a = x[0] * x[0]
    b = s.a * s.a
    s.a = x[1]
    y[i] = b + s.a * s.a


@measured
def struct_aug(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = Pair()
    s.a = x[0] * x[0]
    s.a += x[1] * x[1]
    s.a *= x[2]
    y[i] = s.a * s.a


@measured
def struct_vec_comp(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = Pair()
    s.v = wp.vec3d(x[0], x[1], x[2])
    s.v[0] = x[3]
    y[i] = wp.dot(s.v, s.v)


@measured
def vec_attr_over(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    v.x = x[3]
    y[i] = wp.dot(v, v)


@measured
def vec_attr_fill(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d()
    v.x = x[3] * x[0]
    v.y = x[1]
    y[i] = wp.dot(v, v)


@measured
def vec_fill_twice(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d()
    v[0] = x[0] * x[0]
    v[0] = x[1]
    y[i] = wp.dot(v, v)


@measured
def vec_plus_after_dot(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    d = v[0] * v[1]
    v[0] += x[3]
    y[i] = d + v[0]


@measured
def argmax_for(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    best = wp.float64(-100.0)
    arg = int(0)
    for j in range(n):
        if x[j] > best:
            best = x[j]
            arg = j
    y[i] = x[arg] * x[arg]


@measured
def max_notlast(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(-10.0)
    for j in range(n):
        s = wp.max(s, -x[j])
    y[i] = s


@measured
def return_in_loop(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    for j in range(n):
        y[j] = x[j] * x[j]
        if j == 1:
            return


@measured
def lastval(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    t = wp.float64(0.0)
    for j in range(n):
        t = x[j] * x[j]
    y[i] = t


@measured
def lastval_sq(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    t = wp.float64(0.0)
    for j in range(n):
        t = x[j] * x[j]
    y[i] = t * t


@measured
def newvar_sq(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    for j in range(n):
        t = x[j] * x[j]
    y[i] = t * t


@measured
def sum_store_then(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = s + x[j]
    y[i] = s
    y[i + 1] = y[i] * y[i]


@measured
def cond_after(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = s + x[j]
    if s > wp.float64(2.0):
        y[i] = x[0] * x[0]
    else:
        y[i] = x[1]


@measured
def while_next_like(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        for l in range(j, n):
            s = s + x[l] * x[j]
    y[i] = s


@measured
def const_loop_20(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(20):
        s = s + x[j % 4] * x[j % 4]
    y[i] = s * s


@measured
def atomic_in(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    for j in range(n):
        wp.atomic_add(y, j, x[j] * x[j])


@measured
def aug_mul(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = x[0]
    y[i] *= x[1]


@measured
def aug_arr_loop(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    for j in range(n):
        y[i] += x[j] * x[j]


@measured
def atomic_used(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    old = wp.atomic_add(y, 0, x[0])
    y[1] = old * x[1]


@measured
def while_ret(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    j = int(0)
    while j < n:
        y[j] = x[j] * x[j]
        j += 1


@measured
def ifexp(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s += x[j] * x[j] if j > 1 else x[0]
    y[i] = s


@wp.func
def g(x: wp.array[wp.float64], n: int):
    s = wp.float64(0.0)
    for j in range(n):
        s += x[j] * x[j]
    return s


@measured
def func_sum_sq(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = g(x, n)
    y[i] = s * s


@wp.func
def g2(x: wp.array[wp.float64], n: int):
    for j in range(n):
        if x[j] > wp.float64(1.3):
            return x[j] * x[j]
    return wp.float64(0.0)


@measured
def func_ret(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = g2(x, n)


@measured
def dyn_func_nested(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    t = wp.float64(0.0)
    for j in range(n):
        s = g(x, n)
        t += s * s * x[j]
    y[i] = t


@measured
def early_ret(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    if x[0] > wp.float64(1.0):
        y[i] = x[0] * x[0]
        return
    y[i] = x[1]


@measured
def over_local(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    a = x[0]
    if n > 2:
        a = a * x[1]
    a = a * a
    y[i] = a


@measured
def mat_fill(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    m = wp.mat22d()
    m[0, 0] = x[0] * x[1]
    m[1, 1] = x[2]
    m[1, 0] = x[3]
    y[i] = wp.determinant(m) + m[1, 0] * x[0]


@measured
def vec_dynidx(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec4d()
    for j in range(n):
        v[j] = x[j] * x[j]
    y[i] = v[0] + v[3]


@measured
def vec_if_fill(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d()
    if n > 2:
        v[0] = x[0] * x[0]
    else:
        v[0] = x[1]
    y[i] = wp.dot(v, v)


@measured
def vec_reb(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    d = wp.dot(v, v)
    v = v * wp.float64(2.0)
    v[0] += x[3]
    y[i] = d + v[0]


@measured
def vec_copy_over(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    w = v
    d = wp.dot(w, w)
    v[0] += x[3]
    y[i] = d + v[0]


HAZARDS: dict[str, set[str]] = {
    "dyn_sum": {"loop-product"},
    "dyn_prod": {"loop-product"},
    "dyn_max": {"loop-product"},
    "dyn_ifmax": {"loop-product"},
    "dyn_count": {"loop-product", "index"},
    "dyn_fcount": {"loop-product"},
    "dyn_prefix_sq": {"loop-product"},
    "dyn_break": {"loop-exit"},
    "dyn_break_data": {"loop-exit"},
    "dyn_break_end": {"loop-exit"},
    "dyn_return": {"loop-exit"},
    "dyn_nested": {"loop-product"},
    "static_break": {"loop-exit"},
    "long_const_prod": {"loop-product"},
    "while_sum": {"while", "index"},
    "while_lin": {"while", "index"},
    "while_only_index": {"while"},
    "while_cond_data": {"while"},
    "comp_over_dot": {"component"},
    "comp_over_ext": {"component"},
    "comp_over_ext_dot": {"component"},
    "comp_self": {"component"},
    "field_of_argument_scaled": {"component"},
    "field_of_argument_added_to": {"component"},
    "field_of_argument_replaced": {"component"},
    "comp_aug": {"component"},
    "comp_aug_after": {"component"},
    "comp_fill_dyn": {"loop-product"},
    "comp_linear": {"component"},
    "comp_mul": {"component"},
    "comp_mul_const": {"component"},
    "comp_if": {"component"},
    "local_arr": {"local-array"},
    "over_arr": {"restored"},
    "dyn_break_noncarried": {"loop-exit"},
    "dyn_vec_comp_acc": {"component"},
    "dyn_carried_div": {"loop-product"},
    "loc_arr_simple": {"local-array"},
    "struct_vec_comp": {"component"},
    "vec_attr_over": {"component"},
    "vec_fill_twice": {"component"},
    "argmax_for": {"loop-product"},
    "max_notlast": {"loop-product"},
    "return_in_loop": {"loop-exit"},
    "lastval_sq": {"loop-product"},
    "newvar_sq": {"loop-product"},
    "sum_store_then": {"shared"},
    "cond_after": {"loop-product"},
    "const_loop_20": {"loop-product"},
    "aug_mul": {"restored"},
    "atomic_used": {"counter", "shared", "no-adjoint"},
    "while_ret": {"while", "index"},
    "func_ret": {"loop-exit"},
}
if WARP < (1, 17):
    HAZARDS["ifexp"] = {"conditional-load"}

RIGHT_BUT_WARNED = {"dyn_return", "while_cond_data", "sum_store_then"}
"""The adjoint happens to be right at these points, or nothing reads what it has wrong."""

UNDEFINED = {"atomic_used"}
"""The adjoint reads a variable that it never set."""


def value(kernel: wp.Kernel, point: np.ndarray) -> float:
    x = wp.array(point, dtype=wp.float64, device="cpu")
    y = wp.zeros(SIZE, dtype=wp.float64, device="cpu")
    wp.launch(kernel, dim=1, inputs=[x, y, SIZE], device="cpu")
    return float((y.numpy() * WEIGHTS).sum())


def finite_differences(kernel: wp.Kernel, point: np.ndarray) -> np.ndarray:
    step = 1e-6
    return np.array(
        [(value(kernel, point + step * e) - value(kernel, point - step * e)) / (2 * step) for e in np.eye(SIZE)]
    )


def adjoint(kernel: wp.Kernel, point: np.ndarray) -> np.ndarray:
    x = wp.array(point, dtype=wp.float64, device="cpu", requires_grad=True)
    y = wp.zeros(SIZE, dtype=wp.float64, device="cpu", requires_grad=True)
    tape = wp.Tape()
    with tape:
        wp.launch(kernel, dim=1, inputs=[x, y, SIZE], device="cpu")
    y.grad = wp.array(WEIGHTS, dtype=wp.float64, device="cpu")
    tape.backward()
    return x.grad.numpy()


def is_right(kernel: wp.Kernel) -> bool:
    return all(
        np.allclose(adjoint(kernel, point), finite_differences(kernel, point), rtol=1e-4, atol=1e-6) for point in POINTS
    )


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_a_wrong_adjoint_is_a_hazard_and_a_right_one_is_not(name: str) -> None:
    kernel = KERNELS[name]
    kinds = {hazard.kind for hazard in analyse(kernel).hazards}
    assert kinds == HAZARDS.get(name, set())
    if name not in UNDEFINED:
        assert is_right(kernel) == (not kinds or name in RIGHT_BUT_WARNED)


def test_a_hazard_names_the_place() -> None:
    (hazard,) = analyse(KERNELS["dyn_prod"]).hazards
    assert hazard.site.file == __file__
    assert hazard.site.code == "s = s * x[j]"
    assert "'s'" in hazard.message
