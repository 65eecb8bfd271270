"""Where two ways of a kernel's body meet: values and states joined."""

from __future__ import annotations

from collections.abc import Iterable

from ..frozen import replace
from .forms import Affine, Earlier, Form, Loop, Size, Whole, join_forms, varies
from .state import Pattern, State, Written, _Place
from .values import (
    NOTHING,
    UNKNOWN,
    Abstract,
    Array,
    Component,
    Held,
    Struct,
    Tokens,
    Tuple,
    Value,
    merged,
    tokens_of,
    traces_of,
    without_tokens,
)


def copied(value: Abstract) -> Abstract:
    """A value as another variable has it: Warp copies vectors on assignment."""
    return without_tokens(value, (Component, Held))


def meet_must(
    paths: Iterable[tuple[dict[Written, frozenset[Size]], frozenset[Size] | None]],
) -> dict[Written, frozenset[Size]]:
    """What is written on every path. A path comes with the sizes under which no thread takes it, if there are such."""
    paths = list(paths)
    patterns = {pattern for must, _ in paths for pattern in must}
    result = {}
    for pattern in patterns:
        sizes: frozenset[Size] = frozenset()
        for must, never in paths:
            if pattern in must:
                sizes |= must[pattern]
            elif never is not None:
                sizes |= never
            else:
                break
        else:
            result[pattern] = sizes
    return result


def merge(before: State, branches: list[State]) -> State:
    """The state after branches of which one is taken; each began with ``before``'s conditions and one of its own."""
    live = [state for state in branches if state.alive]
    if not live:
        result = before.copy()
        result.alive = False
    elif len(live) == 1:
        # The others left the kernel, the function or the loop: what follows runs under this one's condition.
        result = live[0].copy()
    else:
        depth = len(before.conditions)
        result = before.copy()
        result.must = meet_must([(state.must, never_taken(state, depth)) for state in live])
        result.facts = frozenset.intersection(*(state.facts for state in live))
        exits = [c for state in live for c in state.conditions[depth + 1 :]]
        result.conditions = (*before.conditions, *(c.in_part() for c in exits))
    for state in branches:
        result.absorb(state)
    return result


def meet(before: State, ends: Iterable[State]) -> State:
    """The state after one of several ways through a function; conditions and facts are the caller's again."""
    state = before.copy()
    ends = list(ends)
    if ends:
        state.must = meet_must([(end.must, never_taken(end, len(before.conditions))) for end in ends])
    for end in ends:
        state.absorb(end)
    return state


def never_taken(state: State, depth: int) -> frozenset[Size] | None:
    """Sizes under which no thread is on this path, judged by its conditions beyond the first ``depth``."""
    return next((c.never for c in state.conditions[depth:] if c.never is not None), None)


def leave_loop(seen: frozenset[tuple[_Place, Pattern]], loop: int, again: bool) -> frozenset[tuple[_Place, Pattern]]:
    """Patterns seen from the next iteration of a loop (``again``), or from behind it."""
    by_loop = [one for one in seen if any(is_by(form, loop) for form in one[1])]
    if not by_loop:
        return seen
    aged = [(place, tuple(_aged(form, loop, again) for form in pattern)) for place, pattern in by_loop]
    return seen.difference(by_loop).union(aged)


def is_by(form: Form, loop: int) -> bool:
    """Whether an index is a loop's variable, or was in an earlier turn, plus a number."""
    return isinstance(form, Affine) and isinstance(form.base, (Loop, Earlier)) and form.base.id == loop


def _aged(form: Form, loop: int, again: bool) -> Form:
    if not is_by(form, loop):
        return form
    assert isinstance(form, Affine)
    assert isinstance(form.base, (Loop, Earlier))
    return Affine(Earlier(loop, form.base.start), form.offset) if again else Whole(True, varies(form))


def with_tokens(value: Abstract, tokens: Tokens) -> Abstract:
    """The value, tainted by more tokens."""
    if not tokens:
        return value
    if isinstance(value, (Value, Array)):
        return value if tokens <= value.tokens else replace(value, tokens=value.tokens | tokens)
    if isinstance(value, Tuple):
        return Tuple(tuple(with_tokens(item, tokens) for item in value.items))
    if isinstance(value, Struct):
        from .names import struct_field  # the types of fields are Warp's

        names = getattr(value.type, "vars", {})
        return replace(value, fields={name: with_tokens(struct_field(value, name), tokens) for name in names})
    return value


def join(a: Abstract | None, b: Abstract | None, sure: bool = False) -> Abstract:
    """A value that is either: exact only where both agree. ``sure``: coordinates alone decide."""
    if a is None or b is None:
        # Warp takes a variable assigned on one path only as that path's; it is undefined elsewhere.
        present = a if b is None else b
        assert present is not None
        return present
    if a is b:
        return a
    if isinstance(a, Value) and isinstance(b, Value):
        trace = merged((*traces_of(a), *traces_of(b)))
        if a == b:
            return replace(a, const=NOTHING, trace=trace)
        return Value(
            form=join_forms(a.form, b.form, sure),
            active=a.active or b.active,
            coords=a.coords or b.coords,
            data=a.data or b.data,
            tokens=a.tokens | b.tokens,
            parts=None if a.parts is None or b.parts is None else a.parts | b.parts,
            type=a.type if a.type is b.type else None,
            trace=trace,
            varies=a.varies | b.varies,
        )
    if isinstance(a, Array) and isinstance(b, Array):
        return Array(
            refs=a.refs | b.refs,
            ndim=a.ndim if a.ndim == b.ndim else 0,
            dtype=a.dtype if a.dtype is b.dtype else (a.dtype or b.dtype),
            local=a.local or b.local,
            tokens=a.tokens | b.tokens,
            copied=True,
            doubt=a.doubt or b.doubt,
        )
    if isinstance(a, Struct) and isinstance(b, Struct) and a.type is b.type:
        return _join_structs(a, b)
    if a == b and not isinstance(a, Tuple):
        return a
    if isinstance(a, Tuple) and isinstance(b, Tuple) and len(a.items) == len(b.items):
        return Tuple(tuple(join(x, y) for x, y in zip(a.items, b.items, strict=True)))
    refs = frozenset().union(*(v.refs for v in (a, b) if isinstance(v, Array)))
    if refs:
        return Array(refs, 0, local=True, tokens=tokens_of(a) | tokens_of(b))
    return replace(UNKNOWN, tokens=tokens_of(a) | tokens_of(b), trace=merged((*traces_of(a), *traces_of(b))))


def _join_structs(a: Struct, b: Struct) -> Struct:
    from .names import struct_field  # the types of fields are Warp's

    if a == b:
        return replace(a, fields={name: join(item, b.fields[name]) for name, item in a.fields.items()})
    fields = {}
    for name in getattr(a.type, "vars", {}):
        fields[name] = join(struct_field(a, name), struct_field(b, name))
    return Struct(a.type, None, fields, a.tokens | b.tokens)
