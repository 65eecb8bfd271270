"""Arrays whose elements a thread reads and stores again: what each store overwrites is kept, and put back on the way back.

Warp's reverse pass has an array as the launch left it. In the rewritten kernel a store is a call, which keeps what the
element held, and whose adjoint puts that back: so the reverse pass has the array as it was at each point. How much a
thread has kept is a variable, ``top``, which whatever reads the array depends on. So a loop carries it, and where a turn
begins with the ``top`` that it had, the array is brought to what it held then. A first launch counts what will be kept.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import warp as wp

from ..frozen import frozen
from ..private import warp_types
from ..private.warp_source import is_users, takes_references
from .flow import Uses, builtin_name
from .source import Source, definition, give_adjoint, make_func
from .trees import (
    Store,
    assign,
    at,
    calling,
    indices_of,
    name,
    parsed,
    place,
    placed,
    statements_of,
    store,
    stored,
    targets,
)

_SUMS: dict[str, ast.operator] = {"atomic_add": ast.Add(), "atomic_sub": ast.Sub()}
_PLACES = {1: wp.int32, 2: wp.vec2i, 3: wp.vec3i, 4: wp.vec4i}
"""An element's indices, by the array's rank."""


@frozen
class Kept:
    """The names that the rewritten kernel has for one array."""

    array: str
    rank: int
    top: str
    """How much has been kept before, by all threads before this one too."""
    old: str
    """What elements held."""
    places: str
    """Which elements they are."""
    now: str
    """By thread, ``top`` at the moment: while it is counted, how often the thread stores."""
    keep: str
    undo: str
    threads: tuple[str, ...]
    """The thread's coordinates."""

    @property
    def added(self) -> tuple[str, ...]:
        """The arguments that the kernel gets."""
        return self.old, self.places, self.now

    def undoing(self) -> ast.stmt:
        """Brings the array to what it held when ``top`` was what it is."""
        return assign(self.top, calling(self.undo, self.array, *self.added, *self.threads, self.top))

    def types(self, array: Any, element: Any) -> dict[str, Any]:
        """The types of all of these."""
        return {
            self.array: array,
            self.old: warp_types.array_annotation(element, 1),
            self.places: warp_types.array_annotation(_PLACES[self.rank], 1),
            self.now: warp_types.array_annotation(wp.int32, len(self.threads)),
            **dict.fromkeys((*self.threads, self.top), wp.int32),
        }

    def functions(self, original: Any, array: Any, element: Any) -> dict[str, tuple[Any, str]]:
        """``keep`` and ``undo``, each with its text. Gradients pass them by: they are the plain store's."""
        # No names of the user's are in them.
        known = self.types(array, element)
        names = ("old", "places", "now", *(f"thread_{axis}" for axis in range(len(self.threads))), "top")
        types = {
            "array": array,
            **{n: known[own] for n, own in zip(names, (*self.added, *self.threads, self.top), strict=True)},
        }
        indices = [f"index_{axis}" for axis in range(self.rank)]
        given = {"array": array, **dict.fromkeys(indices, wp.int32), "value": element, **types}
        at = ", ".join(indices)
        kept = at if self.rank == 1 else f"place({at})"
        thread = ", ".join(names[3:-1])
        keep = [
            "if old.shape[0] > 0:",
            f"    old[top] = array[{at}]",
            f"    places[top] = {kept}",
            f"array[{at}] = value",
            f"now[{thread}] = top + 1",
            "return top + 1",
        ]
        back = [f"array[{at}] = old[top]", f"now[{thread}] = top"]
        found = ", ".join(f"at[{axis}]" for axis in range(self.rank)) if self.rank > 1 else "at"
        undo = [
            f"last = int(now[{thread}])",
            "while last > top:",
            "    last = last - 1",
            "    at = places[last]",
            f"    array[{found}] = old[last]",
            f"now[{thread}] = top",
            "return top",
        ]
        scope = {"place": _PLACES[self.rank]}
        made = {}
        for own, arguments, lines, adjoint in (
            (self.keep, given, keep, back),
            (self.undo, types, undo, ["pass"]),
        ):
            text = definition(own, arguments, lines)
            function = make_func(original, text, own, scope, arguments)
            made[own] = function, f"{text}\n\n\n{give_adjoint(function, int, adjoint, original, scope, arguments)}"
        return made


# --- which arrays -----------------------------------------------------------------------------------------------------


def keepable(source: Source, array: str, rank: int) -> str | None:
    """Why what a kernel's stores to an array overwrite can't be kept; None where it can."""
    if "." in array:
        return f"'{array}' is a field"
    stores: set[ast.AST] = set()
    for statement in statements_of(source.tree.body):
        found = _stored(source, statement, array, rank)
        if found is not None:
            if any(isinstance(index, ast.Slice) for index in found.indices):
                return f"a slice of '{array}' is stored to"
            value = found.statement.value if found.part and isinstance(found.statement, ast.Assign) else None
            if value is not None and any(_is_drawn(source, index, value) for index in found.indices):
                return f"a component of '{array}' is stored to at an index that is drawn"  # its value comes before
            stores.add(found.array)
    for node, around in _with_parents(source.tree):
        if not isinstance(node, ast.Name) or node.id != array or node in stores:
            continue
        if isinstance(around[-1], ast.Attribute) and around[-1].attr in ("shape", "ndim", "dtype"):
            continue
        indices: list[ast.expr] = []
        last: ast.AST = node
        for holder in reversed(around):
            if isinstance(holder, ast.Subscript) and holder.value is last:
                indices += indices_of(holder)
            elif not isinstance(holder, ast.Attribute):
                break
            if not isinstance(holder.ctx, ast.Load):
                return f"'{array}' is stored to together with others"
            last = holder
        if len(indices) >= rank and not any(isinstance(index, ast.Slice) for index in indices[:rank]):
            continue
        called = source.called(holder)
        if not is_users(called) or takes_references(called):
            return f"'{array}' is used as a whole, or by a view"
    return None


def _is_drawn(source: Source, index: ast.expr, value: ast.expr) -> bool:
    """Whether an index draws, or is made of the state that the value draws of."""
    uses = Uses(source, ())
    return bool(uses.writes(index) or uses.writes(value) & uses.reads(index))


def _with_parents(node: ast.AST, around: tuple[Any, ...] = ()) -> Iterator[tuple[ast.AST, tuple[Any, ...]]]:
    yield node, around
    for child in ast.iter_child_nodes(node):
        yield from _with_parents(child, (*around, node))


@frozen
class _Stored:
    """A statement that stores to an element of an array, or to a part of it."""

    statement: Store
    """Of one target; an atomic addition is ``x[i] += v``."""
    array: ast.Name
    element: ast.Subscript
    indices: list[ast.expr]

    @property
    def part(self) -> bool:
        return self.element is not targets(self.statement)[0]


def _stored(source: Source, statement: ast.stmt, array: str, rank: int) -> _Stored | None:
    """What a statement stores to an element of an array; None where it does no such thing."""
    found = _sum(source, statement, rank) if isinstance(statement, ast.Expr) else statement
    if not isinstance(found, (ast.Assign, ast.AugAssign)) or len(targets(found)) != 1:
        return None
    chain = targets(found)[:]
    while isinstance(chain[-1], (ast.Subscript, ast.Attribute)):
        chain.append(chain[-1].value)
    own = chain.pop()
    indices: list[ast.expr] = []
    while isinstance(own, ast.Name) and own.id == array and chain:
        element = chain.pop()
        if not isinstance(element, ast.Subscript):
            return None
        indices += indices_of(element)
        if len(indices) >= rank:
            return _Stored(found, own, element, indices) if len(indices) == rank else None
    return None


def _sum(source: Source, statement: ast.Expr, rank: int) -> ast.AugAssign | None:
    """``wp.atomic_add(x, i, v)`` of a thread's own element as ``x[i] += v``."""
    added = statement.value
    operator = _SUMS.get(builtin_name(source.called(added)))
    if operator is None or not isinstance(added, ast.Call) or len(added.args) != rank + 2 or added.keywords:
        return None
    array, *indices, value = added.args
    if not isinstance(array, ast.Name):
        return None
    return ast.copy_location(ast.AugAssign(at(array, indices, ast.Store()), operator, value), statement)


# --- writing ----------------------------------------------------------------------------------------------------------


def as_kept(
    source: Source,
    arrays: Mapping[str, int],
    threads: int,
    warp: str = "warp",
    cast: Callable[[str, ast.expr], ast.expr] = lambda array, value: value,
    typed: Callable[[str, str | None], None] = lambda variable, array: None,
) -> list[Kept]:
    """Let a kernel's stores to these arrays (with their ranks) keep what they overwrite.

    Args:
        threads: the launch's rank.
        warp: the name of the module.
        cast: a value as one of an array's type.
        typed: is told of variables that hold an element of an array, or (None) an index.
    """
    if not arrays:
        return []
    coordinates = tuple(source.variable(f"thread_{axis}") for axis in range(threads))
    found = []
    for a in sorted(arrays):
        top, old, places, now = (source.variable(f"{a}_{n}") for n in ("top", "old", "places", "now"))
        keep, undo = (source.names.fresh(f"{a}_{n}") for n in ("keep", "undo"))
        found.append(Kept(a, arrays[a], top, old, places, now, keep, undo, coordinates))
    source.tree.args.args += [ast.arg(n) for kept in found for n in kept.added]
    source.kept.update({kept.array: kept.top for kept in found})
    first: list[ast.stmt] = [ast.Assign([stored(coordinates)], parsed(f"{warp}.tid()"))]
    first += [assign(kept.top, parsed(f"int({kept.now}[{', '.join(coordinates)}])")) for kept in found]
    writer = _Writer(source, {kept.array: kept for kept in found}, cast, typed)
    source.tree.body = [*first, *writer.block(source.tree.body)]
    return found


@dataclass
class _Writer:
    source: Source
    kept: Mapping[str, Kept]
    cast: Callable[[str, ast.expr], ast.expr]
    typed: Callable[[str, str | None], None]

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [made for statement in body for made in self._statement(statement)]

    def _statement(self, statement: ast.stmt) -> list[ast.stmt]:
        if isinstance(statement, (ast.If, ast.For, ast.While)):
            statement.body, statement.orelse = self.block(statement.body), self.block(statement.orelse)
            return [statement]
        for kept in self.kept.values():
            found = _stored(self.source, statement, kept.array, kept.rank)
            if found is not None:
                return self._store(kept, found)
        return [statement]

    def _store(self, kept: Kept, found: _Stored) -> list[ast.stmt]:
        """The element's indices, the value, the call that keeps and stores, and the store that the gradient goes by.

        An assigned value comes before the indices, as Warp has it: a call in either may draw of one generator.
        """
        statement, made = found.statement, list[ast.stmt]()
        value = self.source.variable(f"{kept.array}_value")
        self.typed(value, kept.array)
        if isinstance(statement, ast.Assign) and not found.part:
            made.append(assign(value, self.cast(kept.array, statement.value)))
        places: list[ast.expr] = []
        for index in found.indices:
            if not isinstance(index, (ast.Name, ast.Constant)):
                own = self.source.variable(f"{kept.array}_index")
                self.typed(own, None)
                made.append(assign(own, calling("int", index)))
                index = name(own)
            places.append(index)
        element = at(name(kept.array), places)
        if found.part:
            made.append(assign(value, element))
            made.append(store(statement, _of(name(value), targets(statement)[0], found.element), statement.value))
        elif isinstance(statement, ast.AugAssign):
            made.append(assign(value, self.cast(kept.array, ast.BinOp(element, statement.op, statement.value))))
        keep = calling(kept.keep, kept.array, *places, value, *kept.added, *kept.threads, kept.top)
        made = [placed(one, statement, 1) for one in (*made, assign(kept.top, keep))]
        self.source.stored.add(place(statement))
        stores = ast.Assign([at(name(kept.array), places, ast.Store())], name(value))
        return [*made, ast.copy_location(stores, statement)]


def _of(base: ast.expr, part: Any, element: ast.expr) -> ast.expr:
    """The part of ``base`` that a target is of an element."""
    if part is element:
        return base
    made: ast.expr = copy.copy(part)
    made.value = _of(base, part.value, element)  # type: ignore[attr-defined]
    return made
