"""Transforms over a compiled function, which PyTorch runs eagerly: Dynamo must leave what warpops does then alone."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from warpops import warp_op


@warp_op
@wp.kernel
def scaled(x: wp.array2d[wp.float64], w: wp.array[wp.float64], y: wp.array2d[wp.float64]):
    i, j = wp.tid()
    y[i, j] = x[i, j] * w[j]


WAYS = {
    "vmap": lambda f, x: torch.func.vmap(f)(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x[0],), (x[1],))[1],
    "grad": lambda f, x: torch.func.grad(lambda one: f(one).square().sum())(x[0]),
    "vmap of grad": lambda f, x: torch.func.vmap(torch.func.grad(lambda one: f(one).square().sum()))(x),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_transform_of_a_compiled_function(way: str) -> None:
    x = torch.randn(3, 2, 4, dtype=torch.float64)
    w = torch.randn(4, dtype=torch.float64)
    found = WAYS[way](torch.compile(lambda one: scaled(one, w), backend="aot_eager"), x)
    torch.testing.assert_close(found, WAYS[way](lambda one: one * w, x))
