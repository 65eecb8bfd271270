"""Loops that replace what had a gradient by what has none: the adjoint has to end the gradient of what was there before."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import compiled
from warpops import warp_op

D = wp.float64


@wp.struct
class Pair:
    kept: D
    replaced: D


@wp.kernel
def until_found(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    p = x[i]
    for k in range(m.shape[0]):
        p = D(m[k])
        if m[k] > i:
            break
    y[i] = p * p + p


@wp.kernel
def by_the_largest(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    """Whether it is replaced depends on what the turns before made."""
    i = wp.tid()
    p = x[i]
    best = int(i)
    for k in range(m.shape[0]):
        if m[k] > best:
            best = m[k]
            p = D(best)
    y[i] = p * p * x[i]


@wp.kernel
def while_it_runs(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    p = x[i]
    k = int(i)
    while k < m.shape[0]:
        p = D(3.0)
        k += 2
    y[i] = wp.sin(p) * p


@wp.kernel
def a_field(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    s = Pair()
    s.kept = x[i]
    s.replaced = x[i]
    for k in range(i, m.shape[0]):
        s.replaced = D(m[k])
        if m[k] == 2:
            break
    y[i] = s.kept * s.replaced + s.replaced * s.replaced


@wp.kernel
def inside_of_a_sum(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    s = D(0.0)
    for j in range(3):
        p = x[i] * x[i]
        for k in range(j, m.shape[0]):
            p = D(m[k])
            if m[k] > i:
                break
        s += p * p * x[i]
    y[i] = s


@wp.func
def found(p: D, i: int, m: wp.array[int]) -> D:
    for k in range(i, m.shape[0]):
        p = D(m[k])
        if m[k] == 2:
            return p * p
    return p * p * p


@wp.kernel
def in_a_function(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    y[i] = found(x[i], i, m)


@wp.kernel
def an_element(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    y[i] = x[i] * x[i]
    for k in range(m.shape[0]):
        if m[k] == i:
            y[i] = D(2.0)
            break


@wp.kernel
def an_element_by_the_largest(x: wp.array[D], m: wp.array[int], y: wp.array[D]):
    i = wp.tid()
    y[i] = x[i] * x[i]
    best = int(i)
    for k in range(m.shape[0]):
        if m[k] > best:
            best = m[k]
            y[i] = D(best)


@wp.kernel
def of_a_row(x: wp.array[D], m: wp.array[int], y: wp.array2d[D]):
    i = wp.tid()
    y[i, 0] = x[i] * x[i]
    y[i, 1] = x[i]
    k = int(0)
    while k < m.shape[0]:
        if m[k] == i:
            break
        y[i, k % 2] = D(2.0)
        k += 1


@wp.kernel
def what_was_given(u: wp.array[D], m: wp.array[int]):
    i = wp.tid()
    for k in range(m.shape[0]):
        u[i] = D(m[k])
        if m[k] > i:
            break


KERNELS = [until_found, by_the_largest, while_it_runs, a_field, inside_of_a_sum, in_a_function]
KERNELS += [an_element, an_element_by_the_largest, of_a_row, what_was_given]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.key)
def test_what_was_replaced_has_no_gradient(kernel: wp.Kernel) -> None:
    declared = {of_a_row: "x[n], m[c] -> y[n, 2]", what_was_given: "u[n], m[c] -> u[n]"}
    signature = declared.get(kernel, "x[n], m[c] -> y[n]")
    op = warp_op(kernel, signature, dim="n", name=f"replacing::{kernel.key}")
    for m in ([1, 2, 0], [0, 1], [2], []):
        index = torch.tensor(m, dtype=torch.int32)
        x = torch.tensor([0.3, 0.8, 1.7, 0.5], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x, index=index: op(x, index), [x])
    index = torch.tensor([1, 2, 0], dtype=torch.int32)
    assert torch.autograd.gradgradcheck(lambda x: op(x, index), [x])
    if kernel in (until_found, an_element):
        (eager,) = torch.autograd.grad(op(x, index).sum(), x)
        (inside,) = torch.autograd.grad(compiled(op)(x, index).sum(), x)
        torch.testing.assert_close(inside, eager)
