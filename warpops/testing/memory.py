"""What the kernel does with memory: elements that it doesn't write, values from before, threads in each other's way."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import torch

from ..arguments.call import measure
from ..calls.instances import Instance, make_instance
from ..plan.model import OpPlan, Slot
from .report import Finding, place
from .subject import Subject, Values, bits

FILLS = ((-1.7e4, 0x55), (3.1e3, 0x2A), (float("nan"), 0x55))
"""Garbage for floats and for the bytes of integers: numbers can be told again, NaN shows through products."""
THREADS = 64
"""How many threads of each axis are followed when races are looked for."""
LARGEST_LAUNCH = 1 << 16


def check_poison(subject: Subject) -> list[Finding]:
    """Run the kernel on two kinds of garbage: what differs was not written, or was read before it was."""
    filled = [s for s in subject.concrete.fresh if s.init == "empty"]
    if not filled:
        return []
    (first, garbage), (second, _), (third, _) = (_run_on(subject, subject.instance, *fill) for fill in FILLS)
    findings = []
    for slot in subject.concrete.slots:
        if not slot.is_result:
            continue
        left, right = first[slot.name], second[slot.name]
        differs = _differs(left, right) | _differs(left, third[slot.name])
        if not bool(differs.any()):
            continue
        raw = garbage.get(slot.name)
        count, total = int(differs.sum()), differs.numel()
        where = differs.nonzero()[0].tolist()
        declared = " (declared init='empty')" if slot.init_why == "declared" else ""
        if raw is not None and not bool((_differs(left, raw) & differs).any()):
            text = (
                f"'{slot.label}' is made empty{declared}, and the kernel leaves {count} of its {total} elements "
                f"unwritten, the first at {where}: they hold whatever was in memory. Leave init out, or write every "
                f"element"
            )
        else:
            names = ", ".join(f"'{s.label}'" for s in filled)
            text = (
                f"{count} of the {total} elements of '{slot.label}', the first at {where}, depend on what was in "
                f"memory before the launch: the kernel reads {names} before writing there. Use init='zeros', or make "
                f"it in-out"
            )
        known = subject.plan.effects.arrays.get(slot.label)
        sites = known.stores if known is not None else ()
        findings.append(Finding(f"memory of '{slot.label}'", text, tuple(place(site) for site in sites[:2])))
    return findings


def _run_on(subject: Subject, instance: Instance, fill: float, int_fill: int) -> tuple[Values, Values]:
    """What a launch into buffers that hold garbage leaves in them and in the arrays that it changes, and the garbage."""
    values, plan = subject.copies(), instance.plan
    found = measure(subject.name, plan, values, subject.device)
    named: Values = instance.allocate(found)
    buffers = list(named.values())
    for slot in plan.fresh:
        if slot.init == "empty":
            spoil(named[slot.name], fill, int_fill)
    garbage = {name: buffer.clone() for name, buffer in named.items()}
    for slot in plan.slots:
        if slot.changes and values[slot.name] is not None:
            named[slot.name] = values[slot.name] = values[slot.name].contiguous().clone()
    given = [values[slot.name] for slot in plan.inputs]
    device = [found.device] if plan.device_argument else []
    instance.launches["forward_into"](*given, *device, *buffers)
    return named, garbage


def spoil(tensor: torch.Tensor, fill: float, int_fill: int) -> None:
    """Fill a tensor with garbage, in place."""
    if tensor.is_floating_point():
        tensor.fill_(fill)
    elif tensor.dtype is torch.bool:
        tensor.fill_(bool(int_fill & 1))
    else:
        tensor.view(torch.uint8).fill_(int_fill)


def _differs(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Which elements differ in any bit."""
    size = left.element_size()
    return (bits(left).reshape(-1, size) != bits(right).reshape(-1, size)).any(-1).reshape(left.shape)


# --- races ------------------------------------------------------------------------------------------------------------


def check_races(subject: Subject) -> list[Finding]:
    """Launch ever more threads, and see which elements more than one of them stores a value of its own to.

    Stores of one element by several threads have no order on a GPU. Atomic updates are exempt.
    """
    plan = subject.concrete
    suspected = [slot for slot in plan.slots if _may_race(plan, slot)]
    if not suspected or plan.kernel.program or plan.declaration.tiled:
        return []
    found = measure(subject.name, plan, subject.values, subject.device)
    if not found.launch or not 1 < math.prod(found.launch) <= LARGEST_LAUNCH:
        return []
    dims = list(found.launch)
    fewer = replace(plan, extents=replace(plan.extents, launch=lambda: tuple(dims)))
    instance = make_instance(subject.name, fewer)
    findings: dict[str, Finding] = {}
    for axis, threads in enumerate(found.launch):
        states = []
        for count in range(min(threads, THREADS) + 1):
            dims[axis] = count
            states.append(_run_on(subject, instance, 0.0, 0)[0])
        dims[axis] = threads
        for slot in suspected:
            told = _conflict([state[slot.name] for state in states if slot.name in state], axis)
            if told is not None and slot.label not in findings:
                stores = plan.effects.arrays[slot.label].stores
                findings[slot.label] = Finding(
                    f"race on '{slot.label}'",
                    f"{told}. On a GPU they come in no order. Use wp.atomic_add, or let each thread store elements of "
                    f"its own",
                    tuple(place(site) for site in stores[:2]),
                )
    return list(findings.values())


def _may_race(plan: OpPlan, slot: Slot) -> bool:
    known = plan.effects.arrays.get(slot.label)
    if known is None or not (slot.fresh or slot.changes):
        return False
    return bool(known.stores) and not known.atomics and not known.stored_once


def _conflict(states: list[torch.Tensor], axis: int) -> str | None:
    owner = torch.full(states[0].shape if states else (), -1, dtype=torch.int64)
    for thread, (before, after) in enumerate(itertools.pairwise(states)):
        changed = _differs(before, after).cpu()
        again = changed & (owner >= 0)
        if bool(again.any()):
            index = tuple(again.nonzero()[0].tolist())
            return (
                f"its element {list(index)} is stored to by more than one thread without an atomic, with different "
                f"values: among them {int(owner[index])} and {thread} on axis {axis} of the launch"
            )
        owner[changed] = thread
    return None
