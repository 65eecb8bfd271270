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


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64)


def test_tangents_of_tiles():
    op = warp_op(rows, "x[n, 4], w[n, 4] -> y[n, 4], s[n]", dim="n", tiled=True, block_dim=1, name="tangents::rows")
    check_twice(op, rand(3, 4), rand(3, 4))


def test_a_mapped_function_is_refused():
    op = warp_op(mapped, "x[n, 4] -> y[n, 4]", dim="n", tiled=True, block_dim=1, name="tangents::mapped")
    with pytest.raises(GradientError, match="'tile_map' has no tangent rule"):
        torch.func.jvp(op, (rand(3, 4),), (rand(3, 4),))
