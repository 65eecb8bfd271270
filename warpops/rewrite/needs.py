"""What each run-time loop of one function needs to be right, decided on the function without jumps."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..effects.names import advances_query
from .builtins import setters_as_stores
from .flow import Structure, Uses, builtin_name, exposed, is_exit, part_for, values_taken
from .kept import as_kept
from .locals import local_arrays, stores_into
from .model import FunctionPlan, LoopPlan, RefusedError, listed
from .own import as_variables
from .small import write_out
from .source import Source, definitions, read, results_of
from .trees import Loop, head_of, names_in, place, range_of


@dataclass
class _Node:
    """A run-time loop in the form without jumps, with the loops around it."""

    loop: Loop
    plan: LoopPlan
    around: tuple[_Node, ...]
    assigned: set[str]
    first: int
    last: int
    """Where it is among all statements of the function, in order."""
    again: int
    """Where the outermost unrolled loop begins that makes it run several times in a row; its own ``first`` without one."""
    active: bool
    """Its adjoint does something: gradients flow through it, or it ends those of what it stores over."""
    carried: set[str]
    """What a turn has from the one before."""
    taken: set[str]
    """Variables whose value the adjoint of a turn may need, but for what loops in it are made again from."""


class LoopPlanner:
    """Decides about the loops of one function."""

    def __init__(
        self,
        plan: FunctionPlan,
        rewritten: dict[Any, FunctionPlan],
        writers: set[Any],
        *,
        tiled: bool,
    ) -> None:
        self.plan, self.rewritten, self.writers, self.tiled = plan, rewritten, writers, tiled
        self.source: Source = read(plan.owner)
        write_out(self.source, plan.small)
        as_variables(self.source, plan.own)
        as_kept(self.source, plan.kept, plan.threads)
        setters_as_stores(self.source)
        self.vectors, _ = local_arrays(self.source)
        self.structure = Structure(self.source, plan.loops, results_of(self.source))
        self.uses = Uses(self.source, plan.stores - stores_into(self.source, self.vectors))
        self.nodes: list[_Node] = []
        self.statements: list[tuple[int, ast.stmt]] = []
        self.count = 0
        self._collect(self.structure.body, ())

    def _collect(self, body: list[ast.stmt], around: tuple[_Node, ...], again: int = 0) -> None:
        for statement in body:
            self.count += 1
            self.statements.append((self.count, statement))
            if isinstance(statement, ast.If):
                self._collect(statement.body, around, again)
                self._collect(statement.orelse, around, again)
            elif self.structure.is_run_time(statement):
                plan, first = self.plan.loops[place(statement)], self.count
                assigned, active = self.uses.writes(statement), plan.needs.active or self._stores(statement)
                taken = values_taken(self.uses, [s for s in statement.body if not is_exit(s)]) | self._arguments(
                    statement
                )
                carried = self._carried(statement) & assigned
                node = _Node(statement, plan, around, assigned, first, first, again or first, active, carried, taken)
                self.nodes.append(node)
                self._collect(statement.body, (*around, node))
                node.last = self.count
            elif isinstance(statement, (ast.For, ast.While)):
                self._collect(statement.body, around, again or self.count)

    def run(self) -> None:
        for node in self.nodes:
            self._start(node)
        while True:
            before = self._size()
            for node in reversed(self.nodes):
                self._grow(node)
            if self._size() == before:
                break
        for node in self.nodes:
            if node.plan.mode != "as it is":
                self._check(node)

    def _size(self) -> int:
        parts = (p for n in self.nodes for p in (n.plan.restored, n.plan.after, n.plan.state, n.plan.given))
        return sum(map(len, parts)) + sum(n.plan.mode != "as it is" for n in self.nodes) * 1000

    def _start(self, node: _Node) -> None:
        """What the analysis asks for."""
        plan, needs = node.plan, node.plan.needs
        if node.active and (needs.inside or needs.left or node.assigned & self.vectors.keys()):
            plan.mode = "turns"
        plan.after |= needs.after & node.assigned
        if place(node.loop) in self.structure.returning:
            plan.after |= {self.structure.flags[place(node.loop)], *(node.assigned & set(self.structure.returned))}

    def _stores(self, loop: Loop) -> bool:
        """Whether a loop writes to arrays."""
        return any(
            self.uses.stores_to_array(n) or (isinstance(n, ast.Call) and self._writes(n)) for n in ast.walk(loop)
        )

    def _writes(self, call: ast.Call) -> bool:
        called = self.source.called(call)
        return "atomic_" in builtin_name(called) or bool(definitions(called).keys() & self.writers)

    def _carried(self, loop: Loop) -> set[str]:
        """What a turn may have from the one before."""
        found, _ = exposed(self.uses, loop.body)
        return (found | self.uses.tested(loop)) - self.uses.sets(loop)

    def _taken_in(self, node: _Node) -> set[str]:
        """Variables whose value the adjoint of a turn may need."""
        found = set(node.taken)
        for other in self.nodes:
            if node in other.around and other.plan.mode != "as it is":
                found |= other.plan.given | other.plan.state
        return found

    def _arguments(self, node: ast.AST) -> set[str]:
        """What functions that are rewritten are given: they may make it again from that."""
        found: set[str] = set()
        for call, called in self.source.calls([node]):
            if definitions(called).keys() & self.rewritten.keys():
                found |= self.uses.reads(call)
        return found

    def _grow(self, node: _Node) -> None:
        plan = node.plan
        if node.active and node.carried & self._taken_in(node):
            plan.mode = "turns"
        # A view made in a turn is made again with the turn; it can't be kept for what is behind the loop.
        plan.after |= (node.carried - plan.needs.fixed) & self._taken_behind(node, inside=True)
        plan.after |= node.assigned & self._taken_behind(node, inside=node.again < node.first)
        if plan.mode == "as it is" and plan.after:
            plan.mode = "after" if node.active else "gone"
        if plan.mode == "as it is":
            return
        if plan.mode == "turns":
            plan.restored |= node.carried & self._taken_in(node)
        self._keep(node)

    @cached_property
    def taken(self) -> list[tuple[int, set[str]]]:
        """What the adjoint of each statement may need, without that of what is in it, by its place."""
        return [
            (
                number,
                values_taken(self.uses, [s]) | self._arguments(s) if head_of(s) is None else self.uses.reads_first(s),
            )
            for number, s in self.statements
        ]

    def _taken_behind(self, node: _Node, *, inside: bool) -> set[str]:
        """Variables whose value is needed behind a loop: in the text, and in the next turn of an unrolled loop around it
        (``inside``: in the loop itself too)."""

        def behind(number: int) -> bool:
            return number > node.last or (inside and node.again <= number != node.first)

        found: set[str] = set()
        for number, taken in self.taken:
            if behind(number):
                found |= taken
        for other in self.nodes:
            if other.plan.mode != "as it is" and (behind(other.first) or (other is node and node.again < node.first)):
                found |= other.plan.given | other.plan.state
        return found

    def _keep(self, node: _Node) -> None:
        """What is kept of each turn, and what the loop is made again from."""
        plan, loop = node.plan, node.loop
        wanted = plan.restored | plan.after
        head, tested = self.uses.reads_first(loop), self.uses.tested(loop)
        body, _ = part_for(self.uses, loop.body, wanted | tested)
        first, _ = exposed(self.uses, body)
        queries, sought = query_of(self.uses, loop)
        plan.state |= (((first | tested) & node.assigned) | wanted) - queries | sought
        plan.given |= (first | head | queries) - plan.state - self.uses.sets(loop)

    def _check(self, node: _Node) -> None:
        plan, loop = node.plan, node.loop
        site = plan.needs.site
        queries, _ = query_of(self.uses, loop)
        fixed = (plan.needs.fixed & (plan.state | (plan.given & node.assigned))) - queries
        if fixed:
            raise RefusedError(f"{listed(fixed)}, which the loop assigns, can't be kept", site)
        for found in ast.walk(loop):
            if isinstance(found, ast.Assign) and self.uses.writes(found) & plan.state and self._is_query(found.value):
                text = (
                    f"`{ast.unparse(found)}` can't be kept; take numbers out of it in the loop, and use those behind it"
                )
                raise RefusedError(text, site)
        if self.tiled and any(builtin_name(called).startswith("tile") for _, called in self.source.calls(loop.body)):
            raise RefusedError("it works on tiles", site)
        body, _ = part_for(self.uses, loop.body, plan.state)
        for call, called in self.source.calls(body):
            if builtin_name(called) == "tid":
                raise RefusedError("it calls wp.tid()", site)
            if builtin_name(called).startswith("atomic_"):
                raise RefusedError(f"what the loop keeps depends on `{ast.unparse(call)}`", site)
        for call, called in self.source.calls([head_of(loop)]):
            if definitions(called).keys() & self.writers:
                raise RefusedError(f"`{ast.unparse(call)}` writes to arrays", site)
        if any(self.uses.reads(statement) & queries for statement in loop.body):
            raise RefusedError("the query is used in its loop", site)

    def _is_query(self, value: ast.expr) -> bool:
        """What a mesh's query found: Warp has no arrays of it."""
        return "_query_" in builtin_name(self.source.called(value))


def query_of(uses: Uses, loop: Loop) -> tuple[set[str], set[str]]:
    """The query that a loop runs through, which begins again and isn't kept; and the variable that it sets at each turn."""
    if isinstance(loop, ast.For):
        return (set(), set()) if range_of(loop) else (names_in([loop.iter]), names_in([loop.target]))
    advances = isinstance(loop.test, ast.Call) and advances_query(builtin_name(uses.source.called(loop.test)))
    given = loop.test.args if advances else []  # type: ignore[attr-defined]  # wp.bvh_query_next(query, index)
    return names_in(given[:1]), names_in(given[1:2])
