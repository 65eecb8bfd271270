"""Locals of which a part is assigned again: vectors, matrices, quaternions, transforms, structs, by finite differences."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from loop_kernels import D, check, ints, uniform
from support import close
from warpops import GradientWarning, warp_op


@wp.struct
class Inner:
    v: wp.vec3d
    s: D


@wp.struct
class Outer:
    inner: Inner
    rows: wp.array2d[D]
    n: int


@wp.kernel
def vector(x: wp.array[wp.vec3d], y: wp.array[wp.vec3d]):
    i = wp.tid()
    v = x[i]
    v[0] = v[0] * v[1]
    v.y = wp.sin(v.x) + v[2] * v[1]
    v[2] += v[1] * v[1]
    v[-1] *= v[0]
    w = v
    v[0] = w[2] * v[0]
    y[i] = wp.cross(v, w)


@wp.kernel
def runtime_index(x: wp.array[wp.vec3d], at: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    v = x[i]
    s = wp.dot(v, v)
    v[at[i]] = v[at[i]] * s
    v[(at[i] + 1) % 3] += v[at[i]] * v[at[i]]
    y[i] = wp.dot(v, v) * s


@wp.kernel
def matrix(x: wp.array[wp.mat33d], y: wp.array[wp.mat33d]):
    i = wp.tid()
    m = x[i]
    for c in range(3):
        for r in range(3):
            if r > c:
                m[r, c] = m[r, c] / m[c, c]
                for k in range(3):
                    if k > c:
                        m[r, k] -= m[r, c] * m[c, k]
    m[2] = m[1] * m[0, 0]
    y[i] = m


@wp.kernel
def quaternion(x: wp.array[wp.quatd], y: wp.array[wp.quatd]):
    i = wp.tid()
    q = x[i]
    q[3] = q[3] * q[0]
    q.x = q.x * q.w
    y[i] = q * q


@wp.kernel
def transform(x: wp.array[wp.transformd], y: wp.array[wp.vec3d]):
    i = wp.tid()
    t = x[i]
    p = wp.transform_get_translation(t)
    t.p = p * wp.dot(p, p)
    y[i] = wp.transform_point(t, p) + t.p


@wp.func
def moved(o: Inner, k: D):
    o.v[1] = o.v[1] * k
    o.s = o.s * o.v[1]
    return o


@wp.kernel
def struct(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    o = Outer()
    o.rows = x
    o.inner.v = wp.vec3d(x[i, 0], x[i, 1], x[i, 2])
    o.inner.s = x[i, 0] * x[i, 1]
    o.inner.v[1] = o.inner.v[1] * o.inner.s
    o.inner.s = o.inner.s * o.inner.v[1]
    before = o.inner
    o.inner = moved(o.inner, o.rows[i, 2])
    for k in range(x.shape[1]):
        o.inner.v[k % 3] = o.inner.v[k % 3] * o.rows[i, k] + o.inner.s
        o.inner.s *= o.inner.v[0]
        o.n += 1
    y[i] = wp.dot(o.inner.v, before.v) * o.inner.s + before.s * D(o.n)


@wp.kernel
def built_in_turns(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    v = wp.vec4d()
    for k in range(x.shape[1]):
        v[k % 4] = v[k % 4] + x[i, k] * v[(k + 3) % 4] + x[i, k]
    y[i] = wp.length(v)


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [
        (vector, (3, 3)),
        (matrix, (2, 3, 3)),
        (quaternion, (3, 4)),
        (transform, (3, 7)),
        (struct, (3, 4)),
        (built_in_turns, (2, 6)),
    ],
    ids=lambda value: getattr(value, "key", ""),
)
def test_parts(kernel, shape):
    x = uniform(*shape, low=0.4, high=1.3)
    if kernel is matrix:
        x = (x.detach() + 2 * torch.eye(3)).requires_grad_()
    check(warp_op(kernel), x)


def test_index_known_at_run_time():
    check(warp_op(runtime_index), uniform(3, 3, low=0.3), ints(0, 2, 1))


@wp.kernel
def arrays_of_the_thread(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    a = wp.zeros(shape=(4,), dtype=D)
    b = wp.zeros(shape=(2, 2), dtype=D)
    for k in range(x.shape[1]):
        a[k % 4] = a[(k + 1) % 4] * x[i, k] + x[i, k]
        a[0] += a[k % 4] * a[k % 4]
        b[k % 2, 1] = a[0] * b[1, 1] + a[1]
    y[i] = (a[0] + a[3]) * b[0, 1] * b[1, 1]


def test_arrays_of_the_thread():
    check(warp_op(arrays_of_the_thread), uniform(2, 5, low=0.3))


def test_array_of_the_thread_that_is_handed_on():
    @wp.func
    def total(a: wp.array[D]):
        return a[0] * a[1]

    @wp.kernel
    def handed_on(x: wp.array[D], y: wp.array[D]):
        i = wp.tid()
        a = wp.zeros(shape=(2,), dtype=D)
        a[0] = x[i]
        a[1] = a[0] * x[i]
        y[i] = total(a)

    with pytest.warns(GradientWarning, match="'a' is large, or more than indexed"):
        warp_op(handed_on)


@wp.kernel
def array_of_floats(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    a = wp.zeros(shape=3, dtype=float)
    for k in range(3):
        a[k] = x[i] * x[i] + float(k)
    a[1] = a[0] * x[i]
    y[i] = a[1] * a[2]


def test_an_array_of_the_threads_own_of_floats():
    """``float`` is a builtin of Warp's, and a type."""
    op = warp_op(array_of_floats, "x[n] -> y[n]")
    x = torch.tensor([0.5, 1.5], requires_grad=True)
    op(x).sum().backward()
    close(x.grad, (5 * x**4 + 6 * x**2).detach())
