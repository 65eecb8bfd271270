"""The forward launches: what is allocated, the functional op, and the one over given buffers."""

from __future__ import annotations

import math
from typing import Any

from ..plan.model import Slot
from . import checks
from .text import tuple_of
from .writer import Shapes, Sizes, Writer


def write_allocate(w: Writer) -> None:
    fresh = w.plan.fresh
    if not fresh:
        return
    axes = {slot.name: [w.local(slot, str(axis)) for axis in range(slot.leaf.ndim)] for slot in fresh}
    with w.text.function(w.function("allocate"), ["device", *(axis for slot in fresh for axis in axes[slot.name])]):
        w.text.add('"""Everything that the op makes: for the real op, its fake and compiled code alike."""')
        if len(fresh) == 1:
            w.text.add(f"return ({_allocation(w, fresh[0], axes[fresh[0].name])},)")
            return
        for slot in fresh:
            w.text.add(f"{slot.name} = {_allocation(w, slot, axes[slot.name])}")
        w.text.add(f"return {w.targets(fresh)}")


def _allocation(w: Writer, slot: Slot, sizes: list[str]) -> str:
    shape = [*sizes, *map(str, slot.leaf.component or ())]
    options = f"dtype={w.dtype(slot)}, device=device"
    if slot.fill is None or slot.init == "zeros":
        return f"{w.torch}.{slot.init}({', '.join(shape)}, {options})"
    return f"{w.torch}.full({tuple_of(shape)}, {number(slot.fill)}, {options})"


def number(value: Any) -> str:
    return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)


def _begin(w: Writer, copied: tuple[Slot, ...] = ()) -> tuple[str, Sizes]:
    """What every launch starts with: compare, find the device, bind sizes."""
    if w.plan.given_arrays:
        checks.check_memories(w)
    checks.describe_inputs(w, copied=copied)
    device = checks.find_device(w)
    checks.check_handles(w, device)
    sizes = checks.bind_sizes(w)
    exprs = [e for s in w.plan.fresh if s.shape is not None and not callable(s.shape) for e in s.shape]
    exprs += [d for slot in w.plan.given_arrays for d in slot.dims or () if d is not None]
    launch = w.plan.extents.launch
    exprs += [] if callable(launch) else list(launch)
    w.refuse_if(checks.divisions(sizes, exprs))
    return device, sizes


def write_forward(w: Writer) -> None:
    """The raw op: functional."""
    plan = w.plan
    copied = tuple(slot for slot in plan.slots if slot.role == "inout")
    with w.text.function(w.function("forward"), plan.arguments):
        device, sizes = _begin(w, copied)
        checks.check_mutated(w)
        shapes = checks.shapes_of(w, sizes, plan.fresh)
        dims = checks.write_launch_size(w, sizes)
        checks.check_reach(w, sizes, shapes, dims, device)
        allocate(w, shapes, device)
        for slot in copied:
            w.text.add(f"{slot.name} = {private_copy(w, slot)}")
        w.step.forward(w, shapes, (*plan.fresh, *copied), dims, device)
        if plan.returned:
            w.text.add(f"return {', '.join(slot.name for slot in plan.returned)}")


def private_copy(w: Writer, slot: Slot) -> str:
    """What the launch works on in an in-out array's place; no gradient passes the copy of one that gets none."""
    ended = ".detach()" if slot.severed else ""
    return f"{slot.name}{ended}.clone(memory_format={w.torch}.contiguous_format)"


def allocate(w: Writer, shapes: Shapes, device: str) -> None:
    """Make everything fresh."""
    if w.plan.fresh:
        sizes = [device, *(size for slot in w.plan.fresh for size in shapes[slot.name])]
        w.text.add(f"{w.targets(w.plan.fresh)} = {w.function('allocate')}({', '.join(sizes)})")


def write_forward_into(w: Writer) -> None:
    """The raw op over given buffers: what compiled code calls."""
    plan = w.plan
    with w.text.function(w.function("forward_into"), [*plan.arguments, *(slot.name for slot in plan.fresh)]):
        checks.separate(w)
        device, sizes = _begin(w)
        for slot in plan.fresh:
            w.text.let(w.local(slot, "shape"), f"{slot.name}.shape")
            w.text.let(w.local(slot, "stride"), f"{slot.name}.stride()")
        shapes = {slot.name: w.given_sizes(slot) for slot in plan.fresh}
        dims = checks.write_launch_size(w, sizes)
        checks.check_reach(w, sizes, shapes, dims, device)
        w.step.forward(w, shapes, (), dims, device)
