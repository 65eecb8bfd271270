"""What people reported of Warp's gradients through loops, each in a kernel of our own, with the value that is right.

The numbers are those of the issues of NVIDIA/warp.
"""

from __future__ import annotations

import pytest
import torch
import warp as wp

from loop_kernels import D, check, ints, uniform
from warpops import warp_op


def gradients(op, *arguments):
    wanted = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
    results = op(*arguments)
    results = results if isinstance(results, tuple) else (results,)
    return torch.autograd.grad(sum(r.sum() for r in results if r.is_floating_point()), wanted)


def leaf(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


@wp.func
def weighted(a: wp.array[D], w: wp.array[D], c: wp.array[D], last: int):
    total = D(0.0)
    for j in range(last + 1):
        total = total + w[j] * a[j]
    total = total * c[0]
    return total


@wp.kernel
def weighted_sum(a: wp.array[D], w: wp.array[D], c: wp.array[D], last: int, y: wp.array[D]):
    y[wp.tid()] = weighted(a, w, c, last)


def test_140_factor_after_a_loop_of_an_arguments_length():
    op = warp_op(weighted_sum, "a[k], w[k], c[1] -> y[1]", dim="1")
    a, c = leaf(1.0, 2.0, 3.0, 4.0), leaf(2.0)
    w = torch.tensor([5.0, 6.0, 7.0, 8.0], dtype=torch.float64)
    by_a, by_c = gradients(op, a, w, c, 2)
    assert by_c.tolist() == [5.0 + 12.0 + 21.0]
    assert by_a.tolist() == [10.0, 12.0, 14.0, 0.0]


@wp.kernel
def overwritten(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    a = D(1.0)
    for k in range(x.shape[1]):
        a = a * x[i, k]
    y[i] = a


def test_174_variable_overwritten_in_a_loop():
    x = torch.tensor([[2.0, 3.0, 5.0], [1.0, -1.0, 4.0]], dtype=torch.float64, requires_grad=True)
    (got,) = gradients(warp_op(overwritten), x)
    assert got.tolist() == [[15.0, 10.0, 6.0], [-4.0, 4.0, -1.0]]


@wp.kernel
def decayed(x: wp.array[D], limit: D, y: wp.array[D], turns: wp.array[int]):
    i = wp.tid()
    v = x[i]
    count = int(0)
    while v * v > limit:
        v = v * v * D(0.5)
        count += 1
    y[i] = v
    turns[i] = count


def test_729_loop_that_is_not_replayed():
    op = warp_op(decayed, "x[n] -> y[n], turns[n]")
    x = leaf(0.1, 1.0, 1.2)
    y, turns = op(x, 0.2)
    assert turns.tolist() == [0, 2, 2]
    (got,) = torch.autograd.grad(y.sum(), x)
    # After two turns v = x**4 / 8.
    torch.testing.assert_close(got, torch.tensor([1.0, 0.5, 0.5 * 1.2**3], dtype=torch.float64))


@wp.func
def joined(rotation: wp.quatd, angle: D, axis: wp.vec3d):
    half = angle * D(0.5)
    s = wp.sin(half)
    return rotation * wp.quatd(axis[0] * s, axis[1] * s, axis[2] * s, wp.cos(half))


@wp.kernel
def limbs(
    start: wp.array[int], joints: wp.array[int], axis: wp.array[wp.vec3d], angle: wp.array[D], tip: wp.array[wp.vec3d]
):
    limb = wp.tid()
    place = wp.vec3d(D(0.0), D(0.0), D(1.0))
    rotation = wp.quatd(D(0.0), D(0.0), D(0.0), D(1.0))
    at = start[limb] * 2
    for bone in range(start[limb], start[limb + 1]):
        for _ in range(joints[bone]):
            rotation = joined(rotation, angle[at], axis[at])
            at += 1
        place = place + wp.quat_rotate(rotation, wp.vec3d(D(1.0), D(0.5), D(0.0)))
    tip[limb] = place


def test_1293_loops_in_loops():
    op = warp_op(limbs, "start[s], axis[m], angle[m] -> tip[s - 1]", dim="s - 1")
    axis = torch.nn.functional.normalize(uniform(10, 3, seed=4).detach(), dim=-1)
    check(lambda angle: op(ints(0, 2, 5), ints(2, 1, 0, 2, 2), axis, angle), uniform(10, seed=5))


@wp.kernel
def windowed(c: wp.array2d[D], x: wp.array[D], y: wp.array[D]):
    i = wp.tid()
    top = D(-1.0e20)
    for p in range(5):
        for q in range(5):
            if c[p, q] == D(0.0):
                continue
            v = x[i] * c[p, q]
            if v > top:
                top = v
    y[i] = top


def test_1552_winner_of_a_loop_with_continue():
    c = uniform(5, 5, low=0.5).detach()
    c[1, 2] = c[3, 3] = 0.0
    c[4, 4] = -3.0
    x = leaf(1.0, -2.0, 0.5)
    (got,) = gradients(warp_op(windowed, "c[5, 5], x[n] -> y[n]", dim="n"), c, x)
    want = [c[c != 0].max(), c[c != 0].min(), c[c != 0].max()]
    torch.testing.assert_close(got, torch.stack(want))


@wp.kernel
def between(x: wp.array[D], s: wp.array[D], n: int, y: wp.array[D]):
    i = wp.tid()
    b = x[i] * x[i]
    total = D(5.0)
    for k in range(n):
        total += s[k] * x[i]
    y[i] = total * b


def test_1694_variable_from_before_the_loop():
    op = warp_op(between, "x[m], s[k] -> y[m]", dim="m")
    by_x, by_s = gradients(op, leaf(1.0), leaf(1.0, 2.0), 2)
    assert by_x.tolist() == [(1.0 + 2.0) * 1.0 + 2.0 * (5.0 + 3.0)]
    assert by_s.tolist() == [1.0, 1.0]


@wp.func
def reciprocal(x: wp.array[D], n: int, initial: D):
    total = initial
    for k in range(n):
        total += x[k]
    return D(1.0) / total


@wp.kernel
def inverted(x: wp.array[D], n: int, initial: D, y: wp.array[D]):
    y[wp.tid()] = reciprocal(x, n, initial)


@pytest.mark.parametrize("initial", [0.0, 1.0])
def test_1740_division_in_a_looped_function(initial):
    op = warp_op(inverted, "x[m] -> y[1]", dim="1", name="loops::inverted")
    (got,) = gradients(op, leaf(1.0, 0.5, 2.5), 3, initial)
    torch.testing.assert_close(got, torch.full((3,), -1.0 / (4.0 + initial) ** 2, dtype=torch.float64))


@wp.func
def shares(x: wp.array2d[D], i: int):
    total = D(0.0)
    norm = D(0.0)
    for k in range(x.shape[1]):
        total += x[i, k]
        norm += x[i, k] * x[i, k]
    return total / wp.sqrt(norm)


@wp.kernel
def normalised(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    y[i] = shares(x, i)


def test_1754_sums_divided_where_they_are_made():
    x = uniform(3, 4, low=0.2)
    (got,) = gradients(warp_op(normalised), x)
    torch.testing.assert_close(got, torch.autograd.grad((x.sum(1) / (x * x).sum(1).sqrt()).sum(), x)[0])
