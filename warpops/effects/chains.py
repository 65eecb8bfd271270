"""Chains of attributes and subscripts on a name."""

from __future__ import annotations

import ast


def root(node: ast.AST) -> str | None:
    """The variable that a chain of subscripts and attributes begins with."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def dotted(node: ast.AST) -> str | None:
    """``s.inner.pos`` of a chain of attributes on a name; None for anything else."""
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return None if owner is None else f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def last_name(node: ast.AST) -> str:
    """``pos`` of ``s.inner.pos``, as of whatever a field is asked of; "" for what has no name."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
