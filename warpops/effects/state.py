"""What holds at a point of the kernel's body, and how two paths meet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from .forms import Affine, Coord, Earlier, Form, Less, Loop, Size, Whole
from .model import Site
from .values import NO_TOKENS, Tokens

Pattern = tuple[Form, ...]
Written = tuple[str, Pattern]


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
    read_back: frozenset[Written] = frozenset()
    """What was read after it may have been written."""
    facts: frozenset[Less] = frozenset()
    conditions: tuple[Condition, ...] = ()
    alive: bool = True

    def copy(self) -> State:
        return State(
            dict(self.must),
            dict(self.stores),
            self.written,
            self.read_back,
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
    result.read_back |= state.read_back


def leave_loop(written: frozenset[Written], loop: int, again: bool) -> frozenset[Written]:
    """Patterns seen from the next iteration of a loop (``again``), or from behind it."""
    result = set()
    for array, pattern in written:
        result.add((array, tuple(_aged(form, loop, again) for form in pattern)))
    return frozenset(result)


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
    if a.base == b.base and isinstance(a.base, (Coord, Loop)):
        return None if _wraps(a.base, min(a.offset, b.offset)) else False
    return None


def _moved_on(now: Affine, then: Affine) -> bool:
    """Whether an index by a loop's variable isn't any more what one was in an earlier turn."""
    loop = now.base
    if not isinstance(loop, Loop) or not isinstance(then.base, Earlier) or loop.id != then.base.id or not loop.nonneg:
        return False
    if now.offset == then.offset:
        return True
    return not _wraps(loop, min(now.offset, then.offset)) and (now.offset - then.offset) * loop.direction > 0


def _wraps(base: Coord | Loop, offset: int) -> bool:
    """Whether an index may be negative, which Warp takes from the end of the axis."""
    if isinstance(base, Coord) or offset >= 0:
        return offset < 0 or (isinstance(base, Loop) and not base.nonneg)
    return base.direction <= 0 or base.start is None or base.start + offset < 0
