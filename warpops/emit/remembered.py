"""Launches that are remembered, in the text of what is called: the condition under which one applies, and its call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .text import tuple_of
from .writer import OpWriter


def remembered(w: OpWriter, what: str, tensors: str, values: Sequence[str], more: Iterable[str] = ()) -> str:
    """The condition under which a remembered launch applies; names the memory."""
    memory, store = w.text.free("memory", "local"), w.use(what)
    w.text.add(f"{memory} = {store}.memories[0]")
    w.text.add(f"if not {memory}.check({tensors}):")
    w.text.add(f"    {memory} = {store}.find({tuple_of(values)})")
    fixed = [slot.name for slot in w.plan.sizing] + [name for name in values if name == "needs"]
    tests = [f"{memory}.run", *more]
    if fixed:
        tests.append(f"{memory}.fixed == {tuple_of(fixed)}")
    modes = " or ".join(f"{w.use(name)}()" for name in ("dispatch_modes", "function_mode", "profiling"))
    return " and ".join([*tests, f"not ({modes})"])


def recalled(w: OpWriter) -> str:
    """The call of a remembered forward: a tuple of the tensors, then the numbers."""
    numbers = [slot.name for slot in w.plan.inputs if not slot.is_array]
    return f"{w.text.free('memory', 'local')}.run({', '.join([w.text.free('given', 'local'), *numbers])})"


def name_given(w: OpWriter) -> str:
    """Name the tuple of the given tensors, which a remembered forward takes; the text of what a guard is asked."""
    given = w.text.free("given", "local")
    w.text.add(f"{given} = {tuple_of([slot.name for slot in w.plan.given_arrays])}")
    return f"*{given}"


def try_remembered(w: OpWriter, what: str, tensors: str, values: Sequence[str], names: str, call: str) -> None:
    """Recall a launch where one applies; what is written next, indented, is for where none does."""
    text, first = w.text, names.partition(",")[0]
    condition = remembered(w, what, tensors, values)
    text.add(f"{first} = None")
    text.add(f"if {condition}:")
    text.add("    try:")
    text.add(f"        {names} = {call}")
    error = text.free("error", "local")
    text.add(f"    except {w.use('NotRecalled')} as {error}:")
    text.add(f"        {w.use(what)}.gave_way({text.free('memory', 'local')}, {error})")
    text.add(f"if {first} is None:")


def way(w: OpWriter, what: str, more: Iterable[str] = ()) -> str:
    """The launch itself, or its raw op, where anything watches or changes dispatch."""
    scalars = [slot for slot in w.plan.inputs if slot.role == "tensor_scalar"]
    tensors = [*(slot.name for slot in (*w.plan.given_arrays, *scalars)), *more]
    launch, op = w.use(f"launch_{what}"), w.use(f"{what}_op")
    return f"({launch} if {w.use('direct')}({', '.join(tensors)}) else {op})"
