"""Stores of several threads to one element: the kernel keeps the last of them, and the adjoint takes any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from .facts import closure
from .forms import (
    NO_FACTS,
    Affine,
    Arg,
    Clamped,
    Coord,
    Coordinates,
    Facts,
    Form,
    Less,
    Loop,
    Shape,
    Stride,
    Unknown,
    varies,
)
from .indices import limit
from .model import Hazard, Premise, Site
from .record import Access
from .state import Condition


def told_apart(access: Access) -> Coordinates:
    """The coordinates that an access, its conditions or the value that it stores may depend on."""
    return access.varies.union(*map(varies, access.pattern), *[c.varies for c in access.conditions])


def raced(name: str, accesses: Iterable[Access], rank: int | None, apart: Coordinates) -> Hazard | None:
    """Where threads store to one element of an array, surely or as it seems; None where nothing says so.

    A store whose index tells its thread is alone in it. One that leaves a coordinate out, or makes one index of several
    coordinates, isn't, unless a condition on that coordinate may choose one thread of them. A coordinate that nothing in the
    kernel depends on (it isn't ``apart``) says that there is one thread.
    """
    stores = [access for access in accesses if access.kind == "store" and access.active and not access.possible]
    later: Hazard | None = None
    for site, more, unless, late in _races(stores, rank, apart) if rank else ():
        message = f"several threads {'may ' if more else ''}store to one element of '{name}'{more}"
        race = Hazard("shared", site, f"{message}, and the adjoint takes any of them", (name,), unless, late)
        if not late:
            return race
        later = later or race
    return later


def _races(stores: Sequence[Access], rank: int, apart: Coordinates) -> Iterator[tuple[Site, str, Premise | None, bool]]:
    """By the site: what makes it no more than likely, the size under which there is none, and whether most have that."""
    for store in stores:
        shared = [coordinate for coordinate in apart if coordinate < rank and _shares(store, coordinate)]
        if shared:
            sure = any(not _under(store, coordinate) for coordinate in shared)
            yield store.site, "" if sure else " (under a condition on data)", None, False
    for store in stores:
        for coordinate in range(rank):
            axis = _merging(store, coordinate)
            if axis is not None:
                form, unless = store.pattern[axis], _turn(store.pattern[axis])
                around = isinstance(form, Clamped) and form.at_once
                late = unless is not None and isinstance(unless.right, tuple) and not around
                yield store.site, f" ({_described(form, axis)})", unless, late
    for one, other in combinations(stores, 2):
        if _meet(one, other, rank):
            yield one.site, f" (here and at {other.site})", None, False


def _shares(store: Access, coordinate: int) -> bool:
    """Whether threads that differ in a coordinate alone store to the same element."""
    if any(_tells(form, coordinate) for form in store.pattern) or not _plain(store.pattern):
        return False
    if _chosen_by(_under(store, coordinate)):
        return False
    return not closure(store.facts, Affine(Coord(coordinate))).pinned(Coord(coordinate))


def _tells(form: Form, coordinate: int) -> bool:
    """Whether an index may be another one for each thread along a coordinate."""
    loop = form.base if isinstance(form, Affine) else None
    if isinstance(loop, Loop) and loop.upper is not None and loop.stride is None:
        # ``range(i)`` begins and ``range(i, n)`` ends alike for all.
        ends = isinstance(loop.upper.base, Coord)
        if ends == (loop.start is not None) and (not ends or loop.upper.base == Coord(coordinate)):
            return False
    return coordinate in varies(form)


def _plain(pattern: Sequence[Form]) -> bool:
    """The pattern is an element, or a slice's: a tile that the threads of a block store together isn't."""
    return bool(pattern) and all(isinstance(form, (Affine, Clamped, Unknown)) for form in pattern)


def _pinned(store: Access) -> bool:
    return any(
        closure(store.facts, form).pinned(form.base)
        for form in store.pattern
        if isinstance(form, Affine) and isinstance(form.base, Coord)
    )


def _under(store: Access, coordinate: int) -> list[Condition]:
    """The conditions on a coordinate that say more than how it compares."""
    return [c for c in store.conditions if coordinate in c.varies and not c.exact]


def _chosen_by(conditions: Sequence[Condition]) -> bool:
    """Whether conditions may choose one thread of several: one bound of data doesn't."""
    return bool(conditions) and not (len(conditions) == 1 and conditions[0].loose)


def _merging(store: Access, coordinate: int) -> int | None:
    """The one axis whose index depends on a coordinate, where it may well be the same for several."""
    axes = [axis for axis, form in enumerate(store.pattern) if coordinate in varies(form)]
    if len(axes) != 1 or not _plain(store.pattern):
        return None
    # Bounds checks choose no thread, nor does a loop's condition, at each turn.
    if _chosen_by([c for c in store.conditions if coordinate in c.varies and c.below is None and not c.turn]):
        return None
    form = store.pattern[axes[0]]
    stride = _stride(form)
    if stride is not None:
        return None if _ends_before(form, stride, store.facts) else axes[0]
    if isinstance(form, Unknown):
        # Two parts of one coordinate, ``i // 2`` and ``i % 2``, may well make the whole of it.
        return axes[0] if form.merges == 1 or (form.merges and not form.derived) else None
    return axes[0] if isinstance(form, Clamped) else None


def _stride(form: Form) -> Stride | None:
    """How an index goes on from turn to turn, where it begins at a coordinate."""
    loop = form.base if isinstance(form, Affine) else form
    return loop.stride if isinstance(loop, (Loop, Unknown)) else None


def _ends_before(form: Form, stride: Stride, facts: Facts) -> bool:
    """Whether an index that goes on by a step stays below it: it is where it began."""
    step = Affine(None, stride.step) if isinstance(stride.step, int) else Affine(stride.step)
    return isinstance(form, Affine) and closure(facts, form, step).less(form, step)


def _described(form: Form, axis: int) -> str:
    stride = _stride(form)
    if stride is not None:
        base = limit(stride.step).base
        step = f"{base[0]}.shape[{base[1]}]" if isinstance(base, tuple) else base
        return f"index {axis} begins at coordinate {stride.coordinate} and goes on by {step}"
    return str(form.reason).removeprefix("computed: ") if isinstance(form, Unknown) else f"index {axis}"


def _turn(form: Form) -> Premise | None:
    """The size under which ``(i + 1) % n``, or what goes on by ``n`` from ``i``, is another element for each thread."""
    stride = _stride(form)
    if stride is not None:
        return Premise(stride.coordinate, limit(stride.step).base)
    if not isinstance(form, Clamped) or form.turns is None:
        return None
    (divisor,) = form.bounds
    assert isinstance(divisor.base, (Shape, Arg))
    return Premise(form.turns.axis, limit(divisor.base).base)


def _meet(one: Access, other: Access, rank: int) -> bool:
    """Whether two stores by coordinates, ``y[i]`` and ``y[i + 1]``, are to the same element in different threads."""
    if not _known(one) or not _known(other):
        return False
    places: dict[int, Affine] = {}
    for form, same in zip(one.pattern, other.pattern, strict=True):
        if not isinstance(form, Affine) or not isinstance(same, Affine):
            return False
        if not isinstance(form.base, Coord) or not isinstance(same.base, Coord):
            if form != same or form.base is not None:
                return False
            continue
        if form.offset < 0 or same.offset < 0 or same.base.axis in places:
            return False
        places[same.base.axis] = Affine(form.base, form.offset - same.offset)
    if len(places) < rank or len({place.base for place in places.values()}) < rank:
        return False
    if any(_pinned(store) for store in (one, other)):
        return False  # the first or the last thread, at the border
    there = {Less(Affine(None, -1), place) for place in places.values()}
    facts = one.facts | _elsewhere(other.facts, places) | there
    return any(
        closure(facts | {less}).possible
        for axis, place in places.items()
        if place != Affine(Coord(axis))
        for less in (Less(place, Affine(Coord(axis))), Less(Affine(Coord(axis)), place))
    )


def _known(store: Access) -> bool:
    """Whether facts tell which threads store."""
    return not store.view and not store.loops and all(c.exact or not c.varies for c in store.conditions)


def _elsewhere(facts: Facts, places: Mapping[int, Affine]) -> Facts:
    """What holds in the thread whose coordinates are at these places, as seen from this one."""

    def moved(form: Affine) -> Affine:
        if not isinstance(form.base, Coord) or form.base.axis not in places:
            return form
        place = places[form.base.axis]
        return Affine(place.base, place.offset + form.offset)

    return NO_FACTS.union({Less(moved(fact.left), moved(fact.right)) for fact in facts})
