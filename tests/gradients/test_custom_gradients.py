"""Gradients of functions that have their own, of native snippets, and of arrays in a struct."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import check_against
from warpops import warp_op


@wp.func
def hypotenuse(a: float, b: float):
    return wp.sqrt(a * a + b * b)


@wp.func_grad(hypotenuse)
def adj_hypotenuse(a: float, b: float, adj_ret: float):
    h = hypotenuse(a, b)
    wp.adjoint[a] += adj_ret * a / h
    wp.adjoint[b] += adj_ret * b / h


@wp.func
def pick(values: wp.array[float], i: int):
    return values[i] * 3.0


@wp.func_grad(pick)
def adj_pick(values: wp.array[float], i: int, adj_ret: float):
    wp.adjoint[values][i] += 3.0 * adj_ret


@wp.kernel
def lengths(a: wp.array[float], b: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = hypotenuse(a[i], b[i])


@wp.kernel
def picked(a: wp.array[float], b: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = pick(a, i) * pick(b, i)


lengths_op = warp_op(lengths, "a[n], b[n] -> y[n]", dim="n")
picked_op = warp_op(picked, "a[n], b[n] -> y[n]", dim="n")


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)], ids=["a", "b", "both"])
@pytest.mark.parametrize(
    ("op", "reference"),
    [(lengths_op, lambda a, b: (a * a + b * b).sqrt()), (picked_op, lambda a, b: 9.0 * a * b)],
    ids=["of numbers", "of arrays"],
)
def test_a_custom_gradient_writes_where_nobody_asked(mode, op, reference, wanted):
    """It has no null check of its own: an input that needs no gradient still needs a buffer to write into."""
    check_against(mode(op), reference, (torch.rand(5) + 0.5, torch.rand(5) + 0.5), wanted)


@wp.func_native(
    snippet="y[i] = x[i] * x[i] * x[i] * w[i];",
    adj_snippet="adj_x[i] += 3.0f * x[i] * x[i] * w[i] * adj_y[i]; adj_w[i] += x[i] * x[i] * x[i] * adj_y[i];",
)
def cube_natively(x: wp.array[float], w: wp.array[float], y: wp.array[float], i: int): ...


@wp.kernel
def native(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    cube_natively(x, w, y, i)


native_op = warp_op(native, "x[n], w[n] -> y[n]", dim="n")


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)], ids=["x", "w", "both"])
def test_a_native_snippet(mode, wanted):
    """It runs again in backward, and rewrites its output: the output must be there."""
    check_against(mode(native_op), lambda x, w: x**3 * w, (torch.randn(4), torch.randn(4)), wanted)


@wp.struct
class Cloud:
    position: wp.array[wp.vec3]
    mass: wp.array[float]
    scale: float


@wp.kernel
def inertia(cloud: Cloud, y: wp.array[float]):
    i = wp.tid()
    p = cloud.position[i]
    y[i] = cloud.mass[i] * wp.dot(p, p) * cloud.scale


inertia_op = warp_op(inertia, "-> y", shapes={"y": lambda cloud: cloud.mass.shape}, dim=lambda cloud: cloud.mass.shape)


def test_arrays_in_a_struct(mode):
    check_against(
        mode(lambda p, m: inertia_op({"position": p, "mass": m, "scale": 2.0})),
        lambda p, m: (p * p).sum(-1) * m * 2.0,
        (torch.randn(4, 3), torch.rand(4)),
    )
