"""The forward launches: what is allocated, the functional op, and the one over given buffers."""

from __future__ import annotations

import math
from typing import Any

from ..errors import ArgumentError
from ..plan.model import Slot
from .checks import PACK_ERRORS, Pieces


class Forward(Pieces):
    """Writes ``allocate``, ``forward`` and ``forward_into``."""

    def emit_allocate(self) -> None:
        fresh = self.plan.fresh
        if not fresh:
            return
        text = self.text
        axes = {slot.name: [text.local(f"{slot.name}_{axis}") for axis in range(slot.leaf.ndim)] for slot in fresh}
        parameters = ["device", *(axis for slot in fresh for axis in axes[slot.name])]
        with text.function(self.function("allocate"), parameters):
            text.add('"""Everything that the op makes: for the real op, its fake and compiled code alike."""')
            for slot in fresh:
                text.add(self.allocation(slot, axes[slot.name], "device"))
            text.add(f"return {', '.join(slot.name for slot in fresh)}{',' if len(fresh) == 1 else ''}")

    def allocation(self, slot: Slot, sizes: list[str], device: str) -> str:
        """The statement that makes one fresh array."""
        shape = ", ".join([*sizes, *map(str, slot.leaf.component or ())])
        options = f"dtype={self.dtype(slot)}, device={device}"
        if slot.init in ("zeros", "empty"):
            return f"{slot.name} = {self.torch}.{slot.init}({shape}, {options})"
        return f"{slot.name} = {self.torch}.full(({shape},), {self._number(slot.init)}, {options})"

    def _number(self, value: Any) -> str:
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        return repr(value)

    def begin(self) -> str:
        """What every launch starts with: compare, bind, find the device."""
        self.describe_inputs()
        device = self.find_device()
        self.check_handles(device)
        self.bind_sizes()
        fresh = self.plan.fresh
        exprs = [e for s in fresh if s.shape is not None and not callable(s.shape) for e in s.shape]
        exprs += [d for slot in self.plan.given_arrays for d in slot.dims or () if d is not None]
        launch = self.plan.extents.launch
        exprs += [] if callable(launch) else list(launch)
        self.refuse_if(self.divisions(exprs))
        return device

    def emit_forward(self) -> None:
        """The raw op: functional."""
        text, plan = self.text, self.plan
        fresh = plan.fresh
        with text.function(self.function("forward"), self.plan.arguments):
            device = self.begin()
            self.check_mutated()
            shapes = self.shapes_of(fresh)
            dims = self.launch_size()
            self.check_reach(shapes, dims, device)
            if fresh:
                names = ", ".join(slot.name for slot in fresh) + ("," if len(fresh) == 1 else "")
                sizes = ", ".join([device, *(size for slot in fresh for size in shapes[slot.name])])
                text.add(f"{names} = {self.function('allocate')}({sizes})")
            for slot in plan.slots:
                if slot.role == "inout":
                    text.add(f"{slot.name} = {slot.name}.clone(memory_format={self.torch}.contiguous_format)")
                    text.add(f"{self.local(slot, 'stride')} = {slot.name}.stride()")
            self.name_strides(fresh)
            self._launch(shapes, dims, device)
            returned = [slot.name for slot in plan.returned]
            if len(returned) == 1:
                text.add(f"return {returned[0]}")
            elif returned:
                text.add(f"return {', '.join(returned)}")

    def emit_forward_into(self) -> None:
        """The raw op over given buffers: what compiled code calls."""
        text, plan = self.text, self.plan
        fresh = plan.fresh
        buffers = [slot.name for slot in fresh]
        with text.function(self.function("forward_into"), [*self.plan.arguments, *buffers]):
            self.separate()
            device = self.begin()
            shapes = {}
            for slot in fresh:
                text.add(f"{self.local(slot, 'shape')} = {slot.name}.shape")
                shapes[slot.name] = [f"{self.local(slot, 'shape')}[{axis}]" for axis in range(slot.leaf.ndim)]
            dims = self.launch_size()
            self.check_reach(shapes, dims, device)
            self.name_strides(fresh)
            self._launch(shapes, dims, device)

    def _launch(self, shapes: dict[str, list[str]], dims: str, device: str) -> None:
        text = self.text
        self.prepare_numbers()
        data = {}
        for slot in self.plan.arrays:
            pointer = f"{slot.name}.data_ptr()"
            if slot.optional:
                pointer = f"0 if {slot.name} is None else {pointer}"
            data[slot.name] = pointer
        self._pack("arguments", self.pack, self.packed(shapes, data, {}, {}))
        text.add(f"{self.launcher}.forward({device}, {dims}, {text.local('arguments')})")
        self.give_back()

    def _pack(self, variable: str, pack: str, parts: list[str]) -> None:
        text = self.text
        error = self.provide("PackError", PACK_ERRORS)
        too_large = self.provide("too_large", self._too_large)
        text.add("try:")
        text.add(f"    {text.local(variable)} = {pack}(")
        for part in parts:
            text.add(f"        {part},")
        text.add("    )")
        text.add(f"except {error}:")
        text.add(f"    {self.refusal()}")
        text.add(f"    {too_large}({self.values()})")

    def _too_large(self, values: dict[str, Any]) -> None:
        for slot in self.plan.given_arrays:
            value = values[slot.name]
            if value is None:
                continue
            steps = [step * value.element_size() for step in value.stride()]
            if any(n > 2**31 - 1 for n in (*value.shape, *steps)):
                raise ArgumentError(
                    f"{self.op}: argument '{slot.label}': expected sizes and byte strides below 2**31, which is what Warp's "
                    f"descriptors hold, got shape {value.shape} and strides of {tuple(steps)} bytes; pass it "
                    f".contiguous(), or split the call"
                )
        raise ArgumentError(
            f"{self.op}: an array is too large for Warp's descriptors, which hold sizes and byte strides of 31 bits; split "
            f"the call, or pass the tensor .contiguous()"
        )
