"""Elements that a thread stores, reads and stores again: a variable has what they held, which the array hasn't any more."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Set

from .flow import assign, name, root, targets
from .source import Source


def own_elements(source: Source, arrays: Mapping[str, int]) -> frozenset[str]:
    """Those of a kernel's arrays (with their ranks) of which it touches one element alone, by one index, and stores it
    first."""
    return frozenset(array for array, rank in arrays.items() if _is_own(source, array, rank))


def _is_own(source: Source, array: str, rank: int) -> bool:
    nodes = [n for s in source.tree.body for n in ast.walk(s)]
    uses = [n for n in nodes if isinstance(n, ast.Name) and n.id == array]
    places = [
        n for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name) and n.value.id == array
    ]
    if not uses or len(uses) != len(places) or len({ast.unparse(n.slice) for n in places}) != 1:
        return False
    index = places[0].slice
    if any(
        not isinstance(n, (ast.Name, ast.Constant, ast.Tuple, ast.BinOp, ast.operator, ast.Load))
        for n in ast.walk(index)
    ):
        return False
    if (len(index.elts) if isinstance(index, ast.Tuple) else 1) != rank:
        return False
    for used in {n.id for n in ast.walk(index) if isinstance(n, ast.Name)}:
        stores = [n for n in nodes if isinstance(n, ast.Name) and n.id == used and not isinstance(n.ctx, ast.Load)]
        if len(stores) + (used in source.parameters) != 1:
            return False
    parts = [n for n in nodes if isinstance(n, (ast.Subscript, ast.Attribute)) and n.value in places]
    if any(not isinstance(n.ctx, ast.Load) for n in parts):
        return False
    first = next(s for s in source.tree.body if any(n in places for n in ast.walk(s)))
    stored = isinstance(first, ast.Assign) and first.targets[0] in places
    return stored and not any(n in places for n in ast.walk(first.value))  # type: ignore[attr-defined]


def as_variables(source: Source, arrays: Set[str]) -> dict[str, str]:
    """Let variables hold these elements, besides the arrays.

    Returns:
        The variables, by array.
    """
    variables = {array: source.names.fresh(f"{array}_own") for array in sorted(arrays)}
    source.local |= set(variables.values())
    writer = _Writer(variables)
    source.tree.body = [made for s in source.tree.body for made in writer.statement(s)]
    return variables


class _Writer(ast.NodeTransformer):
    def __init__(self, variables: dict[str, str]) -> None:
        self.variables = variables

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in self.variables and isinstance(node.ctx, ast.Load):
            return name(self.variables[node.value.id])
        return self.generic_visit(node)

    def statement(self, statement: ast.stmt) -> list[ast.stmt]:
        if isinstance(statement, (ast.If, ast.For, ast.While)):
            for part in ("test", "iter"):
                if hasattr(statement, part):
                    setattr(statement, part, self.visit(getattr(statement, part)))
            for part in ("body", "orelse"):
                setattr(statement, part, [made for s in getattr(statement, part) for made in self.statement(s)])
            return [statement]
        if isinstance(statement, (ast.Assign, ast.AugAssign)):
            target = targets(statement)[0]
            array = root(target) if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) else None
            if array in self.variables:
                variable = self.variables[array]
                value = self.visit(statement.value)
                if isinstance(statement, ast.AugAssign):
                    value = ast.BinOp(name(variable), statement.op, value)
                stored = ast.copy_location(ast.Assign([target], name(variable)), statement)
                return [assign(variable, value), stored]
        made = self.visit(statement)
        return [made] if isinstance(made, ast.stmt) else []
