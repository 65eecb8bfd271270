"""Numbers: what operators and builtins make of index forms, conditions and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .forms import NO_TRUTH, Affine, Arg, Base, Clamped, Coord, Form, Less, Loop, Shape, Size, Truth, Unknown, literal
from .model import Site
from .record import Record
from .source import holds_floats, overload
from .state import Condition
from .values import NO_TOKENS, NOTHING, Doubt, Tokens, Value, merged

LINEAR = frozenset(
    [
        "add",
        "sub",
        "neg",
        "pos",
        "copy",
        "transpose",
        "extract",
        "vector",
        "matrix",
        "quaternion",
        "transformation",
        "spatial_vector",
        "tile",
        "quat_identity",
        "transform_identity",
        "identity",
        "spatial_top",
        "spatial_bottom",
        "transform_get_translation",
        "transform_get_rotation",
        "matrix_from_cols",
        "matrix_from_rows",
        "skew",
        "diag",
        "get_diag",
        "trace",
        "tile_zeros",
        "tile_ones",
        "tile_full",
        "tile_view",
        "tile_squeeze",
        "tile_reshape",
        "tile_transpose",
        "tile_broadcast",
        "tile_sum",
        "tile_extract",
        "tile_astype",
        "untile",
        "tile_from_thread",
    ]
)
"""Builtins of which the adjoint needs no argument's value."""

BILINEAR = frozenset(
    [
        "mul",
        "dot",
        "ddot",
        "cross",
        "outer",
        "cw_mul",
        "spatial_dot",
        "spatial_cross",
        "spatial_cross_dual",
        "tile_matmul",
        "tile_dot",
    ]
)
"""Builtins of which the adjoint needs each argument's value for the other's gradient only."""

SHARING = frozenset({"tile_view", "tile_assign"})
"""Builtins without an adjoint of their own whose result shares its adjoint with an argument."""

REMAINDERS = frozenset({"frac", "mod"})
"""Builtins that can be written so that Warp differentiates them."""

LEFT_OUT = {"mod": 1}
"""Arguments that have a derivative, and that Warp's adjoint leaves out, by position."""

WITHOUT_GRADIENT = frozenset(
    [
        "floor",
        "ceil",
        "round",
        "rint",
        "trunc",
        "sign",
        "step",
        "argmin",
        "argmax",
        "len",
        "isnan",
        "isinf",
        "isfinite",
        "nonzero",
        "floordiv",
        "tid",
        "block_dim",
        "lower_bound",
        "tile_argmin",
        "tile_argmax",
        "expect_eq",
        "expect_neq",
        "expect_near",
        "printf",
        "print",
        "unot",
        "invert",
        "bit_and",
        "bit_or",
        "bit_xor",
        "lshift",
        "rshift",
    ]
)
"""Builtins whose derivative is zero, wherever they have one."""

INTEGER_CASTS = frozenset({"int", "int32", "int64", "uint32", "uint64"})
NARROW_CASTS = frozenset({"int8", "int16", "uint8", "uint16", "bool"})
CASTS = INTEGER_CASTS | NARROW_CASTS | {"float", "float16", "float32", "float64", "bfloat16"}


def mixed(values: Sequence[Value], form: Form | None, *, active: bool | None = None) -> Value:
    """A value computed from others, with the given form."""
    return Value(
        form=form,
        active=any(v.active for v in values) if active is None else active,
        coords=any(v.coords for v in values),
        data=any(v.data for v in values),
        tokens=frozenset().union(*(v.tokens for v in values)) if values else NO_TOKENS,
        trace=merged(v.trace for v in values if v.active),
    )


def computed(values: Sequence[Value], text: str) -> Unknown:
    """The form of a number that isn't affine: the first reason of its operands, or its own text."""
    for value in values:
        if isinstance(value.form, Unknown) and not value.form.derived:
            return value.form
    return Unknown(f"computed: {text}", derived=any(v.coords for v in values))


# ---------------------------------------------------------------------------------------------------------------------
# Operators


def combine(record: Record, operator: str, left: Value, right: Value, text: str, site: Site) -> Value:
    """``left <operator> right`` by the name that Warp has for the operator."""
    record.tick()
    form: Form | None
    if operator in ("add", "sub"):
        form = _sum(left.form, right.form, -1 if operator == "sub" else 1)
    elif operator == "mul":
        form = _product(left.form, right.form)
    elif operator == "mod":
        form = _modulo(right.form)
    else:
        form = None
    if form is None:
        form = computed((left, right), text)
    return differentiated(record, operator, (left, right), mixed((left, right), form), site)


def differentiated(record: Record, name: str, values: Sequence[Value], result: Value, site: Site) -> Value:
    """The result of a builtin, and what Warp's adjoint of it needs, or that there is none."""
    found = overload(name, tuple(v.type for v in values))
    flat = (
        name in WITHOUT_GRADIENT or "query" in name or (found.returns is not None and not holds_floats(found.returns))
    )
    result = replace(result, type=found.returns, active=result.active and not flat)
    left_out = LEFT_OUT.get(name, len(values))
    doubts = []
    if result.active and not found.differentiable and name not in SHARING:
        doubts.append(no_adjoint(name, site))
    elif result.active and any(v.active for v in values[left_out : left_out + 1]):
        message = f"Warp's adjoint of wp.{name} leaves out the gradient of its argument {left_out + 1}"
        doubts.append(Doubt("no-adjoint", site, message))
    if doubts and name in REMAINDERS:
        record.remainders.add((site.file, site.line, site.column))
        doubts = [replace(doubt, kind="remainder") for doubt in doubts]
    result = record.doubting(result, doubts)
    return record.needing(result, needed(name, values), site)


def no_adjoint(name: str, site: Site) -> Doubt:
    return Doubt("no-adjoint", site, f"Warp has no adjoint for wp.{name}, so that no gradient passes it")


def needed(name: str, values: Sequence[Value]) -> Tokens:
    """What Warp's adjoint of a builtin needs to know of its arguments."""
    if name in LINEAR or not any(v.active for v in values):
        return NO_TOKENS
    found = values
    if name in BILINEAR or (name == "div" and len(values) == 2):
        found = [v for v in values if any(other.active for other in values if other is not v)]
        if (name == "div" and values[1].active) or values[0] is values[1]:
            found.append(values[1])
    return NO_TOKENS.union(*(v.tokens for v in found))


def _sum(a: Form | None, b: Form | None, sign: int) -> Form | None:
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


def _modulo(divisor: Form | None) -> Form | None:
    """A remainder lies within the divisor either way: Warp wraps a negative index once."""
    if isinstance(divisor, Affine) and divisor.offset == 0 and isinstance(divisor.base, (Shape, Arg)):
        return Clamped(True, True, divisor.base)
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


def clamped(name: str, values: Sequence[Value], text: str) -> Value:
    """``min``, ``max`` and ``clamp`` of indices."""
    forms = [v.form for v in values]
    form: Form | None = None
    if name == "max" and len(forms) == 2:
        form = _at_least_zero(forms[0], forms[1]) or _at_least_zero(forms[1], forms[0])
    elif name == "min" and len(forms) == 2:
        form = _below(forms[0], forms[1]) or _below(forms[1], forms[0])
    elif name == "clamp" and len(forms) == 3 and literal(forms[1]) == 0:
        form = _below(_at_least_zero(forms[0], forms[1]), forms[2])
        if form is None and isinstance(forms[0], Unknown):
            bound = _upper_base(forms[2])
            form = Clamped(True, True, bound) if bound is not None else None
    return mixed(values, form if form is not None else computed(values, text))


def _as_clamped(form: Form | None) -> Clamped | None:
    if isinstance(form, Clamped):
        return form
    if isinstance(form, Affine) and isinstance(form.base, (Coord, Loop)):
        high = form.offset <= 0 and isinstance(form.base, Coord)
        return Clamped(form.offset >= 0, high, form.base if high else None)
    return None


def _at_least_zero(form: Form | None, floor: Form | None) -> Clamped | None:
    current = _as_clamped(form)
    if current is None or literal(floor) != 0:
        return None
    return Clamped(True, current.high, current.bound)


def _below(form: Form | None, ceiling: Form | None) -> Clamped | None:
    current = _as_clamped(form)
    bound = _upper_base(ceiling)
    if current is None or bound is None:
        return None
    return Clamped(current.low, True, bound)


def _upper_base(form: Form | None) -> Base | None:
    """The size that an inclusive ceiling (``n - 1``) stays below."""
    if isinstance(form, Affine) and isinstance(form.base, (Shape, Arg)) and form.offset < 0:
        return form.base
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Conditions


def compare(operator: str, left: Value, right: Value) -> Truth:
    """What a comparison says of indices."""
    a, b = left.form, right.form
    if not isinstance(a, Affine) or not isinstance(b, Affine):
        return NO_TRUTH
    if operator == "==":
        return Truth(when_true=frozenset({_at_most(a, b), _at_most(b, a)}))
    if operator == "!=":
        return Truth(when_false=frozenset({_at_most(a, b), _at_most(b, a)}))
    if operator == ">":
        return compare("<", right, left)
    if operator == ">=":
        return compare("<", left, right).negated()
    if operator == "<=":
        return compare("<", right, left).negated()
    if operator != "<":
        return NO_TRUTH
    less, other = Less(a, b), _at_most(b, a)
    return Truth(frozenset({less}), frozenset({other}), _impossible(less), _impossible(other))


def _at_most(a: Affine, b: Affine) -> Less:
    return Less(a, Affine(b.base, b.offset + 1))


def _impossible(less: Less) -> frozenset[Size] | None:
    """Sizes under which ``bound + p < coordinate + q`` holds for no coordinate below the bound."""
    left, right = less.left, less.right
    if isinstance(right.base, Coord) and left.offset - right.offset >= -1:
        if isinstance(left.base, (Shape, Arg)):
            return frozenset({Size(right.base.axis, left.base)})
        if left.base is None:
            return frozenset({Size(right.base.axis, left.offset - right.offset + 1)})
    return None


def both(a: Truth, b: Truth) -> Truth:
    """The conjunction."""
    return Truth(
        a.when_true | b.when_true,
        a.when_false & b.when_false,
        a.never_true if a.never_true is not None else b.never_true,
        None if a.never_false is None or b.never_false is None else a.never_false | b.never_false,
    )


def either(a: Truth, b: Truth) -> Truth:
    return both(a.negated(), b.negated()).negated()


def condition_of(value: Value, site: Site, holds: bool) -> Condition:
    """The condition that a branch runs under."""
    truth = value.truth if holds else value.truth.negated()
    return Condition(value.coords, value.data, truth.never_false, truth.never_true, site, value.tokens)
