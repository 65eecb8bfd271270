"""What a number is as an index, and what a condition says of indices.

Affine forms are exact; a ``Clamped`` form is known to be in bounds; an ``Unknown`` form carries the reason that reports
print. Joining two different forms never yields an exact one.
"""

from __future__ import annotations

import ast
from functools import cached_property
from typing import TypeAlias

from ..frozen import frozen, hashed, replace

Coordinates: TypeAlias = frozenset[int]
"""The coordinates of ``wp.tid()`` that something may depend on."""

NONE: Coordinates = frozenset()
ALL: Coordinates = frozenset(range(4))

# ---------------------------------------------------------------------------------------------------------------------
# Index forms


@frozen
class Coord:
    """A coordinate of ``wp.tid()``."""

    axis: int


@frozen
class Shape:
    """The length of an axis of an array argument."""

    array: str
    axis: int


@frozen
class Arg:
    """An integer argument of the kernel (or field of a struct argument)."""

    name: str


@frozen
class Stride:
    """How an index goes on from turn to turn of a loop that begins at a coordinate: several threads have one index unless
    there are ``step`` threads."""

    coordinate: int
    step: Arg | Shape | int


@hashed
class Loop:
    """The variable of one ``range`` loop: distinct in each iteration.

    ``upper`` is the exclusive bound where it is known, ``start`` the first value where it is a literal. ``full`` means
    every value from 0 to ``upper``. ``nonneg`` means that no iteration has a negative value, which Warp would wrap.
    ``varies`` are the coordinates that its range may depend on.
    ``direction`` is 1 where it grows from turn to turn, -1 where it falls, 0 where that isn't known.
    """

    id: int
    upper: Affine | None = None
    start: int | None = None
    full: bool = False
    nonneg: bool = False
    varies: Coordinates = NONE
    direction: int = 0
    stride: Stride | None = None


@frozen
class Flag:
    """An argument of the kernel (or field of a struct argument) as a condition: above 0 where it is true."""

    name: str


@frozen
class Earlier:
    """The variable of a loop in some earlier iteration, at least ``start`` where that is known."""

    id: int
    start: int | None = None


Base: TypeAlias = Coord | Shape | Arg | Flag | Loop | Earlier


@hashed
class Affine:
    """``base + offset``; a literal where ``base`` is None."""

    base: Base | None
    offset: int = 0


@frozen
class Clamped:
    """An index that isn't negative (``low``), and below each of ``bounds`` that is above 0.

    An inner ``wp.min(i, n - 1)`` is below ``i + 1`` and ``n``; where ``n`` is 0 it is out of bounds. ``turns`` is the coordinate
    that ``(i + 1) % n`` takes around, and ``i % n`` (``at_once``), which expects more threads than ``n``.
    """

    low: bool
    bounds: frozenset[Affine] = frozenset()
    varies: Coordinates = NONE
    turns: Coord | None = None
    at_once: bool = False


@frozen
class OneOf:
    """An index that is one of a few others, each as it is where it is taken.

    ``sure``: coordinates alone decide which, so that each is taken by some thread.
    """

    forms: frozenset[Affine | Clamped]
    sure: bool = False


@frozen
class Scaled:
    """``coordinate // divisor * factor + offset``, with nothing below 0 in it."""

    coordinate: Coord
    factor: int = 1
    divisor: int = 1
    offset: int = 0


@frozen
class Mirrored:
    """``length + offset - coordinate``."""

    length: Shape
    coordinate: Coord
    offset: int


@frozen
class Residue:
    """``coordinate % divisor``."""

    coordinate: Coord
    divisor: int


@frozen
class Window:
    """``coordinate + offset`` plus the variable of a loop over all of a length."""

    coordinate: Coord
    offset: int
    length: Shape | Arg


Known: TypeAlias = Scaled | Mirrored | Residue | Window


class Computed:
    """The reason of a number that an expression computes: its text is written when it is asked for."""

    def __init__(self, of: ast.AST | str) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Computed) or type(self.of) is not type(other.of):
            return False
        return self.of is other.of or self.text == other.text

    def __hash__(self) -> int:
        return hash(type(self.of))

    def __str__(self) -> str:
        return f"computed: {self.text}"

    @cached_property
    def text(self) -> str:
        try:
            return self.of if isinstance(self.of, str) else ast.unparse(self.of)
        except (ValueError, RecursionError, TypeError):
            return "?"


@frozen
class Unknown:
    """An index that can't be followed, and why. ``derived``: computed from coordinates alone.

    ``merges`` counts what may well make one index of different coordinates, ``i // 2``, ``ix[i]``: 2 for more.
    """

    reason: str | Computed
    derived: bool = False
    varies: Coordinates = ALL
    merges: int = 0
    stride: Stride | None = None
    values_of: str | None = None
    """The array that it is an element of, as it stands there."""
    known: Known | None = None
    """What it is all the same, for those who ask how far it reaches."""


@frozen
class Whole:
    """All of an axis (a view, a tile or a slice touches it), or any part of it."""

    sliced: bool = False
    varies: Coordinates = NONE


@frozen
class Covered:
    """All of an axis, one by one: a loop over ``range(bound)`` has indexed it."""

    bound: Shape | Arg


Form: TypeAlias = Affine | Clamped | OneOf | Unknown | Whole | Covered


def literal(form: Form | None) -> int | None:
    return form.offset if isinstance(form, Affine) and form.base is None else None


def run_length(form: Form | None) -> Shape | Arg | None:
    """The length of which this index runs through every element, as the variable of a loop."""
    loop = form.base if isinstance(form, Affine) and form.offset == 0 else None
    upper = loop.upper if isinstance(loop, Loop) and loop.full and not loop.varies else None
    return upper.base if upper is not None and not upper.offset and isinstance(upper.base, (Shape, Arg)) else None


def bare_coordinate(form: Form) -> int | None:
    """The coordinate that this index is, exactly."""
    if isinstance(form, Affine) and isinstance(form.base, Coord) and form.offset == 0:
        return form.base.axis
    return None


def varies(form: Form | None) -> Coordinates:
    """The coordinates that an index may depend on."""
    if isinstance(form, Affine):
        if isinstance(form.base, Coord):
            return frozenset({form.base.axis})
        return form.base.varies if isinstance(form.base, Loop) else ALL if isinstance(form.base, Earlier) else NONE
    if isinstance(form, OneOf):
        return NONE.union(*map(varies, form.forms))
    return form.varies if isinstance(form, (Clamped, Unknown, Whole)) else NONE


MOST = 4
"""How many alternatives an index may have before it counts as unknown."""


def join_forms(a: Form | None, b: Form | None, sure: bool = False) -> Form | None:
    """An index that is either; ``sure`` as of ``OneOf``."""
    if a == b:
        return a
    if a is None or b is None:
        return None
    found: set[Affine | Clamped] = set()
    for form in (a, b):
        if isinstance(form, OneOf):
            found |= form.forms
            sure = sure and form.sure
        elif isinstance(form, (Affine, Clamped)):
            found.add(form)
        else:
            break
    else:
        if len(found) <= MOST:
            return OneOf(frozenset(found), sure)
    both = varies(a) | varies(b)
    for form in (a, b):
        if isinstance(form, Unknown):
            if form.varies == both and form.values_of is None and form.known is None:
                return form
            return replace(form, varies=both, values_of=None, known=None)
    return Unknown("an index with more than one definition", derived=True, varies=both)


# ---------------------------------------------------------------------------------------------------------------------
# Conditions


@frozen
class Less:
    """``left < right``."""

    left: Affine
    right: Affine


Facts: TypeAlias = frozenset[Less]
NO_FACTS: Facts = frozenset()


@frozen
class Size:
    """The supposition that the launch size of ``coordinate`` is at most ``bound`` (or, of a condition, that the coordinate is
    below ``bound + offset``)."""

    coordinate: int
    bound: Shape | Arg | int
    offset: int = 0


@frozen
class Said:
    """What a condition says where it holds: ``facts``, which it implies.

    ``exact``: it says no more, so that where they hold it does. ``never`` are sizes under which it can't hold (None: it may):
    they suffice, and needn't be all. ``loose``: it may well hold for many threads: data is compared with a number, besides
    what is exact.
    """

    facts: Facts = NO_FACTS
    exact: bool = False
    never: frozenset[Size] | None = None
    loose: bool = False


@frozen
class Truth:
    """What a condition says where it holds, and where it doesn't."""

    true: Said = Said()
    false: Said = Said()

    def negated(self) -> Truth:
        return Truth(self.false, self.true)


NO_TRUTH = Truth()


def truth_of(name: str) -> Truth:
    """What the condition that an argument is true says."""
    return Truth(Said(frozenset({Less(Affine(None, 0), Affine(Flag(name)))})))
