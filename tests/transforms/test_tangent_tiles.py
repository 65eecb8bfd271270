"""Tangents of kernels that work on tiles."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from derivatives import check_twice
from support import WARP
from warpops import GradientError, warp_op

f64 = wp.float64
SIZE = wp.constant(4)

pytestmark = pytest.mark.skipif(WARP < (1, 19), reason="tiles on the CPU")


@wp.kernel
def rows(x: wp.array2d[f64], w: wp.array2d[f64], y: wp.array2d[f64], s: wp.array[f64]):
    i, _lane = wp.tid()
    a = wp.tile_load(x, shape=(1, SIZE), offset=(i, 0))
    b = wp.tile_load(w, shape=(1, SIZE), offset=(i, 0))
    c = a * b + a
    wp.tile_store(y, c - b, offset=(i, 0))
    wp.tile_store(s, wp.tile_sum(c * a), offset=(i,))


@wp.kernel
def mapped(x: wp.array2d[f64], y: wp.array2d[f64]):
    i, _lane = wp.tid()
    wp.tile_store(y, wp.tile_map(wp.sin, wp.tile_load(x, shape=(1, SIZE), offset=(i, 0))), offset=(i, 0))


@wp.func
def bent(x: f64):
    if x > f64(0.5):
        return x * x * x
    return wp.exp(x) * x


@wp.kernel
def mapped_by_the_users_own(x: wp.array2d[f64], y: wp.array2d[f64]):
    i, _lane = wp.tid()
    a = wp.tile_load(x, shape=(1, SIZE), offset=(i, 0))
    wp.tile_store(y, wp.tile_map(bent, a * a) + wp.tile_map(wp.floor, a), offset=(i, 0))


@wp.kernel
def mapped_over_two(x: wp.array2d[f64], w: wp.array2d[f64], y: wp.array2d[f64]):
    i, _lane = wp.tid()
    a = wp.tile_load(x, shape=(1, SIZE), offset=(i, 0))
    b = wp.tile_load(w, shape=(1, SIZE), offset=(i, 0))
    wp.tile_store(y, wp.tile_map(wp.atan2, a, b), offset=(i, 0))


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64)


def test_tangents_of_tiles():
    op = warp_op(rows, "x[n, 4], w[n, 4] -> y[n, 4], s[n]", dim="n", tiled=True, block_dim=1, name="tangents::rows")
    check_twice(op, rand(3, 4), rand(3, 4))


@pytest.mark.parametrize("kernel", [mapped, mapped_by_the_users_own], ids=["a builtin", "the user's own"])
def test_a_mapped_function(kernel):
    name = f"tangents::{kernel.key}"
    op = warp_op(kernel, "x[n, 4] -> y[n, 4]", dim="n", tiled=True, block_dim=1, name=name)
    check_twice(op, rand(3, 4))


def test_a_mapped_function_of_two_tiles_is_refused():
    declared = "x[n, 4], w[n, 4] -> y[n, 4]"
    op = warp_op(mapped_over_two, declared, dim="n", tiled=True, block_dim=1, name="tangents::mapped_over_two")
    with pytest.raises(GradientError, match="'tile_map' of two arguments has no tangent rule"):
        torch.func.jvp(op, (rand(3, 4), rand(3, 4)), (rand(3, 4), rand(3, 4)))
