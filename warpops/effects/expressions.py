"""Expressions: names, subscripts and attributes, operators, conditions."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

from ..private.warp_source import meaning
from ..private.warp_types import CONDITIONAL_LOSES_LOADS
from . import conditions, numbers
from .access import as_number, chosen, number, settled
from .forms import NO_TRUTH
from .functions import call
from .joins import merge, with_tokens
from .names import as_abstract
from .places import follow, spread
from .record import BUDGET, Frame, OutOfBudgetError, Record
from .state import State
from .values import NOTHING, UNKNOWN, Abstract, Doubt, Element, Tuple, Value, variable

OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.MatMult: "mul",
    ast.BitAnd: "bit_and",
    ast.BitOr: "bit_or",
    ast.BitXor: "bit_xor",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
}
_COMPARISONS: dict[type[ast.AST], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}


def evaluate(record: Record, frame: Frame, node: ast.AST) -> Abstract:
    """The abstract value of an expression; its effects go to the record."""
    record.visited += 1
    if record.visited > BUDGET:
        raise OutOfBudgetError
    handler = _HANDLERS.get(type(node))
    return handler(record, frame, node) if handler is not None else UNKNOWN


# ---------------------------------------------------------------------------------------------------------------------
# Names and constants


def _name(record: Record, frame: Frame, node: ast.Name) -> Abstract:
    found = frame.env.get(node.id)
    if found is not None:
        return as_number(record, frame, found, node) if isinstance(found, Element) else found
    known = record.meanings.get(node)
    if known is None:
        outer = meaning(frame.code, node)
        known = record.meanings[node] = node.id, as_abstract(outer) if outer is not None else UNKNOWN
    return known[1]


def _constant(record: Record, frame: Frame, node: ast.Constant) -> Abstract:
    value: Any = node.value
    if type(value) is int or (type(value) is float and value):  # a zero has a sign
        return _literal(value)
    return as_abstract(value) if not isinstance(value, str) else Value(const=value)


_literal = functools.lru_cache(1024, typed=True)(as_abstract)


def _tuple(record: Record, frame: Frame, node: ast.Tuple | ast.List) -> Abstract:
    items: list[Abstract] = []
    for element in node.elts:
        if isinstance(element, ast.Starred):
            items.extend(spread(evaluate(record, frame, element.value)))
        else:
            items.append(evaluate(record, frame, element))
    return Tuple(tuple(items))


def _attribute(record: Record, frame: Frame, node: ast.Attribute) -> Abstract:
    """An attribute; what one of a module or type means is looked up once."""
    found = record.meanings.get(node)
    if found is not None and found[0] not in frame.env:
        return found[1]
    value = follow(record, frame, node)
    base: ast.expr = node
    while isinstance(base, ast.Attribute):
        base = base.value
    if isinstance(base, ast.Name) and base.id not in frame.env:
        record.meanings[node] = base.id, value
    return value


# ---------------------------------------------------------------------------------------------------------------------
# Operators and conditions


def _binary(record: Record, frame: Frame, node: ast.BinOp) -> Abstract:
    left = number(record, frame, node.left)
    right = number(record, frame, node.right)
    operator = OPERATORS.get(type(node.op), "pow")
    return numbers.combine(record, frame, operator, left, right, node)


def _unary(record: Record, frame: Frame, node: ast.UnaryOp) -> Abstract:
    value = number(record, frame, node.operand)
    if isinstance(node.op, ast.USub):
        return numbers.negate(value)
    if isinstance(node.op, ast.UAdd):
        return variable(value)
    if isinstance(node.op, ast.Not):
        truth = value.truth.negated()
        return Value(None, False, value.coords, value.data, value.tokens, NOTHING, truth, varies=value.varies)
    return numbers.mixed((value,), numbers.computed((value,), node), active=False)


def _compare(record: Record, frame: Frame, node: ast.Compare) -> Abstract:
    values = [number(record, frame, n) for n in (node.left, *node.comparators)]
    truth = None
    for operator, left, right in zip(node.ops, values, values[1:], strict=False):
        one = conditions.compare(_COMPARISONS.get(type(operator), "?"), left, right)
        truth = one if truth is None else conditions.both(truth, one)
    return numbers.mixed(values, None, active=False, truth=truth or NO_TRUTH)


def _boolean(record: Record, frame: Frame, node: ast.BoolOp) -> Abstract:
    """``and``, ``or``: Warp evaluates an operand only where those before it leave the matter open."""
    conjunction = isinstance(node.op, ast.And)
    result = number(record, frame, node.values[0])
    meet = conditions.both if conjunction else conditions.either
    for operand in node.values[1:]:
        other = functools.partial(number, record, frame, operand)
        where, otherwise = (other, None) if conjunction else (None, other)
        holds, fails = branch(record, frame, result, node, where, otherwise)
        right = holds if conjunction else fails
        truth = meet(result.truth, right.truth)
        result = numbers.mixed((result, right), None, active=False, truth=truth)
    return result


def _conditional(record: Record, frame: Frame, node: ast.IfExp) -> Abstract:
    test = number(record, frame, node.test)
    if isinstance(test.const, (bool, int)):
        return evaluate(record, frame, node.body if test.const else node.orelse)
    ways = [functools.partial(evaluate, record, frame, way) for way in (node.body, node.orelse)]
    results = branch(record, frame, test, node, *ways)
    for position, item in enumerate((node.body, node.orelse)):
        if CONDITIONAL_LOSES_LOADS and isinstance(item, ast.Subscript):
            message = (
                f"Warp before 1.17 loses the gradient of '{ast.unparse(item)}' in a conditional expression; write an if "
                f"statement, or load it into a variable first"
            )
            doubt = Doubt("conditional-load", frame.code.site(node), message)
            results[position] = record.doubting(results[position], [doubt])
    return variable(chosen(record, frame, test, results[0], results[1], node))


def branch(
    record: Record,
    frame: Frame,
    test: Value,
    node: ast.AST,
    body: Callable[[], Any] | None,
    orelse: Callable[[], Any] | None,
) -> list[Any]:
    """Run two branches from the same state, and meet them: state and local variables. What the two return."""
    site = frame.code.site(node)
    before, env = record.state, frame.env
    results: list[Any] = []
    ends: list[State] = []
    envs: list[dict[str, Abstract]] = []
    for run, holds in ((body, True), (orelse, False)):
        state = before.copy()
        state.conditions = (*before.conditions, conditions.condition_of(test, site, holds))
        state.facts = before.facts | ((test.truth.true if holds else test.truth.false).facts)
        record.state, frame.env = state, dict(env)
        results.append(run() if run is not None else None)
        ends.append(record.state)
        envs.append(frame.env)
    record.state = merge(before, ends)
    if ends[0].alive and ends[1].alive:
        frame.env = meet_envs(record, frame, test, (envs[0], ends[0]), (envs[1], ends[1]), node)
    else:
        frame.env = envs[0] if ends[0].alive else envs[1]
    return results


def meet_envs(
    record: Record,
    frame: Frame,
    test: Value,
    one: tuple[dict[str, Abstract], State],
    other: tuple[dict[str, Abstract], State],
    node: ast.AST,
) -> dict[str, Abstract]:
    result = {**one[0], **other[0]}
    for name, b in result.items():
        a = one[0].get(name)
        if a is None:
            result[name] = with_tokens(b, test.tokens)
        elif a is not b:
            result[name] = chosen(record, frame, test, settled(a, one[1].facts), settled(b, other[1].facts), node)
    if len(result) > len(other[0]):
        for name in one[0].keys() - other[0].keys():
            result[name] = with_tokens(one[0][name], test.tokens)
    return result


def _call(record: Record, frame: Frame, node: ast.Call) -> Abstract:
    return call(record, frame, node, used=True)


_HANDLERS: dict[type[ast.AST], Callable[[Record, Frame, Any], Abstract]] = {
    ast.Name: _name,
    ast.Constant: _constant,
    ast.Tuple: _tuple,
    ast.List: _tuple,
    ast.Subscript: follow,
    ast.Attribute: _attribute,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _boolean,
    ast.IfExp: _conditional,
    ast.Call: _call,
}
