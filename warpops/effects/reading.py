"""What the text of a function says, and of its loops: the names that they bind, read and change."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .chains import dotted, last_name, root
from .tables import row


@dataclass
class Body:
    """What the text of a loop's body says, or of a whole function's."""

    bound: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    """But for what is added to, as ``s`` in ``s += x``."""
    parts: set[str] = field(default_factory=set)
    """Names of which a component, element or field is assigned."""
    updated: set[str] = field(default_factory=set)
    """Names of arrays, or of what holds them, that builtins write to."""
    drawn: set[str] = field(default_factory=set)
    """Names of what may be the state of random numbers, which drawing one changes."""
    exits: set[type[ast.AST]] = field(default_factory=set)
    """``break``, ``continue`` and ``return``, those of loops inside too."""
    static: bool = False
    """It, or the loop's head, has ``wp.static`` expressions that wait for a loop's variable."""

    @property
    def assigned(self) -> set[str]:
        return self.bound | self.parts

    def add(self, other: Body) -> None:
        self.bound |= other.bound
        self.read |= other.read
        self.parts |= other.parts
        self.drawn |= other.drawn
        self.updated |= other.updated
        self.exits |= other.exits
        self.static |= other.static


class Reader:
    """Reads a function's text, once."""

    def __init__(self, body: Iterable[ast.stmt]) -> None:
        self.here = Body()
        self.loops: dict[ast.AST, Body] = {}
        self.last_reads: dict[str, int] = {}
        self.paths: set[str] = set()
        self.added: ast.AST | None = None
        self.read(*body)

    def found(self) -> dict[str, Any]:
        """What ``Code`` keeps of it."""
        return {
            "bound": frozenset(self.here.bound),
            "stored_into": frozenset(self.here.parts),
            "changed": frozenset(self.here.parts | self.here.drawn),
            "written": frozenset(self.here.parts | self.here.updated),
            "looped": frozenset().union(*(loop.assigned for loop in self.loops.values())),
            "last_reads": self.last_reads,
            "paths": frozenset(self.paths.union(self.last_reads)),
            "loops": self.loops,
        }

    def read(self, *nodes: ast.AST) -> None:
        here, last_reads, waiting = self.here, self.last_reads, [*nodes]
        while waiting:
            node: Any = waiting.pop()
            kind = type(node)
            if kind is not ast.Name:
                said, fields = _KINDS.get(kind, (None, ()))
                if said is not None:
                    said(self, node)
                for name in fields:
                    child = getattr(node, name, None)
                    if type(child) is list:
                        waiting += child
                    elif child is not None:
                        waiting.append(child)
            # Until Warp 1.17 the name of what wp.static came to has no context.
            elif type(getattr(node, "ctx", None)) is ast.Store:
                here.bound.add(node.id)
            else:
                if node is not self.added:
                    here.read.add(node.id)
                if node.lineno > last_reads.get(node.id, 0):
                    last_reads[node.id] = node.lineno

    def subscript(self, node: ast.Subscript | ast.Attribute) -> None:
        variable = root(node) if isinstance(node.ctx, ast.Store) else None
        if variable is not None:
            self.here.parts.add(variable)

    def attribute(self, node: ast.Attribute) -> None:
        path = dotted(node)
        if path is not None:
            self.paths.add(path)
        self.subscript(node)

    def assignment(self, node: ast.Assign | ast.AugAssign) -> None:
        self.added = added_to(node)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and self.added is None:
            self.here.read.add(node.target.id)

    def expression(self, node: ast.Expr) -> None:
        store = setter_as_store(node)
        if store is not None:
            self.read(store.targets[0])

    def call(self, node: ast.Call) -> None:
        name = last_name(node.func)
        if name == "static":
            self.here.static = True
        elif node.args and isinstance(node.args[0], ast.Name) and row(name).writes == "state":
            self.here.drawn.add(node.args[0].id)
        elif len(node.args) > 2 and isinstance(node.args[2], ast.Name) and row(name).writes == "third":
            self.here.parts.add(node.args[2].id)
        elif node.args and name.startswith(("atomic_", "tile_atomic_", "tile_store")):
            variable = root(node.args[0])
            if variable is not None:
                self.here.updated.add(variable)

    def exit(self, node: ast.AST) -> None:
        self.here.exits.add(type(node))

    def loop(self, node: ast.For | ast.While) -> None:
        around, self.here = self.here, Body()
        self.read(*((node.target, node.iter) if isinstance(node, ast.For) else (node.test,)))
        head, self.here = self.here, Body()
        self.read(*node.body)
        around.add(head)
        around.add(self.here)
        self.here.static |= head.static
        self.loops[node], self.here = self.here, around


_SAID: dict[Any, Callable[[Reader, Any], None]] = {
    ast.Subscript: Reader.subscript,
    ast.Attribute: Reader.attribute,
    **dict.fromkeys((ast.Assign, ast.AugAssign), Reader.assignment),
    ast.Expr: Reader.expression,
    ast.Call: Reader.call,
    **dict.fromkeys((ast.Break, ast.Continue, ast.Return), Reader.exit),
}
_NAMELESS = ("ctx", "op", "ops", "id", "attr", "arg", "type_comment")
_KINDS: dict[Any, tuple[Callable[[Reader, Any], None] | None, tuple[str, ...]]] = {
    kind: (_SAID.get(kind), tuple(name for name in kind._fields if name not in _NAMELESS))
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
_KINDS |= {ast.Constant: (None, ()), **dict.fromkeys((ast.For, ast.While), (Reader.loop, ("orelse",)))}
"""By the type of a node: what reads it, and the fields in which it is left to find names."""


def added_to(statement: ast.Assign | ast.AugAssign) -> ast.expr | None:
    """The ``s`` of ``s += a``, and that on the right of ``s = s + a`` and ``s = a + s``."""
    if isinstance(statement, ast.AugAssign):
        return statement.target if isinstance(statement.op, (ast.Add, ast.Sub)) else None
    value, target = statement.value, statement.targets[0]
    if not isinstance(target, ast.Name) or not isinstance(value, ast.BinOp):
        return None
    terms = {ast.Add: [value.left, value.right], ast.Sub: [value.left]}.get(type(value.op), [])
    return next((term for term in terms if isinstance(term, ast.Name) and term.id == target.id), None)


_SETTERS = {"transform_set_translation": "p", "transform_set_rotation": "q"}


def setter_as_store(node: ast.Expr) -> ast.Assign | None:
    """``wp.transform_set_rotation(t, q)`` as the store that it is, ``t.q = q``; None for any other statement."""
    call = node.value
    if not isinstance(call, ast.Call):
        return None
    part = _SETTERS.get(last_name(call.func))
    given = [*call.args, *(keyword.value for keyword in sorted(call.keywords, key=lambda k: k.arg != "xform"))]
    if part is None or len(given) != 2:
        return None
    store = ast.Assign([ast.Attribute(given[0], part, ast.Store())], given[1])
    return ast.fix_missing_locations(ast.copy_location(store, node))
