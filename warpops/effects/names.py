"""What the analysis asks of Warp: the source of kernels and functions, types, and which object a name means.

Everything here reads attributes that Warp sets when a kernel or function is declared. Nothing builds, initialises or
generates code.
"""

from __future__ import annotations

import ast
import dataclasses
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import warp as wp

from ..frozen import replace
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
from .forms import ALL, NONE, Affine, Arg, Unknown, Whole, truth_of
from .model import Site
from .reading import Body, Reader
from .tables import row
from .values import NOTHING, PLAIN, Abstract, Array, Builtin, Object, Ref, Struct, Value, variable

_T = TypeVar("_T")
_N = TypeVar("_N", bound=ast.AST)


def is_random(name: str) -> bool:
    """Whether a builtin draws a random number, which changes the state that it is given, its first argument."""
    return row(name).writes == "state"


def advances_query(name: str) -> bool:
    return "query" in name and name.endswith("_next")


@dataclass
class Kept:
    """What analyses have shown of a function, for as long as its names stand for what they stood for."""

    outside: tuple[Any, ...] | None = None
    """What they stood for; None where that may change and stay the same object."""
    summaries: dict[Any, Any] = field(default_factory=dict)

    def renew(self, outside: tuple[Any, ...] | None) -> None:
        """Forget what was shown of another outside."""
        if outside is None or self.outside is None or list(map(id, outside)) != list(map(id, self.outside)):
            self.summaries.clear()
        self.outside = outside


@dataclass(frozen=True, eq=False)
class Code:
    """One function's source, as Warp has it."""

    func: Any
    body: tuple[ast.stmt, ...]
    file: str
    first_line: int
    lines: tuple[str, ...]
    bound: frozenset[str]
    """Variables that are assigned somewhere."""
    stored_into: frozenset[str]
    """Names of which a component, element or field is assigned somewhere."""
    changed: frozenset[str]
    """Those, and names of what may be the state of random numbers."""
    written: frozenset[str]
    """Those, and names of arrays that builtins write to."""
    looped: frozenset[str]
    """Names that a loop assigns."""
    last_reads: dict[str, int]
    """The last line that reads each variable."""
    paths: frozenset[str]
    """Names that are read, and those of which attributes are, as dotted paths."""
    loops: dict[ast.AST, Body]
    given: dict[str, Any] = field(default_factory=dict)
    """What names stand for that aren't the function's."""
    sites: dict[ast.AST, Site] = field(default_factory=dict, repr=False)
    answers: dict[Any, Any] = field(default_factory=dict)
    kept: Kept = field(default_factory=Kept)

    @cached_property
    def free(self) -> dict[str, list[str]]:
        """The paths that begin with no variable, in parts."""
        local = self.func.__code__.co_varnames
        parts = {path: path.split(".") for path in self.paths}
        return {path: names for path, names in parts.items() if names[0] not in local}

    def site(self, node: ast.AST) -> Site:
        found = self.sites.get(node)
        if found is None:
            row = getattr(node, "lineno", 1)
            text = self.lines[row - 1].strip() if 0 < row <= len(self.lines) else ""
            found = self.sites[node] = Site(self.file, self.first_line + row - 1, text, getattr(node, "col_offset", 0))
        return found

    def ask(self, question: Callable[[_N], _T], node: _N) -> _T:
        """What a function of a node of the source alone answers: the same in each pass over it."""
        key = (question, node)
        found: _T = self.answers.get(key, NOTHING)
        if found is NOTHING:
            found = self.answers[key] = question(node)
        return found


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
            **Reader(body).found(),
        )
    return code


def with_body(code: Code, body: Sequence[ast.stmt]) -> Code:
    """The code, with another body."""
    return dataclasses.replace(code, body=tuple(body), **Reader(body).found())


# ---------------------------------------------------------------------------------------------------------------------
# Types


def struct_field(value: Struct, name: str) -> Abstract:
    """A field of a struct value."""
    if name in value.fields:
        found: Abstract = value.fields[name]
        return variable(found)
    declared = getattr(value.type, "vars", {}).get(name)
    if declared is None:
        return Value(Unknown(f"the field '{name}'"), active=True, data=True, varies=ALL)
    path = f"{value.path}.{name}" if value.path is not None else None
    return of_type(path, declared.type)


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
        return Value(Affine(Arg(path)), type=known_type(warp_type), truth=truth_of(path))
    form = Unknown(f"the argument '{path}'", varies=NONE)
    return Value(form, type=known_type(warp_type), truth=truth_of(path))


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
