"""From the plan to the Python text of an op's autograd function: a forward and a backward over the raw ops."""

from __future__ import annotations

from ..plan.model import Slot
from .text import targets, tuple_of
from .writer import OpWriter


def write_function(w: OpWriter) -> None:
    """The class of the autograd function."""
    with w.text.indented(f"class {w.classname}({w.use('AutogradFunction')}):"):
        w.text.add("@staticmethod")
        _write_forward(w)
        w.text.blank()
        w.text.add("@staticmethod")
        _write_backward(w)


def _tensors(w: OpWriter) -> list[str]:
    return [w.plan.arguments[place] for place in w.plan.tensor_places]


def _numbers(w: OpWriter) -> list[str]:
    return [w.plan.arguments[place] for place in w.plan.other_places]


def _returned(w: OpWriter) -> list[str]:
    """What the raw forward returns."""
    return [w.text.free(f"new_{s.name}", "new") if s.role == "inout" else s.name for s in w.plan.returned]


def _kept(w: OpWriter) -> list[str]:
    """What is saved of it."""
    if w.plan.gradient == "custom":
        return _returned(w)[: len(w.plan.results)]
    return [slot.name for slot in w.plan.kept]


def _alive(w: OpWriter) -> list[str]:
    """The token of what backward needs besides tensors and numbers, where there may be one."""
    return [w.text.free("alive", "alive")] if w.plan.token else []


def _memory(w: OpWriter) -> list[str]:
    """A remembered launch that was found to apply, which comes last where there may be one."""
    return [w.text.free("memory", "local")] if w.plan.recalls_forward and not w.plan.mutated else []


def _before(w: OpWriter, slot: Slot) -> str:
    """What a changed array held before the launch."""
    return w.text.free(f"{slot.name}_before", "before")


def _write_forward(w: OpWriter) -> None:
    text, plan = w.text, w.plan
    given, names = ", ".join(plan.arguments), ", ".join(_returned(w))
    memory = _memory(w)
    with text.indented(f"def forward(ctx, {', '.join([given, *(f'{name}=None' for name in memory)])}):"):
        for slot in plan.inputs:
            if slot.role == "tensor_scalar":
                text.add(f"if ctx.needs_input_grad[{plan.arguments.index(slot.name)}]:")
                text.add(f"    {w.use('refuse_number')}({slot.name!r})")
        if plan.gradient != "custom":
            text.add("ctx.set_materialize_grads(False)")
        saved = {name: name for name in _tensors(w)}
        for slot in plan.mutated if plan.results else ():
            saved[slot.name] = _before(w, slot)
            text.add(f"{saved[slot.name]} = {w.use('copy_of')}({slot.name})")
        compiling = f"{w.use('is_compiling')}()"
        launch = (
            f"{w.use('forwards')}.follow({memory[0]}, {given})" if memory else f"{w.use('launch_forward')}({given})"
        )
        text.add(f"{names} = {w.use('traced_forward')}({given}) if {compiling} else {launch}")
        for alive in _alive(w):
            made = tuple_of(_returned(w)) if plan.runs_again else "()"
            kept = f"{w.use('keep_alive')}({', '.join([made, *plan.handles])})"
            text.add(f"{alive} = {kept} if {compiling} else None")
        if plan.runs_again:
            text.add(f"ctx.ran = None if {compiling} else {w.use('latest_ran')}()")
        if plan.holding:
            text.add(f"ctx.alive = None if {compiling} else {w.use('alive')}({', '.join(plan.holding)})")
        before = []
        for slot in plan.written_back:
            before.append(saved[slot.name])
            saved[slot.name] = text.free(f"new_{slot.name}", "new")
            if slot.role == "mutated":
                text.add(f"{saved[slot.name]} = {w.use('copy_of')}({slot.name})")
        text.add(f"ctx.save_for_backward({', '.join([*saved.values(), *_kept(w), *_alive(w), *before])})")
        if numbers := _numbers(w):
            text.add(f"ctx.numbers = {tuple_of(numbers)}")
        silent = [r for s, r in zip(plan.result_slots, _returned(w), strict=False) if not s.differentiable]
        if silent:
            text.add(f"ctx.mark_non_differentiable({', '.join(silent)})")
        text.add(f"return {', '.join(_returned(w)[: len(plan.results)])}")


def _write_backward(w: OpWriter) -> None:
    text, plan, arguments = w.text, w.plan, w.plan.arguments
    cotangents = [
        text.free(f"grad_{s.name}", "cotangent") if s.differentiable else text.free(f"_{s.name}", "unused")
        for s in plan.result_slots
    ]
    live = [c for c, s in zip(cotangents, plan.result_slots, strict=True) if s.differentiable]
    with text.indented(f"def backward(ctx, {', '.join(cotangents)}):"):
        if plan.gradient == "custom":
            _unpack(w)
            given = f"{tuple_of(arguments)}, {tuple_of(_kept(w))}, {tuple_of(cotangents)}"
            text.add(_all(w, f"{w.use('custom_backward')}({given}, ctx.needs_input_grad)"))
            return
        text.add(f"if {' and '.join(f'{c} is None' for c in live)}:")
        text.add(f"    return {', '.join('None' for _ in (*arguments, *_memory(w)))}")
        if plan.gradient == "none":
            text.add(f"{w.use('refuse_gradient')}()")
            return
        carried = f"{w.use('forward_ad')}._current_level >= 0 and {w.use('has_tangents')}({tuple_of(cotangents)})"
        text.add(f"if {w.use('grad_enabled')}() or ({carried}):")
        text.add(f"    {_all(w, f'''{w.use('backward_again')}(ctx, {', '.join(cotangents)})''')}")
        _unpack(w)
        wanted = "ctx.needs_input_grad"
        if len(plan.gradients) > 1:
            text.add(f"wanted = {wanted}")
            wanted = "wanted"
        text.add(f"needs = [{', '.join(f'{wanted}[{place}]' for place in plan.gradient_places)}]")
        _launch_backward(w, live)
        grads = ["grads[0]"]
        if len(plan.gradients) > 1:
            text.add("grads = iter(grads)")
            grads = [f"next(grads) if needs[{k}] else None" for k in range(len(plan.gradients))]
        text.add(f"return {', '.join([grad or 'None' for grad in plan.spread(grads)] + ['None' for _ in _memory(w)])}")


def _all(w: OpWriter, gradients: str) -> str:
    """Return those of the schema's values, and of what is given besides."""
    return f"return (*{gradients}, None)" if _memory(w) else f"return {gradients}"


def _unpack(w: OpWriter) -> None:
    """Name what was saved."""
    before = [_before(w, slot) for slot in w.plan.written_back]
    w.text.add(f"{targets([*_tensors(w), *_kept(w), *_alive(w), *before])} = ctx.saved_tensors")
    if numbers := _numbers(w):
        w.text.add(f"{targets(numbers)} = ctx.numbers")


def _launch_backward(w: OpWriter, live: list[str]) -> None:
    text, plan = w.text, w.plan
    given = ", ".join([*plan.arguments, *_kept(w), *live, "needs"])
    compiling, traced = f"{w.use('is_compiling')}()", w.use("traced_backward")
    for alive in _alive(w):
        traced = f"{w.use('partial')}({traced}, token={alive})"
    if plan.holding:
        text.add(f"if not {compiling}:")
        text.add(f"    {w.use('check_alive')}(ctx.alive)")
    launch = f"{w.use('backwards')}.launch" if plan.recalls_backward else w.use("launch_backward")
    text.add(f"grads = {traced}({given}) if {compiling} else {launch}({given})")
    if plan.runs_again:
        text.add(f"if not {compiling}:")
        text.add(f"    {w.use('check_ran')}(ctx.ran)")
