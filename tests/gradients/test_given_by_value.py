"""Functions get structs, vectors and random states by value: what they do to them, the caller doesn't see, nor its gradient."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from warpops import GradientWarning, warp_op


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


@wp.func
def weight(s: Pair, v: wp.vec2d, a: wp.float64):
    return s.a * a * a + s.v[1] * v[0] * a


@wp.func
def added(s: Pair, a: wp.float64, y: wp.array[wp.float64]):
    wp.atomic_add(y, 0, s.a * a * a)


@warp_op("x[n] -> y[1]")
@wp.kernel
def changed_after(x: wp.array[wp.float64], y: wp.array[wp.float64]):
    s = Pair()
    v = wp.vec2d(wp.float64(1.0), wp.float64(2.0))
    s.a = wp.float64(2.0)
    s.v = wp.vec2d(x[0], x[1])
    p = weight(s, v, x[0])
    s.a = wp.float64(3.0)
    v[0] = wp.float64(3.0)
    p = p * weight(s, v, x[1])
    s.v[1] = wp.float64(0.5)
    for k in range(x.shape[0]):
        p = p * weight(s, v, x[k])
        s.a = s.a + wp.float64(1.0)
        s.v = wp.vec2d(wp.float64(1.0), wp.float64(k))
    y[0] = p


@warp_op("x[n] -> y[1]", dim="n")
@wp.kernel
def changed_after_an_update(x: wp.array[wp.float64], y: wp.array[wp.float64]):
    i = wp.tid()
    s = Pair()
    s.a = wp.float64(2.0)
    added(s, x[i], y)
    s.a = wp.float64(5.0)
    added(s, x[i] * x[i], y)


@wp.func
def draw(st: wp.uint32, a: wp.float64):
    return wp.float64(wp.randf(st)) * a


@wp.func
def draw_twice(a: wp.float64, st: wp.uint32):
    p = draw(st, a)
    q = wp.float64(wp.randf(st))
    return p * q + draw(st, a) * a


@warp_op("x[n] -> y[n]")
@wp.kernel
def drawn_after(x: wp.array[wp.float64], y: wp.array[wp.float64]):
    i = wp.tid()
    st = wp.rand_init(7)
    p = draw(st, x[i])
    q = wp.float64(wp.randf(st))
    y[i] = p * q


@warp_op("x[n] -> y[n]", dim="n")
@wp.kernel
def drawn_in_turns(x: wp.array[wp.float64], y: wp.array[wp.float64]):
    i = wp.tid()
    st = wp.rand_init(7, i)
    p = wp.float64(1.0)
    for k in range(x.shape[0]):
        p = p * draw(st, x[i]) * wp.float64(wp.randf(st)) + draw_twice(x[k], st=st)
    y[i] = p * draw_twice(p, st)


@pytest.mark.parametrize(
    "op", [changed_after, changed_after_an_update, drawn_after, drawn_in_turns], ids=lambda op: op.name
)
def test_what_a_function_was_given_is_what_it_is_differentiated_at(op):
    x = torch.tensor([0.5, 0.7, 0.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(op, (x,))


def test_a_slice_that_goes_backwards_is_warned_of():
    @wp.kernel
    def backwards(x: wp.array[wp.float64], y: wp.array[wp.float64]):
        v = wp.vec3d(x[0], x[1], x[2])
        q = wp.dot(v, v)
        v[1::-1] = wp.vec2d(x[1], q)
        y[0] = v[0] * v[1] * v[1] + q

    with pytest.warns(GradientWarning, match=r"goes backwards .*test_given_by_value\.py"):
        warp_op("x[n] -> y[1]")(backwards)


@pytest.mark.parametrize(
    "op", [no_result, a_result, a_vector, a_vector_in_turns, a_matrix, a_slice], ids=lambda op: op.name
)
def test_a_function_changes_its_own_copy(op):
    x = torch.tensor([0.5, 0.7, 0.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(op, (x,))
