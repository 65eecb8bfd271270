"""Reads, stores and atomic updates of array elements, as they are met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .facts import closure
from .forms import ALL, NONE, Affine, Base, Clamped, Earlier, Facts, Form, Loop, Unknown, Whole, varies
from .model import Site
from .record import Access, Frame, Record
from .source import holds_floats
from .state import Pattern, is_element, may_alias
from .values import NO_TOKENS, Array, LocalArrayRead, ReadOf, Ref, Tokens, Value

PURE_ATOMICS = frozenset({"atomic_add", "atomic_sub", "tile_atomic_add", "tile_atomic_add_indexed"})
"""Atomics of which Warp's adjoint neither reads the array nor consumes its cotangent."""


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


def index_form(value: object) -> Form:
    """The form of an index expression's value."""
    if isinstance(value, Value):
        return value.form if value.form is not None else Unknown("a number of any kind", varies=value.varies)
    return Unknown("an index that can't be followed")


def narrow(array: Array, forms: Sequence[Form]) -> Array:
    """The view ``array[forms]`` with fewer indices than axes; a ``Whole`` keeps its axis."""
    refs = frozenset(Ref(ref.root, pattern_of(ref, forms), True) for ref in array.refs)
    kept = sum(isinstance(form, Whole) for form in forms)
    return replace(array, refs=refs, ndim=max(array.ndim - len(forms) + kept, 0))


def pattern_of(ref: Ref, forms: Sequence[Form]) -> Pattern:
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


def _add(record: Record, access: Access) -> None:
    if not record.silent:
        record.accesses.setdefault(access)


def _may_be_written(record: Record, root: str, pattern: Pattern) -> bool:
    return any(array == root and may_alias(pattern, other) for array, other in record.state.written)


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
    if active:
        record.need(tokens | array.tokens, site)
        record.flow(True)
    several = len(array.refs) > 1 or array.local or bool(record.possible)
    depends = ALL if array.local else NONE
    for ref in array.refs:
        pattern = pattern_of(ref, forms)
        depends = depends.union(*map(varies, pattern))
        after = _may_be_written(record, ref.root, pattern)
        own = is_element(pattern) and state.must.get((ref.root, pattern)) == frozenset()
        if after:
            state.read_back |= {(ref.root, pattern)}
            depends = ALL
        if active:
            taints.add(ReadOf(ref.root, after))
        _add(
            record,
            Access(
                ref.root,
                "read",
                pattern,
                site,
                state.conditions,
                state.facts,
                tuple(record.loops),
                view or ref.view,
                first=not after and is_element(pattern) and not several,
                own=own,
                possible=several,
                inside=bool(record.inside),
            ),
        )
    if array.local and active:
        taints.add(LocalArrayRead(frame.id))
    name = next((ref.root for ref in array.refs), "a local array")
    unknown = Unknown(f"values of '{name}'", False, depends, 1)
    return Value(unknown, active=active, data=True, tokens=frozenset(taints), varies=depends)


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
    state = record.state
    _written_under(record, array, value.active, tokens, site)
    several = len(array.refs) > 1 or array.local or bool(record.possible)
    for ref in array.refs:
        pattern = pattern_of(ref, forms)
        again = component or any(not _distinct(pattern, loop) for loop in record.loops)
        state.stores[ref.root] = min(2, state.stores.get(ref.root, 0) + (2 if again else 1))
        if any(root == ref.root and may_alias(pattern, other) for root, other in state.read_back):
            record.restored.setdefault(ref.root, site)
        state.written |= {(ref.root, pattern)}
        if not component and not several and is_element(pattern):
            state.must[(ref.root, pattern)] = frozenset()
        _add(
            record,
            Access(
                ref.root,
                "store",
                pattern,
                site,
                state.conditions,
                state.facts,
                tuple(record.loops),
                view or ref.view,
                component,
                possible=several,
                active=value.active and not record.shielded,
                varies=value.varies,
                inside=bool(record.inside),
            ),
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
    state = record.state
    _written_under(record, array, value.active, tokens, site)
    for ref in array.refs:
        pattern = pattern_of(ref, forms)
        if name not in PURE_ATOMICS or used:
            state.read_back |= {(ref.root, pattern)}
        state.written |= {(ref.root, pattern)}
        _add(
            record,
            Access(
                ref.root,
                name,
                pattern,
                site,
                state.conditions,
                state.facts,
                tuple(record.loops),
                view or ref.view,
                component,
                used=used,
                possible=len(array.refs) > 1 or bool(record.possible),
                inside=bool(record.inside),
            ),
        )


def escape(record: Record, array: Array, site: Site) -> None:
    """The array goes where the analysis can't follow it."""
    for ref in array.refs:
        if not record.silent:
            record.escapes.setdefault((ref.root, site))
        anything = (ref.root, (Whole(True),) * len(ref.axes))
        record.state.written |= {anything}
        record.state.read_back |= {anything}
    record.flow(holds_floats(array.dtype))


def _written_under(record: Record, array: Array, active: bool, tokens: Tokens, site: Site) -> None:
    """The adjoint of a write runs under the same conditions, at the same index."""
    if holds_floats(array.dtype):
        record.need(tokens | array.tokens, site)
        if active:
            record.flow(True)
            for condition in record.state.conditions:
                record.need(condition.tokens, site)


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
