"""What statements read and assign, loops without jumps, and the part of a loop's body that makes certain variables.

A function is brought into a form in which a loop's body always runs to its end: ``break``, ``continue`` and ``return``
set a flag, and what would follow is under a condition. A loop that is left early says so at the end of its body.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import TypeGuard

from ..effects.chains import root
from ..effects.names import advances_query, as_abstract, is_random
from ..effects.tables import row
from ..effects.values import Builtin
from ..private.warp_source import is_users, parameters
from ..private.warp_types import is_reference
from .source import Source, UnreadableError
from .trees import (
    Loop,
    Place,
    assign,
    assigned_in,
    compound,
    head_of,
    is_stored,
    items_of,
    name,
    place,
    stored,
    targets,
    together,
)

CONTINUE, BREAK, RETURN = 1, 2, 3
"""What a loop's flag says."""


# --- reading and assigning --------------------------------------------------------------------------------------------


class Uses:
    """What the statements of one function read and assign."""

    def __init__(self, source: Source, array_stores: Iterable[Place]) -> None:
        self.source = source
        self._array_stores = frozenset(array_stores) | source.stored

    def stores_to_array(self, node: ast.AST) -> bool:
        return isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and place(node) in self._array_stores

    def reads(self, node: ast.AST) -> set[str]:
        """The locals whose value a statement or expression (nested statements included) takes."""
        found: set[str] = set()
        for inner in self.source.walk([node]):
            if isinstance(inner, ast.Name) and inner.id in self.source.local and not is_stored(inner):
                found.add(inner.id)
                found |= self.held_by(inner)
            elif isinstance(inner, ast.AugAssign) and isinstance(inner.target, ast.Name):
                found.add(inner.target.id)
        return found

    def reads_first(self, statement: ast.AST) -> set[str]:
        """What a compound statement takes before its bodies; all that any other takes."""
        return self.reads(head_of(statement) or statement)

    def held_by(self, node: ast.Name) -> set[str]:
        """What the contents of an array depend on whose stores keep what they overwrite."""
        top = self.source.kept.get(node.id)
        return set() if top is None else {top}

    def writes(self, node: ast.AST) -> set[str]:
        """The locals that a statement or expression (nested statements included) assigns, or changes a part of."""
        return self.assigned(node).union(*(self.changed_by(call) for call, _ in self.source.calls([node])))

    def tested(self, loop: ast.AST) -> set[str]:
        """The locals that a loop's condition takes, anew in each turn."""
        return self.reads(loop.test) if isinstance(loop, ast.While) else set()

    def sets(self, loop: ast.AST) -> set[str]:
        """The variables of a loop, which its head gives a value in each turn."""
        return self.writes(loop.target) if isinstance(loop, ast.For) else set()

    def assigned(self, node: ast.AST) -> set[str]:
        """Those of ``writes`` that are changed by assignments, not by calls."""
        nodes = [*self.source.walk([node])]
        found = assigned_in(nodes)
        for inner in nodes:
            if isinstance(inner, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and not self.stores_to_array(inner):
                found |= {name for target in targets(inner) if (name := root(target)) is not None}
        return found

    def whole_writes(self, statement: ast.stmt) -> set[str]:
        """The locals that a simple statement gives a new value, whatever they held."""
        return assigned_in(ast.walk(statement)) if isinstance(statement, (ast.Assign, ast.AnnAssign)) else set()

    def changed_by(self, call: ast.AST) -> set[str]:
        """The locals that a call changes: random states, queries and what they find, references."""
        if not isinstance(call, ast.Call):
            return set()
        called = self.source.called(call)
        arguments: list[ast.expr] = []
        if is_users(called):
            types = list(parameters(called).values())
            arguments = [a for a, t in zip(call.args, types, strict=False) if is_reference(t)]
        else:
            name = builtin_name(called)
            if advances_query(name):
                arguments = call.args[:2]
            elif is_random(name):
                arguments = call.args[:1] or [k.value for k in call.keywords if k.arg == "state"]
            elif row(name).writes == "third":
                arguments = call.args[2:3]
        return {a.id for a in arguments if isinstance(a, ast.Name) and a.id in self.source.local}


def builtin_name(called: object) -> str:
    """The name of one of Warp's builtins; empty for anything else."""
    if called is None:
        return ""
    found = as_abstract(called)
    return found.name if isinstance(found, Builtin) else str(getattr(called, "__name__", ""))


def exposed(uses: Uses, body: Sequence[ast.stmt]) -> tuple[set[str], set[str]]:
    """The variables that statements may read before they assign them, and those that they surely assign."""
    found: set[str] = set()
    defined: set[str] = set()
    for statement in body:
        if isinstance(statement, ast.If):
            one, one_defined = exposed(uses, statement.body)
            other, other_defined = exposed(uses, statement.orelse)
            found |= (uses.reads(statement.test) | one | other) - defined
            defined |= one_defined & other_defined
        elif isinstance(statement, (ast.For, ast.While)):
            inner, _ = exposed(uses, statement.body)
            found |= (uses.reads_first(statement) | (inner - uses.sets(statement))) - defined
        else:
            found |= uses.reads(statement) - defined
            defined |= uses.whole_writes(statement)
    return found, defined


def values_taken(uses: Uses, body: Iterable[ast.AST]) -> set[str]:
    """The variables of which the adjoint of statements may need the value.

    Not that of ``s`` in ``s += e`` and ``s = s + e``, nor where it is just stored, added to an array or returned.
    """
    found: set[str] = set()
    for node in body:
        if isinstance(node, (ast.If, ast.For, ast.While)):
            found |= uses.reads_first(node) | values_taken(uses, (*node.body, *node.orelse))
        else:
            skipped = {id(name) for name in _linear(uses, node)}
            if isinstance(node, ast.AugAssign) and not isinstance(node.op, (ast.Add, ast.Sub)):
                found |= uses.writes(node)
            for n in uses.source.walk([node]):
                if isinstance(n, ast.Name) and n.id in uses.source.local and not is_stored(n) and id(n) not in skipped:
                    found |= {n.id} | uses.held_by(n)
    return found


def _linear(uses: Uses, node: ast.AST) -> Iterable[ast.AST]:
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Name):
        yield node.value
    if isinstance(node, (ast.Assign, ast.AugAssign)) and uses.stores_to_array(node):
        yield node.value
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        adds = builtin_name(uses.source.called(node.value)) in ("atomic_add", "atomic_sub")
        yield from node.value.args[-1:] if adds else ()
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        value = node.value
        while isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Sub)):
            value = value.left
        if isinstance(value, ast.Name) and value.id == node.targets[0].id and value is not node.value:
            yield value


# --- slices -----------------------------------------------------------------------------------------------------------


def part_for(uses: Uses, body: Sequence[ast.stmt], wanted: Iterable[str]) -> tuple[list[ast.stmt], set[str]]:
    """The statements of a loop's body that have a part in making ``wanted``, over any number of turns.

    Returns:
        The statements, without stores to arrays, and all variables that they need.
    """
    needed = set(wanted)
    while True:
        before = len(needed)
        kept = _kept(uses, body, needed)
        if len(needed) == before:
            return kept, needed


def _kept(uses: Uses, body: Sequence[ast.stmt], needed: set[str]) -> list[ast.stmt]:
    result: list[ast.stmt] = []
    for statement in reversed(body):
        if isinstance(statement, (ast.Return, ast.Break, ast.Continue)):
            needed |= uses.reads(statement)
            result.append(statement)
        elif is_exit(statement):
            needed |= uses.reads_first(statement)
            result.append(statement)
        elif isinstance(statement, ast.If):
            one, other = _kept(uses, statement.body, needed), _kept(uses, statement.orelse, needed)
            if one or other or uses.writes(statement.test) & needed:
                needed |= uses.reads(statement.test)
                result.append(compound(statement, statement.test, one or [ast.Pass()], other))
        elif isinstance(statement, (ast.For, ast.While)):
            inner = _kept(uses, statement.body, needed)
            makes = any(not is_exit(s) for s in inner) and bool(uses.writes(statement) & needed)
            makes = makes or any(isinstance(n, ast.Return) for s in inner for n in ast.walk(s))
            if makes or uses.writes(head_of(statement)) & needed:
                needed |= uses.reads_first(statement)
                result.append(with_body(statement, inner or [ast.Pass()]))
        elif uses.assigned(statement) & needed:
            needed |= uses.reads(statement)
            result.append(statement)
        else:
            # Warp's order: an assignment's value comes before its target's indices.
            parts = list(ast.iter_child_nodes(statement))[:: -1 if isinstance(statement, ast.Assign) else 1]
            changes = [change for node in parts for change in _changing(uses, node, needed)]
            needed |= set().union(*map(uses.reads, changes))
            result += [ast.copy_location(ast.Expr(change), statement) for change in reversed(changes)]
    result.reverse()
    return result


def _changing(uses: Uses, node: ast.AST, needed: set[str]) -> list[ast.expr]:
    """The parts of an expression that change ``needed``, such as draws: what is left of a store that isn't made."""
    if not uses.writes(node) & needed:
        return []
    if isinstance(node, ast.expr) and (uses.changed_by(node) & needed or isinstance(node, (ast.IfExp, ast.BoolOp))):
        return [node]
    return [part for child in ast.iter_child_nodes(node) for part in _changing(uses, child, needed)]


def with_body(loop: Loop, body: list[ast.stmt]) -> Loop:
    """The loop with another body."""
    made: Loop = compound(loop, head_of(loop), body or [ast.Pass()])
    return made


# --- loops without jumps ----------------------------------------------------------------------------------------------


def is_exit(statement: ast.AST) -> bool:
    """The end of the body of a loop that may be left early."""
    return bool(getattr(statement, "_leaves", False))


def _flag_is(flag: str, operator: ast.cmpop, value: int) -> ast.expr:
    return ast.Compare(name(flag), [operator], [ast.Constant(value)])


class Structure:
    """Brings a function's run-time loops into the form without jumps."""

    def __init__(self, source: Source, run_time: Iterable[Place], results: int) -> None:
        """``run_time``: where the loops are that Warp doesn't unroll. ``results``: how many values are returned."""
        self._source = source
        self._run_time = frozenset(run_time)
        self.returned = [source.variable(f"result_{k}") for k in range(results)]
        self.flags: dict[Place, str] = {}
        """The flags of the loops that have one."""
        self.returning: set[Place] = set()
        """The loops that a ``return`` may leave."""
        self.body, _ = self.block(source.tree.body)

    def is_run_time(self, node: ast.AST) -> TypeGuard[Loop]:
        return isinstance(node, (ast.For, ast.While)) and place(node) in self._run_time

    def block(self, body: Sequence[ast.stmt], flag: str | None = None) -> tuple[list[ast.stmt], bool]:
        """Statements without jumps, and whether they may set the flag of the loop that they are in."""
        result: list[ast.stmt] = []
        for index, statement in enumerate(body):
            rest = body[index + 1 :]
            if flag is not None and isinstance(statement, (ast.Break, ast.Continue, ast.Return)):
                return [*result, *self._jump(statement, flag)], True
            if isinstance(statement, ast.If):
                made, jumps = self._if(statement, rest, flag)
                result += made
                if jumps:
                    return result, True
            elif self.is_run_time(statement):
                result.append(self._loop(statement))
                own = self.flags.get(place(statement))
                if own is None or place(statement) not in self.returning:
                    continue
                leaves = _flag_is(own, ast.Eq(), RETURN)
                values = together([name(n) for n in self.returned]) if self.returned else None
                jump = ast.Return(values) if flag is None else assign(flag, ast.Constant(RETURN))
                result.append(ast.If(leaves, [jump], []))
                if flag is None:
                    continue
                remaining, _ = self.block(rest, flag)
                if remaining:
                    result.append(ast.If(_flag_is(flag, ast.Eq(), 0), remaining, []))
                return result, True
            elif isinstance(statement, (ast.For, ast.While)):
                if flag is not None and any(isinstance(n, ast.Return) for n in ast.walk(statement)):
                    raise UnreadableError("it returns from an unrolled loop inside of a run-time loop")
                result.append(with_body(statement, self.block(statement.body)[0]))
            else:
                result.append(statement)
        return result, False

    def _if(self, node: ast.If, rest: Sequence[ast.stmt], flag: str | None) -> tuple[list[ast.stmt], bool]:
        one, one_jumps = self.block(node.body, flag)
        other, other_jumps = self.block(node.orelse, flag)
        if not (one_jumps or other_jumps):
            return [compound(node, node.test, one, other)], False
        assert flag is not None
        remaining, _ = self.block(rest, flag)
        if not node.orelse and isinstance(node.body[-1], (ast.Break, ast.Continue, ast.Return)):
            return [compound(node, node.test, one, remaining)], True
        made: list[ast.stmt] = [compound(node, node.test, one or [ast.Pass()], other)]
        if remaining:
            made.append(ast.If(_flag_is(flag, ast.Eq(), 0), remaining, []))
        return made, True

    def _jump(self, node: ast.stmt, flag: str) -> list[ast.stmt]:
        kind = {ast.Continue: CONTINUE, ast.Break: BREAK}.get(type(node), RETURN)
        result: list[ast.stmt] = []
        if isinstance(node, ast.Return) and node.value is not None:
            values = items_of(node.value)
            if len(values) == len(self.returned):
                result += [assign(n, v) for n, v in zip(self.returned, values, strict=True)]
            else:
                result.append(ast.Assign([stored(self.returned)], node.value))
        return [*result, assign(flag, ast.Constant(kind))]

    def _loop(self, loop: Loop) -> Loop:
        kinds = set(self._jumps(loop.body))
        if not kinds:
            return with_body(loop, self.block(loop.body)[0])
        flag = self.flags[place(loop)] = self._source.variable(f"left_{len(self.flags) + 1}")
        if ast.Return in kinds:
            self.returning.add(place(loop))
        body, _ = self.block(loop.body, flag)
        made: list[ast.stmt] = [assign(flag, ast.Constant(0)), *body]
        if kinds != {ast.Continue}:
            leave = ast.If(_flag_is(flag, ast.Gt(), CONTINUE), [ast.Break()], [])
            leave._leaves = True  # type: ignore[attr-defined]
            made.append(leave)
        return with_body(loop, made)

    def _jumps(self, body: Iterable[ast.stmt], nested: bool = False) -> Iterable[type[ast.stmt]]:
        """The kinds of jumps that concern a loop with this body."""
        for statement in body:
            if isinstance(statement, ast.Return) or (isinstance(statement, (ast.Break, ast.Continue)) and not nested):
                yield type(statement)
            elif isinstance(statement, ast.If):
                yield from self._jumps((*statement.body, *statement.orelse), nested)
            elif isinstance(statement, (ast.For, ast.While)):
                yield from self._jumps(statement.body, True)
