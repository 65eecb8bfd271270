"""How each axis of an array is indexed: what must hold of its size, and what can't be told."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from ..frozen import replace
from .facts import Known, closure, nonnegative
from .forms import (
    NO_FACTS,
    Affine,
    Arg,
    Clamped,
    Computed,
    Coord,
    Facts,
    Form,
    Loop,
    Mirrored,
    OneOf,
    Scaled,
    Shape,
    Size,
    Unknown,
    Window,
    bare_coordinate,
    run_length,
)
from .model import AxisUse, Below, Limit, Need
from .record import Access
from .state import Condition


def axis_use(name: str, axis: int, accesses: Iterable[Access], guards: Set[Condition]) -> AxisUse:
    """How the kernel indexes one axis; ``guards`` are the conditions that all of its accesses lie behind."""
    found = _Axis(axis, Affine(Shape(name, axis)), guards)
    for access in accesses:
        found.add(access)
    single, guarded = None, False
    if len(found.coordinates) == 1:
        ((single, guarded),) = found.coordinates.items()
        guarded = guarded and not _in_any_case(found.bare)
    elif found.coordinates:
        names = " and ".join(f"coordinate {c}" for c in sorted(found.coordinates))
        found.uncovered[f"indexed by {names}"] = None
    window = next(iter(found.windows)) if len(found.windows) == len(found.uncovered) == 1 else None
    run = next(iter(found.runs)) if len(found.runs) == 1 and not found.other else None
    return AxisUse(
        single,
        found.offset,
        tuple(sorted(found.constants)),
        tuple(found.loops),
        tuple(found.uncovered),
        guarded,
        tuple(found.int_loops),
        tuple(found.below),
        tuple(found.needs),
        found.mirrored,
        window,
        found.spread(),
        run,
    )


def limit(bound: Shape | Arg | int | None, offset: int = 0) -> Limit:
    """A number as the plan names it."""
    if isinstance(bound, Shape):
        return Limit((bound.array, bound.axis), offset)
    return Limit(bound.name, offset) if isinstance(bound, Arg) else Limit((bound or 0) + offset)


def may_wrap(form: Form, facts: Facts) -> bool:
    """Whether an index may be negative."""
    if isinstance(form, Affine):
        return not nonnegative(form, facts)
    if isinstance(form, OneOf):
        return any(may_wrap(one, facts) for one in form.forms)
    return isinstance(form, Unknown) or (isinstance(form, Clamped) and (not form.low or form.turns is not None))


@dataclass
class _Axis:
    axis: int
    size: Affine
    guards: Set[Condition]
    coordinates: dict[int, bool] = field(default_factory=dict)
    """By coordinate: whether each of its bare uses lies behind a condition that isn't one of the guards."""
    constants: set[int] = field(default_factory=set)
    loops: dict[tuple[str, int], None] = field(default_factory=dict)
    int_loops: dict[str, None] = field(default_factory=dict)
    uncovered: dict[str, None] = field(default_factory=dict)
    below: dict[Below, None] = field(default_factory=dict)
    needs: dict[Need, None] = field(default_factory=dict)
    offset: bool = False
    clamped: bool = False
    bare: list[frozenset[tuple[object, ...]]] = field(default_factory=list)
    """The branches that each bare use by a coordinate lies in, the guards apart."""
    multiples: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    runs: dict[tuple[str, int] | str, None] = field(default_factory=dict)
    mirrored: bool = False
    windows: dict[tuple[int, int, tuple[str, int] | str], None] = field(default_factory=dict)
    other: bool = False
    """It is indexed by something else than ``runs``, or under conditions."""

    def spread(self) -> tuple[int, int] | None:
        if len(self.multiples) != 1 or self.coordinates or self.uncovered or self.loops or self.constants:
            return None
        ((found, offsets),) = self.multiples.items()
        alone = all(not b.doubt and (b.coordinate, b.factor) == found for b in self.below)
        return found if alone and offsets == set(range(found[1])) and not self.clamped else None

    def leave(self, reason: str, access: Access) -> None:
        """Leave an index uncovered."""
        self.uncovered[f"{reason} (line {access.site.line})"] = None

    def add(self, access: Access) -> None:
        if self.axis >= len(access.pattern):
            self.leave("indexed by an axis of unknown rank", access)
            return
        form = access.pattern[self.axis]
        if not self.other:
            self._note_run(form, access)
        coordinate = bare_coordinate(form)
        if coordinate is None and isinstance(form, Unknown) and isinstance(form.known, Mirrored):
            own = form.known.length == self.size.base and form.known.offset == -1
            coordinate = form.known.coordinate.axis if own else None
            if own:
                self.mirrored, form = True, Affine(form.known.coordinate)
        if coordinate is not None:
            outside = [c for c in access.conditions if c.coords and c not in self.guards]
            if not access.possible and not any(c.partial for c in outside):
                self.bare.append(frozenset((c.site, c.site.column, c.holds) for c in outside))
            behind = access.possible or bool(outside)
            self.coordinates[coordinate] = self.coordinates.get(coordinate, True) and behind
        if isinstance(form, OneOf):
            for one in sorted(form.forms, key=repr):  # the same in every process
                self._index(one, access if form.sure else replace(access, possible=True), one_of=True)
        else:
            self._index(form, access)

    def _index(self, form: Form, access: Access, *, one_of: bool = False) -> None:
        if one_of and isinstance(form, Affine) and form.base is None:
            # A negative one may be a mark that is never used.
            marked = replace(access, possible=access.possible or form.offset < 0)
            self._need(marked, closure(access.facts), max(form.offset + 1, -form.offset))
        elif isinstance(form, Affine):
            self._affine(form, access)
        elif isinstance(form, Clamped):
            self._clamped(form, access)
        elif isinstance(form, Unknown) and isinstance(form.known, Scaled):
            self._scaled(form.known, access)
        elif isinstance(form, Unknown):
            if isinstance(form.known, Window):
                window = form.known
                self.windows[window.coordinate.axis, window.offset, _length(window.length)] = None
            self.offset = self.offset or form.derived
            by = "" if isinstance(form.reason, Computed) else "indexed by "
            self.leave(f"{by}{form.reason}", access)
        elif access.view:
            self.leave("touched as a whole, a slice or a tile", access)

    def _affine(self, form: Affine, access: Access) -> None:
        base = form.base
        if not access.facts and not form.offset and isinstance(base, Coord):
            self._below(access, Below(base.axis))
            return
        known = closure(access.facts, form)
        below = known.less(form, self.size)
        least = known.least(form)
        if isinstance(base, Coord):
            self._neighbour(form, known, access)
            if not below:
                # Where a condition keeps it from being negative it is a neighbour that the coordinate stands for.
                doubtful = _limits(access) is None and least is not None and least >= 0
                self._below(access, Below(base.axis, max(form.offset, 0) if doubtful else form.offset))
        elif isinstance(base, Shape):
            if base == self.size.base and form.offset < 0:
                self._need(access, known, (1 - form.offset) // 2)
            else:
                self.leave("indexed by a size", access)
            return
        elif isinstance(base, Loop) and closure(NO_FACTS, form).less(form, self.size):
            self._loop(form, access)
            return
        elif below and least is not None:
            pass
        elif base is None:
            self.constants.add(form.offset)
            return
        elif isinstance(base, Loop):
            self._loop(form, access)
            return
        elif isinstance(base, Arg):
            self.leave(f"indexed by the argument '{base.name}'", access)
            return
        if least is not None and least < 0:
            self._need(access, known, -least)

    def _note_run(self, form: Form, access: Access) -> None:
        """An index by the variable of a loop that runs through all of a length."""
        length = run_length(form)
        conditions = [c for c in access.conditions if c not in self.guards]
        if length is None or access.possible or conditions:
            self.other = True
        else:
            self.runs[_length(length)] = None

    def _scaled(self, form: Scaled, access: Access) -> None:
        """``2 * i + 1``, ``i // 2``: how far it reaches is known where nothing but bounds of coordinates decides."""
        below = Below(form.coordinate.axis, form.offset, factor=form.factor, divisor=form.divisor)
        inside = form.factor <= form.divisor and form.offset == 0
        self.clamped, self.offset = self.clamped or inside, self.offset or not inside
        sure = not access.loops and all(condition.coords for condition in access.conditions)
        self._below(access, below, sure=sure)
        if sure and form.divisor == 1 and _limits(access) == frozenset():
            self.multiples.setdefault((below.coordinate, form.factor), set()).add(form.offset)

    def _neighbour(self, form: Affine, known: Known, access: Access) -> None:
        """``i + 1`` fixes no size, unless conditions keep it in bounds of some."""
        if form.offset == 0:
            return
        if form.offset < 0:
            kept = known.less(Affine(None, -1), form)
        else:
            bases = {base for fact in access.facts for base in (fact.left.base, fact.right.base)}
            kept = any(isinstance(b, (Shape, Arg)) and known.less(form, Affine(b)) for b in bases)
        self.clamped, self.offset = self.clamped or kept, self.offset or not kept

    def _clamped(self, form: Clamped, access: Access) -> None:
        known = closure(access.facts, *form.bounds)
        kept = any(known.less(Affine(b.base, b.offset - 1), self.size) for b in form.bounds)
        if not form.low or not form.bounds:
            self.offset = True
            self.leave(f"kept {'above 0' if form.low else 'below a bound'} only", access)
            return
        self.clamped = True
        own = [(b.base.axis, b.offset - 1) for b in form.bounds if isinstance(b.base, Coord)]
        less = own[0][1] if len(own) == 1 else 0  # bounds of the coordinate where there is one, else of the index
        uniform = [
            limit(b.base, b.offset - less) for b in form.bounds if b.base is None or isinstance(b.base, (Shape, Arg))
        ]
        if kept:
            pass
        elif len(own) == 1:
            self._below(access, Below(*own[0]), uniform)
        elif uniform:
            names = " and ".join(sorted(map(str, uniform)))
            self.leave(f"kept below {names} only", access)
        else:
            self.leave("computed: one of several coordinates, or a loop's variable", access)
        self._need(access, known, 1)

    def _loop(self, form: Affine, access: Access) -> None:
        """An index by a loop's variable: bounded by a literal, by a size, or not in a way that can be followed."""
        loop = form.base
        assert isinstance(loop, Loop)
        upper = loop.upper
        low = loop.nonneg and (form.offset >= 0 or (loop.start is not None and loop.start + form.offset >= 0))
        if upper is None or not low:
            self.leave("indexed by a loop's variable", access)
            return
        last = upper.offset - 1 + form.offset
        if upper.base is None:
            backward = loop.start is None or last < loop.start
            self.constants.update({last} if backward else {(loop.start or 0) + form.offset, last})
        elif isinstance(upper.base, Shape) and upper.offset + form.offset <= 0:
            self.loops[(upper.base.array, upper.base.axis)] = None
        elif isinstance(upper.base, Arg) and upper.offset + form.offset <= 0:
            self.int_loops[upper.base.name] = None
        elif isinstance(upper.base, Loop):
            self._loop(Affine(upper.base, last), access)
        else:
            self.leave(f"indexed by a loop's variable plus {form.offset}", access)

    def _below(self, access: Access, below: Below, more: Iterable[Limit] = (), *, sure: bool = True) -> None:
        """An index by a coordinate: surely by all threads below certain bounds, or by some that can't be told."""
        bounds = _bounds(access, more, below.coordinate) if sure else None
        if bounds is None:
            doubt = f"indexed by {below.index} under a condition (line {access.site.line})"
            below = dataclasses.replace(below, doubt=doubt)
        elif bounds:
            below = dataclasses.replace(below, bounds=bounds)
        self.below[below] = None

    def _need(self, access: Access, known: Known, size: int) -> None:
        """The axis must have so many elements, where a thread gets there."""
        if known.less(Affine(None, size - 1), self.size):
            return
        sure = not access.loops and all(condition.coords or condition.data for condition in access.conditions)
        bounds = _bounds(access) if sure else None
        doubt = f"kept inside an axis that takes at least {size} for that (line {access.site.line})"
        self.needs[Need(size, bounds or (), doubt if bounds is None else "")] = None


def _bounds(access: Access, more: Iterable[Limit] = (), coordinate: int | None = None) -> tuple[Limit, ...] | None:
    """The bounds (of one coordinate) under which threads get to an access, in order; None where more decides."""
    limits = _limits(access)
    if limits is None:
        return None
    own = {limit(size.bound, size.offset) for size in limits if coordinate in (None, size.coordinate)}
    return tuple(sorted(own.union(more), key=repr))


def _limits(access: Access) -> frozenset[Size] | None:
    """The bounds of coordinates under which threads get to an access, data and numbers apart; None where more decides."""
    found: frozenset[Size] = frozenset()
    if access.possible:
        return None
    for condition in access.conditions:
        if condition.coords:
            if condition.partial or condition.below is None:
                return None
            found |= condition.below
    return found


def _length(of: Shape | Arg) -> tuple[str, int] | str:
    return (of.array, of.axis) if isinstance(of, Shape) else of.name


def _in_any_case(branches: list[frozenset[tuple[object, ...]]]) -> bool:
    """Whether uses in these branches are made by all threads: in both branches of each test."""
    known = set(branches)
    grown = True
    while grown:
        found = {one - {test} for one in known for test in one if one - {test} | {(*test[:-1], not test[-1])} in known}
        grown = not found <= known
        known |= found
    return frozenset() in known
