"""Arrays whose elements a thread reads and stores again: what each store overwrites is kept, and put back on the way back.

Warp's reverse pass has an array as the launch left it. In the rewritten kernel a store is a call, which keeps what the
element held, and whose adjoint puts that back: so the reverse pass has the array as it was at each point. How much a
thread has kept is a variable, ``top``, which whatever reads the array depends on. So a loop carries it, and where a turn
begins with the ``top`` that it had, the array is brought to what it held then. A first launch counts what will be kept.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import warp as wp

from ..private import warp_types
from ..private.warp_source import is_function, parameters
from ..private.warp_types import is_reference
from .flow import Uses, assign, builtin_name, name, place, targets
from .source import Source, make_func, make_function

_SUMS: dict[str, ast.operator] = {"atomic_add": ast.Add(), "atomic_sub": ast.Sub()}
_PLACES = {1: wp.int32, 2: wp.vec2i, 3: wp.vec3i, 4: wp.vec4i}
"""An element's indices, by the array's rank."""


@dataclass(frozen=True)
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
        return assign(self.top, _call(self.undo, self.array, *self.added, *self.threads, self.top))

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
            text = _text(own, arguments, lines)
            function = make_func(make_function(original, text, own, scope, arguments), own)
            reverse = {**arguments, "adj_result": int}
            text_of_adjoint = _text(f"{own}_adjoint", reverse, adjoint)
            wp.func_grad(function)(make_function(original, text_of_adjoint, f"{own}_adjoint", scope, reverse))
            made[own] = function, f"{text}\n\n\n{text_of_adjoint}"
        return made


def _text(own: str, arguments: Mapping[str, Any], lines: list[str]) -> str:
    return "\n".join([f"def {own}({', '.join(arguments)}):", *(f"    {line}" for line in lines)])


def _call(function: str, *arguments: str | ast.expr) -> ast.Call:
    return ast.Call(name(function), [name(a) if isinstance(a, str) else a for a in arguments], [])


# --- which arrays -----------------------------------------------------------------------------------------------------


def keepable(source: Source, array: str, rank: int) -> str | None:
    """Why what a kernel's stores to an array overwrite can't be kept; None where it can."""
    if "." in array:
        return f"'{array}' is a field"
    stored: set[int] = set()
    for statement in _statements(source.tree.body):
        store = _as_store(source, statement, array, rank)
        found = None if store is None else _element(targets(store)[0], array, rank)
        if found is not None:
            if any(isinstance(index, ast.Slice) for index in found[0]):
                return f"a slice of '{array}' is stored to"
            if found[1] and isinstance(store, ast.Assign) and any(_is_drawn(source, i, store.value) for i in found[0]):
                return f"a component of '{array}' is stored to at an index that is drawn"  # its value comes before
            of = statement.value if isinstance(statement, ast.Expr) else targets(store)[0]  # type: ignore[arg-type]
            stored.add(next(id(n) for n in ast.walk(of) if isinstance(n, ast.Name) and n.id == array))
    for node, around in _with_parents(source.tree):
        if not isinstance(node, ast.Name) or node.id != array or id(node) in stored:
            continue
        if isinstance(around[-1], ast.Attribute) and around[-1].attr in ("shape", "ndim", "dtype"):
            continue
        indices: list[ast.expr] = []
        last: ast.AST = node
        for holder in reversed(around):
            if isinstance(holder, ast.Subscript) and holder.value is last:
                indices += _indices(holder)
            elif not isinstance(holder, ast.Attribute):
                break
            if not isinstance(holder.ctx, ast.Load):
                return f"'{array}' is stored to together with others"
            last = holder
        if len(indices) >= rank and not any(isinstance(index, ast.Slice) for index in indices[:rank]):
            continue
        called = source.meaning(holder.func) if isinstance(holder, ast.Call) else None
        if (
            called is None
            or not is_function(called)
            or called.is_builtin()
            or any(map(is_reference, parameters(called).values()))
        ):
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


def _indices(link: ast.Subscript) -> list[ast.expr]:
    return list(link.slice.elts) if isinstance(link.slice, ast.Tuple) else [link.slice]


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, (ast.If, ast.For, ast.While)):
            yield from _statements(statement.body)
            yield from _statements(statement.orelse)


def _as_store(source: Source, statement: ast.stmt, array: str, rank: int) -> ast.Assign | ast.AugAssign | None:
    """A statement that assigns one thing, or adds to an element by a function."""
    if isinstance(statement, (ast.Assign, ast.AugAssign)):
        return statement if len(targets(statement)) == 1 else None
    return _sum(source, statement, array, rank) if isinstance(statement, ast.Expr) else None


def _element(target: ast.expr, array: str, rank: int) -> tuple[list[ast.expr], list[ast.expr]] | None:
    """The indices of an element that a target is, or is a part of; and the links that lead on to the part."""
    links: list[ast.expr] = []
    while isinstance(target, (ast.Subscript, ast.Attribute)):
        links.append(target)
        target = target.value
    if not isinstance(target, ast.Name) or target.id != array:
        return None
    indices: list[ast.expr] = []
    while links and len(indices) < rank:
        link = links.pop()
        if not isinstance(link, ast.Subscript):
            return None
        indices += _indices(link)
    return (indices, links[::-1]) if len(indices) == rank else None


def _sum(source: Source, statement: ast.Expr, array: str, rank: int) -> ast.AugAssign | None:
    """``wp.atomic_add(x, i, v)`` of a thread's own element as ``x[i] += v``."""
    call = statement.value
    if not isinstance(call, ast.Call) or len(call.args) != rank + 2 or call.keywords:
        return None
    operator = _SUMS.get(builtin_name(source.meaning(call.func)))
    if operator is None or not isinstance(call.args[0], ast.Name) or call.args[0].id != array:
        return None
    at = ast.Tuple(call.args[1:-1], ast.Load()) if rank > 1 else call.args[1]
    added = ast.AugAssign(ast.Subscript(call.args[0], at, ast.Store()), operator, call.args[-1])
    return ast.copy_location(added, statement)


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
    fresh = source.names.fresh
    coordinates = tuple(fresh(f"thread_{axis}") for axis in range(threads))
    found = []
    for a in sorted(arrays):
        top, old, places, now, keep, undo = (fresh(f"{a}_{n}") for n in ("top", "old", "places", "now", "keep", "undo"))
        found.append(Kept(a, arrays[a], top, old, places, now, keep, undo, coordinates))
    source.tree.args.args += [ast.arg(n) for kept in found for n in kept.added]
    source.local |= {n for kept in found for n in (*kept.added, kept.top)} | set(coordinates)
    source.kept.update({kept.array: kept.top for kept in found})
    source.keepers.update(kept.keep for kept in found)
    target: ast.expr = ast.Name(coordinates[0], ast.Store())
    if threads > 1:
        target = ast.Tuple([ast.Name(n, ast.Store()) for n in coordinates], ast.Store())
    first: list[ast.stmt] = [ast.Assign([target], ast.Call(ast.Attribute(name(warp), "tid", ast.Load()), [], []))]
    thread = ast.Tuple([name(n) for n in coordinates], ast.Load()) if threads > 1 else name(coordinates[0])
    for kept in found:
        first.append(assign(kept.top, ast.Call(name("int"), [ast.Subscript(name(kept.now), thread, ast.Load())], [])))
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
            store = _as_store(self.source, statement, kept.array, kept.rank)
            found = None if store is None else _element(targets(store)[0], kept.array, kept.rank)
            if store is not None and found is not None:
                return self._store(kept, store, *found)
        return [statement]

    def _fresh(self, wanted: str) -> str:
        found = self.source.names.fresh(wanted)
        self.source.local.add(found)
        return found

    def _store(
        self, kept: Kept, statement: ast.Assign | ast.AugAssign, indices: list[ast.expr], part: list[ast.expr]
    ) -> list[ast.stmt]:
        """The element's indices, the value, the call that keeps and stores, and the store that the gradient goes by.

        An assigned value comes before the indices, as Warp has it: a call in either may draw of one generator.
        """
        made: list[ast.stmt] = []
        value = self._fresh(f"{kept.array}_value")
        self.typed(value, kept.array)
        if isinstance(statement, ast.Assign) and not part:
            made.append(assign(value, self.cast(kept.array, statement.value)))
        places: list[ast.expr] = []
        for index in indices:
            if not isinstance(index, (ast.Name, ast.Constant)):
                at = self._fresh(f"{kept.array}_index")
                self.typed(at, None)
                made.append(assign(at, ast.Call(name("int"), [index], [])))
                index = name(at)
            places.append(index)
        slice_ = ast.Tuple(list(places), ast.Load()) if len(places) > 1 else places[0]
        element = ast.Subscript(name(kept.array), slice_, ast.Load())
        if part:
            made.append(assign(value, element))
            target: ast.expr = name(value)
            for link in part:
                last = link is part[-1]
                context: ast.expr_context = ast.Store() if last else ast.Load()
                if isinstance(link, ast.Subscript):
                    target = ast.Subscript(target, link.slice, context)
                else:
                    assert isinstance(link, ast.Attribute)
                    target = ast.Attribute(target, link.attr, context)
            new: ast.stmt = (
                ast.AugAssign(target, statement.op, statement.value)  # type: ignore[arg-type]
                if isinstance(statement, ast.AugAssign)
                else ast.Assign([target], statement.value)
            )
            made.append(new)
        elif isinstance(statement, ast.AugAssign):
            made.append(assign(value, self.cast(kept.array, ast.BinOp(element, statement.op, statement.value))))
        call = _call(kept.keep, kept.array, *places, value, *kept.added, *kept.threads, kept.top)
        made.append(assign(kept.top, call))
        for one in made:
            for node in ast.walk(one):
                if not hasattr(node, "lineno"):
                    ast.copy_location(node, statement)
            ast.copy_location(one, statement)
            one.col_offset += 1  # a place where the user's text has none
        self.source.stored.add(place(statement))
        store = ast.Assign([ast.Subscript(name(kept.array), slice_, ast.Store())], name(value))
        return [*made, ast.copy_location(store, statement)]
