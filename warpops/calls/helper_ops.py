"""A copy that compiled graphs keep a copy.

A mutated array is saved for backward as it was before the launch. In a graph PyTorch (2.13, 2.14) takes ``x.clone()`` of an
input for the input itself where nothing in the graph changes it in between, saves that, and backward then reads what the
launch has left. An operator that it can't look into stays what it is.
"""

from __future__ import annotations

from typing import Any

import torch

from ..private import locks

_lock = locks.reentrant()
_made: list[Any] = []


def copy_of(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """A private dense copy; None of None."""
    if tensor is None:
        return None
    if torch.compiler.is_compiling():
        copied: torch.Tensor = copy_op()(tensor)
        return copied
    return tensor.clone(memory_format=torch.contiguous_format)


def copy_op() -> Any:
    """``warpops::_copy``, which is made when a graph needs it first."""
    with _lock:
        if not _made:
            library = torch.library.Library("warpops", "FRAGMENT")
            library.define("_copy(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
            library.impl("_copy", _copy, "CompositeExplicitAutograd")
            torch.library.register_fake("warpops::_copy", _fake, lib=library)
            _made.extend([torch.ops.warpops._copy.default, library])
    return _made[0]


def _copy(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _fake(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)
