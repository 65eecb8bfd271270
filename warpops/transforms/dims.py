"""Batch dimensions of arguments and results: where each is, moved to the front, and taken away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .batched import element


def stacked(results: Any) -> tuple[Any, Any]:
    """Results whose batch axis is the first, as a vmap rule returns them."""
    if not isinstance(results, tuple):
        return results, 0
    return results, tuple(None if result is None else 0 for result in results)


def batch_dims(in_dims: Sequence[Any], values: tuple[Any, ...]) -> list[int | None]:
    """The batch axes of tensors; lists of numbers have none."""
    return [dim if isinstance(v, torch.Tensor) else None for dim, v in zip(in_dims, values, strict=True)]


def to_front(value: Any, dim: int | None, size: int) -> Any:
    """A tensor with its batch axis first, expanded where it has none."""
    if value is None:
        return None
    return value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)


def without(value: torch.Tensor, dim: int | None) -> torch.Tensor:
    """One element's shape and dtype, without data."""
    return value.to("meta") if dim is None else element(value, dim)


def empty_like(value: torch.Tensor, dim: int | None) -> torch.Tensor:
    """A gradient for a batch of size 0."""
    return value.new_zeros((0, *without(value, dim).shape))
