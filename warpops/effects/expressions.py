"""Expressions: names, subscripts and attributes, operators, conditions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import access, arithmetic
from .calls import call
from .record import Frame, Record
from .source import as_abstract, is_array, is_struct, lookup, member, struct_field
from .state import State, merge
from .values import (
    NO_TOKENS,
    NO_TRUTH,
    UNKNOWN,
    Abstract,
    Affine,
    Array,
    Builtin,
    Component,
    Coord,
    Element,
    Form,
    Object,
    Shape,
    Shapes,
    SomeType,
    Struct,
    Tokens,
    Tuple,
    Unknown,
    Value,
    Whole,
    is_active,
    join,
    literal,
    tokens_of,
    with_tokens,
    without_tokens,
)

OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.MatMult: "mul",
    ast.BitAnd: "bit_and",
    ast.BitOr: "bit_or",
    ast.BitXor: "bit_xor",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
}
_COMPARISONS: dict[type[ast.AST], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}


@dataclass(frozen=True)
class Place:
    """Where a chain of subscripts and attributes leads: an array element (or part of one), or just a value."""

    array: Array | None
    forms: tuple[Form, ...] = ()
    component: bool = False
    tokens: Tokens = NO_TOKENS
    value: Abstract | None = None
    part: Any = None
    """For a part of a local value: which one, where that is a literal."""


def evaluate(record: Record, frame: Frame, node: ast.AST) -> Abstract:
    """The abstract value of an expression; its effects go to the record."""
    record.tick()
    handler = _HANDLERS.get(type(node))
    return handler(record, frame, node) if handler is not None else UNKNOWN


def number(record: Record, frame: Frame, node: ast.AST) -> Value:
    """An expression's value as a number, vector or tile."""
    return as_number(record, frame, evaluate(record, frame, node), node)


def as_number(record: Record, frame: Frame, value: Abstract, node: ast.AST) -> Value:
    if isinstance(value, Value):
        return value
    if isinstance(value, Element):
        return access.read(record, frame, value.array, value.forms, frame.code.site(node))
    if isinstance(value, Object) and not callable(value.value):
        return Value(const=value.value)
    return Value(Unknown("a value that isn't a number"), active=is_active(value), data=True, tokens=tokens_of(value))


# ---------------------------------------------------------------------------------------------------------------------
# Names and constants


def _name(record: Record, frame: Frame, node: ast.Name) -> Abstract:
    target = getattr(node, "warp_func", None)
    if target is not None:
        return as_abstract(target)
    found = frame.env.get(node.id)
    if found is not None:
        if isinstance(found, Element):
            return as_number(record, frame, found, node)
        return found
    outer = lookup(frame.code, node.id)
    return as_abstract(outer) if outer is not None else UNKNOWN


def _constant(record: Record, frame: Frame, node: ast.Constant) -> Abstract:
    return as_abstract(node.value) if not isinstance(node.value, str) else Value(const=node.value)


def _tuple(record: Record, frame: Frame, node: ast.Tuple | ast.List) -> Abstract:
    items: list[Abstract] = []
    for element in node.elts:
        if isinstance(element, ast.Starred):
            items.extend(spread(evaluate(record, frame, element.value)))
        else:
            items.append(evaluate(record, frame, element))
    return Tuple(tuple(items))


def spread(value: Abstract) -> list[Abstract]:
    """The arguments behind ``*value``."""
    if isinstance(value, Tuple):
        return list(value.items)
    if isinstance(value, Shapes):
        return [_length(value, axis) for axis in range(max(value.array.ndim, 1))]
    return [value]


# ---------------------------------------------------------------------------------------------------------------------
# Subscripts and attributes


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
        place = Place(None, value=evaluate(record, frame, base))
    pending: list[ast.expr] = []
    for link in reversed(chain):
        place, pending = _step(record, frame, place, link, pending)
    return _finish(record, frame, place, pending)


def _step(
    record: Record, frame: Frame, place: Place, link: ast.Subscript | ast.Attribute, pending: list[ast.expr]
) -> tuple[Place, list[ast.expr]]:
    """One subscript or attribute. Consecutive subscripts of an array are one: Warp flattens ``x[i][j]``."""
    if isinstance(link, ast.Subscript):
        elements = list(link.slice.elts) if isinstance(link.slice, ast.Tuple) else [link.slice]
        if place.array is None and isinstance(place.value, Array):
            pending = [*pending, *elements]
            ndim = place.value.ndim
            if ndim and len(pending) >= ndim:
                place = _finish(record, frame, place, pending[:ndim])
                rest = pending[ndim:]
                if rest and place.array is not None:
                    place = _component(record, frame, place, rest)
                return place, []
            return place, pending
        if place.array is not None:
            return _component(record, frame, place, elements), []
        return _part(record, frame, place, elements, link), []
    place = _finish(record, frame, place, pending)
    if place.array is not None:
        return _element_field(place, link.attr), []
    return Place(None, value=_attribute(record, frame, place.value, link), part=link.attr), []


def _finish(record: Record, frame: Frame, place: Place, pending: list[ast.expr]) -> Place:
    """Apply collected indices to an array: an element, or a view where there are too few."""
    if not pending or not isinstance(place.value, Array):
        return place
    array = place.value
    values = [_index(record, frame, element) for element in pending]
    tokens: Tokens = frozenset().union(*(v.tokens for v in values))
    forms = tuple(v.form if isinstance(v.form, Whole) else access.index_form(record, v) for v in values)
    if not array.ndim:
        # The rank is unknown: it may be an element, a view, or a vector's component.
        return Place(replace(array, ndim=len(forms)), forms, True, tokens)
    if len(forms) < array.ndim or any(isinstance(form, Whole) for form in forms):
        return Place(None, value=with_tokens(access.narrow(array, forms), tokens))
    return Place(array, forms, False, tokens)


def _index(record: Record, frame: Frame, node: ast.expr) -> Value:
    if not isinstance(node, ast.Slice):
        return number(record, frame, node)
    bounds = [number(record, frame, n) for n in (node.lower, node.upper, node.step) if n is not None]
    tokens: Tokens = frozenset().union(*(b.tokens for b in bounds)) if bounds else NO_TOKENS
    return Value(Whole(sliced=bool(bounds)), tokens=tokens)


def _component(record: Record, frame: Frame, place: Place, indices: Sequence[ast.expr]) -> Place:
    values = [_index(record, frame, element) for element in indices]
    tokens = place.tokens.union(*(v.tokens for v in values))
    return replace(place, component=True, tokens=tokens)


def _element_field(place: Place, name: str) -> Place:
    """A field or component of an array element."""
    assert place.array is not None
    dtype = place.array.dtype
    variable = getattr(dtype, "vars", {}).get(name) if is_struct(dtype) else None
    if variable is None:
        return replace(place, component=True)
    if is_array(variable.type):
        # An array that lies in another array's elements: no argument of the kernel, wherever it points.
        pointed = Array(frozenset(), int(variable.type.ndim), variable.type.dtype, local=True)
        return Place(None, value=pointed, part="pointer")
    return replace(place, array=replace(place.array, dtype=variable.type), component=True)


def _part(record: Record, frame: Frame, place: Place, indices: Sequence[ast.expr], link: ast.Subscript) -> Place:
    """A part of a local value: a component, an element of a tuple, a length of ``x.shape``."""
    value = place.value
    if isinstance(value, Object) and getattr(value.value, "__name__", "") == "adjoint":
        record.opaque.setdefault(frame.code.site(link))
        return Place(None, value=UNKNOWN)
    values = [_index(record, frame, element) for element in indices]
    literals = tuple(literal(v.form) for v in values)
    if isinstance(value, Tuple) and literals[0] is not None and -len(value.items) <= literals[0] < len(value.items):
        return Place(None, value=value.items[literals[0]])
    if isinstance(value, Shapes):
        if literals[0] is None:
            return Place(None, value=Value(Unknown("a length that can't be followed")))
        return Place(None, value=_length(value, literals[0]))
    if isinstance(value, Object):
        try:
            return Place(None, value=as_abstract(value.value[literals if len(literals) > 1 else literals[0]]))
        except Exception:  # whatever the object's own subscript raises
            return Place(None, value=UNKNOWN)
    current = as_number(record, frame, value if value is not None else UNKNOWN, link)
    tokens: Tokens = frozenset().union(*(v.tokens for v in values))
    if current.active:
        record.need(tokens, frame.code.site(link))
    loops = tuple(v.form.base if isinstance(v.form, Affine) and v.form.base else None for v in values)
    exact = all(n is not None or loop is not None for n, loop in zip(literals, loops, strict=True))
    part = tuple(n if n is not None else loop for n, loop in zip(literals, loops, strict=True)) if exact else None
    return Place(None, value=_extracted(current, tokens), part=part)


def _extracted(value: Value, tokens: Tokens = NO_TOKENS) -> Value:
    """A copy of a component: later stores into the vector don't reach it."""
    kept = frozenset(token for token in value.tokens if not isinstance(token, Component))
    form = value.form if isinstance(value.form, Unknown) else Unknown("a component of a vector", value.coords)
    return Value(form, value.active, value.coords, value.data, kept | tokens)


def _length(shapes: Shapes, axis: int) -> Value:
    """``x.shape[axis]``; a view's axes are counted from its first free one."""
    refs = shapes.array.refs
    if len(refs) == 1 and not shapes.array.local:
        ref = next(iter(refs))
        free = ref.free
        if -len(free) <= axis < len(free):
            form = ref.axes[free[axis]]
            if isinstance(form, Whole) and not form.sliced:
                return Value(Affine(Shape(ref.root, free[axis])))
    return Value(Unknown("the length of more than one array, or of a slice"))


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
            return _length(Shapes(value), 0)
        return Value(Unknown(f"the array's {name}"))
    if isinstance(value, Builtin):
        return UNKNOWN
    if name == "dtype":
        return Object(SomeType)
    current = as_number(record, frame, value if value is not None else UNKNOWN, node)
    if current.element is not None:
        return _field_of_element(current, name)
    return _extracted(current)


def _field_of_element(value: Value, name: str) -> Abstract:
    variable = getattr(value.element, "vars", {}).get(name)
    if variable is None:
        return _extracted(value)
    if is_array(variable.type):
        return Array(frozenset(), int(variable.type.ndim), variable.type.dtype, local=True, tokens=value.tokens)
    part = _extracted(value)
    return replace(part, element=variable.type if is_struct(variable.type) else None)


def load(record: Record, frame: Frame, place: Place, node: ast.AST) -> Abstract:
    """The value at a place, read."""
    if place.array is None:
        return place.value if place.value is not None else UNKNOWN
    value = access.read(record, frame, place.array, place.forms, frame.code.site(node), place.tokens)
    return replace(value, element=place.array.dtype) if is_struct(place.array.dtype) else value


def _chain(record: Record, frame: Frame, node: ast.Subscript | ast.Attribute) -> Abstract:
    return load(record, frame, locate(record, frame, node), node)


# ---------------------------------------------------------------------------------------------------------------------
# Operators and conditions


def _binary(record: Record, frame: Frame, node: ast.BinOp) -> Abstract:
    left = number(record, frame, node.left)
    right = number(record, frame, node.right)
    operator = OPERATORS.get(type(node.op), "pow")
    return arithmetic.combine(record, operator, left, right, frame.code.text(node), frame.code.site(node))


def _unary(record: Record, frame: Frame, node: ast.UnaryOp) -> Abstract:
    value = number(record, frame, node.operand)
    if isinstance(node.op, ast.USub):
        return arithmetic.negate(value)
    if isinstance(node.op, ast.UAdd):
        return value
    if isinstance(node.op, ast.Not):
        const = not value.const if isinstance(value.const, bool) else value.const
        return Value(None, False, value.coords, value.data, value.tokens, const, value.truth.negated())
    return arithmetic.mixed((value,), arithmetic.computed((value,), frame.code.text(node)), active=False)


def _compare(record: Record, frame: Frame, node: ast.Compare) -> Abstract:
    values = [number(record, frame, n) for n in (node.left, *node.comparators)]
    truth = None
    for operator, left, right in zip(node.ops, values, values[1:], strict=False):
        one = arithmetic.compare(_COMPARISONS.get(type(operator), "?"), left, right)
        truth = one if truth is None else arithmetic.both(truth, one)
    return replace(arithmetic.mixed(values, None, active=False), truth=truth or NO_TRUTH)


def _boolean(record: Record, frame: Frame, node: ast.BoolOp) -> Abstract:
    """``and``, ``or``: Warp evaluates an operand only where those before it leave the matter open."""
    conjunction = isinstance(node.op, ast.And)
    result = number(record, frame, node.values[0])
    for operand in node.values[1:]:
        right: list[Value] = []

        def evaluate_operand(operand: ast.expr = operand, right: list[Value] = right) -> None:
            right.append(number(record, frame, operand))

        branch(
            record,
            frame,
            result,
            node,
            evaluate_operand if conjunction else None,
            None if conjunction else evaluate_operand,
        )
        combined = arithmetic.mixed((result, right[0]), None, active=False)
        truths = (result.truth, right[0].truth)
        result = replace(combined, truth=arithmetic.both(*truths) if conjunction else arithmetic.either(*truths))
    return result


def _conditional(record: Record, frame: Frame, node: ast.IfExp) -> Abstract:
    test = number(record, frame, node.test)
    if isinstance(test.const, (bool, int)):
        return evaluate(record, frame, node.body if test.const else node.orelse)
    results: list[Abstract] = []
    branch(
        record,
        frame,
        test,
        node,
        lambda: results.append(evaluate(record, frame, node.body)),
        lambda: results.append(evaluate(record, frame, node.orelse)),
    )
    return chosen(record, frame, test, results[0], results[1], node)


def chosen(record: Record, frame: Frame, test: Value, one: Abstract, other: Abstract, node: ast.AST) -> Abstract:
    """``one`` where the test holds, else ``other``: the adjoint needs the test."""
    facts = record.state.facts
    if isinstance(one, Value) and one.form is not None:
        one = replace(one, form=access.settle(one.form, facts | test.truth.when_true))
    if isinstance(other, Value) and other.form is not None:
        other = replace(other, form=access.settle(other.form, facts | test.truth.when_false))
    result = join(one, other)
    if one != other:
        if is_active(result):
            record.need(test.tokens, frame.code.site(node))
        result = with_tokens(result, test.tokens)
        if isinstance(result, Value):
            result = replace(result, coords=result.coords or test.coords, data=result.data or test.data)
    return result


def branch(
    record: Record,
    frame: Frame,
    test: Value,
    node: ast.AST,
    body: Callable[[], object] | None,
    orelse: Callable[[], object] | None,
) -> None:
    """Run two branches from the same state, and meet them: state and local variables."""
    site = frame.code.site(node)
    before, env = record.state, frame.env
    ends: list[State] = []
    envs: list[dict[str, Abstract]] = []
    for run, holds in ((body, True), (orelse, False)):
        state = before.copy()
        state.conditions = (*before.conditions, arithmetic.condition_of(test, site, holds))
        state.facts = before.facts | (test.truth.when_true if holds else test.truth.when_false)
        record.state, frame.env = state, dict(env)
        if run is not None:
            run()
        ends.append(record.state)
        envs.append(frame.env)
    record.state = merge(before, ends)
    if ends[0].alive and ends[1].alive:
        frame.env = meet_envs(record, frame, test, (envs[0], ends[0]), (envs[1], ends[1]), node)
    else:
        frame.env = envs[0] if ends[0].alive else envs[1]


def meet_envs(
    record: Record,
    frame: Frame,
    test: Value,
    one: tuple[dict[str, Abstract], State],
    other: tuple[dict[str, Abstract], State],
    node: ast.AST,
) -> dict[str, Abstract]:
    result: dict[str, Abstract] = {}
    for name in {**one[0], **other[0]}:
        a, b = one[0].get(name), other[0].get(name)
        if a is b:
            result[name] = a if a is not None else UNKNOWN
        elif a is None or b is None:
            result[name] = with_tokens(join(a, b), test.tokens)
        else:
            result[name] = chosen(record, frame, test, _settled(a, one[1]), _settled(b, other[1]), node)
    return result


def _settled(value: Abstract, state: State) -> Abstract:
    if isinstance(value, Value) and isinstance(value.form, Affine) and isinstance(value.form.base, Coord):
        return replace(value, form=access.settle(value.form, state.facts))
    return value


def copied(value: Abstract) -> Abstract:
    """A value as another variable has it: Warp copies vectors on assignment."""
    return without_tokens(value, Component)


def _call(record: Record, frame: Frame, node: ast.Call) -> Abstract:
    return call(record, frame, node, used=True)


_HANDLERS: dict[type[ast.AST], Callable[[Record, Frame, Any], Abstract]] = {
    ast.Name: _name,
    ast.Constant: _constant,
    ast.Tuple: _tuple,
    ast.List: _tuple,
    ast.Subscript: _chain,
    ast.Attribute: _chain,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _boolean,
    ast.IfExp: _conditional,
    ast.Call: _call,
}
