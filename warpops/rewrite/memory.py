"""What the reverse pass of a loop has of its turns: functions that make states again, and keep some in the thread's memory.

A turn's state is what its variables held when it began. The last turns that were made again lie in a ring; every
``stride``-th state of the loop is a mark that the walk begins again from. The stride doubles when there are no marks left,
so that the memory doesn't grow with the number of turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import warp as wp

from ..private import warp_built, warp_types
from .source import definition, give_adjoint, make_func

BUDGET = 4096
"""Bytes of a thread's memory for the states of one loop."""


@dataclass(frozen=True)
class Shape:
    """How many states are kept of one loop."""

    ring: int
    marks: int

    @property
    def end(self) -> int:
        """Where the values after the loop are."""
        return self.ring + self.marks

    @property
    def size(self) -> int:
        return self.end + 1


LAST_ONLY = Shape(0, 0)


def shape_for(types: Sequence[Any], *, restarts: bool) -> Shape:
    """As many states as fit; one mark for a loop that can only begin again from its start."""
    each = max(sum(warp_built.size_in_bytes(t) for t in types), 4)
    count = 4
    while count < 32 and 4 * count * each <= BUDGET:
        count *= 2
    return Shape(count, 1 if restarts else count)


class Points:
    """Makes the functions by which variables get what a memory holds."""

    def __init__(self, original: Any) -> None:
        self._original = original
        self._points: list[tuple[Any, Any]] = []

    def of(self, warp_type: Any) -> Any:
        """For one type, ``point(value, memory, at)``: what the memory holds, with the gradient going to ``value``."""
        for other, made in self._points:
            if other is warp_type or (not warp_types.is_struct(other) and warp_types.same_types([other], [warp_type])):
                return made
        own = f"restored_{len(self._points) + 1}"
        types = {"value": warp_type, "memory": warp_types.array_annotation(warp_type, 1), "at": int}
        made = make_func(self._original, definition(own, types, ["return memory[at]"]), own, {}, types)
        passed = _passed("value", "adj_result", warp_type) or ["pass"]
        give_adjoint(made, warp_type, passed, self._original, {"warp": wp}, types)
        self._points.append((warp_type, made))
        return made


def _passed(value: str, cotangent: str, warp_type: Any) -> list[str]:
    """Statements that add a cotangent to that of a value, structs field by field."""

    def paths(inner: Any, path: str) -> list[str]:
        fields = warp_types.struct_fields(inner)
        if fields is not None:
            return [p for name, field in fields.items() for p in paths(field, f"{path}.{name}")]
        scalar = getattr(inner, "_wp_scalar_type_", inner)
        return [path] if warp_types.is_float(scalar) else []

    return [f"warp.adjoint[{value}]{path} += {cotangent}{path}" for path in paths(warp_type, "")]
