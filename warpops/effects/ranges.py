"""What the turns of a loop make of its variable, and of those that each turn steps once."""

from __future__ import annotations

import ast

from .access import number
from .facts import nonnegative
from .forms import Affine, Arg, Coord, Form, Loop, Shape, Stride, literal
from .reading import Reader
from .record import Frame, Record
from .values import Value


def range_arguments(record: Record, frame: Frame, node: ast.expr) -> list[Value] | None:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"):
        return None
    if "range" in frame.env or not 1 <= len(node.args) <= 3:
        return None
    return [number(record, frame, argument) for argument in node.args]


def loop_variable(loop: int, forms: list[Form | None]) -> Loop:
    """The variable of ``range(*forms)``."""
    start, stop = forms[:2] if len(forms) > 1 else (Affine(None, 0), forms[0])
    step = forms[2] if len(forms) > 2 else Affine(None, 1)
    by, first, last = literal(step), literal(start), literal(stop)
    grows = isinstance(step, Affine) and isinstance(step.base, Shape) and step.offset >= 0
    if by == 0 or (by is None and not grows):
        return Loop(loop, stride=stride(start, step))
    if by is not None and by < 0:
        upper = Affine(start.base, start.offset + 1) if isinstance(start, Affine) else None
        full = by == -1 and last == -1
        return Loop(loop, upper, first, full, last is not None and last >= -1, direction=-1)
    upper = stop if isinstance(stop, Affine) else None
    on = stride(start, step) if by != 1 else None
    return Loop(loop, upper, first, first == 0 and by == 1, nonnegative(start), direction=1, stride=on)


def stride(start: Form | None, step: Form | None) -> Stride | None:
    """How an index goes on that begins at ``start``; None where that is no coordinate, or the step isn't known."""
    if not isinstance(start, Affine) or not isinstance(start.base, Coord) or not isinstance(step, Affine):
        return None
    if isinstance(step.base, (Arg, Shape)) and step.offset == 0:
        return Stride(start.base.axis, step.base)
    return Stride(start.base.axis, step.offset) if step.base is None else None


def strides(record: Record, frame: Frame, node: ast.For | ast.While, names: set[str]) -> dict[str, Stride]:
    """The variables that each turn of a loop steps once: ``k += n``. Not where one turn is all: ``while k < n``."""
    found: dict[str, Stride] = {}
    for statement in node.body:
        name, step = _stepped(statement)
        start = frame.env.get(name)
        if step is None or name not in names or not isinstance(start, Value) or not _is_coordinate(start.form):
            continue
        if any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(step)):
            continue
        if statement is node.body[-1] and _is_below(node, name, step):
            continue
        if name in Reader(s for s in node.body if s is not statement).here.assigned:
            continue
        record.silent += 1
        on = stride(start.form, number(record, frame, step).form)
        record.silent -= 1
        if on is not None:
            found[name] = on
    return found


def _is_coordinate(form: Form | None) -> bool:
    return isinstance(form, Affine) and isinstance(form.base, Coord)


def _is_below(loop: ast.For | ast.While, name: str, limit: ast.expr) -> bool:
    """Whether a loop goes on while a variable is below a limit."""
    return isinstance(loop, ast.While) and ast.unparse(loop.test) == f"{name} < {ast.unparse(limit)}"


def _stepped(statement: ast.stmt) -> tuple[str, ast.expr | None]:
    """The variable that ``k += step`` or ``k = k + step`` steps, and the step."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id, statement.value if isinstance(statement.op, ast.Add) else None
    value = statement.value if isinstance(statement, ast.Assign) else None
    left = value.left if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) else None
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if isinstance(left, ast.Name) and isinstance(target, ast.Name) and left.id == target.id:
        assert isinstance(value, ast.BinOp)
        return target.id, value.right
    return "", None
