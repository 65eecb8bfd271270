"""Reads, stores and atomic updates of array elements, as they are met."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from .forms import Affine, Arg, Clamped, Coord, Form, Less, Loop, Shape, Unknown, Whole
from .model import Site
from .record import Access, Frame, Record
from .source import holds_floats, known_type
from .state import Pattern, is_element, may_alias
from .values import NO_TOKENS, Array, Carried, Doubt, LocalArrayRead, ReadOf, Ref, Tokens, Value

PURE_ATOMICS = frozenset({"atomic_add", "atomic_sub", "tile_atomic_add", "tile_atomic_add_indexed"})
"""Atomics of which Warp's adjoint neither reads the array nor consumes its cotangent."""


def settle(form: Form, facts: Iterable[Less]) -> Form:
    """The form, given the conditions on the way: a guarded neighbour (``if i > 0: x[i - 1]``) is as good as clamped."""
    if not isinstance(form, Affine):
        return form
    if isinstance(form.base, Shape) and form.offset < 0:
        return Clamped(True, True, form.base)
    if not isinstance(form.base, Coord) or form.offset == 0:
        return form
    bound = upper_bound(form, facts)
    low = form.offset > 0 or has_lower_bound(form, facts)
    high = form.offset < 0 or bound is not None
    return Clamped(True, True, bound if bound is not None else form.base) if low and high else form


def upper_bound(form: Affine, facts: Iterable[Less]) -> Shape | Arg | None:
    """The size that the conditions keep the index below."""
    found: Shape | Arg | None = None
    for fact in facts:
        left, right = fact.left, fact.right
        bounded = left.base == form.base and right.offset + form.offset - left.offset <= 0
        if bounded and isinstance(right.base, (Shape, Arg)):
            found = right.base if found is None or isinstance(right.base, Shape) else found
    return found


def has_lower_bound(form: Affine, facts: Iterable[Less]) -> bool:
    """Whether the conditions keep the index from being negative."""
    return any(
        fact.left.base is None
        and fact.right.base == form.base
        and fact.left.offset + 1 - fact.right.offset + form.offset >= 0
        for fact in facts
    )


def index_form(record: Record, value: object) -> Form:
    """The form of an index expression's value."""
    if isinstance(value, Value):
        return settle(value.form, record.state.facts) if value.form is not None else Unknown("a number of any kind")
    return Unknown("an index that can't be followed")


def indices(record: Record, array: Array, values: Sequence[Value], site: Site) -> tuple[tuple[Form, ...], Tokens]:
    """The forms of indices into an array, and what they depend on."""
    forms = tuple(v.form if isinstance(v.form, Whole) else index_form(record, v) for v in values)
    if holds_floats(array.dtype) or record.inside:
        stray(record, values, forms, site)
    return forms, NO_TOKENS.union(*(v.tokens for v in values))


def stray(record: Record, values: Sequence[Value], forms: Sequence[Form], site: Site) -> None:
    """Refuse the gradient where the adjoint may have an index that the kernel never had, and write there."""
    for value, form in zip(values, forms, strict=True):
        if isinstance(form, Clamped) and form.low and form.high:
            continue
        for token in value.tokens:
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
    axes = list(ref.axes)
    for axis, form in zip(ref.free, forms, strict=False):
        current = axes[axis]
        sliced = isinstance(current, Whole) and current.sliced
        if isinstance(form, Whole):
            axes[axis] = Whole(sliced or form.sliced)
        else:
            axes[axis] = Unknown("an index into a slice") if sliced else form
    return tuple(axes)


def _loops(record: Record) -> tuple[int, ...]:
    return tuple(record.loops)


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
    several = len(array.refs) > 1 or array.local or bool(record.possible)
    for ref in array.refs:
        pattern = pattern_of(ref, forms)
        after = _may_be_written(record, ref.root, pattern)
        own = is_element(pattern) and state.must.get((ref.root, pattern)) == frozenset()
        if after:
            state.read_back |= {(ref.root, pattern)}
        if active:
            taints.add(ReadOf(ref.root, after))
            for loop in record.loops:
                if abs(loop) in record.run_time:
                    record.run_time[abs(loop)].reads.setdefault(ReadOf(ref.root, after), site)
        _add(
            record,
            Access(
                ref.root,
                "read",
                pattern,
                site,
                state.conditions,
                _loops(record),
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
    value = Value(
        Unknown(f"values of '{name}'"), active, data=True, tokens=frozenset(taints), type=known_type(array.dtype)
    )
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
    state = record.state
    _written_under(record, array, value, tokens, site)
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
                _loops(record),
                view or ref.view,
                component,
                possible=several,
                active=value.active and not record.shielded,
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
    if name not in PURE_ATOMICS:
        value = record.needing(value, value.tokens, site)
    _written_under(record, array, value, tokens, site)
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
                _loops(record),
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
    if holds_floats(array.dtype):
        record.warn(*record.judged)


def _written_under(record: Record, array: Array, value: Value, tokens: Tokens, site: Site) -> None:
    """The adjoint of a write runs under the same conditions, at the same index."""
    if holds_floats(array.dtype):
        needed = tokens | array.tokens
        if value.active:
            needed = needed.union(*(condition.tokens for condition in record.state.conditions))
            record.warn(*record.judged)
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
