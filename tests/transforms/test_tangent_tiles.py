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


@wp.kernel
def products(a: wp.array2d[f64], b: wp.array2d[f64], c: wp.array2d[f64], d: wp.array2d[f64]):
    i, j, _lane = wp.tid()
    s = wp.tile_zeros(shape=(2, 2), dtype=f64)
    for k in range(a.shape[1] / 2):
        left = wp.tile_load(a, shape=(2, 2), offset=(i * 2, k * 2))
        wp.tile_matmul(left, wp.tile_load(b, shape=(2, 2), offset=(k * 2, j * 2)), s, 0.5)
    wp.tile_store(c, s, offset=(i * 2, j * 2))
    t = wp.tile_load(a, shape=(2, 2), offset=(i * 2, 0))
    wp.tile_store(d, wp.tile_matmul(t, t * t), offset=(i * 2, j * 2))


@wp.kernel
def products_by_name(a: wp.array2d[f64], c: wp.array2d[f64]):
    i, _lane = wp.tid()
    s = wp.tile_ones(shape=(2, 2), dtype=f64)
    left = wp.tile_load(a, shape=(2, 2), offset=(i * 2, 0))
    wp.tile_matmul(left, left, s, beta=0.5)
    wp.tile_store(c, s, offset=(i * 2, 0))


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


def test_matrix_products():
    declared = "a[2 * n, 2 * k], b[2 * k, 2 * m] -> c[2 * n, 2 * m], d[2 * n, 2 * m]"
    op = warp_op(products, declared, dim="n, m", tiled=True, block_dim=1, name="tangents::products")
    a, b = rand(4, 6), rand(6, 2)
    torch.testing.assert_close(op(a, b)[0], 0.5 * a @ b)
    check_twice(op, a, b)
    check_twice(lambda b: op(a, b), b)


def test_a_matrix_product_with_named_factors_is_refused():
    op = warp_op(
        products_by_name,
        "a[2 * n, 2] -> c[2 * n, 2]",
        dim="n",
        tiled=True,
        block_dim=1,
        name="tangents::named_products",
    )
    assert "'tile_matmul' of more than tiles and 'alpha' has no tangent rule" in op.tangent.explain()
    with pytest.raises(GradientError, match=r"no tangent rule \(.*test_tangent_tiles.py:\d+: `wp.tile_matmul"):
        torch.func.jvp(op, (rand(4, 2),), (rand(4, 2),))
