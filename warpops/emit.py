"""From the plan to the Python text of one kernel's launches.

Decides nothing: every branch here asks the plan. The text is what a careful person would have written by hand for the
kernel, and is what ``op.source`` shows and tracebacks quote.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from typing import Any

import torch

from . import checks
from .launch import Launcher
from .packing import bfloat16_bits
from .plan import OpPlan, Slot
from .sizes import Expr
from .source import Text, compile_text

RETAIN = 1
FUNCTIONS = ("allocate", "forward", "forward_into", "prepare", "backward_into", "backward")
PACK_ERRORS = (struct.error, OverflowError, TypeError)


class Emitter:
    """Writes the launch functions of one concrete plan."""

    def __init__(self, op: str, plan: OpPlan, launcher: Launcher) -> None:
        self.op, self.plan = op, plan
        taken = [slot.name for slot in plan.slots] + ["needs", "device"]
        self.text = Text(taken)
        self.scope: dict[str, Any] = {}
        self.launcher = self.provide("launcher", launcher)
        self.refuse = self.provide("refuse", self._refuse)
        self.torch = self.provide("torch", torch)
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
        checks.refuse(self.op, self.plan, values, device)

    # --- pieces -------------------------------------------------------------------------------------------------------

    @property
    def arguments(self) -> list[str]:
        return [slot.name for slot in self.plan.inputs] + (["device"] if self.plan.device_argument else [])

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

    def given_arrays(self) -> list[Slot]:
        return [slot for slot in self.plan.inputs if slot.is_array]

    def describe_inputs(self, compare: bool = True) -> None:
        """Compare every given array with what is expected, and name its shape and strides."""
        arrays = self.given_arrays()
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

    def find_device(self) -> str:
        """Name the device, and compare the arrays' devices."""
        required = [slot for slot in self.given_arrays() if not slot.optional]
        if not required:
            device = self.text.local("where")
            resolve = self.provide("device_of", self._device_of)
            given = ", ".join(slot.name for slot in self.given_arrays())
            self.text.add(f"{device} = {resolve}(device, ({given}{',' if given else ''}))")
            return device
        device = self.text.local("where")
        self.text.add(f"{device} = {required[0].name}.device")
        others = [slot for slot in self.given_arrays() if slot is not required[0]]
        wrong = [
            f"{slot.name}.device != {device}" if not slot.optional else
            f"{slot.name} is not None and {slot.name}.device != {device}"
            for slot in others
        ]
        if wrong:
            self.text.add(f"if {' or '.join(wrong)}:")
            self.text.add(f"    {self.refusal()}")
        return device

    def _device_of(self, device: Any, given: tuple[torch.Tensor | None, ...]) -> torch.device:
        for tensor in given:
            if tensor is not None:
                where = tensor.device
                if any(other is not None and other.device != where for other in given):
                    return where  # the full check has the message
                return where
        return torch.device(device) if device is not None else torch.get_default_device()

    def check_mutated(self) -> None:
        if self.plan.mutated:
            check = self.provide("check_overlaps", self._check_overlaps)
            self.text.add(f"{check}({self.values()})")

    def _check_overlaps(self, values: dict[str, Any]) -> None:
        checks._check_overlaps(self.op, self.plan, values)

    def bind_sizes(self) -> None:
        """Bind bare names, compare the rest."""
        self.sizes = {}
        wrong: list[str] = []
        later: list[tuple[Slot, int, Expr]] = []
        for slot in self.plan.inputs:
            leaf = slot.leaf
            if slot.role == "size" or (slot.role == "number" and leaf.scalar is not None and leaf.scalar.kind == "int"):
                self.sizes[leaf.label] = slot.name
        for slot in self.given_arrays():
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
                self.text.add(f"{', '.join(variables)}{',' if len(variables) == 1 else ''} = {compute}({self.values()})")
                shapes[slot.name] = variables
                continue
            sizes = [self.size(expr) for expr in shape]
            self.refuse_if(f"{text} < 0" for expr, text in zip(shape, sizes, strict=True) if not self._nonnegative(expr))
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
                if slot.role == "size" or (slot.role == "number" and slot.leaf.scalar and slot.leaf.scalar.kind == "int")
            }
            return str(expr.value) not in ints
        return expr.head in ("+", "*", "min", "max") and all(self._nonnegative(item) for item in expr.items)

    def _shape_caller(self, slot: Slot) -> Callable[[dict[str, Any]], tuple[int, ...]]:
        return lambda values: checks._shape(self.op, self.plan, slot, {}, values)

    def launch_size(self) -> str:
        launch = self.plan.extents.launch
        if callable(launch):
            dims = self.text.local("dim")
            compute = self.provide("launch_size", lambda values: checks._launch(self.op, self.plan, {}, values))
            self.text.add(f"{dims} = {compute}({self.values()})")
            return dims
        sizes = [self.size(expr) for expr in launch]
        self.refuse_if(f"{text} < 0" for expr, text in zip(launch, sizes, strict=True) if not self._nonnegative(expr))
        return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"

    def check_reach(self, shapes: dict[str, list[str]], dims: str) -> None:
        """No launch indexes an array outside its size."""
        plan = self.plan
        launch = plan.extents.launch

        def length(name: str, axis: int) -> str:
            if name in shapes:
                return shapes[name][axis]
            return f"{self.local(plan.slot(name), 'shape')}[{axis}]"

        def guard(name: str, text: str) -> str:
            return f"{name} is not None and {text}" if plan.slot(name).optional else text

        wrong = []
        for cover in plan.extents.covers:
            if callable(launch):
                threads = f"{dims}[{cover.coordinate}]"
            elif cover.coordinate < len(launch):
                threads = self.size(launch[cover.coordinate])
            else:
                continue
            limits = [threads]
            for bound in cover.bounds:
                if isinstance(bound, tuple):
                    limits.append(length(*bound))
                else:
                    limits.append(self.sizes[bound] if isinstance(bound, str) else str(bound))
            if len(limits) > 1:
                threads = f"min({', '.join(limits)})"
            wrong.append(guard(cover.array, f"{threads} > {length(cover.array, cover.axis)}"))
        wrong += [guard(r.array, f"{length(r.array, r.axis)} < {r.size}") for r in plan.extents.reaches]
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
        checks.check_slot(self.op, slot, value)
        number = value.item()
        checks.check_number(self.op, slot, slot.leaf.scalar, number)
        scalar = slot.leaf.scalar
        return float(number) if scalar is not None and scalar.kind == "float" else int(number)

    # --- packing ------------------------------------------------------------------------------------------------------

    def packed(self, shapes: dict[str, list[str]], data: dict[str, str], grads: dict[str, str], flags: dict[str, str]) -> list[str]:
        """The values of the argument struct, in its order."""
        parts: list[str] = []
        for slot in self.plan.slots:
            if slot.role == "size":
                continue
            if not slot.is_array:
                parts.append(self._packed_value(slot))
                continue
            parts.append(self._descriptor(slot, shapes, data[slot.name], grads.get(slot.name, "0"), flags.get(slot.name, "0")))
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

    # --- functions ----------------------------------------------------------------------------------------------------

    def emit_allocate(self) -> None:
        fresh = [slot for slot in self.plan.slots if slot.role in ("output", "scratch")]
        if not fresh:
            return
        text = self.text
        axes = {slot.name: [text.local(f"{slot.name}_{axis}") for axis in range(slot.leaf.ndim)] for slot in fresh}
        parameters = ["device", *(axis for slot in fresh for axis in axes[slot.name])]
        with text.function(self.function("allocate"), parameters):
            text.add('"""Everything that the op makes: for the real op, its fake and compiled code alike."""')
            for slot in fresh:
                sizes = [*axes[slot.name], *map(str, slot.leaf.component or ())]
                shape = ", ".join(sizes)
                options = f"dtype={self.dtype(slot)}, device=device"
                if slot.init in ("zeros", "empty"):
                    text.add(f"{slot.name} = {self.torch}.{slot.init}({shape}, {options})")
                else:
                    text.add(f"{slot.name} = {self.torch}.full(({shape},), {self._number(slot.init)}, {options})")
            text.add(f"return {', '.join(slot.name for slot in fresh)}{',' if len(fresh) == 1 else ''}")

    def _number(self, value: Any) -> str:
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        return repr(value)

    def begin(self) -> str:
        """What every launch starts with: compare, bind, find the device."""
        self.describe_inputs()
        device = self.find_device()
        self.check_mutated()
        self.bind_sizes()
        fresh = [slot for slot in self.plan.slots if slot.role in ("output", "scratch")]
        exprs = [e for s in fresh if s.shape is not None and not callable(s.shape) for e in s.shape]
        exprs += [d for slot in self.given_arrays() for d in slot.dims or () if d is not None]
        launch = self.plan.extents.launch
        exprs += [] if callable(launch) else list(launch)
        self.refuse_if(self.divisions(exprs))
        return device

    def emit_forward(self) -> None:
        """The raw op: functional."""
        text, plan = self.text, self.plan
        fresh = [slot for slot in plan.slots if slot.role in ("output", "scratch")]
        with text.function(self.function("forward"), self.arguments):
            device = self.begin()
            shapes = self.shapes_of(fresh)
            dims = self.launch_size()
            self.check_reach(shapes, dims)
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
            returned = [slot.name for slot in (*plan.result_slots, *plan.scratch)]
            if len(returned) == 1:
                text.add(f"return {returned[0]}")
            elif returned:
                text.add(f"return {', '.join(returned)}")

    def emit_forward_into(self) -> None:
        """The raw op over given buffers: what compiled code calls."""
        text, plan = self.text, self.plan
        fresh = [slot for slot in plan.slots if slot.role in ("output", "scratch")]
        buffers = [slot.name for slot in fresh]
        with text.function(self.function("forward_into"), [*self.arguments, *buffers]):
            device = self.begin()
            shapes = {}
            for slot in fresh:
                text.add(f"{self.local(slot, 'shape')} = {slot.name}.shape")
                shapes[slot.name] = [f"{self.local(slot, 'shape')}[{axis}]" for axis in range(slot.leaf.ndim)]
            dims = self.launch_size()
            self.check_reach(shapes, dims)
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
        text.add(f"    {too_large}()")

    def _too_large(self) -> None:
        raise checks.ArgumentError(
            f"{self.op}: an array is too large for Warp's descriptors, which hold sizes and byte strides of 31 bits; split "
            f"the call, or pass the tensor .contiguous()"
        )

    # --- backward -----------------------------------------------------------------------------------------------------

    def cotangents(self) -> list[Slot]:
        return [slot for slot in self.plan.result_slots if slot.differentiable]

    def backward_arguments(self) -> list[str]:
        """The arguments that the raw backward ops share: the forward's, then the saved fresh arrays."""
        return [*self.arguments, *(self.saved_name(slot) for slot in self.plan.kept)]

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
        cots = self.cotangents()
        with text.function(self.function("prepare"), [*self.backward_arguments(), *map(self.grad_name, cots), "needs"]):
            text.add('"""Make arrays dense, cotangents private, and a buffer of zeros for each gradient that is needed."""')
            for slot in (*self.given_arrays(), *plan.kept):
                if slot.optional:
                    text.add(f"if {slot.name} is not None:")
                    text.add(f"    {slot.name} = {slot.name}.contiguous()")
                else:
                    text.add(f"{slot.name} = {slot.name}.contiguous()")
                if plan.effects.opaque and slot.role in ("output", "scratch", "inout", "mutated"):
                    text.add(f"{slot.name} = {slot.name}.clone()  # native code runs again, and rewrites it")
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
            gradients = [s for s in plan.gradients if s.role != "inout"]
            order = {slot.name: k for k, slot in enumerate(plan.gradients)}
            for slot in gradients:
                grad = self.grad_name(slot)
                condition = f"needs[{order[slot.name]}]" if slot.null_adjoint_safe else ""
                if slot.optional:
                    condition = f"{slot.name} is not None" + (f" and {condition}" if condition else "")
                zeros = f"{self.torch}.zeros_like({slot.name})"
                text.add(f"{grad} = {zeros}" + (f" if {condition} else None" if condition else ""))
            names = [slot.name for slot in (*self.given_arrays(), *plan.kept)]
            names += [self.grad_name(slot) for slot in (*cots, *gradients)]
            text.add(f"return {', '.join(names)}{',' if len(names) == 1 else ''}")

    def _may_be_null(self, slot: Slot) -> bool:
        return slot.null_adjoint_safe and not slot.saved

    def _zeros_of(self, slot: Slot) -> Callable[..., torch.Tensor]:
        def zeros(values: dict[str, Any], device: Any = None) -> torch.Tensor:
            found = checks.measure(self.op, self.plan, values, device)
            shape = (*found.shapes[slot.name], *(slot.leaf.component or ()))
            assert slot.leaf.scalar is not None
            return torch.zeros(shape, dtype=slot.leaf.scalar.dtype, device=found.device)

        return zeros

    def gradient_buffers(self) -> list[str]:
        gradients = [s for s in self.plan.gradients if s.role != "inout"]
        return [self.grad_name(slot) for slot in (*self.cotangents(), *gradients)]

    def emit_backward_into(self) -> None:
        """The adjoint launch over given buffers."""
        text, plan = self.text, self.plan
        fresh = [slot for slot in plan.slots if slot.role in ("output", "scratch")]
        with text.function(self.function("backward_into"), [*self.backward_arguments(), *self.gradient_buffers()]):
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
            for slot in self.given_arrays():
                data[slot.name] = f"0 if {slot.name} is None else {slot.name}.data_ptr()" if slot.optional else f"{slot.name}.data_ptr()"
            for slot in self.temporaries():
                buffer = self.grad_name(slot)
                if slot.role == "scratch" and not slot.saved:
                    sizes = [*shapes[slot.name], *map(str, slot.leaf.component or ())]
                    shape = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
                    text.add(f"{buffer} = {self.torch}.zeros({shape}, dtype={self.dtype(slot)}, device={device})")
                else:
                    zeros = f"{self.torch}.zeros_like({slot.name}, memory_format={self.torch}.contiguous_format)"
                    text.add(f"{buffer} = {zeros}" + (f" if {slot.name} is not None else None" if slot.optional else ""))
                grads[slot.name] = self._pointer(slot, buffer, always=not slot.optional)
            for slot in (*self.cotangents(), *[s for s in plan.gradients if s.role != "inout"]):
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
            parts.append(self._descriptor(slot, shapes, grads.get(slot.name, "0"), "0", "0"))
        return parts

    def emit_backward(self) -> None:
        """The raw backward op: functional."""
        text, plan = self.text, self.plan
        cots = self.cotangents()
        parameters = [*self.backward_arguments(), *map(self.grad_name, cots)]
        with text.function(self.function("backward"), [*parameters, "needs"]):
            gradients = [s for s in plan.gradients if s.role != "inout"]
            names = [slot.name for slot in (*self.given_arrays(), *plan.kept)]
            names += [self.grad_name(slot) for slot in (*cots, *gradients)]
            text.add(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {self.function('prepare')}({', '.join([*parameters, 'needs'])})")
            text.add(f"{self.function('backward_into')}({', '.join([*self.backward_arguments(), *self.gradient_buffers()])})")
            wanted = [self.grad_name(slot) for slot in plan.gradients]
            if len(wanted) == 1 and not plan.gradients[0].optional:
                text.add(f"return [{wanted[0]}] if needs[0] else []")
            else:
                pairs = ", ".join(wanted)
                text.add(f"return [grad for grad, need in zip(({pairs},), needs) if need and grad is not None]")

    def run(self) -> dict[str, Any]:
        plan = self.plan
        self.emit_allocate()
        self.emit_forward()
        self.emit_forward_into()
        if plan.gradient == "adjoint":
            self.emit_prepare()
            self.emit_backward_into()
            self.emit_backward()
        self.functions = {name: self.function(name) for name in FUNCTIONS}
        self.scope[self.pack] = _LazyPack(self.launcher_object, self.scope, self.pack, adjoint=False)
        self.scope[self.pack_adjoint] = _LazyPack(self.launcher_object, self.scope, self.pack_adjoint, adjoint=True)
        return self.scope


class _LazyPack:
    """Stands for a packer until the first launch, since the layout asks Warp for its types, which costs time."""

    def __init__(self, launcher: Launcher, scope: dict[str, Any], name: str, adjoint: bool) -> None:
        self.launcher, self.scope, self.name, self.adjoint = launcher, scope, name, adjoint

    def __call__(self, *values: Any) -> bytes:
        layout = self.launcher.adjoint_layout if self.adjoint else self.launcher.layout
        pack = layout.packer()
        self.scope[self.name] = pack
        result: bytes = pack(*values)
        return result



def emit_launches(op: str, plan: OpPlan, launcher: Launcher) -> tuple[str, dict[str, Any]]:
    """The launch functions of a concrete plan, as text and compiled: allocate, forward, forward_into, prepare,
    backward_into, backward."""
    emitter = Emitter(op, plan, launcher)
    scope = emitter.run()
    header = f'"""{op}: launches of the kernel {plan.kernel.qualname}. Generated by warpops."""\n\n'
    text = header + emitter.text.result()
    compile_text(text, scope, f"{op}.launch")
    return text, {name: scope[own] for name, own in emitter.functions.items() if own in scope}
