"""What the analysis asks of Warp: the source of kernels and functions, types, and which object a name means.

Everything here reads attributes that Warp sets when a kernel or function is declared. Nothing builds, initialises or
generates code.
"""

from __future__ import annotations

import ast
import builtins
import functools
import types
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import warp as wp
import warp._src.codegen as _codegen
import warp._src.context as _context
import warp._src.types as _types

from .forms import ALL, NONE, Affine, Arg, Unknown, Whole
from .model import Site
from .values import NOTHING, PLAIN, Abstract, Array, Builtin, Object, Ref, Struct, Value

CONDITIONAL_LOSES_LOADS = tuple(int(part) for part in wp.config.version.split(".")[:2]) < (1, 17)
"""This Warp passes no gradient to an array element that is a branch of a conditional expression by itself."""

_FLOATS = (wp.float16, wp.float32, wp.float64, getattr(wp, "bfloat16", wp.float16), float)
_SCALARS = {float: wp.float32, int: wp.int32, bool: wp.bool}
_SMALL_INTS = (wp.int8, wp.uint8, wp.int16, wp.uint16)


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


def code_of(adjoint: Any) -> Code:
    """The code behind an ``adj``, made once."""
    code = _codes.get(adjoint)
    if code is None:
        body = tuple(adjoint.tree.body[0].body)
        code = _codes[adjoint] = Code(
            func=adjoint.func,
            body=body,
            file=str(adjoint.filename),
            # Warp doesn't note the line of an overload.
            first_line=int(adjoint.fun_lineno) or int(adjoint.func.__code__.co_firstlineno),
            lines=tuple(adjoint.source_lines),
            stored_into=frozenset(_stored_into(body)),
            looped=frozenset(assigned(_loop_bodies(body))),
            closure=_codegen.get_closure_vars(adjoint.func),
        )
    return code


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


def is_array(warp_type: Any) -> bool:
    return bool(_types.is_array(warp_type))


def is_struct(warp_type: Any) -> bool:
    return isinstance(warp_type, _codegen.Struct)


def is_reference(warp_type: Any) -> bool:
    return bool(_types.is_reference(warp_type))


def is_generic(warp_type: Any) -> bool:
    return warp_type is Any or any(warp_type is t for t in (_types.Scalar, _types.Float, _types.Int))


def holds_floats(dtype: Any) -> bool:
    """Whether elements of this type can carry a gradient; True where it can't be told."""
    if dtype is None or dtype is Any:
        return True
    if is_struct(dtype):
        return any(holds_floats(variable.type) for variable in dtype.vars.values())
    if is_array(dtype):
        return holds_floats(dtype.dtype)
    scalar = getattr(dtype, "_wp_scalar_type_", dtype)
    if isinstance(scalar, type) and scalar in _FLOATS:
        return True
    return not (isinstance(scalar, type) and (scalar in _types.scalar_types or scalar in (int, bool, wp.bool)))


def known_type(warp_type: Any) -> Any:
    """The type of a number or vector; None for anything else."""
    warp_type = _SCALARS.get(warp_type, warp_type) if isinstance(warp_type, type) else None
    return warp_type if warp_type is not None and _types.type_is_value(warp_type) else None


def cast_type(name: str) -> Any:
    """The type that a cast of this name makes."""
    return known_type({"float": float, "int": int, "bool": bool}.get(name) or getattr(wp, name, None))


def component_type(warp_type: Any, indices: int) -> Any:
    """The type of a part of a vector or matrix."""
    shape = getattr(warp_type, "_shape_", ())
    return getattr(warp_type, "_wp_scalar_type_", None) if len(shape) == indices else None


def adds_atomically(dtype: Any) -> bool:
    """Whether ``x[i] += v`` on elements of this type is an atomic addition."""
    scalar = getattr(dtype, "_wp_scalar_type_", dtype)
    return not (isinstance(scalar, type) and scalar in _SMALL_INTS)


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
    if warp_type is int or (isinstance(warp_type, type) and warp_type in _types.int_types):
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

    for argument in kernel.adj.args:
        visit(argument.label, argument.type)
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Names


def lookup(code: Code, name: str) -> Any:
    """What a free name means to Warp: closure, globals, the warp namespace, Python's builtins, Warp's builtins."""
    found = code.closure.get(name)
    if found is None:
        found = code.func.__globals__.get(name)
    if found is None:
        found = getattr(wp, name, None)
    if found is None and name in _context.builtin_functions:
        return _context.builtin_functions[name]
    if found is None:
        found = getattr(builtins, name, None)
    return found


def member(owner: Any, name: str) -> Any:
    """An attribute of a module, type or other object; builtins that are no attributes of ``warp`` included."""
    found = getattr(owner, name, None)
    if found is None and owner is wp:
        found = _context.builtin_functions.get(name)
    return found


def is_function(value: Any) -> bool:
    return isinstance(value, wp.Function)


def as_abstract(value: Any) -> Abstract:
    """A Python object met while compiling, as a value of the kernel."""
    if is_function(value):
        if value.is_builtin():
            return Builtin(value.key)
        return Object(value)
    if isinstance(value, (bool, int)):
        return Value(Affine(None, int(value)), const=value, type=_SCALARS.get(type(value)))
    if isinstance(value, (types.ModuleType, type)) or callable(value):
        return Object(value)
    if _types.is_value(value):
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


def grad_target(value: Any) -> Any:
    """The function whose gradient a handle made by ``wp.grad`` computes."""
    return value.func if isinstance(value, _context.GradWrapper) else None


def is_type(value: Any) -> bool:
    """Whether calling it makes a number, vector or matrix."""
    return isinstance(value, type) or hasattr(value, "_wp_generic_type_str_")


# ---------------------------------------------------------------------------------------------------------------------
# Functions


@dataclass(frozen=True)
class Overload:
    """What Warp says of a builtin for arguments of certain types."""

    differentiable: bool = True
    """It has an adjoint."""
    returns: Any = None
    """The type of its result, where that is known."""


@functools.cache
def overload(name: str, given: tuple[Any, ...]) -> Overload:
    """A builtin called with arguments of these types (None: not known), where several fit, the least that they have."""
    function = _context.builtin_functions.get(name)
    if function is None:
        return Overload()
    every = getattr(function, "overloads", None) or [function]
    fitting = [f for f in every if _takes(f, given)] or every
    differentiable = all(f.is_differentiable for f in fitting)
    if None in given:
        fixed = {getattr(f, "value_type", None) for f in fitting}
        return Overload(differentiable, known_type(fixed.pop()) if len(fixed) == 1 else None)
    try:
        returns = fitting[0].value_func(dict(zip(fitting[0].input_types, given, strict=False)), {})
    except Exception:  # Warp's own function of a builtin, asked with less than Warp gives it
        returns = None
    return Overload(differentiable, known_type(returns))


def _takes(function: Any, given: tuple[Any, ...]) -> bool:
    wanted = tuple(function.input_types.values())
    if len(given) > len(wanted):
        return False
    return all(t is None or _types.types_equal_generic(w, t) for w, t in zip(wanted, given, strict=False))


def mesh_array(warp_type: Any, name: str) -> Any:
    """The type of an array that a mesh holds."""
    variable = wp.Mesh.vars.get(name) if warp_type is wp.Mesh else None
    return None if variable is None else variable.type


def declared_overloads(function: Any) -> list[Any]:
    """The distinct definitions behind a ``wp.func``'s name: instances of one generic definition count once."""
    seen: dict[int, Any] = {}
    for overload in (
        *getattr(function, "user_templates", {}).values(),
        *getattr(function, "user_overloads", {}).values(),
    ):
        seen.setdefault(id(overload.func), overload)
    return list(seen.values()) or [function]


def parameters(function: Any) -> dict[str, Any]:
    return dict(function.input_types)


def max_unroll(kernel: Any) -> int:
    options = {**kernel.module.options, **kernel.options}
    limit = options.get("max_unroll", wp.config.max_unroll)
    return int(limit) if isinstance(limit, int) else 16


def overwrites_are_copies(kernel: Any) -> bool:
    """Whether storing into a vector's component makes a new vector (``enable_vector_component_overwrites``)."""
    options = {**kernel.module.options, **kernel.options}
    name = "enable_vector_component_overwrites"
    return bool(options.get(name, getattr(wp.config, name, False)))


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
