"""Gradients through views of arrays: rows, slices, aliases, tiles, and arrays handed to functions."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from kinds import store_by_row_op
from support import check_against, close, leaf
from warpops import warp_op


@wp.func
def first_times_last(row: wp.array[float]):
    return row[0] * row[row.shape[0] - 1]


@wp.kernel
def by_row(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    row = x[i]
    y[i] = row[0] * row[1]


@wp.kernel
def by_call(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = first_times_last(x[i])


@wp.kernel
def by_alias(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    same = x
    y[i] = same[i, 0] * same[i, 1]


@wp.kernel
def by_slice(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    part = x[i, 1:3]
    y[i] = part[0] * part[1]


@wp.kernel
def by_where(x: wp.array2d[float], u: wp.array2d[float], left: bool, y: wp.array[float]):
    i = wp.tid()
    chosen = wp.where(left, x, u)
    y[i] = chosen[i, 0] * x[i, 1]


@wp.kernel
def by_tile(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    tile = wp.tile_load(x[i], shape=4)
    wp.tile_store(y, wp.tile_sum(tile * tile), offset=i)


@wp.kernel
def tile_to_tile(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    tile = wp.tile_load(x[i], shape=4)
    wp.tile_store(y[i], tile * tile)


by_row_op = warp_op(by_row, "x[n, _] -> y[n]", dim="n")
by_call_op = warp_op(by_call, "x[n, _] -> y[n]", dim="n")
by_alias_op = warp_op(by_alias, "x[n, _] -> y[n]", dim="n")
by_slice_op = warp_op(by_slice, "x[n, _] -> y[n]", dim="n")
by_where_op = warp_op(by_where, "x[n, m], u[n, m] -> y[n]", dim="n")
by_tile_op = warp_op(by_tile, "x[n, 4] -> y[n]", dim="n", tiled=True, block_dim=32)
tile_to_tile_op = warp_op(tile_to_tile, "x[n, 4] -> y[n, 4]", dim="n", tiled=True, block_dim=32)

VIEWS = {
    "row": (by_row_op, lambda x: x[:, 0] * x[:, 1]),
    "call": (by_call_op, lambda x: x[:, 0] * x[:, -1]),
    "alias": (by_alias_op, lambda x: x[:, 0] * x[:, 1]),
    "slice": (by_slice_op, lambda x: x[:, 1] * x[:, 2]),
    "where": (lambda x: by_where_op(x, x + 1.0, True), lambda x: x[:, 0] * x[:, 1]),
    "where not": (lambda x: by_where_op(x, x + 1.0, False), lambda x: (x[:, 0] + 1.0) * x[:, 1]),
    "tile": (by_tile_op, lambda x: (x * x).sum(1)),
    "tile to tile": (tile_to_tile_op, lambda x: x * x),
    "store": (lambda x: store_by_row_op(x[:, :3]), lambda x: x[:, :3] ** 2),
}
LAYOUTS = {
    "dense": lambda: torch.randn(3, 4),
    "transposed": lambda: torch.randn(4, 3).t(),
    "strided": lambda: torch.randn(6, 8)[::2, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("view", VIEWS)
def test_views_keep_the_gradient(mode, view, layout):
    op, reference = VIEWS[view]
    base = LAYOUTS[layout]()
    check_against(mode(op), reference, (base,))


@pytest.mark.parametrize("view", ["row", "tile", "tile to tile", "store"])
def test_views_take_a_cotangent_without_strides(mode, view):
    """``.sum().backward()`` hands over one number with stride 0; a view would index past its end."""
    op, reference = VIEWS[view]
    a, b = leaf(torch.randn(3, 4)), leaf(torch.randn(3, 4))
    b.data.copy_(a.data)
    mode(op)(a).sum().backward()
    reference(b).sum().backward()
    close(a.grad, b.grad)
