"""Tiles: what Warp's adjoint loses is warned of, by Warp's own word on each builtin."""

from __future__ import annotations

import warnings

import pytest
import torch
import warp as wp

from support import WARP, close
from warpops import GradientWarning, warp_op
from warpops.effects import analyse

SIZE = 4


@wp.func
def bent(a: float):
    return wp.frac(a) * a


@wp.kernel
def mapped(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    t = wp.tile_load(x[i], shape=SIZE)
    wp.tile_store(y[i], wp.tile_map(wp.frac, t))


@wp.kernel
def mapped_by_function(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    t = wp.tile_load(x[i], shape=SIZE)
    wp.tile_store(y[i], wp.tile_map(bent, t))


@wp.kernel
def mapped_flat(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    t = wp.tile_load(x[i], shape=SIZE)
    wp.tile_store(y[i], wp.tile_map(wp.floor, t) + t)


@wp.kernel
def filled(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    wp.tile_store(y[i], wp.tile_full(shape=SIZE, value=x[i, 0], dtype=float))


@wp.kernel
def from_thread(x: wp.array2d[float], y: wp.array2d[float]):
    i, _lane = wp.tid()
    t = wp.tile_from_thread(SIZE, x[i, 1], 0)
    wp.tile_store(y[i], t)


@wp.kernel
def largest(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    t = wp.tile_load(x[i], shape=SIZE)
    unused = wp.tile_max(t)  # noqa: F841
    wp.tile_store(y[i], t)


@pytest.mark.parametrize(
    ("kernel", "kinds"),
    [
        (mapped, {"remainder"}),
        (mapped_by_function, {"remainder"}),
        (mapped_flat, set()),
        (filled, {"no-adjoint"}),
        (from_thread, {"no-adjoint"}),
        (largest, set()),
    ],
    ids=lambda value: getattr(value, "key", ""),
)
def test_a_tile_that_loses_its_gradient_is_a_hazard(kernel: wp.Kernel, kinds: set[str]) -> None:
    assert {hazard.kind for hazard in analyse(kernel).hazards} == kinds


def test_a_filled_tile_gets_no_gradient() -> None:
    with pytest.warns(GradientWarning, match="no adjoint for wp.tile_full"):
        op = warp_op(filled, "x[n, 4] -> y[n, 4]", tiled=True, block_dim=32)
    x = torch.rand(2, SIZE, requires_grad=True)
    (gradient,) = torch.autograd.grad(op(x).sum(), x)
    assert gradient.count_nonzero() == 0, "Warp has an adjoint of wp.tile_full: the warning can go"


@pytest.mark.parametrize("kernel", [mapped, mapped_by_function], ids=["builtin", "function"])
def test_a_mapped_fraction_has_its_gradient(kernel: wp.Kernel) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op = warp_op(kernel, "x[n, 4] -> y[n, 4]", tiled=True, block_dim=32)
    x = (3.0 * torch.rand(2, SIZE)).requires_grad_()
    (gradient,) = torch.autograd.grad(op(x).sum(), x)
    part = x.detach() - x.detach().trunc()
    close(gradient, torch.ones_like(part) if kernel is mapped else part + x.detach())


@wp.kernel
def product(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    s = wp.tile_zeros(shape=(2, 2), dtype=float)
    for k in range(x.shape[1] / 2):
        t = wp.tile_load(x, shape=(2, 2), offset=(i * 2, k * 2))
        wp.tile_matmul(t, t, s)
    wp.tile_store(y, s, offset=(i * 2, 0))


@wp.kernel
def product_used(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    s = wp.tile_zeros(shape=(2, 2), dtype=float)
    for k in range(x.shape[1] / 2):
        t = wp.tile_load(x, shape=(2, 2), offset=(i * 2, k * 2))
        wp.tile_matmul(t, t, s)
    wp.tile_store(y, s * s, offset=(i * 2, 0))


@wp.kernel
def product_used_before(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    s = wp.tile_zeros(shape=(2, 2), dtype=float)
    t = wp.tile_load(x, shape=(2, 2), offset=(i * 2, 0))
    wp.tile_matmul(t, t, s)
    u = s * s
    wp.tile_matmul(t, t, s)
    wp.tile_store(y, u + s, offset=(i * 2, 0))


@pytest.mark.skipif(WARP < (1, 19), reason="tiles on the CPU")
@pytest.mark.parametrize(
    ("kernel", "doubt"),
    [
        (product, None),
        (product_used, "value of 's', which the run-time loop"),
        (product_used_before, "'s' is changed here after the adjoint needed it"),
    ],
    ids=lambda value: getattr(value, "key", ""),
)
def test_what_is_added_to_a_tile_in_place(kernel: wp.Kernel, doubt: str | None) -> None:
    """``wp.tile_matmul`` changes its third argument: what needs its earlier value is warned of, the sum itself is right."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        op = warp_op(
            kernel, "x[2 * n, 2 * k] -> y[2 * n, 2]", dim="n", tiled=True, block_dim=1, name=f"tiles::{kernel.key}"
        )
    x = torch.rand(2, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(op(x).sum(), x)
    parts = [x[:, :2] @ x[:, :2], x[:, 2:] @ x[:, 2:]]
    total = sum(parts)
    want = {product: total, product_used: total * total, product_used_before: parts[0] ** 2 + 2 * parts[0]}[kernel]
    (right,) = torch.autograd.grad(want.sum(), x)
    if doubt is None:
        assert not told
        close(gradient, right)
    else:
        (warning,) = told
        assert issubclass(warning.category, GradientWarning)
        assert doubt in str(warning.message)
        assert not torch.allclose(gradient, right), "Warp's adjoint is right: the warning can go"
