"""Variables that are changed in place: vectors and structs of which a part is stored, states of random numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ..frozen import replace
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
