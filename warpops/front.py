"""From the plan to the Python text of what the user calls: the front-end and the autograd function.

Like ``emit.py`` it decides nothing. One front serves every dtype of a generic kernel; what depends on dtypes is in the
launches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .kernel import MISSING
from .plan import OpPlan, Parameter, Slot
from .source import Text, compile_text


class Front:
    """Names and argument lists that the front-end, the schemas and the registration share."""

    def __init__(self, plan: OpPlan) -> None:
        self.plan = plan

    @property
    def arguments(self) -> list[str]:
        """The values of the public schema, in order."""
        return [slot.name for slot in self.plan.inputs] + (["device"] if self.plan.device_argument else [])

    @property
    def cotangents(self) -> list[Slot]:
        return [slot for slot in self.plan.result_slots if slot.differentiable]

    @property
    def gradient_slots(self) -> list[Slot]:
        """The slots that backward makes buffers for, besides the cotangents."""
        return [slot for slot in self.plan.gradients if slot.role != "inout"]

    @property
    def handles(self) -> list[str]:
        """The values that stand for objects of Warp, which have to outlive a pending backward."""
        return [s.name for s in self.plan.inputs if s.leaf.kind == "handle" and s.role != "tensor_scalar"]

    @property
    def returned(self) -> list[Slot]:
        """What the raw forward returns: the results, then scratch."""
        return [*self.plan.result_slots, *self.plan.scratch]

    def type_of(self, slot: Slot, alias: str = "") -> str:
        """The schema type of a value."""
        if slot.is_array:
            return f"Tensor{alias}{'?' if slot.optional else ''}"
        if slot.role == "tensor_scalar":
            return "Tensor"
        if slot.role == "size" or slot.leaf.kind == "handle":
            return "SymInt"
        scalar = slot.leaf.scalar
        if scalar is None and slot.leaf.kind == "number":
            return "Scalar"  # generic: an int stays one
        kind = "float" if scalar is None else {"float": "float", "int": "SymInt", "bool": "bool"}[scalar.kind]
        return f"{kind}[]" if slot.leaf.kind == "vector" else kind

    def arguments_schema(self, defaults: bool, mutate: bool = True) -> list[str]:
        parts: list[str] = []
        star = False
        for parameter in self.plan.parameters:
            if parameter.keyword_only and defaults and not star:
                parts.append("*")
                star = True
            for index, slot in enumerate(parameter.slots):
                alias = f"({chr(ord('a') + self._alias(slot))}!)" if slot.role == "mutated" and mutate else ""
                text = f"{self.type_of(slot, alias)} {slot.name}"
                if defaults and not parameter.struct and index == 0:
                    text += self._default(parameter, slot)
                parts.append(text)
        if self.plan.device_argument:
            if defaults and not star:
                parts.append("*")
            parts.append("Device? device" + ("=None" if defaults else ""))
        return parts

    def _alias(self, slot: Slot) -> int:
        return [s.name for s in self.plan.mutated].index(slot.name)

    def _default(self, parameter: Parameter, slot: Slot) -> str:
        value = parameter.default
        if value is MISSING:
            return ""
        if value is None:
            return "=None"
        if slot.leaf.kind == "vector":
            return ""
        if isinstance(value, bool):
            return f"={value}"
        if isinstance(value, (int, float)) and math.isfinite(value):
            scalar = slot.leaf.scalar
            return f"={float(value)!r}" if scalar is None or scalar.kind == "float" else f"={int(value)}"
        return ""

    def result_schema(self) -> str:
        results = ", ".join("Tensor" for _ in self.plan.results)
        return f"({results})" if len(self.plan.results) != 1 else "Tensor"

    def public(self) -> str:
        return f"({', '.join(self.arguments_schema(True))}) -> {self.result_schema()}"

    def forward(self) -> str:
        returned = ["Tensor"] * len(self.returned)
        result = returned[0] if len(returned) == 1 else f"({', '.join(returned)})"
        return f"({', '.join(self.arguments_schema(False))}) -> {result}"

    @property
    def forward_into_arguments(self) -> list[str]:
        fresh = [s.name for s in self.plan.slots if s.role in ("output", "scratch")]
        return [*self.arguments, *fresh]

    def forward_into(self) -> str:
        parts = []
        letters = iter("abcdefghijklmnopqrstuvwxyz")
        for slot in self.plan.inputs:
            writes = slot.role in ("mutated", "inout")
            alias = f"({next(letters)}!)" if writes else ""
            parts.append(f"{self.type_of(slot, alias)} {slot.name}")
        if self.plan.device_argument:
            parts.append("Device? device")
        for slot in self.plan.slots:
            if slot.role in ("output", "scratch"):
                parts.append(f"Tensor({next(letters)}!) {slot.name}")
        return f"({', '.join(parts)}) -> ()"

    def _shared_backward(self) -> list[str]:
        parts = self.arguments_schema(False, mutate=False)
        return [*parts, *(f"Tensor {slot.name}" for slot in self.plan.kept)]

    def backward(self) -> str:
        cots = [f"Tensor? grad_{slot.name}" for slot in self.cotangents]
        return f"({', '.join([*self._shared_backward(), *cots, 'bool[] needs'])}) -> Tensor[]"

    def backward_into(self) -> str:
        letters = iter("abcdefghijklmnopqrstuvwxyz")
        buffers = []
        for slot in (*self.cotangents, *self.gradient_slots):
            alias = "" if slot.retained else f"({next(letters)}!)"
            buffers.append(f"Tensor{alias}? grad_{slot.name}")
        if self.handles:
            names = {slot.name for slot in self.plan.slots}
            buffers.append("Tensor? alive" + "_" * sum(name.startswith("alive") for name in names))
        return f"({', '.join([*self._shared_backward(), *buffers])}) -> ()"


class FrontEmitter:
    """Writes ``call``, ``eager`` and the autograd function of one op."""

    def __init__(self, op: str, plan: OpPlan) -> None:
        self.op, self.plan, self.front = op, plan, Front(plan)
        names = [parameter.name for parameter in plan.parameters] + [slot.name for slot in plan.slots]
        self.text = Text([*names, "ctx", "device", "forward", "backward"])
        self.function_name = plan.name
        self.classname = self.text.free(plan.name, "class")
        self._function_text: str | None = None

    def use(self, name: str) -> str:
        """A helper from the scope, under a name that no argument has."""
        return self.text.free(name, "helper")

    def helpers(self) -> dict[str, str]:
        return {name: own for (kind, name), own in self.text._free.items() if kind == "helper"}

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

    def tuple_of(self, names: list[str]) -> str:
        return f"({', '.join(names)}{',' if len(names) == 1 else ''})"

    def emit(self) -> str:
        """The text that every call needs."""
        self._emit_call()
        self._emit_eager()
        return self.text.take()

    def emit_function(self) -> str:
        """The text of the autograd function, written once."""
        if self._function_text is None:
            self._emit_function()
            self._function_text = self.text.take()
        return self._function_text

    @property
    def has_function(self) -> bool:
        return self._needs_function()

    def _needs_function(self) -> bool:
        return bool(self.plan.gradients) and bool(self.front.cotangents)

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

    def _remembered(self, what: str, tensors: list[str], more: Iterable[str] = ()) -> str:
        """The condition under which a remembered launch applies; names the memory."""
        memory = self.text.free("memory", "local")
        self.text.add(f"{memory} = {self.use('recall')}.{what}")
        numbers = [slot.name for slot in self.plan.sizing]
        tests = [f"{memory}.check({', '.join(tensors)})", *more]
        if numbers:
            tests.append(f"{memory}.numbers == {self.tuple_of(numbers)}")
        tests += [f"not {self.use(name)}()" for name in ("dispatch_modes", "function_mode", "profiling")]
        return " and ".join(tests)

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
                test = f"isinstance({slot.name}, int)"
            else:
                scalar = slot.leaf.scalar
                kind = "int" if slot.role == "size" else ("float" if scalar is None else scalar.kind)
                test = f"isinstance({slot.name}, {'(float, int)' if kind == 'float' else 'int'})"
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
                text.add(f"if isinstance({slot.name}, float):")
                text.add(f"    {slot.name} = {self.use('guard_scalar')}({slot.name})")
            elif slot.leaf.kind == "number" and slot.role == "number" and scalar is not None and scalar.kind == "float":
                text.add(f"{slot.name} = {self.use('guard_scalar')}(float({slot.name}))")
            elif slot.leaf.kind == "number" and slot.role == "number" and scalar is not None and scalar.kind == "bool":
                text.add(f"{slot.name} = bool({slot.name})")
            elif (slot.leaf.kind == "number" and slot.role == "number") or slot.role == "size":
                text.add(f"{slot.name} = int({slot.name})")
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

    def _way(self, what: str, slots: Iterable[Slot], cotangents: Iterable[str] = ()) -> str:
        """Choose between the launch itself and its raw op: the op where anything watches or changes dispatch."""
        plain = self.use("PLAIN")
        tests = [
            f"not {self.use('dispatch_modes')}()",
            f"not {self.use('function_mode')}()",
            f"not {self.use('profiling')}()",
        ]
        for slot in slots:
            if slot.is_array:
                test = f"{slot.name}.__class__ in {plain} and not {slot.name}.is_neg()"
                tests.append(f"({slot.name} is None or {test})" if slot.optional else test)
            elif slot.role == "tensor_scalar":
                tests.append(f"{slot.name}.__class__ in {plain}")
        for name in cotangents:
            tests.append(f"({name} is None or {name}.__class__ in {plain} and not {name}.is_neg())")
        given = [slot for slot in slots if slot.is_array and not slot.optional and slot.is_input]
        if given:
            tests.append(f"not {given[0].name}.is_meta")
        self.text.add(f"{what} = {self.use(f'{what}_op')}")
        self.text.add("if (")
        self.text.add(f"    {tests[0]}")
        for test in tests[1:]:
            self.text.add(f"    and {test}")
        self.text.add("):")
        self.text.add(f"    {what} = {self.use(f'launch_{what}')}")
        return what

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

    def _emit_function(self) -> None:
        text, plan, front = self.text, self.plan, self.front
        arguments = front.arguments
        tensors = [s.name for s in plan.inputs if s.is_array or s.role == "tensor_scalar"]
        numbers = [name for name in arguments if name not in tensors]
        returned = [text.free(f"new_{s.name}", "new") if s.role == "inout" else s.name for s in front.returned]
        kept = returned[: len(plan.results)] if plan.gradient == "custom" else [s.name for s in plan.kept]
        with text.indented_class(self.classname, self.use("AutogradFunction")):
            text.add("@staticmethod")
            with text.indented(f"def forward(ctx, {', '.join(arguments)}):"):
                if plan.gradient != "custom":
                    text.add("ctx.set_materialize_grads(False)")
                saved = {name: name for name in tensors}
                for slot in plan.mutated:
                    if plan.results:
                        before = text.free(f"{slot.name}_before", "before")
                        text.add(
                            f"{before} = {slot.name}.clone()"
                            + (f" if {slot.name} is not None else None" if slot.optional else "")
                        )
                        saved[slot.name] = before
                names = self.tuple_of(returned) if len(returned) != 1 else returned[0]
                given = ", ".join(arguments)
                text.add(f"if {self.use('is_compiling')}():")
                text.add(f"    {names} = {self.use('traced_forward')}({given})")
                alive = [text.free("alive", "alive")] if front.handles else []
                if alive:
                    text.add(f"    {alive[0]} = {self.use('keep_alive')}({', '.join(front.handles)})")
                text.add("else:")
                with text.deeper():
                    if plan.recalls_forward:
                        condition = self._remembered("forward", [s.name for s in plan.inputs if s.is_array])
                        text.add(f"if {condition}:")
                        text.add(f"    {names} = {text.free('memory', 'local')}.run({given})")
                        text.add("else:")
                    with text.deeper() if plan.recalls_forward else text.flat():
                        text.add(f"{names} = {self._way('forward', plan.inputs)}({given})")
                    if alive:
                        text.add(f"{alive[0]} = None")
                        text.add(f"ctx.alive = {self.use('alive')}({', '.join(front.handles)})")
                text.add(f"ctx.save_for_backward({', '.join([*saved.values(), *kept, *alive])})")
                if numbers:
                    text.add(f"ctx.numbers = {self.tuple_of(numbers)}")
                silent = [r for s, r in zip(plan.result_slots, returned, strict=False) if not s.differentiable]
                if silent:
                    text.add(f"ctx.mark_non_differentiable({', '.join(silent)})")
                results = returned[: len(plan.results)]
                text.add(f"return {', '.join(results)}")
            text.add("")
            text.add("@staticmethod")
            cots = [
                text.free(f"grad_{s.name}", "cotangent") if s.differentiable else text.free(f"_{s.name}", "unused")
                for s in plan.result_slots
            ]
            with text.indented(f"def backward(ctx, {', '.join(cots)}):"):
                live = [c for c, s in zip(cots, plan.result_slots, strict=True) if s.differentiable]
                nones = ", ".join("None" for _ in arguments)
                if plan.gradient == "custom":
                    text.add(f"{self.tuple_of([*tensors, *kept, *alive])} = ctx.saved_tensors")
                    if numbers:
                        text.add(f"{self.tuple_of(numbers)} = ctx.numbers")
                    text.add(
                        f"return {self.use('custom_backward')}({self.tuple_of(arguments)}, {self.tuple_of(kept)}, "
                        f"{self.tuple_of(cots)}, ctx.needs_input_grad)"
                    )
                    return
                text.add(f"if {' and '.join(f'{c} is None' for c in live)}:")
                text.add(f"    return {nones}")
                if plan.gradient == "none":
                    text.add(f"{self.use('refuse_gradient')}()")
                    return
                text.add(f"if {self.use('grad_enabled')}():")
                text.add(f"    return {self.use('backward_once')}({self.classname}, ctx, {', '.join(cots)})")
                text.add(f"{self.tuple_of([*tensors, *kept, *alive])} = ctx.saved_tensors")
                if numbers:
                    text.add(f"{self.tuple_of(numbers)} = ctx.numbers")
                positions = [arguments.index(s.name) for s in plan.gradients]
                text.add("needs = ctx.needs_input_grad")
                text.add(f"needs = [{', '.join(f'needs[{p}]' for p in positions)}]")
                parts = [*arguments, *kept, *live, "needs"]
                text.add(f"if {self.use('is_compiling')}():")
                traced = self.use("traced_backward")
                if alive:
                    traced = f"{self.use('partial')}({traced}, token={alive[0]})"
                given = ", ".join(parts)
                text.add(f"    grads = {traced}({given})")
                text.add("else:")
                with text.deeper():
                    arrays = [s.name for s in plan.inputs if s.is_array] + kept + live
                    if plan.recalls_backward:
                        memory = text.free("memory", "local")
                        condition = self._remembered("backward", arrays, [f"{memory}.needs == needs"])
                        text.add(f"if {condition}:")
                        text.add(f"    grads = {memory}.run({', '.join(parts[:-1])})")
                        text.add("else:")
                    with text.deeper() if plan.recalls_backward else text.flat():
                        text.add(f"grads = {self._way('backward', [*plan.inputs, *plan.kept], live)}({given})")
                        if plan.recalls_backward:
                            text.add(
                                f"{self.use('recall')}.missed_backward({self.tuple_of(parts)}, "
                                f"{self.tuple_of(arrays)}, needs)"
                            )
                if len(positions) == 1:
                    text.add("(grad,) = grads")
                    text.add(
                        f"return {', '.join('grad' if k == positions[0] else 'None' for k in range(len(arguments)))}"
                    )
                    return
                text.add("grads = iter(grads)")
                out = ["None"] * len(arguments)
                for k, position in enumerate(positions):
                    out[position] = f"next(grads) if needs[{k}] else None"
                text.add(f"return {', '.join(out)}")


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
