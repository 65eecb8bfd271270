"""From the plan to the Python text of an op's autograd function: a forward and a backward over the raw ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..plan.model import OpPlan
from .text import Text, targets, tuple_of


class FunctionWriter:
    """Writes the autograd function of one op, and what it shares with the text of what is called."""

    def __init__(self, op: str, plan: OpPlan) -> None:
        self.op, self.plan = op, plan
        names = [parameter.name for parameter in plan.parameters] + [slot.name for slot in plan.slots]
        self.text = Text([*names, "ctx", "device"])
        self.function_name = plan.name
        self.classname = self.text.free(plan.name, "class")
        self._function_text: str | None = None

    def use(self, name: str) -> str:
        """A helper from the scope, under a name that no argument has."""
        return self.text.free(name, "helper")

    def helpers(self) -> dict[str, str]:
        return {name: own for (kind, name), own in self.text._free.items() if kind == "helper"}

    def emit_function(self) -> str:
        """The text of the autograd function, written once."""
        if self._function_text is None:
            self._emit_function()
            self._function_text = self.text.take()
        return self._function_text

    def _remembered(self, what: str, tensors: str, values: Sequence[str], more: Iterable[str] = ()) -> str:
        """The condition under which a remembered launch applies; names the memory."""
        memory, store = self.text.free("memory", "local"), self.use(what)
        self.text.add(f"{memory} = {store}.memories[0]")
        self.text.add(f"if not {memory}.check({tensors}):")
        self.text.add(f"    {memory} = {store}.find({tuple_of(values)})")
        fixed = [slot.name for slot in self.plan.sizing] + [name for name in values if name == "needs"]
        tests = [f"{memory}.run", *more]
        if fixed:
            tests.append(f"{memory}.fixed == {tuple_of(fixed)}")
        modes = " or ".join(f"{self.use(name)}()" for name in ("dispatch_modes", "function_mode", "profiling"))
        return " and ".join([*tests, f"not ({modes})"])

    def _recalled(self) -> str:
        """The call of a remembered forward: a tuple of the tensors, then the numbers."""
        numbers = [slot.name for slot in self.plan.inputs if not slot.is_array]
        return f"{self.text.free('memory', 'local')}.run({', '.join([self.text.free('given', 'local'), *numbers])})"

    def _given(self) -> str:
        """Name the tuple of the given tensors, which a remembered forward takes; the text of what a guard is asked."""
        given = self.text.free("given", "local")
        self.text.add(f"{given} = {tuple_of([slot.name for slot in self.plan.given_arrays])}")
        return f"*{given}"

    def _try_remembered(self, what: str, tensors: str, values: Sequence[str], names: str, call: str) -> None:
        """Recall a launch where one applies; what is written next, indented, is for where none does."""
        text, first = self.text, names.partition(",")[0]
        condition = self._remembered(what, tensors, values)
        text.add(f"{first} = None")
        text.add(f"if {condition}:")
        text.add("    try:")
        text.add(f"        {names} = {call}")
        error = text.free("error", "local")
        text.add(f"    except {self.use('NotRecalled')} as {error}:")
        text.add(f"        {self.use(what)}.gave_way({text.free('memory', 'local')}, {error})")
        text.add(f"if {first} is None:")

    def _way(self, what: str, more: Iterable[str] = ()) -> str:
        """The launch itself, or its raw op, where anything watches or changes dispatch."""
        scalars = [slot for slot in self.plan.inputs if slot.role == "tensor_scalar"]
        tensors = [*(slot.name for slot in (*self.plan.given_arrays, *scalars)), *more]
        launch, op = self.use(f"launch_{what}"), self.use(f"{what}_op")
        return f"({launch} if {self.use('direct')}({', '.join(tensors)}) else {op})"

    def _emit_function(self) -> None:
        text, plan = self.text, self.plan
        arguments = plan.arguments
        tensors = [s.name for s in plan.inputs if s.is_array or s.role == "tensor_scalar"]
        numbers = [name for name in arguments if name not in tensors]
        returned = [text.free(f"new_{s.name}", "new") if s.role == "inout" else s.name for s in plan.returned]
        kept = returned[: len(plan.results)] if plan.gradient == "custom" else [s.name for s in plan.kept]
        with text.indented_class(self.classname, self.use("AutogradFunction")):
            text.add("@staticmethod")
            with text.indented(f"def forward(ctx, {', '.join(arguments)}):"):
                for slot in (s for s in plan.inputs if s.role == "tensor_scalar"):
                    text.add(f"if ctx.needs_input_grad[{arguments.index(slot.name)}]:")
                    text.add(f"    {self.use('refuse_number')}({slot.name!r})")
                if plan.gradient != "custom":
                    text.add("ctx.set_materialize_grads(False)")
                saved = {name: name for name in tensors}
                for slot in plan.mutated if plan.results else ():
                    saved[slot.name] = text.free(f"{slot.name}_before", "before")
                    text.add(f"{saved[slot.name]} = {self.use('copy_of')}({slot.name})")
                names = ", ".join(returned)
                given = ", ".join(arguments)
                text.add(f"if {self.use('is_compiling')}():")
                text.add(f"    {names} = {self.use('traced_forward')}({given})")
                alive = [text.free("alive", "alive")] if plan.token else []
                if alive:
                    made = tuple_of(returned) if plan.runs_again else "()"
                    text.add(f"    {alive[0]} = {self.use('keep_alive')}({', '.join([made, *plan.handles])})")
                text.add("else:")
                with text.deeper():
                    recalls = plan.recalls_forward and not plan.mutated
                    if recalls:
                        self._try_remembered("forwards", self._given(), arguments, names, self._recalled())
                    with text.deeper() if recalls else text.flat():
                        text.add(f"{names} = {self._way('forward')}({given})")
                    if alive:
                        text.add(f"{alive[0]} = None")
                    if plan.runs_again:
                        text.add(f"ctx.ran = {self.use('latest_ran')}()")
                    if plan.holding:
                        text.add(f"ctx.alive = {self.use('alive')}({', '.join(plan.holding)})")
                before = []
                for slot in plan.written_back:
                    before.append(saved[slot.name])
                    saved[slot.name] = text.free(f"new_{slot.name}", "new")
                    if slot.role == "mutated":
                        text.add(f"{saved[slot.name]} = {self.use('copy_of')}({slot.name})")
                text.add(f"ctx.save_for_backward({', '.join([*saved.values(), *kept, *alive, *before])})")
                if numbers:
                    text.add(f"ctx.numbers = {tuple_of(numbers)}")
                silent = [r for s, r in zip(plan.result_slots, returned, strict=False) if not s.differentiable]
                if silent:
                    text.add(f"ctx.mark_non_differentiable({', '.join(silent)})")
                results = returned[: len(plan.results)]
                text.add(f"return {', '.join(results)}")
            text.blank()
            text.add("@staticmethod")
            cots = [
                text.free(f"grad_{s.name}", "cotangent") if s.differentiable else text.free(f"_{s.name}", "unused")
                for s in plan.result_slots
            ]
            with text.indented(f"def backward(ctx, {', '.join(cots)}):"):
                live = [c for c, s in zip(cots, plan.result_slots, strict=True) if s.differentiable]
                nones = ", ".join("None" for _ in arguments)
                if plan.gradient == "custom":
                    text.add(f"{targets([*tensors, *kept, *alive])} = ctx.saved_tensors")
                    if numbers:
                        text.add(f"{targets(numbers)} = ctx.numbers")
                    text.add(
                        f"return {self.use('custom_backward')}({tuple_of(arguments)}, {tuple_of(kept)}, "
                        f"{tuple_of(cots)}, ctx.needs_input_grad)"
                    )
                    return
                text.add(f"if {' and '.join(f'{c} is None' for c in live)}:")
                text.add(f"    return {nones}")
                if plan.gradient == "none":
                    text.add(f"{self.use('refuse_gradient')}()")
                    return
                carried = (
                    f"{self.use('forward_ad')}._current_level >= 0 and {self.use('has_tangents')}({tuple_of(cots)})"
                )
                text.add(f"if {self.use('grad_enabled')}() or ({carried}):")
                text.add(f"    return {self.use('backward_again')}(ctx, {', '.join(cots)})")
                before = [text.free(f"{slot.name}_before", "before") for slot in plan.written_back]
                text.add(f"{targets([*tensors, *kept, *alive, *before])} = ctx.saved_tensors")
                if numbers:
                    text.add(f"{targets(numbers)} = ctx.numbers")
                positions = [arguments.index(s.name) for s in plan.gradients]
                wanted = "ctx.needs_input_grad"
                if len(positions) > 1:
                    text.add(f"wanted = {wanted}")
                    wanted = "wanted"
                text.add(f"needs = [{', '.join(f'{wanted}[{p}]' for p in positions)}]")
                parts = [*arguments, *kept, *live, "needs"]
                text.add(f"if {self.use('is_compiling')}():")
                traced = self.use("traced_backward")
                if alive:
                    traced = f"{self.use('partial')}({traced}, token={alive[0]})"
                given = ", ".join(parts)
                text.add(f"    grads = {traced}({given})")
                text.add("else:")
                with text.deeper():
                    if plan.holding:
                        text.add(f"{self.use('check_alive')}(ctx.alive)")
                    if plan.recalls_backward:
                        arrays = ", ".join([*(s.name for s in plan.given_arrays), *kept, *live])
                        call = f"{text.free('memory', 'local')}.run({', '.join(parts[:-1])})"
                        self._try_remembered("backwards", arrays, parts, "grads", call)
                    with text.deeper() if plan.recalls_backward else text.flat():
                        text.add(f"grads = {self._way('backward', [*kept, *live])}({given})")
                        if plan.recalls_backward:
                            text.add(f"{self.use('backwards')}.missed({tuple_of(parts)})")
                    if plan.runs_again:
                        text.add(f"{self.use('check_ran')}(ctx.ran)")
                out = ["None"] * len(arguments)
                if len(positions) == 1:
                    out[positions[0]] = "grads[0]"
                else:
                    text.add("grads = iter(grads)")
                    for k, position in enumerate(positions):
                        out[position] = f"next(grads) if needs[{k}] else None"
                text.add(f"return {', '.join(out)}")
