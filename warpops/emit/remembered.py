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
