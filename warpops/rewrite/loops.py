"""The plan of a kernel that Warp's adjoint has right: what each run-time loop needs. Nothing is generated here.

Warp's reverse pass runs a loop's turns backwards with what variables hold at its end, and what follows the loop with what
they held before it. A loop is made right by one of three ways, the cheapest that does: what it leaves is made again where
the reverse pass begins (``"after"``; the loop is left out where no gradient flows through it, ``"gone"``), or its turns
are counted first, and each begins with what it had (``"turns"``).
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .. import _warp
from ..effects.model import Effects, Hazard, LoopNeeds, Site
from ..effects.source import Code, code_of, declared_overloads, is_reference, parameters
from .flow import (
    RETURN,
    Loop,
    Place,
    Structure,
    Uses,
    advances_query,
    builtin_name,
    exposed,
    is_exit,
    part_for,
    place,
    values_taken,
)
from .locals import local_arrays, stores_into
from .source import Source, UnreadableError, calls_in, read

CURED = ("loop-product", "loop-exit", "while", "component", "index", "replayed", "remainder", "local-array")
"""The kinds of hazards that the rewritten kernel hasn't."""

Mode = Literal["as it is", "after", "gone", "turns"]


@dataclass
class LoopPlan:
    """What is done about one loop."""

    needs: LoopNeeds
    mode: Mode = "as it is"
    restored: set[str] = field(default_factory=set)
    """Variables that are given what they held, at the start of each turn."""
    after: set[str] = field(default_factory=set)
    """Variables that are given what the loop leaves, after it."""
    state: set[str] = field(default_factory=set)
    """Variables that are kept of a turn."""
    given: set[str] = field(default_factory=set)
    """Variables that the loop takes from where it is, besides those."""

    def describe(self) -> str:
        parts = []
        if self.mode == "turns":
            parts.append("its turns are counted first")
            if self.restored:
                parts.append(f"{_list(self.restored)} restored at the start of each turn")
        elif self.mode == "gone":
            parts.append("left out, for no gradient flows through it")
        if self.after:
            parts.append(f"{_list(self.after)} made again after it")
        if self.needs.before and not parts:
            parts.append(f"{_list(self.needs.before)} kept from before it")
        return ", ".join(parts)


def _list(names: Set[str]) -> str:
    return ", ".join(f"'{n}'" for n in sorted(names))


@dataclass
class FunctionPlan:
    """One function (or the kernel) that the adjoint launch gets another version of."""

    function: Any
    owner: Any
    """The ``wp.Kernel`` or ``wp.Function``."""
    loops: dict[Place, LoopPlan]
    remainders: frozenset[Place] = frozenset()
    """Where a builtin is written so that Warp differentiates it."""


@dataclass(frozen=True)
class AdjointPlan:
    """Which functions are rewritten for the adjoint launch, and why."""

    functions: dict[Any, FunctionPlan]
    """By Python function, callees first; the kernel's own is among them."""
    array_stores: frozenset[tuple[Any, int, int]]
    writers: frozenset[Any]
    """Those of the functions that write to arrays: the reverse pass runs them again without that."""
    reasons: tuple[str, ...]

    def run_time(self, function: Any) -> list[Place]:
        return list(self.functions[function].loops)


@dataclass(frozen=True)
class Choice:
    """What the adjoint launch runs: the user's kernel (None), or one that is made by a plan; and what stays wrong."""

    plan: AdjointPlan | None
    hazards: tuple[Hazard, ...]
    effects: Effects
    """What the kernel does, as far as that launch goes: the functions of a rewritten one don't store when they run again."""


def choose_adjoint(kernel: Any, effects: Effects) -> Choice:
    """Decide what the adjoint launch of a kernel runs."""
    found = _chosen.get(kernel.adj)
    if found is None:
        found = _chosen[kernel.adj] = _choose(kernel, effects)
    return found


_chosen: weakref.WeakKeyDictionary[Any, Choice] = weakref.WeakKeyDictionary()


def _choose(kernel: Any, effects: Effects) -> Choice:
    plan = plan_adjoint(kernel, effects)
    if isinstance(plan, AdjointPlan):
        arrays = {n: replace(a, replayed=False) for n, a in effects.arrays.items()}
        rest = tuple(h for h in effects.hazards if h.kind not in CURED)
        return Choice(plan, rest, replace(effects, arrays=arrays))
    if plan is None:
        return Choice(None, effects.hazards, effects)
    hazards = (replace(h, message=f"{h.message}; {plan}") if h.kind in CURED else h for h in effects.hazards)
    return Choice(None, tuple(hazards), effects)


@dataclass(frozen=True)
class Refusal:
    """Why a kernel's adjoint isn't made right."""

    reason: str
    site: Site | None = None

    def __str__(self) -> str:
        return f"it can't be made right: {self.reason}" + (f" ({self.site})" if self.site is not None else "")


def plan_adjoint(kernel: Any, effects: Effects) -> AdjointPlan | Refusal | None:
    """How the adjoint of a kernel is made right; None where Warp's own is."""
    if not any(hazard.kind in CURED for hazard in effects.hazards):
        return None
    if not _warp.is_rewritable(kernel):
        return Refusal("the kernel was made in a way of its own")
    if effects.opaque:
        return Refusal("native code takes part in it", effects.opaque[0])
    try:
        return _plan(kernel, effects)
    except UnreadableError as error:
        return Refusal(str(error))
    except _RefusedError as error:
        return Refusal(str(error), error.site)


class _RefusedError(Exception):
    def __init__(self, reason: str, site: Site | None) -> None:
        super().__init__(reason)
        self.site = site


def _plan(kernel: Any, effects: Effects) -> AdjointPlan:
    owners: dict[Any, Any] = {}
    callees: dict[Any, set[Any]] = {}
    together: list[set[Any]] = []
    writers: set[Any] = set()

    def visit(owner: Any) -> None:
        function = code_of(owner.adj).func
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
                together.append({code_of(overload.adj).func for overload in overloads})
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
    order = _callees_first(code_of(kernel.adj).func, callees)
    for function in order:
        if callees[function] & writers:
            writers.add(function)
    chosen = {order[-1]} | writers
    for function in order:
        code = code_of(owners[function].adj)
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
    rewritten: dict[Any, FunctionPlan] = {}
    for function in order:
        if function in chosen:
            code = code_of(owners[function].adj)
            remainders = frozenset(
                (line - code.first_line + 1, column) for file, line, column in effects.remainders if file == code.file
            )
            plan = FunctionPlan(function, owners[function], _merged(needs.get(function, [])), remainders)
            rewritten[function] = plan
            stores = {(line, column) for f, line, column in effects.array_stores if f is function}
            for hazard in effects.hazards:
                if hazard.kind == "local-array" and hazard.site.file == code.file and hazard.site.line in lines(code):
                    _, others = local_arrays(read(owners[function]))
                    if others:
                        raise _RefusedError(
                            f"the thread's own array {_list(others)} is large, or more than indexed", None
                        )
            _LoopPlanner(plan, stores, rewritten, writers, tiled=effects.tiled).run()
    reasons = [
        f"line {loop.needs.site.line}, `{loop.needs.site.code}`: {loop.describe()}"
        for plan in rewritten.values()
        for loop in plan.loops.values()
        if loop.describe()
    ]
    if any(h.kind == "component" for h in effects.hazards):
        reasons.append("components of local vectors and structs are assigned by making a new one")
    if any(h.kind == "local-array" for h in effects.hazards):
        reasons.append("the thread's own arrays are vectors and matrices")
    if any(h.kind == "replayed" for h in effects.hazards):
        reasons.append("functions that store to arrays run again without that")
    if effects.remainders:
        reasons.append("fractions and remainders are written with wp.trunc")
    return AdjointPlan(rewritten, effects.array_stores, frozenset(writers - {order[-1]}), tuple(reasons))


def lines(code: Code) -> range:
    """The lines of a function in its file."""
    return range(code.first_line, code.first_line + len(code.lines))


def _writes(called: Any) -> bool:
    """Whether a builtin writes to an array."""
    return builtin_name(called).startswith(("atomic_", "tile_atomic_", "tile_store", "tile_scatter"))


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


@dataclass
class _Node:
    """A run-time loop in the form without jumps, with the loops around it."""

    loop: Loop
    plan: LoopPlan
    around: tuple[_Node, ...]
    first: int
    last: int
    """Where it is among all statements of the function, in order."""


class _LoopPlanner:
    """Decides about the loops of one function."""

    def __init__(
        self,
        plan: FunctionPlan,
        stores: set[Place],
        rewritten: dict[Any, FunctionPlan],
        writers: set[Any],
        *,
        tiled: bool,
    ) -> None:
        self.plan, self.rewritten, self.writers, self.tiled = plan, rewritten, writers, tiled
        self.source: Source = read(plan.owner)
        self.vectors, _ = local_arrays(self.source)
        self.structure = Structure(self.source.names, plan.loops, results=1)
        self.body, _ = self.structure.block(self.source.tree.body)
        self.source.local |= {*self.structure.flags.values(), *self.structure.returned}
        self.uses = Uses(self.source, stores - stores_into(self.source, self.vectors))
        self.nodes: list[_Node] = []
        self.taken: list[tuple[int, ast.stmt]] = []
        self.count = 0
        self._collect(self.body, ())

    def _collect(self, body: list[ast.stmt], around: tuple[_Node, ...]) -> None:
        for statement in body:
            self.count += 1
            self.taken.append((self.count, statement))
            if isinstance(statement, ast.If):
                self._collect(statement.body, around)
                self._collect(statement.orelse, around)
            elif self.structure.is_run_time(statement):
                assert isinstance(statement, (ast.For, ast.While))
                node = _Node(statement, self.plan.loops[place(statement)], around, self.count, self.count)
                self.nodes.append(node)
                self._collect(statement.body, (*around, node))
                node.last = self.count
            elif isinstance(statement, (ast.For, ast.While)):
                self._collect(statement.body, around)

    def run(self) -> None:
        for node in self.nodes:
            self._start(node)
        while True:
            before = self._size()
            for node in reversed(self.nodes):
                self._grow(node)
            if self._size() == before:
                break
        for node in self.nodes:
            if node.plan.mode != "as it is":
                self._check(node)

    def _size(self) -> int:
        parts = (p for n in self.nodes for p in (n.plan.restored, n.plan.after, n.plan.state, n.plan.given))
        return sum(map(len, parts)) + sum(n.plan.mode != "as it is" for n in self.nodes) * 1000

    def _start(self, node: _Node) -> None:
        """What the analysis asks for."""
        plan, needs = node.plan, node.plan.needs
        if needs.active and (needs.inside or needs.left or self._assigned(node) & self.vectors.keys()):
            plan.mode = "turns"
        plan.after |= needs.after & self._assigned(node)
        if place(node.loop) in self.structure.returning:
            plan.after |= {self.structure.flags[place(node.loop)], *self._results_set(node.loop)}

    def _results_set(self, loop: Loop) -> set[str]:
        return self.uses.writes(loop) & set(self.structure.returned)

    def _assigned(self, node: _Node) -> set[str]:
        return self.uses.writes(node.loop)

    def _carried(self, node: _Node) -> set[str]:
        """What a turn has from the one before."""
        found, _ = exposed(self.uses, node.loop.body)
        if isinstance(node.loop, ast.While):
            found |= self.uses.reads(node.loop.test)
        elif isinstance(node.loop, ast.For):
            found -= self.uses.writes(node.loop.target)
        return found & self._assigned(node)

    def _taken_in(self, node: _Node) -> set[str]:
        """Variables whose value the adjoint of a turn may need."""
        found = values_taken(self.uses, [s for s in node.loop.body if not is_exit(s)])
        for other in self.nodes:
            if node in other.around and other.plan.mode != "as it is":
                found |= other.plan.given | other.plan.state
        return found | self._arguments(node.loop)

    def _arguments(self, node: ast.AST) -> set[str]:
        """What functions that are rewritten are given: they may make it again from that."""
        found: set[str] = set()
        for call, called in calls_in(self.source, [node]):
            overloads = declared_overloads(called) if hasattr(called, "adj") else []
            if any(code_of(overload.adj).func in self.rewritten for overload in overloads):
                found |= set().union(*(self.uses.reads(a) for a in (*call.args, *(k.value for k in call.keywords))))
        return found

    def _grow(self, node: _Node) -> None:
        plan = node.plan
        if plan.needs.active and self._carried(node) & self._taken_in(node):
            plan.mode = "turns"
        plan.after |= self._assigned(node) & self._taken_behind(node)
        if plan.mode == "as it is" and plan.after:
            plan.mode = "after" if plan.needs.active else "gone"
        if plan.mode == "as it is":
            return
        if plan.mode == "turns":
            plan.restored |= self._carried(node) & self._taken_in(node)
        self._keep(node)

    def _taken_behind(self, node: _Node) -> set[str]:
        """Variables whose value is needed behind a loop, in the text."""
        found: set[str] = set()
        for number, statement in self.taken:
            if number <= node.last:
                continue
            simple = not isinstance(statement, (ast.If, ast.For, ast.While))
            found |= values_taken(self.uses, [statement]) if simple else self._head(statement)
            if simple:
                found |= self._arguments(statement)
        for other in self.nodes:
            if other.first > node.last and other.plan.mode != "as it is":
                found |= other.plan.given | other.plan.state
        return found

    def _head(self, statement: ast.stmt) -> set[str]:
        if isinstance(statement, (ast.If, ast.While)):
            return self.uses.reads(statement.test)
        return self.uses.reads(statement.iter) if isinstance(statement, ast.For) else set()

    def _keep(self, node: _Node) -> None:
        """What is kept of each turn, and what the loop is made again from."""
        plan, loop = node.plan, node.loop
        wanted = plan.restored | plan.after
        head = self.uses.reads(loop.test if isinstance(loop, ast.While) else loop.iter)
        body, _ = part_for(self.uses, loop.body, wanted | (head if isinstance(loop, ast.While) else set()))
        first, _ = exposed(self.uses, body)
        assigned = self._assigned(node)
        found = (first | head) & assigned if isinstance(loop, ast.While) else first & assigned
        plan.state |= (found | plan.restored | plan.after) - queries(self.uses, loop)
        if found_by_query(self.uses, loop) is not None:
            plan.state |= {found_by_query(self.uses, loop) or ""}
        target = self.uses.writes(loop.target) if isinstance(loop, ast.For) else set()
        plan.given |= (first | head | queries(self.uses, loop)) - plan.state - target

    def _check(self, node: _Node) -> None:
        plan, loop = node.plan, node.loop
        site = plan.needs.site
        fixed = plan.needs.fixed & (plan.state | (plan.given & self._assigned(node)))
        fixed -= queries(self.uses, loop)
        if fixed:
            raise _RefusedError(f"{_list(fixed)}, which the loop assigns, can't be kept", site)
        if self.tiled and any(
            builtin_name(called).startswith("tile") for _, called in calls_in(self.source, loop.body)
        ):
            raise _RefusedError("it works on tiles", site)
        body, _ = part_for(self.uses, loop.body, plan.state)
        for call, called in calls_in(self.source, body):
            if builtin_name(called) == "tid":
                raise _RefusedError("it calls wp.tid()", site)
            if builtin_name(called).startswith("atomic_"):
                raise _RefusedError(f"what the loop keeps depends on `{ast.unparse(call)}`", site)
        head = loop.test if isinstance(loop, ast.While) else loop.iter
        for call, called in calls_in(self.source, [head]):
            overloads = declared_overloads(called) if hasattr(called, "adj") else []
            if any(code_of(overload.adj).func in self.writers for overload in overloads):
                raise _RefusedError(f"`{ast.unparse(call)}` writes to arrays", site)
        inside = [s for s in loop.body if self.uses.reads(s) & queries(self.uses, loop)]
        if inside:
            raise _RefusedError("the query is used in its loop", site)


def queries(uses: Uses, loop: Loop) -> set[str]:
    """The query that a loop runs through: it begins again, and isn't kept."""
    if isinstance(loop, ast.For):
        return uses.reads(loop.iter) if isinstance(loop.iter, ast.Name) else set()
    call = query_call(uses, loop)
    return {call.args[0].id} if call is not None and isinstance(call.args[0], ast.Name) else set()


def query_call(uses: Uses, loop: Loop) -> ast.Call | None:
    """``wp.bvh_query_next(query, index)`` as a loop's condition."""
    test = loop.test if isinstance(loop, ast.While) else None
    if isinstance(test, ast.Call) and advances_query(builtin_name(uses.source.meaning(test.func))):
        return test
    return None


def found_by_query(uses: Uses, loop: Loop) -> str | None:
    """The variable that a query's loop sets at each turn."""
    if isinstance(loop, ast.For) and not is_range(loop) and isinstance(loop.target, ast.Name):
        return loop.target.id
    call = query_call(uses, loop)
    if call is not None and len(call.args) > 1 and isinstance(call.args[1], ast.Name):
        return call.args[1].id
    return None


def is_range(loop: ast.For) -> bool:
    call = loop.iter
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"


__all__ = ["CURED", "RETURN", "AdjointPlan", "FunctionPlan", "LoopPlan", "Refusal", "plan_adjoint"]
