"""The plan of a kernel that Warp's adjoint has right: what each run-time loop needs. Nothing is generated here.

Warp's reverse pass runs a loop's turns backwards with what variables hold at its end, and what follows the loop with what
they held before it. A loop is made right by one of three ways, the cheapest that does: what it leaves is made again where
the reverse pass begins (``"after"``; the loop is left out where no gradient flows through it, ``"gone"``), or its turns
are counted first, and each begins with what it had (``"turns"``).
"""

from __future__ import annotations

import ast
import contextlib
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..effects import analyse_as
from ..effects.model import Effects, Hazard, LoopNeeds, Site
from ..effects.names import Code, code_of
from ..effects.tables import row
from ..frozen import frozen
from ..private import warp_code, warp_source
from .flow import builtin_name
from .kept import keepable
from .locals import local_arrays
from .model import CURED, AdjointPlan, FunctionPlan, LoopPlan, RefusedError, listed
from .needs import LoopPlanner
from .own import as_variables, doubtful, own_elements
from .parts import slice_bounds
from .small import small_loops
from .source import Source, UnreadableError, definitions, read
from .trees import Place
from .views import viewed_calls

OVERWRITTEN = ("restored", "overwritten")
"""The kinds of hazards that there are because an element is stored to again."""
REASONS = {
    "component": "components of local vectors and structs are assigned by making a new one",
    "local-array": "the thread's own arrays are vectors and matrices",
    "replayed": "functions that store to arrays run again without that",
    "view": "functions with a gradient of the user's get the array and the index of a view",
}
"""What is done about hazards, by their kind."""


@frozen
class Choice:
    """What the adjoint launch runs: the user's kernel (None), or one that is made by a plan; and what stays wrong."""

    plan: AdjointPlan | None
    hazards: tuple[Hazard, ...]
    effects: Effects
    """What the kernel does, as far as that launch goes: the functions of a rewritten one don't store when they run again."""


def choose_adjoint(kernel: Any, effects: Effects) -> Choice:
    """Decide what the adjoint launch of a kernel runs."""
    key = warp_source.definition(kernel)
    found = _chosen.get(key)
    if found is None:
        found = _chosen[key] = _choose(kernel, effects)
    return found


_chosen: weakref.WeakKeyDictionary[Any, Choice] = weakref.WeakKeyDictionary()


def _choose(kernel: Any, effects: Effects) -> Choice:
    """The first that leaves nothing wrong; else the one that leaves least wrong, a simpler one where they are equal."""
    found = []
    for seen, own, kept in _ways(kernel, effects):
        with contextlib.suppress(RefusedError):
            choice = _choice(kernel, seen, own, kept)
            if not choice.hazards:
                return choice
            found.append(choice)
    return min([_by_loops(kernel, effects), *found], key=lambda choice: len(choice.hazards))


def _ways(kernel: Any, effects: Effects) -> Iterator[tuple[Effects, frozenset[str], Mapping[str, int]]]:
    """Variables for elements, and keeping what stores overwrite: what the kernel does then, and for which arrays."""
    with contextlib.suppress(UnreadableError):
        own = _own(kernel, effects)
        if own:
            yield _seen(kernel, effects, own), own, {}
        kept = _kept(kernel, effects)
        if kept:
            hazards = tuple(h for h in effects.hazards if not _is_cured(h, kept))
            yield replace(effects, hazards=hazards), frozenset(), kept


def _choice(kernel: Any, effects: Effects, own: frozenset[str], kept: Mapping[str, int]) -> Choice:
    """A kernel that is made by a plan.

    Raises:
        RefusedError: it can't be made.
    """
    if not warp_code.is_rewritable(kernel):
        raise RefusedError("the kernel was made in a way of its own")
    if effects.opaque:
        raise RefusedError("native code takes part in it", effects.opaque[0])
    try:
        plan = _plan(kernel, effects, own, kept)
    except UnreadableError as error:
        raise RefusedError(str(error)) from error
    hazards = tuple(h for h in effects.hazards if h.kind not in CURED)
    arrays = {n: replace(a, replayed=n in kept) for n, a in effects.arrays.items()}
    return Choice(plan, hazards, replace(effects, arrays=arrays))


def _by_loops(kernel: Any, effects: Effects) -> Choice:
    if not any(hazard.kind in CURED for hazard in effects.hazards):
        return Choice(None, effects.hazards, effects)
    try:
        return _choice(kernel, effects, frozenset(), {})
    except RefusedError as refusal:
        hazards = (replace(h, message=f"{h.message}; {refusal}") if h.kind in CURED else h for h in effects.hazards)
        return Choice(None, tuple(hazards), effects)


def _is_cured(hazard: Hazard, kept: Mapping[str, int]) -> bool:
    """Whether a hazard is of what a store has overwritten, where that is kept."""
    return hazard.kind in OVERWRITTEN and bool(hazard.arrays) and all(a in kept for a in hazard.arrays)


def _hazarded(effects: Effects, *kinds: str) -> set[str]:
    return {a for h in effects.hazards if h.kind in kinds for a in h.arrays}


def _kept(kernel: Any, effects: Effects) -> dict[str, int]:
    """The arrays whose stores keep what they overwrite, with their ranks: all that a thread alone stores to and reads back,
    where one of them is stored to again, or needed before and after."""
    shared = _hazarded(effects, "shared")
    arrays = {n: a for n, a in effects.arrays.items() if a.written and a.read and n not in shared}
    if (
        not _hazarded(effects, *OVERWRITTEN) & arrays.keys()
        or effects.tiled
        or effects.opaque
        or effects.tid_rank is None
    ):
        return {}
    source = read(kernel)
    found = {n: a.ndim for n, a in arrays.items() if not a.replayed and keepable(source, n, a.ndim) is None}
    # All of them, since what is stored is computed again of what was read.
    return found if found.keys() == arrays.keys() else {}


def _own(kernel: Any, effects: Effects) -> frozenset[str]:
    """The arrays whose elements can be variables, if that may help: one is stored to again, or needed before and after."""
    wanted, shared = _hazarded(effects, *OVERWRITTEN), _hazarded(effects, "shared")
    arrays = {n: a.ndim for n, a in effects.arrays.items() if a.written and a.reads_back and n not in shared}
    found = own_elements(read(kernel), arrays) if wanted & arrays.keys() else frozenset()
    return found if wanted & found else frozenset()


def _seen(kernel: Any, effects: Effects, own: frozenset[str]) -> Effects:
    """What the kernel does with variables for these elements. Its arrays' roles stay those of the user's own."""
    source = read(kernel)
    unsure = doubtful(source, own)
    as_variables(source, own)
    seen = analyse_as(kernel, source.code, ast.fix_missing_locations(source.tree).body)
    arrays = {
        n: replace(a, before=seen.arrays[n].before, after=seen.arrays[n].after, measured=a.measured or n in unsure)
        for n, a in effects.arrays.items()
    }
    return replace(seen, arrays=arrays, handles=effects.handles)


def _plan(kernel: Any, effects: Effects, own: frozenset[str], kept: Mapping[str, int]) -> AdjointPlan:
    owners: dict[Any, Any] = {}
    sources: dict[Any, Source] = {}
    callees: dict[Any, set[Any]] = {}
    together: list[set[Any]] = []
    writers: set[Any] = {f for f, _, _ in effects.array_stores}

    def visit(function: Any, owner: Any) -> None:
        if function in callees:
            return
        found: dict[Any, Any] = {}
        callees[function] = set()
        source = sources[function] = read(owner)
        if any(_writes(called) for _, called in source.calls()):
            writers.add(function)
        for called in source.functions():
            overloads = definitions(called)
            if all(map(_followed, overloads.values())):
                found |= overloads
                together.append(set(overloads))
        for other in sorted(found, key=lambda f: (f.__code__.co_filename, f.__code__.co_firstlineno)):
            visit(other, found[other])
        callees[function], owners[function] = set(found), owner

    own_function = code_of(kernel).func
    visit(own_function, kernel)
    writers &= owners.keys()
    cured = [hazard.site for hazard in effects.hazards if hazard.kind in CURED]
    several: set[Any] = set()
    chosen = {own_function}
    for function in owners:  # callees first
        source = sources[function]
        if callees[function] & writers:
            writers.add(function)
        returned = [node.value for node in ast.walk(source.tree) if isinstance(node, ast.Return)]
        if any(isinstance(v, ast.Tuple) or definitions(source.called(v)).keys() & several for v in returned):
            several.add(function)
        if function in several & writers:
            reason = f"Warp has no replay of functions of several results, and '{function.__name__}' writes to arrays"
            raise RefusedError(reason, Site(source.code.file, source.code.first_line))
        wrong = any(loop.wrong for loop in effects.loops if loop.function is function)
        if wrong or function in writers or any(_is_in(source.code, site) for site in cured):
            chosen.add(function)
    while True:
        # Overloads are rewritten together, and with them all that call them.
        more = set().union(*(group for group in together if group & chosen))
        more |= {function for function in owners if callees[function] & chosen}
        if more <= chosen:
            break
        chosen |= more
    for site in cured:
        if not any(_is_in(code_of(owners[function]), site) for function in chosen):
            raise RefusedError("it happens in a function that isn't called by its name", site)
    rewritten: dict[Any, FunctionPlan] = {}
    written: list[Site] = []
    for function in (f for f in owners if f in chosen):
        source = sources[function]
        code = source.code
        remainders = frozenset(
            (line - code.first_line + 1, column) for file, line, column in effects.remainders if file == code.file
        )
        loops = _merged(loop for loop in effects.loops if loop.function is function)
        small = small_loops(source, loops, warp_source.max_unroll(kernel))
        written += [loop.needs.site for at, loop in loops.items() if at in small]
        loops = {at: loop for at, loop in loops.items() if at not in small}
        stores = frozenset((line, column) for f, line, column in effects.array_stores if f is function)
        plan = FunctionPlan(function, owners[function], loops, stores, function in writers, remainders, small)
        if function is own_function:
            plan.own, plan.kept, plan.threads = own, dict(kept), max(effects.tid_rank or 0, 1)
        rewritten[function] = plan
        viewed_calls(source)
        _check_parts(source, effects)
        LoopPlanner(plan, rewritten, writers, tiled=effects.tiled).run()
    reasons = [
        f"line {loop.needs.site.line}, `{loop.needs.site.code}`: {loop.describe()}"
        for plan in rewritten.values()
        for loop in plan.loops.values()
        if loop.describe()
    ]
    reasons += [f"line {site.line}, `{site.code}`: written with numbers for its bounds" for site in written]
    reasons += [reason for kind, reason in REASONS.items() if any(h.kind == kind for h in effects.hazards)]
    if own:
        reasons.append(f"variables hold the elements of {listed(own)}")
    if kept:
        reasons.append(f"what stores to {listed(set(kept))} overwrite is kept, and put back")
    if effects.remainders:
        reasons.append("fractions and remainders are written with wp.trunc")
    return AdjointPlan(rewritten, tuple(reasons), tuple(sorted(kept)))


def _is_in(code: Code, site: Site) -> bool:
    """Whether a place is in a function."""
    return code.file == site.file and 0 <= site.line - code.first_line < len(code.lines)


def _check_parts(source: Source, effects: Effects) -> None:
    """A thread's own arrays can be vectors, slices of local vectors are stored by numbers alone, and a tile is added to by
    a builtin that makes none."""
    for hazard in effects.hazards:
        if not _is_in(source.code, hazard.site):
            continue
        others = local_arrays(source)[1] if hazard.kind == "local-array" else None
        if others:
            raise RefusedError(f"the thread's own array {listed(others)} is large, or more than indexed")
        for node in ast.walk(source.tree) if hazard.kind == "component" else ():
            if getattr(node, "lineno", None) != hazard.site.line - source.code.first_line + 1:
                continue
            if row(builtin_name(source.called(node))).writes == "third":
                raise RefusedError("a tile is added to in place", hazard.site)
            if isinstance(node, ast.Slice) and slice_bounds(node) is None:
                raise RefusedError("a slice is stored that isn't given by numbers, or goes backwards", hazard.site)


def _writes(called: Any) -> bool:
    """Whether a builtin writes to an array."""
    return builtin_name(called).startswith(("atomic_", "tile_atomic_", "tile_store", "tile_scatter"))


def _followed(function: Any) -> bool:
    """Whether Warp differentiates a function of the user's by its source."""
    return not warp_source.own_parts(function) and not warp_source.takes_references(function)


def _merged(needs: Iterable[LoopNeeds]) -> dict[Place, LoopPlan]:
    """One plan for each loop; a function that is called twice has been followed twice."""
    found: dict[Place, LoopNeeds] = {}
    for one in needs:
        other = found.get((one.line, one.column), one)
        both = ("active", "left", "inside", "after", "before", "fixed")
        found[one.line, one.column] = replace(one, **{n: getattr(one, n) | getattr(other, n) for n in both})
    return {at: LoopPlan(one) for at, one in found.items()}
