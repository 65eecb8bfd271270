"""A kernel's source with one more leading coordinate: what ``vmap`` launches once in place of a loop.

Batched arrays get a leading axis, indexed by the new first coordinate of ``wp.tid()``; everything else is the user's
text. A direct index stays one (``x[i]`` becomes ``x[batch, i]``), so that the analysis of the new kernel finds what it
found in the old one; any other use of a batched array is that of a view, ``x[batch]``.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import Any

import warp as wp

from ..effects.chains import dotted
from ..effects.names import as_abstract, is_static
from ..effects.values import Builtin
from .source import Source, definition, lines_of
from .trees import at, items_of, name


class UnbatchableError(Exception):
    """A call can't be made one launch: the loop does it. Never reaches the user."""


def batch_source(
    source: Source, batched: Collection[str], labels: Collection[str], rank: int
) -> tuple[str, str, dict[str, Any]]:
    """Rewrite a kernel's source.

    Args:
        source: the kernel's, which is changed.
        batched: the arrays that get a leading axis, by dotted name.
        labels: all the values that the kernel takes, by dotted name.
        rank: how many coordinates the kernel takes from ``wp.tid()``.

    Returns:
        The text, the name that it defines, and what its free names stand for that aren't the user's.

    Raises:
        UnbatchableError: the kernel does something that the rewriting doesn't follow.
    """
    fresh, title = source.names.fresh, source.tree.name
    own = fresh(f"{title}_vmap")
    batch, warp = fresh("batch"), source.names.give(wp, "warp")
    coordinates = [fresh(f"thread_{axis}") for axis in range(rank)]
    rewriter = _Rewriter(source, set(batched), set(labels), batch, _tid_calls(source, coordinates))
    new = [rewriter.visit(statement) for statement in source.tree.body]
    first = f"{', '.join([batch, *coordinates])} = {warp}.tid()"
    return definition(own, source.parameters, [first, *lines_of(new, title)]), own, source.names.given


def _is_tid(value: Any) -> bool:
    found = as_abstract(value) if value is not None else None
    return isinstance(found, Builtin) and found.name == "tid"


def _tid_calls(source: Source, coordinates: list[str]) -> dict[int, ast.expr]:
    """The calls of ``wp.tid()``, each with what takes its place."""
    calls = [call for call, called in source.calls() if _is_tid(called)]
    callees = {id(call.func) for call in calls}
    unpacked: dict[int, int] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Tuple, ast.List)):
            unpacked[id(node.value)] = len(node.targets[0].elts)
        elif id(node) not in callees and _is_tid(source.meaning(node)):
            raise UnbatchableError("wp.tid is used without being called")
    if any(unpacked.get(id(call), 1) != len(coordinates) for call in calls):
        raise UnbatchableError("wp.tid() is called with another number of coordinates than the launch has")
    names: list[ast.expr] = [name(n) for n in coordinates]
    return {id(call): ast.Tuple(names, ast.Load()) if id(call) in unpacked else names[0] for call in calls}


class _Rewriter(ast.NodeTransformer):
    def __init__(
        self, source: Source, batched: set[str], labels: set[str], batch: str, tids: dict[int, ast.expr]
    ) -> None:
        self.source, self.batched, self.labels, self.batch, self.tids = source, batched, labels, batch, tids
        self.structs = {label.split(".")[0] for label in batched if "." in label}

    def array(self, node: ast.AST) -> bool:
        """Whether an expression is a batched argument, or a batched field of a struct argument."""
        return dotted(node) in self.batched

    def view(self, node: ast.expr) -> ast.expr:
        return at(node, [name(self.batch)])

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if self.array(node.value):
            index = self.visit(node.slice)
            items = items_of(index)
            if any(isinstance(item, (ast.Slice, ast.Starred)) for item in items):
                return ast.Subscript(self.view(node.value), index, node.ctx)
            return at(node.value, [name(self.batch), *items], node.ctx)
        shape = node.value
        if isinstance(shape, ast.Attribute) and shape.attr == "shape" and self.array(shape.value):
            axis = node.slice
            if isinstance(axis, ast.Constant) and type(axis.value) is int:
                return ast.Subscript(shape, ast.Constant(axis.value + 1), node.ctx)
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if self.array(node):
            self.refuse_store(node)
            return self.view(node)
        if self.array(node.value):
            if node.attr == "dtype":
                return node
            if node.attr not in ("shape", "ndim", "size"):
                raise UnbatchableError(f"the attribute '{node.attr}' of a batched array")
            return ast.Attribute(self.view(node.value), node.attr, node.ctx)
        path = dotted(node)
        if path is None or path.split(".")[0] not in self.structs:
            return self.generic_visit(node)
        if path in self.labels or any(path.startswith(f"{label}.") for label in self.labels - self.batched):
            return node
        raise UnbatchableError(f"'{path}' is used as a whole, and has batched fields")

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.batched:
            self.refuse_store(node)
            return self.view(node)
        if node.id in self.structs:
            raise UnbatchableError(f"the struct '{node.id}' is used as a whole, and has batched fields")
        return node

    def refuse_store(self, node: ast.Name | ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            raise UnbatchableError(f"the argument '{dotted(node)}' is assigned to")

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if id(node) in self.tids:
            return self.tids[id(node)]
        # What is inside of wp.static is Python, evaluated before the kernel is compiled.
        return node if is_static(self.source.meaning(node.func)) else self.generic_visit(node)
