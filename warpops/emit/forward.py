"""The forward launches: what is allocated, the functional op, and the one over given buffers."""

from __future__ import annotations

import math
from typing import Any

from ..plan.model import Slot
from . import checks
from .text import tuple_of
from .writer import Shapes, Writer


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


def write_forward(w: Writer) -> None:
    """The raw op: functional."""
    plan = w.plan
    with w.text.function(w.function("forward"), plan.arguments):
        device = checks.measure(w)
        checks.check_mutated(w)
        allocate(w, checks.shapes_of(w, plan.fresh), device)
        for slot in plan.slots:
            if slot.role == "inout":
                w.text.add(f"{slot.name} = {private_copy(w, slot)}")
        _call_run(w)
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
    with w.text.function(w.function("forward_into"), _buffered(w)):
        checks.separate(w)
        checks.measure(w)
        checks.check_computed(w)
        _call_run(w)


def _buffered(w: Writer) -> list[str]:
    """The arguments, then the buffers for everything fresh."""
    return [*w.plan.arguments, *(slot.name for slot in w.plan.fresh)]


def _run_parameters(w: Writer) -> list[str]:
    launch = w.plan.extents.launch
    names = set() if callable(launch) else {w.text.size(name) for expr in launch for name in expr.names()}
    return [*_buffered(w), *(name for k, name in enumerate(checks.measured(w)) if k == 0 or name in names)]


def _call_run(w: Writer) -> None:
    w.text.add(f"{w.function('run')}({', '.join(_run_parameters(w))})")


def write_run(w: Writer) -> None:
    """The launch itself, over arrays that are all there."""
    with w.text.function(w.function("run"), _run_parameters(w)):
        w.text.add('"""Launch over arrays that are all there."""')
        device = w.text.local("where")
        checks.check_handles(w, device)
        checks.describe(w, (*w.plan.given_arrays, *w.plan.fresh))
        dims = checks.write_launch_size(w)
        checks.check_reach(w, dims, device, {})
        w.step.forward(w, dims, device)
