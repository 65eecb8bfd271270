"""Running a program over PyTorch's tensors: forward, and once more with gradients."""

from __future__ import annotations

from typing import Any

import torch
import warp as wp

from ..arguments.kinds import check_slot
from ..errors import SignatureError
from ..kernel.signature import KernelSignature
from ..launch import devices
from ..plan.model import OpPlan, Slot
from ..private import warp_code, warp_types
from ..private.warp_calls import watching
from .record import Run

Gradients = tuple[torch.Tensor | None, ...]


class Runner:
    """Runs one program, on any device. In place of a kernel's ``Launcher``."""

    def __init__(self, op: str, plan: OpPlan) -> None:
        self.op, self.plan = op, plan
        self.signature: KernelSignature = plan.kernel
        self.function = plan.kernel.kernel.func
        self._types = dict(warp_types.argument_types(plan.kernel.kernel))
        self._slots = [slot for slot in plan.slots if slot.role != "size"]
        self._numbers = [s for s in plan.inputs if not s.is_array and s.role != "tensor_scalar"]

    def preload(self, device: torch.device) -> None:
        raise SignatureError(
            f"{self.op}: preload: which kernels a program launches is known only when it runs; call the op once on "
            f"small arrays instead"
        )

    def forward(self, device: torch.device, values: tuple[Any, ...]) -> None:
        """Run the program.

        Args:
            device: where the tensors are.
            values: tensors and numbers in the order of the function's arguments, structs field by field. Outputs,
                in-out arrays, mutated arrays and scratch are written.
        """
        run = self._begin(device, recording=False)
        working = list(values)
        for index, (slot, value) in enumerate(zip(self._slots, values, strict=True)):
            if slot.is_array and value is not None:
                working[index] = value.contiguous()
                if slot.role == "input":
                    run.add(slot.label, working[index], given=True)
        self._call(run, working)
        for slot, value, work in zip(self._slots, values, working, strict=True):
            if slot.is_array and work is not value and slot.role != "input":
                value.copy_(work)

    def backward(self, device: torch.device, values: tuple[Any, ...], gradients: Gradients) -> None:
        """Run the program on private copies, then the adjoints of its launches.

        Args:
            device: where the tensors are.
            values: as for ``forward``; in-out and mutated arrays hold what they held before the program.
            gradients: by value: an input's is added to; an output's is its cotangent, and is consumed; that of an
                in-out array comes in as the cotangent and goes out as the gradient. None where none is wanted, or none
                came.
        """
        run = self._begin(device, recording=True)
        working = list(values)
        buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        for index, (slot, value, gradient) in enumerate(zip(self._slots, values, gradients, strict=True)):
            if not slot.is_array or value is None:
                continue
            own = value.contiguous()
            if slot.role in ("inout", "mutated") or run.overlaps(own):
                own = own.clone()
            working[index] = own
            buffer = gradient
            if gradient is not None and not gradient.is_contiguous():
                buffer = gradient.contiguous()
                buffers.append((gradient, buffer))
            wanted = gradient is not None and slot.role in ("input", "inout")
            arrived = gradient is not None and slot.role in ("output", "inout")
            run.add(slot.label, own, slot.role == "input", buffer, active=wanted, reached=arrived)
        self._call(run, working)
        run.backward()
        for gradient, buffer in buffers:
            gradient.copy_(buffer)

    def _begin(self, device: torch.device, recording: bool) -> Run:
        warp_code.runtime_ready()
        warp_device = devices.warp_device(device)
        return Run(self.op, warp_device, devices.current_stream(device, warp_device), recording)

    def _call(self, run: Run, values: list[Any]) -> None:
        named = dict(zip((slot.name for slot in self._slots), values, strict=True))
        arguments = []
        for argument in self.signature.arguments:
            warp_type = self._types[argument.name]
            if argument.struct:
                arguments.append(self._struct(run, warp_type, (argument.name,), named))
            else:
                arguments.append(self._value(run, warp_type, self.plan.slot(argument.name), named[argument.name]))
        with watching(run):
            result = self.function(*arguments)
        if result is not None:
            raise SignatureError(
                f"{self.op}: the program returns a {type(result).__name__}; its results are what it writes into the "
                f"arrays on the right of the signature, and it returns nothing"
            )

    def _struct(self, run: Run, warp_type: Any, path: tuple[str, ...], named: dict[str, Any]) -> Any:
        instance = warp_type()
        for field, field_type in (warp_types.struct_fields(warp_type) or {}).items():
            inner = (*path, field)
            if warp_types.struct_fields(field_type) is not None:
                setattr(instance, field, self._struct(run, field_type, inner, named))
                continue
            slot = self.plan.slot("_".join(inner))
            value = self._value(run, field_type, slot, named[slot.name])
            if value is not None:
                setattr(instance, field, value)
        return instance

    def _value(self, run: Run, warp_type: Any, slot: Slot, value: Any) -> Any:
        """A tensor or a number as the program takes it."""
        if slot.is_array:
            null = value is None or (slot.nullable and value.numel() == 0)
            return None if null else array_of(value, warp_type.dtype, slot.leaf.ndim, run.device)
        if slot.leaf.kind == "vector":
            return warp_type(*value)
        if slot.leaf.kind == "handle":
            return value & 0xFFFFFFFFFFFFFFFF
        return value

    def check_numbers(self, values: dict[str, Any]) -> None:
        """Every number fits its type."""
        for slot in self._numbers:
            check_slot(self.op, slot, values[slot.name])


def array_of(tensor: torch.Tensor, dtype: Any, ndim: int, device: Any) -> Any:
    """A dense tensor's memory as a ``wp.array``, which keeps the tensor alive."""
    if tensor.numel() == 0:
        return wp.empty(tuple(tensor.shape[:ndim]), dtype=dtype, device=device)
    array: Any = wp.array(ptr=tensor.data_ptr(), dtype=dtype, shape=tuple(tensor.shape[:ndim]), device=device)
    array._tensor = tensor
    return array
