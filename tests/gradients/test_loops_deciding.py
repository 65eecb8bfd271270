"""What decides about turns: ``continue`` in a turn that has done something already, which Warp's adjoint leaves out, and what is
carried from turn to turn, which it has otherwise."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import compiled
from warpops import warp_op

D = wp.float64


@wp.struct
class Sums:
    near: D
    far: D


@wp.kernel
def sum_before(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    s = D(0.0)
    for k in range(m.shape[0]):
        s += x[i] * x[m[k]]
        if m[k] > i:
            continue
        s += wp.sin(x[m[k]])
    y[i] = s


@wp.kernel
def replaced_before(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    p = x[i]
    q = x[i] * D(0.5)
    for k in range(m.shape[0]):
        if m[k] > i:
            q = wp.tanh(x[m[k]])
            continue
        p = wp.sin(x[m[k]])
    y[i] = p + D(3.0) * q * x[i]


@wp.kernel
def ended_before(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    """What has a gradient is replaced by what has none."""
    i = wp.tid()
    p = x[i] * x[i]
    for k in range(m.shape[0]):
        if m[k] == i:
            p = D(m[k])
            continue
        p += x[m[k]]
    y[i] = p


@wp.kernel
def decided_by_the_least(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    """Nothing is done before, and what decides is carried from turn to turn."""
    i = wp.tid()
    least = D(100.0)
    s = D(0.0)
    for k in range(m.shape[0]):
        d = wp.abs(x[m[k]] - x[i] - D(0.07))
        if d >= least:
            continue
        least = d
        s = x[m[k]] * d
    y[i] = s


@wp.kernel
def added_before(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    for k in range(m.shape[0]):
        if m[k] > i:
            wp.atomic_add(y, i, x[m[k]] * x[i])
            continue
        wp.atomic_add(y, i, wp.sin(x[m[k]]))


@wp.kernel
def stored_in_a_loop_before(x: wp.array[D], m: wp.array[int], y: wp.array2d[D]):
    i = wp.tid()
    for k in range(m.shape[0]):
        for c in range(k, m.shape[0]):
            y[i, c] = x[m[k]] * x[i]
        if m[k] > i:
            continue
        y[i, k] = wp.sin(x[m[k]])


@wp.kernel
def a_field_before(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    s = Sums()
    s.near = x[i]
    s.far = D(0.0)
    for k in range(m.shape[0]):
        s.far += x[m[k]] * x[i]
        if m[k] == i:
            continue
        s.near += x[m[k]]
    y[i] = s.near * s.far


@wp.func
def summed(x: wp.array[D], i: int, m: wp.array[int]) -> D:
    s = D(0.0)
    for k in range(m.shape[0]):
        s += x[m[k]] * x[m[k]]
        if m[k] > i:
            continue
        s += x[i]
    return s


@wp.kernel
def in_a_function(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    y[i] = summed(x, i, m) * x[i]


@wp.func
def is_nearer(d: D, least: D):
    if d >= least:
        return 0
    return 1


@wp.kernel
def decided_by_a_function(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    """Which of its results a function returns depends on what is carried."""
    i = wp.tid()
    least = D(100.0)
    s = D(0.0)
    for k in range(m.shape[0]):
        d = wp.abs(x[m[k]] - x[i] - D(0.07))
        if is_nearer(d, least) == 1:
            s = x[m[k]] * x[i]
            least = D(0.3)
    y[i] = s


@wp.kernel
def turns_by_a_carried_number(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    count = int(0)
    s = D(0.0)
    for k in range(m.shape[0]):
        for _ in range(count):
            s += x[m[k]]
        count += 1
    y[i] = s


@wp.kernel
def additions_by_a_carried_number(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    count = int(0)
    for k in range(m.shape[0]):
        for _ in range(count):
            wp.atomic_add(y, i, x[m[k]])
        count += 1


@wp.func
def times(a: D, count: int) -> D:
    s = D(0.0)
    for _ in range(count):
        s += a
    return s


@wp.kernel
def turns_of_a_function_by_a_carried_number(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    count = int(0)
    for k in range(m.shape[0]):
        wp.atomic_add(y, i, times(x[m[k]], count))
        for _ in range(count):
            wp.atomic_add(y, i, x[i])
        count += 1


KERNELS = [decided_by_a_function, turns_by_a_carried_number, turns_of_a_function_by_a_carried_number]
KERNELS += [additions_by_a_carried_number]
KERNELS += [sum_before, replaced_before, ended_before, decided_by_the_least, added_before, stored_in_a_loop_before]
KERNELS += [a_field_before, in_a_function]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.key)
def test_turns_that_continue_ends_keep_what_they_did(kernel: wp.Kernel) -> None:
    out = "y[n, c]" if kernel is stored_in_a_loop_before else "y[n]"
    op = warp_op(kernel, f"x[n], m[c] -> {out}", dim="n", name=f"continued::{kernel.key}")
    for m in ([1, 2, 0], [3, 3], [2], []):
        index = torch.tensor(m, dtype=torch.int32)
        x = torch.tensor([0.3, 0.8, 1.7, 0.5], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x, index=index: op(x, index), [x])
    index = torch.tensor([1, 2, 0], dtype=torch.int32)
    assert torch.autograd.gradgradcheck(lambda x: op(x, index), [x])
    if kernel in (sum_before, added_before):
        (eager,) = torch.autograd.grad(op(x, index).sum(), x)
        (inside,) = torch.autograd.grad(compiled(op)(x, index).sum(), x)
        torch.testing.assert_close(inside, eager)


@wp.kernel
def within_a_cutoff(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    s = D(0.0)
    for k in range(m.shape[0]):
        if m[k] == i:
            continue
        d = x[m[k]] - x[i]
        if d * d > D(1.0):
            continue
        s += d * d
    y[i] = s


def test_a_turn_that_has_only_looked_needs_nothing() -> None:
    """Each turn makes its own ``d``, before it reads it: Warp's adjoint is right, and stays."""
    op = warp_op(within_a_cutoff, "x[n], m[c] -> y[n]", dim="n")
    assert "the kernel's own adjoint" in op.explain()
    x = torch.tensor([0.3, 0.8, 1.7, 0.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: op(x, torch.tensor([1, 2, 0], dtype=torch.int32)), [x])
