"""Warp's builtins, by what they do to arrays, indices and gradients."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import warp as wp

from ..frozen import replace
from ..private.warp_source import overload
from ..private.warp_types import cast_type, holds_floats, known_type
from . import access, numbers, places
from .arguments import Arguments
from .forms import ALL, NONE, Affine, Arg, Coord, Unknown
from .record import Frame, Record
from .tables import row
from .values import (
    NO_TOKENS,
    NOTHING,
    UNKNOWN,
    Abstract,
    Array,
    Component,
    Counter,
    Doubt,
    Shapes,
    Tokens,
    Tuple,
    Value,
    less,
    tokens_of,
)
from .wholes import note_change


def _note_handle(record: Record, name: str, arguments: Arguments) -> None:
    """Note what a kernel argument is the id of."""
    kind = row(name).handle
    value = arguments.find("id", 0) if kind else None
    if not isinstance(value, Value):
        return
    if isinstance(value.form, Affine) and isinstance(value.form.base, Arg) and value.form.offset == 0:
        record.handles.setdefault((value.form.base.name, kind))
    elif value.form is not None and isinstance(value.form, Unknown) and value.form.values_of is not None:
        record.handles.setdefault((value.form.values_of, kind))


def builtin(record: Record, frame: Frame, name: str, arguments: Arguments, node: ast.Call, used: bool) -> Abstract:
    """The effects and the result of a call to a builtin."""
    record.tiled = record.tiled or name.startswith("tile")
    _note_handle(record, name, arguments)
    known = row(name)
    if known.array is None:
        return HANDLERS[known.form](record, frame, name, arguments, node, used)
    array = arguments.find(*known.array)
    if not isinstance(array, Array):
        return _plain(record, frame, name, arguments, node)
    return _ON_ARRAYS[known.form](record, frame, name, array, arguments, node, used)


def construct(record: Record, frame: Frame, made: Any, arguments: Arguments, node: ast.Call) -> Abstract:
    """A type called: a cast, a vector, a matrix; an array made of a pointer."""
    name = getattr(made, "__name__", "")
    if name in ("array", "indexedarray", "fixedarray"):
        if name == "array":
            record.opaque.setdefault(frame.code.site(node))
        return Array(frozenset(), 0, None, local=True)
    if row(name).form in CASTS:
        return _cast(record, frame, name, arguments, node)
    values = _numbers(record, frame, arguments, node)
    form = numbers.computed(values, node) if values else None
    result = numbers.mixed(values, form, type=known_type(made))
    return result if result.active else replace(result, parts=frozenset())


def _cast(record: Record, frame: Frame, name: str, arguments: Arguments, node: ast.Call, used: bool = True) -> Abstract:
    """A number cast to another type: a wide integer is the same index."""
    kind = row(name).form
    values = _numbers(record, frame, arguments, node)
    value = values[0] if values else Value(Affine(None, 0))
    if kind == "integer":
        form = (
            value.form if value.form is not None else Unknown("a number cast to an int", value.coords, value.varies, 1)
        )
        return replace(value, active=False, form=form, const=NOTHING, type=cast_type(name))
    form = numbers.computed((value,), node)
    active = value.active and kind != "narrow"
    return numbers.mixed((value,), form, active=active, type=cast_type(name))


def _numbers(record: Record, frame: Frame, arguments: Arguments, node: ast.AST) -> list[Value]:
    found: list[Value] = []
    for value in arguments.values:
        if isinstance(value, Tuple):
            found.extend([access.as_number(record, frame, item, node) for item in value.items])
        else:
            found.append(value if isinstance(value, Value) else access.as_number(record, frame, value, node))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Threads and sizes


def tid(record: Record, frame: Frame, rank: int) -> Abstract:
    """``wp.tid()``, of so many coordinates."""
    if frame.kernel:
        record.ranks.add(rank)
    else:
        record.lost_rank = True
    coordinates = [Value(Affine(Coord(axis)), coords=True, varies=frozenset({axis})) for axis in range(rank)]
    return coordinates[0] if rank == 1 else Tuple(tuple(coordinates))


def _len(record: Record, frame: Frame, name: str, arguments: Arguments, node: ast.Call, used: bool) -> Abstract:
    value = arguments.values[0] if arguments.values else UNKNOWN
    if isinstance(value, Array):
        return places.length(Shapes(value), 0)
    return Value(Unknown("a length", varies=NONE))


# ---------------------------------------------------------------------------------------------------------------------
# Choices, bounds and operators as functions


def _where(record: Record, frame: Frame, name: str, arguments: Arguments, node: ast.Call, used: bool) -> Abstract:
    first, second = (2, 1) if name == "select" else (1, 2)
    test = arguments.find("cond", 0) or arguments.find("arr", 0)
    one, other = arguments.find("value_if_true", first), arguments.find("value_if_false", second)
    if test is None or one is None or other is None:
        return _plain(record, frame, name, arguments, node)
    return access.chosen(record, frame, access.as_number(record, frame, test, node), one, other, node)


def _bounds(record: Record, frame: Frame, name: str, arguments: Arguments, node: ast.Call, used: bool) -> Abstract:
    values = _numbers(record, frame, arguments, node)
    form = numbers.clamped(name, values, node)
    return numbers.differentiated(record, frame, name, values, form, node)


def _operator(record: Record, frame: Frame, name: str, arguments: Arguments, node: ast.Call, used: bool) -> Abstract:
    values = _numbers(record, frame, arguments, node)
    if len(values) != 2:
        return _plain(record, frame, name, arguments, node)
    return numbers.combine(record, frame, name, values[0], values[1], node)


# ---------------------------------------------------------------------------------------------------------------------
# Arrays


def _element(
    record: Record, frame: Frame, name: str, array: Array, arguments: Arguments, node: ast.Call, used: bool
) -> Abstract:
    """An element is read, stored or updated, or a tile of elements, or a view made."""
    form, site = row(name).form, frame.code.site(node)
    tile = form.startswith("tile")
    rest = [access.as_number(record, frame, value, node) for value in arguments.values if value is not array]
    count = 0 if tile else len(rest) - (0 if form == "view" else 2 if name == "atomic_cas" else 1)
    forms, tokens = access.indices(record, array, rest[:count], site)
    if form == "view":
        return access.narrow(array, forms) if name == "view" else access.read(record, frame, array, forms, site, tokens)
    value = numbers.mixed(rest[count:], None)
    if tile:  # which the threads of a block store together
        value = replace(value, varies=NONE)
    if form in ("store", "tile store"):
        access.store(record, array, forms, value, site, tokens, view=tile)
        return Value()
    if value.active and holds_floats(array.dtype) and not overload(name, ()).differentiable:
        record.warn(numbers.no_adjoint(name, site))
    access.update(record, array, forms, name, value, site, tokens, used=used, view=tile)
    # Warp's reverse pass doesn't have what an update returns, nor passes a gradient through it.
    root = next((ref.root for ref in array.refs), "a local array")
    taint = tokens | {Counter(root, site.line)} if used else tokens
    kind, active = known_type(array.dtype), holds_floats(array.dtype)
    old = Value(Unknown(f"values of '{root}'"), active, data=True, tokens=taint, type=kind, varies=ALL)
    message = f"Warp passes no gradient to '{root}' through what wp.{name} returns"
    return record.doubting(old, [Doubt("no-adjoint", site, message)])


def _mesh(record: Record, frame: Frame, name: str, arguments: Arguments, node: ast.Call, used: bool) -> Abstract:
    """A mesh, or what is computed of its arrays: Warp's adjoint leaves those out."""
    result = _plain(record, frame, name, arguments, node)
    assert isinstance(result, Value)
    if name == "mesh_get":
        return replace(result, type=wp.Mesh)
    return record.doubting(replace(result, active=True), [places.vertices(frame.code.site(node))])


def _local_array(record: Record, frame: Frame, name: str, arguments: Arguments, node: ast.Call, used: bool) -> Abstract:
    dtype = getattr(arguments.find("dtype", 1), "value", None)
    shape = arguments.find("shape", 0)
    ndim = len(shape.items) if isinstance(shape, Tuple) else 1
    return Array(frozenset(), ndim, dtype, local=True)


def _reads_all(
    record: Record, frame: Frame, name: str, array: Array, arguments: Arguments, node: ast.Call, used: bool
) -> Abstract:
    """All of an array is read, or a tile of it."""
    result = _plain(record, frame, name, arguments, node, skip=array)
    value = access.read(record, frame, array, (), frame.code.site(node), _tokens(arguments), view=True)
    return replace(value, form=Unknown("a tile"), varies=ALL) if row(name).form == "tile load" else result


def _tokens(arguments: Arguments) -> Tokens:
    return NO_TOKENS.union(*(tokens_of(v) for v in arguments.values))


# ---------------------------------------------------------------------------------------------------------------------
# Everything else


def _plain(
    record: Record,
    frame: Frame,
    name: str,
    arguments: Arguments,
    node: ast.Call,
    used: bool = True,
    skip: Abstract | None = None,
) -> Abstract:
    """A builtin that computes numbers of numbers. An array in it is one that this analysis doesn't know about."""
    known, site = row(name), frame.code.site(node)
    for value in arguments.values:
        if isinstance(value, Array) and value is not skip:
            access.escape(record, value, site)
    values = _numbers(record, frame, arguments, node)
    drawn = known.writes == "state"
    if drawn:  # of the state nothing is needed: the numbers drawn have no gradient in it
        values = [replace(v, tokens=less(v.tokens, Component)) for v in values]
    form = numbers.computed(values, node)
    needed = [*values[:2], *values[3:]] if known.writes == "third" else values  # what is added to isn't needed
    result = numbers.differentiated(record, frame, name, needed, form, node)
    if known.writes in ("state", "arguments", "results", "third"):
        changed = list(zip(arguments.all_nodes, arguments.values, strict=True))
        if known.writes == "third":
            changed = changed[2:3]
        for argument, given in changed[:1] if drawn and arguments.nodes else changed:
            if isinstance(argument, ast.Name) and isinstance(given, Value) and argument.id in frame.env:
                if drawn or known.writes == "third":
                    note_change(record, frame, given, node)
                elif known.writes == "results" and given.active and argument is not arguments.all_nodes[0]:
                    message = f"'{argument.id}' held a value that the adjoint may need, and wp.{name} overwrites it"
                    record.warn(Doubt("overwritten", site, message))
                unknown = Unknown(f"a value set by {name}")
                frame.env[argument.id] = replace(
                    given,
                    form=unknown,
                    active=given.type is None or holds_floats(given.type),
                    data=True,
                    coords=False,
                    const=NOTHING,
                    trace=result.trace,
                    varies=ALL,
                )
    if known.writes == "object" and result.active:
        record.warn(numbers.no_adjoint(name, site))
    if not values and known.needs not in ("nothing", "others"):
        result = replace(result, data=True, varies=ALL)
    return (
        result
        if result.active or name not in ("vector", "matrix", "quaternion")
        else replace(result, parts=frozenset())
    )


_Handler = Callable[[Record, Frame, str, Arguments, ast.Call, bool], Abstract]

CASTS = ("integer", "narrow", "float")

HANDLERS: dict[str, _Handler] = {
    "": _plain,
    **dict.fromkeys(CASTS, _cast),
    "thread": lambda record, frame, *_: tid(record, frame, 1),
    "length": _len,
    "choice": _where,
    "bounds": _bounds,
    "operator": _operator,
    "array": _local_array,
    "mesh": _mesh,
}
"""By the forms of ``tables``."""

_ON_ARRAYS: dict[str, Callable[[Record, Frame, str, Array, Arguments, ast.Call, bool], Abstract]] = {
    **dict.fromkeys(("store", "view", "atomic", "tile store", "tile atomic"), _element),
    **dict.fromkeys(("reads", "tile load"), _reads_all),
}
"""By the forms of builtins that touch an array."""
