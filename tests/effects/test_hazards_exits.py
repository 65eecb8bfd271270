"""What runs after a loop that some threads left by ``return``, or after a condition that a loop decides."""

# Warp takes `int(0)` for a variable, and `0` for a constant; a kernel may compute what it doesn't use.
from __future__ import annotations

import pytest
import warp as wp

from measured import Measured

measured = Measured()


@measured("loop-exit")
def ret_data(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    for k in range(n):
        if x[k] > wp.float64(1.3):
            return
    y[i] = x[i] * x[i]


@measured("loop-exit")
def ret_var(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    for k in range(n):
        if k == 2:
            return
    y[i] = x[i] * x[i]


@measured("loop-exit", right=True)
def ret_not_taken(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    for k in range(n):
        if k == 20:
            return
    y[i] = x[i] * x[i]


@measured("loop-product")
def ret_carried(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for k in range(n):
        s += x[k]
    if s > wp.float64(2.0):
        return
    y[i] = x[i] * x[i]


@measured("loop-product")
def ret_carried_else(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for k in range(n):
        s += x[k]
    if n > 2:
        if s > wp.float64(2.0):
            return
    y[i] = x[i] * x[i]


@measured()
def ret_unrolled(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    for k in range(4):
        if x[k] > wp.float64(1.3):
            return
    y[i] = x[i] * x[i]


@measured("loop-exit", "while", undefined=True)
def ret_while(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    k = int(0)
    while k < n:
        if k == 2:
            return
        k += 1
    y[i] = x[i] * x[i]


@measured("loop-exit", "shared")
def ret_always(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    for k in range(n):
        y[k] = x[k]
        return
    y[i] = x[i] * x[i]


@wp.func
def f_after(x: wp.array[wp.float64], n: int):
    for k in range(n):
        if k == 2:
            return x[0]
    return x[1] * x[1]


@measured("loop-exit")
def func_after(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = f_after(x, n)


@wp.func
def f_carried(x: wp.array[wp.float64], n: int):
    s = wp.float64(0.0)
    for k in range(n):
        s += x[k]
    if s > wp.float64(2.0):
        return x[0] * x[0]
    return x[1] * x[1]


@measured("loop-product")
def func_carried(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = f_carried(x, n)


@wp.func
def f_store(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    for k in range(n):
        if k == 2:
            return
    y[1] = x[1] * x[1]


@measured("loop-exit", "shared")
def func_store(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    f_store(x, y, n)
    y[i] = x[i] * x[i]


@wp.func
def f_ifret(x: wp.array[wp.float64], n: int):
    if x[0] > wp.float64(1.2):
        return x[0] * x[0]
    return x[1] * x[1]


@measured()
def func_ifret(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = f_ifret(x, n)


@measured("loop-product")
def live_cond(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    p = wp.float64(1.0)
    for k in range(n):
        p *= x[k]
    if p > wp.float64(1.0):
        y[i] = x[0] * x[0]
    else:
        y[i] = x[1]


@measured("loop-product", right=True)
def dead_cond(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    """Of an array that is given, and returned, what it held would have no gradient any more."""
    i = wp.tid()
    p = wp.float64(1.0)
    for k in range(n):
        p *= x[k]
    if p > wp.float64(1.0):
        y[i] = wp.float64(1.0)


@pytest.mark.parametrize("name", sorted(measured))
def test_what_runs_after_an_exit(name: str) -> None:
    measured.check(name)
