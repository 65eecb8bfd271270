"""Struct arguments: reading the fields of whatever the caller gave for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import warp as wp

from ..errors import ArgumentError
from ..private import warp_types


def field_reader(op: str, optional: frozenset[str], refuse_traced: Callable[..., Any]) -> Callable[..., Any]:
    """What the generated front calls for each field.

    ``optional`` are the labels of fields that may be missing, which is the same as None. ``refuse_traced`` tells a
    wrong argument where PyTorch traces: an exception raised there would lose its text.
    """

    def field(value: Any, index: int, label: str, *path: str) -> Any:
        for part in path:
            if isinstance(value, (dict, Mapping)):
                if part in value:
                    value = value[part]
                    continue
            elif value is not None and not isinstance(value, torch.Tensor) and hasattr(value, part):
                value = getattr(value, part)
                continue
            if label in optional:
                return None
            if torch.compiler.is_compiling():
                return refuse_traced(index, None, said=_missing(type(value).__name__, part))
            raise ArgumentError(f"{op}: argument '{label}': {_missing(type(value).__name__, part)}")
        if isinstance(value, wp.array):
            return tensor_of(value)
        return value

    return field


def _missing(owner: str, part: str) -> str:
    """What is said of a field that isn't there."""
    given = {"Tensor": "a tensor", "NoneType": "None"}.get(owner, owner)
    return (
        f"expected a dict with the key '{part}', or an object with the attribute '{part}', got {given} without; a "
        f"struct is given as a dict, a dataclass, a named tuple or any object with its fields"
    )


def tensor_of(array: Any) -> torch.Tensor | None:
    """The tensor over a Warp array's memory, for the fields of a ``wp.struct`` instance; None for a null array."""
    if warp_types.is_null(array):
        return None
    tensor: torch.Tensor = wp.to_torch(array, requires_grad=False)
    return tensor
