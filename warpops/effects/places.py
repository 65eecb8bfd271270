"""Places: where a chain of subscripts and attributes leads, and what reading it does."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import warp as wp

from ..frozen import frozen, replace
from ..private.warp_source import member
from ..private.warp_types import component_type, holds_floats, is_array, is_struct, known_type
from . import access
from .forms import NONE, Affine, Form, Shape, Unknown, Whole, literal
from .joins import with_tokens
from .model import Site
from .names import as_abstract, struct_field
from .record import Frame, Record
from .values import (
    NO_TOKENS,
    UNKNOWN,
    Abstract,
    Array,
    Builtin,
    Component,
    Doubt,
    Element,
    Object,
    Shapes,
    SomeType,
    Struct,
    Tokens,
    Tuple,
    Value,
    less,
    variable,
)


@frozen
class Place:
    """Where a chain of subscripts and attributes leads: an array element (or part of one), or just a value."""

    array: Array | None
    forms: tuple[Form, ...] = ()
    component: bool = False
    tokens: Tokens = NO_TOKENS
    value: Abstract | None = None
    part: Any = None
    """For a part of a local value: which one, where that is a literal."""


def locate(record: Record, frame: Frame, node: ast.expr) -> Place:
    """Follow a chain of subscripts and attributes from its base."""
    chain: list[ast.Subscript | ast.Attribute] = []
    base: ast.expr = node
    while isinstance(base, (ast.Subscript, ast.Attribute)):
        chain.append(base)
        base = base.value
    found = frame.env.get(base.id) if isinstance(base, ast.Name) else None
    if isinstance(found, Element):
        place = Place(found.array, found.forms, found.component)
    else:
        place = Place(None, value=found if found is not None else record.evaluate(record, frame, base))
    pending: list[ast.expr] = []  # consecutive subscripts of an array are one: Warp flattens ``x[i][j]``
    for link in reversed(chain):
        if isinstance(link, ast.Attribute):
            place, pending = _finish(record, frame, place, pending, link), []
            if place.array is not None:
                place = _element_field(place, link.attr)
            else:
                place = Place(None, value=_attribute(record, frame, place.value, link), part=link.attr)
            continue
        elements = _elements(link)
        if place.array is not None:
            place = _component(record, frame, place, elements, link)
        elif isinstance(place.value, Array):
            pending, ndim = [*pending, *elements], place.value.ndim
            if ndim and len(pending) >= ndim:
                place, rest, pending = _finish(record, frame, place, pending[:ndim], link), pending[ndim:], []
                if rest and place.array is not None:
                    place = _component(record, frame, place, rest, link)
        else:
            place = _part(record, frame, place.value, elements, link)
    return _finish(record, frame, place, pending, node)


def _elements(node: ast.Subscript) -> list[ast.expr]:
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def _finish(record: Record, frame: Frame, place: Place, pending: list[ast.expr], node: ast.AST) -> Place:
    """Apply collected indices to an array: an element, or a view where there are too few."""
    if not pending or not isinstance(place.value, Array):
        return place
    array = place.value
    values = [_index(record, frame, element) for element in pending]
    forms, tokens = access.indices(record, array, values, frame.code.site(node))
    if not array.ndim:
        # The rank is unknown: it may be an element, a view, or a vector's component.
        return Place(replace(array, ndim=len(forms)), forms, True, tokens)
    if len(forms) < array.ndim or Whole in map(type, forms):
        return Place(None, value=with_tokens(access.narrow(array, forms), tokens))
    return Place(array, forms, False, tokens)


def _index(record: Record, frame: Frame, node: ast.expr) -> Value:
    if not isinstance(node, ast.Slice):
        return access.number(record, frame, node)
    bounds = [access.number(record, frame, n) for n in (node.lower, node.upper, node.step) if n is not None]
    tokens = NO_TOKENS.union(*[b.tokens for b in bounds])
    return Value(Whole(bool(bounds), NONE.union(*[b.varies for b in bounds])), tokens=tokens)


def _component(record: Record, frame: Frame, place: Place, indices: Sequence[ast.expr], node: ast.AST) -> Place:
    assert place.array is not None
    values = [_index(record, frame, element) for element in indices]
    _, tokens = access.indices(record, place.array, values, frame.code.site(node))
    array = place.array
    dtype = component_type(array.dtype, len(indices))
    if dtype is not None:
        array = replace(array, dtype=dtype)
    return replace(place, array=array, component=True, tokens=place.tokens | tokens)


def _element_field(place: Place, name: str) -> Place:
    """A field or component of an array element."""
    assert place.array is not None
    dtype = place.array.dtype
    variable = getattr(dtype, "vars", {}).get(name) if is_struct(dtype) else None
    if variable is None:
        dtype = component_type(place.array.dtype, 1)
        return replace(place, component=True, array=replace(place.array, dtype=dtype) if dtype else place.array)
    if is_array(variable.type):
        # An array that lies in another array's elements: no argument of the kernel, wherever it points.
        pointed = Array(frozenset(), int(variable.type.ndim), variable.type.dtype, local=True)
        return Place(None, value=pointed, part="pointer")
    return replace(place, array=replace(place.array, dtype=variable.type), component=True)


def _part(
    record: Record, frame: Frame, value: Abstract | None, indices: Sequence[ast.expr], link: ast.Subscript
) -> Place:
    """A part of a local value: a component, an element of a tuple, a length of ``x.shape``."""
    if isinstance(value, Object) and getattr(value.value, "__name__", "") == "adjoint":
        record.opaque.setdefault(frame.code.site(link))
        return Place(None, value=UNKNOWN)
    values = [_index(record, frame, element) for element in indices]
    literals = tuple([literal(v.form) for v in values])
    if isinstance(value, Value):
        current = value
    elif (item := _item(value, literals)) is not None:
        return Place(None, value=item)
    else:
        current = access.as_number(record, frame, value if value is not None else UNKNOWN, link)
    tokens = NO_TOKENS.union(*[v.tokens for v in values])
    if None not in literals and not tokens:
        return Place(None, value=_extracted(current, NO_TOKENS, len(indices)), part=literals)
    if tokens and holds_floats(current.type):
        access.stray(record, values, [access.index_form(v) for v in values], frame.code.site(link))
    loops = tuple(v.form.base if isinstance(v.form, Affine) and v.form.base else None for v in values)
    exact = all(n is not None or loop is not None for n, loop in zip(literals, loops, strict=True))
    part = tuple(n if n is not None else loop for n, loop in zip(literals, loops, strict=True)) if exact else None
    extracted = _extracted(current, tokens, len(indices))
    return Place(None, value=record.needing(extracted, tokens, frame.code.site(link)), part=part, tokens=tokens)


def _item(value: Abstract | None, literals: tuple[int | None, ...]) -> Abstract | None:
    """An element of what Python has elements of; None where it is none of these."""
    first = literals[0]
    if isinstance(value, Tuple) and first is not None and -len(value.items) <= first < len(value.items):
        item: Abstract = value.items[first]
        return variable(item)
    if isinstance(value, Shapes):
        unknown = Value(Unknown("a length that can't be followed", varies=NONE))
        return unknown if first is None else length(value, first)
    if isinstance(value, Object):
        try:
            return as_abstract(value.value[literals if len(literals) > 1 else first])
        except Exception:  # whatever the object's own subscript raises
            return UNKNOWN
    return None


def _extracted(value: Value, tokens: Tokens = NO_TOKENS, indices: int = 1) -> Value:
    """A copy of a component: later stores into the vector don't reach it."""
    kept = less(value.tokens, Component) if value.tokens else NO_TOKENS
    kept = kept | tokens if tokens else kept
    form = value.form
    if not isinstance(form, Unknown):
        form = Unknown("a component of a vector", value.coords, value.varies)
    part = component_type(value.type, indices)
    return Value(form, value.active, value.coords, value.data, kept, type=part, trace=value.trace, varies=value.varies)


def vertices(site: Site) -> Doubt:
    """A value of a mesh's own array."""
    return Doubt("mesh", site, "the gradient with respect to a mesh's vertices (or velocities) doesn't reach the array")


def length(shapes: Shapes, axis: int) -> Value:
    """``x.shape[axis]``; a view's axes are counted from its first free one."""
    refs = shapes.array.refs
    if len(refs) == 1 and not shapes.array.local:
        ref = next(iter(refs))
        free = ref.free
        if -len(free) <= axis < len(free):
            form = ref.axes[free[axis]]
            if isinstance(form, Whole) and not form.sliced:
                return Value(Affine(Shape(ref.root, free[axis])))
    return Value(Unknown("the length of more than one array, or of a slice", varies=NONE))


def _attribute(record: Record, frame: Frame, value: Abstract | None, node: ast.Attribute) -> Abstract:
    name = node.attr
    if isinstance(value, Object):
        if value.value is SomeType:
            return value
        found = member(value.value, name)
        return as_abstract(found) if found is not None else UNKNOWN
    if isinstance(value, Struct):
        return struct_field(value, name)
    if isinstance(value, Array):
        if not record.shielded:  # there is no reverse of a function with a gradient of the user's
            record.measured.update(ref.root for ref in value.refs)
        if name == "shape":
            return Shapes(value)
        if name in ("ptr", "data", "grad"):
            site = frame.code.site(node)
            access.escape(record, value, site)
            record.opaque.setdefault(site)
            return UNKNOWN
        if name == "dtype":
            return Object(value.dtype if is_struct(value.dtype) else SomeType)
        if name == "size" and value.ndim == 1:
            return length(Shapes(value), 0)
        return Value(Unknown(f"the array's {name}"))
    if isinstance(value, Builtin):
        return UNKNOWN
    if name == "dtype":
        return Object(SomeType)
    current = access.as_number(record, frame, value if value is not None else UNKNOWN, node)
    if is_struct(current.type):
        return _field_of_element(current, name)
    held = _mesh_array(current.type, name)
    if held is not None:
        return Array(frozenset(), int(held.ndim), held.dtype, doubt=vertices(frame.code.site(node)))
    return _extracted(current)


def _field_of_element(value: Value, name: str) -> Abstract:
    variable = getattr(value.type, "vars", {}).get(name)
    if variable is None:
        return _extracted(value)
    if is_array(variable.type):
        return Array(frozenset(), int(variable.type.ndim), variable.type.dtype, local=True, tokens=value.tokens)
    part = _extracted(value)
    return replace(part, type=variable.type if is_struct(variable.type) else known_type(variable.type))


def follow(record: Record, frame: Frame, node: ast.Subscript | ast.Attribute) -> Abstract:
    """The value that a chain leads to, read."""
    if isinstance(node.value, ast.Name):  # a chain of one link
        base = frame.env.get(node.value.id)
        if isinstance(node, ast.Attribute):
            if not isinstance(base, Element):
                whole = base if base is not None else record.evaluate(record, frame, node.value)
                return _attribute(record, frame, whole, node)
        elif isinstance(base, Value):
            indices = _elements(node)
            if [one for one in indices if type(one) is not ast.Constant]:
                return _part(record, frame, base, indices, node).value or UNKNOWN
            return _extracted(base, NO_TOKENS, len(indices))
    return load(record, frame, locate(record, frame, node), node)


def load(record: Record, frame: Frame, place: Place, node: ast.AST) -> Abstract:
    """The value at a place, read."""
    if place.array is None:
        return place.value if place.value is not None else UNKNOWN
    value = access.read(record, frame, place.array, place.forms, frame.code.site(node), place.tokens)
    return replace(value, type=place.array.dtype) if is_struct(place.array.dtype) else value


def spread(value: Abstract) -> list[Abstract]:
    """The arguments behind ``*value``."""
    if isinstance(value, Tuple):
        return list(value.items)
    if isinstance(value, Shapes):
        return [length(value, axis) for axis in range(max(value.array.ndim, 1))]
    return [value]


def _mesh_array(warp_type: Any, name: str) -> Any:
    """The type of an array that a mesh holds."""
    variable = wp.Mesh.vars.get(name) if warp_type is wp.Mesh else None
    return None if variable is None else variable.type
