"""The same call with larger tensors, sized consistently: what the plan binds by one name grows together.

Everything only grows, by whole factors, and new rows repeat the last one: indices stay in range, offsets stay sorted,
and what has n + 1 or 2 * n elements has at least as many as are needed.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ..arguments.call import bind_sizes, measure
from ..arguments.size import value_of
from ..errors import ArgumentError
from ..plan.model import Slot
from .subject import Subject, Values

LARGEST = 1 << 24
"""Elements of all inputs together, at most."""


def resized(subject: Subject, factor: int) -> Values | None:
    """The call's values with all sizes that may vary multiplied; None where no size can."""
    try:
        bound = bind_sizes(subject.name, subject.concrete, subject.values)
    except ArgumentError:
        return None
    fixed = {slot.label: subject.values[slot.name] for slot in subject.plan.ints}
    for free in (True, False):
        values = _grow(subject, factor, bound, fixed, free)
        if values is None:
            continue
        try:
            measure(subject.name, subject.concrete, values, subject.device)
        except ArgumentError:
            continue
        return values
    return None


def _grow(subject: Subject, factor: int, bound: dict[str, Any], fixed: dict[str, Any], free: bool) -> Values | None:
    sizes = {name: fixed.get(name, value * factor) for name, value in bound.items()}
    uncovered = {(label, axis) for label, axis, _ in subject.plan.extents.uncovered}
    values: Values = {}
    total, changed = 0, False
    for name, value in subject.values.items():
        slot = subject.plan.slot(name)
        if isinstance(value, torch.Tensor) and slot.is_array:
            shape = _shape(slot, value, factor, sizes, free, uncovered)
            changed = changed or shape != tuple(value.shape)
            total += math.prod(shape)
            if total > LARGEST or any(n and not old for n, old in zip(shape, value.shape, strict=True)):
                return None
            for axis, n in enumerate(shape):
                if n != value.shape[axis]:
                    index = torch.arange(n, device=value.device).clamp(max=value.shape[axis] - 1)
                    value = value.index_select(axis, index)
        values[name] = value
    return values if changed else None


def _shape(
    slot: Slot,
    value: torch.Tensor,
    factor: int,
    sizes: dict[str, Any],
    free: bool,
    uncovered: set[tuple[str, int]],
) -> tuple[int, ...]:
    shape = list(value.shape)
    dims = slot.dims or (None,) * slot.leaf.ndim
    for axis, dim in enumerate(dims):
        if dim is not None:
            shape[axis] = int(value_of(dim, sizes))
        elif free:
            # What can't be followed may hold a square of another size.
            shape[axis] *= factor * factor if (slot.label, axis) in uncovered else factor
    return tuple(shape)
