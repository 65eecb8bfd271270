"""Elements that a thread reads and stores again, so that the array hasn't any more what was used: finite differences."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from loop_kernels import D, check, ints, uniform
from support import WARP, close
from warpops import GradientError, GradientWarning, warp_op


@wp.kernel
def scaled(x: wp.array[D], w: wp.array[D], y: wp.array[D]):
    i = wp.tid()
    y[i] = x[i] * x[i]
    y[i] = y[i] * w[i] * y[i]
    y[i] += wp.sin(y[i]) * x[i]


@wp.kernel
def in_branches(x: wp.array[D], y: wp.array[wp.vec2d]):
    i = wp.tid()
    y[i] = wp.vec2d(x[i], x[i] * x[i])
    if x[i] > D(0.0):
        y[i] = y[i] * y[i][1]
    y[i] = y[i] * wp.dot(y[i], y[i])


@wp.kernel
def in_turns(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    y[i] = D(0.5)
    for k in range(x.shape[1]):
        y[i] = y[i] * x[i, k] + y[i] * y[i] * D(0.3)
        if y[i] > D(1.5):
            break


def test_stored_again():
    check(warp_op(scaled, "x[n], w[n] -> y[n]"), uniform(5), uniform(5, seed=1))


def test_stored_again_in_branches():
    check(warp_op(in_branches, "x[n] -> y[n]"), uniform(5))


def test_stored_in_each_turn():
    check(warp_op(in_turns, "x[n, m] -> y[n]"), uniform(4, 5, low=0.4, high=1.4))


@wp.kernel
def each_of_a_row(x: wp.array2d[D], y: wp.array2d[D]):
    i = wp.tid()
    for k in range(x.shape[1]):
        y[i, k] = y[i, k] * y[i, k] + x[i, k]
        if x[i, k] > D(0.0):
            y[i, k] *= wp.sin(y[i, k])


@wp.kernel
def by_components(x: wp.array[D], y: wp.array[wp.vec2d]):
    i = wp.tid()
    y[i][0] = y[i][1] * x[i]
    y[i][1] += y[i][0] * y[i][0]
    y[i] = y[i] * wp.length(y[i])


@wp.struct
class Pair:
    p: wp.array[D]
    v: wp.array[D]


@wp.kernel
def leapfrog(x: wp.array[D], pair: Pair, steps: int):
    i = wp.tid()
    for _ in range(steps):
        pair.v[i] -= D(0.1) * wp.sin(pair.p[i]) * pair.v[i] * x[i]
        pair.p[i] += D(0.1) * pair.v[i] * pair.v[i]


@wp.kernel
def by_a_counter(x: wp.array[D], at: wp.array[wp.int32], z: wp.array[D]):
    i = wp.tid()
    first = x[at[i]]
    at[i] = (at[i] + 1) % x.shape[0]
    z[i] = first * x[at[i]]


@wp.kernel
def remainder_of_own(x: wp.array[D], y: wp.array[D]):
    i = wp.tid()
    y[i] %= x[i]
    y[i] = y[i] * y[i]


def test_in_out_elements_of_each_turn():
    op = warp_op(each_of_a_row, "x[n, m], y[n, m] -> y[n, m]")
    check(op, uniform(3, 4), uniform(3, 4, seed=1))
    check(op, uniform(3, 0), uniform(3, 0))


def test_components_of_in_out_elements():
    check(warp_op(by_components, "x[n], y[n] -> y[n]"), uniform(4), uniform(4, 2, seed=1))


def test_arrays_of_a_struct():
    op = warp_op(leapfrog, "x[n], pair.p[n], pair.v[n] -> pair.p, pair.v", dim="n")
    check(lambda x, p, v: op(x, {"p": p, "v": v}, 5), uniform(4), uniform(4, seed=1), uniform(4, seed=2))


def test_indices_that_are_stored_again():
    op = warp_op(by_a_counter, "x[n], at[n] -> at[n], z[n]", dim="n")
    check(lambda x: op(x, ints(2, 0, 1))[1], uniform(3))


def test_remainders_of_own_elements():
    check(warp_op(remainder_of_own, "x[n], y[n] -> y[n]"), uniform(3, low=1.0, high=2.0), uniform(3, low=4.2, high=4.8))


def test_transforms_of_own_elements():
    op = warp_op(each_of_a_row, "x[n, m], y[n, m] -> y[n, m]")
    x, y = uniform(2, 3, 4).detach(), uniform(2, 3, 4, seed=1).detach()
    gradient = torch.func.grad(lambda x, y: op(x, y).sum(), argnums=(0, 1))
    found = torch.func.vmap(gradient)(x, y)
    for k in range(2):
        for one, want in zip(found, gradient(x[k], y[k]), strict=True):
            close(one[k], want)
    torch.autograd.gradgradcheck(op, (uniform(2, 2), uniform(2, 2, seed=1)))


@wp.kernel
def stored(x: wp.array[D], y: wp.array[wp.vec2d]):
    i = wp.tid()
    y[i] = wp.vec2d(D(0.0))
    y[i][1] = D(2.0) * x[i]


@wp.kernel
def added(x: wp.array[D], y: wp.array[wp.vec2d]):
    i = wp.tid()
    y[i].y += D(2.0) * x[i]


@pytest.mark.parametrize("kernel", [stored, added])
def test_a_component_of_an_element(kernel):
    """Before 1.18 Warp's adjoint stored it again, in an array that isn't there."""
    x = uniform(4)
    y = warp_op(kernel, "x[n] -> y[n]")(x)
    close(y, torch.stack([torch.zeros_like(x), 2.0 * x], -1).detach())
    if WARP < (1, 18):
        with pytest.raises(GradientError, match="Warp before 1.18 stores a component of an element again"):
            y.sum().backward()
    else:
        close(torch.autograd.grad(y.sum(), x)[0], torch.full_like(x, 2.0))


def test_two_elements_swapped_at_once_are_told():
    @wp.kernel(module="unique")  # Warp can't build it
    def swapped(x: wp.array[D], y: wp.array[D], z: wp.array[D]):
        i = wp.tid()
        y[i], z[i] = z[i] * y[i], y[i] * x[i]
        y[i] = y[i] * z[i]

    with pytest.warns(GradientWarning, match="needed both as it was"):
        warp_op(swapped, "x[n], y[n], z[n] -> y[n], z[n]")


def test_elements_by_two_indices():
    @wp.kernel
    def shifted(x: wp.array[D], y: wp.array2d[D]):
        i = wp.tid()
        y[i, 0] = x[i] * x[i]
        y[i, 1] = y[i, 0] * y[i, 0]
        y[i, 0] = y[i, 1] * x[i]

    check(warp_op(shifted, "x[n] -> y[n, 2]", dim="n"), uniform(3))
