"""Functions of numbers, interpreted once for all calls with arguments of one kind: what they come to, less the arguments.

Structs of numbers are numbers side by side.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import warp as wp

from ..private.warp_source import parameters
from ..private.warp_types import is_reference
from . import access
from .forms import NO_FACTS, Affine, Clamped, Facts, OneOf, Unknown
from .frozen import replace
from .model import Site
from .names import code_of, struct_field
from .record import Frame, Record, Summary, Way, behind
from .state import State
from .values import (
    NO_TOKENS,
    NOTHING,
    Abstract,
    Carried,
    Component,
    Given,
    Need,
    Struct,
    Tokens,
    Trace,
    Tuple,
    Value,
    tokens_of,
)

Bound = dict[str, tuple[Abstract, ast.expr | None]]
Inline = Callable[[Record, Frame, Any, Bound, ast.Call], Abstract]

_REASON = "\0"
"""The reason of an argument that has one: of that of the call."""


def summarised(
    record: Record, frame: Frame, function: Any, bound: Bound, node: ast.Call, inline: Inline
) -> Abstract | None:
    """What a call comes to; None where it may do more than return numbers."""
    types, code = parameters(function), code_of(function)
    given: list[Value] = []
    """All numbers in the arguments, in order."""
    for name, (value, _) in bound.items():
        if is_reference(types.get(name)) or not _take(value, given):
            return None
        if name in code.stored_into and any(isinstance(token, Component) for token in tokens_of(value)):
            return None
    kinds = [_kind(record, value, number) for number, value in enumerate(given)]
    indices = any(isinstance(v.form, (Clamped, OneOf)) or (isinstance(v.form, Affine) and v.form.base) for v in given)
    facts: Facts = record.state.facts if indices else NO_FACTS
    structs = tuple(value.type if isinstance(value, Struct) else None for value, _ in bound.values())
    key = (function, bool(record.shielded), facts, structs, *kinds)
    try:
        found = record.summaries.get(key, ...)
    except TypeError:  # a constant of the kernel's that isn't hashable
        return None
    site = frame.code.site(node)
    if found is ...:
        traces = [Trace([]) for _ in kinds]
        numbers = iter([replace(kind, trace=trace) for kind, trace in zip(kinds, traces, strict=True)])
        plain: Bound = {name: (_with_numbers(value, numbers), argument) for name, (value, argument) in bound.items()}
        found = _made(record, facts, site, traces, lambda: inline(record, frame, function, plain, node))
        record.summaries[key] = found
    return None if found is None else _applied(record, found, given, site)


def _take(value: Abstract, numbers: list[Value]) -> bool:
    """Add all numbers in an argument; whether there is nothing else in it."""
    if isinstance(value, Value):
        numbers.append(value)
        return True
    if not isinstance(value, Struct) or not all(isinstance(token, Component) for token in value.tokens):
        return False
    names = getattr(value.type, "vars", {})
    return value.fields.keys() <= names.keys() and all(_take(struct_field(value, name), numbers) for name in names)


def _with_numbers(value: Abstract, numbers: Iterator[Value]) -> Abstract:
    """The value, with other numbers in it."""
    if isinstance(value, Struct):
        names = value.type.vars if value.path is not None else value.fields
        return Struct(value.type, None, {name: _with_numbers(struct_field(value, name), numbers) for name in names})
    if isinstance(value, Tuple):
        return Tuple(tuple(_with_numbers(item, numbers) for item in value.items))
    return next(numbers)


def _kind(record: Record, value: Value, number: int) -> Value:
    """An argument, less what doesn't decide what the function does with it."""
    form, tokens = value.form, NO_TOKENS
    if isinstance(form, Unknown):
        handle = form.values_of if value.type in (wp.uint64, None) else None
        form = replace(form, reason=f"{_REASON}{number}", values_of=handle)
    if value.tokens:
        stray = any(
            (isinstance(token, Carried) and token not in record.harmless) or (isinstance(token, Given) and token.stray)
            for token in value.tokens
        )
        tokens = frozenset({Given(number, stray)})
    return replace(value, form=form, tokens=tokens, const=NOTHING, trace=None)


def _made(
    record: Record, facts: Facts, site: Site, arguments: Sequence[Trace], run: Callable[[], Abstract]
) -> Summary | None:
    """Interpret a function by itself: no loop or condition around the call has a part in it, and it is the last pass."""
    around = record.state, record.loops, record.judged, record.settling, record.rough, record.beyond, record.strays
    mark = record.mark()
    record.state, record.loops, record.judged, record.strays = State(facts=facts), [], [], {}
    record.settling = record.rough = record.beyond = False
    result = run()
    beyond, strays = record.beyond, tuple(record.strays)
    record.state, record.loops, record.judged, record.settling, record.rough, record.beyond, record.strays = around
    returned: list[Value] = []
    if beyond or not _returns(result, returned):
        record.forget(mark)
        return None
    ways = tuple(_way(value, arguments) for value in returned)
    orders = sorted({need.order for way in ways if way is not None for need in way.needs})
    return Summary(result, ways, strays, {order: step for step, order in enumerate(orders, 1)}, site)


def _returns(value: Abstract, numbers: list[Value]) -> bool:
    """Add all numbers in a result, as ``_with_numbers`` goes through them."""
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
    needs, doubts = behind([value.trace], seen)
    first: dict[Any, Need] = {}
    for need in needs:
        first.setdefault((need.token, getattr(need.token, "loop", None) in need.loops), need)
    reached = tuple(number for number, trace in enumerate(arguments) if trace in seen)
    return Way(tuple(first.values()), tuple(dict.fromkeys(doubts)), reached)


def _applied(record: Record, summary: Summary, given: Sequence[Value], site: Site) -> Abstract:
    """What a call comes to with these arguments."""
    for token, where in summary.strays:
        access.stray_by(record, given[token.parameter].tokens, site if where == summary.site else where)
    began, loops = record.next_id, frozenset(map(abs, record.loops))
    record.next_id += len(summary.steps)

    def trace(way: Way | None) -> Trace | None:
        if way is None or record.rough:
            return None
        needs: list[Need] = []
        for need in way.needs:
            at = site if need.site == summary.site else need.site
            if isinstance(need.token, Given):
                tokens = given[need.token.parameter].tokens
                order = began + summary.steps[need.order]
                needs.extend(Need(token, at, order, need.loops | loops) for token in tokens)
            else:
                needs.append(replace(need, site=at))
        doubts = way.doubts if record.shielded else (*way.doubts, *record.judged)
        sources = [t for n in way.arguments if given[n].active and (t := given[n].trace) is not None]
        return Trace(sources, tuple(needs), doubts)

    returned: list[Value] = []
    _returns(summary.result, returned)
    numbers = [
        replace(_filled_in(value, given), trace=trace(way)) for value, way in zip(returned, summary.ways, strict=True)
    ]
    return _with_numbers(summary.result, iter(numbers))


def _filled_in(value: Value, given: Sequence[Value]) -> Value:
    """A number of a result, with the arguments in it."""
    form = value.form
    if isinstance(form, Unknown) and form.reason.startswith(_REASON):
        of = given[int(form.reason.removeprefix(_REASON))].form
        if isinstance(of, Unknown):
            form = replace(form, reason=of.reason)
    own = [token for token in value.tokens if not isinstance(token, Given)]
    passed: list[Tokens] = [given[token.parameter].tokens for token in value.tokens if isinstance(token, Given)]
    return replace(value, form=form, tokens=frozenset(own).union(*passed))
