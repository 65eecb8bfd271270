"""Functions of numbers, interpreted once for all calls with arguments of one kind: what they come to, less the arguments."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

import warp as wp

from ..private.warp_source import parameters
from ..private.warp_types import is_reference
from .forms import NO_FACTS, Affine, Clamped, Facts, OneOf, Unknown, replace
from .model import Site
from .names import code_of
from .record import Frame, Record, Summary, behind
from .state import State
from .values import (
    NO_TOKENS,
    NOTHING,
    Abstract,
    Carried,
    Component,
    Given,
    Need,
    Tokens,
    Trace,
    Tuple,
    Value,
    traces_of,
    with_trace,
)

Bound = dict[str, tuple[Abstract, ast.expr | None]]
Inline = Callable[[Record, Frame, Any, Bound, ast.Call], Abstract]

_REASON = "\0"
"""The reason of an argument that has one: of that of the call."""


def summary_of(
    record: Record, frame: Frame, function: Any, bound: Bound, node: ast.Call, inline: Inline
) -> Summary | None:
    """What a call comes to; None where it may do more than return a number."""
    types, code = parameters(function), code_of(function)
    kinds: list[Value] = []
    facts: Facts = NO_FACTS
    for number, (name, (value, _)) in enumerate(bound.items()):
        if not isinstance(value, Value) or is_reference(types.get(name)):
            return None
        if name in code.stored_into and any(isinstance(token, Component) for token in value.tokens):
            return None
        kind = _kind(record, value, number)
        if isinstance(kind.form, Unknown) and types.get(name) not in (
            wp.uint64,
            Any,
            None,
        ):  # no handle of an array of them
            kind = replace(kind, form=replace(kind.form, values_of=None))
        kinds.append(kind)
        if isinstance(value.form, (Clamped, OneOf)) or (isinstance(value.form, Affine) and value.form.base):
            facts = record.state.facts
    key = (function, bool(record.shielded), facts, *kinds)
    try:
        if key in record.summaries:
            return record.summaries[key]
    except TypeError:  # a constant of the kernel's that isn't hashable
        return None
    plain: Bound = {name: (kind, bound[name][1]) for name, kind in zip(bound, kinds, strict=True)}
    record.summaries[key] = _made(
        record, facts, frame.code.site(node), lambda: inline(record, frame, function, plain, node)
    )
    return record.summaries[key]


def _kind(record: Record, value: Value, number: int) -> Value:
    """An argument, less what doesn't decide what the function does with it."""
    form, tokens = value.form, NO_TOKENS
    if isinstance(form, Unknown):
        form = replace(form, reason=f"{_REASON}{number}")
    if value.tokens:
        stray = any(
            (isinstance(token, Carried) and token not in record.harmless) or (isinstance(token, Given) and token.stray)
            for token in value.tokens
        )
        tokens = frozenset({Given(number, stray)})
    return replace(value, form=form, tokens=tokens, const=NOTHING, trace=None)


def _made(record: Record, facts: Facts, site: Site, run: Callable[[], Abstract]) -> Summary | None:
    """Interpret a function by itself: no loop or condition around the call has a part in it, and it is the last pass."""
    around = record.state, record.loops, record.judged, record.settling, record.rough, record.beyond
    mark = record.mark()
    record.state, record.loops, record.judged = State(facts=facts), [], []
    record.settling = record.rough = record.beyond = False
    result = run()
    beyond = record.beyond
    record.state, record.loops, record.judged, record.settling, record.rough, record.beyond = around
    if beyond or not all(isinstance(value, Value) for value in _parts(result)):
        record.forget(mark)
        return None
    needs, doubts = behind(trace for trace in traces_of(result) if trace is not None)
    first: dict[Any, Need] = {}
    for need in needs:
        first.setdefault((need.token, getattr(need.token, "loop", None) in need.loops), need)
    return Summary(result, tuple(first.values()), tuple(dict.fromkeys(doubts)), site)


def _parts(value: Abstract) -> Sequence[Abstract]:
    return value.items if isinstance(value, Tuple) else (value,)


def apply(record: Record, summary: Summary, given: Sequence[Abstract], site: Site) -> Abstract:
    """What a call comes to with these arguments."""
    result = summary.result
    if isinstance(result, Tuple):
        result = Tuple(tuple(_filled_in(item, given) for item in result.items))
    else:
        result = _filled_in(result, given)
    if record.rough:
        return result
    needs: list[Need] = []
    order, loops = record.fresh(), frozenset(map(abs, record.loops))
    for need in summary.needs:
        at = site if need.site == summary.site else need.site
        if isinstance(need.token, Given):
            needs.extend(Need(token, at, order, need.loops | loops) for token in _tokens(given, need.token))
        else:
            needs.append(replace(need, site=at))
    doubts = summary.doubts if record.shielded else (*summary.doubts, *record.judged)
    sources = [trace for value in given for trace in traces_of(value) if trace is not None]
    return with_trace(result, Trace(sources, tuple(needs), doubts))


def _tokens(given: Sequence[Abstract], token: Given) -> Tokens:
    value = given[token.parameter]
    assert isinstance(value, Value)
    return value.tokens


def _filled_in(value: Abstract, given: Sequence[Abstract]) -> Value:
    """A result, with the arguments in it."""
    assert isinstance(value, Value)
    form = value.form
    if isinstance(form, Unknown) and form.reason.startswith(_REASON):
        of = given[int(form.reason.removeprefix(_REASON))]
        if isinstance(of, Value) and isinstance(of.form, Unknown):
            form = replace(form, reason=of.form.reason)
    own = [token for token in value.tokens if not isinstance(token, Given)]
    passed = [_tokens(given, token) for token in value.tokens if isinstance(token, Given)]
    return replace(value, form=form, tokens=frozenset(own).union(*passed))
