"""What holds behind a loop: the paths out of it meet, and its variables are what the last turn left."""

from __future__ import annotations

import ast

from .expressions import meet_envs
from .forms import Affine, Arg, Coordinates, Covered, Earlier, Form, Loop, Shape, Stride, Unknown
from .frozen import replace
from .joins import join, leave_loop, meet_must, merge, never_taken, with_tokens
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
    if form is not None and not isinstance(form, Unknown):
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
            merged = state.copy()
            merged.written |= current.written
            merged.read |= current.read
            for array, count in current.stores.items():
                merged.stores[array] = max(count, merged.stores.get(array, 0))
            record.state, frame.env = merged, dict(env)
            continue
        record.state = merge(_anyway(current), [_anyway(current), _anyway(state)])
        record.state.conditions = current.conditions
        record.state.must = meet_must([(current.must, None), (state.must, never_taken(state, 0))])
        frame.env = meet_envs(record, frame, Value(), (frame.env, current), (env, state), node)


def _anyway(state: State) -> State:
    """The state, whatever the conditions on the way to it."""
    new = state.copy()
    new.conditions = ()
    return new


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
            elif at_least_once and not _indexed_by(pattern, loop):
                state.must[(array, pattern)] = sizes
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


def _indexed_by(pattern: Pattern, loop: int) -> bool:
    return any(isinstance(f, Affine) and isinstance(f.base, Loop) and f.base.id == loop for f in pattern)


def _filled(pattern: Pattern, loop: int) -> Pattern | None:
    """The pattern, with an axis that the loop covers from end to end taken as whole."""
    axes = [
        axis
        for axis, f in enumerate(pattern)
        if isinstance(f, Affine) and isinstance(f.base, Loop) and f.base.id == loop
    ]
    if len(axes) != 1:
        return None
    form = pattern[axes[0]]
    assert isinstance(form, Affine)
    assert isinstance(form.base, Loop)
    if form.offset or not form.base.full or form.base.upper is None:
        return None
    if form.base.upper.offset or not isinstance(form.base.upper.base, (Shape, Arg)):
        return None
    covered: list[Form] = list(pattern)
    covered[axes[0]] = Covered(form.base.upper.base)
    return tuple(covered)
