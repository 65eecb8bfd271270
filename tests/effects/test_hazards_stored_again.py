"""What Warp's adjoint has right where a component, a field or an element is stored again, and that the rest is a hazard."""

# Warp takes `int(0)` for a variable, and `0` for a constant; a kernel may call `wp.tid()` for nothing.
# ruff: noqa: F841
from __future__ import annotations

import pytest
import warp as wp

from measured import Measured
from support import WARP

measured = Measured()


@measured("component")
def comp_over_dot(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    d = wp.dot(v, v)
    v[0] = x[3]
    y[i] = d + v[0]


@measured("component")
def comp_over_ext(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    d = v[0] * v[0]
    v[0] = x[3]
    y[i] = d + v[0] * v[0]


@measured("component")
def comp_over_ext_dot(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    v[0] = x[3] * x[3]
    y[i] = wp.dot(v, v)


@measured("component")
def comp_self(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    v[0] = v[0] * v[0]
    y[i] = wp.dot(v, v)


@measured("component")
def comp_aug(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    v[0] += x[3]
    v[1] *= x[3]
    y[i] = wp.dot(v, v)


@measured("component")
def comp_aug_after(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    d = wp.dot(v, v)
    v[0] += x[3]
    y[i] = d + v[0]


@measured()
def comp_fill(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d()
    for j in range(3):
        v[j] = x[j] * x[j]
    y[i] = wp.dot(v, v)


@measured("loop-product")
def comp_fill_dyn(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec4d()
    for j in range(n):
        v[j] = x[j] * x[j]
    y[i] = wp.dot(v, v)


@measured()
def comp_alias(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    w = v
    w[0] = x[3]
    y[i] = v[0] * v[0]


@measured("component")
def comp_linear(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    w = v + v
    v[0] = x[3]
    y[i] = w[0] + w[1] * v[0]


@measured("component")
def comp_mul(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    w = v * x[1]
    v[0] = x[3]
    y[i] = w[0] + v[0]


@measured("component")
def comp_mul_const(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    w = v * wp.float64(3.0)
    v[0] = x[3]
    y[i] = w[0] + v[0]


@measured("component")
def comp_last_turn(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d()
    for j in range(n):
        v[0] = x[j] * x[j]
    y[i] = v[0] + v[1]


@measured("component")
def comp_first_and_turn(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec4d()
    for j in range(n):
        v[0] = wp.float64(0.0)
        v[j] = x[j] * x[j]
    y[i] = v[0] + v[1]


@measured("component")
def comp_if(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    if n > 2:
        v[0] = x[3]
    y[i] = wp.dot(v, v)


@measured("local-array")
def local_arr(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    t = wp.zeros(shape=4, dtype=wp.float64)
    t[0] = x[0] * x[0]
    a = t[0] * t[0]
    t[0] = x[1]
    y[i] = a + t[0] * t[0]


@measured("restored")
def over_arr(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = x[0]
    a = y[i] * y[i]
    y[i] = x[1] * a


@measured("component")
def dyn_vec_comp_acc(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d()
    for j in range(n):
        v[0] += x[j] * x[j]
        v[1] = v[1] + x[j]
    y[i] = v[0] + v[1]


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


@measured("component")
def field_of_argument_scaled(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    p = Pair()
    p.a = x[i]
    y[i] = scale_field(p, x[i + 1]) + p.a


@measured("component")
def field_of_argument_added_to(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    p = Pair()
    p.a = x[i]
    y[i] = add_to_field(p, x[i + 1]) * p.a


@measured("component")
def field_of_argument_replaced(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    p = Pair()
    p.a = x[i]
    y[i] = replace_field(p, x[i + 1]) + p.a


@measured()
def field_of_copy_scaled(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    p = Pair()
    p.a = x[i]
    y[i] = scale_copy(p, x[i + 1]) + p.a


@measured("local-array")
def loc_arr_simple(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    t = wp.zeros(shape=4, dtype=wp.float64)
    t[0] = x[0] * x[0]
    y[i] = t[0] * x[1]


@measured()
def loc_arr_acc(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    t = wp.zeros(shape=4, dtype=wp.float64)
    for j in range(4):
        t[j] = x[j] * x[j]
    y[i] = t[0] + t[3]


@measured()
def struct_set(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = Pair()
    s.a = x[0] * x[0]
    y[i] = s.a * s.a


@measured()
def struct_over(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = Pair()
    s.a = x[0] * x[0]
    b = s.a * s.a
    s.a = x[1]
    y[i] = b + s.a * s.a


@measured()
def struct_aug(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = Pair()
    s.a = x[0] * x[0]
    s.a += x[1] * x[1]
    s.a *= x[2]
    y[i] = s.a * s.a


@measured("component")
def struct_vec_comp(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = Pair()
    s.v = wp.vec3d(x[0], x[1], x[2])
    s.v[0] = x[3]
    y[i] = wp.dot(s.v, s.v)


@measured("component")
def vec_attr_over(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    v.x = x[3]
    y[i] = wp.dot(v, v)


@measured()
def vec_attr_fill(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d()
    v.x = x[3] * x[0]
    v.y = x[1]
    y[i] = wp.dot(v, v)


@measured("component")
def vec_fill_twice(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d()
    v[0] = x[0] * x[0]
    v[0] = x[1]
    y[i] = wp.dot(v, v)


@measured()
def vec_plus_after_dot(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    d = v[0] * v[1]
    v[0] += x[3]
    y[i] = d + v[0]


@measured("shared", right=True)
def sum_store_then(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = s + x[j]
    y[i] = s
    y[i + 1] = y[i] * y[i]


@measured()
def atomic_in(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    for j in range(n):
        wp.atomic_add(y, j, x[j] * x[j])


@measured("restored")
def aug_mul(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = x[0]
    y[i] *= x[1]


@measured()
def aug_arr_loop(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    for j in range(n):
        y[i] += x[j] * x[j]


@measured("counter", "no-adjoint", "shared", undefined=True)
def atomic_used(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    old = wp.atomic_add(y, 0, x[0])
    y[1] = old * x[1]


@measured(*(("conditional-load",) if WARP < (1, 17) else ()))
def ifexp(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s += x[j] * x[j] if j > 1 else x[0]
    y[i] = s


@measured()
def over_local(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    a = x[0]
    if n > 2:
        a = a * x[1]
    a = a * a
    y[i] = a


@measured()
def mat_fill(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    m = wp.mat22d()
    m[0, 0] = x[0] * x[1]
    m[1, 1] = x[2]
    m[1, 0] = x[3]
    y[i] = wp.determinant(m) + m[1, 0] * x[0]


@measured()
def vec_dynidx(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec4d()
    for j in range(n):
        v[j] = x[j] * x[j]
    y[i] = v[0] + v[3]


@measured()
def vec_if_fill(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d()
    if n > 2:
        v[0] = x[0] * x[0]
    else:
        v[0] = x[1]
    y[i] = wp.dot(v, v)


@measured()
def vec_reb(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    d = wp.dot(v, v)
    v = v * wp.float64(2.0)
    v[0] += x[3]
    y[i] = d + v[0]


@measured()
def vec_copy_over(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec3d(x[0], x[1], x[2])
    w = v
    d = wp.dot(w, w)
    v[0] += x[3]
    y[i] = d + v[0]


@pytest.mark.parametrize("name", measured)
def test_a_wrong_adjoint_is_a_hazard_and_a_right_one_is_not(name):
    measured.check(name)
