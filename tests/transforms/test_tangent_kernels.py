"""Tangents of what kernels are written with: functions, structs, views, loops, branches, casts, local arrays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import warp as wp

from derivatives import check_twice
from support import WARP
from warpops import warp_op

f64 = wp.float64
SCALES = [f64(0.5), f64(2.0), f64(-1.5)]


@wp.struct
class Pair:
    first: wp.float64
    second: wp.vec3d
    index: int


@wp.struct
class Arrays:
    a: wp.array[wp.float64]
    at: wp.array[int]
    inner: wp.float64


@wp.func
def both(x: f64, k: f64):
    return wp.sin(x) * k, x / k


@wp.func
def kind_of(x: f64):
    return x * x


@wp.func
def kind_of(x: wp.vec3d):  # noqa: F811
    return wp.length(x)


@wp.func
def generic(x: Any, y: Any):
    return x * y + x


@wp.func
def branches(x: f64, n: int):
    if n == 0:
        return f64(1.0)
    if x > f64(0.0):
        return x * x
    return -x


@wp.func
def put(out: wp.array[f64], i: int, x: f64):
    out[i] = x * x * x


@wp.func
def fill(buffer: wp.array[f64], x: f64):
    for k in range(3):
        buffer[k] = x * f64(k + 1)


@wp.func
def of_struct(p: Pair):
    return p.first * p.second


@wp.func
def make_pair(x: f64, i: int):
    p = Pair()
    p.first = x * x
    p.second = wp.vec3d(x, f64(1.0), wp.cos(x))
    p.index = i
    return p


@wp.func
def from_arrays(s: Arrays, i: int):
    return s.a[s.at[i]] * s.inner


@wp.kernel
def functions(x: wp.array[f64], p: wp.array[wp.vec3d], y: wp.array[f64], z: wp.array[wp.vec3d]):
    i = wp.tid()
    a, b = both(x[i], f64(2.0))
    c, d = both(f64(0.3), f64(2.0))
    v = generic(p[i], x[i]) + generic(p[i], a)
    y[i] = a * b * c + d * kind_of(x[i]) + kind_of(p[i]) + branches(x[i], i) * branches(b, 1)
    z[i] = v


@wp.kernel
def structs(x: wp.array[f64], y: wp.array[wp.vec3d]):
    i = wp.tid()
    p = make_pair(x[i], i)
    q = Pair()
    q.first = f64(2.0)
    q.second = p.second * p.first
    q.second[1] = x[i] * p.second[2]
    q.second.x += x[i]
    y[i] = of_struct(p) + of_struct(q) * f64(p.index + 1)


@wp.kernel
def struct_arguments(s: Arrays, y: wp.array[f64], z: wp.array[f64]):
    i = wp.tid()
    y[i] = s.a[i] * s.a[i] * s.inner
    z[i] = from_arrays(s, i) * s.a[i]


@wp.kernel
def views(x: wp.array2d[f64], m: wp.array[wp.mat33d], y: wp.array2d[f64], z: wp.array[f64]):
    i = wp.tid()
    row = x[i]
    out = y[i]
    tail = x[i, 1:3]
    out[0] = row[0] * row[1]
    out[1] = tail[0] * tail[1] * m[i][1][2]
    out[2] = m[i][0, 1] * wp.dot(m[i][2], m[i][0])
    put(y[i], 3, x[i][2] * m[i][2][2])
    column = m[i][0:2, 1]
    z[i] = column[1] * x[i][0]


@wp.kernel
def assignments(x: wp.array[f64], p: wp.array[wp.vec3d], y: wp.array[f64], z: wp.array[wp.vec3d]):
    i = wp.tid()
    a = x[i]
    b = f64(1.0)
    a, b = b * a, a
    a += b * b
    b *= a
    a -= x[i]
    b /= f64(3.0) + a * a
    v = p[i]
    v[0] = a
    v[1] += b
    v.z *= a
    y[i] = a * b if a > b else wp.exp(b)
    y[i] += x[i] * a
    z[i] = v
    z[i][1] = b * b
    z[i] -= p[i] * a


@wp.kernel
def control(x: wp.array[f64], n: wp.array[int], y: wp.array[f64]):
    i = wp.tid()
    s = f64(0.0)
    t = f64(1.0)
    for c in range(3):
        s += x[i] * f64(c)
    for k in range(n[i]):
        if k == 3:
            continue
        t = t * wp.sin(x[i] + f64(k)) + s
    if n[i] > 1 and x[wp.min(i + 1, x.shape[0] - 1)] > f64(-9.0):
        t = t + s * s
    else:
        s = f64(2.0)
    turn = int(0)
    while turn < n[i]:
        s = s + t * t * f64(0.1)
        turn += 1
    y[i] = s * t


@wp.kernel
def statics(x: wp.array[f64], y: wp.array[f64]):
    i = wp.tid()
    s = x[i]
    for k in range(3):
        s += wp.static(SCALES[k]) * x[i] * x[i]
    y[i] = s * wp.static(wp.float64(1.5))


@wp.kernel
def casts(x: wp.array[f64], y: wp.array[f64]):
    i = wp.tid()
    n = int(x[i] * f64(100.0))
    y[i] = f64(n) * x[i] + wp.floor(x[i]) + wp.sign(x[i]) * f64(2.0) + wp.pow(x[i], f64(2.0))


@wp.kernel
def chosen(x: wp.array[f64], w: wp.array[f64], y: wp.array[f64]):
    i = wp.tid()
    a = wp.where(i % 2 == 0, x, w)
    y[i] = a[i] * a[i]


@wp.kernel
def transforms(t: wp.array[wp.transformd], p: wp.array[wp.vec3d], y: wp.array[wp.vec3d]):
    i = wp.tid()
    y[i] = wp.transform_point(t[i] * wp.transform_inverse(t[0]), p[i]) + t[i].p


@wp.kernel
def counted(x: wp.array[f64], n: wp.array[int], y: wp.array[f64]):
    i = wp.tid()
    state = wp.rand_init(7, i)
    r = f64(wp.randf(state)) * x[i] - f64(wp.randf(state)) * wp.sin(x[i] * f64(wp.randf(state)))
    wp.atomic_add(n, 0, 1)
    wp.atomic_add(y, i, r)
    wp.atomic_sub(y, i, x[i] * x[i])


@wp.kernel
def powers(x: wp.array[f64], p: wp.array[wp.vec3d], q: wp.array[wp.quatd], y: wp.array[f64], z: wp.array[wp.quatd]):
    i = wp.tid()
    a = x[i] - f64(0.1)
    six = a * a * a * a * a * a
    y[i] = six * six - six + (x[i] + a) * (x[i] + a) * x[i] * a * a + wp.dot(p[i] * a, p[i] * a)
    z[i] = q[i] * q[i] * wp.length_sq(wp.cw_mul(p[i], p[i]))


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.3


N = torch.tensor([2, 0, 5, 1], dtype=torch.int32)
CASES: dict[str, tuple[Any, dict[str, Any], tuple[Any, ...]]] = {
    "functions": (functions, {}, (rand(4), rand(4, 3, seed=1))),
    "structs": (structs, {}, (rand(4),)),
    "views": (views, {"signature": "x[n, 3], m[n] -> y[n, 4], z[n]"}, (rand(4, 3), rand(4, 3, 3, seed=1))),
    "assignments": (assignments, {"signature": "x[n], p[n] -> y[n], z[n]"}, (rand(4), rand(4, 3, seed=1))),
    "control": (control, {}, (rand(4), N)),
    "statics": (statics, {}, (rand(4),)),
    "casts": (casts, {}, (rand(4),)),
    "chosen": (chosen, {"signature": "x[n], w[n] -> y[n]"}, (rand(4), rand(4, seed=1))),
    "transforms": (transforms, {}, (rand(4, 7), rand(4, 3, seed=1))),
    "powers": (powers, {}, (rand(4), rand(4, 3, seed=1), rand(4, 4, seed=2))),
    "counted": (counted, {"signature": "x[m] -> n[1], y[m]", "dim": "m"}, (rand(4),)),
}

STORES_A_COMPONENT = pytest.mark.skipif(
    WARP < (1, 18), reason="has no gradient: test_own_elements.py::test_a_component_of_an_element"
)


@pytest.mark.filterwarnings("ignore:.*no adjoint for wp.randf")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=STORES_A_COMPONENT if name == "assignments" else ()) for name in CASES]
)
def test_tangents(name: str) -> None:
    kernel, options, args = CASES[name]
    check_twice(warp_op(kernel, name=f"tangents::{name}", **options), *args)


def test_the_tangent_of_a_power_is_one_product() -> None:
    op = warp_op(powers, name="tangents::powers_once")
    line = next(line for line in op.tangent.source.splitlines() if "d_six = " in line)
    assert line.count("d_a") == 1 and "6.0" in line


def test_one_of_two_arrays_that_are_one() -> None:
    """``wp.where`` makes one array of two: the one without a tangent gets one of zeros."""
    op = warp_op(chosen, "x[n], w[n] -> y[n]", name="tangents::chosen_once")
    x, w = rand(4), rand(4, seed=1)
    tangent = torch.func.jvp(lambda x: op(x, w), (x,), (torch.ones(4, dtype=torch.float64),))[1]
    torch.testing.assert_close(tangent, 2 * x * torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64))


def test_fields_of_a_struct() -> None:
    op = warp_op(struct_arguments, name="tangents::struct_arguments")
    at = torch.tensor([1, 1, 0, 3], dtype=torch.int32)
    check_twice(lambda a: op({"a": a, "at": at, "inner": 0.7}), rand(4))
