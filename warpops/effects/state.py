"""What holds at a point of the kernel's body, and how two paths meet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from .forms import Affine, Coord, Earlier, Form, Less, Loop, Size, Whole
from .model import Site
from .values import NO_TOKENS, ReadOf, Tokens

Pattern = tuple[Form, ...]
Written = tuple[str, Pattern]
Seen = tuple[ReadOf, Pattern]
_Place = TypeVar("_Place", str, ReadOf)


@dataclass(frozen=True)
class Condition:
    """A condition under which the rest of a path runs.

    ``always`` are sizes under which it holds for every thread, ``never`` those under which it does for none (None:
    there are no such sizes). A ``partial`` one comes from an exit that some threads take inside a branch: it holds only
    for those that took the branch.
    """

    coords: bool
    data: bool
    always: frozenset[Size] | None
    never: frozenset[Size] | None
    site: Site
    tokens: Tokens = NO_TOKENS
    partial: bool = False


@dataclass
class State:
    """The state of one path. ``must`` and ``written`` are index patterns; ``must`` holds under some sizes only."""

    must: dict[Written, frozenset[Size]] = field(default_factory=dict)
    stores: dict[str, int] = field(default_factory=dict)
    """How often an element may have been stored so far: 0, 1, or 2 for more."""
    written: frozenset[Written] = frozenset()
    """Everything that this thread may have written."""
    read: frozenset[Seen] = frozenset()
    """What this thread may have read."""
    facts: frozenset[Less] = frozenset()
    conditions: tuple[Condition, ...] = ()
    alive: bool = True

    def copy(self) -> State:
        return State(
            dict(self.must),
            dict(self.stores),
            self.written,
            self.read,
            self.facts,
            self.conditions,
            self.alive,
        )


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
        result.conditions = (*before.conditions, *(replace(c, partial=True, never=None) for c in exits))
    for state in branches:
        _absorb(result, state)
    return result


def never_taken(state: State, depth: int) -> frozenset[Size] | None:
    """Sizes under which no thread is on this path, judged by its conditions beyond the first ``depth``."""
    return next((c.never for c in state.conditions[depth:] if c.never is not None), None)


def _absorb(result: State, state: State) -> None:
    for array, count in state.stores.items():
        result.stores[array] = max(count, result.stores.get(array, 0))
    result.written |= state.written
    result.read |= state.read


def leave_loop(seen: frozenset[tuple[_Place, Pattern]], loop: int, again: bool) -> frozenset[tuple[_Place, Pattern]]:
    """Patterns seen from the next iteration of a loop (``again``), or from behind it."""
    return frozenset((place, tuple(_aged(form, loop, again) for form in pattern)) for place, pattern in seen)


def _aged(form: Form, loop: int, again: bool) -> Form:
    if isinstance(form, Affine) and isinstance(form.base, (Loop, Earlier)) and form.base.id == loop:
        return Affine(Earlier(loop), form.offset) if again else Whole(sliced=True)
    return form


def may_alias(a: Pattern, b: Pattern) -> bool:
    """Whether two accesses of one thread may touch the same element."""
    if len(a) != len(b):
        return True
    return all(_same(x, y) is not False for x, y in zip(a, b, strict=True))


def is_element(pattern: Pattern) -> bool:
    """Whether the pattern names one element, by coordinates, literals and loop variables."""
    return bool(pattern) and all(isinstance(form, Affine) for form in pattern)


def _same(a: Form, b: Form) -> bool | None:
    if not isinstance(a, Affine) or not isinstance(b, Affine):
        return None
    if a == b:
        return not isinstance(a.base, Earlier) or None
    if a.base is None and b.base is None:
        return False if a.offset >= 0 and b.offset >= 0 else None
    if isinstance(a.base, Earlier) or isinstance(b.base, Earlier):
        return False if _moved_on(a, b) or _moved_on(b, a) else None
    if a.base == b.base and isinstance(a.base, (Coord, Loop)) and a.offset >= 0 and b.offset >= 0:
        return False if _nonneg(a) and _nonneg(b) else None
    return None


def _moved_on(now: Affine, then: Affine) -> bool:
    """Whether an index by a loop's variable isn't any more what one was in an earlier turn."""
    loop = now.base
    if not isinstance(loop, Loop) or not isinstance(then.base, Earlier) or loop.id != then.base.id or not loop.nonneg:
        return False
    if now.offset == then.offset:
        return True
    lowest = min(now.offset, then.offset)
    wraps = lowest < 0 and (loop.start is None or loop.direction < 0 or loop.start + lowest < 0)
    return not wraps and (now.offset - then.offset) * loop.direction > 0


def _nonneg(form: Affine) -> bool:
    return not isinstance(form.base, Loop) or form.base.nonneg
