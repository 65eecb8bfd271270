"""Pieces of syntax trees: made, taken apart, and gone through."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Loop = ast.For | ast.While
Place = tuple[int, int]
Store = ast.Assign | ast.AugAssign


def place(node: ast.AST) -> Place:
    """Where a loop or a statement of the user's begins."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


# --- making -----------------------------------------------------------------------------------------------------------


def parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def loaded(node: ast.expr) -> ast.expr:
    """The value of an expression or of a target, as a fresh tree."""
    return parsed(ast.unparse(node))


def name(identifier: str) -> ast.Name:
    return ast.Name(identifier, ast.Load())


def calling(function: str, *arguments: str | ast.expr) -> ast.Call:
    return ast.Call(name(function), [name(a) if isinstance(a, str) else a for a in arguments], [])


def together(items: Sequence[ast.expr]) -> ast.expr:
    """Several values or indices as one: the opposite of ``items_of``."""
    return items[0] if len(items) == 1 else ast.Tuple(list(items), ast.Load())


def at(node: ast.expr, indices: Sequence[ast.expr], context: ast.expr_context | None = None) -> ast.Subscript:
    """An element, or a view."""
    return ast.Subscript(node, together(indices), context or ast.Load())


def stored(identifiers: Sequence[str]) -> ast.expr:
    """A variable as a target, or several."""
    names: list[ast.expr] = [ast.Name(n, ast.Store()) for n in identifiers]
    return names[0] if len(names) == 1 else ast.Tuple(names, ast.Store())


def assign(identifier: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([stored([identifier])], value)


def store(like: Store, target: ast.expr, value: ast.expr) -> ast.Assign | ast.AugAssign:
    """A statement as another one is, of another target and value."""
    assert isinstance(target, (ast.Name, ast.Attribute, ast.Subscript))
    target.ctx = ast.Store()
    return ast.AugAssign(target, like.op, value) if isinstance(like, ast.AugAssign) else ast.Assign([target], value)


def placed(made: ast.stmt, statement: ast.stmt, column: int) -> ast.stmt:
    """A statement on the line of another, at a place where the user's text has none."""
    for node in ast.walk(made):
        if not hasattr(node, "lineno"):
            ast.copy_location(node, statement)
    ast.copy_location(made, statement)
    made.col_offset += column
    return made


def compound(like: ast.If | Loop, head: ast.expr, body: list[ast.stmt], orelse: Iterable[ast.stmt] = ()) -> Any:
    """A compound statement as another one is, of another head and bodies."""
    made: Any = copy.copy(like)
    setattr(made, "iter" if isinstance(like, ast.For) else "test", head)
    made.body, made.orelse = body, list(orelse)
    return made


def rebuilt(node: Any, part: Callable[[Any], Any]) -> Any:
    """The same node, or list of nodes, of new parts."""
    if isinstance(node, list):
        return [part(item) for item in node]
    if not isinstance(node, ast.AST):
        return node
    fields = ast.iter_fields(node)
    return type(node)(**{f: part(v) if isinstance(v, ast.AST) else rebuilt(v, part) for f, v in fields})


# --- taking apart -----------------------------------------------------------------------------------------------------


def items_of(node: ast.expr) -> list[ast.expr]:
    """The items of a tuple; the one that anything else is."""
    return node.elts if isinstance(node, ast.Tuple) else [node]


def given(call: ast.Call) -> list[ast.expr]:
    """A call's arguments."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def indices_of(node: ast.Subscript) -> list[ast.expr]:
    return items_of(node.slice)


def chain(node: ast.expr) -> tuple[ast.expr, list[ast.expr]]:
    """``x`` and all indices of ``x[i][j, k]``, which are one to Warp."""
    indices: list[ast.expr] = []
    while isinstance(node, ast.Subscript):
        indices = [*indices_of(node), *indices]
        node = node.value
    return node, indices


def has_slice(node: ast.Subscript) -> bool:
    return any(isinstance(index, ast.Slice) for index in indices_of(node))


def targets(statement: ast.Assign | ast.AugAssign | ast.AnnAssign) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


# --- going through ----------------------------------------------------------------------------------------------------


def parts_of(node: ast.AST) -> list[ast.AST]:
    """The nodes right inside of a node, in order, but for whether a name is read or stored."""
    found: list[ast.AST] = []
    for name in node._fields:
        part = getattr(node, name, None) if name != "ctx" else None
        if isinstance(part, ast.AST):
            found.append(part)
        elif isinstance(part, list):
            found += [one for one in part if isinstance(one, ast.AST)]
    return found


def nodes_of(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of statements."""
    for statement in body:
        yield from ast.walk(statement)


def names_in(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def assigned_in(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that are given a value."""
    return names_in(node for node in nodes if is_stored(node))


def is_stored(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store)


def head_of(statement: ast.AST) -> Any:
    """What a compound statement looks at before its bodies; None for any other statement."""
    if isinstance(statement, (ast.If, ast.While)):
        return statement.test
    return statement.iter if isinstance(statement, ast.For) else None


def range_of(loop: ast.For) -> list[ast.expr]:
    """What a loop gives ``range``; nothing of one over anything else."""
    turns = loop.iter
    return turns.args if isinstance(turns, ast.Call) and names_in([turns.func]) == {"range"} else []


def statements_of(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements with those inside, in order."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.If, ast.For, ast.While)):
            yield from statements_of((*statement.body, *statement.orelse))
