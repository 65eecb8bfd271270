"""Expressions and stores whose indices are compared."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import warp as wp

from ..effects.chains import dotted
from ..effects.model import Site
from ..frozen import frozen
from ..private import warp_built, warp_types
from . import bounds_functions
from .source import definition, make_func, users_site
from .tangent_scope import Scope
from .trees import at, calling, chain, is_stored, name, parsed, rebuilt, store, targets


@frozen
class Index:
    """An index that is compared: where it is, of what, and on which axis."""

    site: Site
    array: str
    axis: int


@dataclass
class Notes:
    """What is noted of one kernel and the functions that it calls."""

    indices: list[Index] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    loads: dict[Any, Any] = field(default_factory=dict)
    """The functions that read an element, by its type and the array's rank."""
    tiles: bool = False
    """The threads of a block work together."""

    def leave(self, what: str, site: Site) -> None:
        """Note what stays as it is."""
        self.unchecked.append(f"{what} ({site})")


Part = str | ast.expr
"""A step from an element to a part of it: a field, or an index."""
Component = Callable[[ast.expr, int, str, int], ast.expr]
"""Writes an index into what has a known size, of the name, on the axis."""


class Expressions:
    """Writes the expressions and stores of one function."""

    def __init__(
        self,
        scope: Scope,
        notes: Notes,
        function: Callable[[Any, Site], Any],
        watch: str,
        proven: Collection[tuple[str, int]],
    ) -> None:
        """``function``: the version of a function of the user's that compares its indices; None where there is none."""
        self.scope, self.notes, self.function, self.watch, self.typed = scope, notes, function, watch, scope.typed
        stored = scope.code.bound
        fields = (n for n in ast.walk(scope.typed.tree) if isinstance(n, ast.Attribute) and is_stored(n))
        other = stored | {(dotted(field) or "").split(".")[0] for field in fields}
        self.proven = {p for p in proven if p[0].split(".")[0] not in other}
        self.locals = stored | set(self.typed.arguments)
        self.count = 0
        """How many indices, and calls that compare some, there are so far."""

    def of(self, node: Any) -> Any:
        """An expression, or any other node, as a fresh one."""
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, (ast.Name, ast.Constant)):
            return self.scope.plain_tree(node)
        called = self.typed.called.get(id(node))
        if called is not None and not called.is_builtin() and isinstance(node, (ast.BinOp, ast.UnaryOp)):
            site = self.scope.code.site(node)
            if self.function(called, site) is not None:
                self.notes.leave(f"the operator '{called.key}'", site)
        return self._parts(node)

    def _parts(self, node: Any) -> Any:
        """The same node of new parts."""
        return rebuilt(node, self.of)

    # --- types --------------------------------------------------------------------------------------------------------

    def kind(self, node: ast.AST) -> Any:
        """The type of an expression; None where it isn't known, as of what is never run."""
        found = self.typed.type_of(node)
        if found is None and isinstance(node, ast.Name):
            return self.typed.locals.get(node.id) or self.typed.arguments.get(node.id)
        if found is None and isinstance(node, ast.Attribute):
            return (warp_types.struct_fields(self.kind(node.value)) or {}).get(node.attr)
        return found

    def _is_index(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Slice) or warp_types.is_int(warp_built.strict_type(self.kind(node)))

    # --- indices ------------------------------------------------------------------------------------------------------

    def _note(self, node: ast.AST, array: str, axis: int) -> int:
        """The number of an index that is compared."""
        code = self.scope.code
        self.notes.indices.append(Index(users_site(code.func, code.site(node)), array, axis))
        self.count += 1
        return len(self.notes.indices) - 1

    def _wide(self, node: ast.expr) -> ast.expr:
        return calling(self.scope.give(bounds_functions.wide, "wide"), self.of(node))

    def _kept(self, node: ast.expr, size: ast.expr, array: str, axis: int) -> ast.expr:
        """An index that is kept inside."""
        number = ast.Constant(self._note(node, array, axis))
        return calling(self.scope.give(bounds_functions.kept, "kept"), self.watch, self._wide(node), size, number)

    def _component(self, node: ast.expr, size: int, array: str, axis: int) -> Any:
        """An index into what has a known size."""
        return self.of(node) if _is_sure(node, size) else self._kept(node, ast.Constant(size), array, axis)

    def _components(
        self, indices: Sequence[Any], sizes: Sequence[int], text: str, component: Component | None = None
    ) -> list[ast.expr]:
        of = component or self._component
        return [of(i, n, text, axis) for axis, (i, n) in enumerate(zip(indices, sizes, strict=False))]

    def _proven(self, root: ast.expr, indices: Sequence[ast.expr]) -> bool:
        path = dotted(root)
        return path is not None and all((path, axis) in self.proven for axis in range(len(indices)))

    # --- reads --------------------------------------------------------------------------------------------------------

    def _subscript(self, node: ast.Subscript) -> Any:
        root, indices = chain(node)
        kind = self.kind(root)
        if kind is None or isinstance(kind, list) or not all(map(self._is_index, indices)):
            return self._parts(node)
        fixed = warp_types.fixed_shape(kind)
        if fixed is None and not warp_types.is_plain_array(kind):
            if warp_types.is_array(kind):
                self.notes.leave(f"'{ast.unparse(root)}', which is no plain array", self.scope.code.site(node))
            return self._part(self.of(root), kind, indices, ast.unparse(root))
        count = len(fixed) if fixed is not None else kind.ndim
        own, rest = indices[:count], indices[count:]
        text = ast.unparse(root)
        if fixed is not None:
            found: ast.expr = at(self.of(root), self._components(own, fixed, text))
        elif self._proven(root, own):
            found = at(self.of(root), [self.of(i) for i in own])
        elif len(own) == count and not any(isinstance(i, ast.Slice) for i in own):
            found = self._load(root, own, kind)
        elif dotted(root) is not None or all(isinstance(i, ast.Slice) for i in own):
            found = at(self.of(root), [self._view_index(root, i, axis) for axis, i in enumerate(own)])
        else:
            self.notes.leave(f"a view of '{text}'", self.scope.code.site(node))
            found = at(self.of(root), [self.of(i) for i in own])
        return self._part(found, kind.dtype, rest, f"{text}[{', '.join(map(ast.unparse, own))}]")

    def _view_index(self, root: ast.expr, index: ast.expr, axis: int) -> Any:
        """An index that makes a view, which touches nothing; Warp fits slices itself."""
        if isinstance(index, ast.Slice):
            return self.of(index)
        size = ast.Subscript(ast.Attribute(self.of(root), "shape", ast.Load()), ast.Constant(axis), ast.Load())
        return self._kept(index, size, ast.unparse(root), axis)

    def _load(self, root: ast.expr, indices: Sequence[ast.expr], kind: Any) -> ast.expr:
        wide = [self._wide(i) for i in indices]
        first = len(self.notes.indices)
        own = self._conditions(root, indices)[1]
        key = (warp_built.strict_type(kind.dtype), kind.ndim)
        if key not in self.notes.loads:
            types = {"array": _array_type(kind), **dict.fromkeys(own, wp.int64), "first": int}
            conditions = [f"inside(watch, {i}, array.shape[{axis}], first + {axis})" for axis, i in enumerate(own)]
            body = [f"return {_element(own)}", f"return {_zero(kind.dtype)}"]
            self.notes.loads[key] = self._function("load", types, conditions, body, {"Element": key[0]})
        made = self.notes.loads[key]
        return self._call_made(made, self.of(root), *wide, ast.Constant(first))

    def _call_made(self, made: Any, *arguments: ast.expr) -> ast.Call:
        return calling(self.scope.give(made, made.key), self.watch, *arguments)

    def _conditions(self, root: ast.expr, indices: Sequence[ast.expr]) -> tuple[list[str], list[str]]:
        """What must hold of an element's indices, and their names."""
        own = [f"i{axis}" for axis in range(len(indices))]
        text = ast.unparse(root)
        found = [
            f"inside(watch, {own[axis]}, array.shape[{axis}], {self._note(index, text, axis)})"
            for axis, index in enumerate(indices)
        ]
        return found, own

    def _function(
        self, title: str, types: dict[str, Any], conditions: list[str], body: list[str], given: dict[str, Any]
    ) -> Any:
        """A function that does something where conditions hold: the first line of ``body``, else the rest."""
        own = f"{title}_{len(self.notes.indices)}"
        lines = [f"if {' and '.join(conditions)}:", f"    {body[0]}", *body[1:]]
        text = definition(own, ["watch", *types], lines)
        given = {**self.scope.given, "inside": bounds_functions.inside, "warp": wp, **given}
        annotations = {"watch": bounds_functions.Watch, **types}
        return make_func(self.scope.code.func, text, own, given, annotations)

    # --- calls --------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Any:
        if self.scope.is_python(node):
            return self.scope.plain_tree(node)
        called = self.typed.called.get(id(node))
        if called is None:
            return self._parts(node)
        site = self.scope.code.site(node)
        if called.is_builtin():
            self.notes.tiles = self.notes.tiles or called.key.startswith("tile")
            found = self._atomic(node, called) if called.key.startswith("atomic_") else None
            return found or self._parts(node)
        if id(node) in self.typed.ambiguous:
            self.notes.leave(f"the function '{called.key}': another one in another turn", site)
            return self._parts(node)
        made = self.function(called, site)
        found = self._parts(node)
        if made is not None:
            self.count += 1
            found.func = name(self.scope.give(made, made.key))
            found.args.insert(0, name(self.watch))
        return found

    def _atomic(self, node: ast.Call, called: Any) -> ast.expr | None:
        """``wp.atomic_add(x, i, value)`` and its kin."""
        parameters = list(called.input_types)
        given = dict(zip(parameters, node.args, strict=False)) | {k.arg: k.value for k in node.keywords}
        arguments = [given[p] for p in parameters if p in given]
        kind = self.kind(arguments[0])
        fixed = warp_types.fixed_shape(kind)
        if fixed is not None and not node.keywords:
            array, *rest = node.args
            items = self._components(rest, fixed, ast.unparse(array))
            return ast.Call(self.of(node.func), [self.of(array), *items, *map(self.of, rest[len(fixed) :])], [])
        if fixed is not None or not warp_types.is_plain_array(kind):
            self.notes.leave(f"'{called.key}' of what is no plain array", self.scope.code.site(node))
            return None
        own, values = arguments[1 : 1 + kind.ndim], arguments[1 + kind.ndim :]
        if self._proven(arguments[0], own) or not all(map(self._is_index, own)):
            return None
        wide = [self._wide(i) for i in own]
        conditions, names = self._conditions(arguments[0], own)
        types, texts, passed = {"array": _array_type(kind), **dict.fromkeys(names, wp.int64)}, [], []
        for k, value in enumerate(values):
            text = self._constant(value) or f"v{k}"
            if text == f"v{k}":
                types[text] = self.kind(value)
                passed.append(self.of(value))
            texts.append(text)
        call = f"return warp.{called.key}({', '.join(['array', *map(_narrow, names), *texts])})"
        body = [call, f"return {_zero(kind.dtype)}"]
        made = self._function(called.key, types, conditions, body, {"Element": warp_built.strict_type(kind.dtype)})
        return self._call_made(made, self.of(arguments[0]), *wide, *passed)

    def _constant(self, node: ast.expr) -> str | None:
        """The text of a value that is the same wherever it stands: Warp takes a constant where it takes no variable."""
        parts = list(ast.walk(node))
        if any(isinstance(n, ast.Call) or (isinstance(n, ast.Name) and n.id in self.locals) for n in parts):
            return None
        return self.scope.plain(node)

    # --- stores -------------------------------------------------------------------------------------------------------

    def store(self, node: ast.Assign | ast.AugAssign) -> Any:
        """An assignment."""
        target = targets(node)[0]
        found = self._element_of(target)
        if found is None:  # a variable, or a part of one
            made = self._parts(node)
            if isinstance(target, (ast.Subscript, ast.Attribute)):
                return store(node, targets(made)[0], made.value)
            return made
        root, own, parts, kind = found
        value = self.kind(node.value)
        plain = value is None or isinstance(value, list) or warp_types.is_array(value) or warp_built.tile_of(value)
        if len(own) < kind.ndim or not all(self._is_index(i) and not isinstance(i, ast.Slice) for i in own) or plain:
            if value is not None:
                self.notes.leave(f"a store to several elements of '{ast.unparse(root)}'", self.scope.code.site(node))
            return self.scope.plain_tree(node)
        if self._proven(root, own):
            place = self._part(at(self.of(root), [self.of(i) for i in own]), kind.dtype, parts, ast.unparse(target))
            return store(node, place, self.of(node.value))
        return self._store(node, root, own, parts, kind)

    def _element_of(self, target: ast.expr) -> tuple[ast.expr, list[ast.expr], list[Part], Any] | None:
        """The array behind a target, the indices of the element, and the steps from there; None for a local."""
        parts: list[Part] = []
        node = target
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            if isinstance(node, ast.Attribute):
                parts.insert(0, node.attr)
                node = node.value
                continue
            node, indices = chain(node)
            kind = self.kind(node)
            if warp_types.is_plain_array(kind) and warp_types.fixed_shape(kind) is None:
                return node, indices[: kind.ndim], [*indices[kind.ndim :], *parts], kind
            parts = [*indices, *parts]
        return None

    def _part(
        self,
        place: ast.expr,
        kind: Any,
        parts: Sequence[Part],
        text: str,
        component: Component | None = None,
    ) -> ast.expr:
        """A part of an element, or of a vector, matrix, quaternion or transform."""
        rest = list(parts)
        while rest:
            step = rest[0]
            if isinstance(step, str):
                place, kind = ast.Attribute(place, step, ast.Load()), (warp_types.struct_fields(kind) or {}).get(step)
                del rest[0]
                continue
            sizes = getattr(kind, "_shape_", ()) if hasattr(kind, "_wp_scalar_type_") else ()
            indices = list(itertools.takewhile(lambda part: not isinstance(part, str), rest))[: len(sizes) or None]
            found = self._components(indices, sizes, text, component) or [self.of(index) for index in indices]
            place, kind, rest = at(place, found), None, rest[len(indices) :]
        return place

    def _store(
        self, node: ast.Assign | ast.AugAssign, root: ast.expr, own: list[ast.expr], parts: list[Part], kind: Any
    ) -> ast.stmt:
        wide = [self._wide(i) for i in own]
        conditions, names = self._conditions(root, own)
        types: dict[str, Any] = {"array": _array_type(kind), **dict.fromkeys(names, wp.int64)}

        def component(index: ast.expr, size: int, text: str, axis: int) -> Any:
            if _is_sure(index, size):
                return self.of(index)
            own = f"c{len(types)}"
            types[own] = wp.int64
            wide.append(self._wide(index))
            conditions.append(f"inside(watch, {own}, {size}, {self._note(index, text, axis)})")
            return parsed(_narrow(own))

        place = parsed(_element(names))
        target = targets(node)[0]
        text = ast.unparse(target.value if isinstance(target, ast.Subscript) else root)
        place = self._part(place, kind.dtype, parts, text, component)
        constant = self._constant(node.value)
        statement = ast.unparse(ast.fix_missing_locations(store(node, place, parsed(constant or "value"))))
        arguments = [self.of(root), *wide]
        if constant is None:  # in the order in which Warp evaluates them
            first = isinstance(node, ast.Assign)
            kind_of = {"value": self.kind(node.value)}
            types = {**kind_of, **types} if first else {**types, **kind_of}
            arguments.insert(0 if first else len(arguments), self.of(node.value))
        made = self._function("store", types, conditions, [statement], {})
        return ast.Expr(self._call_made(made, *arguments))


def _array_type(kind: Any) -> Any:
    return warp_types.array_annotation(kind.dtype, kind.ndim)


def _narrow(index: str) -> str:
    return f"warp.int32({index})"


def _element(indices: Sequence[str]) -> str:
    return f"array[{', '.join(map(_narrow, indices))}]"


def _zero(dtype: Any) -> str:
    return "Element()" if warp_types.is_struct(dtype) or hasattr(dtype, "_wp_scalar_type_") else "Element(0)"


def _is_sure(node: ast.expr, size: int) -> bool:
    """Whether an index into what has ``size`` components needs no look. Warp fits slices of them when it builds."""
    if isinstance(node, ast.Slice) or size == 0:
        return True
    try:
        found = ast.literal_eval(node)
    except (ValueError, TypeError):
        return False
    return type(found) is int and -size <= found < size
