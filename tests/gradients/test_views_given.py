"""Views given to functions with a gradient of the user's (``wp.func_grad``): they get the array and the index."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from loop_kernels import D, check, uniform
from support import close
from warpops import GradientError, warp_op

Array = wp.array[D]
Matrix = wp.array2d[D]


@wp.func
def scaled_first(row: Array, s: D):
    return row[0] * s


@wp.func_grad(scaled_first)
def adj_scaled_first(given: Array, s: D, adj_ret: D):
    wp.adjoint[given][0] += adj_ret * s
    wp.adjoint[s] += adj_ret * given[0]


@wp.func
def squares(row: Array):
    total = D(0.0)
    for k in range(row.shape[0]):
        total += row[k] * row[k]
    return total


@wp.func_grad(squares)
def adj_squares(row: Array, adj_ret: D):
    for k in range(row.shape[0]):
        wp.atomic_add(wp.adjoint[row], k, D(2.0) * row[k] * adj_ret)


@wp.kernel
def of_rows(x: Matrix, w: Array, y: Array):
    i = wp.tid()
    row = x[i]
    y[i] = scaled_first(x[i], w[i]) * squares(row) + squares(w)


@wp.func
def of_layer(x: wp.array3d[D], i: int, j: int):
    return squares(x[i, j]) * scaled_first(x[i, 0], D(2.0))


@wp.kernel
def in_loops(x: wp.array3d[D], y: Array):
    i = wp.tid()
    total = D(1.0)
    for j in range(x.shape[1]):
        total = total * of_layer(x, i, j) + squares(x[i, j])
    y[i] = total


@wp.kernel
def of_a_slice(x: Array, w: Array, y: Array):
    i = wp.tid()
    y[i] = squares(x[1:]) * w[i]


def test_rows(mode):
    op = warp_op(of_rows, "x[n, m], w[n] -> y[n]", name="views::of_rows")
    assert "the array and the index" in " ".join(op.explain().split())
    x, w = uniform(3, 4), uniform(3, seed=1)
    check(mode(op), x, w)
    assert "squares_at" in op.source


def test_rows_in_loops_and_functions():
    check(warp_op(in_loops, "x[n, m, k] -> y[n]", name="views::in_loops"), uniform(2, 3, 2, low=0.3))


def test_rows_in_one_launch_of_vmap():
    op = warp_op(of_rows, "x[n, m], w[n] -> y[n]", name="views::vmapped")
    x, w = uniform(2, 3, 4).detach(), uniform(3, seed=1).detach()
    gradient = torch.func.grad(lambda x: op(x, w).sum())
    for found, one in zip(torch.func.vmap(gradient)(x), x, strict=True):
        close(found, gradient(one))


def test_a_slice_is_refused_in_words():
    op = warp_op(of_a_slice, "x[m], w[n] -> y[n]", name="views::of_a_slice")
    with pytest.raises(GradientError, match=r"a view of an array; .*`squares\(x\[1:\]\)` is given something else"):
        op(uniform(4), uniform(3)).sum().backward()
