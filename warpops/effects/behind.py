"""What holds behind a loop: the paths out of it meet, and its variables are what the last turn left."""

from __future__ import annotations

import ast

from ..frozen import replace
from .expressions import meet_envs
from .forms import Coordinates, Covered, Earlier, Loop, Stride, Unknown, run_length
from .joins import is_by, join, leave_loop, meet_must, never_taken, with_tokens
from .record import Frame, Record
from .state import Pattern, State
from .values import (
    NO_TOKENS,
    NOTHING,
    Abstract,
    Carried,
    Left,
    Tokens,
    Value,
    without_tokens,
)


def varying(value: Abstract, turns: Coordinates, loop: int | None = None, on: Stride | None = None) -> Abstract:
    """A variable at the head of a loop that assigns it: no constant, and no index known beforehand.

    Components that the loop's variable named belong to ``Earlier`` iterations of ``loop``, or to any (None).
    """
    if not isinstance(value, Value):
        return value
    form = value.form
    followed = form is not None and not isinstance(form, Unknown)
    if not followed and value.const is NOTHING and not value.parts and turns <= value.varies:
        return value
    if followed:
        form = Unknown("a variable of a loop", derived=True, varies=value.varies | turns, stride=on)
    parts = None if value.parts is None else frozenset(_earlier_part(part, loop) for part in value.parts)
    return replace(value, const=NOTHING, form=form, parts=parts, varies=value.varies | turns)


def _earlier_part(part: object, loop: int | None) -> object:
    if not isinstance(part, tuple) or not any(isinstance(index, Loop) for index in part):
        return part
    if loop is None:
        return "?"
    return tuple(Earlier(index.id) if isinstance(index, Loop) and index.id == loop else index for index in part)


def join_paths(record: Record, frame: Frame, paths: list[tuple[State, dict[str, Abstract]]], node: ast.AST) -> None:
    """Meet paths that come together again: the current one, and those that took ``continue``."""
    for state, env in paths:
        current = record.state
        if not current.alive:
            record.state, frame.env = state.copy(), dict(env)
            record.state.absorb(current)
            continue
        record.state = current.copy()
        record.state.absorb(state)
        record.state.facts &= state.facts
        record.state.must = meet_must([(current.must, None), (state.must, never_taken(state, 0))])
        # What was decided by: the conditions that only one of the two ways is under.
        decided = frozenset(current.conditions) ^ frozenset(state.conditions)
        test = Value(tokens=NO_TOKENS.union(*(condition.tokens for condition in decided)))
        frame.env = meet_envs(record, frame, test, (frame.env, current), (env, state), node)


def behind(
    before: State, end: State, exits: list[State], loop: int, *, at_least_once: bool, covers: bool, unrolled: bool
) -> State:
    """The state behind a loop: what some iteration may have done, and what all of them surely did."""
    state = before.copy()
    state.written = before.written | leave_loop(end.written - before.written, loop, again=False)
    state.read = before.read | leave_loop(end.read - before.read, loop, again=False)
    for array, count in end.stores.items():
        state.stores[array] = max(count, state.stores.get(array, 0))
    if end.alive:
        for (array, pattern), sizes in end.must.items():
            filled = _filled(pattern, loop) if covers else None
            if filled is not None:
                state.must[(array, filled)] = sizes
            elif at_least_once and not any(is_by(form, loop) for form in pattern):
                state.must[(array, pattern)] = sizes
    state.acted = state.acted or end.acted
    depth = len(before.conditions)
    left = [c for state in exits for c in state.conditions[depth:]]
    gone: Tokens = NO_TOKENS if unrolled else frozenset({Left(loop)})
    state.conditions = (
        *before.conditions,
        *(replace(c.in_part(), tokens=c.tokens | gone) for c in left),
    )
    return state


def variables_behind(
    frame: Frame, outer: dict[str, Abstract], carried: dict[str, frozenset[Carried]], turns: Coordinates
) -> None:
    env = dict(outer)
    for name, value in frame.env.items():
        if name not in outer:
            env[name] = varying(value, turns)
        elif value is not outer[name]:
            env[name] = varying(join(outer[name], value), turns)
    loops = {token.loop for tokens in carried.values() for token in tokens}
    for name, tokens in carried.items():
        if name in env:
            # The adjoint has it as it was before the loop, whatever else the loop made of it.
            env[name] = with_tokens(without_tokens(env[name], Carried, loops=loops), tokens)
    frame.env = env


def _filled(pattern: Pattern, loop: int) -> Pattern | None:
    """The pattern, with an axis that the loop covers from end to end taken as whole."""
    axes = [axis for axis, form in enumerate(pattern) if is_by(form, loop)]
    length = run_length(pattern[axes[0]]) if len(axes) == 1 else None
    return None if length is None else (*pattern[: axes[0]], Covered(length), *pattern[axes[0] + 1 :])
