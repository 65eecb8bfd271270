"""Which arrays an op treats row by row, so that a part of their rows can be computed alone.

With ``z[n]`` computed from ``x[n]`` and ``w[k]``, where every thread of the first coordinate touches the rows of its own
number only, rows 3 to 5 of ``z`` follow from rows 3 to 5 of ``x`` and all of ``w``. That is what a tensor sharded on its
first axis needs.
"""

from __future__ import annotations

from ..frozen import frozen
from ..plan.model import OpPlan, Slot


@frozen
class Rows:
    """``arrays`` (schema names) are treated row by row, everything else as a whole; none where that isn't certain."""

    arrays: frozenset[str]
    why: str


def find_rows(plan: OpPlan) -> Rows:
    """Decide from the sizes and the kernel which arrays have rows of their own."""
    from .strays import strays  # the analysis is imported with the first kernel

    own = _with_rows(plan)
    if isinstance(own, str):
        return Rows(frozenset(), own)
    labels = {slot.label for slot in own}
    others = [leaf.label for leaf in plan.kernel.leaves if leaf.label not in labels]
    reason = strays(plan.kernel.kernel, labels, others)
    if reason is not None:
        return Rows(frozenset(), reason)
    return Rows(frozenset(slot.name for slot in own), "each thread touches only the rows of its own first coordinate")


def _with_rows(plan: OpPlan) -> list[Slot] | str:
    """The arrays whose first axis is as long as the launch; as far as sizes and effects tell it, why they have no rows."""
    launch, effects = plan.extents.launch, plan.effects
    if plan.kernel.program:
        return "a program launches kernels of its own"
    if effects.opaque:
        return f"the kernel can't be followed everywhere ({effects.opaque[0]})"
    if effects.tiled or plan.declaration.tiled:
        return "threads work together on tiles"
    if not effects.tid_rank:
        return "the kernel isn't launched over a first coordinate"
    if callable(launch) or not launch or not launch[0].is_name:
        return "the first launch size is not the size of an axis"
    label = str(launch[0].value)
    if any(s.label == label and not s.is_array for s in plan.inputs):
        return f"the first launch size, '{label}', is a number that the caller gives"
    if any(label in dim.names() for dim in launch[1:]):
        return f"another launch size depends on '{label}'"
    own = []
    for slot in plan.arrays:
        sizes = slot.shape or slot.dims or ()
        if callable(sizes):
            return f"the shape of '{slot.label}' is computed by a callable"
        has_rows = bool(sizes) and sizes[0] == launch[0]
        if any(dim is not None and label in dim.names() for dim in sizes[has_rows:]):
            return f"the sizes of '{slot.label}' depend on '{label}' elsewhere than in its first axis"
        if has_rows:
            own.append(slot)
            continue
        known = effects.arrays.get(slot.label)
        if slot.role != "input" or known is None or known.written or known.escapes:
            return f"'{slot.label}' is written otherwise than row by row"
        if any(use.coordinate == 0 for use in known.axes):
            return f"'{slot.label}' is indexed by the first coordinate, and its size isn't '{label}'"
    return own if any(slot.is_input for slot in own) else f"no input has the size '{label}' first"
