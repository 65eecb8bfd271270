"""Conditions: what a comparison of indices, and what is made of such, says where it holds and where it doesn't."""

from __future__ import annotations

from .facts import limits
from .forms import NO_TRUTH, Affine, Arg, Coord, Less, Said, Shape, Size, Truth, truth_of
from .model import Site
from .state import Condition
from .values import Value


def compare(operator: str, left: Value, right: Value) -> Truth:
    """What a comparison says of indices."""
    a, b = left.form, right.form
    if not isinstance(a, Affine) or not isinstance(b, Affine):
        if left.data == right.data:
            return NO_TRUTH
        loose = Said(loose=True)
        return Truth(Said() if operator == "==" else loose, Said() if operator == "!=" else loose)
    if operator == "<":
        return Truth(_less(a, b), _less(b, a, 1))
    if operator == "<=":
        return Truth(_less(a, b, 1), _less(b, a))
    if operator in (">", ">="):
        return compare("<" if operator == ">" else "<=", right, left)
    if operator in ("==", "!="):
        unequal = truth_of(a.base.name).true if isinstance(a.base, Arg) and b == Affine(None, -a.offset) else Said()
        equal = Truth(_together(_less(a, b, 1), _less(b, a, 1)), unequal)
        return equal if operator == "==" else equal.negated()
    return NO_TRUTH


def _less(a: Affine, b: Affine, more: int = 0) -> Said:
    less = Less(a, Affine(b.base, b.offset + more) if more else b)
    return Said(frozenset({less}), True, _impossible(less))


def _impossible(less: Less) -> frozenset[Size] | None:
    """Sizes under which ``bound + p < coordinate + q`` holds for no coordinate below the bound."""
    left, right = less.left, less.right
    if isinstance(right.base, Coord) and left.offset - right.offset >= -1:
        if isinstance(left.base, (Shape, Arg)):
            return frozenset({Size(right.base.axis, left.base)})
        if left.base is None:
            return frozenset({Size(right.base.axis, left.offset - right.offset + 1)})
    return None


def _together(a: Said, b: Said) -> Said:
    """What is said where both hold."""
    never = a.never if a.never is not None else b.never
    # Two bounds of data, ``low[j] <= x and x < high[j]``, may choose one thread.
    return Said(a.facts | b.facts, a.exact and b.exact, never, (a.loose and b.exact) or (b.loose and a.exact))


def _one_of(a: Said, b: Said) -> Said:
    """What is said where one of the two holds, no matter which: what follows from each."""
    never = None if a.never is None or b.never is None else a.never | b.never
    if a.exact and b.exact and a.facts == b.facts:
        return Said(a.facts, True, never)
    return Said(a.facts & b.facts, False, never, a.loose or b.loose)


def both(a: Truth, b: Truth) -> Truth:
    """The conjunction."""
    return Truth(_together(a.true, b.true), _one_of(a.false, b.false))


def either(a: Truth, b: Truth) -> Truth:
    return both(a.negated(), b.negated()).negated()


def condition_of(value: Value, site: Site, holds: bool) -> Condition:
    """The condition that a branch runs under."""
    said = value.truth.true if holds else value.truth.false
    return Condition(
        coords=value.coords,
        data=value.data,
        varies=value.varies,
        exact=said.exact,
        below=limits(said.facts) if said.exact else None,
        never=said.never,
        loose=said.loose,
        site=site,
        tokens=value.tokens,
        holds=holds,
    )
