"""Elements that a thread alone reads and stores again: a variable has what they held, which the array hasn't any more."""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterable, Mapping, Set

from ..effects.chains import dotted
from ..effects.names import is_random
from ..private.warp_source import is_users, takes_references
from .flow import builtin_name
from .source import Source
from .trees import (
    assign,
    assigned_in,
    compound,
    head_of,
    is_stored,
    items_of,
    loaded,
    name,
    names_in,
    nodes_of,
    placed,
    range_of,
    store,
    targets,
)

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
            if len(_Elements(source, array).axes) == rank:
                found.add(array)
        except _SharedError:
            pass
    return frozenset(found)


def doubtful(source: Source, arrays: Set[str]) -> frozenset[str]:
    """Those of them that a variable is made of before it is certain that the thread touches the element."""
    return frozenset(a for a in arrays if any(doubtful for _, doubtful in _Elements(source, a).loads))


def as_variables(source: Source, arrays: Set[str], guard: Guard | None = None) -> dict[str, str]:
    """Let variables hold these elements, besides the arrays.

    Returns:
        The variables, by array.
    """
    variables = {a: source.names.fresh(f"{a.replace('.', '_')}_own") for a in sorted(arrays)}
    elements = [_Elements(source, a) for a in variables]
    before: dict[int, list[ast.stmt]] = {}
    for one in elements:
        for statement, doubtful in one.loads:
            value = loaded(one.element)
            for node in ast.walk(value):
                ast.copy_location(node, statement)
            made = [placed(assign(variables[one.array], value), statement, 2)]
            if doubtful and guard is not None:
                made = guard(one.array, one.element, made[0])
            before.setdefault(id(statement), []).extend(made)
    source.local |= set(variables.values())
    writer = _Writer({place: variables[one.array] for one in elements for place in one.places}, before)
    source.tree.body = writer.block(source.tree.body)
    return variables


# --- which arrays -----------------------------------------------------------------------------------------------------


class _Elements:
    """Where a kernel touches an array: every time by the same index."""

    def __init__(self, source: Source, array: str) -> None:
        self.source, self.array = source, array
        nodes = list(nodes_of(source.tree.body))
        self.places = {id(n): n for n in _places(nodes, array)}
        if len({ast.unparse(n.slice) for n in self.places.values()}) != 1:
            raise _SharedError
        self.element = next(iter(self.places.values()))
        index = self.element.slice
        self.axes = items_of(index)
        allowed = (ast.Name, ast.Constant, ast.Tuple, ast.BinOp, ast.operator, ast.Load)
        if any(not isinstance(n, allowed) for n in ast.walk(index)):
            raise _SharedError
        self.names = names_in(ast.walk(index)) & source.local
        bound = [*source.parameters, *(n.id for n in nodes if isinstance(n, ast.Name) and is_stored(n))]
        if any(bound.count(used) != 1 for used in self.names):
            raise _SharedError
        # Each store is an assignment's one target, or a part of it is.
        statements = [n for n in nodes if isinstance(n, (ast.Assign, ast.AugAssign)) and len(targets(n)) == 1]
        if self._elements(targets(n)[0] for n in statements) != self._elements(filter(is_stored, nodes)):
            raise _SharedError
        for call in nodes:
            if isinstance(call, ast.Call) and any(id(a) in self.places for a in call.args):
                called = source.called(call)
                if is_random(builtin_name(called)) or (is_users(called) and takes_references(called)):
                    raise _SharedError
        self.loads = _in_block(self, source.tree.body, set(source.parameters))

    def _elements(self, nodes: Iterable[ast.AST]) -> int:
        """How many of them are the element, or parts of it."""
        return sum(element_of(node, self.places) is not None for node in nodes)

    def touched_by(self, node: ast.AST) -> bool:
        return any(id(n) in self.places for n in ast.walk(node))


def _places(nodes: list[ast.AST], array: str) -> Iterable[ast.Subscript]:
    """The subscripts of an array that is nowhere taken as a whole."""
    holders = {id(n.value): n for n in nodes if isinstance(n, (ast.Attribute, ast.Subscript))}
    for node in nodes:
        path = dotted(node)
        if path is None or not f"{array}.".startswith(f"{path}."):
            continue
        holder = holders.get(id(node))
        if path == array and isinstance(holder, ast.Subscript):
            yield holder
        elif not isinstance(holder, ast.Attribute) or (path == array and holder.attr not in ("shape", "ndim", "dtype")):
            raise _SharedError


def element_of(target: ast.AST, places: Container[int]) -> ast.Subscript | None:
    """The element that a chain of subscripts and attributes begins with."""
    while isinstance(target, (ast.Subscript, ast.Attribute)):
        if id(target) in places:
            assert isinstance(target, ast.Subscript)
            return target
        target = target.value
    return None


# --- where the variable gets what the element held --------------------------------------------------------------------


_Load = tuple[ast.stmt, bool]
"""Before this statement the variable gets what the element holds; whether the thread may touch no such element after all."""


def _in_block(elements: _Elements, body: list[ast.stmt], known: set[str]) -> list[_Load]:
    touching = [s for s in body if elements.touched_by(s)]
    if not touching:
        return []
    first = touching[0]
    known = known | assigned_in(nodes_of(body[: body.index(first)]))
    if len(touching) == 1 and isinstance(first, ast.If) and not elements.touched_by(first.test):
        return [*_in_block(elements, first.body, known), *_in_block(elements, first.orelse, known)]
    if len(touching) == 1 and isinstance(first, ast.For) and _is_distinct(elements, first):
        return _in_block(elements, first.body, known | assigned_in(ast.walk(first)))
    if not elements.names <= known:
        raise _SharedError
    if (
        isinstance(first, ast.Assign)
        and id(first.targets[0]) in elements.places
        and not elements.touched_by(first.value)
    ):
        return []
    return [(first, not _is_sure(elements, body[body.index(first) :]))]


def _is_distinct(elements: _Elements, loop: ast.For) -> bool:
    """Whether each turn of a loop touches another element."""
    turns = range_of(loop)
    if elements.touched_by(loop.iter) or not names_in([loop.target]) & names_in(elements.axes):
        return False
    # Counted from 0 on, so that no index stands for an element from the end.
    return len(turns) == 1 or (len(turns) == 2 and isinstance(turns[0], ast.Constant))


def _is_sure(elements: _Elements, body: list[ast.stmt]) -> bool:
    """Whether statements touch the element on every way through them."""
    for statement in body:
        if elements.touched_by(head_of(statement) or statement):
            return True
        if isinstance(statement, ast.If) and all(_is_sure(elements, b) for b in (statement.body, statement.orelse)):
            return True
        if any(isinstance(n, (ast.Return, ast.Break, ast.Continue)) for n in ast.walk(statement)):
            return False
    return False


# --- writing ----------------------------------------------------------------------------------------------------------


class _Writer(ast.NodeTransformer):
    def __init__(self, variables: Mapping[int, str], before: Mapping[int, list[ast.stmt]]) -> None:
        """``variables``: by the ``id`` of each element. ``before``: by that of a statement, what comes before it."""
        self.variables, self.before = variables, before

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if id(node) in self.variables and not is_stored(node):
            return ast.copy_location(name(self.variables[id(node)]), node)
        return self.generic_visit(node)

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [made for s in body for made in (*self.before.get(id(s), ()), *self._statement(s))]

    def _statement(self, statement: ast.stmt) -> list[ast.stmt]:
        if isinstance(statement, (ast.If, ast.For, ast.While)):
            bodies = self.block(statement.body), self.block(statement.orelse)
            return [compound(statement, self.visit(head_of(statement)), *bodies)]
        if not isinstance(statement, (ast.Assign, ast.AugAssign)):
            return [self.visit(statement)]
        element = element_of(targets(statement)[0], self.variables)
        if element is None:
            return [self.visit(statement)]
        variable = self.variables[id(element)]
        stored = ast.Assign([ast.Subscript(element.value, element.slice, ast.Store())], name(variable))
        element.ctx = ast.Load()
        target, value = self.visit(targets(statement)[0]), self.visit(statement.value)
        if isinstance(target, ast.Name) and isinstance(statement, ast.AugAssign):
            value = ast.copy_location(ast.BinOp(target, statement.op, value), statement)
        own = assign(variable, value) if isinstance(target, ast.Name) else store(statement, target, value)
        return [placed(own, statement, 1), ast.copy_location(stored, statement)]
