"""What follows from conditions: differences of two numbers, and what is known of every coordinate, length and loop."""

from __future__ import annotations

from functools import lru_cache

from .forms import NO_FACTS, Affine, Arg, Base, Coord, Facts, Form, Loop, Shape, Size

_Node = Base | None
"""A number that isn't known; None is 0."""


class Known:
    """The closure of certain facts, and of what is known of loops: the least ``w`` with ``a - b <= w``."""

    def __init__(self, facts: Facts, *loops: Loop) -> None:
        ways: dict[_Node, dict[_Node, int]] = {None: {}}

        def note(a: _Node, b: _Node, most: int) -> None:
            if a != b:
                ways[a][b] = min(most, ways[a].get(b, most))

        for fact in facts:
            left, right = fact.left.base, fact.right.base
            ways.setdefault(left, {})
            ways.setdefault(right, {})
            note(left, right, fact.right.offset - fact.left.offset - 1)
        for loop in loops:
            ways.setdefault(loop, {})
        waiting = list(ways)
        while waiting:
            node = waiting.pop()
            if isinstance(node, (Coord, Shape)) or (isinstance(node, Loop) and node.nonneg):
                note(None, node, 0)
            if isinstance(node, Loop) and node.upper is not None:
                note(node, node.upper.base, node.upper.offset - 1)
                if node.upper.base not in ways:
                    ways[node.upper.base] = {}
                    waiting.append(node.upper.base)
        self._ways = ways
        self.possible = True
        """False where the facts contradict each other: no thread gets there."""
        for via, onward in ways.items():
            for a, way in ways.items() if onward else ():
                first = way.get(via)
                if first is None:
                    continue
                for b, second in onward.items():
                    if a != b:
                        way[b] = min(first + second, way.get(b, first + second))
                    elif first + second < 0:
                        way[a] = -1
                        self.possible = False

    def most(self, a: _Node, b: _Node) -> int | None:
        """The least known ``w`` with ``a - b <= w``."""
        if a == b:
            return 0
        if b not in self._ways and isinstance(b, (Coord, Shape)):
            return self.most(a, None)  # all that is known of it is that it isn't negative
        return self._ways.get(a, {}).get(b)

    def less(self, left: Affine, right: Affine) -> bool:
        """Whether ``left < right`` surely holds."""
        most = self.most(left.base, right.base)
        return not self.possible or (most is not None and most < right.offset - left.offset)

    def least(self, form: Affine) -> int | None:
        """The largest known number that the form is never below."""
        most = self.most(None, form.base)
        return None if most is None else form.offset - most

    def pinned(self, node: Base) -> bool:
        """Whether there is but one value that the number can have."""
        known = self._ways.get(node, {}).items()
        return any(w + back <= 0 for b, w in known if (back := self.most(b, node)) is not None)


def closure(facts: Facts, *asked: Affine) -> Known:
    """The closure of the facts, and of what is known of the numbers asked for."""
    return _closure(facts, *[form.base for form in asked if isinstance(form.base, Loop)])


_closure = lru_cache(4096)(Known)


def nonnegative(form: Form | None, facts: Facts = NO_FACTS) -> bool:
    """Whether an index is surely no number below 0."""
    least = closure(facts, form).least(form) if isinstance(form, Affine) else None
    return least is not None and least >= 0


def follows(facts: Facts, left: Affine, right: Affine) -> bool:
    """Whether ``left < right`` follows from the facts."""
    return closure(facts, left, right).less(left, right)


def limits(facts: Facts) -> frozenset[Size] | None:
    """The facts as upper bounds of coordinates by numbers that are the same for all threads; None where they say more."""
    found: set[Size] = set()
    for fact in facts:
        base, bound = fact.left.base, fact.right.base
        offset = fact.right.offset - fact.left.offset
        if isinstance(base, Coord) and bound is None:
            found.add(Size(base.axis, offset))
        elif isinstance(base, Coord) and isinstance(bound, (Shape, Arg)):
            found.add(Size(base.axis, bound, offset))
        elif not follows(frozenset(), fact.left, fact.right):
            return None
    return frozenset(found)
