"""What is written around one loop: its states kept, its turns counted, each begun with what it had.

A turn's state is what its variables held when it began. The last turns that were made again lie in a ring, in the thread's
memory; every ``stride``-th state of the loop is a mark that the walk begins again from. The stride doubles when there are
no marks left, so that the memory doesn't grow with the number of turns.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Sequence
from typing import Any

import warp as wp

from ..frozen import frozen
from ..private import warp_types
from .flow import CONTINUE, is_exit, part_for
from .model import LoopPlan
from .needs import query_of
from .source import definition, give_adjoint, indented, make_func
from .trees import Loop, assign, calling, name, parsed, place, range_of

BUDGET = 4096
"""Bytes of a thread's memory for the states of one loop."""


@frozen
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


class LoopText:
    """What is written around one loop.

    A function ``walk`` runs the loop, less what it stores, and keeps its states; ``look`` says where the state of a turn
    is, and makes it again where it isn't there.
    """

    def __init__(self, writer: Any, loop: Loop, plan: LoopPlan) -> None:
        self.writer, self.loop, self.plan = writer, loop, plan
        self.fresh = fresh = writer.names.fresh
        number, uses = writer.count, writer.uses
        queries, self.sought = query_of(uses, loop)
        self.query = bool(self.sought) or bool(isinstance(loop, ast.While) and uses.writes(loop.test))
        """The loop begins at its start, whatever turn is asked for."""
        self.keeps = plan.mode == "turns" and bool(plan.restored or self.sought)
        """States of turns are kept; without, what the loop leaves alone."""
        self.state = sorted(plan.state)
        kinds = [writer.types[n] for n in self.state]
        self.shape = shape_for(kinds, restarts=self.query) if self.keeps else LAST_ONLY
        self.memory: dict[str, str] = {}
        """The memory of each variable that is kept."""
        self.kinds: dict[str, Any] = {}
        """The type of what a memory holds."""
        self.makes: list[ast.stmt] = []
        for variable, kind in zip(self.state, kinds, strict=True):
            self.memory[variable] = self._memory(f"{variable}_of_{number}", kind)
        # Which turn each place of the ring holds.
        self.held = self._memory(f"turn_of_{number}", wp.int32) if self.keeps else ""
        # One for all times that the loop runs, but where an unrolled loop runs it several times before any is reversed.
        if not writer.unrolled:
            writer.memories += self.makes
            self.makes = []
        self.bounds: list[tuple[str, ast.expr]] = []
        given = range_of(loop) if isinstance(loop, ast.For) else []
        if plan.mode == "turns" and given:
            start, stop, step = [*([parsed("0")] if len(given) == 1 else []), *given, parsed("1")][:3]
            named = zip(("begin", "end", "step"), (start, stop, step), strict=True)
            self.bounds = [(fresh(f"{n}_{number}"), value) for n, value in named]
        rest = sorted(plan.given if not self.bounds else self._given_by_body())
        self.rest = list(dict.fromkeys([*rest, *(n for n, _ in self.bounds), *sorted(queries)]))
        self.walk, self.first, self.stop = fresh(f"walk_{number}"), fresh("first"), fresh("stop")
        self.turns, self.turn, self.at = fresh(f"turns_{number}"), fresh(f"turn_{number}"), fresh(f"at_{number}")
        self.memories = [*([self.held] if self.keeps else []), *self.memory.values()]
        made = self._func(self.walk, *self._walk_text(), dict(writer.given))
        if self.keeps:
            self.look = fresh(f"look_{number}")
            self._func(self.look, *self._look_text(), {self.walk: made})

    def _memory(self, wanted: str, warp_type: Any) -> str:
        """The name of an array of the thread's own."""
        writer, found = self.writer, str(self.fresh(wanted))
        made = parsed(f"{writer.warp}.zeros(shape=({self.shape.size},), dtype={writer.type_name(warp_type)})")
        self.makes.append(assign(found, made))
        self.kinds[found] = warp_type
        return found

    def _func(self, own: str, parameters: list[str], lines: list[str], given: dict[str, Any]) -> Any:
        """A function that the kernel calls. It returns an int, and no gradient passes through it."""
        writer = self.writer
        arrays = {memory: warp_types.array_annotation(kind, 1) for memory, kind in self.kinds.items()}
        annotations = {p: {**writer.types, **arrays}.get(p, int) for p in parameters}
        original, text = writer.plan.function, definition(own, parameters, lines)
        writer.texts.append(text)
        writer.given[own] = made = make_func(original, text, own, given, annotations)
        give_adjoint(made, int, ["pass"], original, {}, annotations)
        return made

    def _kept(self) -> list[ast.stmt]:
        """Bring the arrays that the loop stores to, keeping what it overwrites, to what they held."""
        return [kept.undoing() for kept in self.writer.kept if kept.top in self.plan.state]

    def _given_by_body(self) -> set[str]:
        """Without what only the loop's bounds are made of: those are arguments themselves."""
        uses, loop = self.writer.uses, self.loop
        body, _ = part_for(uses, loop.body, self.plan.state)
        found: set[str] = {n for s in body for n in uses.reads(s)} & (self.plan.given - uses.writes(loop))
        return found

    # --- functions ----------------------------------------------------------------------------------------------------

    def _walk_text(self) -> tuple[list[str], list[str]]:
        """The parameters and lines of ``walk``."""
        writer, loop, ring = self.writer, self.loop, self.shape.ring
        turn, stride, slot = self.fresh("turn"), self.fresh("stride"), self.fresh("place")
        lines = [*_lines(self._kept()), f"{turn} = int({self.first if self.keeps else 0})"]
        body, _ = part_for(writer.uses, copy.deepcopy(loop.body), self.plan.state | writer.uses.tested(loop))
        writer.call(body, writer.again)
        inner = [f"{turn} = {turn} + 1", *_lines(s for s in body if not is_exit(s))]
        if any(map(is_exit, loop.body)):
            inner += [f"if {writer.structure.flags[place(loop)]} > {CONTINUE}:", "    break"]
        if self.keeps:
            keeps = [f"{self.held}[{turn} % {ring}] = {turn}", *self._keep(f"{turn} % {ring}")]
            if self.query:
                lines += [f"if {self.stop} < 0:", *indented(self._keep(str(ring)))]
            else:
                lines.append(f"{stride} = int({ring})")
                keeps += [f"if {self.stop} < 0:", *indented(self._mark(turn, stride, slot))]
            inner = [*keeps, f"if {turn} == {self.stop}:", f"    return {turn}", *inner]
        lines += [self._head(turn), *indented(inner), *self._keep(str(self.shape.end)), f"return {turn}"]
        return [*self.memories, *([self.first, self.stop] if self.keeps else []), *self.state, *self.rest], lines

    def _head(self, turn: str) -> str:
        loop = self.loop
        if isinstance(loop, ast.While):
            return f"while {ast.unparse(loop.test)}:"
        target = ast.unparse(loop.target)
        if not self.bounds:
            return f"for {target} in {ast.unparse(loop.iter)}:"
        begin, end, step = (n for n, _ in self.bounds)
        return f"for {target} in range({begin} + {turn} * {step}, {end}, {step}):"

    def _keep(self, at: str) -> list[str]:
        return [f"{memory}[{at}] = {variable}" for variable, memory in self.memory.items()]

    def _mark(self, turn: str, stride: str, slot: str) -> list[str]:
        """Keep every ``stride``-th state."""
        ring, marks = self.shape.ring, self.shape.marks
        return [
            f"if {turn} == {stride} * {marks}:",
            f"    for {slot} in range({marks // 2}):",
            *(f"        {m}[{ring} + {slot}] = {m}[{ring} + 2 * {slot}]" for m in self.memory.values()),
            f"    {stride} = {stride} * 2",
            f"if {turn} % {stride} == 0:",
            *indented(self._keep(f"{ring} + {turn} // {stride}")),
        ]

    def _look_text(self) -> tuple[list[str], list[str]]:
        """The parameters and lines of ``look``."""
        ring, marks = self.shape.ring, self.shape.marks
        turn, turns = self.fresh("turn"), self.fresh("turns")
        stride, mark = self.fresh("stride"), self.fresh("mark")
        start = [f"{mark} = int(0)", f"{stride} = int(0)"]
        if not self.query:
            start = [
                f"{stride} = int({ring})",
                f"while {stride} * {marks} < {turns}:",
                f"    {stride} = {stride} * 2",
                f"{mark} = ({turn} // {ring} * {ring}) // {stride}",
            ]
        states = [f"{memory}[{ring} + {mark}]" for memory in self.memory.values()]
        again = ", ".join([*self.memories, f"{mark} * {stride}", turn, *states, *self.rest])
        lines = [
            f"if {self.held}[{turn} % {ring}] != {turn}:",
            *indented([*start, f"{self.walk}({again})"]),
            f"return {turn} % {ring}",
        ]
        return [*self.memories, turn, turns, *self.rest], lines

    # --- statements ---------------------------------------------------------------------------------------------------

    def before(self) -> list[ast.stmt]:
        """Count the turns, and keep their states and what the loop leaves."""
        turns = [ast.Constant(0), ast.Constant(-1)] if self.keeps else []
        count = calling(self.walk, *self.memories, *turns, *self.state, *self.rest)
        return [*self.makes, *(assign(n, calling("int", value)) for n, value in self.bounds), assign(self.turns, count)]

    def counted(self, body: list[ast.stmt]) -> ast.stmt:
        """The loop with its number of turns known, and each beginning with what it had."""
        first: list[ast.stmt] = []
        if self.keeps:
            first.append(assign(self.at, calling(self.look, *self.memories, self.turn, self.turns, *self.rest)))
            first += [self._point(n, name(self.at)) for n in sorted(self.plan.restored | self.sought)]
            first += self._kept()
        if self.bounds and isinstance(self.loop, ast.For):
            begin, _, step = (n for n, _ in self.bounds)
            first.append(assign(ast.unparse(self.loop.target), parsed(f"{begin} + {self.turn} * {step}")))
        target = ast.Name(self.turn, ast.Store())
        made = ast.For(target, calling("range", self.turns), [*first, *body] or [ast.Pass()], [], None)
        return ast.copy_location(made, self.loop)

    def behind(self) -> list[ast.stmt]:
        return [self._point(n, ast.Constant(self.shape.end)) for n in sorted(self.plan.after)]

    def _point(self, variable: str, at: ast.expr) -> ast.stmt:
        writer = self.writer
        made = writer.points.of(writer.types[variable])
        return assign(variable, calling(writer.named(made, made.key), variable, self.memory[variable], at))


def _lines(body: Iterable[ast.stmt]) -> list[str]:
    return [line for s in body for line in ast.unparse(ast.fix_missing_locations(s)).splitlines()]


class Points:
    """Makes the functions by which variables get what a memory holds."""

    def __init__(self, original: Any) -> None:
        self._original = original
        self._points: list[tuple[Any, Any]] = []

    def of(self, warp_type: Any) -> Any:
        """For one type, ``point(value, memory, at)``: what the memory holds, with the gradient going to ``value``."""
        for other, made in self._points:
            if other is warp_type or (not warp_types.is_struct(other) and warp_types.same_types([other], [warp_type])):
                return made
        own = f"restored_{len(self._points) + 1}"
        types = {"value": warp_type, "memory": warp_types.array_annotation(warp_type, 1), "at": int}
        made = make_func(self._original, definition(own, types, ["return memory[at]"]), own, {}, types)
        passed = [f"warp.adjoint[value]{part} += adj_result{part}" for part in _floats(warp_type)] or ["pass"]
        give_adjoint(made, warp_type, passed, self._original, {"warp": wp}, types)
        self._points.append((warp_type, made))
        return made


def _floats(warp_type: Any) -> list[str]:
    """The parts of a value that have a cotangent: itself, or fields."""
    fields = warp_types.struct_fields(warp_type)
    if fields is not None:
        return [f".{name}{part}" for name, field in fields.items() for part in _floats(field)]
    return [""] if warp_types.is_float(getattr(warp_type, "_wp_scalar_type_", warp_type)) else []
