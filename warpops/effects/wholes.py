"""Variables that are changed in place: vectors and structs of which a part is stored, states of random numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from ..frozen import replace
from .forms import Earlier, Loop
from .joins import with_tokens
from .record import Frame, Record
from .values import Abstract, Component, Struct, Value, tokens_of, without_tokens


def as_whole(record: Record, frame: Frame, name: str, value: Abstract, node: ast.AST | None = None) -> Abstract:
    """The value of a variable that is bound here (None: a parameter), if it is one that is changed in place."""
    if name not in frame.code.changed or not isinstance(value, (Value, Struct)):
        return value
    token = Component(frame.id, name, getattr(node, "lineno", 0) * 1000 + getattr(node, "col_offset", 0))
    record.bound[token] = record.fresh()
    if isinstance(value, Struct):
        return replace(value, tokens=value.tokens | {token})
    return with_tokens(value, frozenset({token}))


def parameters_as_wholes(record: Record, frame: Frame, names: Iterable[str]) -> None:
    """The parameters that a function has by value are its own."""
    for name in names:
        frame.env[name] = as_whole(record, frame, name, without_tokens(frame.env[name], Component))


def note_change(record: Record, frame: Frame, value: Abstract, node: ast.AST) -> None:
    """A part of the variable that has this value is stored here."""
    found = value.tokens if isinstance(value, Struct) else tokens_of(value)
    for token in found:
        if isinstance(token, Component):
            record.changed.setdefault(token, {})[record.fresh()] = frame.code.site(node)


def overlaps(a: Any, b: Any) -> bool:
    """Whether two parts of a vector may be the same component: literal indices, a loop's variable, or a field."""
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return not any(_differs(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, str) and isinstance(b, str) and "?" not in (a, b):
        return a == b
    return True


def _differs(x: Any, y: Any) -> bool:
    if isinstance(x, int) and isinstance(y, int):
        return x != y
    loops = {type(x), type(y)}
    return loops == {Loop, Earlier} and bool(x.id == y.id)
