"""Whether each thread keeps to its own rows: what makes a launch over part of an axis the same as part of a launch.

Where the first coordinate of ``wp.tid()`` does nothing but select ``x[i]``, and certain arrays are touched through such an
``x[i]`` alone, a launch over some rows of those arrays gives just those rows of what a launch over all would have given.
The check looks at the syntax, and takes only what it knows: an array handed on whole, a coordinate in arithmetic, a
function that can't be seen, all say no.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from ..effects.chains import dotted
from ..effects.names import as_abstract, is_static, is_type
from ..effects.values import Builtin
from ..private.warp_source import declared_overloads, is_function
from ..rewrite.source import Source, as_it_is


class _StraysError(Exception):
    """The reason why a thread may do more than touch its own rows."""


def strays(kernel: Any, rows: Iterable[str], others: Iterable[str]) -> str | None:
    """Why a thread may touch more than its own row of certain arrays, or tell its row's number; None if it can't.

    Args:
        kernel: a ``wp.Kernel``.
        rows: the arrays whose axis 0 is in question, by dotted name.
        others: all other arguments, and fields of struct arguments.
    """
    try:
        _Walk(as_it_is(kernel), frozenset(rows), frozenset(others)).run()
    except _StraysError as reason:
        return str(reason)
    except RecursionError:
        return "the kernel is nested too deeply"
    return None


class _Walk:
    def __init__(self, source: Source, rows: frozenset[str], others: frozenset[str]) -> None:
        self.source, self.rows, self.others = source, rows, others
        self.coordinate = ""
        self.seen: set[int] = set()

    def run(self) -> None:
        first = next((s for s in self.source.tree.body if self._unpacks_tid(s)), None)
        target = first.targets[0] if isinstance(first, ast.Assign) else None
        names = list(target.elts) if isinstance(target, ast.Tuple) else [target]
        if not all(isinstance(name, ast.Name) for name in names):
            raise _StraysError("wp.tid() isn't assigned to names at the top of the kernel")
        self.coordinate = str(getattr(names[0], "id", ""))
        for statement in self.source.tree.body:
            if statement is not first:
                self.visit(statement)

    def _unpacks_tid(self, statement: ast.stmt) -> bool:
        value = statement.value if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        return isinstance(value, ast.Call) and _builtin_name(self.source.meaning(value.func)) == "tid"

    def fail(self, node: ast.AST, text: str) -> _StraysError:
        return _StraysError(f"{text} ({self.source.code.site(node)})")

    def label(self, node: ast.AST) -> str:
        """The dotted name of an argument, or of a field of one; empty for anything else."""
        path = dotted(node) or ""
        return "" if path.split(".")[0] in self.source.code.bound else path

    def is_own(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == self.coordinate

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            self._name(node)
            return
        if isinstance(node, ast.Subscript) and (self._is_own_row(node) or (self._counted_axis(node) or 0) >= 1):
            return
        if isinstance(node, ast.Compare) and self._is_guard(node):
            return
        if isinstance(node, (ast.If, ast.IfExp)):
            self._test(node.test)
            for child in ast.iter_child_nodes(node):
                if child is not node.test:
                    self.visit(child)
            return
        if isinstance(node, ast.Call):
            self._call(node)
            return
        if isinstance(node, ast.Attribute):
            label = self.label(node)
            if label in self.rows:
                raise self.fail(node, f"'{label}' is used other than by '{label}[{self.coordinate}]'")
            if label in self.others:
                return
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            raise self.fail(node, "a function is defined in the kernel")
        for child in ast.iter_child_nodes(node):
            self.visit(child)

    def _test(self, node: ast.expr) -> None:
        """A condition, which may ask whether an array is there: a part of it is, if it is, or has no row to be asked of."""
        if isinstance(node, ast.BoolOp):
            for part in node.values:
                self._test(part)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._test(node.operand)
        elif self.label(node) not in self.rows:
            self.visit(node)

    def _is_own_row(self, node: ast.Subscript) -> bool:
        label = self.label(node.value)
        if label not in self.rows:
            return False
        first, *more = node.slice.elts if isinstance(node.slice, ast.Tuple) and node.slice.elts else [node.slice]
        if not self.is_own(first):
            raise self.fail(node, f"'{label}' is indexed by something else than '{self.coordinate}'")
        for index in more:
            self.visit(index)
        return True

    def _counted_axis(self, node: ast.AST) -> int | None:
        """The axis of an array with rows whose length is taken, by a constant: ``x.shape[1]``."""
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Attribute):
            return None
        axis = node.slice.value if isinstance(node.slice, ast.Constant) else None
        counts = node.value.attr == "shape" and self.label(node.value.value) in self.rows
        return axis if counts and isinstance(axis, int) else None

    def _is_guard(self, node: ast.Compare) -> bool:
        """``i < x.shape[0]`` of an array with rows, as many as there are threads: true of all rows, and of any part."""
        low, high = node.left, node.comparators[0]
        if isinstance(node.ops[0], (ast.Gt, ast.LtE)):
            low, high = high, low
        elif not isinstance(node.ops[0], (ast.Lt, ast.GtE)):
            return False
        return len(node.ops) == 1 and self.is_own(low) and self._counted_axis(high) == 0

    def _name(self, node: ast.Name) -> None:
        if node.id == self.coordinate:
            raise self.fail(node, f"'{node.id}' is used as a number")
        if node.id in self.rows or any(row.startswith(f"{node.id}.") for row in self.rows):
            raise self.fail(node, f"'{node.id}' is used other than by '{node.id}[{self.coordinate}]'")
        if _builtin_name(self.source.meaning(node)) == "tid":
            raise self.fail(node, "wp.tid() is called more than once")

    def _call(self, node: ast.Call) -> None:
        called = self.source.meaning(node.func)
        if is_static(called):
            return
        self._follow(node, called)
        given = list(node.args)
        if _builtin_name(called).startswith("atomic_") and len(given) > 1 and self.label(given[0]) in self.rows:
            if not self.is_own(given[1]):
                raise self.fail(node, f"'{self.label(given[0])}' is updated at another index than '{self.coordinate}'")
            given = given[2:]
        for argument in (*given, *(keyword.value for keyword in node.keywords)):
            self.visit(argument)

    def _follow(self, node: ast.Call, called: Any) -> None:
        """A call of something that doesn't know which thread it is in: Warp has ``wp.tid()`` in kernels only."""
        if _builtin_name(called) == "tid":
            raise self.fail(node, "wp.tid() is called more than once")
        if _builtin_name(called) or is_type(called) or id(called) in self.seen:
            return
        if not is_function(called):
            raise self.fail(node, "a call can't be followed")
        self.seen.add(id(called))
        given = (called, getattr(called, "custom_grad_func", None), getattr(called, "custom_replay_func", None))
        for function in (f for one in given if one is not None for f in declared_overloads(one)):
            if getattr(function, "native_snippet", None) is not None:
                raise self.fail(node, "a native function is called")
            for _, inner in as_it_is(function).calls():
                if not is_static(inner):
                    self._follow(node, inner)


def _builtin_name(value: Any) -> str:
    """The name of one of Warp's builtins; empty for anything else."""
    found = None if value is None else as_abstract(value)
    return found.name if isinstance(found, Builtin) else ""
