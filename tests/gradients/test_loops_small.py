"""Run-time loops whose bounds hold the variable of an unrolled loop are written with numbers, and nothing is restored."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import close
from warpops import warp_op

D = wp.float64
WIDTH = wp.constant(3)


@wp.kernel
def packed(x: wp.array2d[D], y: wp.array[wp.mat33d]):
    """The upper triangle of a matrix, by an index that the loops step."""
    i = wp.tid()
    m = wp.mat33d()
    at = int(0)
    for k in range(WIDTH):
        for n in range(k + 1, 3):
            m[k, n] += x[i, at]
            m[n, k] -= x[i, at] * x[i, at]
            at += 1
    y[i] = m


@wp.kernel
def three_deep(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    s = x[i, 0]
    for a in range(2):
        if a < 5:
            for b in range(a, 2):
                s = s * wp.sin(x[i, b]) + x[i, a]
                for c in range(2 * b, 3, 1):
                    s = s * x[i, c] - x[i, 2 - c]
    y[i] = s * s


@wp.kernel
def held(x: wp.array2d[D], y: wp.array[D]):
    """A local holds the count of the loop around, and both variables are cast, more than once in a turn."""
    i = wp.tid()
    count = 3
    s = x[i, 0]
    for a in range(count):
        for b in range(a):
            s = s * wp.cos(s + D(b) * x[i, 1]) + D(a) * x[i, 2]
    y[i] = s


@wp.kernel
def given_before(x: wp.array2d[D], n: int, y: wp.array[D]):
    """The number that a name has later isn't what it has in the loop."""
    i = wp.tid()
    s = x[i, 0]
    for a in range(2):
        for b in range(a, n):
            s = s * x[i, b] + x[i, a]
    n = 1
    y[i] = s * D(n)


@wp.kernel
def around(x: wp.array2d[D], n: wp.array[int], y: wp.array[D]):
    """The small loop is part of one that stays."""
    i = wp.tid()
    s = x[i, 0]
    for k in range(n[i]):
        for a in range(2):
            for b in range(-a, 1):
                s = s * x[i, k] + wp.cos(s) * x[i, a - b]
    y[i] = s


@wp.kernel
def read_after(x: wp.array2d[D], y: wp.array[D]):
    """A loop's variable is used behind it: such loops stay."""
    i = wp.tid()
    s = x[i, 0]
    for a in range(2):
        for b in range(a, 3):
            s = s * x[i, b] + x[i, a]
        s = s * x[i, b % 3]
    y[i] = s


@wp.kernel
def many(x: wp.array2d[D], y: wp.array[D]):
    """Too many turns to write out."""
    i = wp.tid()
    s = x[i, 0]
    for a in range(12):
        for b in range(a, 12):
            s = s * x[i, b % 3] * D(0.7) + x[i, a % 3]
    y[i] = s


@wp.kernel
def left(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    s = x[i, 0]
    for a in range(3):
        for b in range(a, 3):
            if s > D(1.0):
                break
            s = s * x[i, b] + x[i, a]
    y[i] = s


def rand(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.2


WRITTEN = ": written with numbers for its bounds"
N = torch.tensor([2, 0, 1, 3], dtype=torch.int32)


@pytest.mark.parametrize(
    ("kernel", "declared", "written"),
    [
        (packed, "x[n, 3] -> y[n]", 1),
        (three_deep, "x[n, 3] -> y[n]", 2),
        (held, "x[n, 3] -> y[n]", 1),
        (given_before, "x[m, 3] -> y[m]", 0),
        (around, "x[m, 3], n[m] -> y[m]", 1),
        (read_after, "x[n, 3] -> y[n]", 0),
        (many, "x[n, 3] -> y[n]", 0),
        (left, "x[n, 3] -> y[n]", 0),
    ],
    ids=lambda value: getattr(value, "key", None),
)
def test_gradients_and_what_is_written(kernel, declared, written):
    op = warp_op(kernel, declared, name=f"small::{kernel.key}")
    more = {around: (N,), given_before: (3,)}.get(kernel, ())
    assert torch.autograd.gradcheck(lambda x: op(x, *more), [rand(4, 3).requires_grad_()])
    told = " ".join(op.explain().split())
    assert told.count(WRITTEN) == written
    adjoint = op.source.rpartition(f"def {kernel.key}_adjoint")[2]
    assert ("walk_" in adjoint) == (kernel in (around, given_before, read_after, many, left))


def test_second_derivatives():
    assert torch.autograd.gradgradcheck(
        warp_op(held, "x[n, 3] -> y[n]", name="small::held_twice"), [rand(2, 3).requires_grad_()]
    )
    op = warp_op(packed, "x[n, 3] -> y[n]", name="small::packed_twice")
    assert torch.autograd.gradgradcheck(op, [rand(2, 3).requires_grad_()])
    x = rand(2, 3).requires_grad_()
    (first,) = torch.autograd.grad(op(x).sum(), x)
    close(first, (1 - 2 * x).detach())
