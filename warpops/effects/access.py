"""Reads, stores and atomic updates of array elements, as they are met."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from ..frozen import replace
from ..private.warp_types import holds_floats, known_type
from .facts import closure
from .forms import (
    ALL,
    NONE,
    Affine,
    Base,
    Clamped,
    Covered,
    Earlier,
    Facts,
    Form,
    Loop,
    Shape,
    Unknown,
    Whole,
    varies,
)
from .joins import join, with_tokens
from .model import Site
from .record import Access, Frame, Record
from .state import Pattern, State, is_element, may_alias
from .tables import row
from .values import (
    NO_TOKENS,
    Abstract,
    Array,
    Carried,
    Doubt,
    Element,
    Given,
    LocalArrayRead,
    Object,
    ReadOf,
    Ref,
    Tokens,
    Value,
    is_active,
    merged,
    tokens_of,
    traces_of,
)


def settle(form: Affine, facts: Facts) -> Affine | Clamped:
    """What a number is known to be under the facts, for where they are forgotten: ``i - 1`` where ``i > 0`` isn't negative."""
    if form.base is None or not any(form.base in (fact.left.base, fact.right.base) for fact in facts):
        return form
    known = closure(facts, form)
    least = known.least(form)
    bounds: dict[Base | None, int] = {form.base: 1 + form.offset}
    for base in {base for fact in facts for base in (fact.left.base, fact.right.base)}:
        most = known.most(form.base, base)
        if most is not None and not isinstance(base, (Loop, Earlier)):
            bounds[base] = most + form.offset + 1
    found = frozenset(Affine(base, offset) for base, offset in bounds.items())
    return Clamped(least is not None and least >= 0, found, varies(form))


def index_form(value: Value) -> Form:
    """The form of an index expression's value."""
    return value.form if value.form is not None else Unknown("a number of any kind", varies=value.varies)


def indices(record: Record, array: Array, values: Sequence[Value], site: Site) -> tuple[tuple[Form, ...], Tokens]:
    """The forms of indices into an array, and what they depend on."""
    forms = tuple([index_form(v) for v in values])
    tokens = NO_TOKENS.union(*[v.tokens for v in values])
    if tokens and (record.inside or holds_floats(array.dtype)):
        stray(record, values, forms, site)
    return forms, tokens


def stray(record: Record, values: Sequence[Value], forms: Sequence[Form], site: Site) -> None:
    """Refuse the gradient where the adjoint may have an index that the kernel never had, and write there."""
    for value, form in zip(values, forms, strict=True):
        if not (isinstance(form, Clamped) and form.low and form.bounds):
            stray_by(record, value.tokens, site)


def stray_by(record: Record, tokens: Tokens, site: Site) -> None:
    """Refuse the gradient where what is behind the tokens makes an index another one in the adjoint."""
    for token in tokens:
        if isinstance(token, Given) and token.stray:
            record.strays.setdefault((token, site))
        if isinstance(token, Carried) and token not in record.harmless:
            loop = record.loop_sites.get(token.loop)
            where = f" (at {loop})" if loop is not None else ""
            message = (
                f"the loop's variable '{token.name}' is an index here, and Warp's adjoint has another value of it "
                f"than the loop{where} had, so that it may write outside of the array"
            )
            record.warn(Doubt("index", site, message))


def narrow(array: Array, forms: Sequence[Form]) -> Array:
    """The view ``array[forms]`` with fewer indices than axes; a ``Whole`` keeps its axis."""
    refs = frozenset(Ref(ref.root, pattern_of(ref, forms), True) for ref in array.refs)
    kept = sum(isinstance(form, Whole) for form in forms)
    return replace(array, copied=True, refs=refs, ndim=max(array.ndim - len(forms) + kept, 0))


def pattern_of(ref: Ref, forms: Sequence[Form]) -> Pattern:
    if not ref.view:  # all of its axes are free
        return (*forms[: len(ref.axes)], *ref.axes[len(forms) :])
    axes = list(ref.axes)
    for axis, form in zip(ref.free, forms, strict=False):
        current = axes[axis]
        sliced = isinstance(current, Whole) and current.sliced
        if isinstance(form, Whole):
            axes[axis] = Whole(sliced or form.sliced, varies(current) | form.varies)
        else:
            inside = varies(current) | varies(form)
            axes[axis] = Unknown("an index into a slice", varies=inside) if sliced else form
    return tuple(axes)


def _add(
    record: Record, ref: Ref, kind: str, pattern: Pattern, site: Site, *, view: bool, possible: bool, **more: Any
) -> None:
    """Note an access under the conditions of where it is."""
    if record.silent:
        return
    under = (record.state.conditions, record.state.facts, record.loops, view or ref.view)
    inside = bool(record.inside)
    record.accesses.setdefault(Access(ref.root, kind, pattern, site, *under, possible=possible, inside=inside, **more))


def _may_be_written(record: Record, root: str, pattern: Pattern) -> bool:
    return any(array == root and may_alias(pattern, other) for array, other in record.state.written)


def _begun(form: Form, facts: Facts) -> Form:
    """An index by a loop's variable, which under the facts begins later: ``k - 1`` where ``k > 0``."""
    loop = form.base if isinstance(form, Affine) else None
    if not isinstance(loop, Loop) or not isinstance(form, Affine) or loop.direction <= 0 or form.offset >= 0:
        return form
    least = closure(facts, form).least(form)
    if least is None or (loop.start is not None and least <= loop.start + form.offset):
        return form
    return replace(form, base=replace(loop, start=least - form.offset))


def _surely_written(state: State, root: str, pattern: Pattern) -> bool:
    """Whether this thread has stored the element on every way here: it, or an axis from end to end."""
    for (array, other), sizes in state.must.items():
        if array == root and not sizes and len(other) == len(pattern):
            pairs = enumerate(zip(pattern, other, strict=True))
            if all(b == Covered(Shape(root, axis)) or (isinstance(a, Affine) and a == b) for axis, (a, b) in pairs):
                return True
    return False


def read(
    record: Record,
    frame: Frame,
    array: Array,
    forms: Sequence[Form],
    site: Site,
    tokens: Tokens = NO_TOKENS,
    *,
    view: bool = False,
) -> Value:
    """Read an element (or all that the forms leave free)."""
    state = record.state
    active = holds_floats(array.dtype)
    taints = set(tokens | array.tokens)
    several = len(array.refs) > 1 or array.local or bool(record.possible)
    depends = ALL if array.local else NONE
    for ref in array.refs:
        pattern = pattern_of(ref, forms)
        depends = depends.union(*map(varies, pattern))
        after = _may_be_written(record, ref.root, pattern)
        own = _surely_written(state, ref.root, pattern)
        if after:
            depends = ALL
        token = ReadOf(ref.root, after, site)
        seen = (token, tuple([_begun(form, state.facts) for form in pattern]))
        if seen not in state.read:
            state.read |= {seen}
        taints.add(token)
        if record.shielded:  # a gradient of the user's own may read it as well
            record.events.setdefault(token, site)
        for loop in record.around:
            if loop in record.run_time:
                record.run_time[loop].reads.setdefault(token, site)
        _add(
            record,
            ref,
            "read",
            pattern,
            site,
            view=view,
            first=not after and is_element(pattern) and not several,
            own=own,
            possible=several,
        )
    if array.local and active:
        taints.add(LocalArrayRead(frame.id))
    name = next((ref.root for ref in array.refs), "a local array")
    unknown = Unknown(f"values of '{name}'", False, depends, 1, values_of=None if several else name)
    value = Value(unknown, active, data=True, tokens=frozenset(taints), type=known_type(array.dtype), varies=depends)
    value = record.needing(value, tokens | array.tokens, site)
    return value if array.doubt is None else record.doubting(value, [array.doubt])


def store(
    record: Record,
    array: Array,
    forms: Sequence[Form],
    value: Value,
    site: Site,
    tokens: Tokens = NO_TOKENS,
    *,
    component: bool = False,
    view: bool = False,
) -> None:
    """Store an element, or a component of one."""
    record.acts()
    state = record.state
    _written_under(record, array, value, tokens, site)
    several = len(array.refs) > 1 or array.local or bool(record.possible)
    for ref in array.refs:
        pattern = pattern_of(ref, forms)
        again = component or any(not _distinct(pattern, loop) for loop in record.loops)
        state.stores[ref.root] = min(2, state.stores.get(ref.root, 0) + (2 if again else 1))
        _overwrite(record, ref.root, pattern, site)
        state.written |= {(ref.root, pattern)}
        if not component and not several and is_element(pattern):
            state.must[(ref.root, pattern)] = frozenset()
        _add(
            record,
            ref,
            "store",
            pattern,
            site,
            view=view,
            component=component,
            possible=several,
            active=value.active and not record.shielded,
            varies=value.varies,
        )


def update(
    record: Record,
    array: Array,
    forms: Sequence[Form],
    name: str,
    value: Value,
    site: Site,
    tokens: Tokens = NO_TOKENS,
    *,
    used: bool = False,
    component: bool = False,
    view: bool = False,
) -> None:
    """Update an element atomically."""
    record.acts()
    state = record.state
    looks = not row(name).sums
    if looks:
        looked = {ReadOf(ref.root, True, site, name) for ref in array.refs} if value.active else NO_TOKENS
        value = record.needing(value, value.tokens | looked, site)
    _written_under(record, array, value, tokens, site)
    for ref in array.refs:
        pattern = pattern_of(ref, forms)
        _overwrite(record, ref.root, pattern, site, name)
        state.written |= {(ref.root, pattern)}
        if looks:
            state.read |= {(ReadOf(ref.root, True, site, name), pattern)}
        _add(
            record,
            ref,
            name,
            pattern,
            site,
            view=view,
            component=component,
            used=used,
            own=_surely_written(state, ref.root, pattern),
            possible=len(array.refs) > 1 or bool(record.possible),
            active=value.active and not record.shielded,
        )


def escape(record: Record, array: Array, site: Site) -> None:
    """The array goes where the analysis can't follow it."""
    record.acts()
    for ref in array.refs:
        if not record.silent:
            record.escapes.setdefault((ref.root, site))
        record.state.written |= {(ref.root, (Whole(True),) * len(ref.axes))}
    if holds_floats(array.dtype):
        record.state.acted = True
        record.warn(*record.judged)


def _overwrite(record: Record, root: str, pattern: Pattern, site: Site, kind: str = "store") -> None:
    """Note what was read of these elements: the launch doesn't leave it there."""
    for token, other in record.state.read:
        if token.array == root and token.kind != kind and may_alias(pattern, other):
            record.overwritten.setdefault(token, site)


def _written_under(record: Record, array: Array, value: Value, tokens: Tokens, site: Site) -> None:
    """The adjoint of a write runs under the same conditions, at the same index."""
    if holds_floats(array.dtype):
        needed = tokens | array.tokens | record.bounds
        for condition in record.state.conditions:
            needed |= condition.tokens
        record.state.acted = True
        record.warn(*record.judged)  # a store ends the cotangent, whatever it stores
        record.stores(value, needed, site)


def _distinct(pattern: Pattern, loop: int) -> bool:
    """Whether every iteration of the loop touches another element."""
    return any(
        isinstance(form, Affine)
        and form.offset == 0
        and isinstance(form.base, Loop)
        and form.base.id == loop
        and form.base.nonneg
        for form in pattern
    )


def number(record: Record, frame: Frame, node: ast.AST) -> Value:
    """An expression's value as a number, vector or tile."""
    value = frame.env.get(node.id) if type(node) is ast.Name else None
    if type(value) is not Value:
        value = record.evaluate(record, frame, node)
    return value if isinstance(value, Value) else as_number(record, frame, value, node)


def as_number(record: Record, frame: Frame, value: Abstract, node: ast.AST) -> Value:
    if isinstance(value, Value):
        return value
    if isinstance(value, Element):
        return read(record, frame, value.array, value.forms, frame.code.site(node))
    if isinstance(value, Object) and not callable(value.value):
        return Value(const=value.value)
    if isinstance(value, Array):
        record.tested.update(ref.root for ref in value.refs)
    return Value(
        Unknown("a value that isn't a number", varies=ALL),
        active=is_active(value),
        data=True,
        tokens=tokens_of(value),
        varies=ALL,
        trace=merged(traces_of(value)),
    )


def chosen(record: Record, frame: Frame, test: Value, one: Abstract, other: Abstract, node: ast.AST) -> Abstract:
    """``one`` where the test holds, else ``other``: the adjoint needs the test."""
    facts = record.state.facts
    if one == other:  # they may have come about in different ways
        return join(one, other)
    one = settled(one, facts | test.truth.true.facts)
    other = settled(other, facts | test.truth.false.facts)
    result = join(one, other, test.coords and not test.data)
    if one == other:
        return result
    result = record.needing(result, test.tokens, frame.code.site(node))
    if not isinstance(result, Value):
        return with_tokens(result, test.tokens)
    coords, data, tokens = result.coords or test.coords, result.data or test.data, result.tokens | test.tokens
    return replace(result, coords=coords, data=data, tokens=tokens, varies=result.varies | test.varies)


def settled(value: Abstract, facts: Facts) -> Abstract:
    """A value on its way to where the conditions that it was made under are forgotten."""
    if facts and isinstance(value, Value) and isinstance(value.form, Affine):
        form = settle(value.form, facts)
        return value if form is value.form else replace(value, form=form)
    return value
