"""What eager code makes of arguments that aren't tensors: the numbers that a schema takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..errors import ArgumentError
from ..plan.model import Slot
from .handle import id_of, remember
from .kinds import check_slot
from .number import check_number, plain_number
from .size import SIZE
from .vector import flatten


def to_number(op: str, slots: Mapping[str, Slot], name: str, value: Any) -> Any:
    slot = slots[name]
    scalar = slot.leaf.scalar
    if slot.role == "size":
        scalar = SIZE
    check_number(op, slot, scalar, value)
    plain = plain_number(value)
    if plain is None:
        return value
    if scalar is None:
        return plain if isinstance(plain, float) else int(plain)
    return {"float": float, "int": int, "bool": bool}[scalar.kind](plain)


def to_vector(op: str, slots: Mapping[str, Slot], name: str, value: Any) -> list[Any]:
    slot = slots[name]
    if slot.leaf.component is not None and slot.leaf.scalar is not None:
        check_slot(op, slot, value)
    items = flatten(value)
    if items is None:
        raise ArgumentError(
            f"{op}: argument '{slot.label}': expected numbers ({slot.leaf.type_name}), got {type(value).__name__}"
        )
    kind = slot.leaf.scalar.kind if slot.leaf.scalar is not None else "float"
    convert = {"float": float, "int": int, "bool": bool}[kind]
    return [item if isinstance(item, (torch.SymInt, torch.SymFloat)) else convert(plain_number(item)) for item in items]


def to_handle(op: str, slots: Mapping[str, Slot], name: str, value: Any) -> Any:
    slot = slots[name]
    remember(value)
    given, value = value, id_of(value)
    plain = None if isinstance(value, torch.Tensor) else plain_number(value)
    if plain is None and not isinstance(value, (torch.SymInt, torch.Tensor)):
        raise ArgumentError(
            f"{op}: argument '{slot.label}': expected a wp.Mesh, Bvh, HashGrid or Volume, or its id (an int), "
            f"got {type(given).__name__}{' without an id' if value is None and given is not None else ''}"
        )
    check_slot(op, slot, value)
    if plain is None:
        return value
    return int(plain) - 2**64 if plain >= 2**63 else int(plain)


def to_tensor(op: str, slots: Mapping[str, Slot], name: str, value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    plain = to_number(op, slots, name, value)
    scalar = slots[name].leaf.scalar
    exact = torch.float64 if scalar is None or scalar.kind == "float" else torch.int64
    return torch.tensor(plain, dtype=exact, device="cpu")
