"""A part of a local is assigned by making the local anew: what it was may still be needed."""

from __future__ import annotations

import ast
from typing import Any

from ..private import warp_built, warp_code, warp_types
from .flow import assign, name, root, targets


def _loaded(node: ast.expr) -> ast.expr:
    """The expression of a target."""
    return ast.parse(ast.unparse(node), mode="eval").body


def _stored(node: ast.expr) -> ast.expr:
    """The target of an expression."""
    made = _loaded(node)
    if isinstance(made, (ast.Name, ast.Subscript, ast.Attribute)):
        made.ctx = ast.Store()
    return made


def slice_bounds(node: ast.Slice) -> slice | None:
    """The numbers of a slice; None where it has others, or goes backwards: Warp's adjoint takes those forwards."""
    try:
        found = slice(*(None if n is None else ast.literal_eval(n) for n in (node.lower, node.upper, node.step)))
    except ValueError:
        return None
    return found if found.step is None or found.step > 0 else None


class Parts:
    """Writes the assignments of one function."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def of(self, statement: ast.stmt) -> list[ast.stmt]:
        """A component of a local is assigned by making a new local: what it was may still be needed."""
        if not isinstance(statement, (ast.Assign, ast.AugAssign)) or self.writer.uses.stores_to_array(statement):
            return [statement]
        target = targets(statement)[0]
        base = root(target)
        if not isinstance(target, (ast.Subscript, ast.Attribute)) or base is None or base not in self.writer.types:
            return [statement]
        if warp_built.is_tile(self.writer.types[base]):
            return [statement]
        value, first = statement.value, self._drawn_first(statement, target)
        if first and isinstance(statement, ast.Assign):
            value = name(self._fresh("value"))
            first.insert(0, assign(value.id, statement.value))
        if isinstance(statement, ast.AugAssign):
            value = ast.BinOp(_loaded(target), statement.op, statement.value)
        return [*first, *self._store_part(target, value)]

    def _drawn_first(self, statement: ast.stmt, target: ast.expr) -> list[ast.stmt]:
        """Take the indices out of a statement that draws: they are written more than once, and before the value."""
        uses = self.writer.uses
        made: list[ast.stmt] = []
        if not any(isinstance(n, ast.Call) and uses.changed_by(n) for n in ast.walk(statement)):
            return made
        while isinstance(target, (ast.Subscript, ast.Attribute)):
            if isinstance(target, ast.Subscript):
                several = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
                drawn = [n for n in several if not isinstance(n, (ast.Constant, ast.Name, ast.Slice))]
                names = [name(self._fresh("index")) for _ in drawn]
                made = [*(assign(n.id, index) for n, index in zip(names, drawn, strict=True)), *made]
                given = iter(names)
                indices = [next(given) if n in drawn else n for n in several]
                target.slice = ast.Tuple(indices, ast.Load()) if len(several) > 1 else indices[0]
            target = target.value
        return made

    def _fresh(self, wanted: str) -> str:
        found: str = self.writer.names.fresh(wanted)
        self.writer.source.local.add(found)
        return found

    def _store_part(self, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        """``target = value``, where the target is a variable or a part of one."""
        if isinstance(target, ast.Name):
            return [ast.Assign([target], value)]
        assert isinstance(target, (ast.Subscript, ast.Attribute))
        owner = self._type_of(target.value)
        if warp_types.struct_fields(owner) is not None and isinstance(target, ast.Attribute):
            fields = [
                value if f == target.attr else ast.Attribute(_loaded(target.value), f, ast.Load())
                for f in warp_types.struct_fields(owner) or ()
            ]
            made = ast.Call(name(self.writer.type_name(owner)), fields, [])
            return self._store_part(_stored(target.value), made)
        if isinstance(target.value, ast.Name):
            return self._store_component(target, target.value.id, owner, value)
        part = self._fresh("part")
        if owner is not None:
            self.writer.types[part] = owner
        place_in: ast.Subscript | ast.Attribute = (
            ast.Subscript(name(part), target.slice, ast.Store())
            if isinstance(target, ast.Subscript)
            else ast.Attribute(name(part), target.attr, ast.Store())
        )
        first = assign(part, _loaded(target.value))
        stored = self._store_component(place_in, part, owner, value)
        return [first, *stored, *self._store_part(_stored(target.value), name(part))]

    def _store_component(
        self, target: ast.Subscript | ast.Attribute, base: str, owner: Any, value: ast.expr
    ) -> list[ast.stmt]:
        """A local vector, matrix, quaternion or transform with another component."""
        if isinstance(target, ast.Attribute):
            index = "xyzw".find(target.attr) if target.attr != "p" else -1
            if index < 0 and target.attr in ("p", "q") and owner is not None:
                parts = [value if f == target.attr else ast.Attribute(name(base), f, ast.Load()) for f in ("p", "q")]
                return [assign(base, ast.Call(name(self.writer.type_name(owner)), parts, []))]
            indices: list[ast.expr] = [ast.Constant(index)]
        else:
            indices = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
        indices = [self._slice(i, owner, axis) if isinstance(i, ast.Slice) else i for axis, i in enumerate(indices)]
        function = self.writer.named("with_component", warp_code.builtin("assign_copy"))
        return [assign(base, ast.Call(name(function), [name(base), *indices, value], []))]

    def _slice(self, node: ast.Slice, owner: Any, axis: int) -> ast.expr:
        """A slice with numbers for its bounds, as a value that Warp's builtins take."""
        bounds = slice_bounds(node)
        assert bounds is not None
        numbers: list[ast.expr] = [ast.Constant(n) for n in bounds.indices(owner._shape_[axis])]
        return ast.Call(name(self.writer.named("slice", warp_code.builtin("slice"))), numbers, [])

    def _type_of(self, node: ast.expr) -> Any:
        """The type of a variable, or of a field of one; None for other parts."""
        if isinstance(node, ast.Name):
            return self.writer.types.get(node.id)
        if isinstance(node, ast.Attribute):
            fields = warp_types.struct_fields(self._type_of(node.value))
            return None if fields is None else fields.get(node.attr)
        return None
