"""The launches for tensors whose sizes and strides were seen before: everything that then is constant is worked out once.

``recall_forward`` and ``recall_backward`` return a function of the same arguments that allocates, packs pointers and
launches; ``recall_forward_into`` and ``recall_backward_into`` one that launches over given buffers, as compiled code calls
it. ``warpops.recall`` decides when they apply.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..packing import array_rest
from ..plan import Slot
from . import pieces
from .backward import RETAIN, Backward


class Recall(Backward):
    """Writes ``recall_forward``, ``recall_backward`` and their forms over given buffers."""

    def _leave_unless_dense(self) -> None:
        """The function returns None where an array's component axes aren't dense."""
        dense = [text for slot in self.given_arrays() if (text := self._dense(slot, self.local(slot, "stride")))]
        if dense:
            self.text.add(f"if {' or '.join(dense)}:")
            self.text.add("    return None")

    def _name_layout(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self.text.add(f"{self.local(slot, 'shape')} = {slot.name}.shape")
            self.text.add(f"{self.local(slot, 'stride')} = {slot.name}.stride()")

    def _rest(self, slot: Slot, what: str, sizes: list[str], strides: str, flags: int, grad: bool) -> str:
        """Name the constant part of a descriptor."""
        assert slot.leaf.scalar is not None
        rest = self.local(slot, what)
        make = self.provide("array_rest", array_rest)
        shape = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
        self.text.add(f"{rest} = {make}({shape}, {strides}, {slot.leaf.scalar.size}, {flags}, {grad})")
        return rest

    def _input_sizes(self, slot: Slot) -> list[str]:
        return [f"{self.local(slot, 'shape')}[{axis}]" for axis in range(slot.leaf.ndim)]

    def _quick(self, device: str, adjoint: bool = False) -> tuple[str, str]:
        """Name the packed bounds and the entry point; the function returns None where there is no short way."""
        text = self.text
        quick, bounds, enter = text.local("quick"), text.local("bounds"), text.local("enter")
        text.add(f"{quick} = {self.launcher}.quick({device}, {self.launch_size()})")
        text.add(f"if {quick} is None:")
        text.add("    return None")
        text.add(f"{bounds}, _, {enter} = {quick}" if adjoint else f"{bounds}, {enter}, _ = {quick}")
        return bounds, enter

    def _quickly_made(self, slot: Slot) -> bool:
        """Remembered launches are on the CPU, where an array takes half the time without PyTorch's dispatcher."""
        return pieces.EMPTY_CPU is not None and slot.init in ("zeros", "empty")

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
        fresh = [slot for slot in plan.slots if slot.role in ("output", "scratch")]
        arrays = self.given_arrays()
        with text.function(self.function("recall_forward"), self.arguments):
            text.add(
                '"""The launch for tensors of these sizes and strides, as a function; None where there is none."""'
            )
            self._name_layout(arrays)
            self._leave_unless_dense()
            device = self.find_device()
            self.bind_sizes()
            shapes = self.shapes_of(fresh)
            bounds, enter = self._quick(device)
            rests: dict[str, str] = {}
            for slot in plan.arrays:
                if slot.role in ("output", "scratch", "inout"):
                    sizes = shapes.get(slot.name) or self._input_sizes(slot)
                    rests[slot.name] = self._rest(slot, "rest", sizes, self._dense_strides(slot, sizes), 0, True)
                else:
                    stride = self.local(slot, "stride")
                    rests[slot.name] = self._rest(slot, "rest", self._input_sizes(slot), stride, 0, True)
            pack = self.provide("pack_quickly", self.launcher_object.packer("forward"))
            empty = self.provide("empty_cpu", pieces.EMPTY_CPU)
            layouts = {slot.name: self._layout(slot, shapes[slot.name]) for slot in fresh if self._quickly_made(slot)}
            text.add("")
            again = text.local("again")
            with text.indented(f"def {again}({', '.join(self.arguments)}):"):
                self.check_handles(device)
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
                parts = []
                for slot in plan.slots:
                    if slot.role == "size":
                        continue
                    parts.append(
                        f"{slot.name}.data_ptr(), {rests[slot.name]}" if slot.is_array else self._packed_value(slot)
                    )
                self._enter(enter, bounds, [(pack, parts)])
                returned = [slot.name for slot in (*plan.result_slots, *plan.scratch)]
                text.add(f"return {', '.join(returned)}")
            text.add("")
            text.add(f"return {again}")

    def _enter(self, enter: str, bounds: str, packs: list[tuple[str, list[str]]]) -> None:
        text = self.text
        text.add(f"{enter}(")
        text.add(f"    {bounds},")
        for pack, parts in packs:
            text.add(f"    {pack}(")
            for part in parts:
                text.add(f"        {part},")
            text.add("    ),")
        text.add(")")

    def _adjoint_parts(
        self, pointers: dict[str, str], attached: dict[str, str], explicit: dict[str, str]
    ) -> tuple[list[str], list[str]]:
        """What an adjoint launch packs: the arguments with their adjoints attached, and the explicit adjoints."""
        parts, adjoints = [], []
        for slot in self.plan.slots:
            if slot.role == "size":
                continue
            if not slot.is_array:
                parts.append(self._packed_value(slot))
                continue
            data = f"{slot.name}.data_ptr()" if slot.is_input or slot.saved else "0"
            pointer = pointers.get(slot.name, "0")
            parts.append(f"{data}, {pointer}, {attached[slot.name]}")
            if slot.name in explicit:
                adjoints.append(f"{pointer}, {explicit[slot.name]}")
        return parts, adjoints

    def emit_recall_backward(self) -> None:
        text, plan = self.text, self.plan
        fresh = [slot for slot in plan.slots if slot.role == "output"]
        arrays, cots = self.given_arrays(), self.cotangents()
        parameters = [*self.backward_arguments(), *map(self.grad_name, cots)]
        gradients = [s for s in plan.gradients if s.role != "inout"]
        order = {slot.name: k for k, slot in enumerate(plan.gradients)}
        with text.function(self.function("recall_backward"), [*parameters, "needs"]):
            text.add('"""The adjoint launch for tensors of these sizes, as a function; None where there is none."""')
            for slot in arrays:
                text.add(f"{self.local(slot, 'shape')} = {slot.name}.shape")
            device = self.find_device()
            self.bind_sizes()
            shapes = self.shapes_of(fresh)
            bounds, enter = self._quick(device, adjoint=True)
            attached: dict[str, str] = {}
            explicit: dict[str, str] = {}
            for slot in plan.arrays:
                sizes = shapes.get(slot.name) or self._input_sizes(slot)
                strides = self._dense_strides(slot, sizes)
                attached[slot.name] = self._rest(slot, "rest", sizes, strides, RETAIN if slot.retained else 0, False)
                if len(slot.leaf.path) == 1:
                    explicit[slot.name] = self._rest(slot, "adjoint_rest", sizes, strides, 0, True)
            pack = self.provide("pack_attached", self.launcher_object.packer("attached"))
            pack_explicit = self.provide("pack_explicit", self.launcher_object.packer("explicit"))
            empty = self.provide("empty_cpu", pieces.EMPTY_CPU)
            several = plan.zeroed_at_once and pieces.EMPTY_CPU is not None
            layouts = {slot.name: self._layout(slot, self._input_sizes(slot)) for slot in gradients if several}
            wants = {slot.name: self.text.free(f"needs_{slot.name}", "needs") for slot in plan.gradients}
            for slot in plan.gradients:
                text.add(f"{wants[slot.name]} = needs[{order[slot.name]}]")
            text.add("")
            again = text.local("again")
            with text.indented(f"def {again}({', '.join(parameters)}):"):
                for slot in (*arrays, *plan.kept):
                    text.add(f"{slot.name} = {slot.name}.contiguous()")
                pointers: dict[str, str] = {}
                for slot in cots:
                    grad = self.grad_name(slot)
                    if slot.retained:
                        text.add(f"{grad} = {grad}.contiguous()")
                    else:
                        text.add(f"{grad} = {grad}.clone(memory_format={self.torch}.contiguous_format)")
                    pointers[slot.name] = self.local(slot, "adjoint")
                    text.add(f"{pointers[slot.name]} = {grad}.data_ptr()")
                for slot in gradients:
                    grad, pointer = self.grad_name(slot), self.local(slot, "adjoint")
                    pointers[slot.name] = pointer
                    if slot.name in layouts:
                        make = f"{empty}({layouts[slot.name]}, {self.dtype(slot)})"
                    else:
                        make = f"{self.torch}.zeros_like({slot.name})"
                    if slot.null_adjoint_safe:
                        text.add(f"if {wants[slot.name]}:")
                        text.add(f"    {grad} = {make}")
                        text.add(f"    {pointer} = {grad}.data_ptr()")
                        text.add("else:")
                        text.add(f"    {grad}, {pointer} = None, 0")
                    else:
                        text.add(f"{grad} = {make}")
                        text.add(f"{pointer} = {grad}.data_ptr()")
                if layouts:
                    self.zero_gradients()
                parts, adjoints = self._adjoint_parts(pointers, attached, explicit)
                self._enter(enter, bounds, [(pack, parts), (pack_explicit, adjoints)])
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
        fresh = [slot for slot in plan.slots if slot.role in ("output", "scratch")]
        parameters = [*self.arguments, *(slot.name for slot in fresh)]
        with text.function(self.function("recall_forward_into"), parameters):
            self._name_layout(plan.arrays)
            self._leave_unless_dense()
            device = self.find_device()
            self.bind_sizes()
            bounds, enter = self._quick(device)
            rests = {
                slot.name: self._rest(slot, "rest", self._input_sizes(slot), self.local(slot, "stride"), 0, True)
                for slot in plan.arrays
            }
            pack = self.provide("pack_quickly", self.launcher_object.packer("forward"))
            text.add("")
            again = text.local("again")
            with text.indented(f"def {again}({', '.join(parameters)}):"):
                self.check_handles(device)
                parts = [
                    f"{slot.name}.data_ptr(), {rests[slot.name]}" if slot.is_array else self._packed_value(slot)
                    for slot in plan.slots
                    if slot.role != "size"
                ]
                self._enter(enter, bounds, [(pack, parts)])
            text.add("")
            text.add(f"return {again}")

    def emit_recall_backward_into(self) -> None:
        text, plan = self.text, self.plan
        given = [*self.given_arrays(), *plan.kept]
        parameters = [*self.backward_arguments(), *self.gradient_buffers()]
        with text.function(self.function("recall_backward_into"), parameters):
            self._name_layout(given)
            self._leave_unless_dense()
            device = self.find_device()
            self.bind_sizes()
            shapes = self.shapes_of([s for s in plan.slots if s.role == "output" and not s.saved])
            bounds, enter = self._quick(device, adjoint=True)
            attached: dict[str, str] = {}
            explicit: dict[str, str] = {}
            for slot in plan.arrays:
                sizes = shapes.get(slot.name) or self._input_sizes(slot)
                strides = self._dense_strides(slot, sizes) if slot.name in shapes else self.local(slot, "stride")
                attached[slot.name] = self._rest(slot, "rest", sizes, strides, RETAIN if slot.retained else 0, False)
                if len(slot.leaf.path) == 1:
                    explicit[slot.name] = self._rest(slot, "adjoint_rest", sizes, strides, 0, True)
            pack = self.provide("pack_attached", self.launcher_object.packer("attached"))
            pack_explicit = self.provide("pack_explicit", self.launcher_object.packer("explicit"))
            text.add("")
            again = text.local("again")
            with text.indented(f"def {again}({', '.join(parameters)}):"):
                self.zero_gradients()
                pointers = {
                    slot.name: self._pointer(slot, self.grad_name(slot), always=False)
                    for slot in (*self.cotangents(), *(s for s in plan.gradients if s.role != "inout"))
                }
                parts, adjoints = self._adjoint_parts(pointers, attached, explicit)
                self._enter(enter, bounds, [(pack, parts), (pack_explicit, adjoints)])
            text.add("")
            text.add(f"return {again}")
