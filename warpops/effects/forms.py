"""What a number is as an index, and what a condition says of indices.

Affine forms are exact; a ``Clamped`` form is known to be in bounds; an ``Unknown`` form carries the reason that reports
print. Joining two different forms never yields an exact one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

# ---------------------------------------------------------------------------------------------------------------------
# Index forms


@dataclass(frozen=True)
class Coord:
    """A coordinate of ``wp.tid()``."""

    axis: int


@dataclass(frozen=True)
class Shape:
    """The length of an axis of an array argument."""

    array: str
    axis: int


@dataclass(frozen=True)
class Arg:
    """An integer argument of the kernel (or field of a struct argument)."""

    name: str


@dataclass(frozen=True)
class Loop:
    """The variable of one ``range`` loop: distinct in each iteration.

    ``upper`` is the exclusive bound where it is known, ``start`` the first value where it is a literal. ``full`` means
    every value from 0 to ``upper``. ``nonneg`` means that no iteration has a negative value, which Warp would wrap.
    ``direction`` is 1 where it grows from turn to turn, -1 where it falls, 0 where that isn't known.
    """

    id: int
    upper: Affine | None = None
    start: int | None = None
    full: bool = False
    nonneg: bool = False
    direction: int = 0


@dataclass(frozen=True)
class Earlier:
    """The variable of a loop in some earlier iteration."""

    id: int


Base: TypeAlias = Coord | Shape | Arg | Loop | Earlier


@dataclass(frozen=True)
class Affine:
    """``base + offset``; a literal where ``base`` is None."""

    base: Base | None
    offset: int = 0


@dataclass(frozen=True)
class Clamped:
    """An index kept inside bounds: from below, from above by ``bound`` (a coordinate: it is no larger than that)."""

    low: bool
    high: bool
    bound: Base | None = None


@dataclass(frozen=True)
class Unknown:
    """An index that can't be followed, and why. ``derived``: computed from coordinates alone."""

    reason: str
    derived: bool = False


@dataclass(frozen=True)
class Whole:
    """All of an axis (a view, a tile or a slice touches it), or any part of it."""

    sliced: bool = False


@dataclass(frozen=True)
class Covered:
    """All of an axis, one by one: a loop over ``range(bound)`` has indexed it."""

    bound: Shape | Arg


Form: TypeAlias = Affine | Clamped | Unknown | Whole | Covered


def literal(form: Form | None) -> int | None:
    return form.offset if isinstance(form, Affine) and form.base is None else None


def bare_coordinate(form: Form) -> int | None:
    """The coordinate that this index is, exactly."""
    if isinstance(form, Affine) and isinstance(form.base, Coord) and form.offset == 0:
        return form.base.axis
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Conditions


@dataclass(frozen=True)
class Less:
    """``left < right``."""

    left: Affine
    right: Affine


@dataclass(frozen=True)
class Size:
    """The supposition that the launch size of ``coordinate`` is at most ``bound``."""

    coordinate: int
    bound: Shape | Arg | int


@dataclass(frozen=True)
class Truth:
    """What a condition says where it holds, and where it doesn't.

    ``never_true`` are sizes under which it can't hold (None: it may), ``never_false`` those under which it must.
    """

    when_true: frozenset[Less] = frozenset()
    when_false: frozenset[Less] = frozenset()
    never_true: frozenset[Size] | None = None
    never_false: frozenset[Size] | None = None

    def negated(self) -> Truth:
        return Truth(self.when_false, self.when_true, self.never_false, self.never_true)


NO_TRUTH = Truth()


def join_forms(a: Form | None, b: Form | None) -> Form | None:
    """An index that is either."""
    if a == b:
        return a
    if a is None or b is None:
        return None
    safe = [f for f in (a, b) if isinstance(f, Clamped) and f.low and f.high]
    rest = [f for f in (a, b) if f not in safe]
    if safe and all(literal(f) == 0 or bare_coordinate(f) is not None for f in rest):
        return Clamped(True, True, next((f.bound for f in safe if f.bound is not None), None))
    if isinstance(a, Unknown):
        return a
    if isinstance(b, Unknown):
        return b
    return Unknown("an index with more than one definition", derived=True)
