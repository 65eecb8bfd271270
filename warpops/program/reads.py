"""What a program's function calls and reads: whether its Python can say anything else the next time.

Its bytecode tells every name that it looks up. Where all of them are on the lists here, or constants, kernels and functions of
the user's that are such themselves, what the function does follows from its arguments; so a run of it can be repeated
without it, as long as the names mean the same.
"""

from __future__ import annotations

import dis
import linecache
import math
import os
import types
from collections.abc import Callable
from typing import Any

import warp as wp

from ..frozen import frozen
from ..private import warp_calls, warp_types

_BUILTINS = {
    name: vars(__import__("builtins"))[name]
    for name in (
        *("abs", "all", "any", "bool", "dict", "divmod", "enumerate", "filter", "float", "frozenset", "int"),
        *("isinstance", "len", "list", "map", "max", "min", "pow", "range", "reversed", "round", "set", "slice"),
        *("sorted", "str", "sum", "tuple", "zip", "AssertionError", "IndexError", "NotImplementedError"),
        *("RuntimeError", "StopIteration", "TypeError", "ValueError", "Exception"),
    )
}
_WARP = (
    *("launch", "launch_tiled", "copy", "clone", "zeros", "zeros_like", "ones", "ones_like", "empty", "empty_like"),
    *("full", "full_like", "Mesh", "Bvh", "HashGrid"),
)
_UTILS = tuple(name for name in warp_calls.LIBRARY if hasattr(wp.utils, name))
_ATTRIBUTES = {
    *("shape", "size", "ndim", "dtype", "device", "strides", "is_contiguous", "id", "is_cpu", "is_cuda", "T"),
    *("fill_", "zero_", "flatten", "reshape", "view", "transpose", *warp_calls.CHANGERS),
    *("append", "extend", "pop", "insert", "reverse", "items", "keys", "values", "get", "index", "count", "copy"),
}
"""Attributes of arrays, objects of Warp, numbers and containers that tell of sizes and types alone, or are followed."""
_MISSING = object()


Same = Callable[[], bool]
"""Whether something that was looked up is now what it was."""


def _same_name(space: dict[str, Any], name: str, value: Any) -> Same:
    content = _content(value)

    def same() -> bool:
        found = space.get(name, _MISSING)
        if found is not value and warp_calls.behind(found) is not value:
            return False
        return content is None or bytes(found) == content

    return same


def _same_cell(cell: Any, value: Any) -> Same:
    content = _content(value)

    def same() -> bool:
        try:
            found = cell.cell_contents
        except ValueError:
            return False
        return found is value and (content is None or bytes(found) == content)

    return same


def _same_code(function: Any) -> Same:
    """A function has its code and defaults, and no attributes, which could be read."""
    code, defaults, more = function.__code__, function.__defaults__, function.__kwdefaults__

    def same() -> bool:
        f = function
        same = f.__code__ is code and f.__defaults__ is defaults and f.__kwdefaults__ is more
        return same and not f.__dict__

    return same


@frozen
class Reads:
    """What a function reads besides its arguments."""

    why: str | None
    """The line, and what it reads or calls that isn't known to stay; None where there is none."""
    seen: tuple[Same, ...] = ()

    def same(self) -> bool:
        """Whether it would read the same now."""
        return all(same() for same in self.seen)


def reads_of(function: Any, structs: list[Any]) -> Reads:
    """What a function reads.

    Args:
        structs: the structs that its arguments are of.
    """
    look = _Look(function.__code__.co_filename)
    look.struct_types += structs
    try:
        look.function(function)
    except _UnknownError as found:
        return Reads(str(found))
    for name, line in look.attributes.items():
        if name not in _ATTRIBUTES and name not in look.fields():
            return Reads(f"{line} reads .{name}")
    for name, line in look.stores.items():
        if name not in look.fields():
            return Reads(f"{line} sets .{name}")
    return Reads(None, tuple(look.seen))


class _UnknownError(Exception):
    """A line and what is wrong with it."""


class _Look:
    """One look through a function and those that it calls."""

    def __init__(self, file: str) -> None:
        self.seen: list[Same] = []
        self.attributes: dict[str, str] = {}
        """Read of something that isn't a module, with the first line."""
        self.stores: dict[str, str] = {}
        self.struct_types: list[Any] = []
        self.file = file
        """Of the first function."""
        self._known: set[int] = set()

    def fields(self) -> set[str]:
        """The fields of structs, less those that could be something else's."""
        found: set[str] = set()
        waiting = list(self.struct_types)
        while waiting:
            fields = warp_types.struct_fields(waiting.pop()) or {}
            found |= fields.keys()
            waiting += fields.values()
        others = (wp.array, wp.Mesh, wp.Bvh, wp.HashGrid, types.FunctionType, wp.Kernel)
        return {name for name in found if not any(hasattr(kind, name) for kind in others)}

    def function(self, function: Any) -> None:
        if id(function) in self._known:
            return
        self._known.add(id(function))
        code = function.__code__
        if function.__dict__:
            raise _UnknownError(f"line {code.co_firstlineno}: {function.__name__} has attributes")
        self.seen.append(_same_code(function))
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._value(value, f"line {code.co_firstlineno}: {function.__name__} has a default {value!r}", None)
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._code(code, function.__globals__, cells)

    def _code(self, code: Any, globals_: dict[str, Any], cells: dict[str, Any]) -> None:
        line = code.co_firstlineno
        steps = list(dis.get_instructions(code))
        lines = {at: found for start, end, found in code.co_lines() if found for at in range(start, end, 2)}
        waiting = iter(enumerate(steps))
        for at, step in waiting:
            line = lines.get(step.offset, line)
            name, kind = step.argval, step.opname
            file = "" if code.co_filename == self.file else f" of {os.path.basename(code.co_filename)}"
            where = f"line {line}{file}: `{linecache.getline(code.co_filename, line).strip()}`"
            if kind in ("LOAD_GLOBAL", "LOAD_NAME") or (kind == "LOAD_DEREF" and name in cells):
                value = self._look_up(name, globals_, cells if kind == "LOAD_DEREF" else {}, where)
                length = self._follow(name, value, steps[at + 1 :], where)
                for _ in range(length):
                    next(waiting)
            elif kind in ("LOAD_ATTR", "LOAD_METHOD"):
                self.attributes.setdefault(name, where)
            elif kind == "STORE_ATTR":
                self.stores.setdefault(name, where)
            elif kind in ("STORE_DEREF", "DELETE_DEREF") and name in cells:
                raise _UnknownError(f"{where} sets {name}, which isn't its own")
            elif step.opcode in dis.hasname or kind == "LOAD_BUILD_CLASS":
                raise _UnknownError(f"{where} sets, imports or defines {name or 'a class'}")
            elif step.opcode in dis.hasfree and kind not in _CELLS:
                raise _UnknownError(f"{where} uses {name} in a way that isn't known here")
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant, globals_, cells)

    def _look_up(self, name: str, globals_: dict[str, Any], cells: dict[str, Any], where: str) -> Any:
        if name in cells:
            try:
                value = cells[name].cell_contents
            except ValueError:
                raise _UnknownError(f"{where} reads {name}, which has no value yet") from None
            self.seen.append(_same_cell(cells[name], value))
            return value
        if name in globals_:
            return self._note(globals_, name)
        if name not in _BUILTINS:
            raise _UnknownError(f"{where} uses {name}")
        self.seen.append(_same_name(globals_, name, _MISSING))
        return _BUILTINS[name]

    def _note(self, space: dict[str, Any], name: str) -> Any:
        value = warp_calls.behind(space[name])
        self.seen.append(_same_name(space, name, value))
        return value

    def _follow(self, name: str, value: Any, steps: list[Any], where: str) -> int:
        """Look at what a name means, through modules; how many steps of the code that takes."""
        count, owner = 0, None
        while isinstance(value, types.ModuleType):
            step = steps[count] if count < len(steps) else None
            known = step is not None and step.opname in ("LOAD_ATTR", "LOAD_METHOD")
            if step is None or not known or step.argval not in vars(value):
                raise _UnknownError(f"{where} uses {name}")
            owner, name, count = value, f"{name}.{step.argval}", count + 1
            value = self._note(vars(value), step.argval)
        self._value(value, f"{where} uses {name}", owner, name.rpartition(".")[2])
        return count

    def _value(self, value: Any, wrong: str, owner: Any, name: str = "") -> None:
        """Accept a value that stays what it is."""
        if (owner is wp and name in _WARP) or (owner is wp.utils and name in _UTILS) or owner is math:
            return
        if any(value is known for known in _BUILTINS.values()) or _content(value) is not None:
            return
        if value is None or type(value) in (bool, int, float, complex, str, bytes) or warp_types.is_kernel(value):
            return
        if warp_types.is_struct(value):
            self.struct_types.append(value)
        elif type(value) in (tuple, frozenset):
            for item in value:
                if _content(item) is not None:
                    raise _UnknownError(wrong)
                self._value(item, wrong, None)
        elif isinstance(value, types.FunctionType) and not str(value.__module__).startswith("warp."):
            self.function(value)
        elif not warp_types.is_value_type(value):
            raise _UnknownError(wrong)


_CELLS = ("LOAD_DEREF", "LOAD_CLOSURE", "STORE_DEREF", "DELETE_DEREF", "MAKE_CELL", "COPY_FREE_VARS")


def _content(value: Any) -> bytes | None:
    """The bytes of a vector or matrix; None for anything else."""
    return bytes(value) if warp_types.is_value_type(type(value)) and hasattr(value, "_wp_scalar_type_") else None
