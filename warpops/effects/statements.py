"""Statements: assignments, branches, returns. Loops are in ``loops``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from ..frozen import replace
from ..private.warp_source import is_function
from ..private.warp_types import COMPONENTS_ARE_STORED_AGAIN, adds_atomically, is_struct
from . import access, builtins, numbers
from . import loops as effects_loops
from .access import as_number, number
from .expressions import OPERATORS, branch, evaluate
from .forms import Unknown
from .functions import call
from .joins import copied, with_tokens
from .names import struct_field
from .places import Place, load, locate
from .reading import setter_as_store
from .record import Frame, Record
from .values import (
    NOTHING,
    UNKNOWN,
    Abstract,
    Array,
    Builtin,
    Component,
    Doubt,
    Element,
    Held,
    Object,
    Struct,
    Tuple,
    Value,
    is_active,
    less,
    merged,
    tokens_of,
    traces_of,
    variable,
)
from .wholes import as_whole, note_change, overlaps

_ATOMIC_OPERATORS = {
    ast.Add: "atomic_add",
    ast.Sub: "atomic_sub",
    ast.BitAnd: "atomic_and",
    ast.BitOr: "atomic_or",
    ast.BitXor: "atomic_xor",
}


def execute(record: Record, frame: Frame, body: Sequence[ast.stmt]) -> None:
    """Interpret statements in order, as far as control reaches."""
    for statement in body:
        if not record.state.alive:
            return
        record.tick()
        handler = _HANDLERS.get(type(statement))
        if handler is not None:
            handler(record, frame, statement)


# ---------------------------------------------------------------------------------------------------------------------
# Binding names


def bind(record: Record, frame: Frame, name: str, value: Abstract, node: ast.AST) -> None:
    """Assign a value to a name."""
    current = frame.env.get(name)
    if isinstance(current, Element):
        stored = as_number(record, frame, value, node)
        access.store(record, current.array, current.forms, stored, frame.code.site(node), view=True)
        return
    if isinstance(value, (Value, Struct, Tuple)):
        value = copied(value)
        value = as_whole(record, frame, name, value, node)
        if name in frame.code.looped:
            version = getattr(node, "lineno", 0) * 1000 + getattr(node, "col_offset", 0)
            value = with_tokens(value, frozenset({Held(frame.id, name, version)}))
    if isinstance(value, Array):
        value = replace(value, copied=True)
    elif isinstance(value, Value) and value.const is not NOTHING:
        value = replace(value)  # where branches meet, a constant is one that none of them has bound
    frame.env[name] = value


def _assign(record: Record, frame: Frame, node: ast.Assign | ast.AnnAssign) -> None:
    if node.value is None:
        return
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    target = targets[0]
    if isinstance(target, (ast.Tuple, ast.List)):
        _unpack(record, frame, target, node.value, node)
        return
    value = evaluate(record, frame, node.value)
    if isinstance(node.value, ast.Name):
        value = variable(value)
    for one in targets:
        _assign_to(record, frame, one, value, node)


def _unpack(record: Record, frame: Frame, target: ast.Tuple | ast.List, source: ast.expr, node: ast.AST) -> None:
    count = len(target.elts)
    if isinstance(source, ast.Call) and _is_tid(record, frame, source.func):
        value = builtins.tid(record, frame, count)
    else:
        value = evaluate(record, frame, source)
    items: Sequence[Abstract]
    if isinstance(value, Tuple) and len(value.items) == count:
        items = value.items
    else:
        number_like = as_number(record, frame, value, node)
        items = [replace(number_like, form=Unknown("one of several results"), const=NOTHING, parts=None)] * count
    for one, item in zip(target.elts, items, strict=True):
        _assign_to(record, frame, one, item, node)


def _is_tid(record: Record, frame: Frame, function: ast.expr) -> bool:
    if not isinstance(function, (ast.Name, ast.Attribute)):
        return False
    found = evaluate(record, frame, function)
    return isinstance(found, Builtin) and found.name == "tid"


def _assign_to(record: Record, frame: Frame, target: ast.expr, value: Abstract, node: ast.AST) -> None:
    if isinstance(target, ast.Name):
        bind(record, frame, target.id, value, node)
        return
    if not isinstance(target, (ast.Subscript, ast.Attribute)):
        return
    place = locate(record, frame, target)
    if place.array is not None:
        _note_store(record, frame, node, place.component)
        stored = as_number(record, frame, value, node)
        access.store(
            record,
            place.array,
            place.forms,
            stored,
            frame.code.site(node),
            place.tokens,
            component=place.component,
        )
    else:
        store_part(record, frame, target, place, value, node)


def _note_store(record: Record, frame: Frame, node: ast.AST, component: bool = False) -> None:
    record.array_stores.setdefault((frame.code.func, getattr(node, "lineno", 0), getattr(node, "col_offset", 0)))
    if component and COMPONENTS_ARE_STORED_AGAIN:
        site = frame.code.site(node)
        message = (
            f"the adjoint of Warp before 1.18 stores a component of an element again, and the array needn't be there: "
            f"{site.code}; store whole elements"
        )
        record.warn(Doubt("stored-again", site, message))


def store_part(
    record: Record, frame: Frame, target: ast.Subscript | ast.Attribute, place: Place, value: Abstract, node: ast.AST
) -> None:
    """Store into a part of a local: a struct's field, or a component of a vector or tile."""
    if isinstance(place.value, Array) and isinstance(target, ast.Subscript):
        # A store to a view: Warp has none, but a tile's.
        _note_store(record, frame, node)
        access.store(record, place.value, (), as_number(record, frame, value, node), frame.code.site(node), view=True)
        return
    base: ast.expr = target
    path: list[str] = []
    while isinstance(base, (ast.Subscript, ast.Attribute)):
        path.append(base.attr if isinstance(base, ast.Attribute) else "")
        base = base.value
    if not isinstance(base, ast.Name) or base.id not in frame.env:
        return
    fields = list(reversed(path))
    if isinstance(frame.env[base.id], Struct):
        note_change(record, frame, frame.env[base.id], node)
    _part_of_argument(record, frame, base.id, fields[0], value, node)
    whole = _with_part(record, frame, frame.env[base.id], fields, place.part, value, node)
    frame.env[base.id] = record.needing(whole, place.tokens, frame.code.site(node))


def _part_of_argument(record: Record, frame: Frame, name: str, field: str, value: Abstract, node: ast.AST) -> None:
    """A function stores to a part of a struct or vector that it was given: the caller's stays as it is, and Warp's adjoint
    takes the caller's gradient for that of what was stored."""
    code = frame.code.func.__code__
    if frame.kernel or name in frame.references or name not in code.co_varnames[: code.co_argcount]:
        return
    whole = frame.env[name]
    part = struct_field(whole, field) if isinstance(whole, Struct) and field else whole
    if is_active(part) or is_active(value):
        record.warn(_component_doubt(frame, node))


def _with_part(
    record: Record, frame: Frame, whole: Abstract, path: list[str], part: Any, value: Abstract, node: ast.AST
) -> Abstract:
    if isinstance(whole, Struct) and path and path[0]:
        if len(path) == 1:
            return whole.with_field(path[0], copied(value))
        inner = struct_field(whole, path[0])
        if isinstance(inner, Value) and inner.active:
            inner = record.doubting(inner, [_component_doubt(frame, node)])
        return whole.with_field(path[0], _with_part(record, frame, inner, path[1:], part, value, node))
    if not isinstance(whole, Value):
        return whole
    return _with_component(record, frame, whole, part, value, node)


def _with_component(
    record: Record, frame: Frame, whole: Value, part: Any, value: Abstract, node: ast.AST, *, add: bool = False
) -> Value:
    """A vector of which a component is stored. Warp's adjoint is right only for components that had no gradient."""
    stored = as_number(record, frame, value, node)
    key = part if part is not None else "?"
    parts = whole.parts
    result = replace(
        whole,
        active=whole.active or stored.active,
        data=whole.data or stored.data,
        coords=whole.coords or stored.coords,
        varies=whole.varies | stored.varies,
        tokens=whole.tokens | less(tokens_of(stored), Component),
        parts=(parts | {key} if stored.active else parts) if parts is not None else None,
        form=None,
        const=NOTHING,
        trace=merged((*traces_of(whole), *traces_of(stored))),
    )
    if record.copies:
        return result
    note_change(record, frame, whole, node)
    again = not add and whole.active and (parts is None or any(overlaps(key, other) for other in parts))
    return record.doubting(result, [_component_doubt(frame, node)]) if again else result


def _component_doubt(frame: Frame, node: ast.AST) -> Doubt:
    site = frame.code.site(node)
    return Doubt("component", site, f"a component that carries a gradient is overwritten: {site.code}")


# ---------------------------------------------------------------------------------------------------------------------
# Augmented assignments


def _augmented(record: Record, frame: Frame, node: ast.AugAssign) -> None:
    target = node.target
    site = frame.code.site(node)
    operator = OPERATORS.get(type(node.op), "pow")
    if isinstance(target, ast.Name):
        current = as_number(record, frame, evaluate(record, frame, target), node)
        value = number(record, frame, node.value)
        bind(record, frame, target.id, numbers.combine(record, frame, operator, current, value, node), node)
        return
    place = locate(record, frame, target)
    if place.array is None:
        if isinstance(place.value, Array):
            # ``view += tile``: some of it is written.
            _note_store(record, frame, node)
            access.store(record, place.value, (), number(record, frame, node.value), site, view=True)
            return
        current = as_number(record, frame, place.value if place.value is not None else UNKNOWN, node)
        value = number(record, frame, node.value)
        if operator in ("add", "sub") and isinstance(target, ast.Subscript):
            _add_to_part(record, frame, target, place, value, node)
        else:
            result = numbers.combine(record, frame, operator, current, value, node)
            store_part(record, frame, target, place, result, node)
        return
    _note_store(record, frame, node, place.component)
    atomic = _ATOMIC_OPERATORS.get(type(node.op))
    if atomic is not None and adds_atomically(place.array.dtype) and not is_struct(place.array.dtype):
        value = number(record, frame, node.value)
        access.update(record, place.array, place.forms, atomic, value, site, place.tokens, component=place.component)
        return
    current = as_number(record, frame, load(record, frame, place, node), node)
    value = number(record, frame, node.value)
    result = numbers.combine(record, frame, operator, current, value, node)
    access.store(record, place.array, place.forms, result, site, place.tokens, component=place.component)


def _add_to_part(
    record: Record, frame: Frame, target: ast.Subscript, place: Place, value: Value, node: ast.AST
) -> None:
    """``v[k] += x``: linear, so that only what needed the old vector is affected."""
    base = target.value
    if isinstance(base, ast.Name) and isinstance(frame.env.get(base.id), Value):
        whole = frame.env[base.id]
        assert isinstance(whole, Value)
        _part_of_argument(record, frame, base.id, "", value, node)
        whole = _with_component(record, frame, whole, place.part, value, node, add=True)
        frame.env[base.id] = record.needing(whole, place.tokens, frame.code.site(node))
    else:
        store_part(record, frame, target, place, value, node)


# ---------------------------------------------------------------------------------------------------------------------
# Control


def _expression(record: Record, frame: Frame, node: ast.Expr) -> None:
    if not isinstance(node.value, ast.Call):
        evaluate(record, frame, node.value)
        return
    store = frame.code.ask(setter_as_store, node)
    if store is not None and isinstance(evaluate(record, frame, node.value.func), Builtin):
        _assign(record, frame, store)
    else:
        call(record, frame, node.value, used=False)


def _if(record: Record, frame: Frame, node: ast.If) -> None:
    test = number(record, frame, node.test)
    if isinstance(test.const, (bool, int)):
        execute(record, frame, node.body if test.const else node.orelse)
        return
    branch(
        record,
        frame,
        test,
        node,
        lambda: execute(record, frame, node.body),
        lambda: execute(record, frame, node.orelse),
    )


def _return(record: Record, frame: Frame, node: ast.Return) -> None:
    value: Abstract = evaluate(record, frame, node.value) if node.value is not None else Value()
    if isinstance(value, Object) and not is_function(value.value):
        value = as_number(record, frame, value, node)
    frame.returns.append((record.state, record.doubting(value, record.judged)))
    record.state = record.state.copy()
    record.state.alive = False


def _assert(record: Record, frame: Frame, node: ast.Assert) -> None:
    evaluate(record, frame, node.test)


_HANDLERS: dict[type[ast.stmt], Callable[[Record, Frame, Any], None]] = {
    ast.Assign: _assign,
    ast.AnnAssign: _assign,
    ast.AugAssign: _augmented,
    ast.Expr: _expression,
    ast.If: _if,
    ast.Return: _return,
    ast.Assert: _assert,
    ast.For: effects_loops.run_for,
    ast.While: effects_loops.run_while,
    ast.Break: effects_loops.run_break,
    ast.Continue: effects_loops.run_continue,
}
