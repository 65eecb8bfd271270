"""Autocast brings float16, bfloat16 and float32 to the kernel's own dtype, differentiably, and touches nothing else."""

from __future__ import annotations

import pytest
import torch
import warp as wp

import kernels
import test_types
from support import close, leaf
from warpops import ArgumentError, warp_op


@wp.kernel
def half_kernel(x: wp.array[wp.float16], w: wp.array[wp.float16], y: wp.array[wp.float16]):
    i = wp.tid()
    y[i] = x[i] * w[i]


half_op = warp_op(half_kernel, "x[n], w[n] -> y[n]", dim="n")


def autocast(dtype=torch.bfloat16):
    return torch.autocast("cpu", dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [torch.float16, torch.bfloat16, torch.float32])
def test_inputs_come_to_the_kernel_s_dtype(mode, given, dtype):
    x, w = leaf(torch.randn(4).to(given)), leaf(torch.randn(4))
    function = mode(kernels.product_op)
    with autocast(dtype):
        y = function(x, w)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad.dtype == given
    close(y.detach(), (x.float() ** 2 * w).detach())
    close(x.grad, (2 * x.float() * w).detach().to(given))
    close(w.grad, (x.float() ** 2).detach())


def test_a_half_kernel_takes_float32(mode):
    x, w = leaf(torch.randn(4)), leaf(torch.randn(4))
    function = mode(half_op)
    with autocast():
        y = function(x, w)
    assert y.dtype == torch.float16
    y.float().sum().backward()
    assert x.grad.dtype == torch.float32
    close(x.grad, w.detach(), rtol=2e-3, atol=2e-3)


def test_float64_is_never_cast(mode):
    with autocast(), pytest.raises(Exception, match="'x': expected dtype torch.float32 .* got torch.float64"):
        mode(kernels.product_op)(torch.ones(2).double(), torch.ones(2))
    with autocast(), pytest.raises(Exception, match="'x': expected dtype torch.float64 .* got torch.float32"):
        mode(kernels.cube64_op)(torch.ones(2))
    with autocast():
        y = mode(kernels.cube64_op)(torch.full((2,), 2.0, dtype=torch.float64))
    assert y.dtype == torch.float64
    close(y, torch.full((2,), 8.0, dtype=torch.float64))


def test_ints_are_left_alone(mode):
    with autocast():
        y = mode(test_types.SQUARE_OPS[torch.int32])(torch.tensor([3], dtype=torch.int32))
    assert y.dtype == torch.int32


def test_without_autocast_another_dtype_is_refused():
    with autocast():
        kernels.product_op(torch.ones(2).bfloat16(), torch.ones(2))
    with pytest.raises(ArgumentError, match="torch.bfloat16"):
        kernels.product_op(torch.ones(2).bfloat16(), torch.ones(2))
    with autocast(), torch.autocast("cpu", enabled=False), pytest.raises(ArgumentError, match="torch.bfloat16"):
        kernels.product_op(torch.ones(2).bfloat16(), torch.ones(2))


def test_through_torch_ops(mode):
    with autocast():
        y = mode(torch.ops.kernels.product)(torch.full((2,), 2.0).bfloat16(), torch.ones(2))
    assert y.dtype == torch.float32
    close(y, torch.full((2,), 4.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_after_a_layer_that_autocast_casts(mode, dtype):
    """What a model meets: a linear layer gives half precision, the op takes it."""
    torch.manual_seed(1)
    layer = torch.nn.Linear(3, 3)

    def net(x, w):
        return kernels.weigh_op(layer(x), w)

    x, w = torch.randn(4, 3), torch.randn(4)
    with autocast(dtype):
        assert layer(x).dtype is dtype
        y = mode(net)(x, w)
    y.sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    assert bool(layer.weight.grad.abs().sum() > 0)


def test_a_mutated_array_is_not_cast_away():
    """A cast copy would take the change with it."""
    x = torch.zeros(2).bfloat16()
    with autocast(), pytest.raises(ArgumentError, match="'x'"):
        kernels.step_op(x, torch.ones(2), 1.0)
    x = torch.zeros(2)
    with autocast():
        kernels.step_op(x, torch.ones(2), 1.0)
    close(x, torch.ones(2))


def test_autocast_inside_compiled_code():
    def net(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return kernels.product_op(x.bfloat16(), w)

    y = torch.compile(net, fullgraph=True, backend="aot_eager")(torch.full((2,), 2.0), torch.ones(2))
    close(y, torch.full((2,), 4.0))
