"""A part of a local is assigned by making the local anew: what it was may still be needed."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from ..effects.chains import root
from ..private import warp_built, warp_code, warp_types
from .trees import assign, calling, indices_of, loaded, name, targets, together


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
        owner = self.writer.types.get(root(target))
        if isinstance(target, ast.Name) or owner is None or warp_built.tile_of(owner):
            return [statement]
        value, first = statement.value, self._drawn_first(statement, target)
        if first and isinstance(statement, ast.Assign):
            value = name(self.writer.source.variable("value"))
            first.insert(0, assign(value.id, statement.value))
        if isinstance(statement, ast.AugAssign):
            value = ast.BinOp(loaded(target), statement.op, statement.value)
        return [*first, *self._store_part(target, value)]

    def _drawn_first(self, statement: ast.stmt, target: ast.expr) -> list[ast.stmt]:
        """Take the indices out of a statement that draws: they are written more than once, and before the value."""
        made: list[ast.stmt] = []
        if not any(map(self.writer.uses.changed_by, ast.walk(statement))):
            return made
        while isinstance(target, (ast.Subscript, ast.Attribute)):
            if isinstance(target, ast.Subscript):
                indices, first = indices_of(target), []
                for axis, index in enumerate(indices):
                    if not isinstance(index, (ast.Constant, ast.Name, ast.Slice)):
                        indices[axis] = own = name(self.writer.source.variable("index"))
                        first.append(assign(own.id, index))
                made, target.slice = [*first, *made], together(indices)
            target = target.value
        return made

    def _store_part(self, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        """``target = value``, where the target is a variable or a part of one."""
        if isinstance(target, ast.Name):
            return [assign(target.id, value)]
        assert isinstance(target, (ast.Subscript, ast.Attribute))
        owner = self._type_of(target.value)
        fields = warp_types.struct_fields(owner)
        if fields is not None:
            return self._store_part(target.value, self._of_fields(target.value, owner, fields, target, value))
        if isinstance(target.value, ast.Name):
            return [assign(target.value.id, self._with(target.value, owner, target, value))]
        part = name(self.writer.source.variable("part"))
        if owner is not None:
            self.writer.types[part.id] = owner
        first = assign(part.id, loaded(target.value))
        return [first, assign(part.id, self._with(part, owner, target, value)), *self._store_part(target.value, part)]

    def _of_fields(
        self, base: ast.expr, owner: Any, fields: Iterable[str], target: ast.Subscript | ast.Attribute, value: ast.expr
    ) -> ast.expr:
        """A struct or transform with another value of one field."""
        changed = getattr(target, "attr", None)
        kept = (value if f == changed else ast.Attribute(loaded(base), f, ast.Load()) for f in fields)
        return calling(self.writer.type_name(owner), *kept)

    def _with(self, base: ast.Name, owner: Any, target: ast.Subscript | ast.Attribute, value: ast.expr) -> ast.expr:
        """A local vector, matrix, quaternion or transform with another component."""
        if isinstance(target, ast.Attribute) and target.attr in ("p", "q") and owner is not None:
            return self._of_fields(base, owner, ("p", "q"), target, value)
        if isinstance(target, ast.Attribute):
            indices: list[ast.expr] = [ast.Constant("xyzw".find(target.attr))]
        else:
            indices = [self._index(index, owner, axis) for axis, index in enumerate(indices_of(target))]
        return calling(self.writer.named(warp_code.builtin("assign_copy"), "with_component"), base, *indices, value)

    def _index(self, node: ast.expr, owner: Any, axis: int) -> ast.expr:
        """An index as it is; a slice with numbers for its bounds as a value that Warp's builtins take."""
        if not isinstance(node, ast.Slice):
            return node
        bounds = slice_bounds(node)
        assert bounds is not None
        numbers = map(ast.Constant, bounds.indices(owner._shape_[axis]))
        return calling(self.writer.named(warp_code.builtin("slice"), "slice"), *numbers)

    def _type_of(self, node: ast.expr) -> Any:
        """The type of a variable, or of a field of one; None for other parts."""
        if isinstance(node, ast.Attribute):
            return (warp_types.struct_fields(self._type_of(node.value)) or {}).get(node.attr)
        return self.writer.types.get(node.id) if isinstance(node, ast.Name) else None
