"""Running a program over PyTorch's tensors: forward, and once more with gradients."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import torch
import warp as wp

from ..arguments.kinds import check_slot, kind_of
from ..arguments.ran import Ran, note_ran
from ..errors import SignatureError
from ..launch import devices, switch
from ..plan.model import OpPlan, Slot
from ..private import warp_code, warp_launch, warp_types
from ..private.warp_calls import watching
from .checks import of_leaves
from .record import Run
from .scripts import Key, Scripts
from .take import Take
from .trace import Trace

Gradients = tuple[torch.Tensor | None, ...]


class Runner:
    """Runs one program, on any device. In place of a kernel's ``Launcher``."""

    def __init__(self, op: str, plan: OpPlan) -> None:
        self.op, self.plan = op, plan
        self.program = plan.kernel.kernel
        self.scripts = Scripts(self.program.reads)
        self._types = dict(warp_types.argument_types(self.program))
        self._slots = [slot for slot in plan.slots if slot.role != "size"]
        self._arrays = [index for index, slot in enumerate(self._slots) if slot.is_array]
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
        working = self._run(device, values, ())
        for index in self._arrays:
            if working[index] is not values[index] and self._slots[index].role != "input":
                values[index].copy_(working[index])

    def backward(self, device: torch.device, values: tuple[Any, ...], gradients: Gradients) -> None:
        """Run the program on private copies, then the adjoints of its launches.

        Args:
            device: where the tensors are.
            values: as for ``forward``; in-out and mutated arrays hold what they held before the program.
            gradients: by value: an input's is added to; an output's is its cotangent, and is consumed; that of an
                in-out array comes in as the cotangent and goes out as the gradient. None where none is wanted, or none
                came.
        """
        buffers = tuple(None if gradient is None else gradient.contiguous() for gradient in gradients)
        self._run(device, values, buffers)
        for gradient, buffer in zip(gradients, buffers, strict=True):
            if gradient is not buffer and gradient is not None and buffer is not None:
                gradient.copy_(buffer)

    def _run(self, device: torch.device, values: tuple[Any, ...], gradients: Gradients) -> list[Any]:
        """Run the program over dense tensors, and its adjoints where there are gradients; the values that it ran over."""
        private = bool(gradients)
        working = list(values)
        own: list[torch.Tensor] = []
        for index in self._arrays:
            if values[index] is not None:
                slot, tensor = self._slots[index], values[index].contiguous()
                apart = private or (self.program.tangent_of is not None and slot.role == "input")
                if (private and slot.changes) or (apart and overlaps(tensor, own)):
                    tensor = tensor.clone()
                working[index] = tensor
                own.append(tensor)
        given = tuple(
            each[index] for each in ((working, gradients) if private else (working,)) for index in self._arrays
        )
        key = self._key(device, working, given, tuple(gradient is not None for gradient in gradients))
        found = self.scripts.find(key)
        if found is not None:
            with self._on(device) if found.script.calls else contextlib.nullcontext():
                found.script.play(device, given)
            note_ran(found.ran)
            return working
        run = self._begin(device, private, given, key)
        for index in self._arrays:
            if working[index] is not None:
                slot, gradient = self._slots[index], gradients[index] if private else None
                wanted = gradient is not None and slot.is_input
                arrived = gradient is not None and slot.is_result
                run.add(slot.label, working[index], slot.role == "input", gradient, active=wanted, reached=arrived)
        with self._on(device):
            ran = self._call(run, working)
            run.backward()
        note_ran(self.scripts.add(key, run.take, ran))
        return working

    # --- runs that are repeated ---------------------------------------------------------------------------------------

    def _key(
        self, device: torch.device, values: list[Any], given: tuple[Any, ...], wanted: tuple[bool, ...]
    ) -> Key | None:
        """What a run depends on besides what its tensors hold; None where Warp is to see each launch."""
        if warp_launch.followed() or switch.scopes:
            return None
        shapes = tuple(None if tensor is None else tensor.shape for tensor in given)
        numbers = [value for slot, value in zip(self._slots, values, strict=True) if not slot.is_array]
        return device, shapes, exact_bytes(numbers), wanted

    def _take(self, device: torch.device, given: tuple[Any, ...], private: bool) -> Take | None:
        """What writes a run down. It tells arrays by where they are, so that no two may share memory."""
        tensors = [tensor for tensor in given if tensor is not None]
        if any(overlaps(tensor, tensors[:count]) for count, tensor in enumerate(tensors)):
            return None
        where = devices.concrete(device), devices.warp_device(device)
        take = Take(self.program.reads(), self.scripts.launchers, *where, private)
        for index, tensor in enumerate(given):
            if tensor is not None:
                take.give(index, tensor)
        return take

    def _on(self, device: torch.device) -> Any:
        """Warp's current device and stream are PyTorch's. The CPU has no stream."""
        stream = devices.current_stream(device, devices.warp_device(device))
        return wp.ScopedStream(stream, sync_enter=False)

    # --- runs of the function -----------------------------------------------------------------------------------------

    def _begin(self, device: torch.device, recording: bool, given: tuple[Any, ...], key: Key | None) -> Run:
        warp_code.runtime_ready()
        warp_device = devices.warp_device(device)
        wanted = key is not None and not (warp_device.is_cuda and devices.is_capturing()) and self.scripts.wanted()
        take = self._take(device, given, recording) if wanted else None
        return Run(self.op, warp_device, devices.current_stream(device, warp_device), recording, take)

    def _call(self, run: Run, values: list[Any]) -> Ran:
        found = {slot.label: (slot, value) for slot, value in zip(self._slots, values, strict=True)}
        arguments = [
            of_leaves(name, warp_type, lambda label, leaf_type: self._value(run, leaf_type, *found[label]))
            for name, warp_type in self._types.items()
        ]
        trace = Trace(run, zip(self._types, arguments, strict=True))
        with watching(trace):
            result = self.program.func(*arguments)
        if result is not None:
            raise SignatureError(
                f"{self.op}: the program returns a {type(result).__name__}; its results are what it writes into the "
                f"arrays on the right of the signature, and it returns nothing"
            )
        return trace.ran()

    def _value(self, run: Run, warp_type: Any, slot: Slot, value: Any) -> Any:
        """A tensor or a number as the program takes it."""
        if slot.is_array:
            null = value is None or (slot.nullable and value.numel() == 0)
            return None if null else array_of(value, warp_type.dtype, slot.leaf.ndim, run.device)
        return kind_of(slot).native(warp_type, value)

    def check_numbers(self, values: dict[str, Any]) -> None:
        """Every number fits its type."""
        for slot in self._numbers:
            check_slot(self.op, slot, values[slot.name])


def overlaps(tensor: torch.Tensor, others: list[torch.Tensor]) -> bool:
    """Whether a dense tensor shares memory with one of others."""
    low, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    return any(
        other.data_ptr() < low + size and low < other.data_ptr() + other.numel() * other.element_size()
        for other in others
    )


def exact_bytes(numbers: list[Any]) -> bytes:
    """Numbers, and vectors of them, as bytes: 0.0 isn't -0.0 there, and a NaN is itself."""
    flat: list[Any] = []
    for value in numbers:
        flat += value if isinstance(value, (list, tuple)) else (value,)
    code = "".join("d" if isinstance(value, float) else "Q" for value in flat)
    return struct.pack(f"={code}", *(v if isinstance(v, float) else v & 0xFFFFFFFFFFFFFFFF for v in flat))


def array_of(tensor: torch.Tensor, dtype: Any, ndim: int, device: Any) -> Any:
    """A dense tensor's memory as a ``wp.array``, which keeps the tensor alive."""
    if tensor.numel() == 0:
        return wp.empty(tuple(tensor.shape[:ndim]), dtype=dtype, device=device)
    array: Any = wp.array(ptr=tensor.data_ptr(), dtype=dtype, shape=tuple(tensor.shape[:ndim]), device=device)
    array._tensor = tensor
    return array
