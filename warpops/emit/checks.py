"""The pieces that every launch is written from: comparisons, sizes, devices, descriptors."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from ..arguments import overlap
from ..arguments.call import device_of, fresh_shape, launch_size, refuse
from ..arguments.handle import check_handle
from ..arguments.kinds import check_slot
from ..arguments.number import check_number
from ..effects import Limit
from ..launch import devices
from ..launch.launcher import Launcher
from ..launch.packing import bfloat16_bits
from ..plan.model import OpPlan, Slot
from ..plan.sizes import Expr
from ..private import torch_guards
from .text import Text

TORCH: Any = torch
"""What generated launches allocate with; the tests put an allocator here whose empty arrays are full of NaN."""

EMPTY_CPU: Any = torch_guards.empty_strided_cpu
"""What remembered launches on the CPU allocate with."""

PACK_ERRORS = (struct.error, OverflowError, TypeError)


def allocator(device: torch.device) -> Callable[..., torch.Tensor]:
    """``empty_strided(size, stride, dtype)`` on a device, past PyTorch's dispatcher."""
    made: Callable[..., torch.Tensor] = EMPTY_CPU if device.type == "cpu" else devices.allocator(device)
    return made


class Pieces:
    """Writes parts of the launch functions of one concrete plan."""

    def __init__(self, op: str, plan: OpPlan, launcher: Launcher) -> None:
        self.op, self.plan = op, plan
        taken = [slot.name for slot in plan.slots] + ["needs", "device"]
        self.text = Text(taken)
        self.scope: dict[str, Any] = {}
        self.launcher = self.provide("launcher", launcher)
        self.refuse = self.provide("refuse", self._refuse)
        self.torch = self.provide("torch", TORCH)
        self.pack = self.provide("pack", None)
        self.pack_adjoint = self.provide("pack_adjoint", None)
        self.launcher_object = launcher
        self.sizes: dict[str, str] = {}

    def provide(self, name: str, value: Any) -> str:
        """Put a value into the functions' globals, under a name that no argument has."""
        name = self.text.free(name)
        self.scope[name] = value
        return name

    def function(self, name: str) -> str:
        return self.text.free(name, "function")

    def _refuse(self, values: dict[str, Any], device: Any = None) -> None:
        refuse(self.op, self.plan, values, device)

    # --- pieces -------------------------------------------------------------------------------------------------------

    def values(self) -> str:
        """The call's arguments as a dict, for the full check."""
        return "{" + ", ".join(f"{slot.name!r}: {slot.name}" for slot in self.plan.inputs) + "}"

    def refusal(self) -> str:
        extra = ", device" if self.plan.device_argument else ""
        return f"{self.refuse}({self.values()}{extra})"

    def local(self, slot: Slot, what: str) -> str:
        return self.text.local(f"{slot.name}_{what}")

    def dtype(self, slot: Slot) -> str:
        assert slot.leaf.scalar is not None
        return f"{self.torch}.{str(slot.leaf.scalar.dtype).removeprefix('torch.')}"

    def describe_inputs(self, compare: bool = True) -> None:
        """Compare every given array with what is expected, and name its shape and strides."""
        arrays = self.plan.given_arrays
        for slot in arrays:
            leaf = slot.leaf
            assert leaf.scalar is not None and leaf.component is not None
            shape, stride = self.local(slot, "shape"), self.local(slot, "stride")
            rank = leaf.ndim + len(leaf.component)
            dtypes = [f"{self.torch}.{str(d).removeprefix('torch.')}" for d in leaf.scalar.dtypes]
            wrong = [
                f"{slot.name}.dtype is not {dtypes[0]}"
                if len(dtypes) == 1
                else f"{slot.name}.dtype not in ({', '.join(dtypes)})",
                f"len({shape}) != {rank}",
            ]
            wrong += [f"{shape}[{leaf.ndim + k}] != {size}" for k, size in enumerate(leaf.component)]
            block = self.text.indented(f"if {slot.name} is not None:") if slot.optional else self.text.flat()
            with block:
                self.text.add(f"{shape} = {slot.name}.shape")
                if compare:
                    self.text.add(f"if {' or '.join(wrong)}:")
                    self.text.add(f"    {self.refusal()}")
                self.text.add(f"{stride} = {slot.name}.stride()")
                dense = self._dense(slot, stride)
                if dense and slot.role == "mutated" and compare:
                    self.text.add(f"{self.local(slot, 'given')} = {slot.name}")
                if dense:
                    self.text.add(f"if {dense}:")
                    self.text.add(f"    {slot.name} = {slot.name}.contiguous()")
                    self.text.add(f"    {stride} = {slot.name}.stride()")
            if slot.optional:
                zeros = ", ".join("0" * rank) + ("," if rank == 1 else "")
                self.text.add("else:")
                self.text.add(f"    {shape} = {stride} = ({zeros})")

    def _dense(self, slot: Slot, stride: str) -> str:
        """The condition under which the component axes are not dense."""
        component = slot.leaf.component or ()
        parts, expected = [], 1
        for axis in range(len(component) - 1, -1, -1):
            if component[axis] != 1:
                parts.append(f"{stride}[{slot.leaf.ndim + axis}] != {expected}")
            expected *= component[axis]
        return " or ".join(reversed(parts))

    def give_back(self) -> None:
        """What was changed in a dense copy goes back to the array that was given."""
        for slot in self.plan.mutated:
            if not self._dense(slot, ""):
                continue
            given = self.local(slot, "given")
            test = (
                f"{slot.name} is not None and {given} is not {slot.name}"
                if slot.optional
                else f"{given} is not {slot.name}"
            )
            self.text.add(f"if {test}:")
            self.text.add(f"    {given}.copy_({slot.name})")

    def find_device(self) -> str:
        """Name the device, and compare the arrays' devices."""
        required = [slot for slot in self.plan.given_arrays if not slot.optional]
        if not required:
            device = self.text.local("where")
            resolve = self.provide("device_of", self._device_of)
            self.text.add(f"{device} = {resolve}({self.values()}, device)")
            return device
        device = self.text.local("where")
        self.text.add(f"{device} = {required[0].name}.device")
        others = [slot for slot in self.plan.given_arrays if slot is not required[0]]
        wrong = [
            f"{slot.name}.device != {device}"
            if not slot.optional
            else f"{slot.name} is not None and {slot.name}.device != {device}"
            for slot in others
        ]
        if wrong:
            self.text.add(f"if {' or '.join(wrong)}:")
            self.text.add(f"    {self.refusal()}")
        return device

    def _device_of(self, values: dict[str, Any], device: Any) -> torch.device:
        return device_of(self.op, self.plan, values, device)

    def check_handles(self, device: str) -> None:
        """Compare Warp's objects with what the kernel takes them for, and their devices with the tensors'."""
        for slot in self.plan.inputs:
            if slot.leaf.kind == "handle" and slot.role != "tensor_scalar":
                kinds = self.plan.effects.handles.get(slot.label, frozenset())
                check = self.provide(f"check_{slot.name}", partial(check_handle, self.op, slot.label, kinds))
                self.text.add(f"{check}({slot.name}, {device})")

    def check_mutated(self) -> None:
        if self.plan.mutated:
            check = self.provide("check_mutated", partial(overlap.check_mutated, self.op, self.plan))
            self.text.add(f"{check}({self.values()})")

    def separate(self) -> None:
        """In compiled code: read from private copies of what shares memory with a mutated array."""
        if self.plan.mutated:
            separate = self.provide("separate", partial(overlap.separate, self.op, self.plan))
            names = [slot.name for slot in self.plan.given_arrays]
            self.text.add(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {separate}({self.values()})")

    def bind_sizes(self) -> None:
        """Bind bare names, compare the rest."""
        self.sizes = {}
        wrong: list[str] = []
        later: list[tuple[Slot, int, Expr]] = []
        for slot in self.plan.inputs:
            leaf = slot.leaf
            if slot.role == "size" or (slot.role == "number" and leaf.scalar is not None and leaf.scalar.kind == "int"):
                self.sizes[leaf.label] = slot.name
        for slot in self.plan.given_arrays:
            for axis, dim in enumerate(slot.dims or ()):
                if dim is None:
                    continue
                text = f"{self.local(slot, 'shape')}[{axis}]"
                if dim.is_name and str(dim.value) not in self.sizes and not slot.optional:
                    size = self.text.size(str(dim.value))
                    self.sizes[str(dim.value)] = size
                    self.text.add(f"{size} = {text}")
                else:
                    later.append((slot, axis, dim))
        unbound: set[str] = set()
        for slot, axis, dim in later:
            if dim.is_name and str(dim.value) not in self.sizes and slot.optional:
                size = self.text.size(str(dim.value))
                shape = self.local(slot, "shape")
                if str(dim.value) not in unbound:
                    self.text.add(f"{size} = None")
                    unbound.add(str(dim.value))
                self.text.add(f"if {slot.name} is not None and {size} is None:")
                self.text.add(f"    {size} = {shape}[{axis}]")
        for name in unbound:
            self.sizes[name] = self.text.size(name)
        for slot, axis, dim in later:
            text = f"{self.local(slot, 'shape')}[{axis}] != {self.size(dim)}"
            wrong.append(f"{slot.name} is not None and {text}" if slot.optional else text)
        self.refuse_if(wrong)
        for name in unbound:
            self.refuse_if([f"{self.sizes[name]} is None"])

    def size(self, expr: Expr) -> str:
        return expr.text(self.sizes)

    def refuse_if(self, wrong: Iterable[str]) -> None:
        wrong = list(wrong)
        if wrong:
            self.text.add(f"if {' or '.join(wrong)}:")
            self.text.add(f"    {self.refusal()}")

    def divisions(self, exprs: Iterable[Expr]) -> list[str]:
        """Divisors that must not be zero."""
        found: list[str] = []

        def visit(expr: Expr) -> None:
            if expr.head in ("//", "%") and not (expr.items[1].is_int and expr.items[1].value != 0):
                text = f"{expr.items[1].text(self.sizes, 3)} == 0"
                if text not in found:
                    found.append(text)
            for item in expr.items:
                visit(item)

        for expr in exprs:
            visit(expr)
        return found

    def shapes_of(self, slots: Iterable[Slot]) -> dict[str, list[str]]:
        """The Warp shape of each fresh array as text, one expression per axis."""
        shapes: dict[str, list[str]] = {}
        for slot in slots:
            shape = slot.shape
            assert shape is not None
            if callable(shape):
                compute = self.provide(f"shape_of_{slot.name}", self._shape_caller(slot))
                variables = [self.text.local(f"{slot.name}_{axis}") for axis in range(slot.leaf.ndim)]
                self.text.add(
                    f"{', '.join(variables)}{',' if len(variables) == 1 else ''} = {compute}({self.values()})"
                )
                shapes[slot.name] = variables
                continue
            sizes = [self.size(expr) for expr in shape]
            self.refuse_if(
                f"{text} < 0" for expr, text in zip(shape, sizes, strict=True) if not self._nonnegative(expr)
            )
            shapes[slot.name] = sizes
        return shapes

    def _nonnegative(self, expr: Expr) -> bool:
        """A size taken from an array, or a sum or product of such, can't be negative."""
        if expr.is_int:
            return int(expr.value) >= 0
        if expr.is_name:
            ints = {
                slot.leaf.label
                for slot in self.plan.inputs
                if slot.role == "size"
                or (slot.role == "number" and slot.leaf.scalar and slot.leaf.scalar.kind == "int")
            }
            return str(expr.value) not in ints
        return expr.head in ("+", "*", "min", "max") and all(self._nonnegative(item) for item in expr.items)

    def _shape_caller(self, slot: Slot) -> Callable[[dict[str, Any]], tuple[int, ...]]:
        return lambda values: fresh_shape(self.op, self.plan, slot, {}, values)

    def launch_size(self) -> str:
        launch = self.plan.extents.launch
        if callable(launch):
            dims = self.text.local("dim")
            compute = self.provide("launch_size", lambda values: launch_size(self.op, self.plan, {}, values))
            self.text.add(f"{dims} = {compute}({self.values()})")
            return dims
        sizes = [self.size(expr) for expr in launch]
        self.refuse_if(f"{text} < 0" for expr, text in zip(launch, sizes, strict=True) if not self._nonnegative(expr))
        return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"

    def check_reach(self, shapes: dict[str, list[str]], dims: str, device: str) -> None:
        """No launch indexes an array outside its size."""
        plan = self.plan
        launch = plan.extents.launch

        def length(name: str, axis: int) -> str:
            if name in shapes:
                return shapes[name][axis]
            return f"{self.local(plan.slot(name), 'shape')}[{axis}]"

        def number(limit: Limit) -> str:
            if isinstance(limit.base, int):
                return str(limit.base + limit.offset)
            text = length(*limit.base) if isinstance(limit.base, tuple) else self.sizes[limit.base]
            return text + (f" {'+' if limit.offset > 0 else '-'} {abs(limit.offset)}" if limit.offset else "")

        def guard(name: str, text: str) -> str:
            return f"{name} is not None and {text}" if plan.slot(name).optional else text

        wrong = []
        for cover in plan.extents.covers:
            c = cover.coordinate
            block = f'(1 if {device}.type == "cpu" else {plan.block})'
            if callable(launch):
                threads = f"{dims}[{c}]"
                if plan.declaration.tiled:
                    threads = f"({threads} if len({dims}) > {c} else {block})"
            else:
                threads = self.size(launch[c]) if c < len(launch) else block
            limits = [threads, *map(number, cover.bounds)]
            if len(limits) > 1:
                threads = f"min({', '.join(limits)})"
            if cover.offset:
                threads = f"{threads} {'+' if cover.offset > 0 else '-'} {abs(cover.offset)}"
            wrong.append(guard(cover.array, f"{threads} > {length(cover.array, cover.axis)}"))
        for reach in plan.extents.reaches:
            text = f"{length(reach.array, reach.axis)} < {reach.size}"
            text += "".join(f" and {number(limit)} > 0" for limit in reach.limits)
            wrong.append(guard(reach.array, text))
        wrong += [guard(c.array, f"{length(c.array, c.axis)} < {self.sizes[c.number]}") for c in plan.extents.counts]
        for loop in plan.extents.loops:
            text = f"{length(loop.array, loop.axis)} < {length(loop.other, loop.other_axis)}"
            wrong.append(guard(loop.array, guard(loop.other, text)))
        self.refuse_if(wrong)

    def prepare_numbers(self) -> None:
        for slot in self.plan.inputs:
            scalar = slot.leaf.scalar
            if slot.is_array or scalar is None:
                continue
            if slot.role == "tensor_scalar":
                read = self.provide("read_scalar", self._read_scalar)
                self.text.add(f"{slot.name} = {read}({slot.name!r}, {slot.name})")

    def _read_scalar(self, name: str, value: torch.Tensor) -> int | float:
        slot = self.plan.slot(name)
        check_slot(self.op, slot, value)
        number = value.item()
        check_number(self.op, slot, slot.leaf.scalar, number)
        scalar = slot.leaf.scalar
        return float(number) if scalar is not None and scalar.kind == "float" else int(number)

    # --- packing ------------------------------------------------------------------------------------------------------

    def packed(
        self, shapes: dict[str, list[str]], data: dict[str, str], grads: dict[str, str], flags: dict[str, str]
    ) -> list[str]:
        """The values of the argument struct, in its order."""
        parts: list[str] = []
        for slot in self.plan.slots:
            if slot.role == "size":
                continue
            if not slot.is_array:
                parts.append(self._packed_value(slot))
                continue
            parts.append(
                self._descriptor(slot, shapes, data[slot.name], grads.get(slot.name, "0"), flags.get(slot.name, "0"))
            )
        return parts

    def _packed_value(self, slot: Slot) -> str:
        scalar = slot.leaf.scalar
        assert scalar is not None
        if scalar.name == "bfloat16":
            bits = self.provide("bfloat16_bits", bfloat16_bits)
            return f"*map({bits}, {slot.name})" if slot.leaf.kind == "vector" else f"{bits}({slot.name})"
        if slot.leaf.kind == "vector":
            return f"*{slot.name}"
        if scalar.name == "uint64":
            return f"{slot.name} & 0xFFFFFFFFFFFFFFFF"
        return slot.name

    def _descriptor(self, slot: Slot, shapes: dict[str, list[str]], data: str, grad: str, flags: str) -> str:
        leaf = slot.leaf
        assert leaf.scalar is not None
        size = leaf.scalar.size
        if slot.name in shapes:
            sizes = shapes[slot.name]
        else:
            sizes = [f"{self.local(slot, 'shape')}[{axis}]" for axis in range(leaf.ndim)]
        strides = [self._bytes(f"{self.local(slot, 'stride')}[{axis}]", size) for axis in range(leaf.ndim)]
        return ", ".join([data, grad, *sizes, *strides, str(leaf.ndim), flags])

    @staticmethod
    def _bytes(stride: str, size: int) -> str:
        return stride if size == 1 else f"{stride} * {size}"

    def name_strides(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self.text.add(f"{self.local(slot, 'stride')} = {slot.name}.stride()")
