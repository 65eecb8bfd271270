"""Vectors, matrices, quaternions and transforms by value: flat or nested sequences of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import torch

from ..kernel.signature import Leaf
from ..plan.model import Slot
from .kind import Kind, fail, refused
from .number import SYMBOLIC_NUMBERS, check_number, converted, guard_number, schema_of


def _is_nested(value: Any) -> bool:
    nested = isinstance(value, (Sequence, numpy.ndarray)) and not isinstance(value, (str, bytes))
    return nested or hasattr(value, "_wp_scalar_type_")


def _entries(value: Any) -> Any:
    return numpy.atleast_1d(value).tolist() if isinstance(value, numpy.ndarray) else value


class Vector(Kind):
    """A vector, matrix, quaternion or transform by value: a list of its numbers."""

    convert_name = "to_vector"

    def schema(self, slot: Slot) -> str:
        return f"{schema_of(slot.leaf.scalar) if slot.leaf.scalar is not None else 'Scalar'}[]"

    def check(self, op: str, slot: Slot, value: Any) -> None:
        for item in self.items(op, slot, value):
            check_number(op, slot, slot.leaf.scalar, item)

    def convert(self, op: str, slot: Slot, value: Any) -> list[Any]:
        symbols = (torch.SymInt, torch.SymFloat)
        return [
            item if isinstance(item, symbols) else converted(op, slot, slot.leaf.scalar, item)
            for item in self.items(op, slot, value)
        ]

    def items(self, op: str, slot: Slot, value: Any) -> list[Any]:
        """What a value consists of, if there is as much of it, and nested so, as its type takes."""
        leaf, items = slot.leaf, flatten(value)
        count = math.prod(leaf.component) if leaf.component is not None else None
        wanted = f"expected {'' if count is None else f'{count} '}numbers ({leaf.type_name}), got"
        if isinstance(value, torch.Tensor):
            advice = "pass numbers with .tolist() (its gradient would be lost), or take an array in the kernel"
            fail(op, slot, f"{wanted} a tensor of shape {value.shape}; {advice}")
        if items is None:
            fail(op, slot, f"{wanted} {type(value).__name__}")
        lengths = nesting(value)
        if count is not None and lengths not in nestings(leaf):
            parts = " or ".join(_described(form) for form in reversed(nestings(leaf)) if form)
            fail(op, slot, f"expected {parts} ({leaf.type_name}), got {_described(lengths)}")
        if count is not None and len(items) != count:
            fail(op, slot, f"{wanted} {len(items)}")
        return items

    def traced(self, slot: Slot, place: int, use: Callable[[str], str]) -> Iterator[str]:
        name = slot.name
        yield f"{name} = {use('traced_value')}({name})"
        yield from refused(f"isinstance({name}, (list, tuple))", slot, place, use)
        if slot.leaf.component is not None:
            nested = f"{use('traced_nesting')}({name})"
            yield f"if {nested} not in {nestings(slot.leaf)}:"
            yield f"    return {use('refuse_traced')}({place}, None, False, {nested})"
        yield f"{name} = {use('traced_vector')}({name})"
        yield f"if {use('wrong_item')}({name}) >= 0:"
        yield f"    return {use('refuse_traced')}({place}, {name}[{use('wrong_item')}({name})], True)"

    def packed(self, slot: Slot, bits: str) -> str:
        return f"*map({bits}, {slot.name})" if bits else f"*{slot.name}"

    def native(self, warp_type: Any, value: Any) -> Any:
        return warp_type(*value)

    def code(self, slot: Slot) -> str:
        scalar = slot.leaf.scalar
        return f"[{scalar.kind[0] * math.prod(slot.leaf.component or ())}]" if scalar is not None else ""


def nesting(value: Any, nested: Callable[[Any], bool] = _is_nested) -> tuple[int, ...]:
    """How a sequence is nested: the length of each of its items, 0 for a number; empty where all are numbers."""
    items = _entries(value)
    return tuple([len(flatten(item, nested) or ()) for item in items]) if any(nested(item) for item in items) else ()


def nestings(leaf: Leaf) -> tuple[tuple[int, ...], ...]:
    """The ways to nest a value of a leaf's type: as numbers; a matrix by rows; a transform as position and rotation, a
    spatial vector as two vectors, a quaternion as vector and number."""
    component = leaf.component or ()
    if len(component) == 2:
        return ((), (component[1],) * component[0])
    if component == (7,):
        return ((), (3, 4))
    if component == (6,):
        return ((), (3, 3))
    return ((), (3, 0)) if component == (4,) else ((),)


def _described(lengths: tuple[int, ...]) -> str:
    if not lengths:
        return "numbers"
    if len(set(lengths)) == 1:
        return f"{len(lengths)} times {lengths[0]} number{'s' if lengths[0] != 1 else ''}"
    return f"{', '.join(str(length or 1) for length in lengths)} numbers"


def flatten(value: Any, nested: Callable[[Any], bool] = _is_nested) -> list[Any] | None:
    """The numbers of a flat or nested sequence, in row-major order; None for what is no sequence."""
    if not nested(value):
        return None
    items: list[Any] = []
    for item in _entries(value):
        inner = flatten(item, nested)
        items += [item] if inner is None else inner
    return items


def default_value(default: Any) -> Any:
    items = flatten(default)
    return items if items is not None else default


def _is_list(value: Any) -> bool:
    """What a sequence is in traced code."""
    return isinstance(value, (list, tuple))


def traced_vector(value: Any) -> list[Any]:
    """A flat or nested sequence of numbers as a flat list, in traced code."""
    items = flatten(value, _is_list) or []
    return [guard_number(item) if isinstance(item, (float, torch.SymFloat)) else item for item in items]


def traced_nesting(value: Any) -> tuple[int, ...]:
    """How a sequence is nested, in traced code."""
    return nesting(value, _is_list)


def wrong_item(items: list[Any]) -> int:
    """The place of the first item that is no number; -1 where all are."""
    for place, item in enumerate(items):
        if not isinstance(item, SYMBOLIC_NUMBERS):
            return place
    return -1
