"""Vectors, matrices, quaternions and transforms by value: flat or nested sequences of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch

from ..kernel.signature import Leaf
from ..plan.model import Slot
from .kind import Kind, fail, refused
from .number import SYMBOLIC_NUMBERS, check_number, converted, guard_number, schema_of


class Vector(Kind):
    """A vector, matrix, quaternion or transform by value: a list of its numbers."""

    convert_name = "to_vector"
    several = True

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


def nesting(value: Any) -> tuple[int, ...]:
    """How a sequence is nested: the length of each of its items, 0 for a number; empty where all are numbers."""
    items = numpy.atleast_1d(value).tolist() if isinstance(value, numpy.ndarray) else value
    lengths = tuple(len(flatten(item) or ()) if _is_nested(item) else 0 for item in items)
    return lengths if any(_is_nested(item) for item in items) else ()


def _is_nested(item: Any) -> bool:
    nested = isinstance(item, (Sequence, numpy.ndarray)) and not isinstance(item, (str, bytes))
    return nested or hasattr(item, "_wp_scalar_type_")


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


def flatten(value: Any) -> list[Any] | None:
    """The numbers of a flat or nested sequence, in row-major order; None for what is no sequence."""
    if isinstance(value, (str, bytes, Mapping)):
        return None
    if isinstance(value, numpy.ndarray):
        return list(value.ravel().tolist())
    if not isinstance(value, Sequence) and not hasattr(value, "_wp_scalar_type_"):
        return None
    items: list[Any] = []
    for item in value:
        if isinstance(item, (str, bytes)):
            items.append(item)
        elif isinstance(item, (Sequence, numpy.ndarray)) or hasattr(item, "_wp_scalar_type_"):
            inner = flatten(item)
            if inner is None:
                return None
            items += inner
        else:
            items.append(item)
    return items


def default_value(default: Any) -> Any:
    items = flatten(default)
    return items if items is not None else default


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


def wrong_item(items: list[Any]) -> int:
    """The place of the first item that is no number; -1 where all are."""
    for place, item in enumerate(items):
        if not isinstance(item, SYMBOLIC_NUMBERS):
            return place
    return -1
