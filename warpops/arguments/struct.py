"""Struct arguments: reading the fields of whatever the caller gave for one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
import warp as wp

from ..errors import ArgumentError, did_you_mean
from ..private import warp_types
from ..private.torch_modes import constant_while_tracing


def field_reader(
    op: str, labels: Collection[str], optional: Collection[str], refuse_traced: Callable[..., Any]
) -> Callable[..., Any]:
    """What the generated front calls for each field.

    ``optional`` are the labels of fields that may be missing, which is the same as None, unless a key of the dict looks
    like them and is no field's. ``refuse_traced`` tells a wrong argument where PyTorch traces: an exception raised there
    would lose its text.
    """
    parts = {part for label in labels for part in label.split(".")[1:]}

    @constant_while_tracing
    def misspelt(part: str, keys: tuple[Any, ...]) -> str:
        strange = [key for key in keys if isinstance(key, str) and key not in parts]
        return did_you_mean(part, strange).replace("mean", f"mean '{part}' by", 1) if strange else ""

    def field(value: Any, index: int, label: str, *path: str) -> Any:
        for part in path:
            if isinstance(value, (dict, Mapping)):
                if part in value:
                    value = value[part]
                    continue
            elif value is not None and not isinstance(value, torch.Tensor) and hasattr(value, part):
                value = getattr(value, part)
                continue
            near = misspelt(part, tuple(value)) if isinstance(value, (dict, Mapping)) else ""
            if label in optional and not near:
                return None
            said = _missing(type(value).__name__, part) + near
            if torch.compiler.is_compiling():
                return refuse_traced(index, None, said=said)
            raise ArgumentError(f"{op}: argument '{label}': {said}")
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
