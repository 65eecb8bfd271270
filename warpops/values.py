"""Numbers, vectors, structs and handles of a call, brought to what the schema takes."""

from __future__ import annotations

from typing import Any

import torch

from . import _dynamo, value_checks

SYMBOLIC_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


def guard_number(value: Any) -> Any:
    """Make a number a constant of the graph, checked at each call."""
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    return guard_scalar(value)


def default_value(default: Any) -> Any:
    items = value_checks.flatten(default)
    return items if items is not None else default


def traced_value(value: Any) -> Any:
    """A vector argument as a sequence of numbers, in traced code, where it is one or a Warp value; else itself."""
    if isinstance(value, (list, tuple)):
        return value
    _dynamo.teach()
    return _dynamo.numbers_of(value)


def traced_vector(value: Any) -> list[Any]:
    """A flat or nested sequence of numbers as a flat list, in traced code."""
    items: list[Any] = []
    for item in value:
        if isinstance(item, (list, tuple)):
            items += traced_vector(item)
        elif isinstance(item, (float, torch.SymFloat)):
            items.append(guard_number(item))
        else:
            items.append(item)
    return items


def traced_nesting(value: Any) -> tuple[int, ...]:
    """The length of each item of a sequence, 0 for a number, in traced code; empty where none is a sequence."""
    lengths = []
    nested = False
    for item in value:
        if isinstance(item, (list, tuple)):
            nested = True
            lengths.append(len(traced_vector(item)))
        else:
            lengths.append(0)
    return tuple(lengths) if nested else ()


def traced_int(value: Any) -> Any:
    """An int, which stays symbolic where it is: AOTAutograd traces a backward of the user's with ``SymInt``."""
    return value if isinstance(value, torch.SymInt) else int(value)


def wrong_item(items: list[Any]) -> int:
    """The place of the first item that is no number; -1 where all are."""
    for place, item in enumerate(items):
        if not isinstance(item, SYMBOLIC_NUMBERS):
            return place
    return -1


def traced_tensor(value: Any) -> Any:
    """A number for a ``tensor_scalars`` argument, in traced code: a constant of the graph, guarded."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (float, torch.SymFloat)):
        return torch.full((), guard_number(value), dtype=torch.float64, device="cpu")
    return torch.full((), value, dtype=torch.int64, device="cpu")
