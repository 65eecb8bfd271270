"""What the analysis asks of Warp: the source of kernels and functions, types, and which object a name means.

Everything here reads attributes that Warp sets when a kernel or function is declared. Nothing builds, initialises or
generates code.
"""

from __future__ import annotations

import ast
import types
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import warp as wp

from ..private import warp_source
from ..private.warp_source import is_function
from ..private.warp_types import (
    argument_types,
    is_array,
    is_generic,
    is_int,
    is_number,
    is_reference,
    is_struct,
    known_type,
)
from .forms import ALL, NONE, Affine, Arg, Unknown, Whole
from .model import Site
from .values import NOTHING, PLAIN, Abstract, Array, Builtin, Object, Ref, Struct, Value


@dataclass(frozen=True, eq=False)
class Code:
    """One function's source, as Warp has it."""

    func: Any
    body: tuple[ast.stmt, ...]
    file: str
    first_line: int
    lines: tuple[str, ...]
    stored_into: frozenset[str]
    """Names of which a component, element or field is assigned somewhere."""
    looped: frozenset[str]
    """Names that a loop assigns."""
    closure: dict[str, Any]

    def site(self, node: ast.AST) -> Site:
        row = getattr(node, "lineno", 1)
        text = self.lines[row - 1].strip() if 0 < row <= len(self.lines) else ""
        return Site(self.file, self.first_line + row - 1, text, getattr(node, "col_offset", 0))

    def text(self, node: ast.AST) -> str:
        try:
            return ast.unparse(node)
        except (ValueError, RecursionError, TypeError):
            return "?"


_codes: weakref.WeakKeyDictionary[Any, Code] = weakref.WeakKeyDictionary()


def code_of(owner: Any) -> Code:
    """The code of a kernel or function, made once."""
    key = warp_source.definition(owner)
    code = _codes.get(key)
    if code is None:
        body = tuple(warp_source.tree_of(owner).body)
        file, first_line = warp_source.source_location(owner)
        function = warp_source.python_function(owner)
        code = _codes[key] = Code(
            func=function,
            body=body,
            file=file,
            # Warp doesn't note the line of an overload.
            first_line=first_line or int(function.__code__.co_firstlineno),
            lines=warp_source.source_lines(owner),
            stored_into=frozenset(_stored_into(body)),
            looped=frozenset(assigned(_loop_bodies(body))),
            closure=warp_source.closure_of(function),
        )
    return code


def with_body(code: Code, body: Iterable[ast.stmt]) -> Code:
    """The code, with another body."""
    body = tuple(body)
    stored_into, looped = frozenset(_stored_into(body)), frozenset(assigned(_loop_bodies(body)))
    return replace(code, body=body, stored_into=stored_into, looped=looped)


def _loop_bodies(body: Iterable[ast.stmt]) -> Iterable[ast.AST]:
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, (ast.For, ast.While)):
                yield from node.body


def assigned(body: Iterable[ast.AST]) -> set[str]:
    """The names that statements assign, or store a part of."""
    found: set[str] = set(_stored_into(body := list(body)))
    for statement in body:
        found |= {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return found


def _stored_into(body: Iterable[ast.AST]) -> Iterable[str]:
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store):
                base: ast.expr = node
                while isinstance(base, (ast.Subscript, ast.Attribute)):
                    base = base.value
                if isinstance(base, ast.Name):
                    yield base.id
            elif isinstance(node, ast.Expr) and (store := setter_as_store(node)) is not None:
                yield from _stored_into([store])


_SETTERS = {"transform_set_translation": "p", "transform_set_rotation": "q"}


def setter_as_store(node: ast.Expr) -> ast.Assign | None:
    """``wp.transform_set_rotation(t, q)`` as the store that it is, ``t.q = q``; None for any other statement."""
    call = node.value
    if not isinstance(call, ast.Call) or not isinstance(call.func, (ast.Attribute, ast.Name)):
        return None
    part = _SETTERS.get(call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id)
    given = [*call.args, *(keyword.value for keyword in sorted(call.keywords, key=lambda k: k.arg != "xform"))]
    if part is None or len(given) != 2:
        return None
    store = ast.Assign([ast.Attribute(given[0], part, ast.Store())], given[1])
    return ast.fix_missing_locations(ast.copy_location(store, node))


# ---------------------------------------------------------------------------------------------------------------------
# Types


def struct_field(value: Struct, name: str) -> Abstract:
    """A field of a struct value."""
    if name in value.fields:
        found: Abstract = value.fields[name]
        return found
    variable = getattr(value.type, "vars", {}).get(name)
    if variable is None:
        return Value(Unknown(f"the field '{name}'"), active=True, data=True, varies=ALL)
    path = f"{value.path}.{name}" if value.path is not None else None
    return of_type(path, variable.type)


def of_type(path: str | None, warp_type: Any) -> Abstract:
    """The value of a kernel argument (or a field of one) by its type; of a fresh local where ``path`` is None."""
    if is_reference(warp_type):
        warp_type = warp_type.value_type
    if is_array(warp_type):
        ndim = int(getattr(warp_type, "ndim", 0) or 0)
        dtype = getattr(warp_type, "dtype", None)
        if path is None:
            return Array(frozenset(), ndim, dtype, local=True)
        return Array(frozenset({Ref(path, (Whole(),) * ndim)}), ndim, dtype)
    if is_struct(warp_type):
        return Struct(warp_type, path)
    if path is None:
        return replace(PLAIN, type=known_type(warp_type))
    if is_generic(warp_type):
        # It may be an array: only an overload's types tell.
        return Array(frozenset({Ref(path, ())}), 0)
    if warp_type is int or is_int(warp_type):
        return Value(Affine(Arg(path)), type=known_type(warp_type))
    return Value(Unknown(f"the argument '{path}'", varies=NONE), type=known_type(warp_type))


def array_arguments(kernel: Any) -> dict[str, Any]:
    """The types of all array arguments and array fields of struct arguments, by dotted name.

    An argument that is annotated ``typing.Any`` alone may be an array, and is among them.
    """
    found: dict[str, Any] = {}

    def visit(path: str, warp_type: Any) -> None:
        if is_array(warp_type) or is_generic(warp_type):
            found[path] = warp_type
        elif is_struct(warp_type):
            for name, variable in warp_type.vars.items():
                visit(f"{path}.{name}", variable.type)

    for label, warp_type in argument_types(kernel):
        visit(label, warp_type)
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Names


def as_abstract(value: Any) -> Abstract:
    """A Python object met while compiling, as a value of the kernel."""
    if is_function(value):
        if value.is_builtin():
            return Builtin(value.key)
        return Object(value)
    if isinstance(value, (bool, int)):
        return Value(Affine(None, int(value)), const=value, type=known_type(type(value)))
    if isinstance(value, (types.ModuleType, type)) or callable(value):
        return Object(value)
    if is_number(value):
        number = getattr(value, "value", None)
        if isinstance(number, int):
            return Value(Affine(None, number), const=number, type=type(value))
        return Value(const=value, type=known_type(type(value)))
    return Object(value)


def is_static(value: Any) -> bool:
    return value is wp.static


def is_grad(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and value is getattr(wp, "grad", None)


def is_address_of(value: Any) -> bool:
    return value is not None and value is getattr(wp, "address_of", None)


def is_type(value: Any) -> bool:
    """Whether calling it makes a number, vector or matrix."""
    return isinstance(value, type) or hasattr(value, "_wp_generic_type_str_")


# ---------------------------------------------------------------------------------------------------------------------
# Functions


def mesh_array(warp_type: Any, name: str) -> Any:
    """The type of an array that a mesh holds."""
    variable = wp.Mesh.vars.get(name) if warp_type is wp.Mesh else None
    return None if variable is None else variable.type


def evaluate_static(code: Code, node: ast.Call, constants: dict[str, Any]) -> Any:
    """The value of ``wp.static(...)``, or NOTHING where it depends on what isn't known yet."""
    argument = node.args[0] if node.args else node.keywords[0].value if node.keywords else None
    if argument is None:
        return NOTHING
    scope = {**code.func.__globals__, **code.closure, **constants}
    try:
        compiled = compile(ast.fix_missing_locations(ast.Expression(argument)), code.file, "eval")
        return eval(compiled, scope)
    except Exception:  # the user's expression: whatever it raises, its value isn't known here
        return NOTHING
