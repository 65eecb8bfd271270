"""A kernel's source with one more leading coordinate: what ``vmap`` launches once in place of a loop.

Batched arrays get a leading axis, indexed by the new first coordinate of ``wp.tid()``; everything else is the user's
text. A direct index stays one (``x[i]`` becomes ``x[batch, i]``), so that the analysis of the new kernel finds what it
found in the old one; any other use of a batched array is that of a view, ``x[batch]``.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ..effects.names import as_abstract, is_static
from ..effects.values import Builtin
from .source import Source, definition, lines_of
from .trees import dotted, items_of, parsed, stored


class UnbatchableError(Exception):
    """A call can't be made one launch: the loop does it. Never reaches the user."""


@dataclass(frozen=True)
class Rewritten:
    """The text of one function, and the free names that it was given besides the user's own."""

    text: str
    name: str
    warp: str
    """The name that stands for the ``warp`` module."""


def batch_source(source: Source, batched: Collection[str], labels: Collection[str], rank: int) -> Rewritten:
    """Rewrite a kernel's source.

    Args:
        source: the kernel's, which is changed.
        batched: the arrays that get a leading axis, by dotted name.
        labels: all the values that the kernel takes, by dotted name.
        rank: how many coordinates the kernel takes from ``wp.tid()``.

    Raises:
        UnbatchableError: the kernel does something that the rewriting doesn't follow.
    """
    fresh, body, title = source.names.fresh, source.tree.body, source.tree.name
    name = fresh(f"{title}_vmap")
    batch, warp = fresh("batch"), fresh("warp")
    tids = _tid_calls(source)
    if any(arity != rank for _, arity in tids):
        raise UnbatchableError("wp.tid() is called with another number of coordinates than the launch has")
    rewriter = _Rewriter(source, set(batched), set(labels), batch)
    first: list[ast.stmt] = []
    if not _extend_first(body, tids, batch):
        coordinates = [fresh(f"thread_{axis}") for axis in range(rank)]
        rewriter.coordinates = {id(call): coordinates for call, _ in tids}
        first = [ast.Assign([stored([batch, *coordinates])], parsed(f"{warp}.tid()"))]
    new = [*first, *(rewriter.visit(statement) for statement in body)]
    return Rewritten(definition(name, source.parameters, lines_of(new, title)), name, warp)


def _is_tid(value: Any) -> bool:
    found = as_abstract(value) if value is not None else None
    return isinstance(found, Builtin) and found.name == "tid"


def _tid_calls(source: Source) -> list[tuple[ast.Call, int]]:
    """The calls of ``wp.tid()``, each with the number of coordinates that it is unpacked into."""
    calls = [call for call, called in source.calls() if _is_tid(called)]
    callees = {id(call.func) for call in calls}
    arities: dict[int, int] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Tuple, ast.List)):
            arities[id(node.value)] = len(node.targets[0].elts)
        elif id(node) not in callees and _is_tid(source.meaning(node)):
            raise UnbatchableError("wp.tid is used without being called")
    return [(call, arities.get(id(call), 1)) for call in calls]


def _extend_first(body: list[ast.stmt], tids: list[tuple[ast.Call, int]], batch: str) -> bool:
    """Add the coordinate in place where the kernel begins with its one ``i, j = wp.tid()``, as nearly all do."""
    first = body[0]
    if len(tids) != 1 or not isinstance(first, ast.Assign) or first.value is not tids[0][0]:
        return False
    target = first.targets[0]
    own = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    if not all(isinstance(item, ast.Name) for item in own):
        return False
    first.targets = [ast.Tuple([ast.Name(batch, ast.Store()), *own], ast.Store())]
    return True


class _Rewriter(ast.NodeTransformer):
    def __init__(self, source: Source, batched: set[str], labels: set[str], batch: str) -> None:
        self.source, self.batched, self.labels, self.batch = source, batched, labels, batch
        self.coordinates: dict[int, list[str]] = {}
        self.structs = {label.split(".")[0] for label in batched if "." in label}

    def array(self, node: ast.AST) -> bool:
        """Whether an expression is a batched argument, or a batched field of a struct argument."""
        return dotted(node) in self.batched

    def view(self, node: ast.expr) -> ast.expr:
        return ast.Subscript(node, ast.Name(self.batch, ast.Load()), ast.Load())

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if self.array(node.value):
            index = self.visit(node.slice)
            items = items_of(index)
            if any(isinstance(item, (ast.Slice, ast.Starred)) for item in items):
                return ast.Subscript(self.view(node.value), index, node.ctx)
            return ast.Subscript(
                node.value, ast.Tuple([ast.Name(self.batch, ast.Load()), *items], ast.Load()), node.ctx
            )
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

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        names = self.coordinates.get(id(node.value))
        target = node.targets[0]
        if names is not None and isinstance(target, (ast.Tuple, ast.List)):
            node.value = ast.Tuple([ast.Name(n, ast.Load()) for n in names], ast.Load())
            node.targets = [self.visit(target)]
            return node
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.target = self.visit(node.target)
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        names = self.coordinates.get(id(node))
        if names is not None:
            return ast.Name(names[0], ast.Load())
        # What is inside of wp.static is Python, evaluated before the kernel is compiled.
        return node if is_static(self.source.meaning(node.func)) else self.generic_visit(node)
