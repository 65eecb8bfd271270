"""What the reverse pass of a loop has of its turns: functions that make states again, and keep some in the thread's memory.

A turn's state is what its variables held when it began. The last turns that were made again lie in a ring; every
``stride``-th state of the loop is a mark that the walk begins again from. The stride doubles when there are no marks left,
so that the memory doesn't grow with the number of turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import warp as wp

from ..private import warp_types
from .source import Names, make_func, make_function

BUDGET = 4096
"""Bytes of a thread's memory for the states of one loop."""


@dataclass(frozen=True)
class Shape:
    """How many states are kept of one loop."""

    ring: int
    marks: int

    @property
    def end(self) -> int:
        """Where the values after the loop are."""
        return self.ring + self.marks

    @property
    def size(self) -> int:
        return self.end + 1


LAST_ONLY = Shape(0, 0)


def shape_for(types: Sequence[Any], *, restarts: bool) -> Shape:
    """As many states as fit; one mark for a loop that can only begin again from its start."""
    each = max(sum(warp_types.size_in_bytes(t) for t in types), 4)
    count = 4
    while count < 32 and 4 * count * each <= BUDGET:
        count *= 2
    return Shape(count, 1 if restarts else count)


class Toolbox:
    """Makes the functions that rewritten kernels call, each with an adjoint of its own."""

    def __init__(self, original: Any) -> None:
        self._original = original
        self._points: list[tuple[Any, Any]] = []

    def func(self, original: Any, text: str, own: str, given: Mapping[str, Any], annotations: Mapping[str, Any]) -> Any:
        """A function of a text, in the scope of the function that its statements come from.

        It returns an int, and no gradient passes through it.
        """
        made = make_func(make_function(original, text, own, given, annotations), own)
        types = {**annotations, Names(annotations).fresh("adj_result"): int}
        quiet = f"def {own}_adjoint({', '.join(types)}):\n    pass"
        wp.func_grad(made)(make_function(original, quiet, f"{own}_adjoint", {}, types))
        return made

    def point(self, warp_type: Any) -> Any:
        """``point(value, memory, at)``: what the memory holds, with the gradient going to ``value``."""
        for other, made in self._points:
            if other is warp_type or (not warp_types.is_struct(other) and warp_types.same_types([other], [warp_type])):
                return made
        own = f"restored_{len(self._points) + 1}"
        types = {"value": warp_type, "memory": warp_types.array_annotation(warp_type, 1), "at": int}
        text = f"def {own}(value, memory, at):\n    return memory[at]"
        made = make_func(make_function(self._original, text, own, {}, types), own)
        lines = [f"    {line}" for line in _passed("value", "adj_result", warp_type)] or ["    pass"]
        text = "\n".join([f"def {own}_adjoint(value, memory, at, adj_result):", *lines])
        types = {**types, "adj_result": warp_type}
        wp.func_grad(made)(make_function(self._original, text, f"{own}_adjoint", {"warp": wp}, types))
        self._points.append((warp_type, made))
        return made


def _passed(value: str, cotangent: str, warp_type: Any) -> list[str]:
    """Statements that add a cotangent to that of a value, structs field by field."""

    def paths(inner: Any, path: str) -> list[str]:
        fields = warp_types.struct_fields(inner)
        if fields is not None:
            return [p for name, field in fields.items() for p in paths(field, f"{path}.{name}")]
        scalar = getattr(inner, "_wp_scalar_type_", inner)
        return [path] if warp_types.is_float(scalar) else []

    return [f"warp.adjoint[{value}]{path} += {cotangent}{path}" for path in paths(warp_type, "")]


@dataclass(frozen=True)
class Walk:
    """The text of a function that runs a loop, less what it stores, and keeps its states."""

    name: str
    shape: Shape
    state: Mapping[str, str]
    """The variables that are kept, each with its memory."""
    turns: str
    """The memory that says which turn each place of the ring holds; empty where nothing is kept but the end."""
    parameters: Sequence[str]
    """Besides memories, the first and the last turn: the state, and what the loop is given."""
    first: str
    """The argument that says at which turn to begin."""
    stop: str
    """The argument that says at which turn to stop; negative: at the loop's end."""
    fresh: Callable[[str], str]
    begin: Sequence[str] = ()
    """The lines before all others: arrays are brought to what they held when the first turn began."""

    def text(self, head: Callable[[str], str], body: Sequence[str], leave: str, *, query: bool) -> str:
        """
        Args:
            head: the loop's first line, beginning at the turn that the given expression says.
            body: the lines of a turn.
            leave: the condition to leave the loop at the end of a turn; empty where there is none.
            query: the loop begins at its start, whatever turn is asked for.
        """
        shape, keeps = self.shape, bool(self.turns)
        turn, stride, place = self.fresh("turn"), self.fresh("stride"), self.fresh("place")
        first, stop = (self.first, self.stop) if keeps else ("0", "")
        lines = [f"def {self.name}({', '.join(self.arguments())}):", *self.begin, f"{turn} = int({first})"]
        if keeps and shape.marks > 1:
            lines.append(f"{stride} = int({shape.ring})")
        if keeps and query:
            lines += [f"if {stop} < 0:", *self._keep(str(shape.ring), indent=1)]
        lines.append(head(turn if not query else "0"))
        inner: list[str] = []
        if keeps:
            inner += [f"{self.turns}[{turn} % {shape.ring}] = {turn}", *self._keep(f"{turn} % {shape.ring}")]
        if keeps and not query:
            inner += [f"if {stop} < 0:", *(f"    {line}" for line in self._mark(turn, stride, place))]
        if keeps:
            inner += [f"if {turn} == {stop}:", f"    return {turn}"]
        inner += [f"{turn} = {turn} + 1", *body]
        if leave:
            inner += [f"if {leave}:", "    break"]
        lines += [f"    {line}" for line in inner]
        lines += [*self._keep(str(shape.end)), f"return {turn}"]
        return "\n".join([lines[0], *(f"    {line}" for line in lines[1:])])

    def arguments(self) -> list[str]:
        memories = [*([self.turns] if self.turns else []), *self.state.values()]
        return [*memories, *([self.first, self.stop] if self.turns else []), *self.parameters]

    def _keep(self, at: str, indent: int = 0) -> list[str]:
        return [f"{'    ' * indent}{memory}[{at}] = {name}" for name, memory in self.state.items()]

    def _mark(self, turn: str, stride: str, place: str) -> list[str]:
        """Keep every ``stride``-th state."""
        ring, marks = self.shape.ring, self.shape.marks
        halve = [f"        {m}[{ring} + {place}] = {m}[{ring} + 2 * {place}]" for m in self.state.values()]
        return [
            f"if {turn} == {stride} * {marks}:",
            f"    for {place} in range({marks // 2}):",
            *halve,
            f"    {stride} = {stride} * 2",
            f"if {turn} % {stride} == 0:",
            *self._keep(f"{ring} + {turn} // {stride}", indent=1),
        ]

    def look_text(self, name: str, walk: str, rest: Sequence[str], *, query: bool) -> str:
        """A function that says where the state of a turn is, and makes it again where it isn't there."""
        ring, marks = self.shape.ring, self.shape.marks
        memories = [self.turns, *self.state.values()]
        turn, turns = self.fresh("turn"), self.fresh("turns")
        stride, mark = self.fresh("stride"), self.fresh("mark")
        start = [f"{mark} = int(0)", f"{stride} = int(0)"]
        if not query:
            start = [
                f"{stride} = int({ring})",
                f"while {stride} * {marks} < {turns}:",
                f"    {stride} = {stride} * 2",
                f"{mark} = ({turn} // {ring} * {ring}) // {stride}",
            ]
        states = [f"{memory}[{ring} + {mark}]" for memory in self.state.values()]
        again = ", ".join([*memories, f"{mark} * {stride}", turn, *states, *rest])
        lines = [
            f"def {name}({', '.join([*memories, turn, turns, *rest])}):",
            f"if {self.turns}[{turn} % {ring}] != {turn}:",
            *(f"    {line}" for line in start),
            f"    {walk}({again})",
            f"return {turn} % {ring}",
        ]
        return "\n".join([lines[0], *(f"    {line}" for line in lines[1:])])
