"""Elements that a thread alone reads and stores again: a variable has what they held, which the array hasn't any more."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass

from ..effects.names import is_random
from ..private.warp_source import is_function, parameters
from ..private.warp_types import is_reference
from .flow import assign, builtin_name, name, targets
from .source import Source

Guard = Callable[[str, ast.Subscript, ast.stmt], list[ast.stmt]]
"""Makes the load of an array's element one that happens only where there is such an element."""


class _SharedError(Exception):
    """A variable can't stand for the element."""


def own_elements(source: Source, arrays: Mapping[str, int]) -> frozenset[str]:
    """Those of a kernel's arrays (with their ranks; a struct's by dotted names) of which a thread touches one element alone,
    by one index, or one in each turn of a loop."""
    found = set()
    for array, rank in arrays.items():
        try:
            elements = _Elements(source, array)
            _loads(source, elements)
            if len(elements.axes) == rank:
                found.add(array)
        except _SharedError:
            pass
    return frozenset(found)


def doubtful(source: Source, arrays: Set[str]) -> frozenset[str]:
    """Those of them that a variable is made of before it is certain that the thread touches the element."""
    return frozenset(a for a in arrays if any(load.doubtful for load in _loads(source, _Elements(source, a))))


def as_variables(source: Source, arrays: Set[str], guard: Guard | None = None) -> dict[str, str]:
    """Let variables hold these elements, besides the arrays.

    Returns:
        The variables, by array.
    """
    variables = {a: source.names.fresh(f"{a.replace('.', '_')}_own") for a in sorted(arrays)}
    loads = [load for a in variables for load in _loads(source, _Elements(source, a))]
    before: dict[int, list[ast.stmt]] = {}
    for load in loads:
        made = [_at(assign(variables[load.array], _loaded(load.element, load.statement)), load.statement, 2)]
        if load.doubtful and guard is not None:
            made = guard(load.array, load.element, made[0])
        before.setdefault(id(load.statement), []).extend(made)
    source.local |= set(variables.values())
    writer = _Writer(variables, before)
    source.tree.body = writer.block(source.tree.body)
    return variables


def _at(made: ast.stmt, statement: ast.stmt, column: int) -> ast.stmt:
    """A statement on the line of another, at a place where the user's text has none."""
    ast.copy_location(made, statement)
    made.col_offset += column
    return made


def _loaded(element: ast.Subscript, statement: ast.stmt) -> ast.expr:
    value = ast.parse(ast.unparse(element), mode="eval").body
    for node in ast.walk(value):
        ast.copy_location(node, statement)
    return value


# --- which arrays -----------------------------------------------------------------------------------------------------


class _Elements:
    """Where a kernel touches an array: every time by the same index."""

    def __init__(self, source: Source, array: str) -> None:
        self.source, self.array = source, array
        nodes = [n for s in source.tree.body for n in ast.walk(s)]
        self.places = {id(n): n for n in _places(nodes, array)}
        if len({ast.unparse(n.slice) for n in self.places.values()}) != 1:
            raise _SharedError
        self.index = next(iter(self.places.values())).slice
        self.axes = self.index.elts if isinstance(self.index, ast.Tuple) else [self.index]
        allowed = (ast.Name, ast.Constant, ast.Tuple, ast.BinOp, ast.operator, ast.Load)
        if any(not isinstance(n, allowed) for n in ast.walk(self.index)):
            raise _SharedError
        self.names = {n.id for n in ast.walk(self.index) if isinstance(n, ast.Name)} & source.local
        for used in self.names:
            stores = [n for n in nodes if isinstance(n, ast.Name) and n.id == used and not isinstance(n.ctx, ast.Load)]
            if len(stores) + (used in source.parameters) != 1:
                raise _SharedError
        self._check_stores(nodes)

    def _check_stores(self, nodes: list[ast.AST]) -> None:
        """Each is an assignment's one target, or a part of it is."""
        stored = 0
        for node in nodes:
            if isinstance(node, (ast.Assign, ast.AugAssign)) and len(targets(node)) == 1:
                stored += element_of(targets(node)[0], self.places) is not None
            elif isinstance(node, ast.Call) and any(id(a) in self.places for a in node.args):
                called = self.source.meaning(node.func)
                if is_random(builtin_name(called)) or (
                    is_function(called) and any(map(is_reference, parameters(called).values()))
                ):
                    raise _SharedError
        if stored != sum(_is_stored(n, self.places) for n in nodes):
            raise _SharedError

    def touched_by(self, node: ast.AST) -> bool:
        return any(id(n) in self.places for n in ast.walk(node))


def _places(nodes: list[ast.AST], array: str) -> Iterable[ast.Subscript]:
    """The subscripts of an array that is nowhere taken as a whole."""
    holders = {id(n.value): n for n in nodes if isinstance(n, (ast.Attribute, ast.Subscript))}
    for node in nodes:
        path = _path(node)
        if path is None or not f"{array}.".startswith(f"{path}."):
            continue
        holder = holders.get(id(node))
        if path == array and isinstance(holder, ast.Subscript):
            yield holder
        elif not isinstance(holder, ast.Attribute) or (path == array and holder.attr not in ("shape", "ndim", "dtype")):
            raise _SharedError


def _path(node: ast.AST) -> str | None:
    """A name, or the field of a struct that has one."""
    if isinstance(node, ast.Attribute):
        owner = _path(node.value)
        return None if owner is None else f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def element_of(target: ast.AST, places: Mapping[int, ast.Subscript]) -> ast.Subscript | None:
    """The element that a chain of subscripts and attributes begins with."""
    while isinstance(target, (ast.Subscript, ast.Attribute)):
        if id(target) in places:
            assert isinstance(target, ast.Subscript)
            return target
        target = target.value
    return None


def _is_stored(node: ast.AST, places: Mapping[int, ast.Subscript]) -> bool:
    return (
        isinstance(node, (ast.Subscript, ast.Attribute))
        and not isinstance(node.ctx, ast.Load)
        and element_of(node, places) is not None
    )


# --- where the variable gets what the element held --------------------------------------------------------------------


@dataclass(frozen=True)
class _Load:
    """Before this statement the variable gets what the element holds."""

    statement: ast.stmt
    array: str
    element: ast.Subscript
    doubtful: bool
    """The thread may touch no such element after all."""


def _loads(source: Source, elements: _Elements) -> list[_Load]:
    return _in_block(elements, source.tree.body, set(source.parameters))


def _in_block(elements: _Elements, body: list[ast.stmt], known: set[str]) -> list[_Load]:
    touching = [s for s in body if elements.touched_by(s)]
    if not touching:
        return []
    first = touching[0]
    known = known | _assigned(body[: body.index(first)])
    if len(touching) == 1 and isinstance(first, ast.If) and not elements.touched_by(first.test):
        return [*_in_block(elements, first.body, known), *_in_block(elements, first.orelse, known)]
    if len(touching) == 1 and isinstance(first, ast.For) and _is_distinct(elements, first):
        return _in_block(elements, first.body, known | _assigned([first]))
    if not elements.names <= known:
        raise _SharedError
    if (
        isinstance(first, ast.Assign)
        and id(first.targets[0]) in elements.places
        and not elements.touched_by(first.value)
    ):
        return []
    element = next(iter(elements.places.values()))
    return [_Load(first, elements.array, element, not _is_sure(elements, body[body.index(first) :]))]


def _assigned(body: Iterable[ast.stmt]) -> set[str]:
    return {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}


def _is_distinct(elements: _Elements, loop: ast.For) -> bool:
    """Whether each turn of a loop touches another element."""
    call, target = loop.iter, loop.target
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "range" or not isinstance(target, ast.Name):
        return False
    if elements.touched_by(call) or not any(isinstance(a, ast.Name) and a.id == target.id for a in elements.axes):
        return False
    # Counted from 0 on, so that no index stands for an element from the end.
    start = call.args[0]
    return len(call.args) == 1 or (len(call.args) == 2 and isinstance(start, ast.Constant))


def _is_sure(elements: _Elements, body: list[ast.stmt]) -> bool:
    """Whether statements touch the element on every way through them."""
    for statement in body:
        head = {ast.If: "test", ast.While: "test", ast.For: "iter"}.get(type(statement))
        if elements.touched_by(getattr(statement, head) if head else statement):
            return True
        if isinstance(statement, ast.If) and all(_is_sure(elements, b) for b in (statement.body, statement.orelse)):
            return True
        if any(isinstance(n, (ast.Return, ast.Break, ast.Continue)) for n in ast.walk(statement)):
            return False
    return False


# --- writing ----------------------------------------------------------------------------------------------------------


class _Writer(ast.NodeTransformer):
    def __init__(self, variables: Mapping[str, str], before: Mapping[int, list[ast.stmt]]) -> None:
        self.variables, self.before = variables, before

    def _variable(self, node: ast.AST) -> str | None:
        return self.variables.get(_path(node.value) or "") if isinstance(node, ast.Subscript) else None

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        variable = self._variable(node)
        if variable is not None and isinstance(node.ctx, ast.Load):
            return ast.copy_location(name(variable), node)
        return self.generic_visit(node)

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [made for s in body for made in (*self.before.get(id(s), ()), *self._statement(s))]

    def _statement(self, statement: ast.stmt) -> list[ast.stmt]:
        if isinstance(statement, (ast.If, ast.For, ast.While)):
            for part in ("test", "iter"):
                if hasattr(statement, part):
                    setattr(statement, part, self.visit(getattr(statement, part)))
            statement.body, statement.orelse = self.block(statement.body), self.block(statement.orelse)
            return [statement]
        element: ast.AST | None = None
        if isinstance(statement, (ast.Assign, ast.AugAssign)):
            element = targets(statement)[0]
            while isinstance(element, (ast.Subscript, ast.Attribute)) and self._variable(element) is None:
                element = element.value
        variable = None if element is None else self._variable(element)
        if variable is None:
            return [self.visit(statement)]
        assert isinstance(statement, (ast.Assign, ast.AugAssign))
        assert isinstance(element, ast.Subscript)
        stored = ast.Assign([ast.Subscript(element.value, element.slice, ast.Store())], name(variable))
        element.ctx = ast.Load()
        target, value = self.visit(targets(statement)[0]), self.visit(statement.value)
        own: ast.stmt
        if isinstance(target, ast.Name):
            if isinstance(statement, ast.AugAssign):
                value = ast.copy_location(ast.BinOp(target, statement.op, value), statement)
            own = assign(variable, value)
        elif isinstance(statement, ast.Assign):
            own = ast.Assign([target], value)
        else:
            own = ast.AugAssign(target, statement.op, value)
        return [_at(own, statement, 1), ast.copy_location(stored, statement)]
