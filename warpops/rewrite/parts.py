"""A part of a local is assigned by making the local anew: what it was may still be needed."""

from __future__ import annotations

import ast
from typing import Any

import warp as wp

from ..private import warp_built, warp_code, warp_types
from .flow import assign, name, root, targets
from .source import UnreadableError


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
        value, first = statement.value, list[ast.stmt]()
        if isinstance(statement, ast.AugAssign):
            target = self._drawn_once(target, first)
            value = ast.BinOp(_loaded(target), statement.op, value)
        elif self.writer.uses.writes(_loaded(target)):
            value = self._before(first, value, self._type_of(target))
        return [*first, *self._store_part(target, value)]

    def _drawn_once(self, target: ast.expr, first: list[ast.stmt]) -> ast.expr:
        """A target whose indices draw of no random state, nor change anything else: they do it before the value does."""
        made = _stored(target)
        for node in reversed(list(ast.walk(made))):
            if isinstance(node, ast.Subscript) and self.writer.uses.writes(node.slice):
                indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                indices = [
                    self._before(first, ast.Call(name("int"), [i], []), wp.int32) if self.writer.uses.writes(i) else i
                    for i in indices
                ]
                node.slice = ast.Tuple(indices, ast.Load()) if len(indices) > 1 else indices[0]
        return made

    def _before(self, first: list[ast.stmt], value: ast.expr, warp_type: Any) -> ast.expr:
        """A value that is made before the target is, as Warp does."""
        if warp_type is None:
            raise UnreadableError(
                "an index draws of a random state, or the like, and the type of what is stored isn't known"
            )
        made = self.writer.names.fresh("before")
        self.writer.source.local.add(made)
        self.writer.types[made] = warp_type
        first.append(assign(made, value))
        return name(made)

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
        part = self.writer.names.fresh("part")
        self.writer.source.local.add(part)
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
        """The type of a variable, of a field or a component of one; None for other parts."""
        if isinstance(node, ast.Name):
            return self.writer.types.get(node.id)
        if isinstance(node, ast.Subscript):
            indices = len(node.slice.elts) if isinstance(node.slice, ast.Tuple) else 1
            return warp_types.component_type(self._type_of(node.value), indices)
        if isinstance(node, ast.Attribute):
            fields = warp_types.struct_fields(self._type_of(node.value))
            return None if fields is None else fields.get(node.attr)
        return None
