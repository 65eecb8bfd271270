"""A call's arguments, and the parameters that they are bound to."""

from __future__ import annotations

import ast
from typing import Any

from ..frozen import frozen
from ..private.warp_source import parameters
from ..private.warp_types import is_array, is_generic, is_reference, is_struct
from . import places
from .names import as_abstract, struct_field
from .record import Frame, Record
from .summaries import Bound
from .values import UNKNOWN, Abstract, Array, Element, Object, Struct, Tuple, Value


@frozen
class Arguments:
    """A call's arguments: values, and the nodes that they come from where there is one each."""

    positional: tuple[Abstract, ...]
    keywords: dict[str, Abstract]
    nodes: tuple[ast.expr | None, ...]
    keyword_nodes: dict[str, ast.expr]

    @property
    def values(self) -> tuple[Abstract, ...]:
        return (*self.positional, *self.keywords.values()) if self.keywords else self.positional

    @property
    def all_nodes(self) -> tuple[ast.expr | None, ...]:
        return (*self.nodes, *self.keyword_nodes.values())

    def find(self, name: str, position: int) -> Abstract | None:
        """One by its keyword or position."""
        if name in self.keywords:
            return self.keywords[name]
        return self.positional[position] if position < len(self.positional) else None


def arguments_of(record: Record, frame: Frame, node: ast.Call) -> Arguments:
    """Evaluate what a call is given."""
    positional: list[Abstract] = []
    nodes: list[ast.expr | None] = []
    for argument in node.args:
        if isinstance(argument, ast.Starred):
            items = places.spread(record.evaluate(record, frame, argument.value))
            positional.extend(items)
            nodes.extend([None] * len(items))
        else:
            positional.append(record.evaluate(record, frame, argument))
            nodes.append(argument)
    if not node.keywords:
        return Arguments(tuple(positional), {}, tuple(nodes), {})
    keywords = {k.arg: record.evaluate(record, frame, k.value) for k in node.keywords if k.arg is not None}
    keyword_nodes = {k.arg: k.value for k in node.keywords if k.arg is not None}
    return Arguments(tuple(positional), keywords, tuple(nodes), keyword_nodes)


def arrays_in(value: Abstract) -> list[Array]:
    """The arrays that a value holds, those in structs included."""
    if isinstance(value, Array):
        return [value]
    if isinstance(value, Struct):
        return [array for name in getattr(value.type, "vars", {}) for array in arrays_in(struct_field(value, name))]
    if isinstance(value, Tuple):
        return [array for item in value.items for array in arrays_in(item)]
    return [value.array] if isinstance(value, Element) else []


def bind(function: Any, arguments: Arguments) -> Bound | None:
    """The arguments by parameter, as Python binds them; None where they don't fit."""
    names = list(parameters(function))
    if len(arguments.positional) > len(names):
        return None
    bound: Bound = dict(zip(names, zip(arguments.positional, arguments.nodes, strict=True), strict=False))
    for name, value in arguments.keywords.items():
        if name not in names or name in bound:
            return None
        bound[name] = (value, arguments.keyword_nodes[name])
    for name in names:
        if name not in bound:
            if name not in function.defaults:
                return None
            bound[name] = (as_abstract(function.defaults[name]), None)
    return bound


def fits(parameter: Any, value: Abstract) -> bool:
    """Whether an overload may be meant: only a clear mismatch rules it out."""
    if is_reference(parameter):
        parameter = parameter.value_type
    if is_generic(parameter):
        return True
    if is_array(parameter):
        if not isinstance(value, Array):
            return value is UNKNOWN
        return not value.ndim or not parameter.ndim or value.ndim == parameter.ndim
    if isinstance(value, Array):
        return False
    if isinstance(value, Struct):
        return not is_struct(parameter) or parameter is value.type
    return (
        not is_struct(parameter)
        or isinstance(value, (Element, Object))
        or not isinstance(value, Value)
        or (value.type is parameter or value.type is None)
    )
