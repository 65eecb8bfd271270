"""From accesses to conclusions: each certain, or the safe value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .access import PURE_ATOMICS
from .forms import Affine, Arg, Clamped, Coord, Covered, Form, Loop, Shape, Size, Unknown, bare_coordinate
from .hazards import first_need, private
from .model import ArrayEffects, AxisUse, Below, Guard, Premise, Site
from .record import Access, Record
from .state import Condition, Pattern, State


def conclude_array(
    record: Record,
    name: str,
    warp_type: Any,
    rank: int | None,
    end: State,
    guards: Sequence[Guard],
) -> ArrayEffects:
    """What the run has shown of one array."""
    accesses = [access for access in record.accesses if access.array == name]
    reads = [access for access in accesses if access.kind == "read"]
    stores = [access for access in accesses if access.kind == "store"]
    atomics = [access for access in accesses if access.kind not in ("read", "store")]
    escapes = tuple(site for array, site in record.escapes if array == name)
    hidden = bool(escapes or record.opaque)
    ndim = int(getattr(warp_type, "ndim", 0) or 0)
    reads_back = (
        hidden or name in record.revisited or bool(reads) or any(a.used or a.kind not in PURE_ATOMICS for a in atomics)
    )
    filled, premises, why = _filled(name, ndim, accesses, rank, end, hidden)
    return ArrayEffects(
        name=name,
        ndim=ndim,
        reads=_sites(reads),
        stores=_sites(stores),
        atomics=tuple(dict.fromkeys((a.kind, a.site) for a in atomics)),
        escapes=escapes,
        axes=tuple(_axis_use(name, axis, accesses, guards) for axis in range(ndim)),
        reads_before_write=_read_first(accesses, reads, rank) if stores and not hidden else None,
        reads_back=reads_back,
        stored_once=ndim > 0 and not reads_back and _stored_once(record, stores, atomics, rank, end, name),
        filled=filled,
        filled_why=why,
        filled_if=premises,
        view_stored=any(access.view for access in (*stores, *atomics)),
        before=None if hidden else first_need(record, name, "before"),
        after=None if hidden else first_need(record, name, "after"),
        reads_own=bool(reads or atomics) and not hidden and all(access.own for access in (*reads, *atomics)),
        tested=name in record.tested,
        null_adjoint_safe=name not in record.unsafe,
        replayed=any(access.inside for access in (*stores, *atomics)),
    )


def _sites(accesses: Sequence[Access]) -> tuple[Site, ...]:
    return tuple(dict.fromkeys(access.site for access in accesses))


# ---------------------------------------------------------------------------------------------------------------------
# Guards


def find_guards(record: Record) -> tuple[Guard, ...]:
    """The bounds checks that every access of the kernel lies behind."""
    accesses = list(record.accesses)
    if not accesses or record.escapes or record.opaque:
        return ()
    common: dict[Condition, None] = dict.fromkeys(
        c for c in accesses[0].conditions if c.always is not None and not c.partial
    )
    for access in accesses[1:]:
        common = {c: None for c in common if c in access.conditions}
    return tuple(
        dict.fromkeys(
            Guard(size.coordinate, _bound(size.bound), condition.site)
            for condition in common
            for size in sorted(condition.always or (), key=repr)
        )
    )


def _bound(bound: Shape | Arg | int) -> str | tuple[str, int] | int:
    if isinstance(bound, Shape):
        return (bound.array, bound.axis)
    return bound.name if isinstance(bound, Arg) else bound


# ---------------------------------------------------------------------------------------------------------------------
# Axes


def _axis_use(name: str, axis: int, accesses: Sequence[Access], guards: Sequence[Guard]) -> AxisUse:
    coordinates: dict[int, bool] = {}
    constants: set[int] = set()
    loops: dict[tuple[str, int], None] = {}
    int_loops: dict[str, None] = {}
    uncovered: dict[str, None] = {}
    below: dict[Below, None] = {}
    offset = clamped = nonempty = False
    sites = {guard.site for guard in guards}
    for access in accesses:
        form = access.pattern[axis] if axis < len(access.pattern) else Unknown("an axis of unknown rank")
        line = f"(line {access.site.line})"
        coordinate = bare_coordinate(form)
        if coordinate is not None:
            partial = access.possible or any(c.coords and (c.partial or c.site not in sites) for c in access.conditions)
            coordinates[coordinate] = coordinates.get(coordinate, True) and partial
            _below(access, coordinate, 0, below)
        elif isinstance(form, Clamped):
            if form.low and form.high:
                clamped = True
                if isinstance(form.bound, Coord):
                    _below(access, form.bound.axis, 0, below)
                elif form.bound is not None and form.bound != Shape(name, axis):
                    uncovered[f"kept below {_bound_name(form.bound)} only {line}"] = None
                else:
                    nonempty = nonempty or not (access.conditions or access.loops or access.possible)
            else:
                offset = True
                uncovered[f"kept {'above 0' if form.low else 'below a bound'} only {line}"] = None
        elif isinstance(form, Unknown):
            offset = offset or form.derived
            uncovered[_reason(form, line)] = None
        elif isinstance(form, Affine):
            if form.base is None:
                constants.add(form.offset)
            elif isinstance(form.base, Coord):
                offset = True
                _below(access, form.base.axis, form.offset, below)
            elif isinstance(form.base, Loop):
                _loop_use(form, line, constants, loops, int_loops, uncovered)
            elif isinstance(form.base, Arg):
                uncovered[f"indexed by the argument '{form.base.name}' {line}"] = None
            else:
                uncovered[f"indexed by a size {line}"] = None
        elif access.view or not access.pattern:
            uncovered[f"touched as a whole, a slice or a tile {line}"] = None
    if len(coordinates) > 1:
        names = " and ".join(f"coordinate {c}" for c in sorted(coordinates))
        uncovered[f"indexed by {names}"] = None
    single = next(iter(coordinates)) if len(coordinates) == 1 else None
    return AxisUse(
        coordinate=single,
        offset=offset,
        constants=tuple(sorted(constants)),
        loops=tuple(loops),
        uncovered=tuple(uncovered),
        guarded=single is not None and coordinates[single],
        clamped=clamped,
        int_loops=tuple(int_loops),
        below=tuple(below),
        nonempty=nonempty,
    )


def _below(access: Access, coordinate: int, offset: int, below: dict[Below, None]) -> None:
    """Note an index by a coordinate: surely by all threads below certain bounds, or by some that can't be told."""
    if access.possible or any(c.coords and (c.partial or c.always is None) for c in access.conditions):
        by = f"coordinate {coordinate}" + (f" {'+' if offset > 0 else '-'} {abs(offset)}" if offset else "")
        below[Below(coordinate, offset, (), f"indexed by {by} under a condition (line {access.site.line})")] = None
        return
    bounds = {
        _bound(size.bound)
        for condition in access.conditions
        for size in condition.always or ()
        if condition.coords and size.coordinate == coordinate
    }
    below[Below(coordinate, offset, tuple(sorted(bounds, key=repr)))] = None


def _reason(form: Unknown, line: str) -> str:
    return f"indexed by {form.reason} {line}" if not form.reason.startswith("computed") else f"{form.reason} {line}"


def _bound_name(bound: object) -> str:
    if isinstance(bound, Shape):
        return f"{bound.array}.shape[{bound.axis}]"
    return f"'{bound.name}'" if isinstance(bound, Arg) else str(bound)


def _loop_use(
    form: Affine,
    line: str,
    constants: set[int],
    loops: dict[tuple[str, int], None],
    int_loops: dict[str, None],
    uncovered: dict[str, None],
) -> None:
    """An index by a loop's variable: bounded by a literal, by a size, or not in a way that can be followed."""
    loop = form.base
    assert isinstance(loop, Loop)
    upper = loop.upper
    low = loop.nonneg and (form.offset >= 0 or (loop.start is not None and loop.start + form.offset >= 0))
    if upper is None or not low:
        uncovered[f"indexed by a loop's variable {line}"] = None
        return
    last = upper.offset - 1 + form.offset
    if upper.base is None:
        constants.update({last} if loop.start is None or last < loop.start else {loop.start + form.offset, last})
    elif isinstance(upper.base, Shape) and upper.offset + form.offset <= 0:
        loops[(upper.base.array, upper.base.axis)] = None
    elif isinstance(upper.base, Arg) and upper.offset + form.offset <= 0:
        int_loops[upper.base.name] = None
    elif isinstance(upper.base, Loop):
        _loop_use(Affine(upper.base, last), line, constants, loops, int_loops, uncovered)
    else:
        uncovered[f"indexed by a loop's variable plus {form.offset} {line}"] = None


# ---------------------------------------------------------------------------------------------------------------------
# Stores


def _stored_once(
    record: Record, stores: Sequence[Access], atomics: Sequence[Access], rank: int | None, end: State, name: str
) -> bool:
    """Whether no element is stored to twice, by one thread or by two."""
    if not stores:
        return bool(atomics) and not any(a.view or a.possible or a.component for a in atomics)
    if atomics or rank is None or end.stores.get(name, 0) > 1:
        return False
    if any(a.view or a.component or a.possible for a in stores):
        return False
    if any(not _plain_index(form) for a in stores for form in a.pattern):
        return False
    return private(stores, rank) and all(_coordinates_once(a.pattern) for a in stores)


def _plain_index(form: Form) -> bool:
    """An index that is its coordinate, literal or loop variable: nothing that may be negative and wrap."""
    if not isinstance(form, Affine):
        return False
    if form.base is None:
        return form.offset >= 0
    if isinstance(form.base, Loop):
        return form.offset == 0 and form.base.nonneg
    return isinstance(form.base, Coord) and form.offset == 0


def _coordinates_once(pattern: Pattern) -> bool:
    coordinates = [c for c in map(bare_coordinate, pattern) if c is not None]
    return len(coordinates) == len(set(coordinates))


def _read_first(accesses: Sequence[Access], reads: Sequence[Access], rank: int | None) -> Site | None:
    """A read of the own element that surely runs, under no condition but bounds checks, before any write."""
    if not private(accesses, rank):
        return None
    for read in reads:
        conditions = [c for c in read.conditions if c.always is None or c.partial]
        looped = any(loop < 0 for loop in read.loops)
        if read.first and not read.possible and not conditions and not looped and not read.loops:
            return read.site
    return None


def _filled(
    name: str, ndim: int, accesses: Sequence[Access], rank: int | None, end: State, hidden: bool
) -> tuple[bool, tuple[Premise, ...], str]:
    """Whether every element is written, what that supposes, and why."""
    stores = [a for a in accesses if a.kind == "store"]
    refusal = _unfillable(ndim, accesses, stores, rank, hidden)
    if refusal is not None:
        return False, (), refusal
    reasons = []
    for (array, pattern), sizes in end.must.items():
        if array != name:
            continue
        premises = _premises(name, pattern, sizes, rank or 0)
        if isinstance(premises, str):
            reasons.append(premises)
        elif not premises:
            return True, (), f"every thread stores its elements, {_at(stores)}"
        else:
            said = " and ".join(f"{_side(p.left)} = {_bound_text(p.right)}" for p in premises)
            return False, premises, f"every element is stored only if {said}, {_at(stores)}"
    if reasons:
        return False, (), f"{reasons[0]}, {_at(stores)}"
    return False, (), f"not every thread surely stores, {_at(stores)}"


def _at(stores: Sequence[Access]) -> str:
    return f"at {stores[0].site}" if stores else "nowhere"


def _side(left: int | tuple[str, int]) -> str:
    return f"the launch size of coordinate {left}" if isinstance(left, int) else _bound_text(left)


def _bound_text(bound: int | str | tuple[str, int]) -> str:
    if isinstance(bound, tuple):
        return f"{bound[0]}.shape[{bound[1]}]"
    return f"'{bound}'" if isinstance(bound, str) else str(bound)


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
                premises[Premise((name, axis), _bound(form.bound))] = None
        else:
            return f"axis {axis} isn't run through by a coordinate or a full loop"
    if len(seen) < rank:
        return "a coordinate of wp.tid() doesn't index it: no thread runs where that coordinate's size is 0"
    for size in sizes:
        if not (isinstance(size.bound, Shape) and size.bound == Shape(name, seen.get(size.coordinate, -1))):
            premises[Premise(size.coordinate, _bound(size.bound))] = None
    return tuple(premises)
