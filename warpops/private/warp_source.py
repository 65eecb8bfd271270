"""Warp's private side: the source of kernels and functions, where it is, and what the names in it mean.

Everything here reads attributes that Warp sets when a kernel or function is declared. Nothing builds, initialises or
generates code.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import warp as wp
import warp._src.context as _context

from .warp_code import module_options
from .warp_types import is_type_of, known_type


class Defined:
    """What is no kernel, and is asked what a kernel is."""

    def __init__(self, function: Callable[..., Any], arguments: list[tuple[str, Any]]) -> None:
        self.adj = types.SimpleNamespace(
            args=[types.SimpleNamespace(label=label, type=warp_type) for label, warp_type in arguments],
            filename=function.__code__.co_filename,
            fun_lineno=function.__code__.co_firstlineno,
        )

    def defined_with(self, other: Defined) -> None:
        """It stands where the other does."""
        self.adj.filename, self.adj.fun_lineno = other.adj.filename, other.adj.fun_lineno


def definition(owner: Any) -> Any:
    """What stands for the definition of a kernel or function, as long as there is one: a key for what is made of it."""
    return owner.adj


def source_location(owner: Any) -> tuple[str, int]:
    """The file and the first line of the definition."""
    adjoint = owner.adj
    return str(getattr(adjoint, "filename", "?")), int(getattr(adjoint, "fun_lineno", 0))


def source_text(owner: Any) -> Any:
    """The source, dedented, with its decorators; None where Warp has none."""
    return owner.adj.source


def source_lines(owner: Any) -> tuple[str, ...]:
    return tuple(owner.adj.source_lines)


def tree_of(owner: Any) -> ast.FunctionDef:
    """The source as Warp has parsed it, to be read only."""
    tree: ast.FunctionDef = owner.adj.tree.body[0]
    return tree


def python_function(owner: Any) -> Callable[..., Any]:
    function: Callable[..., Any] = owner.adj.func
    return function


def returned_type(function: Any) -> Any:
    """What a function's annotations say that it returns; None where they don't."""
    return getattr(function.adj, "arg_types", {}).get("return")


def takes_references(owner: Any) -> bool:
    """Whether an argument is a ``wp.ref``."""
    return bool(getattr(owner.adj, "ref_params", None))


def closure_of(function: Any) -> dict[str, Any]:
    """The values of a function's free variables, less those that have none yet."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


# --- what names mean --------------------------------------------------------------------------------------------------


def lookup(code: Any, name: str) -> Any:
    """What a free name means to Warp: closure, globals, the warp namespace, Python's builtins, Warp's builtins."""
    found = code.given.get(name)
    if found is None and name in code.func.__code__.co_freevars:
        found = closure_of(code.func).get(name)
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


def meaning(code: Any, node: ast.AST) -> Any:
    """The object that a free name, or an attribute of one, means to Warp; None for another expression."""
    found = getattr(node, "warp_func", None)  # what wp.static came to
    if found is not None:
        return found
    if isinstance(node, ast.Name):
        return lookup(code, node.id)
    if isinstance(node, ast.Attribute):
        owner = meaning(code, node.value)
        return None if owner is None else member(owner, node.attr)
    return None


def is_function(value: Any) -> bool:
    return isinstance(value, wp.Function)


def is_users(value: Any) -> bool:
    """Whether it is a function of the user's."""
    return is_function(value) and not value.is_builtin()


def grad_target(value: Any) -> Any:
    """The function whose gradient a handle made by ``wp.grad`` computes."""
    wrapper = getattr(_context, "GradWrapper", ())
    return value.func if isinstance(value, wrapper) else None


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
    wanted = function.input_types
    left = len(wanted) - len(given)
    if left < 0 or (left and left > sum(n in (getattr(function, "defaults", None) or ()) for n in wanted)):
        return False
    for parameter, argument in zip(wanted.values(), given, strict=False):
        if argument is not None and not is_type_of(parameter, argument):
            return False
    return True


def declared_overloads(function: Any) -> list[Any]:
    """The distinct definitions behind a ``wp.func``'s name: instances of one generic definition count once."""
    seen: dict[int, Any] = {}
    for overload in (
        *getattr(function, "user_templates", {}).values(),
        *getattr(function, "user_overloads", {}).values(),
    ):
        seen.setdefault(id(overload.func), overload)
    return list(seen.values()) or [function]


def own_parts(function: Any) -> list[Any]:
    """What a function has besides its source: gradient, replay and native code."""
    names = ("custom_grad_func", "custom_replay_func", "native_snippet", "adj_native_snippet")
    return [part for name in names if (part := getattr(function, name, None)) is not None]


def parameters(function: Any) -> dict[str, Any]:
    return dict(function.input_types)


def build_state(module: Any) -> Any:
    """An object that is another one once Warp has marked a module modified; None where that can't be told."""
    return getattr(module, "hashers", None)


def max_unroll(kernel: Any) -> int:
    limit = module_options(kernel).get("max_unroll", wp.config.max_unroll)
    return int(limit) if isinstance(limit, int) else 16


def overwrites_are_copies(kernel: Any) -> bool:
    """Whether storing into a vector's component makes a new vector (``enable_vector_component_overwrites``)."""
    name = "enable_vector_component_overwrites"
    return bool(module_options(kernel).get(name, getattr(wp.config, name, False)))
