"""In-out arrays whose tangent the tangent kernel leaves as it is: what is added to them has none."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from derivatives import check_twice
from support import compiled
from warpops import warp_op

f64 = wp.float64


@warp_op("x[n, m], y[n] -> y[n]", name="left_alone::squares")
@wp.kernel
def squares(x: wp.array2d[f64], y: wp.array[f64]):
    i = wp.tid()
    for k in range(x.shape[1]):
        y[i] += x[i, k] * x[i, k]


@warp_op("x[n, m], y[n] -> y[n], total[1]", name="left_alone::atomics")
@wp.kernel
def atomics(x: wp.array2d[f64], y: wp.array[f64], total: wp.array[f64]):
    i = wp.tid()
    for k in range(x.shape[1]):
        wp.atomic_add(y, i, x[i, k] * x[i, k])
        wp.atomic_sub(total, 0, x[i, k])


@wp.func
def add_to(y: wp.array[f64], i: int, value: f64):
    y[i] += value


@warp_op("x[n], y[n] -> y[n]", name="left_alone::functions")
@wp.kernel
def functions(x: wp.array[f64], y: wp.array[f64]):
    i = wp.tid()
    add_to(y, i, x[i] * x[i])


X = torch.rand(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.3
Y = X[:, 0].clone()
OPS = {"squares": (squares, X), "atomics": (atomics, X), "functions": (functions, Y)}


@pytest.mark.parametrize("name", OPS)
def test_only_the_in_out_array_has_a_tangent(name: str) -> None:
    op, x = OPS[name]
    check_twice(lambda y: op(x, y), Y)
    check_twice(op, x, Y)
    torch.autograd.gradgradcheck(op, (x.clone().requires_grad_(), Y.clone().requires_grad_()))


@pytest.mark.parametrize("name", OPS)
def test_under_vmap(name: str) -> None:
    op, x = OPS[name]

    def tangent(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        found = torch.func.jvp(lambda y: op(x, y), (y,), (dy,))[1]
        return found[0] if isinstance(found, tuple) else found

    seeds = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(tangent, in_dims=(None, 0))(Y, seeds), seeds)
    torch.testing.assert_close(torch.func.vmap(tangent)(torch.stack([Y, 2 * Y, 3 * Y]), seeds), seeds)


def test_in_one_graph() -> None:
    @compiled
    def tangent(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        return squares.tangent(X, y, tangent_y=dy)[1]

    seed = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(tangent(Y, seed), seed)
