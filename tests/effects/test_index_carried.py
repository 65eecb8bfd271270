"""An index that a run-time loop carries: the adjoint may write outside of the array, and is refused."""

# Warp takes `int(0)` for a variable, and `0` for a constant; a kernel may compute what it doesn't use.
from __future__ import annotations

import pytest
import warp as wp

from measured import Measured

measured = Measured()


@measured("component", "index", "loop-product")
def local_index(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec4d()
    c = int(0)
    for k in range(n):
        v[c] = x[k] * x[k]
        c += 1
    y[i] = v[0] + v[3]


@measured("index", "loop-product")
def local_read(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec4d(x[0], x[1], x[2], x[3])
    c = int(0)
    s = wp.float64(0.0)
    for _ in range(n):
        s += v[c]
        c += 1
    y[i] = s


@measured("loop-product", right=True)
def index_mod(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    c = int(0)
    for _ in range(n):
        c += 1
        s += x[c % n]
    y[i] = s


@measured("index", "shared", "while")
def grid_stride(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    while i < n:
        y[i] = x[i] * x[i]
        i += 2


@measured("index", "loop-product")
def index_int(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    p = wp.float64(1.0)
    for k in range(n):
        p *= x[k]
    y[i] = x[int(p)]


@measured("loop-product")
def found(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    b = int(-1)
    for k in range(n):
        if x[k] > wp.float64(1.5):
            b = k
    if b >= 0:
        y[i] = x[b] * x[b]


@pytest.mark.parametrize("name", sorted(measured))
def test_an_index_that_a_loop_carries(name: str) -> None:
    measured.check(name)
