"""Numbers: what operators and builtins make of index forms and gradients."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from ..frozen import replace
from ..private.warp_source import Overload, overload
from ..private.warp_types import holds_floats
from .facts import nonnegative
from .forms import (
    NO_TRUTH,
    NONE,
    Affine,
    Arg,
    Clamped,
    Computed,
    Coord,
    Coordinates,
    Form,
    Known,
    Mirrored,
    OneOf,
    Residue,
    Scaled,
    Shape,
    Truth,
    Unknown,
    Window,
    bare_coordinate,
    literal,
    run_length,
    varies,
)
from .model import Site
from .record import Frame, Record
from .tables import Row, row
from .values import NO_TOKENS, NOTHING, Doubt, Tokens, Trace, Value, merged


def mixed(
    values: Sequence[Value],
    form: Form | None,
    *,
    active: bool | None = None,
    type: Any = None,
    truth: Truth = NO_TRUTH,
    trace: Trace | None = None,
) -> Value:
    """A value computed from others, with the given form; ``trace`` is what is more in how it came about."""
    flows = coords = data = False
    tokens, varying = NO_TOKENS, NONE
    traces: list[Trace] = []
    for v in values:
        coords = coords or v.coords
        data = data or v.data
        if v.tokens:
            tokens = tokens | v.tokens if tokens else v.tokens
        if v.varies:
            varying = varying | v.varies if varying else v.varies
        if v.active:
            flows = True
            if v.trace is not None:
                traces.append(v.trace)
    if trace is not None:
        trace.sources.extend(traces)
    elif traces:
        trace = merged(traces)
    flows = flows if active is None else active
    return Value(form, flows, coords, data, tokens, NOTHING, truth, None, varying, type, trace)


def computed(
    values: Sequence[Value], of: ast.AST | str, *, merges: bool = False, known: Known | None = None
) -> Unknown:
    """The form of a number that isn't affine: the first reason of its operands, or what it is computed ``of``."""
    both, derived = NONE, False
    for value in values:
        derived = derived or value.coords
        if value.varies:
            both = both | value.varies if both else value.varies
    return _number([value.form for value in values], of, derived, both, merges, known)


def _number(
    forms: Iterable[Form | None], of: ast.AST | str, derived: bool, both: Coordinates, merges: bool, known: Known | None
) -> Unknown:
    count, first = int(merges), None
    for form in forms:
        if isinstance(form, Unknown):
            count += form.merges
            if first is None and not form.derived:
                first = form
        elif isinstance(form, Clamped):
            count += 1
    count = min(count, 2)
    if first is None:
        return Unknown(Computed(of), derived, both, count, known=known)
    if first.merges == count and first.varies == both and first.known is known and first.values_of is None:
        return first
    return Unknown(first.reason, False, both, count, first.stride, None, known)


# ---------------------------------------------------------------------------------------------------------------------
# Operators


def combine(record: Record, frame: Frame, operator: str, left: Value, right: Value, node: ast.AST) -> Value:
    """``left <operator> right`` by the name that Warp has for the operator; most of what kernels compute is made here."""
    known, found, active = _asked(operator, (left.type, right.type))
    form, said = _said(operator, left, right)
    coords = left.coords or right.coords
    tokens, varying = left.tokens, left.varies
    if right.tokens:
        tokens = tokens | right.tokens if tokens else right.tokens
    if right.varies:
        varying = varying | right.varies if varying else right.varies
    if form is None:
        form = _number((left.form, right.form), node, coords, varying, known.merges, said)
    flows = active is None and (left.active or right.active)
    trace: Trace | None = None
    if flows:
        sources = [v.trace for v in (left, right) if v.active and v.trace is not None]
        trace = _taken(record, frame, operator, known, found, (left, right), node)
        if trace is not None:
            trace.sources = sources
        elif sources:
            trace = merged(sources)
    data = left.data or right.data
    return Value(form, flows, coords, data, tokens, NOTHING, NO_TRUTH, None, varying, found.returns, trace)


def _said(operator: str, left: Value, right: Value) -> tuple[Form | None, Known | None]:
    """The form of what an operator makes of two numbers, or else what is known of it."""
    a, b = left.form, right.form
    if not (_says(a) or _says(b)):
        return None, None
    form: Form | None = None
    if operator in ("add", "sub"):
        form = _sum(a, b, -1 if operator == "sub" else 1)
    elif operator == "mul":
        form = _product(a, b)
    elif operator == "mod":
        form = _modulo(left, b)
    return form, None if form is not None else _known(operator, a, b)


@functools.cache
def _asked(name: str, types: tuple[Any, ...]) -> tuple[Row, Overload, bool | None]:
    """A builtin for arguments of these types, and False where its result has no gradient."""
    known, found = row(name), overload(name, types)
    flat = known.needs == "zero" or (found.returns is not None and not holds_floats(found.returns))
    return known, found, False if flat else None


def differentiated(
    record: Record, frame: Frame, name: str, values: Sequence[Value], form: Form | None, node: ast.AST
) -> Value:
    """The result of a builtin, and what Warp's adjoint of it needs, or that there is none."""
    known, found, active = _asked(name, tuple([v.type for v in values]))
    trace = None
    if active is None:
        for v in values:
            if v.active:
                trace = _taken(record, frame, name, known, found, values, node)
                break
    return mixed(values, form, active=active, type=found.returns, trace=trace)


def _taken(
    record: Record, frame: Frame, name: str, known: Row, found: Overload, values: Sequence[Value], node: ast.AST
) -> Trace | None:
    """What Warp's adjoint of a builtin takes, of which one argument is active at least; None where that is nothing."""
    doubts: tuple[Doubt, ...] = ()
    left_out = known.left_out
    if not found.differentiable and not known.shares:
        doubts = (no_adjoint(name, frame.code.site(node)),)
    elif left_out is not None and left_out < len(values) and values[left_out].active:
        message = f"Warp's adjoint of wp.{name} leaves out the gradient of its argument {left_out + 1}"
        doubts = (Doubt("no-adjoint", frame.code.site(node), message),)
    if doubts and known.rewritten:
        site = doubts[0].site
        record.remainders.add((site.file, site.line, site.column))
        doubts = (Doubt("remainder", site, doubts[0].message),)
    if record.shielded:
        return None
    tokens = needed(known, values)
    if not tokens:
        return Trace([], doubts=doubts) if doubts else None
    trace = record.needs(None, tokens, frame.code.site(node))
    trace.doubts = doubts
    return trace


def no_adjoint(name: str, site: Site) -> Doubt:
    return Doubt("no-adjoint", site, f"Warp has no adjoint for wp.{name}, so that no gradient passes it")


def needed(known: Row, values: Sequence[Value]) -> Tokens:
    """What Warp's adjoint of a builtin needs to know of its arguments, of which one is active at least."""
    if known.needs == "nothing":
        return NO_TOKENS
    if len(values) == 2 and known.needs in ("others", "divisor"):
        one, other = values
        tokens = other.tokens if one.active or known.needs == "divisor" else NO_TOKENS
        return tokens | one.tokens if other.active and one.tokens else tokens
    found = values
    if known.needs == "others":
        found = [v for i, v in enumerate(values) if any(other.active for other in (*values[:i], *values[i + 1 :]))]
    return NO_TOKENS.union(*[v.tokens for v in found])


def _sum(a: Form | None, b: Form | None, sign: int) -> Form | None:
    if isinstance(a, Unknown) and a.stride is not None and not varies(b):
        return a
    if isinstance(a, Affine) and isinstance(b, Affine):
        if b.base is None:
            return Affine(a.base, a.offset + sign * b.offset)
        if a.base is None and sign == 1:
            return Affine(b.base, a.offset + b.offset)
    return None


def _product(a: Form | None, b: Form | None) -> Form | None:
    if isinstance(a, Affine) and isinstance(b, Affine):
        if a.base is None and b.base is None:
            return Affine(None, a.offset * b.offset)
        for one, other in ((a, b), (b, a)):
            if one.base is None and one.offset == 1:
                return other
    return None


def _known(operator: str, a: Form | None, b: Form | None) -> Known | None:
    """What is known of a number that isn't affine, of a coordinate and literals."""
    if operator not in _KNOWING:
        return None
    if operator == "mul" and literal(a) is not None:
        a, b = b, a
    one, number = _as_scaled(a), literal(b)
    if one is not None and number is not None:
        if operator in ("add", "sub"):
            offset = one.offset + (number if operator == "add" else -number)
            return replace(one, offset=offset) if offset >= 0 else None
        if operator == "mul" and number > 0:
            return replace(one, factor=one.factor * number, offset=one.offset * number)
        if operator in ("floordiv", "mod") and number > 0 and one == Scaled(one.coordinate):
            return replace(one, divisor=number) if operator == "floordiv" else Residue(one.coordinate, number)
        return None
    if operator == "add" and literal(a) is not None:
        return _known("add", b, a)
    if operator == "add":
        for form, other in ((a, b), (b, a)):
            length = run_length(other)
            if length is not None and isinstance(form, Affine) and isinstance(form.base, Coord):
                return Window(form.base, form.offset, length)
    if operator != "sub":
        return None
    if isinstance(a, Affine) and isinstance(a.base, Shape) and isinstance(b, Affine) and isinstance(b.base, Coord):
        return Mirrored(a.base, b.base, a.offset - b.offset)
    rest = b.known if isinstance(b, Unknown) else None
    if isinstance(rest, Residue) and one == Scaled(rest.coordinate):
        return Scaled(rest.coordinate, rest.divisor, rest.divisor)
    return None


_KNOWING = frozenset({"add", "sub", "mul", "floordiv", "mod"})


def _says(form: Form | None) -> bool:
    """Whether something may be known of a number made of it."""
    if isinstance(form, Unknown):
        return form.known is not None or form.stride is not None
    return isinstance(form, Affine)


def _as_scaled(form: Form | None) -> Scaled | None:
    if isinstance(form, Affine) and isinstance(form.base, Coord) and form.offset >= 0:
        return Scaled(form.base, offset=form.offset)
    return form.known if isinstance(form, Unknown) and isinstance(form.known, Scaled) else None


def _modulo(value: Value, divisor: Form | None) -> Form | None:
    """A remainder lies within the divisor either way: Warp wraps a negative index once."""
    if isinstance(divisor, Affine) and divisor.offset == 0 and isinstance(divisor.base, (Shape, Arg)):
        turns = value.form.base if isinstance(value.form, Affine) and isinstance(value.form.base, Coord) else None
        at_once = isinstance(value.form, Affine) and bare_coordinate(value.form) is not None
        return Clamped(True, frozenset({divisor}), value.varies, turns, at_once)
    return None


def negate(value: Value) -> Value:
    number = literal(value.form)
    const = -value.const if isinstance(value.const, (int, float)) and not isinstance(value.const, bool) else NOTHING
    form: Form | None = Affine(None, -number) if number is not None else None
    if form is None:
        form = computed((value,), "a negated number")
    return replace(value, form=form, const=const, truth=NO_TRUTH, parts=None)


# ---------------------------------------------------------------------------------------------------------------------
# Builtins that keep an index in bounds


def clamped(name: str, values: Sequence[Value], node: ast.AST) -> Form:
    """``min``, ``max`` and ``clamp`` of indices."""
    form: Form | None = None
    forms = [v.form for v in values]
    if len(forms) == 2:
        form = _largest(*forms) if name == "max" else _smallest(*forms)
    elif name == "clamp" and len(forms) == 3:
        form = _smallest(_largest(forms[0], forms[1]), forms[2])
        if form is None and literal(forms[1]) == 0 and isinstance(forms[2], Affine):
            form = Clamped(True, frozenset({_after(forms[2])}))
    if isinstance(form, Clamped):
        form = replace(form, varies=NONE.union(*(v.varies for v in values)), turns=None)
    return form if form is not None else computed(values, node, merges=True)


def _after(form: Affine) -> Affine:
    return replace(form, offset=form.offset + 1)


def _as_clamped(form: Form | None) -> Clamped | None:
    if isinstance(form, Clamped):
        return form
    if isinstance(form, OneOf):
        parts = [part for one in form.forms if (part := _as_clamped(one)) is not None]
        return Clamped(all(part.low for part in parts), frozenset.intersection(*(part.bounds for part in parts)))
    if isinstance(form, Affine):
        return Clamped(nonnegative(form), frozenset({_after(form)}))
    return None


def _largest(a: Form | None, b: Form | None) -> Form | None:
    """``wp.max`` with 0, which keeps what an index is below as far as that is above 0."""
    for form, floor in ((a, b), (b, a)):
        current = _as_clamped(form)
        if current is not None and literal(floor) == 0:
            return Clamped(True, current.bounds)
    return None


def _smallest(a: Form | None, b: Form | None) -> Form | None:
    one, other = _as_clamped(a), _as_clamped(b)
    if one is None or other is None:
        return None
    # A ceiling of ``n - 1`` is taken for an index: it is one where there are any, and else out of bounds either way.
    low = all(part.low or _is_last(form) for part, form in ((one, a), (other, b)))
    return Clamped(low, one.bounds | other.bounds)


def _is_last(form: Form | None) -> bool:
    return isinstance(form, Affine) and isinstance(form.base, (Shape, Arg)) and form.offset == -1
