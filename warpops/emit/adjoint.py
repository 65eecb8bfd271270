"""The backward launches: what is made ready, the adjoint launch over given buffers, and the functional op."""

from __future__ import annotations

from typing import Any

import torch

from ..arguments.call import measure
from ..plan.model import OpPlan, Slot
from ..private import torch_guards
from . import checks
from .forward import number
from .text import targets, tuple_of
from .writer import Writer


def backward_arguments(w: Writer) -> list[str]:
    """The arguments that the raw backward ops share: the forward's, then the saved fresh arrays."""
    return [*w.plan.arguments, *(slot.name for slot in w.plan.kept)]


def grad_name(w: Writer, slot: Slot) -> str:
    return w.text.free(f"grad_{slot.name}")


def buffers(w: Writer) -> list[str]:
    """The cotangents, which a launch may change, and the gradients that it fills."""
    return [grad_name(w, slot) for slot in (*w.plan.cotangents, *w.plan.gradient_buffers)]


def write_prepare(w: Writer) -> None:
    """Private cotangents, and buffers for the gradients that are asked for."""
    text, plan = w.text, w.plan
    given = (*plan.given_arrays, *plan.kept)
    cotangents = [grad_name(w, slot) for slot in plan.cotangents]
    with text.function(w.function("prepare"), [*backward_arguments(w), *cotangents, "needs"]):
        text.add('"""Make arrays dense, cotangents private, and a buffer for each gradient that is needed."""')
        for slot in given:
            text.add(f"{slot.name} = {_unless_none(slot, f'{slot.name}.contiguous()')}")
            data = plan.adjoint_data(slot)
            if data == "made again":
                text.add(f"{slot.name} = {_as_before(w, slot)}  # functions run again, and write it")
            elif data == "copied":
                copy = _unless_none(slot, f"{slot.name}.clone()")
                text.add(f"{slot.name} = {copy}  # functions or native code run again, and write it")
        for slot, grad in zip(plan.cotangents, cotangents, strict=True):
            dense = f"memory_format={w.torch}.contiguous_format"
            made = f"{grad}.contiguous()" if slot.retained else f"{grad}.clone({dense})"
            absent = "None"
            if slot.role == "inout" or slot.saved:
                absent = f"{w.torch}.zeros_like({slot.name}, {dense})"
            elif not slot.null_adjoint_safe:
                absent = w.ask(f"zeros_of_{slot.name}", _zeros_of, slot, device=True)
            if absent == "None":
                text.add(f"{grad} = None if {grad} is None else {made}")
                continue
            with text.indented(f"if {grad} is None:"):
                text.add(f"{grad} = {absent}")
            with text.indented("else:"):
                text.add(f"{grad} = {made}")
        places = {slot.name: place for place, slot in enumerate(plan.gradients)}
        for slot in plan.gradient_buffers:
            conditions = [f"{slot.name} is not None"] if slot.optional else []
            conditions += [f"needs[{places[slot.name]}]"] if slot.null_adjoint_safe else []
            buffer = f"{w.torch}.empty_like({slot.name})"
            text.add(
                f"{grad_name(w, slot)} = {buffer}" + (f" if {' and '.join(conditions)} else None" if conditions else "")
            )
        text.add(f"return {targets([*(slot.name for slot in given), *buffers(w)])}")


def _unless_none(slot: Slot, text: str) -> str:
    return f"None if {slot.name} is None else {text}" if slot.optional else text


def _as_before(w: Writer, slot: Slot) -> str:
    """A private array like one that the op made, in the state that it had before the launch."""
    if slot.fill is None or slot.init == "zeros":
        return f"{w.torch}.{slot.init}_like({slot.name})"
    return f"{w.torch}.full_like({slot.name}, {number(slot.fill)})"


def _zeros_of(op: str, plan: OpPlan, slot: Slot, values: dict[str, Any], device: Any = None) -> torch.Tensor:
    found = measure(op, plan, values, device)
    assert slot.leaf.scalar is not None
    shape = (*found.shapes[slot.name], *(slot.leaf.component or ()))
    return torch.zeros(shape, dtype=slot.leaf.scalar.dtype, device=found.device)


def zero_gradients(w: Writer) -> None:
    """The adjoint adds to gradients."""
    slots = w.plan.gradient_buffers
    if w.plan.zeroed_at_once:
        names = ", ".join(grad_name(w, slot) for slot in slots)
        w.text.add(f"{w.provide('zero_all', torch_guards.zero_all)}({names})")
        return
    for slot in slots:
        grad = grad_name(w, slot)
        with w.text.indented(f"if {grad} is not None:" if slot.null_adjoint_safe or slot.optional else ""):
            w.text.add(f"{grad}.zero_()")


def write_backward_into(w: Writer) -> None:
    """The adjoint launch over given buffers: cotangents, which it may change, and gradients, which it fills."""
    with w.text.function(w.function("backward_into"), [*backward_arguments(w), *buffers(w)]):
        device = checks.measure(w)
        zero_gradients(w)
        w.step.backward(w, device)


def write_backward(w: Writer) -> None:
    """The raw backward op: functional."""
    plan = w.plan
    parameters = [*backward_arguments(w), *(grad_name(w, slot) for slot in plan.cotangents), "needs"]
    with w.text.function(w.function("backward"), parameters):
        ready = [*(slot.name for slot in (*plan.given_arrays, *plan.kept)), *buffers(w)]
        w.text.add(f"{targets(ready)} = {w.function('prepare')}({', '.join(parameters)})")
        w.text.add(f"{w.function('backward_into')}({', '.join([*backward_arguments(w), *buffers(w)])})")
        wanted = [grad_name(w, slot) for slot in plan.gradients]
        if len(wanted) == 1 and not plan.gradients[0].optional:
            w.text.add(f"return [{wanted[0]}] if needs[0] else []")
        else:
            w.text.add(f"return [grad for grad, need in zip({tuple_of(wanted)}, needs) if need and grad is not None]")
