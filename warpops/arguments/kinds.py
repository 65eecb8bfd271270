"""The kinds of arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..plan.model import Slot
from .array import Array
from .ids import Handle
from .kind import Kind
from .number import Number
from .size import Size
from .tensor_scalar import TensorScalar
from .vector import Vector

BY_ROLE: dict[str, Kind] = {"size": Size(), "tensor_scalar": TensorScalar()}
BY_TYPE: dict[str, Kind] = {"array": Array(), "number": Number(), "vector": Vector(), "handle": Handle()}
KINDS = (*BY_ROLE.values(), *BY_TYPE.values())


def kind_of(slot: Slot) -> Kind:
    """The kind of an argument: what its declaration makes of it, else what its type in the kernel does."""
    return BY_ROLE.get(slot.role) or BY_TYPE[slot.leaf.kind]


def check_slot(op: str, slot: Slot, value: Any) -> None:
    """Check one value by itself."""
    kind_of(slot).check(op, slot, value)


def convert(op: str, slots: Mapping[str, Slot], name: str, value: Any) -> Any:
    """What the schema takes for a value that was given in eager code."""
    return kind_of(slots[name]).convert(op, slots[name], value)
