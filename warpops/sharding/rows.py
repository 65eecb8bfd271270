"""Which arrays an op treats row by row, so that a part of their rows can be computed alone.

With ``z[n]`` computed from ``x[n]`` and ``w[k]``, where every thread of the first coordinate touches the rows of its own
number only, rows 3 to 5 of ``z`` follow from rows 3 to 5 of ``x`` and all of ``w``. That is what a tensor sharded on its
first axis needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..plan.model import OpPlan, Slot
from ..plan.sizes import Expr


@dataclass(frozen=True)
class Rows:
    """``arrays`` (schema names) are treated row by row, everything else as a whole; none where that isn't certain."""

    arrays: frozenset[str]
    why: str


def find_rows(plan: OpPlan) -> Rows:
    """Decide from the sizes and the kernel which arrays have rows of their own."""
    from .strays import strays  # the analysis is imported with the first kernel

    reason = _obstacle(plan)
    if reason is not None:
        return Rows(frozenset(), reason)
    size = _row_size(plan)
    own = [slot for slot in plan.arrays if _has_rows(plan, slot, size)]
    labels = {slot.label for slot in own}
    others = [leaf.label for leaf in plan.kernel.leaves if leaf.label not in labels]
    reason = strays(plan.kernel.kernel, labels, others)
    if reason is not None:
        return Rows(frozenset(), reason)
    return Rows(frozenset(slot.name for slot in own), "each thread touches only the rows of its own first coordinate")


def _row_size(plan: OpPlan) -> Any:
    launch = plan.extents.launch
    return None if callable(launch) or not launch or not launch[0].is_name else launch[0]


def _sizes(plan: OpPlan, slot: Slot) -> Any:
    extents = plan.extents
    return extents.dims.get(slot.name) or extents.shapes.get(slot.name)


def _has_rows(plan: OpPlan, slot: Slot, size: Expr) -> bool:
    sizes = _sizes(plan, slot)
    return bool(sizes) and not callable(sizes) and sizes[0] == size


def _obstacle(plan: OpPlan) -> str | None:
    """Why not, as far as sizes and effects tell it."""
    if plan.kernel.program:
        return "a program launches kernels of its own"
    if plan.effects.opaque:
        return f"the kernel can't be followed everywhere ({plan.effects.opaque[0]})"
    if plan.effects.tiled or plan.declaration.tiled:
        return "threads work together on tiles"
    if not plan.effects.tid_rank:
        return "the kernel isn't launched over a first coordinate"
    size = _row_size(plan)
    if size is None:
        return "the first launch size is not the size of an axis"
    label = str(size.value)
    if any(s.label == label and not s.is_array for s in plan.inputs):
        return f"the first launch size, '{label}', is a number that the caller gives"
    launch = plan.extents.launch
    assert not callable(launch)
    if any(label in dim.names() for dim in launch[1:]):
        return f"another launch size depends on '{label}'"
    for slot in plan.arrays:
        reason = _array_obstacle(plan, slot, size, label)
        if reason is not None:
            return reason
    if not any(_has_rows(plan, slot, size) for slot in plan.arrays if slot.is_input):
        return f"no input has the size '{label}' first"
    return None


def _array_obstacle(plan: OpPlan, slot: Slot, size: Expr, label: str) -> str | None:
    sizes = _sizes(plan, slot)
    if callable(sizes):
        return f"the shape of '{slot.label}' is computed by a callable"
    own = _has_rows(plan, slot, size)
    for dim in (sizes or ())[1 if own else 0 :]:
        if dim is not None and label in dim.names():
            return f"the sizes of '{slot.label}' depend on '{label}' elsewhere than in its first axis"
    if own:
        return None
    known = plan.effects.arrays.get(slot.label)
    if slot.role != "input" or known is None or known.written or known.escapes:
        return f"'{slot.label}' is written otherwise than row by row"
    if any(use.coordinate == 0 for use in known.axes):
        return f"'{slot.label}' is indexed by the first coordinate, and its size isn't '{label}'"
    return None
