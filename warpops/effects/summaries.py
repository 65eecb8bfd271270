"""Functions that compute numbers, interpreted once for all calls with arguments of one kind: what they come to, less the
arguments.

They may read arrays that the kernel hasn't written so far. Structs are what is in them, side by side.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeAlias

import warp as wp

from ..frozen import replace
from ..private.warp_source import parameters
from ..private.warp_types import is_reference
from . import access
from .forms import NO_FACTS, Affine, Clamped, Facts, OneOf, Unknown
from .model import Site
from .names import Code, code_of, struct_field
from .outside import outside
from .record import ActsError, Frame, Record, Summary, Way, behind, first_needs
from .state import Pattern, State
from .values import (
    NO_TOKENS,
    NOTHING,
    Abstract,
    Array,
    Carried,
    Component,
    Given,
    Needs,
    ReadOf,
    Struct,
    Tokens,
    Trace,
    Tuple,
    Value,
    tokens_of,
    traces_of,
    with_trace,
)

Bound = dict[str, tuple[Abstract, ast.expr | None]]
Part: TypeAlias = Value | Array
Inline = Callable[[Record, Frame, Any, Bound, ast.Call], Abstract]

_REASON = "\0"
"""The reason of an argument that has one: of that of the call."""


def summarised(
    record: Record, frame: Frame, function: Any, bound: Bound, node: ast.Call, inline: Inline
) -> Abstract | None:
    """What a call comes to; None where it may do more than read, and return numbers."""
    types, code = parameters(function), code_of(function)
    given: list[Part] = []
    structs: list[Hashable] = []
    for name, (value, _) in bound.items():
        before = len(given)
        if is_reference(types.get(name)) or not _take(value, given, structs):
            return None
        if name in code.stored_into and any(isinstance(token, Component) for token in tokens_of(value)):
            return None
        if name in code.written and any(isinstance(part, Array) for part in given[before:]):
            return None
    roots = {ref.root for part in given if isinstance(part, Array) for ref in part.refs}
    if roots and any(root in roots for root, _ in record.state.written):
        return None
    kinds = [_kind(record, part, number) for number, part in enumerate(given)]
    around: tuple[Any, ...] = ()
    facts: Facts = NO_FACTS
    if any(map(_is_index, given)):
        facts = record.state.facts
        around = (facts, bool(record.possible), bool(record.inside))
    key = (function, record.unroll, record.copies, bool(record.shielded), tuple(structs), around, *kinds)
    try:
        found = _known(record, key)
    except TypeError:  # a constant of the kernel's that isn't hashable
        return None
    site = frame.code.site(node)
    if found is ...:
        traces = [Trace([]) for _ in kinds]
        parts = iter([with_trace(kind, trace) for kind, trace in zip(kinds, traces, strict=True)])
        plain: Bound = {name: (_with_parts(value, parts), argument) for name, (value, argument) in bound.items()}
        found = _made(record, key, facts, site, traces, lambda: inline(record, frame, function, plain, node))
    if record.summing:
        record.within[key] = found
    return None if found is None else _applied(record, found, given, site)


def _known(record: Record, key: tuple[Any, ...]) -> Any:
    """A summary made in this run, or kept with the function of an earlier one; ``...`` where there is none."""
    found = record.summaries.get(key, ...)
    if found is ...:
        code = code_of(key[0])
        if code not in record.checked:
            record.checked.add(code)
            code.kept.renew(outside(code))
        kept = code.kept.summaries.get(key)
        if kept is not None and all(_known(record, inner) is summary for inner, summary in kept.within):
            found = record.summaries[key] = kept
            record.visited += kept.visits
            record.visited_within += kept.visits
    return found


def _is_kept(code: Code, summary: Summary, noted: bool) -> bool:
    """Whether a summary is one for every kernel: it is all that the function does, and nothing in it counts what a run met."""
    if noted or summary.stored or code.loops or code.changed or code.kept.outside is None:
        return False
    tokens = [need.token for way in summary.ways if way is not None for need in way.needs]
    tokens += [token for seen in summary.accesses for c in seen.conditions for token in c.tokens]
    return all(isinstance(token, (Given, ReadOf)) for token in tokens) and all(
        inner is not None and code_of(key[0]).kept.summaries.get(key) is inner for key, inner in summary.within
    )


def _take(value: Abstract, parts: list[Part], structs: list[Hashable]) -> bool:
    """Add all numbers and arrays in an argument, and which structs they are in; whether there is nothing else in it."""
    if isinstance(value, (Value, Array)):
        parts.append(value)
        return True
    if not isinstance(value, Struct) or not all(isinstance(token, Component) for token in value.tokens):
        return False
    names = _names(value)
    structs.append((value.type, names, len(parts)))
    return all(_take(struct_field(value, name), parts, structs) for name in names)


def _names(value: Struct) -> tuple[str, ...]:
    """The fields of an argument of the kernel, or those that are set."""
    return tuple(value.fields if value.path is None else {**value.type.vars, **value.fields})


def _is_index(part: Part) -> bool:
    """Whether facts may tell more of a number, or of where an array is read."""
    form = part.form if isinstance(part, Value) else None
    return (
        isinstance(part, Array)
        or isinstance(form, (Clamped, OneOf))
        or (isinstance(form, Affine) and form.base is not None)
    )


def _with_parts(value: Abstract, parts: Iterator[Part]) -> Abstract:
    """The value, with other numbers and arrays in it."""
    if isinstance(value, Struct):
        fields = {name: _with_parts(struct_field(value, name), parts) for name in _names(value)}
        return Struct(value.type, None, fields)
    if isinstance(value, Tuple):
        return Tuple(tuple(_with_parts(item, parts) for item in value.items))
    return next(parts)


def _kind(record: Record, part: Part, number: int) -> Part:
    """An argument, less what doesn't decide what the function does with it."""
    tokens = NO_TOKENS
    if part.tokens:
        stray = any(
            (isinstance(token, Carried) and token not in record.harmless) or (isinstance(token, Given) and token.stray)
            for token in part.tokens
        )
        tokens = frozenset({Given(number, stray)})
    if isinstance(part, Array):
        return replace(part, tokens=tokens)
    form = part.form
    if isinstance(form, Unknown):
        handle = form.values_of if part.type in (wp.uint64, None) else None
        form = replace(form, reason=f"{_REASON}{number}", values_of=handle)
    return replace(part, form=form, tokens=tokens, const=NOTHING, trace=None)


def _made(
    record: Record, key: Any, facts: Facts, site: Site, arguments: Sequence[Trace], run: Callable[[], Abstract]
) -> Summary | None:
    """Interpret a function by itself: no loop or condition around the call has a part in it, and it is the last pass."""
    around = {name: getattr(record, name) for name in _AROUND}
    record.state, record.judged, record.strays = State(facts=facts), [], {}
    record.loops, record.around, record.bounds = (), frozenset(), NO_TOKENS
    record.stored, record.accesses, record.silent, record.summing = [], {}, 0, True
    record.settling = False
    record.within, record.visited_within, visited = {}, 0, record.visited
    for name in _NOTED:
        setattr(record, name, type(around[name])())
    returned: list[Value] = []
    try:
        result = run()
    except ActsError:
        result = None
    strays, stored = tuple(record.strays), tuple(record.stored)
    accesses, read = tuple(record.accesses), record.state.read
    within, visits = tuple(record.within.items()), record.visited - visited
    own, noted = visits - record.visited_within, {name: getattr(record, name) for name in _NOTED}
    for name, value in around.items():
        # What was there comes first.
        setattr(record, name, value | noted[name] | value if name in noted else value)
    record.visited_within += visits
    found = None
    if result is not None and _returns(result, returned):
        ways = tuple(_way(value, arguments) for value in returned)
        orders = sorted({need.order for way in ways if way is not None for need in way.needs})
        steps = {order: step for step, order in enumerate(orders, 1)}
        result = _with_parts(result, iter([replace(value, trace=None) for value in returned]))
        found = Summary(result, ways, strays, stored, accesses, read, steps, site, within, own)
        code = code_of(key[0])
        if _is_kept(code, found, any(noted.values())):
            code.kept.summaries[key] = found
    record.summaries[key] = found
    return found


_NOTED = (
    "opaque",
    "unsafe",
    "revisited",
    "events",
    "remainders",
    "tested",
    "measured",
    "handles",
    "lost_rank",
    "tiled",
)
"""What a function may note in a record besides."""

_AROUND = (
    "state",
    "loops",
    "around",
    "bounds",
    "judged",
    "strays",
    "stored",
    "accesses",
    "silent",
    "summing",
    "settling",
    "moved",
    "heads",
    "depth",
    "shielded",
    "inside",
    "possible",
    "within",
    "visited_within",
    *_NOTED,
)
"""What of a record a function that is interpreted by itself leaves as it was."""


def _returns(value: Abstract, numbers: list[Value]) -> bool:
    """Add all numbers in a result, as ``_with_parts`` goes through them."""
    if isinstance(value, (Tuple, Struct)):
        parts = value.items if isinstance(value, Tuple) else value.fields.values()
        return all(_returns(part, numbers) for part in parts)
    if isinstance(value, Value):
        numbers.append(value)
    return isinstance(value, Value)


def _way(value: Value, arguments: Sequence[Trace]) -> Way | None:
    if not value.active or value.trace is None:
        return None
    seen: dict[Trace, None] = {}
    steps, doubts = behind([value.trace], seen)
    reached = tuple(number for number, trace in enumerate(arguments) if trace in seen)
    return Way(tuple(first_needs(steps)), tuple(dict.fromkeys(doubts)), reached)


def _applied(record: Record, summary: Summary, given: Sequence[Part], site: Site) -> Abstract:
    """What a call comes to with these arguments."""
    _read(record, summary, given)
    if not record.silent and not record.shielded:
        record.stored.extend(summary.stored)
    for token, where in summary.strays:
        access.stray_by(record, given[token.parameter].tokens, site if where == summary.site else where)
    began, loops = record.next_id, record.around
    record.next_id += len(summary.steps)

    def trace(way: Way | None) -> Trace | None:
        if way is None:
            return None
        needs: list[Needs] = []
        for need in way.needs:
            at = site if need.site == summary.site else need.site
            order = began + summary.steps[need.order]
            if isinstance(need.token, Given):
                needs.append(Needs(given[need.token.parameter].tokens, at, order, need.loops | loops))
            else:  # what loops of its own carry is as old as they are
                order = order if isinstance(need.token, ReadOf) else need.order
                needs.append(Needs(frozenset({need.token}), at, order, need.loops))
        doubts = way.doubts if record.shielded else (*way.doubts, *record.judged)
        sources = [trace for n in way.arguments for trace in traces_of(given[n]) if trace is not None]
        return Trace(sources, tuple(needs), doubts)

    returned: list[Value] = []
    _returns(summary.result, returned)
    numbers = [
        replace(_filled_in(value, given), trace=trace(way)) for value, way in zip(returned, summary.ways, strict=True)
    ]
    return _with_parts(summary.result, iter(numbers))


def _read(record: Record, summary: Summary, given: Sequence[Part]) -> None:
    """A call reads what its function does."""
    state = record.state
    state.read |= {(token, _at(pattern, given)) for token, pattern in summary.read}
    for loop in record.around:
        if loop in record.run_time:
            for token, _ in summary.read:
                record.run_time[loop].reads.setdefault(token, token.site)
    if record.silent:
        return
    for seen in summary.accesses:
        conditions = [replace(c, tokens=_behind(c.tokens, given)) for c in seen.conditions]
        here = replace(
            seen,
            pattern=_at(seen.pattern, given),
            conditions=(*state.conditions, *conditions),
            facts=state.facts | seen.facts,
            loops=(*record.loops, *seen.loops),
        )
        record.accesses.setdefault(here)


def _at(pattern: Pattern, given: Sequence[Part]) -> Pattern:
    return tuple([_reasoned(form, given) if isinstance(form, Unknown) else form for form in pattern])


def _reasoned(form: Unknown, given: Sequence[Part]) -> Unknown:
    """A form, with the reason that the argument has at this call."""
    reason = form.reason if isinstance(form.reason, str) else ""
    of = given[int(reason.removeprefix(_REASON))] if reason.startswith(_REASON) else None
    return replace(form, reason=of.form.reason) if isinstance(of, Value) and isinstance(of.form, Unknown) else form


def _behind(tokens: Tokens, given: Sequence[Part]) -> Tokens:
    """Tokens, with those of the arguments."""
    arguments = [token for token in tokens if isinstance(token, Given)]
    return tokens.difference(arguments).union(*(given[token.parameter].tokens for token in arguments))


def _filled_in(value: Value, given: Sequence[Part]) -> Value:
    """A number of a result, with the arguments in it."""
    form = _reasoned(value.form, given) if isinstance(value.form, Unknown) else value.form
    return replace(value, form=form, tokens=_behind(value.tokens, given))
