"""Where Warp's adjoint may be wrong, from the events of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from .forms import bare_coordinate
from .model import Hazard, Site
from .races import raced, told_apart
from .record import Access, Record
from .source import holds_floats
from .values import Carried, Component, Counter, LocalArrayRead, ReadOf


def find_hazards(record: Record, rank: int | None) -> tuple[Hazard, ...]:
    """All hazards, in source order, each place and kind once."""
    found: dict[tuple[str, Site], Hazard] = {}

    def add(kind: str, site: Site, message: str, arrays: tuple[str, ...] = ()) -> None:
        found.setdefault((kind, site), Hazard(kind, site, message, arrays))

    for (kind, site), message in record.hazards.items():
        add(kind, site, message)
    for token, site in record.events.items():
        if isinstance(token, Carried):
            _carried(record, token, site, add)
        elif isinstance(token, Counter):
            message = (
                f"a value returned by an atomic update of '{token.array}' is used; Warp's reverse pass doesn't have it"
            )
            add("counter", site, message)
        elif isinstance(token, Component) and token in record.components:
            later = record.components[token]
            add("component", later, f"'{token.name}' is changed here after the adjoint needed it whole at {site}")
        elif isinstance(token, LocalArrayRead):
            add(
                "overwritten",
                site,
                "the adjoint needs a value of an array that lives in the thread, and doesn't have it",
            )
    needed = {token.array for token in record.events if isinstance(token, ReadOf)}
    apart = frozenset().union(*map(told_apart, record.accesses))
    for name, warp_type in record.arrays.items():
        floats = holds_floats(getattr(warp_type, "dtype", None))
        if name in needed or floats:
            for kind, site, message in _array_hazards(record, name, rank):
                add(kind, site, message, (name,))
        if floats:
            stores = [access for access in record.accesses if access.array == name and access.kind == "store"]
            race = raced(name, stores, rank, apart)
            if race is not None:
                found.setdefault((race.kind, race.site), race)
    return tuple(sorted(found.values(), key=lambda h: (h.site.file, h.site.line, h.kind)))


def _carried(record: Record, token: Carried, site: Site, add: object) -> None:
    assert callable(add)
    where = record.loop_sites.get(token.loop)
    kind = "while" if token.loop in record.while_loops else "loop-product"
    loop = f"the run-time loop at {where}" if where is not None else "a run-time loop"
    add(
        kind,
        site,
        f"the adjoint needs the value of '{token.name}', which {loop} assigns, and Warp doesn't replay the loop (one that it "
        f"unrolls is right: bounds known when the kernel is built, at most max_unroll turns)",
    )


def _array_hazards(record: Record, name: str, rank: int | None) -> Iterable[tuple[str, Site, str]]:
    accesses = [access for access in record.accesses if access.array == name]
    writes = [access for access in accesses if access.kind != "read"]
    reads = [access for access in accesses if access.kind == "read"]
    if writes and reads and not private(accesses, rank):
        site = next((read.site for read in reads), writes[0].site)
        yield "shared", site, f"'{name}' is read here, and written at {writes[0].site}, maybe by another thread"
    yield from _replay_hazards(record, name, writes, reads)
    before, after = first_need(record, name, "before"), first_need(record, name, "after")
    for token, site in _needs(record, name):
        if token.after and token in record.overwritten:
            again = record.overwritten[token]
            yield "overwritten", again, f"'{name}' is stored to again after its value was used at {site}"
            return
    if before is not None and after is not None and any(not write.inside for write in writes):
        yield "overwritten", after, f"'{name}' is needed both as it was (at {before}) and as the kernel left it"


def _needs(record: Record, name: str) -> Iterable[tuple[ReadOf, Site]]:
    """The reads of an array whose values the adjoint needs, with the places where it first does."""
    return ((t, site) for t, site in record.events.items() if isinstance(t, ReadOf) and t.array == name)


def first_need(record: Record, name: str, state: Literal["before", "after"]) -> Site | None:
    """The first place whose adjoint needs the array in that state, and not in the other."""
    for token, site in _needs(record, name):
        if token.after if state == "after" else not token.after and token in record.overwritten:
            return site
    return None


def _replay_hazards(
    record: Record, name: str, writes: list[Access], reads: list[Access]
) -> Iterable[tuple[str, Site, str]]:
    """The adjoint calls functions again, stores and all, from what the array held before the launch; the kernel's own
    stores it leaves out. In a function it then reads what the last call has left."""
    inside = next((write for write in writes if write.inside), None)
    before = next((site for token, site in _needs(record, name) if not token.after), None)
    needed = before or next((site for _, site in _needs(record, name)), None)
    if inside is None or needed is None:
        return
    outside = next((write for write in writes if not write.inside), None)
    if outside is not None:
        yield (
            "overwritten",
            needed,
            f"the adjoint needs '{name}', and repeats what a function stores to it (at {inside.site}) without what the "
            f"kernel itself does (at {outside.site})",
        )
    elif before is not None and any(read.inside for read in reads):
        yield (
            "overwritten",
            before,
            f"'{name}' is needed as it was before a function stored to it (at {inside.site}), and the adjoint has it as "
            f"the function left it",
        )


def private(accesses: Iterable[Access], rank: int | None) -> bool:
    """Whether every thread touches elements of its own only: the same axes hold all coordinates, bare, everywhere."""
    if rank is None:
        return False
    places: set[tuple[int | None, ...]] = set()
    for access in accesses:
        found: list[int | None] = [None] * rank
        for axis, form in enumerate(access.pattern):
            coordinate = bare_coordinate(form)
            if coordinate is not None and coordinate < rank and found[coordinate] is None:
                found[coordinate] = axis
        if None in found:
            return False
        places.add(tuple(found))
    return len(places) <= 1
