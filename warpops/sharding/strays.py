"""Whether each thread keeps to its own rows: what makes a launch over part of an axis the same as part of a launch.

Where the first coordinate of ``wp.tid()`` does nothing but select ``x[i]``, and certain arrays are touched through such an
``x[i]`` alone, a launch over some rows of those arrays gives just those rows of what a launch over all would have given.
The check looks at the syntax, and takes only what it knows: an array handed on whole, a coordinate in arithmetic, a
function that can't be seen, all say no.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from ..effects.names import Code, as_abstract, code_of, is_static, is_type
from ..effects.values import Builtin
from ..private.warp_source import declared_overloads, is_function, meaning


class _StraysError(Exception):
    """The reason why a thread may do more than touch its own rows."""


def strays(kernel: Any, rows: Iterable[str], others: Iterable[str]) -> str | None:
    """Why a thread may touch more than its own row of certain arrays, or tell its row's number; None if it can't.

    Args:
        kernel: a ``wp.Kernel``.
        rows: the arrays whose axis 0 is in question, by dotted name.
        others: all other arguments, and fields of struct arguments.
    """
    code = code_of(kernel)
    try:
        _Walk(code, frozenset(rows), frozenset(others)).run()
    except _StraysError as reason:
        return str(reason)
    except RecursionError:
        return "the kernel is nested too deeply"
    return None


def _assigned(body: Iterable[ast.stmt]) -> Iterator[str]:
    """The variables that statements bind; expressions bind none in a kernel."""
    for statement in body:
        for target in (*getattr(statement, "targets", ()), getattr(statement, "target", None)):
            if target is not None:
                yield from (
                    n.id for n in ast.walk(target) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
                )
        for item in getattr(statement, "items", ()):
            if item.optional_vars is not None:
                yield from (n.id for n in ast.walk(item.optional_vars) if isinstance(n, ast.Name))
        for inner in ("body", "orelse", "finalbody"):
            yield from _assigned(getattr(statement, inner, ()))


class _Walk:
    def __init__(self, code: Code, rows: frozenset[str], others: frozenset[str]) -> None:
        self.code, self.rows, self.others = code, rows, others
        self.coordinate = ""
        self.assigned = set(_assigned(code.body))
        self.seen: set[int] = set()

    def run(self) -> None:
        first = next((s for s in self.code.body if self._unpacks_tid(s)), None)
        if not isinstance(first, ast.Assign):
            raise _StraysError("wp.tid() isn't assigned to names at the top of the kernel")
        target = first.targets[0]
        names = list(target.elts) if isinstance(target, ast.Tuple) else [target]
        if not all(isinstance(name, ast.Name) for name in names):
            raise _StraysError("wp.tid() isn't assigned to names at the top of the kernel")
        self.coordinate = str(getattr(names[0], "id", ""))
        for statement in self.code.body:
            if statement is not first:
                self.visit(statement)

    def _unpacks_tid(self, statement: ast.stmt) -> bool:
        value = statement.value if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        return isinstance(value, ast.Call) and _means_tid(self.code, value.func)

    def fail(self, node: ast.AST, text: str) -> _StraysError:
        return _StraysError(f"{text} ({self.code.site(node)})")

    def label(self, node: ast.AST) -> str:
        """The dotted name of an argument, or of a field of one; empty for anything else."""
        if isinstance(node, ast.Name):
            return "" if node.id in self.assigned else node.id
        if isinstance(node, ast.Attribute):
            owner = self.label(node.value)
            return f"{owner}.{node.attr}" if owner else ""
        return ""

    def is_own(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == self.coordinate

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Subscript) and self._element(node):
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
        if isinstance(node, ast.Name):
            self._name(node)
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

    def _element(self, node: ast.Subscript) -> bool:
        """Whether a subscript is a thread's own row, or the length of an axis that rows don't count."""
        label = self.label(node.value)
        if label in self.rows:
            indices = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
            if not indices or not self.is_own(indices[0]):
                raise self.fail(node, f"'{label}' is indexed by something else than '{self.coordinate}'")
            for index in indices[1:]:
                self.visit(index)
            return True
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            axis = node.slice.value if isinstance(node.slice, ast.Constant) else None
            return self.label(node.value.value) in self.rows and isinstance(axis, int) and axis >= 1
        return False

    def _is_guard(self, node: ast.Compare) -> bool:
        """``i < x.shape[0]`` of an array with rows, as many as there are threads: true of all rows, and of any part."""
        if len(node.ops) != 1:
            return False
        left, right = node.left, node.comparators[0]
        if isinstance(node.ops[0], (ast.Lt, ast.GtE)):
            return self.is_own(left) and self._counts_rows(right)
        return isinstance(node.ops[0], (ast.Gt, ast.LtE)) and self._counts_rows(left) and self.is_own(right)

    def _counts_rows(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Attribute):
            return False
        axis = node.slice.value if isinstance(node.slice, ast.Constant) else None
        return node.value.attr == "shape" and axis == 0 and self.label(node.value.value) in self.rows

    def _name(self, node: ast.Name) -> None:
        if node.id == self.coordinate:
            raise self.fail(node, f"'{node.id}' is used as a number")
        if node.id in self.rows or any(row.startswith(f"{node.id}.") for row in self.rows):
            raise self.fail(node, f"'{node.id}' is used other than by '{node.id}[{self.coordinate}]'")
        if node.id not in self.assigned and _means_tid(self.code, node):
            raise self.fail(node, "wp.tid() is called more than once")

    def _call(self, node: ast.Call) -> None:
        target = meaning(self.code, node.func) if _root(node.func) not in self.assigned else None
        if is_static(target):
            return
        self._follow(node, target)
        given = list(node.args)
        name = _builtin_name(target)
        if name.startswith("atomic_") and len(given) > 1 and self.label(given[0]) in self.rows:
            if not self.is_own(given[1]):
                raise self.fail(node, f"'{self.label(given[0])}' is updated at another index than '{self.coordinate}'")
            given = given[2:]
        for argument in (*given, *(keyword.value for keyword in node.keywords)):
            self.visit(argument)

    def _follow(self, node: ast.Call, target: Any) -> None:
        """A call of something that doesn't know which thread it is in: Warp has ``wp.tid()`` in kernels only."""
        if target is None:
            raise self.fail(node, "a call can't be followed")
        if _builtin_name(target):
            if _builtin_name(target) == "tid":
                raise self.fail(node, "wp.tid() is called more than once")
            return
        if is_type(target):
            return
        if not is_function(target):
            raise self.fail(node, "a call can't be followed")
        if id(target) in self.seen:
            return
        self.seen.add(id(target))
        inner = [target, getattr(target, "custom_grad_func", None), getattr(target, "custom_replay_func", None)]
        for function in (f for one in inner if one is not None for f in declared_overloads(one)):
            if getattr(function, "native_snippet", None) is not None:
                raise self.fail(node, "a native function is called")
            self._function(code_of(function), node)

    def _function(self, code: Code, call: ast.Call) -> None:
        stored = {
            n.id for s in code.body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        for statement in code.body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Call):
                    target = meaning(code, node.func) if _root(node.func) not in stored else None
                    if not is_static(target):
                        self._follow(call, target)


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _builtin_name(value: Any) -> str:
    """The name of one of Warp's builtins; empty for anything else."""
    found = as_abstract(value) if value is not None else None
    return found.name if isinstance(found, Builtin) else ""


def _means_tid(code: Code, node: ast.AST) -> bool:
    return _builtin_name(meaning(code, node)) == "tid"
