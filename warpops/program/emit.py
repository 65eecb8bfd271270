"""A program's run in the text, in place of a kernel's launch."""

from __future__ import annotations

from ..emit import checks
from ..emit.adjoint import grad_name
from ..emit.forward import allocate
from ..emit.text import tuple_of
from ..emit.writer import Step, Writer
from ..plan.model import OpPlan, Slot
from .run import Runner


def run_step(op: str, plan: OpPlan) -> Step:
    """The runs of a program."""
    return Step(Runner(op, plan), "runs of the program", dense=False, forward=_forward, backward=_backward)


def _forward(w: Writer, dims: str, device: str) -> None:
    _numbers(w)
    w.text.add(f"{w.text.free('launcher')}.forward({device}, {w.tuple_of(_values(w))})")


def _backward(w: Writer, device: str) -> None:
    plan = w.plan
    allocate(w, checks.shapes_of(w, plan.fresh), device)
    _numbers(w)
    buffers = (*plan.cotangents, *plan.gradients)
    grads = [grad_name(w, slot) if slot in buffers else "None" for slot in _values(w)]
    w.text.add(f"{w.text.free('launcher')}.backward({device}, {w.tuple_of(_values(w))}, {tuple_of(grads)})")


def _values(w: Writer) -> list[Slot]:
    return [slot for slot in w.plan.slots if slot.role != "size"]


def _numbers(w: Writer) -> None:
    checks.prepare_numbers(w)
    if any(not slot.is_array for slot in w.plan.inputs):
        w.text.add(f"{w.provide('check_numbers', w.step.target.check_numbers)}({w.values()})")
