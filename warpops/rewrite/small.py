"""Loops that Warp leaves to run time only because their bounds hold the variable of a loop that it unrolls.

``for i in range(3)`` around ``for j in range(i + 1, 3)`` is written turn by turn, ``i`` being a number in each: then Warp
unrolls the inner loop too, and there is nothing to restore.
"""

from __future__ import annotations

import ast
import copy
import operator
from collections.abc import Callable, Collection, Iterable, Mapping

from .source import Source
from .trees import Loop, Place, assigned_in, nodes_of, place, range_of

MOST = 32
"""How often the body of an inner loop may stand there."""

OPERATORS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


class _UnknownError(Exception):
    """It isn't such a loop."""


def small_loops(source: Source, run_time: Collection[Place], unroll: int) -> frozenset[Place]:
    """Such loops of a function, with the loops around them that are written turn by turn.

    Args:
        source: the function.
        run_time: where its run-time loops are.
        unroll: how many turns Warp unrolls.
    """
    found: set[Place] = set()
    for loop in _unrolled(source.tree.body, run_time):
        inside = {place(n) for n in ast.walk(loop) if isinstance(n, (ast.For, ast.While)) and place(n) in run_time}
        try:
            if inside and _copies(source, loop, {}, unroll) <= MOST:
                around = (n for n in ast.walk(loop) if isinstance(n, ast.For))
                found |= inside | {place(n) for n in around if any(place(m) in inside for m in ast.walk(n))}
        except _UnknownError:
            pass
    return frozenset(found)


def write_out(source: Source, small: Collection[Place]) -> None:
    """Write such loops: those around turn by turn, and numbers for the bounds of the innermost."""
    if small:
        _Writer(source, small, {}).visit(source.tree)
        ast.fix_missing_locations(source.tree)


def _unrolled(body: Iterable[ast.stmt], run_time: Collection[Place]) -> Iterable[ast.For]:
    """The outermost unrolled loops."""
    for loop in _nearest(body):
        if isinstance(loop, ast.For) and place(loop) not in run_time:
            yield loop
        else:
            yield from _unrolled(loop.body, run_time)


def _copies(source: Source, loop: Loop, known: Mapping[str, int], unroll: int) -> int:
    """How often the body of the innermost loops stands there."""
    values = _values(source, loop, known)
    assert isinstance(loop, ast.For)
    variable = loop.target.id  # type: ignore[attr-defined]
    inner = list(nodes_of(loop.body))
    if len(values) > unroll or any(isinstance(n, (ast.Break, ast.Continue, ast.Return)) for n in inner):
        raise _UnknownError
    if variable in assigned_in(inner) or _is_read_outside(source.tree, variable):
        raise _UnknownError
    nearest = list(_nearest(loop.body))
    return sum(max(1, sum(_copies(source, n, {**known, variable: v}, unroll) for n in nearest)) for v in values)


def _nearest(body: Iterable[ast.stmt]) -> Iterable[Loop]:
    for statement in body:
        if isinstance(statement, (ast.For, ast.While)):
            yield statement
        elif isinstance(statement, ast.If):
            yield from _nearest((*statement.body, *statement.orelse))


def _is_read_outside(node: ast.AST, variable: str) -> bool:
    """Whether a variable is read outside of the loops that set it."""
    if isinstance(node, ast.Name):
        return node.id == variable and isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and node.target.id == variable:
        return _is_read_outside(node.iter, variable)
    return any(_is_read_outside(child, variable) for child in ast.iter_child_nodes(node))


def _values(source: Source, loop: Loop, known: Mapping[str, int]) -> range:
    """What a loop's variable is in each turn."""
    bounds = range_of(loop) if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) else []
    numbers = [_number(source, argument, known) for argument in bounds]
    if not numbers or (len(numbers) == 3 and numbers[2] == 0):
        raise _UnknownError
    return range(*numbers)


def _number(source: Source, node: ast.expr, known: Mapping[str, int]) -> int:
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        one, other = (_number(source, n, known) for n in (node.left, node.right))
        return OPERATORS[type(node.op)](one, other)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(source, node.operand, known)
    if isinstance(node, ast.Name) and node.id in source.local:
        node = _assigned(source, node.id)
    value = node.value if isinstance(node, ast.Constant) else source.meaning(node)
    if type(value) is not int:
        raise _UnknownError
    return value


def _assigned(source: Source, name: str) -> ast.expr:
    """What a local is from its one assignment on, which is no branch's and no loop's."""
    arguments = [a.arg for a in source.tree.args.args]
    stores = [
        n for n in ast.walk(source.tree) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
    ]
    for statement in source.tree.body:
        if isinstance(statement, ast.Assign) and statement.targets == stores and name not in arguments:
            return statement.value
    raise _UnknownError


class _Writer(ast.NodeTransformer):
    def __init__(self, source: Source, small: Collection[Place], known: Mapping[str, int]) -> None:
        self.source, self.small, self.known = source, small, known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        known = self.known.get(node.id)
        return node if known is None else ast.copy_location(_constant(known), node)

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.stmt]:
        if place(node) not in self.small:
            return self.generic_visit(node)
        inside = any(isinstance(n, ast.For) and place(n) in self.small for s in node.body for n in ast.walk(s))
        values = _values(self.source, node, self.known)
        if not inside:  # Warp unrolls it, now that its bounds are numbers
            bounds = [_constant(n) for n in (values.start, values.stop, values.step)[: 2 + (values.step != 1)]]
            node.iter = ast.copy_location(ast.Call(ast.Name("range", ast.Load()), bounds, []), node.iter)
            node.body = [s for one in node.body for s in self._statements(one)]
            return node
        result: list[ast.stmt] = []
        for value in values:
            turn = _Writer(self.source, self.small, {**self.known, node.target.id: value})  # type: ignore[attr-defined]
            result += [s for one in node.body for s in turn._statements(copy.deepcopy(one))]
        return result or [ast.copy_location(ast.Pass(), node)]

    def _statements(self, node: ast.stmt) -> list[ast.stmt]:
        made = self.visit(node)
        return made if isinstance(made, list) else [made]


def _constant(value: int) -> ast.expr:
    return ast.Constant(value) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-value))
