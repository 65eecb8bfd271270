"""Where Warp's adjoint may be wrong, from the events of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from ..private.warp_types import holds_floats
from .forms import bare_coordinate
from .model import Hazard, Site
from .names import code_of
from .races import raced, told_apart
from .record import Access, Record, behind, first_needs
from .values import Carried, Counter, Held, Left, LocalArrayRead, Need, Through, Token


def find_hazards(record: Record, rank: int | None) -> tuple[Hazard, ...]:
    """All hazards, in source order, each place and kind once."""
    found: dict[tuple[str, Site], Hazard] = {}
    for hazard in _hazards(record, rank):
        known = found.setdefault((hazard.kind, hazard.site), hazard)
        if hazard.message < known.message:  # of several tokens of a set, the same in every process
            found[hazard.kind, hazard.site] = hazard
    return tuple(sorted(found.values(), key=lambda h: (h.site.file, h.site.line, h.kind)))


def _hazards(record: Record, rank: int | None) -> Iterator[Hazard]:
    steps, doubts = behind(record.stored)
    needs = first_needs(steps)
    for need in needs:
        record.events.setdefault(need.token, need.site)
    for doubt in dict.fromkeys(doubts):
        if isinstance(doubt, Through):
            loop = record.run_time[doubt.loop]
            loop.active, loop.left = True, loop.left or doubt.skipped
        else:
            yield Hazard(doubt.kind, doubt.site, doubt.message)
    yield from _of_loops(record, needs)
    for token, site in record.events.items():
        hazard = _of_token(record, token, site)
        if hazard is not None:
            yield hazard
    changed = frozenset(record.changed)
    for step in steps if changed else ():
        for token in changed & step.tokens:
            later = next((site for order, site in record.changed[token].items() if order > step.order), None)
            if later is not None:
                message = f"'{token.name}' is changed here after the adjoint needed it whole at {step.site}"
                yield Hazard("component", later, message)
    written = {access.array for access in record.accesses if access.kind != "read"}
    apart = frozenset().union(*map(told_apart, record.accesses)) if written and rank else frozenset()
    for name in filter(written.__contains__, record.arrays):
        floats = holds_floats(getattr(record.arrays[name], "dtype", None))
        if floats or name in record.needed_reads:
            for kind, site, message in _of_array(record, name, rank):
                yield Hazard(kind, site, message, (name,))
        if floats:
            race = raced(name, record.by_array.get(name, ()), rank, apart)
            if race is not None:
                yield race


def _of_loops(record: Record, needs: list[Need]) -> Iterator[Hazard]:
    """What the adjoint needs of each loop, and then of what the loop reads: to be made again from that."""
    held: dict[Held, Need] = {}
    for need in needs:
        if isinstance(need.token, Carried) and need.token.loop in record.run_time:
            loop = record.run_time[need.token.loop]
            (loop.inside if need.token.loop in need.loops else loop.after).add(need.token.name)
        elif isinstance(need.token, Held):
            held.setdefault(need.token, need)
    for loop in record.run_time.values():
        for token in loop.overwrites:
            early = held.get(token)
            if early is not None and early.order < loop.order:
                loop.before.add(token.name)
                message = (
                    f"the adjoint needs the value of '{token.name}' here, and has what the run-time loop at "
                    f"{loop.code.site(loop.node)} makes of it"
                )
                yield Hazard("loop-product", early.site, message)
        if loop.inside or loop.after or (loop.left and loop.active):
            for read, site in loop.reads.items():
                record.events.setdefault(read, site)


def _of_token(record: Record, token: Token, site: Site) -> Hazard | None:
    """Of what is behind a value that the adjoint first needs here."""
    if isinstance(token, Carried):
        where = record.loop_sites.get(token.loop)
        loop = f"the run-time loop at {where}" if where is not None else "a run-time loop"
        message = (
            f"the adjoint needs the value of '{token.name}', which {loop} assigns, and Warp doesn't replay the loop (one "
            f"that it unrolls is right: bounds known when the kernel is built, at most max_unroll turns)"
        )
        return Hazard("while" if token.loop in record.while_loops else "loop-product", site, message)
    if isinstance(token, Left):
        message = (
            f"threads may have left the kernel or function from inside the run-time loop at "
            f"{record.loop_sites[token.loop]}, and Warp's adjoint goes on for them"
        )
        return Hazard("loop-exit", site, message)
    if isinstance(token, Counter):
        message = (
            f"a value returned by an atomic update of '{token.array}' is used; Warp's reverse pass doesn't have it"
        )
        return Hazard("counter", site, message)
    if isinstance(token, LocalArrayRead):
        message = "the adjoint needs a value of an array that lives in the thread, and doesn't have it"
        return Hazard("local-array", site, message)
    return None


def _of_array(record: Record, name: str, rank: int | None) -> Iterator[tuple[str, Site, str]]:
    accesses = record.by_array.get(name, [])
    writes = [access for access in accesses if access.kind != "read"]
    reads = [access for access in accesses if access.kind == "read"]
    shared = bool(writes and reads) and not private(accesses, rank)
    if shared:
        site = reads[0].site
        yield "shared", site, f"'{name}' is read here, and written at {writes[0].site}, maybe by another thread"
    stores = [access for access in writes if access.kind == "store"]
    update = next((access for access in writes if access.kind != "store"), None)
    if stores and update and any(access.active for access in writes) and not private(writes, rank):
        site = stores[0].site
        yield "shared", site, f"'{name}' is stored to here, and updated at {update.site}, maybe by another thread"
    yield from _of_replays(record, name, writes, reads)
    if shared:
        return  # what another thread leaves there says all
    for token, site in record.needed_reads.get(name, ()):
        if token.after and token in record.overwritten:
            again = record.overwritten[token]
            yield "restored", again, f"'{name}' is stored to again after its value was used at {site}"
            return
    before, after = first_need(record, name, "before"), first_need(record, name, "after")
    if before and after and any(not write.inside or _in_turns(record, write) for write in writes):
        yield "overwritten", after, f"'{name}' is needed both as it was (at {before}) and as the kernel left it"


def first_need(record: Record, name: str, state: Literal["before", "after"]) -> Site | None:
    """The first place whose adjoint needs the array in that state, and not in the other."""
    for token, site in record.needed_reads.get(name, ()):
        if token.after if state == "after" else not token.after and token in record.overwritten:
            return site
    return None


def _of_replays(
    record: Record, name: str, writes: list[Access], reads: list[Access]
) -> Iterator[tuple[str, Site, str]]:
    """The adjoint calls functions again, stores and all, from what the array held before the launch; the kernel's own
    stores it leaves out. In a function it then reads what the last call has left."""
    inside = next((write for write in writes if write.inside), None)
    needed = record.needed_reads.get(name, ())
    before = next((site for token, site in needed if not token.after), None)
    if inside is None or not needed:
        return
    repeated = next((write for write in writes if write.inside and _in_turns(record, write)), None)
    outside = next((write for write in writes if not write.inside), None)
    if repeated is not None:
        message = (
            f"the adjoint needs '{name}' as it was at each turn of a loop, and what a function stores to it (at "
            f"{repeated.site}) isn't repeated there"
        )
    elif outside is not None:
        message = (
            f"the adjoint needs '{name}', and repeats what a function stores to it (at {inside.site}) without what the "
            f"kernel itself does (at {outside.site})"
        )
    elif before is not None and any(read.inside for read in reads):
        message = (
            f"'{name}' is needed as it was before a function stored to it (at {inside.site}), and the adjoint has it as "
            f"the function left it"
        )
    else:
        return
    yield "replayed", before or needed[0][1], message


def _in_turns(record: Record, write: Access) -> bool:
    """Whether a run-time loop of the kernel itself is around a write. The reverse pass has its turns alone."""
    own = code_of(record.kernel).func
    loops = (record.run_time.get(abs(loop)) for loop in write.loops)
    return any(loop is not None and loop.code.func is own for loop in loops)


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
