"""What is written around one loop: its states kept, its turns counted, each begun with what it had."""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from typing import Any

import warp as wp

from ..private import warp_types
from .flow import CONTINUE, Loop, assign, is_exit, name, part_for, place
from .memory import LAST_ONLY, Walk, shape_for
from .model import LoopPlan
from .needs import found_by_query, is_range, queries


def copied(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Statements that may be changed."""
    return copy.deepcopy(list(body))


class LoopText:
    """What is written around one loop."""

    def __init__(self, writer: Any, loop: Loop, plan: LoopPlan) -> None:
        self.writer, self.loop, self.plan = writer, loop, plan
        number, fresh = writer.count, writer.names.fresh
        types = writer.types
        state = sorted(plan.state)
        self.query = not (isinstance(loop, ast.For) and is_range(loop)) and (
            bool(found_by_query(writer.uses, loop))
            or bool(isinstance(loop, ast.While) and writer.uses.writes(loop.test))
        )
        self.keeps = plan.mode == "turns" and bool(plan.restored or self._sought())
        shape = shape_for([types[n] for n in state], restarts=self.query) if self.keeps else LAST_ONLY
        self.shape = shape
        made = {n: writer.memory(f"{n}_of_{number}", types[n], shape.size) for n in state}
        memory = {n: found for n, (found, _) in made.items()}
        makes = [statement for _, statement in made.values()]
        turns = ""
        if self.keeps:
            turns, statement = writer.memory(f"turn_of_{number}", wp.int32, shape.size)
            makes.append(statement)
        # One for all times that the loop runs, but where an unrolled loop runs it several times before any is reversed.
        self.makes = makes if writer.unrolled else []
        writer.memories += [] if writer.unrolled else makes
        self.bounds: list[tuple[str, ast.expr]] = []
        if plan.mode == "turns" and isinstance(loop, ast.For) and is_range(loop):
            assert isinstance(loop.iter, ast.Call)
            a = loop.iter.args
            start, stop, step = (
                (ast.Constant(0), a[0], ast.Constant(1))
                if len(a) == 1
                else (a[0], a[1], a[2] if len(a) > 2 else ast.Constant(1))
            )
            named = zip(("begin", "end", "step"), (start, stop, step), strict=True)
            self.bounds = [(fresh(f"{n}_{number}"), value) for n, value in named]
        own = queries(writer.uses, loop)
        rest = sorted(plan.given if not self.bounds else self._given_by_body())
        rest = [*rest, *(n for n, _ in self.bounds)]
        self.rest = list(dict.fromkeys([*rest, *sorted(own)]))
        self.walk = Walk(
            name=fresh(f"walk_{number}"),
            shape=shape,
            state=memory,
            turns=turns,
            parameters=[*state, *self.rest],
            first=fresh("first"),
            stop=fresh("stop"),
            fresh=fresh,
            begin=[ast.unparse(ast.fix_missing_locations(kept.undoing())) for kept in self._kept()],
        )
        self.turns, self.turn, self.at = fresh(f"turns_{number}"), fresh(f"turn_{number}"), fresh(f"at_{number}")
        self._make()

    def _kept(self) -> list[Any]:
        """The arrays that the loop stores to, keeping what it overwrites."""
        return [kept for kept in self.writer.kept if kept.top in self.plan.state]

    def _given_by_body(self) -> set[str]:
        """Without what only the loop's bounds are made of: those are arguments themselves."""
        uses, loop = self.writer.uses, self.loop
        body, _ = part_for(uses, loop.body, self.plan.state)
        assigned = uses.writes(loop)
        given: set[str] = self.plan.given
        found: set[str] = {n for s in body for n in uses.reads(s)} & (given - assigned)
        return found

    def _make(self) -> None:
        writer, loop, walk = self.writer, self.loop, self.walk
        uses = writer.uses
        body, _ = part_for(uses, copied(loop.body), self.plan.state | self._tested())
        writer.call(body, writer.again)
        lines = [
            line for s in body if not is_exit(s) for line in ast.unparse(ast.fix_missing_locations(s)).splitlines()
        ]
        exits = [s for s in loop.body if is_exit(s)]
        leave = f"{writer.structure.flags[place(loop)]} > {CONTINUE}" if exits else ""
        text = walk.text(self._head, lines, leave, query=self.query)
        annotations = self._annotations(walk.arguments())
        writer.texts.append(text)
        function = writer.plan.function
        made = writer.tools.func(function, text, walk.name, self._scope(), annotations)
        writer.given[walk.name] = made
        if self.keeps:
            look = writer.names.fresh(f"look_{writer.count}")
            text = walk.look_text(look, walk.name, self.rest, query=self.query)
            tree = ast.parse(text).body[0]
            assert isinstance(tree, ast.FunctionDef)
            annotations = self._annotations([a.arg for a in tree.args.args])
            writer.texts.append(text)
            writer.given[look] = writer.tools.func(function, text, look, {walk.name: made}, annotations)
            self.look = look

    def _tested(self) -> set[str]:
        return self.writer.uses.reads(self.loop.test) if isinstance(self.loop, ast.While) else set()

    def _scope(self) -> dict[str, Any]:
        return dict(self.writer.given)

    def _head(self, turn: str) -> str:
        loop = self.loop
        if isinstance(loop, ast.While):
            return f"while {ast.unparse(loop.test)}:"
        target = ast.unparse(loop.target)
        if not self.bounds:
            return f"for {target} in {ast.unparse(loop.iter)}:"
        begin, end, step = (n for n, _ in self.bounds)
        return f"for {target} in range({begin} + {turn} * {step}, {end}, {step}):"

    def _annotations(self, arguments: Sequence[str]) -> dict[str, Any]:
        types, memory = self.writer.types, {m: n for n, m in self.walk.state.items()}
        found: dict[str, Any] = {}
        for argument in arguments:
            if argument in memory:
                found[argument] = warp_types.array_annotation(types[memory[argument]], 1)
            elif argument == self.walk.turns:
                found[argument] = warp_types.array_annotation(wp.int32, 1)
            else:
                found[argument] = types.get(argument, int)
        return found

    def before(self) -> list[ast.stmt]:
        """Count the turns, and keep their states and what the loop leaves."""
        result: list[ast.stmt] = list(self.makes)
        result += [assign(n, ast.Call(name("int"), [value], [])) for n, value in self.bounds]
        walk = self.walk
        memories = [*([walk.turns] if walk.turns else []), *walk.state.values()]
        arguments: list[ast.expr] = [name(m) for m in memories]
        if self.keeps:
            arguments += [ast.Constant(0), ast.Constant(-1)]
        arguments += [name(n) for n in walk.parameters]
        result.append(assign(self.turns, ast.Call(name(walk.name), arguments, [])))
        return result

    def counted(self, body: list[ast.stmt]) -> ast.stmt:
        """The loop with its number of turns known, and each beginning with what it had."""
        loop, walk = self.loop, self.walk
        first: list[ast.stmt] = []
        if self.keeps:
            memories = [walk.turns, *walk.state.values()]
            arguments = [*memories, self.turn, self.turns, *self.rest]
            first.append(assign(self.at, ast.Call(name(self.look), [name(n) for n in arguments], [])))
            first += [self._point(n, name(self.at)) for n in sorted(self.plan.restored | self._sought())]
            first += [kept.undoing() for kept in self._kept()]
        if self.bounds:
            assert isinstance(loop, ast.For)
            assert isinstance(loop.target, ast.Name)
            begin, _, step = (name(n) for n, _ in self.bounds)
            value = ast.BinOp(begin, ast.Add(), ast.BinOp(name(self.turn), ast.Mult(), step))
            first.append(assign(loop.target.id, value))
        count = ast.Call(name("range"), [name(self.turns)], [])
        target = ast.Name(self.turn, ast.Store())
        return ast.copy_location(ast.For(target, count, [*first, *body] or [ast.Pass()], [], None), loop)

    def _sought(self) -> set[str]:
        """What a query finds at each turn."""
        found = found_by_query(self.writer.uses, self.loop)
        return {found} if found is not None else set()

    def behind(self) -> list[ast.stmt]:
        return [self._point(n, ast.Constant(self.shape.end)) for n in sorted(self.plan.after)]

    def _point(self, variable: str, at: ast.expr) -> ast.stmt:
        writer = self.writer
        made = writer.tools.point(writer.types[variable])
        function = writer.named(made.key, made)
        return assign(variable, ast.Call(name(function), [name(variable), name(self.walk.state[variable]), at], []))
