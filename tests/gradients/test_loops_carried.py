"""Gradients of what a run-time loop carries from turn to turn, by finite differences. A GradientWarning is an error."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from loop_kernels import D, check, ints, uniform
from warpops import GradientWarning, warp_op


@wp.struct
class Walker:
    where: wp.vec2d
    speed: D
    steps: int


@wp.kernel
def exchanged(x: wp.array2d[D], y: wp.array[D], z: wp.array[D]):
    i = wp.tid()
    a = D(0.4)
    b = x[i, 0]
    for k in range(x.shape[1]):
        old = a
        a = b * wp.sin(x[i, k]) + D(0.3) * a
        b = old - a * b
    y[i] = a * b
    z[i] = b


@wp.kernel
def stepped(x: wp.array2d[D], first: int, last: int, step: int, y: wp.array[D]):
    i = wp.tid()
    a = D(0.9)
    for k in range(first, last, step):
        a = a * x[i, k] + D(k) * a * a
    y[i] = a


@wp.kernel
def downwards(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    a = x[i, 0]
    for k in range(x.shape[1] - 1, -1, -1):
        a = wp.cos(a) * x[i, k]
    y[i] = a * a


@wp.kernel
def extremes(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    low = x[i, 0]
    high = x[i, 0]
    for k in range(x.shape[1]):
        low = wp.min(low, x[i, k] * high)
        high = wp.max(high * D(0.9), x[i, k])
    y[i] = low * high


@wp.kernel
def turned(x: wp.array[wp.quatd], n: wp.array[int], y: wp.array[wp.quatd]):
    i = wp.tid()
    q = x[i]
    for _ in range(n[i]):
        q = wp.normalize(q * x[i] + q * D(0.1))
    y[i] = q


@wp.kernel
def powers(m: wp.array[wp.mat22d], n: int, y: wp.array[wp.mat22d]):
    i = wp.tid()
    p = m[i]
    for _ in range(n):
        p = p * m[i] + wp.transpose(p) * wp.determinant(p)
    y[i] = p


@wp.kernel
def walked(x: wp.array2d[D], y: wp.array[wp.vec2d], z: wp.array[D]):
    i = wp.tid()
    w = Walker()
    w.where = wp.vec2d(x[i, 0], D(0.5))
    w.speed = D(1.0)
    for k in range(x.shape[1]):
        w.speed = w.speed * wp.sin(x[i, k] + w.where[1])
        w.where = w.where + wp.vec2d(w.speed, w.where[0] * x[i, k])
        w.steps += 1
    y[i] = w.where * w.speed
    z[i] = w.speed * D(w.steps)


@wp.kernel
def chased(link: wp.array[int], x: wp.array[D], n: int, y: wp.array[D]):
    i = wp.tid()
    at = i
    a = D(1.0)
    for _ in range(n):
        a = a * x[at] + D(0.1)
        at = link[at]
    y[i] = a * x[at]


@wp.kernel
def histories(x: wp.array2d[D], y: wp.array2d[D], total: wp.array[D]):
    i = wp.tid()
    a = D(0.5)
    for k in range(x.shape[1]):
        a = wp.sin(a) + x[i, k] * a
        y[i, k] = a * a
        wp.atomic_add(total, 0, a * x[i, k])


@wp.kernel
def early_use(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    s = x[i, 0] * D(2.0)
    u = s * s
    for k in range(x.shape[1]):
        s += x[i, k]
    y[i] = u + s


@wp.kernel
def last_of_all(x: wp.array2d[D], n: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    for k in range(n[i]):
        last = x[i, k] * D(3.0)
    y[i] = last


@wp.kernel
def loop_variable_after(x: wp.array2d[D], n: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    a = D(1.0)
    for k in range(n[i]):
        a = a * x[i, k]
    y[i] = a * x[i, k] + a


@wp.kernel
def two_in_a_row(x: wp.array2d[D], y: wp.array2d[D]):
    i = wp.tid()
    a = D(1.0)
    for k in range(x.shape[1]):
        a = a * x[i, k] + D(0.2)
    b = a * a
    for k in range(x.shape[1]):
        b = wp.sin(b) * a + x[i, k]
        y[i, k] = b * a


@wp.kernel
def in_a_branch(x: wp.array2d[D], flag: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    a = x[i, 0]
    if flag[i] > 0:
        for k in range(flag[i]):
            a = a * x[i, k] + D(0.1)
        a = a * a
    else:
        a = wp.sin(a)
    y[i] = a * a


@wp.kernel
def constant_turns(x: wp.array[D], y: wp.array[D]):
    i = wp.tid()
    a = x[i]
    for k in range(30):
        if k % 3 == 0:
            continue
        a = a + D(0.1) * wp.sin(a * a)
    y[i] = a


X = uniform(3, 5, low=0.3, high=1.4)


@pytest.mark.parametrize("kernel", [exchanged, downwards, extremes, walked, early_use], ids=lambda k: k.key)
def test_carried(kernel):
    check(warp_op(kernel), X)


@pytest.mark.parametrize("bounds", [(0, 5, 1), (1, 5, 2), (4, -1, -2), (4, 0, -1), (3, 3, 1)])
def test_steps(bounds):
    op = warp_op(stepped, "x[n, m] -> y[n]", dim="n", name="loops::stepped")
    check(lambda x: op(x, *bounds), X)


def test_quaternion():
    check(warp_op(turned), uniform(3, 4, low=0.2), ints(0, 1, 4))


def test_matrix():
    op = warp_op(powers)
    for turns in (0, 1, 3):
        check(lambda m, turns=turns: op(m, turns), uniform(2, 2, 2))


def test_index_that_is_carried():
    op = warp_op(chased, "link[m], x[m] -> y[m]", dim="m")
    check(lambda x: op(ints(2, 3, 1, 4, 0), x, 7), uniform(5, low=0.5))


def test_stores_in_the_loop():
    op = warp_op(histories, "x[n, m] -> y[n, m], total[1]", dim="n")
    check(op, X)


def test_made_in_the_loop():
    check(warp_op(last_of_all), X, ints(1, 3, 5))


def test_loop_variable_after_the_loop():
    check(warp_op(loop_variable_after), X, ints(1, 3, 5))


def test_loops_in_a_row():
    check(warp_op(two_in_a_row, "x[n, m] -> y[n, m]", dim="n"), X)


def test_loop_in_a_branch():
    check(warp_op(in_a_branch), X, ints(0, 2, 5))


def test_constant_turns():
    check(warp_op(constant_turns), uniform(4))


@pytest.mark.parametrize("turns", [1, 31, 32, 33, 64, 65, 1000, 1025, 3000])
def test_many_turns(turns):
    """The states that are kept are too few for all turns: they are made again."""
    op = warp_op(exchanged, "x[n, m] -> y[n], z[n]", dim="n", name="loops::exchanged")
    x = uniform(2, turns, low=0.2, high=0.9)

    def reference(x):
        a, b = torch.full_like(x[:, 0], 0.4), x[:, 0]
        for k in range(turns):
            old = a
            a = b * x[:, k].sin() + 0.3 * a
            b = old - a * b
        return a * b, b

    got, want = op(x), reference(x)
    torch.testing.assert_close(got, want)
    cotangents = [uniform(2, seed=k).detach() for k in (1, 2)]
    torch.testing.assert_close(torch.autograd.grad(got, x, cotangents), torch.autograd.grad(want, x, cotangents))


@wp.kernel
def in_unrolled(x: wp.array2d[D], n: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    v = wp.vec3d(x[i, 0], x[i, 1], x[i, 2])
    a = D(1.0)
    at = int(0)
    for r in range(3):
        for k in range(r, n[i]):
            a = wp.sin(a * v[at % 3]) + x[i, k] * a * D(0.5)
            v[r] = v[r] * wp.cos(a)
            at += 1
        last = a * v[r]
        for k in range(r):
            last = wp.sin(last) * x[i, k]
        a = a + last
    y[i] = a * wp.dot(v, v) + D(at) * a


def test_loops_in_an_unrolled_one():
    """Each turn of the unrolled loop has states of its own."""
    check(warp_op(in_unrolled), uniform(3, 5, low=0.3, high=0.9), ints(1, 3, 5))


@wp.kernel
def kinds(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    a = D(1.0)
    found = bool(False)
    seen = wp.int64(0)
    places = wp.vec2i(0, 1)
    bits = wp.uint32(1)
    for k in range(x.shape[1]):
        if found:
            a = a * x[i, places[1]]
        else:
            a = a + x[i, k] * D(seen)
        found = a > D(1.0)
        seen += wp.int64(1)
        places = wp.vec2i(places[1], k)
        bits = bits * wp.uint32(3)
        if bits % wp.uint32(2) == wp.uint32(1):
            a = wp.cos(a)
    y[i] = a * a


def test_kinds_of_numbers():
    check(warp_op(kinds), X)


@wp.kernel
def cleared(x: wp.array2d[D], y: wp.array2d[D], z: wp.array[D]):
    i = wp.tid()
    for k in range(x.shape[1]):
        y[i, k] = x[i, k] * x[i, k]
    last = int(0)
    for k in range(x.shape[1]):
        if x[i, k] < D(0.7):
            break
        y[i, k] = D(1.0)
        last = k
    z[i] = x[i, last] * x[i, last]


def test_loop_that_ends_gradients():
    """No gradient flows through the second loop, and it overwrites what the first one stored."""
    check(warp_op(cleared, "x[n, m] -> y[n, m], z[n]", dim="n"), uniform(4, 5, low=0.4, high=1.4, seed=9))


@wp.kernel
def rows(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    r = x[i]
    p = r[0]
    for k in range(x.shape[1]):
        p = p * r[k] + wp.cos(p)
    for k in range(x.shape[1]):
        r = x[(i + k) % x.shape[0]]
        for j in range(x.shape[1]):
            s = x[j % x.shape[0]]
            p = p * r[k] * s[j] + wp.cos(p)
            if p > D(1.5):
                break
    y[i] = p


def test_a_view_made_in_a_turn_is_made_again_with_it():
    op = warp_op("x[n, m] -> y[n]", dim="n")(rows)
    x = uniform(3, 5)
    assert torch.autograd.gradcheck(op, (x.requires_grad_(),))


@wp.kernel
def kept_rows(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    p = D(1.0)
    r = x[i]
    for k in range(x.shape[1]):
        p = p * r[k] + wp.cos(p)
        r = x[(i + k) % x.shape[0]]
    y[i] = p


def test_a_view_that_a_turn_has_from_the_one_before_is_warned_of():
    with pytest.warns(GradientWarning, match="'r', which the loop assigns, can't be kept"):
        warp_op("x[n, m] -> y[n]", dim="n")(kept_rows)


@wp.kernel
def history(x: wp.array2d[D], y: wp.array[D], z: wp.array2d[D]):
    i = wp.tid()
    p = D(1.0)
    for k in range(x.shape[1]):
        p = p * x[i, k]
        z[i, k] = p
        if k > 1:
            p = p + z[i, k - 2] * z[i, k]
    y[i] = p


@wp.kernel
def wrapped_history(x: wp.array2d[D], y: wp.array[D], z: wp.array2d[D]):
    i = wp.tid()
    p = D(1.0)
    for k in range(x.shape[1]):
        p = p * x[i, k]
        z[i, k] = p
        if k > 0:
            p = p + z[i, k - 2] * z[i, k]
    y[i] = p


def test_elements_that_are_stored_once_before_they_are_read():
    op = warp_op("x[n, m] -> y[n], z[n, m]", dim="n")(history)
    x = uniform(2, 5)
    assert torch.autograd.gradcheck(op, (x.requires_grad_(),))


def test_an_element_that_is_read_from_the_end_and_then_stored():
    op = warp_op("x[n, m] -> y[n], z[n, m]", dim="n", init={"z": 0})(wrapped_history)
    assert torch.autograd.gradcheck(op, (uniform(2, 5).requires_grad_(),))
