"""Functions get structs, vectors and random states by value: what they do to them, the caller doesn't see, nor its gradient."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from warpops import warp_op


@wp.struct
class Pair:
    a: wp.float64
    v: wp.vec2d


@wp.func
def steps(s: Pair, a: wp.float64):
    s.a = s.a * a + wp.sin(s.a)


@wp.func
def scaled(s: Pair, a: wp.float64):
    s.a = s.a * a
    s.v[0] = s.v[1] * a
    s.v[1] += a * a
    return s.a + a + s.v[0] * s.v[1]


@wp.func
def first_set(v: wp.vec2d, a: wp.float64):
    v[0] = a
    return a


@wp.func
def first_added(v: wp.vec2d, a: wp.float64):
    v[0] += a * a
    return v[0] * v[1]


@wp.func
def two_set(v: wp.vec3d, a: wp.float64):
    q = v[0] * v[1]
    v[0:2] = wp.vec2d(a, a * a)
    return v[0] * v[1] * v[2] + q


@wp.func
def diagonal_set(m: wp.mat22d, a: wp.float64):
    m[0] = wp.vec2d(a, a * a)
    m[1, 1] = m[0, 1] * a
    return wp.determinant(m)


@warp_op("x[n] -> y[1]")
@wp.kernel
def no_result(x: wp.array[wp.float64], y: wp.array[wp.float64]):
    s = Pair()
    s.a = wp.float64(1.0)
    for k in range(x.shape[0]):
        steps(s, x[k])
    y[0] = s.a * s.a


@warp_op("x[n] -> y[1]")
@wp.kernel
def a_result(x: wp.array[wp.float64], y: wp.array[wp.float64]):
    s = Pair()
    s.a = wp.float64(1.0)
    s.v = wp.vec2d(x[0], x[1])
    p = wp.float64(1.0)
    for k in range(x.shape[0]):
        q = scaled(s, x[k])
        p = p * q
    y[0] = p * s.a * s.v[0] * s.v[1]


@warp_op("x[n] -> y[1]")
@wp.kernel
def a_vector(x: wp.array[wp.float64], y: wp.array[wp.float64]):
    v = wp.vec2d(x[0], x[1])
    q = first_set(v, x[1])
    y[0] = v[0] * v[0] * q * first_added(v, x[2]) * v[0]


@warp_op("x[n] -> y[1]")
@wp.kernel
def a_vector_in_turns(x: wp.array[wp.float64], y: wp.array[wp.float64]):
    v = wp.vec2d(x[0], wp.float64(2.0))
    p = wp.float64(1.0)
    for k in range(x.shape[0]):
        p = p * first_set(v, x[k]) + first_added(v, x[k])
    y[0] = v[0] * v[1] * p


@warp_op("x[n] -> y[1]")
@wp.kernel
def a_matrix(x: wp.array[wp.float64], y: wp.array[wp.float64]):
    m = wp.mat22d(x[0], x[1], x[2], x[0] * x[1])
    p = diagonal_set(m, x[1])
    for k in range(x.shape[0]):
        p = p * wp.cos(p) + diagonal_set(m, x[k])
    y[0] = p * m[0, 0] * m[1, 1] + m[0, 1]


@warp_op("x[n] -> y[1]")
@wp.kernel
def a_slice(x: wp.array[wp.float64], y: wp.array[wp.float64]):
    v = wp.vec3d(x[0], x[1], x[2])
    p = two_set(v, x[1])
    for k in range(x.shape[0]):
        p = p * wp.cos(p) + two_set(v, x[k])
    y[0] = p * v[0] * v[1]


@pytest.mark.parametrize("op", [no_result, a_result, a_vector, a_vector_in_turns, a_matrix], ids=lambda op: op.name)
def test_a_function_changes_its_own_copy(op):
    x = torch.tensor([0.5, 0.7, 0.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(op, (x,))
