"""The variable of a loop over a range: what its bounds and its step say of it."""

from __future__ import annotations

import ast

from .access import number
from .forms import (
    Affine,
    Coord,
    Form,
    Loop,
    Shape,
    literal,
)
from .record import Frame, Record
from .strides import stride as stride_of
from .values import Value


def range_arguments(record: Record, frame: Frame, node: ast.expr) -> list[Value] | None:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"):
        return None
    if "range" in frame.env or not 1 <= len(node.args) <= 3:
        return None
    return [number(record, frame, argument) for argument in node.args]


def loop_variable(loop: int, forms: list[Form | None]) -> Loop:
    """The variable of ``range(*forms)``."""
    start = forms[0] if len(forms) > 1 else Affine(None, 0)
    stop = forms[1] if len(forms) > 1 else forms[0]
    step = forms[2] if len(forms) > 2 else Affine(None, 1)
    stride = literal(step) if isinstance(step, Affine) else None
    first = literal(start) if isinstance(start, Affine) else None
    grows = isinstance(step, Affine) and isinstance(step.base, Shape) and step.offset >= 0
    if stride == 0 or (stride is None and not grows):
        return Loop(loop, stride=stride_of(start, step))
    if stride is not None and stride < 0:
        last = literal(stop) if isinstance(stop, Affine) else None
        upper = Affine(start.base, start.offset + 1) if isinstance(start, Affine) else None
        full = stride == -1 and last == -1
        return Loop(loop, upper, first, full, last is not None and last >= -1, direction=-1)
    upper = stop if isinstance(stop, Affine) else None
    nonneg = (first is not None and first >= 0) or (
        isinstance(start, Affine)
        and start.offset >= 0
        and (isinstance(start.base, (Coord, Shape)) or (isinstance(start.base, Loop) and start.base.nonneg))
    )
    on = stride_of(start, step) if stride != 1 else None
    return Loop(loop, upper, first, first == 0 and stride == 1, nonneg, direction=1, stride=on)
