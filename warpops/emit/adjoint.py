"""The backward launches: what is made ready, the adjoint launch over given buffers, and the functional op."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..arguments.call import measure
from ..plan.model import Slot
from ..private import torch_guards
from .forward import Forward

RETAIN = 1
"""The flag RETAIN_GRAD of a descriptor."""


class Adjoint(Forward):
    """Writes ``prepare``, ``backward_into`` and ``backward``."""

    def backward_arguments(self) -> list[str]:
        """The arguments that the raw backward ops share: the forward's, then the saved fresh arrays."""
        return [*self.plan.arguments, *(self.saved_name(slot) for slot in self.plan.kept)]

    def saved_name(self, slot: Slot) -> str:
        return slot.name

    def grad_name(self, slot: Slot) -> str:
        return self.text.free(f"grad_{slot.name}")

    def temporaries(self) -> list[Slot]:
        """Arrays that gradients pass through without being inputs or results."""
        return [s for s in self.plan.slots if s.role in ("scratch", "mutated") and s.leaf.differentiable]

    def emit_prepare(self) -> None:
        """Private cotangents, and buffers for the gradients that are asked for."""
        text, plan = self.text, self.plan
        dense = f"memory_format={self.torch}.contiguous_format"
        cots = self.plan.cotangents
        with text.function(self.function("prepare"), [*self.backward_arguments(), *map(self.grad_name, cots), "needs"]):
            text.add('"""Make arrays dense, cotangents private, and a buffer for each gradient that is needed."""')
            for slot in (*self.plan.given_arrays, *plan.kept):
                if slot.optional:
                    text.add(f"if {slot.name} is not None:")
                    text.add(f"    {slot.name} = {slot.name}.contiguous()")
                else:
                    text.add(f"{slot.name} = {slot.name}.contiguous()")
                data = plan.adjoint_data(slot)
                if data == "made again":
                    text.add(f"{slot.name} = {self._as_before(slot)}  # functions run again, and write it")
                elif data == "copied":
                    copy = f"{slot.name}.clone()"
                    copy += f" if {slot.name} is not None else None" if slot.optional else ""
                    text.add(f"{slot.name} = {copy}  # functions or native code run again, and write it")
            shapes_needed = [s for s in cots if s.role == "output" and not self._may_be_null(s) and not s.saved]
            for slot in cots:
                grad = self.grad_name(slot)
                if slot.retained:
                    text.add(f"if {grad} is not None:")
                    text.add(f"    {grad} = {grad}.contiguous()")
                else:
                    text.add(f"if {grad} is not None:")
                    text.add(f"    {grad} = {grad}.clone({dense})")
                if slot.role == "inout" or slot.saved:
                    text.add("else:")
                    text.add(f"    {grad} = {self.torch}.zeros_like({slot.name}, {dense})")
                elif slot in shapes_needed:
                    make = self.provide(f"zeros_of_{slot.name}", self._zeros_of(slot))
                    text.add("else:")
                    extra = ", device" if plan.device_argument else ""
                    text.add(f"    {grad} = {make}({self.values()}{extra})")
            gradients = plan.gradient_buffers
            order = {slot.name: k for k, slot in enumerate(plan.gradients)}
            for slot in gradients:
                grad = self.grad_name(slot)
                condition = f"needs[{order[slot.name]}]" if slot.null_adjoint_safe else ""
                if slot.optional:
                    condition = f"{slot.name} is not None" + (f" and {condition}" if condition else "")
                buffer = f"{self.torch}.empty_like({slot.name})"
                text.add(f"{grad} = {buffer}" + (f" if {condition} else None" if condition else ""))
            names = [slot.name for slot in (*self.plan.given_arrays, *plan.kept)]
            names += [self.grad_name(slot) for slot in (*cots, *gradients)]
            text.add(f"return {', '.join(names)}{',' if len(names) == 1 else ''}")

    def _as_before(self, slot: Slot) -> str:
        """A private array like one that the op made, in the state that it had before the launch."""
        if slot.init == "zeros":
            return f"{self.torch}.zeros_like({slot.name})"
        if slot.init == "empty":
            return f"{self.torch}.empty_like({slot.name})"
        return f"{self.torch}.full_like({slot.name}, {self._number(slot.init)})"

    def _may_be_null(self, slot: Slot) -> bool:
        return slot.null_adjoint_safe and not slot.saved

    def _zeros_of(self, slot: Slot) -> Callable[..., torch.Tensor]:
        def zeros(values: dict[str, Any], device: Any = None) -> torch.Tensor:
            found = measure(self.op, self.plan, values, device)
            shape = (*found.shapes[slot.name], *(slot.leaf.component or ()))
            assert slot.leaf.scalar is not None
            return torch.zeros(shape, dtype=slot.leaf.scalar.dtype, device=found.device)

        return zeros

    def gradient_buffers(self) -> list[str]:
        gradients = self.plan.gradient_buffers
        return [self.grad_name(slot) for slot in (*self.plan.cotangents, *gradients)]

    def zero_gradients(self) -> None:
        """The adjoint adds to gradients."""
        slots = self.plan.gradient_buffers
        if self.plan.zeroed_at_once:
            names = ", ".join(self.grad_name(slot) for slot in slots)
            self.text.add(f"{self.provide('zero_all', torch_guards.zero_all)}({names})")
            return
        for slot in slots:
            grad = self.grad_name(slot)
            if slot.null_adjoint_safe or slot.optional:
                self.text.add(f"if {grad} is not None:")
                self.text.add(f"    {grad}.zero_()")
            else:
                self.text.add(f"{grad}.zero_()")

    def emit_backward_into(self) -> None:
        """The adjoint launch over given buffers: cotangents, which it may change, and gradients, which it fills."""
        text, plan = self.text, self.plan
        fresh = plan.fresh
        with text.function(self.function("backward_into"), [*self.backward_arguments(), *self.gradient_buffers()]):
            self.zero_gradients()
            self.describe_inputs(compare=False)
            device = self.find_device()
            self.bind_sizes()
            shapes: dict[str, list[str]] = {}
            computed = []
            for slot in fresh:
                if slot.saved:
                    text.add(f"{self.local(slot, 'shape')} = {slot.name}.shape")
                    shapes[slot.name] = [f"{self.local(slot, 'shape')}[{axis}]" for axis in range(slot.leaf.ndim)]
                else:
                    computed.append(slot)
            shapes |= self.shapes_of(computed)
            dims = self.launch_size()
            grads: dict[str, str] = {}
            flags: dict[str, str] = {}
            data: dict[str, str] = {}
            for slot in fresh:
                stride = self.local(slot, "stride")
                if slot.saved:
                    text.add(f"{stride} = {slot.name}.stride()")
                    data[slot.name] = f"{slot.name}.data_ptr()"
                else:
                    data[slot.name] = "0"
                    text.add(f"{stride} = {self._dense_strides(slot, shapes[slot.name])}")
            for slot in self.plan.given_arrays:
                data[slot.name] = (
                    f"0 if {slot.name} is None else {slot.name}.data_ptr()"
                    if slot.optional
                    else f"{slot.name}.data_ptr()"
                )
            for slot in self.temporaries():
                buffer = self.grad_name(slot)
                if slot.role == "scratch" and not slot.saved:
                    sizes = [*shapes[slot.name], *map(str, slot.leaf.component or ())]
                    shape = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
                    text.add(f"{buffer} = {self.torch}.zeros({shape}, dtype={self.dtype(slot)}, device={device})")
                else:
                    zeros = f"{self.torch}.zeros_like({slot.name}, memory_format={self.torch}.contiguous_format)"
                    text.add(
                        f"{buffer} = {zeros}" + (f" if {slot.name} is not None else None" if slot.optional else "")
                    )
                grads[slot.name] = self._pointer(slot, buffer, always=not slot.optional)
            for slot in (*self.plan.cotangents, *plan.gradient_buffers):
                buffer = self.grad_name(slot)
                always = slot.role == "inout" or (slot.role == "output" and slot.saved)
                grads[slot.name] = self._pointer(slot, buffer, always)
                if slot.retained:
                    flags[slot.name] = str(RETAIN)
            self.prepare_numbers()
            self._pack("arguments", self.pack, self.packed(shapes, data, grads, flags))
            self._pack("adjoints", self.pack_adjoint, self._packed_adjoints(shapes, grads))
            text.add(f"{self.launcher}.adjoint({device}, {dims}, {text.local('arguments')}, {text.local('adjoints')})")

    def _pointer(self, slot: Slot, buffer: str, always: bool) -> str:
        variable = self.text.local(f"{slot.name}_adjoint")
        pointer = f"{buffer}.data_ptr()"
        self.text.add(f"{variable} = {pointer}" if always else f"{variable} = 0 if {buffer} is None else {pointer}")
        return variable

    def _dense_strides(self, slot: Slot, sizes: list[str]) -> str:
        """Element strides of a dense array of that Warp shape (its component axes innermost)."""
        strides = []
        step = math.prod(slot.leaf.component or ())
        factors: list[str] = []
        for axis in range(slot.leaf.ndim - 1, -1, -1):
            strides.append(" * ".join([*factors, str(step)]) if factors else str(step))
            factors.insert(0, sizes[axis] if sizes[axis].replace("_", "").isalnum() else f"({sizes[axis]})")
        strides.reverse()
        return f"({', '.join(strides)}{',' if len(strides) == 1 else ''})"

    def _packed_adjoints(self, shapes: dict[str, list[str]], grads: dict[str, str]) -> list[str]:
        """The explicit adjoints: the same buffers once more; nothing for numbers and structs."""
        parts = []
        for slot in self.plan.slots:
            if slot.role == "size" or len(slot.leaf.path) > 1 or not slot.is_array:
                continue
            data = grads.get(slot.name, "0") if slot.explicit else "0"
            parts.append(self._descriptor(slot, shapes, data, "0", "0"))
        return parts

    def emit_backward(self) -> None:
        """The raw backward op: functional."""
        text, plan = self.text, self.plan
        cots = self.plan.cotangents
        parameters = [*self.backward_arguments(), *map(self.grad_name, cots)]
        with text.function(self.function("backward"), [*parameters, "needs"]):
            gradients = plan.gradient_buffers
            names = [slot.name for slot in (*self.plan.given_arrays, *plan.kept)]
            names += [self.grad_name(slot) for slot in (*cots, *gradients)]
            text.add(
                f"{', '.join(names)}{',' if len(names) == 1 else ''} = "
                f"{self.function('prepare')}({', '.join([*parameters, 'needs'])})"
            )
            text.add(
                f"{self.function('backward_into')}({', '.join([*self.backward_arguments(), *self.gradient_buffers()])})"
            )
            wanted = [self.grad_name(slot) for slot in plan.gradients]
            if len(wanted) == 1 and not plan.gradients[0].optional:
                text.add(f"return [{wanted[0]}] if needs[0] else []")
            else:
                pairs = ", ".join(wanted)
                text.add(f"return [grad for grad, need in zip(({pairs},), needs) if need and grad is not None]")
