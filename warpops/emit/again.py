"""The launches for tensors whose sizes and strides were seen before: everything that then is constant is worked out once.

``recall_forward`` and ``recall_backward`` return a function that allocates and launches, of a tuple of the tensors and the
numbers, and of the same arguments; ``recall_forward_into`` and ``recall_backward_into`` one that launches over given buffers,
as compiled code calls it. ``warpops.calls.remember`` decides when they apply.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..launch.packing import OutdatedError, descriptor, pairs_apart
from ..plan.model import Slot
from ..private import torch_modes
from . import checks
from .adjoint import RETAIN, Adjoint

_LAUNCH = ("launch", "start", "module", "hashers")
"""What a recalled launch consists of; see ``Launcher.recall``."""


class Again(Adjoint):
    """Writes ``recall_forward``, ``recall_backward`` and their forms over given buffers."""

    def _leave_unless_dense(self) -> None:
        """The function returns None where an array's component axes aren't dense."""
        dense = [text for slot in self.plan.given_arrays if (text := self._dense(slot, self.local(slot, "stride")))]
        if dense:
            self.text.add(f"if {' or '.join(dense)}:")
            self.text.add("    return None")

    def _name_layout(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self.text.add(f"{self.local(slot, 'shape')} = {slot.name}.shape")
            self.text.add(f"{self.local(slot, 'stride')} = {slot.name}.stride()")

    def _describe(self, slot: Slot, what: str, sizes: list[str], strides: str, flags: int = 0) -> str:
        """Name an array's descriptor, which is constant but for its pointers."""
        assert slot.leaf.scalar is not None
        name = self.local(slot, what)
        make = self.provide("descriptor", descriptor)
        more = f", {flags}" if flags else ""
        self.text.add(f"{name} = {make}({_tuple(sizes)}, {strides}, {slot.leaf.scalar.size}{more})")
        return name

    def _input_sizes(self, slot: Slot) -> list[str]:
        return [f"{self.local(slot, 'shape')}[{axis}]" for axis in range(slot.leaf.ndim)]

    def _recall(self, device: str, descriptors: list[str], explicit: list[str] | None = None) -> None:
        """Name the parts of the launch; the function returns None where there is no short way."""
        text, arrays = self.text, self.plan.arrays
        found = text.local("found")
        given = [device, self.launch_size(), _tuple(descriptors)]
        if explicit is not None:
            given.append(_tuple(explicit))
        elif self.plan.mutated:
            names = _tuple([slot.name if slot.is_input else "None" for slot in arrays])
            changed = _tuple([str(arrays.index(slot)) for slot in self.plan.mutated])
            given.append(f"apart={self.provide('pairs_apart', pairs_apart)}({names}, {changed})")
        text.add(f"{found} = {self.launcher}.recall({', '.join(given)})")
        text.add(f"if {found} is None:")
        text.add("    return None")
        text.add(f"{', '.join(map(text.local, _LAUNCH))} = {found}")

    def _begin(self) -> None:
        """Leave where the kernel's code was replaced since: the launch is of what was loaded then."""
        module, hashers = self.text.local("module"), self.text.local("hashers")
        self.text.add(f"if {module}.hashers is not {hashers}:")
        self.text.add(f"    raise {self.provide('OutdatedError', OutdatedError)}")

    def _launch_recalled(self, tensors: str) -> None:
        """The launch of a tuple of all tensors, the arrays' and then their adjoints', and of the numbers."""
        given = [tensors, self.text.local("start")]
        numbers = [self._packed_value(slot) for slot in self.plan.slots if not slot.is_array and slot.role != "size"]
        if numbers:
            pack = self.provide("pack_numbers", self.launcher_object.number_packer())
            given.append(f"{pack}({', '.join(numbers)})")
        self.text.add(f"{self.text.local('launch')}({', '.join(given)})")

    def _quickly_made(self, slot: Slot) -> bool:
        """An array takes half the time without PyTorch's dispatcher."""
        return slot.init in ("zeros", "empty")

    def _name_allocator(self, device: str, used: bool) -> str:
        empty = self.text.local("empty")
        if used:
            self.text.add(f"{empty} = {self.provide('allocator', checks.allocator)}({device})")
        return empty

    def _layout(self, slot: Slot, sizes: list[str]) -> str:
        """Name the shape and the strides of a fresh array, component axes included."""
        component = list(slot.leaf.component or ())
        inner = [math.prod(component[k + 1 :]) for k in range(len(component))]
        shape, stride = self.local(slot, "size"), self.local(slot, "step")
        steps = self._dense_strides(slot, sizes)
        self.text.add(f"{shape} = ({', '.join([*sizes, *map(str, component)])},)")
        self.text.add(f"{stride} = {steps}" + (f" + ({', '.join(map(str, inner))},)" if inner else ""))
        return f"{shape}, {stride}"

    def emit_recall_forward(self) -> None:
        text, plan = self.text, self.plan
        fresh = plan.fresh
        arrays = self.plan.given_arrays
        with text.function(self.function("recall_forward"), self.plan.arguments):
            text.add(
                '"""The launch for tensors of these sizes and strides, as a function; None where there is none."""'
            )
            self._name_layout(arrays)
            self._leave_unless_dense()
            device = self.find_device()
            self.bind_sizes()
            shapes = self.shapes_of(fresh)
            descriptors = []
            for slot in plan.arrays:
                if slot.role in ("output", "scratch", "inout"):
                    sizes = shapes.get(slot.name) or self._input_sizes(slot)
                    strides = self._dense_strides(slot, sizes)
                else:
                    sizes, strides = self._input_sizes(slot), self.local(slot, "stride")
                descriptors.append(self._describe(slot, "layout", sizes, strides))
            self._recall(device, descriptors)
            empty = self._name_allocator(device, any(self._quickly_made(slot) for slot in fresh))
            layouts = {slot.name: self._layout(slot, shapes[slot.name]) for slot in fresh if self._quickly_made(slot)}
            text.add("")
            again = text.local("again")
            given = text.local("given")
            # The tensors come as one tuple, which is the launch's own but for what is made here.
            extends = plan.arrays == (*arrays, *fresh) and not any(slot.role == "inout" for slot in arrays)
            numbers = [slot.name for slot in plan.inputs if not slot.is_array]
            with text.indented(f"def {again}({', '.join([given, *numbers])}):"):
                self._begin()
                self.check_handles(device)
                if not extends or plan.mutated:
                    text.add(f"{_tuple([slot.name for slot in arrays])} = {given}")
                for slot in fresh:
                    if slot.name in layouts:
                        text.add(f"{slot.name} = {empty}({layouts[slot.name]}, {self.dtype(slot)})")
                        if slot.init == "zeros":
                            text.add(f"{slot.name}.zero_()")
                    else:
                        text.add(self.allocation(slot, shapes[slot.name], device))
                for slot in plan.slots:
                    if slot.role == "inout":
                        text.add(f"{slot.name} = {slot.name}.clone(memory_format={self.torch}.contiguous_format)")
                tensors = _tuple([slot.name for slot in (fresh if extends else plan.arrays)])
                self._launch_recalled(f"{given} + {tensors}" if extends and fresh else given if extends else tensors)
                if plan.mutated:
                    changed = _tuple([slot.name for slot in plan.mutated])
                    text.add(f"{self.provide('increment_versions', torch_modes.increment_versions)}({changed})")
                returned = [slot.name for slot in plan.returned]
                text.add(f"return {', '.join(returned)}".rstrip())
            text.add("")
            text.add(f"return {again}")

    def _describe_adjoint(self, shapes: dict[str, list[str]], dense: Iterable[Slot]) -> tuple[list[str], list[str]]:
        """Name the descriptors of an adjoint launch: of the arguments, whose adjoints are attached, and the explicit
        ones; ``dense`` arrays have no strides to be read."""
        attached, explicit = [], []
        without = {slot.name for slot in dense}
        for slot in self.plan.arrays:
            sizes = shapes.get(slot.name) or self._input_sizes(slot)
            strides = self._dense_strides(slot, sizes) if slot.name in without else self.local(slot, "stride")
            attached.append(self._describe(slot, "layout", sizes, strides, RETAIN if slot.retained else 0))
            if len(slot.leaf.path) > 1:
                continue
            if not slot.explicit:
                explicit.append("None")
            elif slot.retained:
                explicit.append(self._describe(slot, "adjoint_layout", sizes, strides))
            else:
                explicit.append(attached[-1])
        return attached, explicit

    def _launch_adjoint(self) -> None:
        plan = self.plan
        given = {slot.name for slot in (*self.plan.cotangents, *plan.gradient_buffers)}
        data = [slot.name if slot.is_input or slot.saved else "None" for slot in plan.arrays]
        adjoints = [self.grad_name(slot) if slot.name in given else "None" for slot in plan.arrays]
        self._launch_recalled(_tuple([*data, *adjoints]))

    def emit_recall_backward(self) -> None:
        text, plan = self.text, self.plan
        fresh = [slot for slot in plan.slots if slot.role == "output"]
        arrays, cots = self.plan.given_arrays, self.plan.cotangents
        parameters = [*self.backward_arguments(), *map(self.grad_name, cots)]
        gradients = plan.gradient_buffers
        order = {slot.name: k for k, slot in enumerate(plan.gradients)}
        with text.function(self.function("recall_backward"), [*parameters, "needs"]):
            text.add('"""The adjoint launch for tensors of these sizes, as a function; None where there is none."""')
            for slot in arrays:
                text.add(f"{self.local(slot, 'shape')} = {slot.name}.shape")
            device = self.find_device()
            self.bind_sizes()
            shapes = self.shapes_of(fresh)
            self._recall(device, *self._describe_adjoint(shapes, plan.arrays))
            several = plan.zeroed_at_once
            empty = self._name_allocator(device, several)
            layouts = {slot.name: self._layout(slot, self._input_sizes(slot)) for slot in gradients if several}
            wants = {slot.name: self.text.free(f"needs_{slot.name}", "needs") for slot in plan.gradients}
            for slot in plan.gradients:
                text.add(f"{wants[slot.name]} = needs[{order[slot.name]}]")
            text.add("")
            again = text.local("again")
            with text.indented(f"def {again}({', '.join(parameters)}):"):
                self._begin()
                for slot in (*arrays, *plan.kept):
                    text.add(f"{slot.name} = {slot.name}.contiguous()")
                for slot in cots:
                    grad = self.grad_name(slot)
                    if slot.retained:
                        text.add(f"{grad} = {grad}.contiguous()")
                    else:
                        text.add(f"{grad} = {grad}.clone(memory_format={self.torch}.contiguous_format)")
                for slot in gradients:
                    if slot.name in layouts:
                        make = f"{empty}({layouts[slot.name]}, {self.dtype(slot)})"
                    else:
                        make = f"{self.torch}.zeros_like({slot.name})"
                    condition = f" if {wants[slot.name]} else None" if slot.null_adjoint_safe else ""
                    text.add(f"{self.grad_name(slot)} = {make}{condition}")
                if layouts:
                    self.zero_gradients()
                self._launch_adjoint()
                wanted = [self.grad_name(slot) for slot in plan.gradients]
                if len(wanted) == 1:
                    text.add(f"return [{wanted[0]}]")
                else:
                    pairs = ", ".join(f"({wants[s.name]}, {self.grad_name(s)})" for s in plan.gradients)
                    text.add(f"return [grad for need, grad in ({pairs}) if need]")
            text.add("")
            text.add(f"return {again}")

    def emit_recall_forward_into(self) -> None:
        text, plan = self.text, self.plan
        fresh = plan.fresh
        parameters = [*self.plan.arguments, *(slot.name for slot in fresh)]
        with text.function(self.function("recall_forward_into"), parameters):
            self._name_layout(plan.arrays)
            self._leave_unless_dense()
            device = self.find_device()
            self.bind_sizes()
            layouts = [
                self._describe(slot, "layout", self._input_sizes(slot), self.local(slot, "stride"))
                for slot in plan.arrays
            ]
            self._recall(device, layouts)
            text.add("")
            again = text.local("again")
            with text.indented(f"def {again}({', '.join(parameters)}):"):
                self._begin()
                self.check_handles(device)
                self._launch_recalled(_tuple([slot.name for slot in plan.arrays]))
            text.add("")
            text.add(f"return {again}")

    def emit_recall_backward_into(self) -> None:
        text, plan = self.text, self.plan
        given = [*self.plan.given_arrays, *plan.kept]
        parameters = [*self.backward_arguments(), *self.gradient_buffers()]
        with text.function(self.function("recall_backward_into"), parameters):
            self._name_layout(given)
            self._leave_unless_dense()
            device = self.find_device()
            self.bind_sizes()
            fresh = [s for s in plan.slots if s.role == "output" and not s.saved]
            self._recall(device, *self._describe_adjoint(self.shapes_of(fresh), fresh))
            text.add("")
            again = text.local("again")
            with text.indented(f"def {again}({', '.join(parameters)}):"):
                self._begin()
                self.zero_gradients()
                self._launch_adjoint()
            text.add("")
            text.add(f"return {again}")


def _tuple(parts: list[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
