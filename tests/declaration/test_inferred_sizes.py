"""Sizes that a person would read from the kernel: loops over a length, halves, branches, mirrored and interleaved stores."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import check_against, close
from warpops import ArgumentError, SignatureError, warp_op

Array = wp.array[float]
Matrix = wp.array2d[float]


@warp_op
@wp.kernel
def times_matrix(x: Matrix, w: Matrix, y: Matrix):
    i = wp.tid()
    for k in range(w.shape[1]):
        total = float(0.0)
        for j in range(x.shape[1]):
            total += x[i, j] * w[j, k]
        y[i, k] = total


@warp_op
@wp.kernel
def powers(x: Array, count: int, y: Matrix):
    i = wp.tid()
    value = float(1.0)
    for k in range(count):
        y[i, k] = value * x[i]


@warp_op
@wp.kernel
def with_half(x: Array, y: Array):
    i = wp.tid()
    y[i] = x[i] * x[i // 2]


@warp_op
@wp.kernel
def with_even(x: Array, y: Array):
    i = wp.tid()
    y[i] = x[i] * x[i - i % 2]


@warp_op
@wp.kernel
def in_both_branches(x: Array, y: Array):
    i = wp.tid()
    if i < 2:
        y[i] = x[i] * x[i]
    else:
        if i % 2 == 0:
            y[i] = 3.0 * x[i]
        else:
            y[i] = 2.0 * x[i]


@warp_op
@wp.kernel
def mirrored(x: Array, y: Array):
    i = wp.tid()
    y[y.shape[0] - 1 - i] = x[i] * x[i]


@warp_op
@wp.kernel
def interleaved(x: Array, y: Array):
    i = wp.tid()
    y[2 * i] = x[i] * x[i]
    y[2 * i + 1] = -x[i]


def branches(x):
    i = torch.arange(len(x))
    return torch.where(i < 2, x * x, torch.where(i % 2 == 0, 3.0 * x, 2.0 * x))


half, even = (lambda x: x * x[torch.arange(len(x)) // 2]), (lambda x: x * x[torch.arange(len(x)) // 2 * 2])
OPS = [
    (times_matrix, torch.matmul, lambda: (torch.randn(3, 2), torch.randn(2, 4)), "y: output [n, k]"),
    (with_half, half, lambda: (torch.randn(5),), "x: input [n]"),
    (with_even, even, lambda: (torch.randn(5),), "x: input [n]"),
    (in_both_branches, branches, lambda: (torch.randn(5),), "x: input [n]"),
    (mirrored, lambda x: (x * x).flip(0), lambda: (torch.randn(4),), "y: output [n]"),
    (interleaved, lambda x: torch.stack([x * x, -x], 1).flatten(), lambda: (torch.randn(4),), "y: output [2 * n]"),
]


@pytest.mark.parametrize(("op", "reference", "inputs", "shape"), OPS, ids=lambda v: getattr(v, "name", ""))
def test_sizes_follow_from_the_indices(mode, op, reference, inputs, shape):
    check_against(mode(op), reference, inputs())
    assert shape in op.explain()


def test_a_loop_over_an_int_argument():
    x = torch.randn(3, requires_grad=True)
    y = powers(x, 4)
    close(y.detach(), x.detach()[:, None].expand(3, 4))
    close(torch.autograd.grad(y.sum(), x)[0], torch.full((3,), 4.0))
    assert powers(x, 0).shape == (3, 0)


def test_sizes_of_one_name_agree():
    with pytest.raises(
        ArgumentError, match="its axis 0 has size 3, and the kernel indexes it in a loop over axis 1 of 'x'"
    ):
        times_matrix(torch.ones(2, 4), torch.ones(3, 2))


# --- what isn't certain ---------------------------------------------------------------------------------------------------


@wp.kernel
def upsampled(x: Array, y: Array):
    i = wp.tid()
    y[i] = x[i // 2]


@wp.kernel
def only_even(x: Array, y: Array):
    i = wp.tid()
    y[2 * i] = x[i]


@wp.kernel
def some_columns(x: Array, w: Matrix, y: Matrix):
    i = wp.tid()
    for k in range(w.shape[1] - 1):
        y[i, k] = x[i]


@wp.kernel
def columns_and_one(x: Array, w: Matrix, y: Matrix):
    i = wp.tid()
    for k in range(w.shape[1]):
        y[i, k] = x[i]
    y[i, 3] = 0.0


@wp.kernel
def columns_if(x: Array, w: Matrix, y: Matrix):
    i = wp.tid()
    for k in range(w.shape[1]):
        if x[i] > 0.0:
            y[i, k] = x[i]


@wp.kernel
def in_one_branch(x: Array, y: Array):
    i = wp.tid()
    if i < 2:
        y[i] = x[i]
    else:
        if i % 2 == 0:
            y[i] = 1.0
        else:
            y[i] = x[i]


@pytest.mark.parametrize(
    "kernel", [upsampled, only_even, some_columns, columns_and_one, columns_if, in_one_branch], ids=lambda k: k.key
)
def test_nothing_is_guessed(kernel):
    with pytest.raises(SignatureError, match="no array's size says|can't be read from the kernel"):
        warp_op(kernel)


def test_how_far_a_multiple_reaches_is_checked():
    op = warp_op(only_even, "x[n] -> y[m]", sizes="m")
    assert op(torch.ones(3), 5).tolist() == [1.0, 0.0, 1.0, 0.0, 1.0]
    with pytest.raises(
        ArgumentError, match="'y': its axis 0 has size 4, .* 3 threads on axis 0 of dim, which indexes it times 2"
    ):
        op(torch.ones(3), 4)
    with pytest.raises(
        ArgumentError, match="'y': its axis 0 has size 3, .* 3 threads on axis 0 of dim, which indexes it times 2"
    ):
        op(torch.ones(3), 3)
    op = warp_op(upsampled, "x[m] -> y[n]", sizes="n")
    assert op(torch.arange(2.0), 3).tolist() == [0.0, 0.0, 1.0]
    assert op(torch.arange(2.0), 4).tolist() == [0.0, 0.0, 1.0, 1.0]
    with pytest.raises(
        ArgumentError, match="'x': its axis 0 has size 2, .* 5 threads .*, which indexes it divided by 2"
    ):
        op(torch.arange(2.0), 5)
    assert op(torch.ones(0), 0).shape == (0,)


@warp_op("x[n, m] -> y[n]")
@wp.kernel
def drawn(x: Matrix, y: Array):
    i = wp.tid()
    state = wp.rand_init(42, i)
    low = float(i)
    y[i] = wp.randf(state, low, low + 1.0) * x[i, 0] + wp.randf(wp.rand_init(7), low, low + 1.0)


def test_a_seed_stays_as_it_is():
    """Drawing a number changes the state that it is drawn from, and nothing else."""
    found = drawn(torch.ones(3, 2))
    assert found.shape == (3,)
    assert all(2 * i <= value <= 2 * i + 2 for i, value in enumerate(found.tolist()))


@wp.kernel
def of_the_state(x: Array, y: Array):
    i = wp.tid()
    state = wp.rand_init(42, i)
    x[i] + wp.randf(state)
    y[int(state)] = x[i]


def test_a_state_that_was_drawn_from_is_no_coordinate():
    assert "indexed by a value set by randf" in warp_op(of_the_state, "x[n] -> y[m]", sizes="m").explain()
