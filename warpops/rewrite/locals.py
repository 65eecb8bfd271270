"""Arrays that live in a thread, as vectors and matrices: Warp's reverse pass has no earlier value of the former."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import warp as wp

from ..private import warp_types
from .flow import Place, builtin_name, name, place, root, targets
from .source import Source

LARGEST = 64
"""Elements: each store makes a new vector."""


def local_arrays(source: Source) -> tuple[dict[str, Any], set[str]]:
    """The variables that hold arrays of the thread's own.

    Returns:
        The types that can stand in for them, by name, and the names of those that have none.
    """
    found: dict[str, Any] = {}
    others: set[str] = set()
    for node in _walk(source):
        if isinstance(node, ast.Call) and builtin_name(source.meaning(node.func)) == "zeros":
            made = _assigned_to(source, node)
            warp_type = _type_of(source, node)
            if made is None or warp_type is None or found.get(made, warp_type) is not warp_type:
                others.add(made or ast.unparse(node))
            else:
                found[made] = warp_type
    plain = {id(node.value) for node in _walk(source) if isinstance(node, ast.Subscript) and not _slices(node)}
    for node in _walk(source):
        if isinstance(node, ast.Name) and node.id in found and isinstance(node.ctx, ast.Load) and id(node) not in plain:
            others.add(node.id)
        elif isinstance(node, ast.Name) and node.id in found and isinstance(node.ctx, ast.Store):
            value = next((n.value for n in _walk(source) if isinstance(n, ast.Assign) and node in n.targets), None)
            if not isinstance(value, ast.Call) or _type_of(source, value) is None:
                others.add(node.id)
    return {n: t for n, t in found.items() if n not in others}, others


def as_vectors(source: Source, found: dict[str, Any], named: Callable[[str, Any], str]) -> None:
    """Make these arrays of a function's tree vectors or matrices."""
    for node in _walk(source):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in found:
            node.value = ast.Call(name(named("type_of_local", found[node.targets[0].id])), [], [])


def stores_into(source: Source, found: dict[str, Any]) -> set[Place]:
    """Where these arrays are stored into: no stores to arrays any more."""
    return {
        place(node)
        for node in _walk(source)
        if isinstance(node, (ast.Assign, ast.AugAssign)) and root(targets(node)[0]) in found
    }


def _walk(source: Source) -> list[ast.AST]:
    return [node for statement in source.tree.body for node in ast.walk(statement)]


def _slices(node: ast.Subscript) -> bool:
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return any(isinstance(item, ast.Slice) for item in items)


def _assigned_to(source: Source, call: ast.Call) -> str | None:
    for node in _walk(source):
        if isinstance(node, ast.Assign) and node.value is call and isinstance(node.targets[0], ast.Name):
            return node.targets[0].id
    return None


_types: dict[tuple[tuple[int, ...], Any], Any] = {}


def _type_of(source: Source, call: ast.Call) -> Any:
    """A vector or matrix of the shape and dtype of ``wp.zeros(shape, dtype)``; None where there is none."""
    given = {k.arg: k.value for k in call.keywords} | dict(zip(("shape", "dtype"), call.args, strict=False))
    shape, dtype = given.get("shape"), given.get("dtype")
    if shape is None or dtype is None:
        return None
    items = shape.elts if isinstance(shape, ast.Tuple) else [shape]
    sizes: tuple[Any, ...] = tuple(i.value if isinstance(i, ast.Constant) else source.meaning(i) for i in items)
    scalar = source.meaning(dtype)
    if builtin_name(scalar) == "float":  # the name is a builtin's, too
        scalar = wp.float32
    if not warp_types.is_float(scalar) or len(sizes) > 2 or not all(type(n) is int and n > 0 for n in sizes):
        return None
    count = sizes[0] * (sizes[1] if len(sizes) > 1 else 1)
    if count > LARGEST:
        return None
    key = (sizes, scalar)
    if key not in _types:
        _types[key] = wp.types.vector(sizes[0], scalar) if len(sizes) == 1 else wp.types.matrix(sizes, scalar)
    return _types[key]
