"""Kernels whose run-time loops Warp's own adjoint has wrong, and a check of their gradients by finite differences."""

from __future__ import annotations

from typing import Any

import torch
import warp as wp

D = wp.float64


def uniform(*shape: int, low: float = -1.0, high: float = 1.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)).requires_grad_()


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def check(op: Any, *arguments: Any) -> None:
    """The gradients of all float64 tensors are those of finite differences of the op itself."""
    torch.autograd.gradcheck(op, arguments, eps=1e-6, atol=1e-6, rtol=1e-5)
