"""What must hold of sizes at each call, so that no launch indexes an array outside of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from ..effects import AxisUse, Below, Effects, Limit, Need
from ..frozen import frozen
from ..kernel.signature import Leaf
from .declaration import Callback, Dims
from .sizes import Expr, integer, name
from .solving import folded


@frozen
class Cover:
    """``array``'s axis is indexed by a coordinate of ``wp.tid()``: it must be at least as long as the launch."""

    array: str
    axis: int
    coordinate: int
    bounds: tuple[Limit, ...] = ()
    """Bounds checks that hold before every use: the coordinate is below each of them."""
    offset: int = 0
    """What is added to the coordinate."""
    factor: int = 1
    divisor: int = 1
    """The index is ``coordinate // divisor * factor + offset``."""

    @property
    def text(self) -> str:
        """What is done to the coordinate, in words."""
        found = [f" divided by {self.divisor}"] if self.divisor > 1 else []
        found += [f" times {self.factor}"] if self.factor > 1 else []
        found += [f" {'plus' if self.offset > 0 else 'minus'} {abs(self.offset)}"] if self.offset else []
        return "".join(found)


@frozen
class Reach:
    """``array``'s axis must have at least ``needed`` elements, which the kernel indexes ``how``, in words."""

    array: str
    axis: int
    needed: Limit
    how: str
    """With ``{}`` for the number, where that is known at the call alone."""
    sure: bool = True
    """False where the index is computed, and known to be in bounds of an axis that long."""
    limits: tuple[Limit, ...] = ()
    """No thread gets there unless each of these is above 0."""


class Bounds:
    """Derives the checks from the kernel's indexing and the sizes that the arrays have been given."""

    effects: Effects
    arrays: Sequence[Leaf]
    by_label: dict[str, Leaf]
    dims: dict[str, Dims]
    shapes: dict[str, tuple[Expr, ...] | Callback]

    def uses(self, leaf: Leaf) -> tuple[AxisUse, ...]:
        """How each axis of an array is indexed."""
        known = self.effects.arrays.get(leaf.label)
        return known.axes if known is not None and len(known.axes) == leaf.ndim else ()

    @cached_property
    def axes(self) -> list[tuple[Leaf, int, AxisUse]]:
        """Each axis of each array, and how it is indexed."""
        return [(leaf, axis, use) for leaf in self.arrays for axis, use in enumerate(self.uses(leaf))]

    def size_of(self, leaf: Leaf, axis: int) -> Expr | None:
        dims = self.dims.get(leaf.name) or self.shapes.get(leaf.name)
        return None if dims is None or callable(dims) else dims[axis]

    def named(self, limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
        """The limits with arrays by schema name."""
        return tuple(
            Limit((self.by_label[limit.base[0]].name, limit.base[1]), limit.offset)
            if isinstance(limit.base, tuple)
            else limit
            for limit in limits
        )

    def covers(self, launch: tuple[Expr, ...] | Callback) -> list[Cover]:
        """The indices by a coordinate that the launch size alone doesn't keep in bounds."""
        found = {
            Cover(
                leaf.name, axis, below.coordinate, self.named(below.bounds), below.offset, below.factor, below.divisor
            )
            for leaf, axis, use in self.axes
            for below in use.below
            if not below.doubt and not self.settled(leaf, axis, below, launch)
        }
        return [
            cover
            for cover in sorted(found, key=repr)
            if not any(cover != other and _says_more(other, cover) for other in found)
        ]

    def settled(self, leaf: Leaf, axis: int, below: Below, launch: tuple[Expr, ...] | Callback) -> bool:
        """Whether the axis has as many elements as the launch has threads, or the offset more."""
        c, size = below.coordinate, self.size_of(leaf, axis)
        if callable(launch) or c >= len(launch) or size is None:
            return False
        if below.factor > below.divisor:
            sides = ((integer(below.factor), launch[c]), (launch[c], integer(below.factor)))
            return below.divisor == 1 and below.offset < below.factor and size in [folded("*", *pair) for pair in sides]
        return size == launch[c] if below.offset <= 0 else size == folded("+", launch[c], integer(below.offset))

    def doubts(self, leaf: Leaf, axis: int, use: AxisUse, launch: tuple[Expr, ...] | Callback) -> Iterator[str]:
        """Indices that no size keeps in bounds, by threads that can't be told."""
        sure = [below for below in use.below if not below.doubt and not below.bounds]
        for below in use.below:
            covered = any(
                (other.coordinate, other.factor, other.divisor) == (below.coordinate, below.factor, below.divisor)
                and other.offset >= below.offset
                for other in sure
            )
            if below.doubt and not covered and not self.settled(leaf, axis, below, launch):
                yield below.doubt
        for need in use.needs:
            if need.doubt and not self.long_enough(leaf, axis, need, launch):
                yield need.doubt

    def long_enough(self, leaf: Leaf, axis: int, need: Need, launch: tuple[Expr, ...] | Callback) -> bool:
        """Whether the axis surely has that many elements when anything is launched."""
        size = self.size_of(leaf, axis)
        if size is not None and size.is_int:
            return int(size.value) >= need.size
        return need.size == 1 and size is not None and not callable(launch) and size in launch

    def reaches(self, launch: tuple[Expr, ...] | Callback) -> Iterator[Reach]:
        """The indices that aren't a coordinate's: constants and computed ones, then those of loops."""
        for leaf, axis, use in self.axes:
            for need in use.needs:
                if not need.doubt and not self.long_enough(leaf, axis, need, launch):
                    how, limits = f"where it takes at least {need.size}", self.named(need.limits)
                    yield Reach(leaf.name, axis, Limit(need.size), how, sure=False, limits=limits)
            if use.constants:
                least = max(c + 1 if c >= 0 else -c for c in use.constants)
                if not self.long_enough(leaf, axis, Need(least), launch):
                    yield Reach(leaf.name, axis, Limit(least), f"with the constant {least - 1}")
        for leaf, axis, use in self.axes:
            for number in use.int_loops:
                if self.size_of(leaf, axis) != name(number):
                    yield Reach(leaf.name, axis, Limit(number), f"in a loop up to '{number}', which is {{}}")
        for leaf, axis, use in self.axes:
            size = self.size_of(leaf, axis)
            for label, other_axis in use.loops:
                other = self.by_label.get(label)
                if other is None or (other, other_axis) == (leaf, axis):
                    continue
                if size is None or size != self.size_of(other, other_axis):
                    how = f"in a loop over axis {other_axis} of '{label}', which has {{}}"
                    yield Reach(leaf.name, axis, Limit((other.name, other_axis)), how)


def _says_more(one: Cover, other: Cover) -> bool:
    """Whether what one demands implies what the other does."""
    place = (one.array, one.axis, one.coordinate) == (other.array, other.axis, other.coordinate)
    place = place and (one.factor, one.divisor) == (other.factor, other.divisor)
    return place and one.offset >= other.offset and set(one.bounds) <= set(other.bounds)
