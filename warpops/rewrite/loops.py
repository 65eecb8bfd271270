"""The plan of a kernel that Warp's adjoint has right: what each run-time loop needs. Nothing is generated here.

Warp's reverse pass runs a loop's turns backwards with what variables hold at its end, and what follows the loop with what
they held before it. A loop is made right by one of three ways, the cheapest that does: what it leaves is made again where
the reverse pass begins (``"after"``; the loop is left out where no gradient flows through it, ``"gone"``), or its turns
are counted first, and each begins with what it had (``"turns"``).
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ..effects import analyse_as
from ..effects.model import Effects, Hazard, LoopNeeds, Site
from ..effects.names import Code, code_of
from ..effects.tables import row
from ..private import warp_code, warp_source
from ..private.warp_source import declared_overloads, is_function, parameters
from ..private.warp_types import is_reference
from .flow import Place, builtin_name
from .kept import keepable
from .locals import local_arrays
from .model import CURED, AdjointPlan, FunctionPlan, LoopPlan, Refusal, RefusedError, listed
from .needs import LoopPlanner
from .own import as_variables, doubtful, own_elements
from .parts import slice_bounds
from .small import small_loops
from .source import Source, UnreadableError, read
from .views import viewed_calls

OVERWRITTEN = ("restored", "overwritten")
"""The kinds of hazards that there are because an element is stored to again."""
NO_ARRAYS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
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
    for made in (_by_variables, _by_keeping):
        choice = made(kernel, effects)
        if choice is not None and not choice.hazards:
            return choice
        found += [] if choice is None else [choice]
    return min([_by_loops(kernel, effects), *found], key=lambda choice: len(choice.hazards))


def _by_variables(kernel: Any, effects: Effects) -> Choice | None:
    own = _own(kernel, effects)
    if not own:
        return None
    seen = _seen(kernel, effects, own)
    plan = plan_adjoint(kernel, seen, own)
    return Choice(plan, _left(seen), _run_once(seen)) if isinstance(plan, AdjointPlan) else None


def _by_keeping(kernel: Any, effects: Effects) -> Choice | None:
    again = _kept(kernel, effects)
    if not again:
        return None
    seen = replace(effects, hazards=tuple(h for h in effects.hazards if not _is_cured(h, again)))
    plan = plan_adjoint(kernel, seen, kept=again)
    return Choice(plan, _left(seen), _run_again(_run_once(seen), again)) if isinstance(plan, AdjointPlan) else None


def _by_loops(kernel: Any, effects: Effects) -> Choice:
    plan = plan_adjoint(kernel, effects)
    if isinstance(plan, AdjointPlan):
        return Choice(plan, _left(effects), _run_once(effects))
    if plan is None:
        return Choice(None, effects.hazards, effects)
    hazards = (replace(h, message=f"{h.message}; {plan}") if h.kind in CURED else h for h in effects.hazards)
    return Choice(None, tuple(hazards), effects)


def _left(effects: Effects) -> tuple[Hazard, ...]:
    """What stays wrong in the rewritten kernel."""
    return tuple(h for h in effects.hazards if h.kind not in CURED)


def _run_once(effects: Effects) -> Effects:
    return replace(effects, arrays={n: replace(a, replayed=False) for n, a in effects.arrays.items()})


def _run_again(effects: Effects, arrays: Mapping[str, int]) -> Effects:
    """The stores to these arrays run again."""
    return replace(
        effects, arrays={n: replace(a, replayed=a.replayed or n in arrays) for n, a in effects.arrays.items()}
    )


def _is_cured(hazard: Hazard, kept: Mapping[str, int]) -> bool:
    """Whether a hazard is of what a store has overwritten, where that is kept."""
    return hazard.kind in OVERWRITTEN and bool(hazard.arrays) and all(a in kept for a in hazard.arrays)


def _kept(kernel: Any, effects: Effects) -> dict[str, int]:
    """The arrays whose stores keep what they overwrite, with their ranks: all that a thread alone stores to and reads back,
    where one of them is stored to again, or needed before and after."""
    wanted = {a for h in effects.hazards if h.kind in OVERWRITTEN for a in h.arrays}
    shared = {a for h in effects.hazards if h.kind == "shared" for a in h.arrays}
    arrays = {n: a for n, a in effects.arrays.items() if a.written and a.read and n not in shared}
    if not wanted & arrays.keys() or effects.tiled or effects.opaque or effects.tid_rank is None:
        return {}
    try:
        source = read(kernel)
    except UnreadableError:
        return {}
    found = {n: a.ndim for n, a in arrays.items() if not a.replayed and keepable(source, n, a.ndim) is None}
    # All of them, since what is stored is computed again of what was read.
    return found if found.keys() == arrays.keys() else {}


def _own(kernel: Any, effects: Effects) -> frozenset[str]:
    """The arrays whose elements can be variables, if that may help: one is stored to again, or needed before and after."""
    wanted = {a for h in effects.hazards if h.kind in OVERWRITTEN for a in h.arrays}
    shared = {a for h in effects.hazards if h.kind == "shared" for a in h.arrays}
    arrays = {n: a.ndim for n, a in effects.arrays.items() if a.written and a.reads_back and n not in shared}
    if not wanted & arrays.keys():
        return frozenset()
    try:
        found = own_elements(read(kernel), arrays)
    except UnreadableError:
        return frozenset()
    return found if wanted & found else frozenset()


def _seen(kernel: Any, effects: Effects, own: frozenset[str]) -> Effects:
    """What the kernel does with variables for these elements. Its arrays' roles stay those of the user's own."""
    source = read(kernel)
    unsure = doubtful(source, own)
    as_variables(source, own)
    seen = analyse_as(kernel, ast.fix_missing_locations(source.tree).body)
    arrays = {
        n: replace(a, before=seen.arrays[n].before, after=seen.arrays[n].after, measured=a.measured or n in unsure)
        for n, a in effects.arrays.items()
    }
    return replace(seen, arrays=arrays, handles=effects.handles)


def plan_adjoint(
    kernel: Any, effects: Effects, own: frozenset[str] = frozenset(), kept: Mapping[str, int] = NO_ARRAYS
) -> AdjointPlan | Refusal | None:
    """How the adjoint of a kernel is made right; None where Warp's own is."""
    if not own and not kept and not any(hazard.kind in CURED for hazard in effects.hazards):
        return None
    if not warp_code.is_rewritable(kernel):
        return Refusal("the kernel was made in a way of its own")
    if effects.opaque:
        return Refusal("native code takes part in it", effects.opaque[0])
    try:
        return _plan(kernel, effects, own, kept)
    except UnreadableError as error:
        return Refusal(str(error))
    except RefusedError as error:
        return Refusal(str(error), error.site)


def _plan(kernel: Any, effects: Effects, own: frozenset[str], kept: Mapping[str, int]) -> AdjointPlan:
    owners: dict[Any, Any] = {}
    callees: dict[Any, set[Any]] = {}
    together: list[set[Any]] = []
    writers: set[Any] = set()

    def visit(owner: Any) -> None:
        function = code_of(owner).func
        if function in owners:
            return
        owners[function] = owner
        found: set[Any] = set()
        source = read(owner)
        if any(f is function for f, _, _ in effects.array_stores) or any(map(_writes, dict(source.calls()).values())):
            writers.add(function)
        for _, called in source.functions():
            overloads = declared_overloads(called)
            if all(_followed(overload) for overload in overloads):
                for overload in overloads:
                    visit(overload)
                together.append({code_of(overload).func for overload in overloads})
                found |= together[-1]
        callees[function] = found

    visit(kernel)
    needs: dict[Any, list[LoopNeeds]] = {}
    for loop in effects.loops:
        needs.setdefault(loop.function, []).append(loop)
    changed = {h.site.file: set[int]() for h in effects.hazards}
    for hazard in effects.hazards:
        if hazard.kind in CURED:
            changed[hazard.site.file].add(hazard.site.line)
    order = _callees_first(code_of(kernel).func, callees)
    several: set[Any] = set()
    for function in order:
        if callees[function] & writers:
            writers.add(function)
        source = read(owners[function])
        returned = [node.value for node in ast.walk(source.tree) if isinstance(node, ast.Return)]
        if any(isinstance(v, ast.Tuple) or _called(source, v) & several for v in returned):
            several.add(function)
            if function in writers:
                code = code_of(owners[function])
                reason = (
                    f"Warp has no replay of functions of several results, and '{function.__name__}' writes to arrays"
                )
                raise RefusedError(reason, Site(code.file, code.first_line))
    chosen = {order[-1]} | writers
    for function in order:
        code = code_of(owners[function])
        wrong = any(loop.wrong for loop in needs.get(function, ()))
        if wrong or any(line in lines(code) for line in changed.get(code.file, ())):
            chosen.add(function)
    while True:
        # Overloads are rewritten together, and with them all that call them.
        more = set().union(*(group for group in together if group & chosen))
        more |= {function for function in order if callees[function] & chosen}
        if more <= chosen:
            break
        chosen |= more
    codes = [code_of(owners[function]) for function in chosen]
    for hazard in effects.hazards:
        at = hazard.site
        if hazard.kind in CURED and not any(
            code.file == at.file and 0 <= at.line - code.first_line < len(code.lines) for code in codes
        ):
            raise RefusedError("it happens in a function that isn't called by its name", at)
    rewritten: dict[Any, FunctionPlan] = {}
    written: list[Site] = []
    for function in order:
        if function in chosen:
            code = code_of(owners[function])
            remainders = frozenset(
                (line - code.first_line + 1, column) for file, line, column in effects.remainders if file == code.file
            )
            loops = _merged(needs.get(function, []))
            small = small_loops(read(owners[function]), loops, warp_source.max_unroll(kernel))
            written += [loop.needs.site for at, loop in loops.items() if at in small]
            loops = {at: loop for at, loop in loops.items() if at not in small}
            plan = FunctionPlan(function, owners[function], loops, remainders, small)
            if function is order[-1]:
                plan.own, plan.kept, plan.threads = own, dict(kept), max(effects.tid_rank or 0, 1)
            rewritten[function] = plan
            stores = {(line, column) for f, line, column in effects.array_stores if f is function}
            for hazard in effects.hazards:
                if hazard.kind == "local-array" and hazard.site.file == code.file and hazard.site.line in lines(code):
                    _, others = local_arrays(read(owners[function]))
                    if others:
                        raise RefusedError(
                            f"the thread's own array {listed(others)} is large, or more than indexed", None
                        )
            viewed_calls(read(owners[function]))
            _check_parts(read(owners[function]), code, effects)
            LoopPlanner(plan, stores, rewritten, writers, tiled=effects.tiled).run()
    reasons = [
        f"line {loop.needs.site.line}, `{loop.needs.site.code}`: {loop.describe()}"
        for plan in rewritten.values()
        for loop in plan.loops.values()
        if loop.describe()
    ]
    reasons += [f"line {site.line}, `{site.code}`: written with numbers for its bounds" for site in written]
    if any(h.kind == "component" for h in effects.hazards):
        reasons.append("components of local vectors and structs are assigned by making a new one")
    if any(h.kind == "local-array" for h in effects.hazards):
        reasons.append("the thread's own arrays are vectors and matrices")
    if any(h.kind == "replayed" for h in effects.hazards):
        reasons.append("functions that store to arrays run again without that")
    if any(h.kind == "view" for h in effects.hazards):
        reasons.append("functions with a gradient of the user's get the array and the index of a view")
    if own:
        reasons.append(f"variables hold the elements of {listed(own)}")
    if kept:
        reasons.append(f"what stores to {listed(set(kept))} overwrite is kept, and put back")
    if effects.remainders:
        reasons.append("fractions and remainders are written with wp.trunc")
    writers -= {order[-1]}
    return AdjointPlan(rewritten, effects.array_stores, frozenset(writers), tuple(reasons), tuple(sorted(kept)))


def _check_parts(source: Source, code: Code, effects: Effects) -> None:
    """Slices of local vectors are stored by numbers alone, and a tile is added to by a builtin that makes none."""
    for hazard in effects.hazards:
        if hazard.kind != "component" or hazard.site.file != code.file or hazard.site.line not in lines(code):
            continue
        for node in ast.walk(source.tree):
            at = getattr(node, "lineno", None) == hazard.site.line - code.first_line + 1
            if at and isinstance(node, ast.Call) and row(builtin_name(source.meaning(node.func))).writes == "third":
                raise RefusedError("a tile is added to in place", hazard.site)
            if at and isinstance(node, ast.Slice) and slice_bounds(node) is None:
                raise RefusedError("a slice is stored that isn't given by numbers, or goes backwards", hazard.site)


def lines(code: Code) -> range:
    """The lines of a function in its file."""
    return range(code.first_line, code.first_line + len(code.lines))


def _writes(called: Any) -> bool:
    """Whether a builtin writes to an array."""
    return builtin_name(called).startswith(("atomic_", "tile_atomic_", "tile_store", "tile_scatter"))


def _called(source: Source, value: ast.expr | None) -> set[Any]:
    """The functions of the user's that a returned value may be the results of."""
    called: Any = source.meaning(value.func) if isinstance(value, ast.Call) else None
    overloads = declared_overloads(called) if is_function(called) and not called.is_builtin() else []
    return {code_of(overload).func for overload in overloads}


def _followed(function: Any) -> bool:
    """Whether Warp differentiates a function of the user's by its source."""
    own = ("custom_grad_func", "custom_replay_func", "native_snippet", "adj_native_snippet")
    return all(getattr(function, attribute, None) is None for attribute in own) and not any(
        is_reference(t) for t in parameters(function).values()
    )


def _callees_first(function: Any, callees: dict[Any, set[Any]]) -> list[Any]:
    found: dict[Any, None] = {}

    def visit(one: Any) -> None:
        for other in sorted(callees[one], key=lambda f: (f.__code__.co_filename, f.__code__.co_firstlineno)):
            visit(other)
        found.setdefault(one)

    visit(function)
    return list(found)


def _merged(needs: list[LoopNeeds]) -> dict[Place, LoopPlan]:
    """One plan for each loop; a function that is called twice has been followed twice."""
    found: dict[Place, LoopNeeds] = {}
    for one in needs:
        at = (one.line, one.column)
        other = found.get(at)
        if other is None:
            found[at] = one
            continue
        found[at] = replace(
            one,
            active=one.active or other.active,
            left=one.left or other.left,
            inside=one.inside | other.inside,
            after=one.after | other.after,
            before=one.before | other.before,
            fixed=one.fixed | other.fixed,
        )
    return {at: LoopPlan(one) for at, one in found.items()}
