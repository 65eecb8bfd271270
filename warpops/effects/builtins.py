"""Warp's builtins, by what they do to arrays, indices and gradients."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import warp as wp

from ..private.warp_source import overload
from ..private.warp_types import cast_type, holds_floats, known_type
from . import access, numbers, places
from .arguments import Arguments
from .forms import ALL, NONE, Affine, Arg, Coord, Form, Unknown
from .frozen import replace
from .model import Site
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
    is_active,
    merged,
    tokens_of,
    traces_of,
)
from .wholes import note_change


def _note_handle(record: Record, name: str, arguments: Arguments) -> None:
    """Note what a kernel argument is the id of."""
    kind = row(name).handle
    value = arguments.find("id", 0) if kind else None
    if not isinstance(value, Value):
        return
    if isinstance(value.form, Affine) and isinstance(value.form.base, Arg) and value.form.offset == 0:
        record.handles.setdefault(value.form.base.name, set()).add(kind)
    elif value.form is not None and isinstance(value.form, Unknown) and value.form.values_of is not None:
        record.handles.setdefault(value.form.values_of, set()).add(kind)


def builtin(record: Record, frame: Frame, name: str, arguments: Arguments, node: ast.Call, used: bool) -> Abstract:
    """The effects and the result of a call to a builtin."""
    record.tiled = record.tiled or name.startswith("tile")
    _note_handle(record, name, arguments)
    return HANDLERS[row(name).form](record, frame, name, arguments, node, used)


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
    form = numbers.computed(values, frame.code.text(node)) if values else None
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
    form = numbers.computed((value,), frame.code.text(node))
    active = value.active and kind != "narrow"
    return numbers.mixed((value,), form, active=active, type=cast_type(name))


def _numbers(record: Record, frame: Frame, arguments: Arguments, node: ast.AST) -> list[Value]:
    found: list[Value] = []
    for value in arguments.values:
        if isinstance(value, Tuple):
            found.extend(access.as_number(record, frame, item, node) for item in value.items)
        else:
            found.append(access.as_number(record, frame, value, node))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Threads and sizes


def _tid(record: Record, frame: Frame, name: str, arguments: Arguments, node: ast.Call, used: bool) -> Abstract:
    """``wp.tid()`` where it isn't unpacked; assignments to a tuple are the statement's."""
    return tid(record, frame, 1)


def tid(record: Record, frame: Frame, rank: int) -> Abstract:
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
    if len(arguments.values) != 3:
        return _plain(record, frame, name, arguments, node)
    order = {"cond": 0, "value_if_true": 1, "value_if_false": 2, "arr": 0}
    if name == "select":
        order = {"cond": 0, "value_if_true": 2, "value_if_false": 1, "arr": 0}
    slots: list[Abstract] = list(arguments.positional) + [UNKNOWN] * (3 - len(arguments.positional))
    for keyword, value in arguments.keywords.items():
        slots[order.get(keyword, 0)] = value
    test = access.as_number(record, frame, slots[0], node)
    one, other = (slots[2], slots[1]) if name == "select" else (slots[1], slots[2])
    return access.chosen(record, frame, test, one, other, node)


def _bounds(record: Record, frame: Frame, name: str, arguments: Arguments, node: ast.Call, used: bool) -> Abstract:
    values = _numbers(record, frame, arguments, node)
    form = numbers.clamped(name, values, frame.code.text(node))
    return numbers.differentiated(record, name, values, form, frame.code.site(node))


def _operator(record: Record, frame: Frame, name: str, arguments: Arguments, node: ast.Call, used: bool) -> Abstract:
    values = _numbers(record, frame, arguments, node)
    if len(values) != 2:
        return _plain(record, frame, name, arguments, node)
    return numbers.combine(record, name, values[0], values[1], frame.code.text(node), frame.code.site(node))


# ---------------------------------------------------------------------------------------------------------------------
# Arrays


def _forms(
    record: Record, frame: Frame, array: Array, indices: list[Abstract], node: ast.AST
) -> tuple[tuple[Form, ...], Tokens]:
    values = [access.as_number(record, frame, index, node) for index in indices]
    return access.indices(record, array, values, frame.code.site(node))


def _atomic(record: Record, frame: Frame, name: str, arguments: Arguments, node: ast.Call, used: bool) -> Abstract:
    array = arguments.find("arr", 0)
    site = frame.code.site(node)
    if not isinstance(array, Array):
        return _plain(record, frame, name, arguments, node)
    values = [v for v in arguments.values if v is not array]
    count = 2 if name == "atomic_cas" else 1
    forms, tokens = _forms(record, frame, array, list(values[: len(values) - count]), node)
    operands = [access.as_number(record, frame, v, node) for v in values[len(values) - count :]]
    value = numbers.mixed(operands, None)
    active = holds_floats(array.dtype)
    if active and value.active and not overload(name, ()).differentiable:
        record.warn(numbers.no_adjoint(name, site))
    access.update(record, array, forms, name, value, site, tokens, used=used)
    root = next((ref.root for ref in array.refs), "a local array")
    taint = frozenset({Counter(root, site.line)}) if used else NO_TOKENS
    unknown = Unknown(f"values of '{root}'")
    old = Value(unknown, active, data=True, tokens=taint | tokens, type=known_type(array.dtype), varies=ALL)
    return record.doubting(old, [_old_value(name, root, site)])


def _old_value(name: str, root: str, site: Site) -> Doubt:
    return Doubt("no-adjoint", site, f"Warp passes no gradient to '{root}' through what wp.{name} returns")


def _array_store(record: Record, frame: Frame, name: str, arguments: Arguments, node: ast.Call, used: bool) -> Abstract:
    array = arguments.find("arr", 0)
    if not isinstance(array, Array):
        return _plain(record, frame, name, arguments, node)
    rest = [v for v in arguments.values if v is not array]
    forms, tokens = _forms(record, frame, array, rest[:-1], node)
    value = access.as_number(record, frame, rest[-1], node)
    access.store(record, array, forms, value, frame.code.site(node), tokens)
    return Value()


def _view(record: Record, frame: Frame, name: str, arguments: Arguments, node: ast.Call, used: bool) -> Abstract:
    array = arguments.find("arr", 0)
    if not isinstance(array, Array):
        return _plain(record, frame, name, arguments, node)
    forms, tokens = _forms(record, frame, array, [v for v in arguments.values if v is not array], node)
    if name == "view":
        return access.narrow(array, forms)
    return access.read(record, frame, array, forms, frame.code.site(node), tokens)


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


def _reads_all(record: Record, frame: Frame, name: str, arguments: Arguments, node: ast.Call, used: bool) -> Abstract:
    reads = row(name).reads
    assert reads is not None
    array = arguments.find(*reads)
    if isinstance(array, Array):
        access.read(record, frame, array, (), frame.code.site(node), view=True)
    return _plain(record, frame, name, arguments, node, skip=array)


# ---------------------------------------------------------------------------------------------------------------------
# Tiles


def _tile_load(record: Record, frame: Frame, name: str, arguments: Arguments, node: ast.Call, used: bool) -> Abstract:
    array = arguments.find("a", 0)
    if not isinstance(array, Array):
        return _plain(record, frame, name, arguments, node)
    _plain(record, frame, name, arguments, node, skip=array)
    value = access.read(record, frame, array, (), frame.code.site(node), _tokens(arguments), view=True)
    return replace(value, form=Unknown("a tile"), varies=ALL)


def _tile_store(record: Record, frame: Frame, name: str, arguments: Arguments, node: ast.Call, used: bool) -> Abstract:
    array = arguments.find("a", 0)
    if not isinstance(array, Array):
        return _plain(record, frame, name, arguments, node)
    active = any(is_active(v) for v in arguments.values)
    trace = merged(trace for v in arguments.values for trace in traces_of(v))
    value = Value(active=active, data=True, tokens=_tokens(arguments), trace=trace)
    site = frame.code.site(node)
    if row(name).form == "tile atomic":
        access.update(record, array, (), name, value, site, used=used, view=True)
        root = next((ref.root for ref in array.refs), "a local array")
        taint = frozenset({Counter(root, site.line)}) if used else NO_TOKENS
        old = Value(Unknown("a tile"), active=active, data=True, tokens=taint, varies=ALL)
        return record.doubting(old, [_old_value(name, root, site)])
    access.store(record, array, (), value, site, view=True)
    return Value()


def _tokens(arguments: Arguments) -> Any:
    return frozenset().union(*(tokens_of(v) for v in arguments.values))


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
        values = [replace(v, tokens=frozenset(t for t in v.tokens if not isinstance(t, Component))) for v in values]
    form = numbers.computed(values, frame.code.text(node))
    needed = [*values[:2], *values[3:]] if known.writes == "third" else values  # what is added to isn't needed
    result = numbers.differentiated(record, name, needed, form, site)
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
    if known.needs not in ("nothing", "others"):
        result = replace(result, data=result.data or not values, varies=result.varies if values else ALL)
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
    "thread": _tid,
    "length": _len,
    "choice": _where,
    "bounds": _bounds,
    "operator": _operator,
    "array": _local_array,
    "reads": _reads_all,
    "store": _array_store,
    "view": _view,
    "atomic": _atomic,
    "mesh": _mesh,
    "tile load": _tile_load,
    "tile store": _tile_store,
    "tile atomic": _tile_store,
}
"""By the forms of ``tables``."""
