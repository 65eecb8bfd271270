"""What the kernel does with memory: elements that it doesn't write, values from before, threads in each other's way."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import warp as wp

from ..arguments.call import Measure, measure
from ..arguments.kinds import kind_of
from ..plan.model import OpPlan, Slot
from ..private import warp_types
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
    (first, garbage), (second, _), (third, _) = (_run_on(subject, *fill) for fill in FILLS)
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
        where = _first(differs)
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


def _run_on(subject: Subject, fill: float, int_fill: int) -> tuple[Values, Values]:
    """The results of a launch into buffers that hold garbage, and the garbage."""
    values = subject.copies()
    instance = subject.op._instances.select(tuple(values.values()))
    plan = instance.plan
    found = measure(subject.name, plan, values, subject.device)
    named: Values = instance.allocate(found)
    buffers = list(named.values())
    for slot in plan.fresh:
        if slot.init == "empty":
            spoil(named[slot.name], fill, int_fill)
    garbage = {name: buffer.clone() for name, buffer in named.items()}
    for slot in plan.slots:
        if slot.role == "inout":
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


def _first(mask: torch.Tensor) -> str:
    return str(mask.nonzero()[0].tolist())


# --- races ------------------------------------------------------------------------------------------------------------


def check_races(subject: Subject) -> list[Finding]:
    """Launch ever more threads, and see which elements more than one of them stores a value of its own to.

    Stores of one element by several threads have no order on a GPU. Atomic updates are exempt.
    """
    plan = subject.concrete
    suspected = [slot for slot in plan.slots if _may_race(plan, slot)]
    if not suspected or plan.kernel.program or plan.declaration.tiled or any(p.struct for p in plan.parameters):
        return []
    found = measure(subject.name, plan, subject.values, subject.device)
    if not found.launch or not 1 < math.prod(found.launch) <= LARGEST_LAUNCH:
        return []
    findings: dict[str, Finding] = {}
    for axis in range(len(found.launch)):
        states = _states(subject, plan, found, axis, [slot.name for slot in suspected])
        for slot in suspected:
            told = _conflict(states[slot.name], axis)
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


def _states(
    subject: Subject, plan: OpPlan, found: Measure, axis: int, names: list[str]
) -> dict[str, list[torch.Tensor]]:
    """What the arrays hold after 0, 1, 2, ... threads along one axis of the launch."""
    states: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    for count in range(min(found.launch[axis], THREADS) + 1):
        values = subject.copies()
        for slot in plan.fresh:
            assert slot.leaf.scalar is not None
            shape = (*found.shapes[slot.name], *(slot.leaf.component or ()))
            values[slot.name] = torch.zeros(shape, dtype=slot.leaf.scalar.dtype, device=found.device)
            if isinstance(slot.init, (int, float)):
                values[slot.name].fill_(slot.init)
        dims = tuple(count if k == axis else n for k, n in enumerate(found.launch))
        if count:
            _launch(plan, values, dims)
        for name in names:
            states[name].append(values[name])
    return states


def _launch(plan: OpPlan, values: Values, dims: tuple[int, ...]) -> None:
    kernel = plan.kernel.kernel
    given: list[Any] = []
    for name, warp_type in warp_types.argument_types(kernel):
        value = values[name]
        if isinstance(value, torch.Tensor) and plan.slot(name).is_array:
            values[name] = value = value.contiguous()
            given.append(wp.from_torch(value, dtype=warp_type.dtype))
        elif isinstance(value, torch.Tensor):
            given.append(value.item())
        else:
            given.append(kind_of(plan.slot(name)).native(warp_type, value))
    device = next((wp.device_from_torch(v.device) for v in values.values() if isinstance(v, torch.Tensor)), None)
    wp.launch(kernel, dims, inputs=given, device=device, record_tape=False, block_dim=plan.declaration.block_dim or 256)


def _conflict(states: list[torch.Tensor], axis: int) -> str | None:
    owner = torch.full(states[0].shape, -1, dtype=torch.int64)
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
