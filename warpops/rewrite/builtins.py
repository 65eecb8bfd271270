"""Builtins whose adjoint Warp leaves out, written in others whose adjoint it has."""

from __future__ import annotations

import ast
from collections.abc import Container, Set
from typing import Any

import warp as wp

from ..effects.names import is_random
from ..effects.reading import setter_as_store
from ..private import warp_types
from ..private.warp_source import is_function, is_users, parameters
from ..private.warp_types import is_reference
from .flow import builtin_name
from .source import Source
from .trees import Place, calling, loaded, name, names_in, nodes_of, place


@wp.func
def fraction(x: wp.Float):  # type: ignore[no-untyped-def]
    return x - wp.trunc(x)


@wp.func
def remainder(a: wp.Float, b: wp.Float):  # type: ignore[no-untyped-def]
    return a - b * wp.trunc(a / b)


_Vector = wp.types.vector(length=Any, dtype=wp.Float)


@wp.func  # type: ignore[no-redef]
def remainder(a: _Vector, b: _Vector):  # type: ignore[no-untyped-def, valid-type]  # noqa: F811
    turns = type(a)()  # type: ignore[misc]
    for k in range(len(a)):
        turns[k] = wp.trunc(a[k] / b[k])  # type: ignore[index]
    return a - wp.cw_mul(b, turns)


WRITTEN: dict[str, Any] = {"frac": fraction, "mod": remainder}
"""By the builtin's name."""


def setters_as_stores(source: Source) -> None:
    """Write the setters of transforms in a function's tree as the stores that they are."""

    class Setters(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.AST:
            store, called = setter_as_store(node), source.called(node.value)
            return store if store is not None and is_function(called) and called.is_builtin() else node

    Setters().visit(source.tree)


def cast_unrolled(source: Source, run_time: Container[Place]) -> set[str]:
    """Cast the variables of unrolled loops by way of an int: Warp makes the constant that such a variable is a float, and
    the variable with it, wherever else it is used. Returns those: ints, though Warp had them floats in the end."""
    found = set()
    loops = [n for n in nodes_of(source.tree.body) if isinstance(n, ast.For) and place(n) not in run_time]
    variables = names_in(loop.target for loop in loops)
    for call, called in source.calls():
        given = call.args[0] if len(call.args) == 1 else None
        if warp_types.is_float(called) and isinstance(given, ast.Name) and given.id in variables:
            call.args = [calling("int", given)]
            found.add(given.id)
    return found


def states_by_value(source: Source) -> None:
    """Give functions a copy of a random state: their adjoint runs them again, and the state has gone on by then."""
    calls = list(source.calls())
    states = {ast.unparse(call.args[0]) for call, called in calls if is_random(builtin_name(called)) and call.args}

    def copied(given: ast.expr, warp_type: Any) -> ast.expr:
        if not isinstance(given, ast.Name) or given.id not in states or is_reference(warp_type):
            return given
        return ast.copy_location(calling(source.names.give(wp.uint32, "uint32"), given), given)

    for call, called in calls:
        if is_users(called):
            types = parameters(called)
            of = dict(enumerate(types.values()))
            call.args = [copied(argument, of.get(k)) for k, argument in enumerate(call.args)]
            for keyword in call.keywords:
                keyword.value = copied(keyword.value, types.get(keyword.arg or ""))


def replace_builtins(source: Source, places: Set[Place]) -> None:
    """Write the builtins at these places of a function's tree so that Warp differentiates them.

    Args:
        places: of calls, ``%`` and ``%=``.
    """
    tree = _Replacer(source, places).visit(source.tree)
    ast.fix_missing_locations(tree)


class _Replacer(ast.NodeTransformer):
    def __init__(self, source: Source, places: Set[Place]) -> None:
        self.source, self.places = source, places

    def visit_Call(self, node: ast.Call) -> ast.AST:
        at = place(node)
        self.generic_visit(node)
        if at in self.places:
            node.func = self._written(node.func)
            node.args = [self._written(argument) for argument in node.args]  # wp.tile_map(wp.frac, t)
        return node

    def _written(self, node: ast.expr) -> ast.expr:
        written = WRITTEN.get(builtin_name(self.source.meaning(node)))
        return node if written is None else name(self.source.names.give(written, written.key))

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        at = place(node)
        self.generic_visit(node)
        written = at in self.places and isinstance(node.op, ast.Mod)
        return self._remainder(node.left, node.right, node) if written else node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        at = place(node)
        self.generic_visit(node)
        if at not in self.places or not isinstance(node.op, ast.Mod):
            return node
        made = self._remainder(loaded(node.target), node.value, node)
        return ast.copy_location(ast.Assign([node.target], made), node)

    def _remainder(self, left: ast.expr, right: ast.expr, node: ast.AST) -> ast.expr:
        return ast.copy_location(calling(self.source.names.give(WRITTEN["mod"], "remainder"), left, right), node)
