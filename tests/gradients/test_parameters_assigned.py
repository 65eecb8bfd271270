"""Functions that assign to parameters, or to parts of them: by value, so that the caller's stays, and its gradient too."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from loop_kernels import D, uniform
from warpops import warp_op


@wp.struct
class State:
    a: D
    v: wp.vec2d


@wp.func
def add_to(s: State, a: D):
    s.a = s.a * a
    s.v[1] = s.v[0] * a
    return s.a + a * s.v[1]


@wp.func
def part_of(v: wp.vec2d, a: D):
    v[0] = v[1] * a
    return v[0] * v[0]


@wp.func
def power(a: D, x: wp.array2d[D], i: int):
    for k in range(x.shape[1]):
        a = a * x[i, k] + wp.sin(a)
    return a


@wp.func
def pair(x: wp.array2d[D], i: int):
    v = wp.vec2d()
    v[0] = x[i, 0]
    v[1] = x[i, 1]
    return wp.dot(v, v)


@wp.kernel
def field(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    s = State()
    s.a = D(2.0)
    s.v = wp.vec2d(D(1.0), D(3.0))
    p = D(1.0)
    for k in range(x.shape[1]):
        q = add_to(s, x[i, k])
        p = p * q
    y[i] = p * s.a


@wp.kernel
def field_in_an_expression(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    s = State()
    s.a = D(2.0)
    s.v = wp.vec2d(D(1.0), x[i, 0])
    y[i] = add_to(s, x[i, 0]) * add_to(s, x[i, 1]) + pair(x, i)


@wp.kernel
def component(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    v = wp.vec2d(D(2.0), D(1.0))
    y[i] = part_of(v, x[i, 0]) * part_of(v, x[i, 1])


@wp.kernel
def number(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    y[i] = power(D(1.0), x, i) * power(D(0.5), x, i)


@wp.kernel
def of_the_kernel(x: wp.array2d[D], a: D, v: wp.vec2d, y: wp.array[D]):
    i = wp.tid()
    a = a * x[i, 0]
    v[0] = v[1] * x[i, 1]
    y[i] = a * a * v[0]


X = uniform(2, 3, low=0.3, high=1.2)


@pytest.mark.parametrize("kernel", [field, field_in_an_expression, component, number], ids=lambda k: k.key)
def test_all_derivatives(kernel):
    op = warp_op(kernel, "x[n, m] -> y[n]")
    assert torch.autograd.gradcheck(op, X, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(op, X)


def test_arguments_of_the_kernel():
    op = warp_op(of_the_kernel, "x[n, m] -> y[n]")

    def function(x):
        return op(x, 2.0, (1.0, 3.0))

    assert torch.autograd.gradcheck(function, X, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, X)
