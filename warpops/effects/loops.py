"""Loops: unrolled by Warp or not, their variables, and what their adjoints can't have right.

Measured (``tests/effects/test_hazards_loops.py`` keeps it): Warp's reverse pass doesn't replay a loop that it didn't
unroll. A variable assigned in one has its value from before the loop when the adjoint runs, so that sums are right,
and whatever needs the variable's value (a product, a condition, an index, in the loop or behind it) is wrong. After a
``break`` or ``return``, and in ``while`` loops, the adjoint runs through other iterations than the kernel did.
"""

from __future__ import annotations

import ast
from functools import partial
from typing import TypeAlias

from ..frozen import replace
from ..private.warp_types import CONTINUES_ARE_UNROLLED
from . import conditions
from .access import number
from .behind import behind, join_paths, variables_behind, varying
from .chains import last_name
from .expressions import evaluate
from .forms import ALL, NONE, Affine, Clamped, Coordinates, Unknown, bare_coordinate, literal
from .joins import join, leave_loop, meet_must, with_tokens
from .loop_needs import begin_loop, doubts_of, end_loop, leaves, skip_of
from .names import Code, advances_query
from .ranges import loop_variable, range_arguments, strides
from .reading import Body
from .record import Frame, Head, LoopContext, Record
from .state import State
from .values import (
    NO_TOKENS,
    Abstract,
    Array,
    Carried,
    Doubt,
    Object,
    Through,
    Trace,
    Tuple,
    Value,
    tokens_of,
    traces_of,
    with_trace,
)
from .wholes import overlaps

_Loop: TypeAlias = ast.For | ast.While

PATIENCE = 4
"""How often more may become known at the head of a loop before nothing is."""
MAX_PASSES = 8
MAX_UNROLLED = 64


def run_for(record: Record, frame: Frame, node: ast.For) -> None:
    name = node.target.id if isinstance(node.target, ast.Name) else ""
    arguments = range_arguments(record, frame, node.iter)
    if arguments is None:
        loop_id = record.loop_id(frame, node)
        iterated = evaluate(record, frame, node.iter)
        if not isinstance(iterated, (Tuple, Object)):
            record.queries.add(loop_id)
        form = Unknown("values of an iterator", varies=ALL)
        index: Abstract = Value(form, data=True, tokens=tokens_of(iterated), varies=ALL)
        _run(
            record,
            frame,
            node,
            {name: index},
            loop_id,
            unrolled=False,
            at_least_once=False,
            variable=False,
        )
        return
    literals = [value.const if type(value.const) is int else None for value in arguments]
    known = range(*literals) if all(n is not None for n in literals) and 0 not in literals[2:] else None  # type: ignore[arg-type]
    left = frame.code.ask(_breaks, node)
    if known is not None and len(known) <= MAX_UNROLLED and not left and frame.code.loops[node].static:
        _unrolled(record, frame, node, name, known)
        return
    unrolled = known is not None and len(known) <= record.unroll and not left
    varies = NONE.union(*(value.varies for value in arguments))
    loop = replace(loop_variable(record.loop_id(frame, node), [value.form for value in arguments]), varies=varies)
    index = Value(
        Affine(loop),
        coords=any(v.coords for v in arguments),
        data=any(v.data for v in arguments),
        tokens=frozenset().union(*(v.tokens for v in arguments)),
        varies=varies,
    )
    _run(
        record,
        frame,
        node,
        {name: index},
        loop.id,
        unrolled=unrolled,
        at_least_once=known is not None and len(known) > 0,
        variable=True,
    )


def _unrolled(record: Record, frame: Frame, node: ast.For, name: str, values: range) -> None:
    for value in values:
        if not record.state.alive:
            return
        frame.env[name] = Value(Affine(None, value), const=value)
        path = record.path(frame, node, value)
        context = LoopContext(path, path)
        frame.loops.append(context)
        record.execute(record, frame, node.body)
        frame.loops.pop()
        join_paths(record, frame, context.continues, node)


# ---------------------------------------------------------------------------------------------------------------------
# Loops that are interpreted once for all iterations


def run_while(record: Record, frame: Frame, node: ast.While) -> None:
    loop = record.loop_id(frame, node)
    record.loop_sites[loop] = frame.code.site(node)
    (record.queries if _is_query(node.test) else record.while_loops).add(loop)
    _run(record, frame, node, {}, loop, unrolled=False, at_least_once=False, variable=False)


def _is_query(test: ast.expr) -> bool:
    """``while wp.mesh_query_aabb_next(query, face)``: in the reverse pass the query begins again, as that of a ``for`` does."""
    return isinstance(test, ast.Call) and advances_query(last_name(test.func))


def _breaks(node: _Loop) -> bool:
    return leaves(node.body, ast.Break) or (not CONTINUES_ARE_UNROLLED and leaves(node.body, ast.Continue))


def _run(
    record: Record,
    frame: Frame,
    node: _Loop,
    index: dict[str, Abstract],
    loop: int,
    *,
    unrolled: bool,
    at_least_once: bool,
    variable: bool,
) -> None:
    """Interpret a loop's body until nothing changes.

    The loops inside don't do so on their own: a pass over this one is a pass over each of them, from what is known so far at
    their heads. So a body is interpreted as often however deep it lies.
    """
    turn = partial(
        _turn,
        record,
        frame,
        node,
        index,
        loop,
        unrolled=unrolled,
        at_least_once=at_least_once,
        variable=variable,
    )
    if record.settling:
        turn()
        return
    heads, record.heads, record.settling = record.heads, {}, True
    before, env, returns, mark = record.state, frame.env, len(frame.returns), record.mark()
    for _ in range(MAX_PASSES):
        record.state, frame.env = before, env
        record.forget(mark)
        del frame.returns[returns:]
        record.moved = False
        turn()
        if not record.moved:
            break
    record.heads, record.settling = heads, False


def _turn(
    record: Record,
    frame: Frame,
    node: _Loop,
    index: dict[str, Abstract],
    loop: int,
    *,
    unrolled: bool,
    at_least_once: bool,
    variable: bool,
) -> None:
    """One pass over a loop's body, and on to what is behind the loop."""
    record.loop_sites.setdefault(loop, frame.code.site(node))
    began = record.fresh()
    body = frame.code.loops[node]
    names = {n for n in body.parts if not isinstance(frame.env.get(n), Array)}
    names = (names | body.bound | body.drawn) - index.keys()
    if isinstance(node, ast.While) and isinstance(node.test, ast.Call) and not record.while_loops & {loop}:
        names -= {a.id for a in node.test.args if isinstance(a, ast.Name)}
    carried = {} if unrolled else {n: frozenset({Carried(loop, n, frame.id)}) for n in names}
    doubts = [] if unrolled else doubts_of(record, frame, node, loop)
    before, outer, returns = record.state, dict(frame.env), len(frame.returns)
    steps = strides(record, frame, node, names)
    bounds = NO_TOKENS
    if not unrolled:
        bounds = bounds.union(*map(tokens_of, index.values()))
    if not unrolled and not record.shielded:
        begin_loop(record, frame, node, loop, names)

    def at_head(name: str, value: Abstract, turns: Coordinates) -> Abstract:
        return with_tokens(varying(value, turns, loop, steps.get(name)), carried.get(name, NO_TOKENS))

    head = record.heads.setdefault(record.path(frame, node), Head({}, NONE))
    head.turns |= _turns(frame.code, node, index)
    for n in names & outer.keys():
        value, known = at_head(n, outer[n], head.turns), head.env.get(n)
        head.env[n] = value if known is None or known == value else join(value, known)
    record.state = before.copy()
    record.state.written |= head.written
    record.state.read |= head.read
    # What a variable holds at the head of a turn came from before the loop, or from the turn before.
    traces = {n: Trace([t for t in traces_of(outer[n]) if t is not None]) for n in head.env}
    frame.env = {**outer, **{n: with_trace(v, traces[n]) for n, v in head.env.items()}}
    outside, record.bounds = record.bounds, record.bounds | bounds
    end, context, tested = _pass(record, frame, node, index, loop, variable, head.turns, doubts)
    record.bounds = outside
    turns = head.turns | tested
    grown = {n: join(v, at_head(n, frame.env.get(n, v), turns)) for n, v in head.env.items()}
    written = head.written | leave_loop(end.written - before.written, loop, again=True)
    read = head.read | leave_loop(end.read - before.read, loop, again=True)
    more = [n for n, v in grown.items() if v != head.env[n]]
    sums = [n for n in more if _is_told(body, n, head.env[n], grown[n], frame.env[n])]
    # What was written matters to what is read of the same array, and the other way round.
    both = {array for array, _ in written} & {token.array for token, _ in read}
    around = (both and (written, read) != (head.written, head.read)) or (grown and turns != head.turns)
    if more or around:
        head.grown += 1
        head.env = grown if head.grown < PATIENCE else {n: _given_up(v) for n, v in grown.items()}
        record.moved |= bool(around) or sums != more
    head.turns, head.written, head.read = turns, written, read
    if context.continues and not unrolled:
        skip = skip_of(record, frame, node, loop)
        if context.acted:
            record.warn(*skip)
        for env in (frame.env, outer):
            env.update({n: record.doubting(env[n], skip) for n in context.skipped & env.keys()})
    for n, trace in traces.items():
        trace.sources.extend(t for t in traces_of(frame.env[n]) if t is not None)
    # What the loop replaces had a gradient, which it ends: without its turns that would go on.
    site = frame.code.site(node)
    for env in (frame.env, outer):
        for n in names & env.keys():
            env[n] = record.needing(record.doubting(env[n], doubts), bounds, site)
    _changed_in_turns(record, began)
    if loop in record.run_time:
        end_loop(record, frame, node, loop, outer)
    if not unrolled:
        carried |= {n: frozenset({Carried(loop, n, frame.id)}) for n in index if n}
        record.harmless |= {t for n, tokens in carried.items() if _is_harmless(outer.get(n)) for t in tokens}
    exits = [state for state, _ in frame.returns[returns:]]
    state = behind(
        before, end, exits, loop, at_least_once=at_least_once, covers=variable and not context.breaks, unrolled=unrolled
    )
    variables_behind(frame, outer, carried, head.turns)
    record.state = state


def _is_told(body: Body, name: str, head: Abstract, grown: Abstract, end: Abstract) -> bool:
    """Whether a pass has shown of a variable, which no turn asks for, all that the next one would."""
    if name in body.read:
        return False
    if name in body.parts:
        return name not in body.bound and name not in body.again and _is_filled(head, grown, end)
    return _is_sum(head, end)


def _is_filled(head: Abstract, grown: Abstract, end: Abstract) -> bool:
    """Whether a vector has other components stored in each turn of a loop, in one place."""
    if not isinstance(head, Value) or not isinstance(grown, Value) or not isinstance(end, Value):
        return False
    if head.parts is None or grown.parts is None or end.parts is None:
        return False
    return not any(overlaps(new, old) for new in end.parts - head.parts for old in grown.parts - head.parts)


def _is_sum(head: Abstract, end: Abstract) -> bool:
    """Whether a number that a loop's body adds to, and doesn't read, is at a turn's end what it is at the end of all turns."""
    if not isinstance(head, Value) or not isinstance(end, Value) or head.type is not end.type:
        return False
    form = end.form
    said = isinstance(form, Unknown) and form.varies == end.varies and (form.derived or not end.coords)
    return not isinstance(form, Unknown) or (said and form.stride is None)


def _turns(code: Code, node: _Loop, index: dict[str, Abstract]) -> Coordinates:
    """The coordinates that the number of a loop's turns may depend on, less those that a condition of it adds."""
    if code.loops[node].exits:
        return ALL
    bound = next(iter(index.values()), None)
    return bound.varies if isinstance(bound, Value) else NONE


def _is_harmless(value: Abstract | None) -> bool:
    """Whether a number is an index that any array has that isn't empty, or the thread's own."""
    form = value.form if isinstance(value, Value) else None
    return (
        literal(form) in (0, -1)
        or isinstance(form, Clamped)
        or (form is not None and bare_coordinate(form) is not None)
    )


def _changed_in_turns(record: Record, began: int) -> None:
    """A vector from before the loop, of which a component is stored in it: the next turn has it so from the start."""
    for token, places in record.changed.items():
        inside = [site for order, site in places.items() if order > began]
        if inside and record.bound.get(token, 0) < began:
            places[record.fresh()] = inside[0]


def _given_up(value: Abstract) -> Abstract:
    if isinstance(value, Value):
        return replace(value, active=True, data=True, form=Unknown("a variable of a loop", varies=ALL), varies=ALL)
    return value


def _pass(
    record: Record,
    frame: Frame,
    node: ast.For | ast.While,
    index: dict[str, Abstract],
    loop: int,
    variable: bool,
    turns: Coordinates,
    doubts: list[Doubt | Through],
) -> tuple[State, LoopContext, Coordinates]:
    """One pass over the body: the state at its end, how turns may end before, and the coordinates that its condition may
    depend on."""
    record.harmless -= {t for t in record.harmless if isinstance(t, Carried) and t.loop == loop}
    record.judged.extend(doubts)
    frame.env.update({name: value for name, value in index.items() if name})
    context = LoopContext(loop, record.path(frame, node), begun=dict(frame.env))
    record.state.acted = False
    frame.loops.append(context)
    around = record.loops, record.around
    record.loops = (*record.loops, loop if variable else -loop)
    record.around |= {loop}
    tested = NONE
    if isinstance(node, ast.While):
        test = number(record, frame, node.test)
        tested = test.varies
        site = frame.code.site(node)
        record.state.conditions = (
            *record.state.conditions,
            replace(conditions.condition_of(replace(test, data=True, varies=turns | tested), site, True), turn=True),
        )
        record.state.facts |= test.truth.true.facts
    record.execute(record, frame, node.body)
    record.loops, record.around = around
    frame.loops.pop()
    del record.judged[len(record.judged) - len(doubts) :]
    join_paths(record, frame, context.continues, node)
    end = record.state
    for state, env in context.breaks:
        end.absorb(state)
        frame.env = {name: join(frame.env.get(name), env.get(name)) for name in {**frame.env, **env}}
        end.must = meet_must([(end.must, None), (state.must, None)]) if end.alive else dict(state.must)
        end.alive = True
    return end, context, tested


# ---------------------------------------------------------------------------------------------------------------------
# Leaving loops


def run_break(record: Record, frame: Frame, node: ast.Break) -> None:
    if frame.loops:
        frame.loops[-1].breaks.append((record.state, dict(frame.env)))
    _end_path(record)


def run_continue(record: Record, frame: Frame, node: ast.Continue) -> None:
    if frame.loops:
        context = frame.loops[-1]
        context.continues.append((record.state, dict(frame.env)))
        context.skipped |= {n for n, value in frame.env.items() if value is not context.begun.get(n)}
        context.acted = context.acted or record.state.acted
    _end_path(record)


def _end_path(record: Record) -> None:
    record.state = record.state.copy()
    record.state.alive = False
