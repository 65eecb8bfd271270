"""What outputs and scratch hold before the launch: nothing, where it provably writes every element."""

from __future__ import annotations

from typing import cast

from ..effects import ArrayEffects, Effects
from ..errors import SignatureError, did_you_mean
from ..kernel.signature import KernelSignature, Leaf
from .declaration import Declaration
from .extents import Extents
from .model import Init, Slot


def covers_exactly(leaf: Leaf, effects: ArrayEffects, extents: Extents) -> str | None:
    """Why the launch fails to cover this array element by element; None where it does so provably."""
    shape = extents.shapes.get(leaf.name)
    if not effects.filled and not (effects.filled_if and all(map(extents.holds, effects.filled_if))):
        return effects.filled_why or "not every element is provably written"
    if shape is None or callable(shape) or callable(extents.launch):
        return "its shape and the launch size are computed by callables, which can't be compared before the call"
    for axis, coordinate in enumerate(effects.filled_by):
        if coordinate is None:
            continue
        if coordinate >= len(extents.launch):
            return f"its axis {axis} is run through by the threads of a block, of which there are as many as the device takes"
        if extents.launch[coordinate] != shape[axis]:
            return (
                f"its axis {axis} has size {shape[axis]}, and the launch has {extents.launch[coordinate]} threads there"
            )
    return None


def init_of(leaf: Leaf, declaration: Declaration, known: ArrayEffects, extents: Extents) -> tuple[Init, str]:
    declared = dict(declaration.inits).get(leaf.label, declaration.init)
    if declared == "zeros" or declared == "empty":
        return cast(Init, declared), "declared"
    if declared is not None and declared != "auto":
        return cast(Init, float(declared) if leaf.differentiable else declared), "declared"
    missing = covers_exactly(leaf, known, extents)
    if missing is not None:
        return "zeros", missing
    return "empty", "every element is written" + (f": {known.filled_why}" if known.filled_why else "")


def check_inits(kernel: KernelSignature, declaration: Declaration, effects: Effects, slots: tuple[Slot, ...]) -> None:
    by_label = {slot.label: slot for slot in slots}
    for label, value in declaration.inits:
        slot = by_label.get(label)
        if slot is None or slot.role != "output":
            hint = did_you_mean(label, [s.label for s in slots if s.role == "output"])
            raise SignatureError(f"{kernel.name}: init names '{label}', which is no fresh output{hint}")
        _check_number(kernel, slot, value)
    for slot in slots:
        if slot.role != "output":
            continue
        if declaration.init is not None and slot.label not in dict(declaration.inits):
            _check_number(kernel, slot, declaration.init)
        known = effects.arrays.get(slot.label)
        if known is None:
            continue
        if slot.init == "empty" and known.atomics:
            op, site = known.atomics[0]
            raise SignatureError(
                f"{kernel.name}: output '{slot.label}' is declared init='empty', and the kernel updates it with "
                f"{op} at {site}, which reads what is there; leave init out (zeros), or give a number"
            )
        if slot.init_why != "declared" and known.reads_before_write is not None:
            raise SignatureError(
                f"{kernel.name}: output '{slot.label}' is read before the kernel writes it, at "
                f"{known.reads_before_write}: `{known.reads_before_write.code}`; if its values before the launch matter, "
                f"name it on both sides of the signature (in-out: '{slot.label} -> {slot.label}'), else declare what it "
                f"holds with init={{'{slot.label}': 'zeros'}}"
            )


def _check_number(kernel: KernelSignature, slot: Slot, value: str | float) -> None:
    scalar = slot.leaf.scalar
    if not isinstance(value, str) and scalar is not None and not scalar.holds(value):
        raise SignatureError(f"{kernel.name}: init of '{slot.label}' is {value!r}, which {scalar.name} can't hold")
