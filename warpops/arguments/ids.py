"""What is given for handles: an object of Warp, its id, or a list of them for an array of ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import warp as wp

from ..errors import ArgumentError
from ..plan.model import Slot
from ..private import torch_modes
from .array import IDS
from .handle import check_handle, id_of, ids_tensor, object_of, remember
from .kind import Kind, fail, refused
from .number import Number, plain_number


class Handle(Number):
    """The id of an object of Warp, or the object."""

    convert_name = "to_handle"

    annotation, eager, guarded = Kind.annotation, Kind.eager, Kind.guarded

    def check(self, op: str, slot: Slot, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            what = f"got a tensor of shape {value.shape}"
            fail(op, slot, f"expected a wp.Mesh, Bvh, HashGrid or Volume, or its id (an int), {what}")
        super().check(op, slot, value)

    def convert(self, op: str, slot: Slot, value: Any) -> Any:
        plain = _id(f"{op}: argument '{slot.label}'", value)
        self.check(op, slot, plain)
        return plain - 2**64 if isinstance(plain, int) and plain >= 2**63 else plain

    def traced(self, slot: Slot, place: int, use: Callable[[str], str]) -> Iterator[str]:
        name = slot.name
        yield f"{name} = {use('handle')}({name})"
        yield from refused(f"isinstance({name}, {use('INTS')})", slot, place, use)
        yield f"if {name} > {2**63 - 1}:  # a schema's int is signed"
        yield f"    {name} = {name} - {2**64}"

    def native(self, warp_type: Any, value: Any) -> Any:
        return value & 0xFFFFFFFFFFFFFFFF


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
