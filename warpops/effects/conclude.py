"""From accesses to conclusions: each certain, or the safe value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .facts import closure, nonnegative
from .forms import Affine, Arg, Coord, Covered, Flag, Form, Loop, Shape, Size, bare_coordinate
from .hazards import first_need, private
from .indices import axis_use, limit, may_wrap
from .model import ArrayEffects, Limit, Premise, Site
from .record import Access, Record
from .state import Pattern, State
from .tables import row


def conclude_array(record: Record, name: str, warp_type: Any, rank: int | None, end: State) -> ArrayEffects:
    """What the run has shown of one array."""
    accesses = record.by_array.get(name, [])
    reads = [access for access in accesses if access.kind == "read"]
    writes = [access for access in accesses if access.kind != "read"]
    stores = [access for access in writes if access.kind == "store"]
    atomics = [access for access in writes if access.kind != "store"]
    escapes = tuple([site for array, site in record.escapes if array == name])
    hidden = bool(escapes or record.opaque)
    ndim = int(getattr(warp_type, "ndim", 0) or 0)
    reads_back = (
        hidden or name in record.revisited or bool(reads) or any(a.used or not row(a.kind).sums for a in atomics)
    )
    filled, by, premises, why = _filled(name, ndim, accesses, stores, rank, end, hidden)
    return ArrayEffects(
        name=name,
        ndim=ndim,
        reads=_sites(reads),
        stores=_sites(stores),
        atomics=tuple(dict.fromkeys([(a.kind, a.site) for a in atomics])),
        escapes=escapes,
        axes=tuple([axis_use(name, axis, accesses, record.guards) for axis in range(ndim)]),
        reads_before_write=_read_first(accesses, reads, rank) if stores and not hidden else None,
        reads_back=reads_back,
        stored_once=ndim > 0 and not reads_back and _stored_once(stores, atomics, rank, end.stores.get(name, 0)),
        filled=filled,
        filled_by=by,
        filled_why=why,
        filled_if=premises,
        view_stored=any(access.view for access in writes),
        before=None if hidden else first_need(record, name, "before"),
        after=None if hidden else first_need(record, name, "after"),
        reads_own=bool(reads or atomics) and not hidden and all(access.own for access in (*reads, *atomics)),
        tested=name in record.tested,
        unasked=() if name in record.tested else _unasked(name, ndim, accesses),
        null_adjoint_safe=name not in record.unsafe,
        measured=name in record.measured,
        wraps=name in record.unsafe
        and any(may_wrap(form, access.facts) for access in accesses for form in access.pattern),
        replayed=any(access.inside for access in writes),
    )


def _unasked(name: str, ndim: int, accesses: Sequence[Access]) -> tuple[tuple[Site, frozenset[str]], ...]:
    """The accesses that would touch a null array, whose sizes are 0, and the arguments that keep threads from them."""
    zero = Affine(None, 0)
    found: dict[tuple[Site, frozenset[str]], None] = {}
    for access in accesses:
        indices = [form for form in access.pattern if isinstance(form, Affine)]
        flags: set[str] = set()
        if access.facts or any(isinstance(form.base, Loop) for form in indices):
            sizes = [Affine(Shape(name, axis)) for axis in range(ndim)]
            known = closure(access.facts, *indices)
            if any(known.less(zero, size) for size in sizes):
                continue
            bases = {base for fact in access.facts for base in (fact.left.base, fact.right.base)}
            flags = {b.name for b in bases if isinstance(b, (Arg, Flag)) and known.less(zero, Affine(b))}
        found[access.site, frozenset(flags)] = None
    return tuple(found)


def _sites(accesses: Sequence[Access]) -> tuple[Site, ...]:
    return tuple(dict.fromkeys([access.site for access in accesses]))


# ---------------------------------------------------------------------------------------------------------------------
# Stores


def _stored_once(stores: Sequence[Access], atomics: Sequence[Access], rank: int | None, times: int) -> bool:
    """Whether no element is stored to twice, by one thread (at most so many ``times``) or by two."""
    if any(a.view or a.component or a.possible for a in (*stores, *atomics)):
        return False
    if not stores:
        return bool(atomics)
    if atomics or times > 1:
        return False
    plain = all(_plain_index(form) for a in stores for form in a.pattern)
    return plain and private(stores, rank) and all(_coordinates_once(a.pattern) for a in stores)


def _plain_index(form: Form) -> bool:
    """An index that is its coordinate, literal or loop variable: nothing that may be negative and wrap."""
    if not isinstance(form, Affine):
        return False
    bare = form.offset == 0 and isinstance(form.base, (Coord, Loop))
    return (bare or form.base is None) and nonnegative(form)


def _coordinates_once(pattern: Pattern) -> bool:
    coordinates = [c for c in map(bare_coordinate, pattern) if c is not None]
    return len(coordinates) == len(set(coordinates))


def _read_first(accesses: Sequence[Access], reads: Sequence[Access], rank: int | None) -> Site | None:
    """A read of the own element that surely runs, under no condition but bounds checks, before any write."""
    if not private(accesses, rank):
        return None
    for read in reads:
        sure = read.first and not read.possible and not read.loops
        if sure and all(condition.below is not None for condition in read.conditions):
            return read.site
    return None


def _filled(
    name: str,
    ndim: int,
    accesses: Sequence[Access],
    stores: Sequence[Access],
    rank: int | None,
    end: State,
    hidden: bool,
) -> tuple[bool, tuple[int | None, ...], tuple[Premise, ...], str]:
    """Whether every element is written, by which coordinates, what that supposes, and why."""
    why = _unfillable(ndim, accesses, stores, rank, hidden)
    if why is not None:
        return False, (), (), why
    at = f"at {stores[0].site}"
    for (array, pattern), sizes in end.must.items():
        if array != name:
            continue
        premises = _premises(name, pattern, sizes, rank or 0)
        by = tuple(map(bare_coordinate, pattern))
        if isinstance(premises, str):
            why = why or premises
        elif not premises:
            return True, by, (), f"every thread stores its elements, {at}"
        else:
            said = " and ".join(f"{_side(p.left)} = {Limit(p.right)}" for p in premises)
            return False, by, premises, f"every element is stored only if {said}, {at}"
    return False, (), (), f"{why or 'not every thread surely stores'}, {at}"


def _side(left: int | tuple[str, int]) -> str:
    return f"the launch size of coordinate {left}" if isinstance(left, int) else str(Limit(left))


def _unfillable(
    ndim: int, accesses: Sequence[Access], stores: Sequence[Access], rank: int | None, hidden: bool
) -> str | None:
    if hidden:
        return "it is touched where the analysis can't see"
    if not stores:
        return "it is not stored to"
    if rank is None or not ndim:
        return "its rank, or that of wp.tid(), is unknown"
    for access in accesses:
        if access.kind not in ("read", "store"):
            return f"it is updated atomically at {access.site}"
        if access.kind == "read" and not access.own:
            return f"it is read at {access.site}, maybe before it is written"
    return None


def _premises(name: str, pattern: Pattern, sizes: frozenset[Size], rank: int) -> tuple[Premise, ...] | str:
    """What a store pattern supposes to fill the array, or why it can't."""
    seen: dict[int, int] = {}
    premises: dict[Premise, None] = {}
    for axis, form in enumerate(pattern):
        coordinate = bare_coordinate(form)
        if coordinate is not None:
            if coordinate in seen:
                return "only a diagonal is stored"
            seen[coordinate] = axis
        elif isinstance(form, Covered):
            if form.bound != Shape(name, axis):
                premises[Premise((name, axis), limit(form.bound).base)] = None
        else:
            return f"axis {axis} isn't run through by a coordinate or a full loop"
    if len(seen) < rank:
        return "a coordinate of wp.tid() doesn't index it: no thread runs where that coordinate's size is 0"
    for size in sizes:
        if not (isinstance(size.bound, Shape) and size.bound == Shape(name, seen.get(size.coordinate, -1))):
            premises[Premise(size.coordinate, limit(size.bound).base)] = None
    return tuple(premises)
