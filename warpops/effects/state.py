"""What holds at a point of the kernel's body, and how two paths meet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from ..frozen import hashed, replace
from .forms import NO_FACTS, NONE, Affine, Base, Coord, Coordinates, Earlier, Facts, Form, Loop, Size
from .model import Site
from .values import NO_TOKENS, ReadOf, Tokens

Pattern = tuple[Form, ...]
Written = tuple[str, Pattern]
Seen = tuple[ReadOf, Pattern]
_Place = TypeVar("_Place", str, ReadOf)


@hashed
class Condition:
    """A condition under which the rest of a path runs.

    ``coords``, ``data`` and ``varies`` tell what it depends on, as of a ``Value``. Where it is ``exact``, the facts that it
    adds to the state are all that it says; ``below`` are they where each is an upper bound of a coordinate. ``never`` are
    sizes under which it holds for no thread (None: there are no such sizes). A ``loose`` one may well hold for many threads
    along each coordinate that it depends on. A ``partial`` one comes from an exit that some
    threads take inside a branch: it holds only for those that took the branch.
    """

    coords: bool
    data: bool
    site: Site
    varies: Coordinates = NONE
    exact: bool = False
    below: frozenset[Size] | None = None
    never: frozenset[Size] | None = None
    tokens: Tokens = NO_TOKENS
    loose: bool = False
    partial: bool = False
    turn: bool = False
    """The condition of a loop, true at each turn."""
    holds: bool = True
    """Whether the path is the one where the test is true."""

    def in_part(self) -> Condition:
        """The condition, known to hold for some of the threads only."""
        return replace(self, partial=True, exact=False, below=None, never=None)


@dataclass(slots=True)
class State:
    """The state of one path. ``must`` and ``written`` are index patterns; ``must`` holds under some sizes only."""

    must: dict[Written, frozenset[Size]] = field(default_factory=dict)
    stores: dict[str, int] = field(default_factory=dict)
    """How often an element may have been stored so far: 0, 1, or 2 for more."""
    written: frozenset[Written] = frozenset()
    """Everything that this thread may have written."""
    read: frozenset[Seen] = frozenset()
    """What this thread may have read."""
    facts: Facts = NO_FACTS
    conditions: tuple[Condition, ...] = ()
    alive: bool = True
    acted: bool = False
    """This turn of a loop may have stored numbers."""

    def copy(self) -> State:
        return State(
            dict(self.must),
            dict(self.stores),
            self.written,
            self.read,
            self.facts,
            self.conditions,
            self.alive,
            self.acted,
        )

    def absorb(self, other: State) -> None:
        """Add what another way may have done."""
        for array, count in other.stores.items():
            self.stores[array] = max(count, self.stores.get(array, 0))
        self.acted = self.acted or other.acted
        if other.written is not self.written:
            self.written |= other.written
        if other.read is not self.read:
            self.read |= other.read


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
    if isinstance(a.base, Loop) and isinstance(b.base, Loop) and a.base.id == b.base.id and a.offset == b.offset:
        return True
    if _variable(a.base) is not None and _variable(a.base) == _variable(b.base):
        return None if _wraps(a.base, a.offset) or _wraps(b.base, b.offset) else False
    return None


def _variable(base: Base | None) -> Coord | int | None:
    """What an index goes by; a loop's variable may be known to begin later in one place than in another."""
    return base.id if isinstance(base, Loop) else base if isinstance(base, Coord) else None


def _moved_on(now: Affine, then: Affine) -> bool:
    """Whether an index by a loop's variable isn't any more what one was in an earlier turn."""
    loop = now.base
    if not isinstance(loop, Loop) or not isinstance(then.base, Earlier) or loop.id != then.base.id or not loop.nonneg:
        return False
    if now.offset == then.offset:
        return True
    before = loop if then.base.start is None else replace(loop, start=then.base.start)
    wraps = _wraps(loop, now.offset) or _wraps(before, then.offset)
    return not wraps and (now.offset - then.offset) * loop.direction > 0


def _wraps(base: Base | None, offset: int) -> bool:
    """Whether an index may be negative, which Warp takes from the end of the axis."""
    if not isinstance(base, Loop):
        return offset < 0
    if offset >= 0:
        return not base.nonneg
    return base.direction <= 0 or base.start is None or base.start + offset < 0
