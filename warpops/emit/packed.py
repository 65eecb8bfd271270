"""A kernel's launch in the text: arguments packed into the bytes that Warp takes, and a launch of those."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..arguments.call import measure
from ..arguments.kinds import kind_of
from ..errors import ArgumentError
from ..launch.launcher import Launcher
from ..launch.packing import PACK_ERRORS, bfloat16_bits
from ..plan.model import OpPlan, Slot
from ..private.warp_types import RETAIN_GRAD
from . import checks
from .adjoint import grad_name
from .text import tuple_of
from .writer import Shapes, Step, Writer


def packed_step(launcher: Launcher) -> Step:
    """The launches of a kernel."""
    return Step(launcher, "launches of the kernel", dense=True, forward=_forward, backward=_backward)


def _forward(w: Writer, dims: str, device: str) -> None:
    checks.prepare_numbers(w)
    parts = []
    for slot in w.plan.slots:
        if slot.is_array:
            parts.append(_descriptor(w, slot, {}, _pointer(slot), "0"))
        elif slot.role != "size":
            parts.append(packed_value(w, slot))
    _pack(w, {"arguments": parts})
    w.text.add(f"{w.text.free('launcher')}.forward({device}, {dims}, {w.text.local('arguments')})")
    checks.give_back(w)


def _backward(w: Writer, device: str) -> None:
    plan = w.plan
    checks.describe(w, (*plan.given_arrays, *plan.kept))
    made = [slot for slot in plan.fresh if not slot.saved]
    shapes = checks.shapes_of(w, made)
    for slot in plan.cotangents:
        if callable(slot.shape):
            sizes = shapes.get(slot.name) or w.given_sizes(slot)
            checks.check_computed_as(w, slot, grad_name(w, slot), True, sizes)
    dims = checks.write_launch_size(w)
    if callable(plan.extents.launch):
        checks.check_reach(w, dims, device, shapes)
    grads: dict[str, str] = {}
    for slot in plan.temporaries:
        if slot.name in shapes:
            shape = [*shapes[slot.name], *map(str, slot.leaf.component or ())]
            zeros = f"{w.torch}.zeros({tuple_of(shape)}, dtype={w.dtype(slot)}, device={device})"
        else:
            zeros = f"{w.torch}.zeros_like({slot.name}, memory_format={w.torch}.contiguous_format)"
            zeros += f" if {slot.name} is not None else None" if slot.optional else ""
        w.text.add(f"{grad_name(w, slot)} = {zeros}")
        grads[slot.name] = _adjoint_pointer(w, slot, always=not slot.optional)
    for slot in (*plan.cotangents, *plan.gradient_buffers):
        always = slot.role == "inout" or (slot.role == "output" and slot.saved)
        grads[slot.name] = _adjoint_pointer(w, slot, always)
    checks.prepare_numbers(w)
    arguments, adjoints = [], []
    for slot in plan.slots:
        if slot.is_array:
            data, grad = "0" if slot.name in shapes else _pointer(slot), grads.get(slot.name, "0")
            flags = str(RETAIN_GRAD) if slot.retained else "0"
            arguments.append(_descriptor(w, slot, shapes, data, grad, flags))
            if len(slot.leaf.path) == 1:  # the buffer once more; numbers and structs have none
                adjoints.append(_descriptor(w, slot, shapes, grad if slot.explicit else "0", "0"))
        elif slot.role != "size":
            arguments.append(packed_value(w, slot))
    _pack(w, {"arguments": arguments, "adjoints": adjoints})
    names = f"{w.text.local('arguments')}, {w.text.local('adjoints')}"
    w.text.add(f"{w.text.free('launcher')}.adjoint({device}, {dims}, {names})")


def _pointer(slot: Slot) -> str:
    return f"0 if {slot.name} is None else {slot.name}.data_ptr()" if slot.optional else f"{slot.name}.data_ptr()"


def _adjoint_pointer(w: Writer, slot: Slot, always: bool) -> str:
    variable, buffer = w.text.local(f"{slot.name}_adjoint"), grad_name(w, slot)
    absent = "" if always else f"0 if {buffer} is None else "
    w.text.add(f"{variable} = {absent}{buffer}.data_ptr()")
    return variable


def _descriptor(w: Writer, slot: Slot, made: Shapes, data: str, grad: str, flags: str = "0") -> str:
    """An array as Warp takes it; ``made`` are the sizes of those that are there for their gradient alone."""
    assert slot.leaf.scalar is not None
    size = slot.leaf.scalar.size
    sizes = made.get(slot.name) or w.given_sizes(slot)
    if slot.name in made:
        steps = _dense_steps(sizes, size * math.prod(slot.leaf.component or ()))
    else:
        steps = [f"{w.local(slot, 'stride')}[{k}]" + (f" * {size}" if size > 1 else "") for k in range(slot.leaf.ndim)]
    return ", ".join([data, grad, *sizes, *steps, str(slot.leaf.ndim), flags])


def _dense_steps(sizes: Sequence[str], step: int) -> list[str]:
    """The byte strides of a dense array."""
    factors = [f"({size})" if " " in size else size for size in sizes]
    return [" * ".join([*factors[axis + 1 :], str(step)]) for axis in range(len(sizes))]


def packed_value(w: Writer, slot: Slot) -> str:
    """A number, or a vector's, as they are packed."""
    scalar = slot.leaf.scalar
    assert scalar is not None
    bits = w.provide("bfloat16_bits", bfloat16_bits) if scalar.name == "bfloat16" else ""
    return kind_of(slot).packed(slot, bits)


def _pack(w: Writer, parts: dict[str, list[str]]) -> None:
    """Name the bytes of the arguments, and of the explicit adjoints."""
    error = w.provide("PackError", (*PACK_ERRORS, TypeError))
    with w.text.indented("try:"):
        for variable, values in parts.items():
            name, layout = ("pack", "layout") if variable == "arguments" else ("pack_adjoint", "adjoint_layout")
            pack = w.provide(name, getattr(w.step.target, layout).packer())
            w.text.add(f"{w.text.local(variable)} = {pack}(")
            for value in values:
                w.text.add(f"    {value},")
            w.text.add(")")
    w.text.add(f"except {error}:")
    w.text.add(f"    {w.ask('refuse_packing', _refuse_packing, device=True)}")


def _refuse_packing(op: str, plan: OpPlan, values: dict[str, Any], device: Any = None) -> None:
    """Say what of a call doesn't fit into the bytes of a launch."""
    measure(op, plan, values, device)
    for slot in plan.given_arrays:
        value = values[slot.name]
        if value is None:
            continue
        steps = [step * value.element_size() for step in value.stride()]
        if any(n > 2**31 - 1 for n in (*value.shape, *steps)):
            raise ArgumentError(
                f"{op}: argument '{slot.label}': expected sizes and byte strides below 2**31, which is what Warp's "
                f"descriptors hold, got shape {value.shape} and strides of {tuple(steps)} bytes; pass it "
                f".contiguous(), or split the call"
            )
    raise ArgumentError(
        f"{op}: an array is too large for Warp's descriptors, which hold sizes and byte strides of 31 bits; split "
        f"the call, or pass the tensor .contiguous()"
    )
