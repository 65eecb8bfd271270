"""From the plan to the Python text of what the user calls: ``call`` and ``eager``.

Like ``emit.py`` it decides nothing. One front serves every dtype of a generic kernel; what depends on dtypes is in the
launches.
"""

from __future__ import annotations

from typing import Any

from .front_function import FunctionEmitter
from .kernel import MISSING
from .plan import OpPlan
from .source import compile_text


class FrontEmitter(FunctionEmitter):
    """Writes ``call`` and ``eager`` of one op."""

    def parameters(self) -> str:
        parts, star = [], False
        for parameter in self.plan.parameters:
            if parameter.keyword_only and not star:
                parts.append("*")
                star = True
            default = ""
            if parameter.default is not MISSING:
                default = f"={self.use('defaults')}[{parameter.name!r}]" if parameter.default is not None else "=None"
            parts.append(parameter.name + default)
        if self.plan.device_argument:
            parts += ["device=None"] if star else ["*", "device=None"]
        return ", ".join(parts)

    def emit(self) -> str:
        """The text that every call needs."""
        self._emit_call()
        self._emit_eager()
        return self.text.take()

    def _open_structs(self, traced: bool) -> None:
        for parameter in self.plan.parameters:
            if not parameter.struct:
                continue
            field = self.use("field")
            for slot in parameter.slots:
                index = self.plan.inputs.index(slot)
                path = ", ".join(repr(part) for part in slot.leaf.path[1:])
                self.text.add(f"{slot.name} = {field}({parameter.name}, {index}, {slot.label!r}, {path})")

    def _emit_call(self) -> None:
        text, _plan = self.text, self.plan
        arguments = self.tuple_of(self.front.arguments)
        with text.indented(f"def {self.use('call')}({self.parameters()}):"):
            self._open_structs(False)
            text.add(f"if {self.use('is_compiling')}():")
            with text.deeper():
                self._emit_traced()
            self._emit_numbers()
            if self.plan.device_argument:
                arrays = [s.name for s in self.plan.inputs if s.is_array]
                absent = " and ".join(["device is None", *(f"{name} is None" for name in arrays if "." not in name)])
                if not any(p.struct for p in self.plan.parameters):
                    text.add(f"if {absent}:")
                    text.add(f"    device = {self.use('get_default_device')}()")
            if self.plan.recalls_forward:
                self._emit_recall()
            text.add(
                f"if {self.use('functorch_level')}() is not None or {self.use('autocast_active')}() or "
                f"{self.use('forward_ad')}._current_level >= 0:"
            )
            text.add(f"    return {self.use('special')}({arguments})")
            call = f"{self.use('eager')}({', '.join(self.front.arguments)})"
            if not self.plan.recalls_forward:
                text.add(f"return {call}")
                return
            result = text.free("results", "local")
            text.add(f"{result} = {call}")
            text.add(f"{self.use('recall')}.missed_forward({arguments})")
            text.add(f"return {result}")

    def _first_results(self, call: str) -> str:
        count, extra = len(self.plan.results), len(self.front.returned) - len(self.plan.results)
        if not extra:
            return call
        return f"{call}[:{count}]" if count != 1 else f"{call}[0]"

    def _emit_recall(self) -> None:
        text = self.text
        arguments = ", ".join(self.front.arguments)
        tensors = [slot.name for slot in self.plan.inputs if slot.is_array]
        condition = self._remembered("forward", tensors, [f"{self.use('forward_ad')}._current_level < 0"])
        memory = text.free("memory", "local")
        with text.indented(f"if {condition}:"):
            text.add("try:")
            with text.deeper():
                if self._needs_function():
                    text.add(f"if {memory}.differentiable and {self.use('grad_enabled')}():")
                    text.add(f"    return {self.use('apply')}({arguments})")
                text.add(f"return {self._first_results(f'{memory}.run({arguments})')}")
            text.add(f"except {self.use('PackError')}:")
            text.add("    pass")

    def _emit_traced(self) -> None:
        """What Dynamo traces: refusals that PyTorch's parser has no words for, guards on floats, one call."""
        text, plan = self.text, self.plan
        tensor = self.use("Tensor")
        for index, slot in enumerate(plan.inputs):
            if slot.is_array:
                test = f"isinstance({slot.name}, {tensor})"
                if slot.optional:
                    test = f"({slot.name} is None or {test})"
            elif slot.role == "tensor_scalar":
                text.add(f"{slot.name} = {self.use('traced_tensor')}({slot.name})")
                continue
            elif slot.leaf.kind == "vector":
                text.add(f"{slot.name} = {self.use('traced_value')}({slot.name})")
                test = f"isinstance({slot.name}, (list, tuple))"
            elif slot.leaf.kind == "handle":
                text.add(f"{slot.name} = {self.use('handle')}({slot.name})")
                test = f"isinstance({slot.name}, {self.use('INTS')})"
            else:
                scalar = slot.leaf.scalar
                kind = "int" if slot.role == "size" else ("float" if scalar is None else scalar.kind)
                test = f"isinstance({slot.name}, {self.use('NUMBERS' if kind == 'float' else 'INTS')})"
                if kind == "bool":
                    test = f"({test} and ({slot.name} == 0 or {slot.name} == 1))"
            text.add(f"if not {test}:")
            text.add(f"    return {self.use('refuse_traced')}({index}, {slot.name})")
            if slot.leaf.kind == "vector":
                text.add(f"{slot.name} = {self.use('traced_vector')}({slot.name})")
                text.add(f"if {self.use('wrong_item')}({slot.name}) >= 0:")
                wrong = f"{slot.name}[{self.use('wrong_item')}({slot.name})]"
                text.add(f"    return {self.use('refuse_traced')}({index}, {wrong}, True)")
            elif slot.leaf.kind == "handle":
                text.add(f"if {slot.name} > {2**63 - 1}:  # a schema's int is signed")
                text.add(f"    {slot.name} = {slot.name} - {2**64}")
        for slot in plan.inputs:
            scalar = slot.leaf.scalar
            if slot.leaf.kind == "number" and slot.role == "number" and scalar is None:
                text.add(f"if not isinstance({slot.name}, {self.use('INTS')}):")
                text.add(f"    {slot.name} = {self.use('guard_scalar')}({slot.name})")
            elif slot.leaf.kind == "number" and slot.role == "number" and scalar is not None and scalar.kind == "float":
                text.add(f"{slot.name} = {self.use('guard_scalar')}(float({slot.name}))")
            elif slot.leaf.kind == "number" and slot.role == "number" and scalar is not None and scalar.kind == "bool":
                text.add(f"{slot.name} = bool({slot.name})")
            elif (slot.leaf.kind == "number" and slot.role == "number") or slot.role == "size":
                text.add(f"{slot.name} = {self.use('traced_int')}({slot.name})")
        text.add(f"return {self.use('public_op')}({self._public_arguments()})")

    def _public_arguments(self) -> str:
        parts = []
        for parameter in self.plan.parameters:
            for slot in parameter.slots:
                parts.append(f"{slot.name}={slot.name}" if parameter.keyword_only else slot.name)
        if self.plan.device_argument:
            parts.append("device=device")
        return ", ".join(parts)

    def _emit_numbers(self) -> None:
        text = self.text
        for slot in self.plan.inputs:
            if slot.is_array:
                continue
            scalar = slot.leaf.scalar
            if slot.role == "tensor_scalar":
                text.add(f"if {slot.name}.__class__ is not {self.use('Tensor')}:")
                text.add(f"    {slot.name} = {self.use('to_tensor')}({slot.name!r}, {slot.name})")
            elif slot.leaf.kind == "vector":
                text.add(f"{slot.name} = {self.use('to_vector')}({slot.name!r}, {slot.name})")
            elif slot.leaf.kind == "handle":
                text.add(f"{slot.name} = {self.use('to_handle')}({slot.name!r}, {slot.name})")
            else:
                kind = "int" if slot.role == "size" or scalar is None else scalar.kind
                other = f" and {slot.name}.__class__ is not float" if scalar is None and slot.role != "size" else ""
                text.add(f"if {slot.name}.__class__ is not {kind}{other}:")
                text.add(f"    {slot.name} = {self.use('to_number')}({slot.name!r}, {slot.name})")

    def _emit_eager(self) -> None:
        text, plan, front = self.text, self.plan, self.front
        arguments = ", ".join(front.arguments)
        with text.function(self.use("eager"), front.arguments):
            text.add("try:")
            text._indent += 1
            self._emit_guards()
            if self._needs_function():
                requires = " or ".join(
                    f"{s.name}.requires_grad"
                    if not s.optional
                    else f"({s.name} is not None and {s.name}.requires_grad)"
                    for s in plan.gradients
                )
                text.add(f"if {self.use('grad_enabled')}() and ({requires}):")
                text._indent += 1
                if plan.mutated:
                    text.add(f"results = {self.use('apply')}({arguments})")
                    self._bump()
                    text.add("return results")
                else:
                    text.add(f"return {self.use('apply')}({arguments})")
                text._indent -= 1
            call = f"{self._way('forward', plan.inputs)}({arguments})"
            count = len(plan.results)
            result = self._first_results(call)
            if plan.mutated:
                text.add(f"results = {result}")
                self._bump()
                text.add("return results" if count else "return None")
            else:
                text.add(f"return {result}")
            text._indent -= 1
            text.add("except (AttributeError, TypeError, RuntimeError):")
            text.add(f"    {self.use('explain_failure')}({self.tuple_of(front.arguments)})")
            text.add("    raise")

    def _bump(self) -> None:
        for slot in self.plan.mutated:
            self.text.add(f"{self.use('increment_version')}({slot.name})")

    def _emit_guards(self) -> None:
        plan = self.plan
        if not plan.mutated:
            return
        guarded = [s for s in plan.inputs if s.is_array and (s.role == "mutated" or not plan.results)]
        conditions = " or ".join(
            f"{s.name}.requires_grad" if not s.optional else f"({s.name} is not None and {s.name}.requires_grad)"
            for s in guarded
        )
        self.text.add(f"if {self.use('grad_enabled')}() and ({conditions}):")
        self.text.add(f"    {self.use('refuse_mutation')}({self.tuple_of(self.front.arguments)})")
        negated = [f"{s.name}.is_neg()" for s in plan.mutated]
        negated = [
            f"({s.name} is not None and {n})" if s.optional else n for s, n in zip(plan.mutated, negated, strict=True)
        ]
        self.text.add(f"if {' or '.join(negated)}:")
        self.text.add(f"    return {self.use('resolve_negated')}({self.tuple_of(self.front.arguments)})")


def emit_front(op: str, plan: OpPlan) -> tuple[str, FrontEmitter]:
    """The text of what is called, and the emitter that can write the autograd function's too."""
    emitter = FrontEmitter(op, plan)
    header = f'"""{op}: what is called. Generated by warpops."""\n\n'
    return header + emitter.emit(), emitter


def front_scope(emitter: FrontEmitter, helpers: dict[str, Any]) -> dict[str, Any]:
    """The helpers that the text so far uses, under the names that it has for them."""
    return {own: helpers[name] for name, own in emitter.helpers().items() if name in helpers}


def compile_front(op: str, text: str, emitter: FrontEmitter, helpers: dict[str, Any]) -> dict[str, Any]:
    """Run the front's text with its helpers; returns the scope."""
    scope = front_scope(emitter, helpers)
    compile_text(text, scope, f"{op}.call")
    return scope
