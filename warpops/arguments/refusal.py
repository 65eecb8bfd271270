"""A wrong argument found while PyTorch traces: how its message reaches the user."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..private import locks

_lock = locks.reentrant()
runtimes: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_refusal: list[Any] = []


def refusal_op() -> Any:
    """An operator that only ever raises: a wrong argument found while tracing, told while PyTorch runs the graph's fakes,
    where an exception keeps its text."""
    with _lock:
        if not _refusal:
            library = torch.library.Library("warpops", "FRAGMENT")
            library.define("_refuse(str op, int index, Tensor? value, str shown) -> Tensor")

            def refuse(op: str, index: int, value: torch.Tensor | None, shown: str) -> torch.Tensor:
                runtimes[op].refuse_value(index, value, shown)
                raise AssertionError("unreachable")

            library.impl("_refuse", refuse, "CompositeExplicitAutograd")
            torch.library.register_fake("warpops::_refuse", refuse, lib=library)
            _refusal.extend([torch.ops.warpops._refuse.default, library])
    return _refusal[0]
