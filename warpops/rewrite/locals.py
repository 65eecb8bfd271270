"""Arrays that live in a thread, as vectors and matrices: Warp's reverse pass has no earlier value of the former."""

from __future__ import annotations

import ast
import math
from typing import Any

import warp as wp

from ..effects.chains import root
from ..private import warp_types
from .flow import builtin_name
from .source import Source
from .trees import Place, calling, has_slice, is_stored, items_of, nodes_of, place, targets

LARGEST = 64
"""Elements: each store makes a new vector."""


def local_arrays(source: Source) -> tuple[dict[str, Any], set[str]]:
    """The variables that hold arrays of the thread's own.

    Returns:
        The types that can stand in for them, by name, and the names of those that have none.
    """
    found: dict[str, Any] = {}
    others: set[str] = set()
    nodes = list(nodes_of(source.tree.body))
    values = {id(t): n.value for n in nodes if isinstance(n, ast.Assign) for t in n.targets}
    named = {
        id(n.value): n.targets[0].id for n in nodes if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)
    }
    for node in nodes:
        if builtin_name(source.called(node)) == "zeros":
            made, warp_type = named.get(id(node)), _type_of(source, node)
            if made is None or warp_type is None or found.get(made, warp_type) is not warp_type:
                others.add(made or ast.unparse(node))
            else:
                found[made] = warp_type
    plain = {id(node.value) for node in nodes if isinstance(node, ast.Subscript) and not has_slice(node)}
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in found:
            known = _type_of(source, values.get(id(node))) is not None if is_stored(node) else id(node) in plain
            if not known:
                others.add(node.id)
    return {n: t for n, t in found.items() if n not in others}, others


def as_vectors(source: Source, found: dict[str, Any]) -> None:
    """Make these arrays of a function's tree vectors or matrices."""
    for node in nodes_of(source.tree.body):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in found:
            node.value = calling(source.names.give(found[node.targets[0].id], "type_of_local"))


def stores_into(source: Source, found: dict[str, Any]) -> set[Place]:
    """Where these arrays are stored into: no stores to arrays any more."""
    nodes = nodes_of(source.tree.body)
    return {place(n) for n in nodes if isinstance(n, (ast.Assign, ast.AugAssign)) and root(targets(n)[0]) in found}


_types: dict[tuple[tuple[int, ...], Any], Any] = {}


def _type_of(source: Source, node: ast.AST | None) -> Any:
    """A vector or matrix of the shape and dtype of ``wp.zeros(shape, dtype)``; None where there is none."""
    if not isinstance(node, ast.Call):
        return None
    given = {k.arg: k.value for k in node.keywords} | dict(zip(("shape", "dtype"), node.args, strict=False))
    shape, dtype = given.get("shape"), given.get("dtype")
    if shape is None or dtype is None:
        return None
    sizes: tuple[Any, ...] = tuple(
        i.value if isinstance(i, ast.Constant) else source.meaning(i) for i in items_of(shape)
    )
    scalar = source.meaning(dtype)
    if builtin_name(scalar) == "float":  # the name is a builtin's, too
        scalar = wp.float32
    if not warp_types.is_float(scalar) or len(sizes) > 2 or not all(type(n) is int and n > 0 for n in sizes):
        return None
    if math.prod(sizes) > LARGEST:
        return None
    key = (sizes, scalar)
    if key not in _types:
        _types[key] = wp.types.vector(sizes[0], scalar) if len(sizes) == 1 else wp.types.matrix(sizes, scalar)
    return _types[key]
