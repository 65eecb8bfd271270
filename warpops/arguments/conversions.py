"""What eager code makes of arguments that aren't tensors: the numbers that a schema takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import warp as wp

from ..errors import ArgumentError
from ..plan.model import Slot
from ..private import torch_modes
from .array import IDS
from .handle import check_handle, id_of, ids_tensor, object_of, remember
from .kind import fail
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
    plain = _id(f"{op}: argument '{slot.label}'", value)
    check_slot(op, slot, plain)
    if not isinstance(plain, int):
        return plain
    return plain - 2**64 if plain >= 2**63 else plain


def _id(title: str, given: Any) -> Any:
    """The id of an object, or one given as a number; what traced code has for one."""
    remember(given)
    value = id_of(given)
    if isinstance(value, (torch.SymInt, torch.Tensor)):
        return value
    plain = plain_number(value)
    if plain is None:
        raise ArgumentError(
            f"{title}: expected a wp.Mesh, Bvh, HashGrid or Volume, or its id (an int), got {type(given).__name__}"
            f"{' without an id' if value is None and given is not None else ''}"
        )
    return plain if isinstance(plain, float) else int(plain)


def to_ids(op: str, slots: Mapping[str, Slot], name: str, value: Any, *arrays: Any) -> Any:
    """The tensor of the ids of a list of objects, each checked as one that is given alone; anything else as it is.

    ``arrays`` are the other tensors of the call: theirs is the device.
    """
    if not isinstance(value, (list, tuple)):
        return value
    slot = slots[name]
    if torch_modes.is_vmapped(arrays):
        fail(op, slot, f"expected a tensor of ids under vmap, got a {type(value).__name__} of objects; {IDS}")
    where = next((array.device for array in arrays if isinstance(array, torch.Tensor)), None)
    if where is None:
        devices = (getattr(item, "device", None) for item in value)
        where = torch.device(
            next((wp.device_to_torch(d) for d in devices if d is not None), torch.get_default_device())
        )
    ids = []
    for place, item in enumerate(value):
        title = f"{op}: argument '{slot.label}': item {place}"
        plain = _id(title, item)
        if not isinstance(plain, int) or isinstance(item, (bool, torch.Tensor)):
            raise ArgumentError(f"{title}: expected a Warp object or its id (an int), got {type(item).__name__}")
        if not -(2**63) <= plain < 2**64:
            raise ArgumentError(f"{title}: expected an id of 64 bits, got {plain}")
        check_handle(title, slot.objects, plain, where)
        ids.append(plain)
    return ids_tensor(ids, [object_of(handle) for handle in ids], where)


def to_tensor(op: str, slots: Mapping[str, Slot], name: str, value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    plain = to_number(op, slots, name, value)
    scalar = slots[name].leaf.scalar
    exact = torch.float64 if scalar is None or scalar.kind == "float" else torch.int64
    return torch.tensor(plain, dtype=exact, device="cpu")


def to_device(op: str, value: Any) -> torch.device:
    """What ``torch.device`` makes of an argument ``device``."""
    try:
        return torch.device(value)
    except (RuntimeError, TypeError):
        raise ArgumentError(f"{op}: argument 'device': expected cpu or cuda, got {value!r}") from None


def existing(op: str, device: torch.device) -> torch.device:
    """A device, if there is one of its number: an argument ``device``, or PyTorch's default."""
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        there = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
        raise ArgumentError(
            f"{op}: argument 'device': expected a device that there is ({', '.join(there)}), got {device}"
        )
    return device
