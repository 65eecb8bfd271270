"""What one analysis run collects, and the frames it runs in."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from ..frozen import frozen, hashed
from .forms import NO_FACTS, NONE, Coordinates, Facts, Form
from .model import Site
from .names import Code
from .state import Condition, Seen, State, Written
from .values import (
    NO_TOKENS,
    Abstract,
    Carried,
    Component,
    Doubt,
    Given,
    Held,
    Left,
    Need,
    Needs,
    ReadOf,
    Through,
    Token,
    Tokens,
    Trace,
    is_active,
    merged,
    traces_of,
    with_trace,
)

_A = TypeVar("_A", bound=Abstract)

BUDGET = 60_000
"""Syntax nodes that one analysis may visit; beyond it the rest of the kernel counts as unseen."""


class OutOfBudgetError(Exception):
    """The kernel is too large to be followed."""


@hashed
class Access:
    """One place where the kernel touches elements of an array argument."""

    array: str
    kind: str
    """``"read"``, ``"store"`` or an atomic's name."""
    pattern: tuple[Form, ...] = field(hash=False)
    site: Site
    conditions: tuple[Condition, ...] = field(default=(), hash=False)
    facts: Facts = field(default=NO_FACTS, hash=False)
    """What follows from the conditions."""
    loops: tuple[int, ...] = ()
    """The ``range`` loops around it, outermost first; -1 for a loop that may repeat without a variable."""
    view: bool = False
    component: bool = False
    used: bool = False
    """An atomic whose result is used."""
    first: bool = False
    """A read of an element that this thread can't have written before."""
    own: bool = False
    """A read or an update of an element that this thread surely wrote before."""
    possible: bool = False
    """One of several arrays that the name may stand for, or one of several definitions that the call may mean."""
    active: bool = False
    """A store of a value that a gradient may flow through."""
    varies: Coordinates = NONE
    """The coordinates that the value of a store may depend on."""
    inside: bool = False
    """In a function that the kernel calls, which the adjoint's forward pass calls again, stores and all."""


@dataclass
class LoopContext:
    id: int
    path: int
    """The way to this loop: another one in each turn of an unrolled loop around it."""
    breaks: list[tuple[State, dict[str, Abstract]]] = field(default_factory=list)
    continues: list[tuple[State, dict[str, Abstract]]] = field(default_factory=list)
    begun: dict[str, Abstract] = field(default_factory=dict)
    """What variables hold when a turn begins."""
    skipped: set[str] = field(default_factory=set)
    """Variables that a turn has assigned by the time that ``continue`` ends it."""
    acted: bool = False
    """Such a turn may have stored numbers."""


@dataclass
class Frame:
    """One function's activation."""

    code: Code
    id: int
    env: dict[str, Abstract]
    references: frozenset[str] = frozenset()
    """Parameters that are ``wp.ref``."""
    returns: list[tuple[State, Abstract]] = field(default_factory=list)
    loops: list[LoopContext] = field(default_factory=list)
    kernel: bool = False
    lost: Doubt | None = None
    """It calls ``wp.grad``: Warp makes no adjoint of it."""


@dataclass
class Head:
    """What is known so far at the head of a loop's turns: of the variables that it assigns, and of what earlier turns did."""

    env: dict[str, Abstract]
    turns: Coordinates
    written: frozenset[Written] = frozenset()
    read: frozenset[Seen] = frozenset()
    grown: int = 0
    """How often more became known."""


@dataclass
class RunTimeLoop:
    """What a loop that Warp doesn't unroll makes its adjoint need."""

    code: Code
    node: ast.For | ast.While
    active: bool = False
    left: bool = False
    order: int = 0
    """When it began."""
    overwrites: dict[Held, None] = field(default_factory=dict)
    inside: set[str] = field(default_factory=set)
    after: set[str] = field(default_factory=set)
    before: set[str] = field(default_factory=set)
    fixed: set[str] = field(default_factory=set)
    reads: dict[Token, Site] = field(default_factory=dict)


@frozen
class Way:
    """How a number that a function returns came about: what its adjoint needs, and the arguments that its gradient goes to."""

    needs: tuple[Need, ...]
    doubts: tuple[Doubt | Through, ...]
    arguments: tuple[int, ...]


class ActsError(Exception):
    """A function does more than read, and compute numbers."""


@frozen
class Summary:
    """What a call of a function that computes numbers comes to, for all arguments of one kind."""

    result: Abstract
    ways: tuple[Way | None, ...]
    """Of each number in the result."""
    strays: tuple[tuple[Given, Site], ...]
    """Where arguments are indices that the adjoint may have others of."""
    stored: tuple[Trace, ...]
    """Of what is wrong with Warp's adjoint of it, and needed, whatever its arguments are."""
    accesses: tuple[Access, ...]
    """What it reads of the arrays that it is given, as if no loop or condition were around the call."""
    read: frozenset[Seen]
    steps: dict[int, int]
    """The needs' orders, counted from the call."""
    site: Site
    """The call that it was made at."""
    within: tuple[tuple[Any, Summary | None], ...] = ()
    """The calls in it."""
    visits: int = 0
    """The syntax nodes visited to make it, those of calls in it apart."""


@dataclass
class Record:
    """Everything an analysis run has seen."""

    kernel: Any
    arrays: dict[str, Any]
    unroll: int
    copies: bool
    execute: Callable[[Record, Frame, list[ast.stmt] | tuple[ast.stmt, ...]], None]
    evaluate: Callable[[Record, Frame, ast.AST], Abstract]
    state: State = field(default_factory=State)
    accesses: dict[Access, None] = field(default_factory=dict)
    escapes: dict[tuple[str, Site], None] = field(default_factory=dict)
    unsafe: set[str] = field(default_factory=set)
    """Arrays that a custom gradient may write to."""
    revisited: set[str] = field(default_factory=set)
    """Arrays that a custom gradient or replay may read in the backward pass."""
    opaque: dict[Site, None] = field(default_factory=dict)
    stored: list[Trace] = field(default_factory=list)
    """Of what reaches memory."""
    events: dict[Token, Site] = field(default_factory=dict)
    """After the run: where the adjoint first needs the value behind a token."""
    judged: list[Doubt | Through] = field(default_factory=list)
    """The loops around this point whose adjoint Warp doesn't run as the kernel did."""
    overwritten: dict[ReadOf, Site] = field(default_factory=dict)
    """Where the kernel writes again what it has read."""
    bound: dict[Component, int] = field(default_factory=dict)
    """When a vector was last made anew."""
    changed: dict[Component, dict[int, Site]] = field(default_factory=dict)
    """When, and where, a component of it was stored."""
    remainders: set[tuple[str, int, int]] = field(default_factory=set)
    harmless: set[Token] = field(default_factory=set)
    """What loops carry that was an index of no harm before the loop: its value in the adjoint of what follows the loop."""
    loop_sites: dict[int, Site] = field(default_factory=dict)
    while_loops: set[int] = field(default_factory=set)
    queries: set[int] = field(default_factory=set)
    """Loops over what a query finds."""
    run_time: dict[int, RunTimeLoop] = field(default_factory=dict)
    array_stores: dict[tuple[Any, int, int], None] = field(default_factory=dict)
    tested: set[str] = field(default_factory=set)
    """Arrays that are asked whether they are there (``if weights:``)."""
    measured: set[str] = field(default_factory=set)
    """Arrays whose shape, or another part of their descriptor, is read."""
    handles: dict[tuple[str, str], None] = field(default_factory=dict)
    """Arguments that are ids, and of what, by the builtins that they are given to."""
    ranks: set[int] = field(default_factory=set)
    lost_rank: bool = False
    tiled: bool = False
    loops: tuple[int, ...] = ()
    """The loops around this point, as of an ``Access``."""
    around: frozenset[int] = frozenset()
    """Their numbers."""
    bounds: Tokens = NO_TOKENS
    """What is behind the number of their turns."""
    numbers: dict[tuple[Hashable, ...], int] = field(default_factory=dict)
    meanings: dict[ast.AST, tuple[str, Abstract]] = field(default_factory=dict)
    """What names from outside stand for, and attributes of them, with that name."""
    depth: int = 0
    visited: int = 0
    next_id: int = 0
    shielded: int = 0
    """Inside a function whose adjoint the user wrote."""
    silent: int = 0
    """Only a value is asked for: nothing of how it is computed is noted."""
    heads: dict[int, Head] = field(default_factory=dict)
    """Of the loops of the outermost one, by the way to each."""
    settling: bool = False
    """Inside a loop, which is gone through until no head changes."""
    moved: bool = False
    """A head has changed in this pass."""
    possible: int = 0
    inside: int = 0
    """Inside a function that the kernel calls, and that has no replay of the user's own."""
    summaries: dict[Any, Summary | None] = field(default_factory=dict)
    """Of functions that compute numbers, by the kind of their arguments; None for one that does more."""
    summing: bool = False
    """What is interpreted is a function for all its calls."""
    strays: dict[tuple[Given, Site], None] = field(default_factory=dict)
    """Of the function that is interpreted for all its calls."""
    within: dict[Any, Summary | None] = field(default_factory=dict)
    """The calls in it: their summaries, None where one has none."""
    visited_within: int = 0
    """The nodes visited for the summaries of those."""
    checked: set[Code] = field(default_factory=set)
    """Functions whose kept summaries are those of today."""

    def fresh(self) -> int:
        self.next_id += 1
        return self.next_id

    def number(self, *what: Hashable) -> int:
        """A number of its own for what is met again in each pass over a loop, so that passes can be compared."""
        return self.numbers.setdefault(what, self.fresh())

    def loop_id(self, frame: Frame, node: ast.AST) -> int:
        return self.number(frame.id, node)

    def path(self, frame: Frame, node: ast.AST, *more: Hashable) -> int:
        """The way to a loop, or to a function that is called: ``loop_id`` is the same in each turn of an unrolled loop."""
        return self.number(frame.id, node, frame.loops[-1].path if frame.loops else None, *more)

    def ends(self, frame: Frame) -> list[State]:
        """The states of all ways out of a function."""
        ends = [state for state, _ in frame.returns]
        return [*ends, self.state] if self.state.alive else ends

    def mark(self) -> tuple[int, int, int]:
        """Where the record is, so that what is noted from here on can be forgotten."""
        return len(self.accesses), len(self.escapes), len(self.stored)

    def forget(self, mark: tuple[int, int, int]) -> None:
        accesses, escapes, stored = mark
        while len(self.accesses) > accesses:
            self.accesses.popitem()
        while len(self.escapes) > escapes:
            self.escapes.popitem()
        del self.stored[stored:]

    def tick(self) -> None:
        self.visited += 1
        if self.visited > BUDGET:
            raise OutOfBudgetError

    def needing(self, value: _A, tokens: Tokens, site: Site) -> _A:
        """The value, whose adjoint needs what is behind these tokens."""
        if self.shielded or not tokens or not is_active(value):
            return value
        return with_trace(value, self.needs(merged(traces_of(value)), tokens, site))

    def doubting(self, value: _A, doubts: Iterable[Doubt | Through]) -> _A:
        """The value, of which Warp's adjoint may be wrong."""
        doubts = tuple(doubts)
        if self.shielded or not doubts:
            return value
        sources = [trace for trace in traces_of(value) if trace is not None]
        return with_trace(value, Trace(sources, doubts=doubts))

    def acts(self) -> None:
        """What is interpreted here does more than compute numbers."""
        if self.summing:
            raise ActsError

    def stores(self, value: Abstract, tokens: Tokens, site: Site) -> None:
        """The value reaches memory, where the adjoint needs what is behind these tokens."""
        if not self.silent and not self.shielded:
            self.stored.append(self.needs(merged(traces_of(value)), tokens, site))

    def warn(self, *doubts: Doubt | Through) -> None:
        """Warp's adjoint may be wrong here, whatever the values are."""
        if not self.silent and not self.shielded:
            self.stored.append(Trace([], doubts=doubts))

    def needs(self, trace: Trace | None, tokens: Tokens, site: Site) -> Trace:
        """How a value came about, and that its adjoint needs what is behind these tokens."""
        self.next_id += 1
        return Trace([trace] if trace is not None else [], (Needs(tokens, site, self.next_id, self.around),))

    @cached_property
    def by_array(self) -> dict[str, list[Access]]:
        """After the run: the accesses of each array."""
        found: dict[str, list[Access]] = {}
        for access in self.accesses:
            found.setdefault(access.array, []).append(access)
        return found

    @cached_property
    def needed_reads(self) -> dict[str, list[tuple[ReadOf, Site]]]:
        """After the run, by array: the reads whose values the adjoint needs, with the places where it first does."""
        found: dict[str, list[tuple[ReadOf, Site]]] = {}
        for token, site in self.events.items():
            if isinstance(token, ReadOf):
                found.setdefault(token.array, []).append((token, site))
        return found

    @cached_property
    def guards(self) -> frozenset[Condition]:
        """After the run: the bounds checks that every access of the kernel lies behind."""
        if self.escapes or self.opaque or not self.accesses:
            return frozenset()
        common = frozenset.intersection(*(frozenset(access.conditions) for access in self.accesses))
        return frozenset(c for c in common if c.coords and c.below is not None)


def behind(traces: Iterable[Trace], seen: dict[Trace, None] | None = None) -> tuple[list[Needs], list[Doubt | Through]]:
    """What is needed of all that gradients go through from here, in order, and what is wrong with it."""
    needs: list[Needs] = []
    doubts: list[Doubt | Through] = []
    seen = {} if seen is None else seen
    pending = list(traces)
    while pending:
        trace = pending.pop()
        if trace not in seen:
            seen[trace] = None
            needs.extend(trace.needs)
            doubts.extend(trace.doubts)
            pending.extend(trace.sources)
    needs.sort(key=lambda need: need.order)
    return needs, doubts


def first_needs(steps: Iterable[Needs]) -> list[Need]:
    """The first need of each token: of what a loop carries, inside the loop and behind it."""
    found: dict[tuple[Token, bool], Need] = {}
    known: dict[frozenset[int], set[Token]] = {}
    for step in steps:
        met = known.setdefault(step.loops, set())
        for token in step.tokens - met:
            inside = isinstance(token, (Carried, Left)) and token.loop in step.loops
            found.setdefault((token, inside), Need(token, step.site, step.order, step.loops))
        met |= step.tokens
    return list(found.values())
