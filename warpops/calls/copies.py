"""A copy that compiled graphs keep a copy.

A mutated array is saved for backward as it was before the launch. In a graph PyTorch (2.13, 2.14) takes ``x.clone()`` of an
input for the input itself where nothing in the graph changes it in between, saves that, and backward then reads what the
launch has left. An operator that it can't look into stays what it is.
"""

from __future__ import annotations

import torch

from ..private.helper_op import HelperOp


def copy_of(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """A private dense copy; None of None."""
    if tensor is None:
        return None
    if torch.compiler.is_compiling():
        copied: torch.Tensor = copy_op(tensor)
        return copied
    return tensor.clone(memory_format=torch.contiguous_format)


def _copy(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _fake(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


copy_op = HelperOp("_copy(Tensor x) -> Tensor", _copy, _fake, tags=(torch.Tag.pt2_compliant_tag,))
