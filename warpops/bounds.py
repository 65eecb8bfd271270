"""What must hold of sizes at each call, so that no launch indexes an array outside of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .declaration import Callback, Dims
from .effects import AxisUse, Effects
from .kernel import Leaf
from .sizes import Expr, name


@dataclass(frozen=True)
class Cover:
    """``array``'s axis is indexed by a coordinate of ``wp.tid()``: it must be at least as long as the launch."""

    array: str
    axis: int
    coordinate: int
    bounds: tuple[str | tuple[str, int] | int, ...] = ()
    """Bounds checks that hold before every use: the coordinate is below each of them."""
    offset: int = 0
    """What is added to the coordinate."""


@dataclass(frozen=True)
class Count:
    """``array``'s axis is indexed by a loop over an int argument: it must be at least as long."""

    array: str
    axis: int
    number: str


@dataclass(frozen=True)
class Reach:
    """``array``'s axis is indexed by a constant: it must have at least ``size`` elements."""

    array: str
    axis: int
    size: int
    constant: bool = True
    """False where the index is computed, and known to be in bounds of an axis that long."""


@dataclass(frozen=True)
class Loop:
    """``array``'s axis is indexed by a loop over ``other``'s axis: it must be at least as long."""

    array: str
    axis: int
    other: str
    other_axis: int


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

    def size_of(self, leaf: Leaf, axis: int) -> Expr | None:
        dims = self.dims.get(leaf.name) or self.shapes.get(leaf.name)
        return None if dims is None or callable(dims) else dims[axis]

    def covers(self, launch: tuple[Expr, ...] | Callback) -> list[Cover]:
        found = []
        for leaf in self.arrays:
            for axis, use in enumerate(self.uses(leaf)):
                c = use.coordinate
                if c is None or use.guarded:
                    continue
                size = self.size_of(leaf, axis)
                if not callable(launch) and c < len(launch) and size == launch[c]:
                    continue
                bounds = []
                for guard in self.effects.guards:
                    bound = guard.bound
                    if guard.coordinate == c:
                        bounds.append((self.by_label[bound[0]].name, bound[1]) if isinstance(bound, tuple) else bound)
                if (leaf.name, axis) not in bounds:
                    found.append(Cover(leaf.name, axis, c, tuple(bounds)))
            for axis, use in enumerate(self.uses(leaf)):
                found += self.further_covers(leaf, axis, use, launch)
        return list(dict.fromkeys(found))

    def doubts(self, leaf: Leaf, axis: int, use: AxisUse, launch: tuple[Expr, ...] | Callback) -> Iterator[str]:
        """Indices by a coordinate that no size keeps in bounds, by threads that can't be told."""
        for below in use.below:
            c = below.coordinate
            known = not callable(launch) and c < len(launch) and self.size_of(leaf, axis) == launch[c]
            if below.doubt and (below.offset > 0 or not known):
                yield below.doubt

    def further_covers(
        self, leaf: Leaf, axis: int, use: AxisUse, launch: tuple[Expr, ...] | Callback
    ) -> Iterator[Cover]:
        """Indices by a coordinate other than the one that runs through the axis: neighbours, and behind conditions."""
        for below in use.below:
            c = below.coordinate
            if below.doubt or (below.offset == 0 and c == use.coordinate and not use.guarded):
                continue
            if below.offset <= 0 and not callable(launch) and c < len(launch) and self.size_of(leaf, axis) == launch[c]:
                continue
            bounds = [
                (self.by_label[bound[0]].name, bound[1]) if isinstance(bound, tuple) else bound
                for bound in below.bounds
            ]
            if below.offset > 0 or (leaf.name, axis) not in bounds:
                yield Cover(leaf.name, axis, c, tuple(bounds), below.offset)

    def counts(self) -> list[Count]:
        found = []
        for leaf in self.arrays:
            for axis, use in enumerate(self.uses(leaf)):
                for number in use.int_loops:
                    size = self.size_of(leaf, axis)
                    if size is not None and size == name(number):
                        continue
                    found.append(Count(leaf.name, axis, number))
        return found

    def reaches(self) -> list[Reach]:
        found = []
        for leaf in self.arrays:
            for axis, use in enumerate(self.uses(leaf)):
                behind = max((-b.offset for b in use.below if b.offset < 0 and not b.bounds and not b.doubt), default=0)
                if behind or use.nonempty:
                    found.append(Reach(leaf.name, axis, max(behind, 1), constant=False))
                if not use.constants:
                    continue
                least = max(c + 1 if c >= 0 else -c for c in use.constants)
                size = self.size_of(leaf, axis)
                if size is not None and size.is_int and int(size.value) >= least:
                    continue
                found.append(Reach(leaf.name, axis, least))
        return found

    def loops(self) -> list[Loop]:
        found = []
        for leaf in self.arrays:
            for axis, use in enumerate(self.uses(leaf)):
                for other_label, other_axis in use.loops:
                    other = self.by_label.get(other_label)
                    if other is None or (other.name, other_axis) == (leaf.name, axis):
                        continue
                    size = self.size_of(leaf, axis)
                    if size is not None and size == self.size_of(other, other_axis):
                        continue
                    found.append(Loop(leaf.name, axis, other.name, other_axis))
        return found
