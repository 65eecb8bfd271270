"""Tile kernels: launch size without the lane, reductions, products and factorisations, with gradients."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import WARP, check_against, close
from warpops import ArgumentError, GradientWarning, SignatureError, warp_op

TILE = 8
BLOCK = 4


@wp.kernel
def row_norms(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    row = wp.tile_load(x[i], shape=TILE)
    wp.tile_store(y, wp.tile_sum(row * row), offset=i)


@wp.kernel
def lane_norms(x: wp.array2d[float], y: wp.array[float]):
    i, _lane = wp.tid()
    row = wp.tile_load(x[i], shape=TILE, storage="shared")
    wp.tile_atomic_add(y, wp.tile_sum(row * row), offset=i)


@wp.kernel
def multiply(a: wp.array2d[float], b: wp.array2d[float], c: wp.array2d[float]):
    i, j = wp.tid()
    total = wp.tile_zeros(shape=(BLOCK, BLOCK), dtype=float)
    for k in range(2):
        x = wp.tile_load(a, shape=(BLOCK, BLOCK), offset=(i * BLOCK, k * BLOCK))
        y = wp.tile_load(b, shape=(BLOCK, BLOCK), offset=(k * BLOCK, j * BLOCK))
        wp.tile_matmul(x, y, total)
    wp.tile_store(c, total, offset=(i * BLOCK, j * BLOCK))


@wp.kernel
def factor(b: wp.array3d[float], root: wp.array3d[float]):
    i = wp.tid()
    half = wp.tile_load(b[i], shape=(BLOCK, BLOCK))
    wp.tile_store(root[i], wp.tile_cholesky(half + wp.tile_transpose(half)))


@wp.kernel
def fourier(x: wp.array2d[wp.vec2], y: wp.array2d[wp.vec2]):
    i = wp.tid()
    row = wp.tile_load(x, shape=(1, TILE), offset=(i, 0))
    wp.tile_fft(row)
    wp.tile_store(y, row, offset=(i, 0))


@wp.kernel(module="unique")  # a Warp that can't build it builds the rest
def smooth(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    row = wp.tile_load(x[i], shape=TILE, storage="shared")
    wp.tile_store(y[i], wp.tile_map(wp.tanh, row) * wp.tile_broadcast(wp.tile_sum(row), shape=(TILE,)))


def norms(x):
    return (x * x).sum(1)


def test_reduction_over_a_tile(mode):
    op = warp_op(row_norms, "x[n, 8] -> y[n]", tiled=True)
    check_against(mode(op), norms, [torch.randn(5, TILE)])
    assert op(torch.zeros(0, TILE)).shape == (0,)


def test_lane_axis_is_left_out_of_the_launch_size(mode):
    for dim in ("n", None):
        call = mode(warp_op(lane_norms, "x[n, 8] -> y[n]", dim=dim, tiled=True, block_dim=64))
        check_against(call, norms, [torch.randn(5, TILE)])


def test_tiles_of_non_contiguous_and_expanded_arrays(mode):
    op = warp_op(row_norms, "x[n, 8] -> y[n]", tiled=True)
    check_against(mode(lambda x: op(x.t())), lambda x: norms(x.t()), [torch.randn(TILE, 5)])
    check_against(mode(lambda x: op(x.expand(3, TILE))), lambda x: norms(x.expand(3, TILE)), [torch.randn(TILE)])
    x = torch.randn(5, TILE, requires_grad=True)
    mode(op)(x).sum().backward()  # an expanded cotangent
    close(x.grad, 2.0 * x)


def test_matrix_product(mode):
    op = warp_op(multiply, "a[n, 8], b[8, m] -> c[n, m]", dim="n // 4, m // 4", tiled=True, block_dim=32)
    check_against(mode(op), torch.matmul, [torch.randn(8, 8), torch.randn(8, 12)])
    check_against(mode(lambda a, b: op(a.t(), b)), lambda a, b: a.t() @ b, [torch.randn(8, 8), torch.randn(8, 4)])


def test_cotangent_is_not_consumed():
    op = warp_op(row_norms, "x[n, 8] -> y[n]", tiled=True)
    x = torch.randn(3, TILE, requires_grad=True)
    grad = torch.ones(3)
    result = op(x)
    for _ in range(2):
        close(torch.autograd.grad(result, x, grad, retain_graph=True)[0], 2.0 * x.detach())
    assert torch.equal(grad, torch.ones(3))


def test_cholesky(mode):
    call = mode(warp_op(factor, "b[n, 4, 4] -> root[n, 4, 4]", tiled=True, dim="n", block_dim=32))
    half = torch.randn(3, BLOCK, BLOCK)
    spd = half @ half.mT + 4.0 * torch.eye(BLOCK)
    check_against(call, lambda b: torch.linalg.cholesky(b + b.mT), [spd], rtol=1e-3, atol=1e-4)


def test_fourier_transform(mode):
    call = mode(warp_op(fourier, "x[n, 8] -> y[n, 8]", tiled=True, dim="n", block_dim=2))
    check_against(
        call, lambda x: torch.view_as_real(torch.fft.fft(torch.view_as_complex(x))), [torch.randn(3, TILE, 2)]
    )


@pytest.mark.skipif(WARP < (1, 19), reason="has no adjoint of wp.tanh for tile_map on the CPU")
def test_map_and_broadcast(mode):
    call = mode(warp_op(smooth, "x[n, 8] -> y[n, 8]", tiled=True, dim="n"))
    check_against(call, lambda x: torch.tanh(x) * x.sum(1, keepdim=True), [torch.randn(3, TILE)])


@wp.kernel
def peaks(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    wp.tile_store(y, wp.tile_max(wp.tile_load(x[i], shape=TILE)), offset=i)


def test_function_of_tiles_that_warp_does_not_differentiate():
    with pytest.warns(GradientWarning, match="no adjoint for wp.tile_max"):
        op = warp_op(peaks, "x[n, 8] -> y[n]", tiled=True)
    x = torch.randn(3, TILE)
    close(op(x), x.amax(1))


def test_block_dim_of_a_plain_kernel(mode):
    op = warp_op(twice, "x[n] -> y[n]", block_dim=128)
    check_against(mode(op), lambda x: x * 2.0, [torch.randn(5)])
    with pytest.raises(SignatureError, match="block_dim is a positive int"):
        warp_op(twice, "x[n] -> y[n]", block_dim=0)


@wp.kernel
def twice(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * 2.0


def test_wrong_launch_rank_of_a_tiled_kernel():
    with pytest.raises(SignatureError, match="dim has 3 sizes .*takes 2 coordinates"):
        warp_op(lane_norms, "x[n, 8] -> y[n]", dim="n, 1, 1", tiled=True)


def test_leading_batch_dimension_is_an_error_that_names_vmap():
    op = warp_op(row_norms, "x[n, 8] -> y[n]", tiled=True)
    with pytest.raises(
        ArgumentError, match=r"'x': expected 2 dimensions .* for 1 leading batch dimension use torch.vmap"
    ):
        op(torch.zeros(2, 5, TILE))
    close(torch.vmap(op)(torch.ones(2, 5, TILE)), torch.full((2, 5), 8.0))


def test_opcheck():
    op = warp_op(row_norms, "x[n, 8] -> y[n]", tiled=True)
    torch.library.opcheck(op.overload, (torch.randn(3, TILE, requires_grad=True),))
    op = warp_op(multiply, "a[n, 8], b[8, m] -> c[n, m]", dim="n // 4, m // 4", tiled=True, block_dim=32)
    torch.library.opcheck(op.overload, (torch.randn(8, 8, requires_grad=True), torch.randn(8, 4, requires_grad=True)))


def test_tiled_is_a_bool():
    with pytest.raises(SignatureError, match="tiled is True or False, and got 'yes'"):
        warp_op(row_norms, "x[n, 8] -> y[n]", tiled="yes")
