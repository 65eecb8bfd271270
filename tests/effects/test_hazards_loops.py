"""What Warp's adjoint has right of loops, measured against finite differences, and that each place it hasn't is a hazard.

A hazard missed is a silent wrong gradient; a hazard on a kernel whose gradient is right is a nuisance, and each one
that remains says ``right``. A new Warp that differs fails here first.
"""

# Warp takes `int(0)` for a variable, and `0` for a constant; a kernel may call `wp.tid()` for nothing.
# ruff: noqa: F841, E741
from __future__ import annotations

import pytest
import warp as wp

from measured import Measured
from warpops.effects import analyse

measured = Measured()


@measured("loop-product")
def dyn_sum(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = s + x[j] * x[j]
    y[i] = s * s


@measured("loop-product")
def dyn_prod(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(1.0)
    for j in range(n):
        s = s * x[j]
    y[i] = s


@measured()
def dyn_decay(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = s * wp.float64(0.5) + x[j]
    y[i] = s


@measured("loop-product")
def dyn_max(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(-10.0)
    for j in range(n):
        s = wp.max(s, x[j])
    y[i] = s


@measured("loop-product")
def dyn_ifmax(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(-10.0)
    for j in range(n):
        if x[j] > s:
            s = x[j]
    y[i] = s


@measured("index", "loop-product")
def dyn_count(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    c = int(0)
    for j in range(n):
        s = s + x[c] * x[j]
        c = c + 1
    y[i] = s


@measured("loop-product")
def dyn_fcount(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    c = wp.float64(0.0)
    for j in range(n):
        s = s + c * x[j]
        c = c + wp.float64(1.0)
    y[i] = s


@measured()
def dyn_prefix(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = s + x[j]
        y[j] = s


@measured("loop-product")
def dyn_prefix_sq(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = s + x[j]
        y[j] = s * s


@measured("loop-exit")
def dyn_break(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        if j >= 2:
            break
        s = s + x[j] * x[j]
    y[i] = s


@measured("loop-exit")
def dyn_break_data(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        if x[j] > wp.float64(1.3):
            break
        s = s + x[j] * x[j]
    y[i] = s


@measured("loop-exit")
def dyn_break_end(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = s + x[j] * x[j]
        if j >= 1:
            break
    y[i] = s


@measured()
def dyn_continue(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        if j == 1:
            continue
        s = s + x[j] * x[j]
    y[i] = s


@measured("loop-exit")
def dyn_continue_late(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = s + x[j] * x[j]
        if j == 1:
            continue
        s = s + x[j]
    y[i] = s


@measured("loop-product")
def dyn_continue_carried(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    c = int(0)
    for j in range(n):
        c = c + 1
        if c == 2:
            continue
        s = s + x[j] * x[j]
    y[i] = s


@measured("loop-product")
def dyn_turns_carried(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    c = int(0)
    for j in range(n):
        for _ in range(c):
            s = s + x[j]
        c = c + 1
    y[i] = s


@measured("loop-exit", right=True)
def dyn_return(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    for j in range(n):
        if j == 2:
            y[i] = x[j] * x[j]
            return


@measured()
def dyn_if_sum(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        if x[j] > wp.float64(1.2):
            s = s + x[j] * x[j]
    y[i] = s


@measured()
def dyn_aug(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s += x[j] * x[j]
    y[i] = s


@measured("loop-product")
def dyn_nested(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        t = wp.float64(0.0)
        for l in range(n):
            t = t + x[l] * x[j]
        s = s + t * t
    y[i] = s


@measured()
def dyn_reset(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    t = wp.float64(0.0)
    for j in range(n):
        t = x[j] * x[j]
        s = s + t * t
    y[i] = s + t


@measured()
def dyn_static_prod_in(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        p = wp.float64(1.0)
        for l in range(3):
            p = p * x[l]
        s = s + p * x[j]
    y[i] = s


@measured()
def static_prod(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(1.0)
    for j in range(4):
        s = s * x[j]
    y[i] = s


@measured("loop-exit")
def static_break(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(4):
        if j == 2:
            break
        s = s + x[j] * x[j]
    y[i] = s


@measured("loop-product")
def long_const_prod(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(1.0)
    for j in range(20):
        s = s * x[j % 4]
    y[i] = s


@measured("index", "while")
def while_sum(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    j = int(0)
    while j < n:
        s = s + x[j] * x[j]
        j = j + 1
    y[i] = s


@measured("index", "while")
def while_lin(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    j = int(0)
    while j < n:
        s = s + x[j]
        j = j + 1
    y[i] = s


@measured("while")
def while_only_index(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    j = int(0)
    while j < n - 1:
        j = j + 1
    y[i] = x[j] * x[j]


@measured("while", right=True)
def while_cond_data(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = x[0]
    while s < wp.float64(10.0):
        s = s * wp.float64(2.0)
    y[i] = s


@measured()
def where_carried(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = wp.where(x[j] > wp.float64(1.2), s + x[j], s)
    y[i] = s


@measured("loop-exit")
def dyn_break_noncarried(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    for j in range(n):
        if j > 1:
            break
        y[j] = x[j] * x[j]


@measured("loop-product")
def dyn_carried_div(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = s + x[j]
        s = s / x[0]
    y[i] = s


@measured()
def dyn_swap(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    a = x[0]
    b = x[1]
    for j in range(n):
        t = a
        a = b + x[j]
        b = t
    y[i] = a + wp.float64(3.0) * b


@measured("loop-product")
def argmax_for(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    best = wp.float64(-100.0)
    arg = int(0)
    for j in range(n):
        if x[j] > best:
            best = x[j]
            arg = j
    y[i] = x[arg] * x[arg]


@measured("loop-product")
def max_notlast(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(-10.0)
    for j in range(n):
        s = wp.max(s, -x[j])
    y[i] = s


@measured("loop-exit")
def return_in_loop(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    for j in range(n):
        y[j] = x[j] * x[j]
        if j == 1:
            return


@measured()
def lastval(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    t = wp.float64(0.0)
    for j in range(n):
        t = x[j] * x[j]
    y[i] = t


@measured("loop-product")
def lastval_sq(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    t = wp.float64(0.0)
    for j in range(n):
        t = x[j] * x[j]
    y[i] = t * t


@measured("loop-product")
def newvar_sq(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    for j in range(n):
        t = x[j] * x[j]
    y[i] = t * t


@measured("loop-product")
def cond_after(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        s = s + x[j]
    if s > wp.float64(2.0):
        y[i] = x[0] * x[0]
    else:
        y[i] = x[1]


@measured()
def while_next_like(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(n):
        for l in range(j, n):
            s = s + x[l] * x[j]
    y[i] = s


@measured("loop-product")
def const_loop_20(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    s = wp.float64(0.0)
    for j in range(20):
        s = s + x[j % 4] * x[j % 4]
    y[i] = s * s


@measured("index", "while")
def while_ret(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    j = int(0)
    while j < n:
        y[j] = x[j] * x[j]
        j += 1


@wp.func
def g(x: wp.array[wp.float64], n: int):
    s = wp.float64(0.0)
    for j in range(n):
        s += x[j] * x[j]
    return s


@measured()
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


@measured("loop-exit")
def func_ret(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = g2(x, n)


@measured()
def dyn_func_nested(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    t = wp.float64(0.0)
    for j in range(n):
        s = g(x, n)
        t += s * s * x[j]
    y[i] = t


@measured()
def early_ret(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    if x[0] > wp.float64(1.0):
        y[i] = x[0] * x[0]
        return
    y[i] = x[1]


@pytest.mark.parametrize("name", measured)
def test_a_wrong_adjoint_is_a_hazard_and_a_right_one_is_not(name):
    measured.check(name)


def test_a_hazard_names_the_place():
    (hazard,) = analyse(dyn_prod).hazards
    assert hazard.site.file == __file__
    assert hazard.site.code == "s = s * x[j]"
    assert "'s'" in hazard.message
