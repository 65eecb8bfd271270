"""Sizes from the axes that name them: bare (``x[n]``), or solved for (``start[n + 1]``, ``a[16 * n]``)."""

from __future__ import annotations

from collections.abc import Iterable

from ..frozen import frozen
from .sizes import Expr, integer

_ZERO, _ONE = integer(0), integer(1)


@frozen
class Axis:
    """One axis of a given array, and the size that it must have."""

    array: str
    """By schema name."""
    axis: int
    size: Expr
    optional: bool = False
    """The array may be None."""


@frozen
class Solved:
    """``name`` follows from the size of an axis, which is ``factor * name + offset``."""

    name: str
    of: Axis
    factor: Expr
    offset: Expr

    @property
    def bare(self) -> bool:
        return self.of.size.is_name


def solve(axes: Iterable[Axis], known: Iterable[str]) -> tuple[Solved, ...]:
    """How the sizes in ``axes`` follow from them, in an order in which each needs only what came before.

    First the bare names, of arrays that are always there if they can be; then, until nothing changes, each axis that is
    linear in its only unknown.
    """
    axes, known = tuple(axes), set(known)
    found: list[Solved] = []

    def note(solved: Solved) -> None:
        found.append(solved)
        known.add(solved.name)

    for axis in sorted((axis for axis in axes if axis.size.is_name), key=lambda axis: axis.optional):
        if str(axis.size.value) not in known:
            note(Solved(str(axis.size.value), axis, _ONE, _ZERO))
    composed = [axis for axis in axes if axis.size.items]
    before = -1
    while before < len(found):
        before = len(found)
        for axis in composed:
            unknown = set(axis.size.names()) - known
            if len(unknown) == 1:
                name = unknown.pop()
                line = linear(axis.size, name)
                if line is not None:
                    note(Solved(name, axis, *line))
    return tuple(found)


def bound(sizes: Iterable[Expr], known: set[str]) -> set[str]:
    """The names that follow from sizes of given arrays, and those that are known."""
    sizes = tuple(sizes)
    found = known | {str(size.value) for size in sizes if size.is_name}
    if any(size.items for size in sizes):
        found |= {solved.name for solved in solve([Axis("", 0, size) for size in sizes], known)}
    return found


def linear(expr: Expr, name: str) -> tuple[Expr, Expr] | None:
    """``a`` and ``b`` of ``a * name + b``; None of ``name * name``, and of what is under ``//``, ``%``, ``min`` or ``max``."""
    if name not in expr.names():
        return _ZERO, expr
    if expr.is_name:
        return _ONE, _ZERO
    left, right = (linear(item, name) for item in expr.items)
    if left is None or right is None:
        return None
    if expr.head in ("+", "-"):
        return folded(expr.head, left[0], right[0]), folded(expr.head, left[1], right[1])
    if expr.head != "*":
        return None
    if right[0] == _ZERO:
        left, right = right, left
    if left[0] != _ZERO:
        return None
    return folded("*", left[1], right[0]), folded("*", left[1], right[1])


def folded(head: str, left: Expr, right: Expr) -> Expr:
    """``left + right``, ``left - right`` or ``left * right``, without what can be computed now."""
    if left.is_int and right.is_int:
        a, b = int(left.value), int(right.value)
        return integer({"+": a + b, "-": a - b, "*": a * b}[head])
    if head == "*":
        for one, other in ((left, right), (right, left)):
            if one.is_int and one.value in (0, 1):
                return other if one.value == 1 else one
    elif right == _ZERO:
        return left
    elif head == "+" and left == _ZERO:
        return right
    return Expr(head, 0, (left, right))
