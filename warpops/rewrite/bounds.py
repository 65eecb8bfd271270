"""The kernel that compares its indices: what ``bounds_checked`` launches in place of the user's.

An element of an array is read and written by a function that looks first, and touches nothing once an index was wrong; an
index into what lives in the thread, or that makes a view, is kept inside. So no expression is taken apart. The thread ends
where the statement does, in functions and loops too.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import warp as wp

from ..effects.model import Site
from ..frozen import frozen
from ..private import warp_code, warp_source, warp_types
from . import bounds_functions
from .bounds_expressions import Expressions, Index, Notes
from .source import UnreadableError, definition, lines_of, make_func, make_kernel
from .tangent_scope import Scope
from .trees import calling, compound, head_of, items_of, parsed, together
from .typed import Typed, UntypedError, typed


@frozen
class BoundsKernel:
    """A kernel that takes the record of its launch as its last argument."""

    kernel: Any
    indices: tuple[Index, ...]
    """What is compared, by the number that the record has for it."""
    rank: int
    """How many coordinates the record has."""
    unchecked: tuple[str, ...]
    """What is as it was, with the reason."""
    tiles: bool
    """The threads of a block work together, so that none may end before the others."""


def make_bounds_kernel(kernel: Any, proven: Collection[tuple[str, int]], block_dim: int = 1) -> BoundsKernel | None:
    """Rewrite a concrete kernel. Builds nothing.

    Args:
        proven: the axes of arrays, by label, whose indices need no look.
        block_dim: how many threads a block has, which tiles ask for.

    Returns:
        The kernel; None where no index is left to be compared.

    Raises:
        UnreadableError: it can't be rewritten.
        UntypedError: Warp can't build it.
    """
    if not warp_code.is_rewritable(kernel):
        raise UnreadableError("it was made in a way of its own")
    maker = _Maker({"output_arch": None, **warp_code.module_options(kernel), "block_dim": block_dim})
    scope = Scope(kernel, typed(kernel, maker.options))
    types = dict(warp_types.argument_types(kernel))
    body = _Body(maker, scope, proven)
    statements = body.block(scope.typed.tree.body)
    if not maker.notes.indices and not maker.notes.unchecked:
        return None
    rank = max(1, _rank(scope.typed))
    threads = [scope.names.fresh(f"thread_{axis}") for axis in range(rank)]
    record = scope.names.fresh("record")
    thread = f"{scope.wp}.vec4i({', '.join([*threads, *['0'] * (4 - rank)])})"
    first = [
        f"{', '.join(threads)} = {scope.wp}.tid()",
        f"{body.watch} = {scope.give(bounds_functions.Watch, 'Watch')}({record}, {thread})",
    ]
    name = scope.names.fresh(f"{scope.typed.tree.name}_checked")
    annotations = {**types, record: warp_types.array_annotation(wp.int64, 1)}
    text = definition(name, annotations, [*first, *body.lines(statements)])
    made = make_kernel(kernel, text, name, scope.given, annotations, enable_backward=False)
    return BoundsKernel(made, tuple(maker.notes.indices), rank, tuple(maker.notes.unchecked), maker.notes.tiles)


def _rank(found: Typed) -> int:
    """How many coordinates the kernel takes from ``wp.tid()``."""
    tids = {node for node, function in found.called.items() if function.key == "tid"}
    assigned = [n for n in ast.walk(found.tree) if isinstance(n, ast.Assign) and id(n.value) in tids]
    return max((len(t.elts) for n in assigned for t in n.targets if isinstance(t, ast.Tuple)), default=0)


@dataclass
class _Maker:
    """Writes the functions that one kernel calls, each once."""

    options: dict[str, Any]
    notes: Notes = field(default_factory=Notes)
    _functions: dict[Any, Any] = field(default_factory=dict)

    def function(self, function: Any, site: Site) -> Any:
        """The version of a concrete overload that compares its indices; None where there is nothing to compare."""
        if function not in self._functions:
            try:
                self._functions[function] = self._make(function)
            except (UnreadableError, UntypedError) as error:
                self.notes.leave(f"the function '{function.key}': {error}", site)
                self._functions[function] = None
        return self._functions[function]

    def _make(self, function: Any) -> Any:
        why = _fixed(function)
        if why is not None and not _touches(function):
            return None
        if why is not None:
            raise UnreadableError(why)
        scope = Scope(function, typed(function, self.options))
        body = _Body(self, scope, ())
        statements = body.block(scope.typed.tree.body)
        if not body.expressions.count:
            return None
        name = scope.names.fresh(f"{scope.typed.tree.name}_checked")
        types = {body.watch: bounds_functions.Watch, **scope.typed.arguments}
        text, python = definition(name, types, body.lines(statements)), scope.code.func
        return make_func(python, text, name, scope.given, types, python.__defaults__)


def _fixed(function: Any) -> str | None:
    """Why a function stays as it is."""
    if function.native_snippet is not None:
        return "it is native code"
    if warp_source.takes_references(function):
        return "it takes a reference"
    if any(warp_types.is_function_type(t) for t in function.input_types.values()):
        return "it takes a function"
    return None


def _touches(function: Any) -> bool:
    """Whether a function gets at any array."""
    return any(
        warp_types.is_array(t) or warp_types.is_struct(t) or t is wp.uint64 for t in function.input_types.values()
    )


class _Body:
    """Writes the body of the kernel, or of one function."""

    def __init__(self, maker: _Maker, scope: Scope, proven: Collection[tuple[str, int]]) -> None:
        self.scope = scope
        self.watch = scope.names.fresh("watch")
        self.expressions = Expressions(scope, maker.notes, maker.function, self.watch, proven)

    def lines(self, statements: list[ast.stmt]) -> list[str]:
        return lines_of(statements, self.scope.typed.tree.name)

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [made for statement in body for made in self._statement(statement)]

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        before = self.expressions.count
        if isinstance(node, (ast.If, ast.For, ast.While)):
            head = self.expressions.of(head_of(node))
            leaves = self.expressions.count > before
            made = compound(node, head, self._inner(node.body, leaves), self._inner(node.orelse, leaves))
        else:
            stores = isinstance(node, (ast.Assign, ast.AugAssign))
            made = self.expressions.store(node) if stores else self.expressions.of(node)  # type: ignore[arg-type]
            leaves = self.expressions.count > before and not isinstance(node, ast.Return)
        return [ast.copy_location(made, node), *([self._leave()] if leaves else [])]

    def _inner(self, body: list[ast.stmt], leaves: bool) -> list[ast.stmt]:
        return [*([self._leave()] if leaves and body else []), *self.block(body)]

    def _leave(self) -> ast.stmt:
        """The end of a thread that had a wrong index."""
        failed = calling(self.scope.give(bounds_functions.failed, "failed"), self.watch)
        zeros = [parsed(self._zero(kind)) for kind in self._results()]
        return ast.If(failed, [ast.Return(together(zeros) if zeros else None)], [])

    def _results(self) -> list[Any]:
        """The types that the function returns."""
        found = self.scope.typed
        for node in ast.walk(found.tree):
            if isinstance(node, ast.Return) and node.value is not None:
                kinds = [found.type_of(value) for value in items_of(node.value)]
                kinds = kinds[0] if len(kinds) == 1 and isinstance(kinds[0], list) else kinds
                if None not in kinds:
                    return list(kinds)
        return []

    def _zero(self, kind: Any) -> str:
        if not warp_types.is_array(kind):
            return self.scope.blank(kind)
        for label, other in self.scope.typed.arguments.items():
            if warp_types.is_array(other) and warp_types.type_name(other) == warp_types.type_name(kind):
                return label
        raise UnreadableError("it returns an array of another type than its arguments have")
