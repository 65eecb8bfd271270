"""Arrays that share memory."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch

from ..plan.model import OpPlan, Slot
from ..private import torch_guards
from ..private.torch_guards import bytes_spanned
from .kind import fail


def check_mutated(op: str, plan: OpPlan, values: Mapping[str, Any]) -> None:
    """Refuse a mutated tensor that can't be written to by itself.

    Raises:
        ArgumentError: it is an inference tensor outside of inference mode, its elements overlap, or it shares memory.
    """
    for slot, other in _mutated(op, plan, values):
        fail(op, slot, f"is changed in place, and shares memory with '{other.label}'; pass a .clone() of one")


def separate(op: str, plan: OpPlan, values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arrays that compiled code gives, in order; those that are read and share memory with a written one are copied.

    PyTorch drops clones that it takes for needless: in a graph without effects ``old = u.clone(); op(old, u)`` is
    ``op(u, u)``.

    Raises:
        ArgumentError: as ``check_mutated``; where two written tensors share memory.
    """
    own = dict(values)
    for slot, other in _mutated(op, plan, values):
        if other.changes:
            fail(op, slot, f"is changed in place, and shares memory with '{other.label}', which is written, too")
        own[other.name] = values[other.name].clone()
    return tuple(own[slot.name] for slot in plan.inputs if slot.is_array)


def _mutated(op: str, plan: OpPlan, values: Mapping[str, Any]) -> Iterator[tuple[Slot, Slot]]:
    """Each mutated array with each other one that it shares memory with, after the checks of itself."""
    for slot in plan.mutated:
        value = values[slot.name]
        if value is None:
            continue
        if value.is_inference() and not torch.is_inference_mode_enabled():
            fail(op, slot, "is changed in place, and is an inference tensor, which inference mode alone may change")
        check_memory(op, slot, value)
        if any(size > 1 and step == 0 for size, step in zip(value.shape, value.stride(), strict=True)):
            fail(op, slot, f"is changed in place, and its elements overlap (strides {value.stride()}); pass a .clone()")
        for other in plan.inputs:
            rest = values[other.name]
            if other.name == slot.name or not isinstance(rest, torch.Tensor) or not other.is_array:
                continue
            check_memory(op, other, rest)
            if share_memory(value, rest):
                yield slot, other


def check_memories(op: str, plan: OpPlan, values: Mapping[str, Any]) -> None:
    """Refuse arrays without the memory that their sizes need."""
    for slot in plan.given_arrays:
        value = values[slot.name]
        if isinstance(value, torch.Tensor):
            check_memory(op, slot, value)


def doubtful(*arrays: torch.Tensor | None) -> bool:
    """Whether ``check_memories`` is to look at arrays: at dense ones a glance is enough."""
    for value in arrays:
        if value.__class__ in torch_guards.PLAIN:
            assert value is not None
            needed = value.storage_offset() * value.element_size() + value.nbytes
            if not value.is_contiguous() or value.untyped_storage().nbytes() < needed:
                return True
    return False


def check_memory(op: str, slot: Slot, value: torch.Tensor) -> None:
    """Refuse a tensor whose storage was made smaller than what it needs (FSDP and others free memory so)."""
    if type(value) not in torch_guards.PLAIN or value.is_meta or not value.numel():
        return
    needed = value.storage_offset() * value.element_size() + bytes_spanned(value)
    there = value.untyped_storage().nbytes()
    if there < needed:
        fail(op, slot, f"expected a storage of {needed} bytes or more (shape {value.shape}), got one of {there}")


def share_memory(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors have a byte in common (True where that is too hard to tell).

    Fake tensors are compared by their place in a storage that they share, as far as their sizes are known.
    """
    if left is right:
        return left.numel() != 0
    real = all(type(t) in torch_guards.PLAIN and not t.is_meta for t in (left, right))
    if left.device != right.device or not (real or torch_guards.share_storage(left, right)):
        return False
    if real and left.numel() and right.numel():
        first, second = left.data_ptr(), right.data_ptr()
        if first >= second + bytes_spanned(right) or second >= first + bytes_spanned(left):
            return False
    places = [(t.storage_offset(), *t.shape, *t.stride()) for t in (left, right)]
    if not all(isinstance(n, int) for place in places for n in place) or left.numel() == 0 or right.numel() == 0:
        return False

    def view(tensor: torch.Tensor) -> Any:
        size = tensor.element_size()
        interface = {
            "version": 3,
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr() if real else 4096 + tensor.storage_offset() * size, True),
            "shape": tuple(tensor.shape),
            "strides": tuple(step * size for step in tensor.stride()),
        }
        return numpy.asarray(types.SimpleNamespace(__array_interface__=interface))

    try:
        return bool(numpy.shares_memory(view(left), view(right), max_work=10_000))  # type: ignore[arg-type]
    except numpy.exceptions.TooHardError:
        return True
