"""A function as Warp's own code generation reads it: the type of each expression, and what each call resolves to.

Warp decides overloads, promotions and generic instances; asking it is the one way not to decide them otherwise.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from ..private import warp_built, warp_source, warp_types


class UntypedError(Exception):
    """Warp can't build the function, and why."""


@dataclass
class Typed:
    """One function with concrete arguments."""

    tree: ast.FunctionDef
    """As Warp has it: ``wp.static`` is replaced by its value where that is known."""
    arguments: dict[str, Any]
    types: dict[int, Any] = field(default_factory=dict)
    """The type of an expression, by the ``id`` of its node; a list for several results. Nothing for what is never run."""
    called: dict[int, Any] = field(default_factory=dict)
    """The function that a call, or an operator of the user's, resolves to."""
    locals: dict[str, Any] = field(default_factory=dict)
    """The types of locals."""
    ambiguous: set[int] = field(default_factory=set)
    """Calls in unrolled loops that resolve to another function in another turn."""

    def type_of(self, node: ast.AST) -> Any:
        """The type of an expression; None where it has none, or is never run."""
        return self.types.get(id(node))

    def array_of(self, target: ast.expr) -> ast.expr | None:
        """The array that a store goes to; None where it goes to a local, or to a part of one."""
        node = target
        while isinstance(node, (ast.Subscript, ast.Attribute)):
            node = node.value
            if warp_types.is_array(self.type_of(node)):
                return node
        return None

    def writes(self, *, own: bool = False) -> bool:
        """Whether the function itself stores to arrays (``own``: or to such as live in the thread)."""
        parts = [n for n in ast.walk(self.tree) if isinstance(n, (ast.Subscript, ast.Attribute))]
        stored = [n for n in parts if not isinstance(n.ctx, ast.Load)]
        arrays = [array for target in stored if (array := self.array_of(target)) is not None]
        return any(own or warp_types.fixed_shape(self.type_of(a)) is None for a in arrays) or any(
            function.is_builtin() and function.key.startswith(("atomic_", "tile_")) for function in self.called.values()
        )

    def record(self, node: ast.AST, found: Any) -> None:
        """Keep what an expression came to."""
        if isinstance(node, ast.expr):
            self.types[id(node)] = kind = warp_built.types_of(found)
            if isinstance(node, ast.Name):
                self.locals[node.id] = kind

    def resolved(self, node: ast.AST, function: Any) -> None:
        """Keep what a call resolved to."""
        if isinstance(node, ast.Expr):  # Warp goes straight from the statement to its call
            node = node.value
        if not isinstance(node, (ast.Call, ast.BinOp, ast.UnaryOp, ast.AugAssign)):
            return
        first = self.called.setdefault(id(node), function)
        # The variable of an unrolled loop is a float to Warp from its first cast on: the cast stays what it was.
        if first is not function and not (first.is_builtin() and first.key == function.key and "float" in first.key):
            self.ambiguous.add(id(node))
        self.called[id(node)] = function


def typed(owner: Any, options: dict[str, Any]) -> Typed:
    """Read a concrete ``wp.Kernel`` or ``wp.Function``.

    Args:
        owner: what is read; it stays as it is.
        options: the options of the kernel's module.

    Raises:
        UntypedError: Warp can't build it.
    """
    found = Typed(warp_source.tree_of(owner), dict(warp_types.argument_types(owner)))
    try:
        warp_built.watch_build(owner, options, found.record, found.resolved)
    except Exception as error:  # whatever Warp's code generation raises
        raise UntypedError(str(error)) from error
    return found
