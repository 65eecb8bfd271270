"""What a function's text refers to that isn't its own: all that its analysis, and what is written of it, take from there."""

from __future__ import annotations

import contextlib
import ctypes
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ..errors import ArgumentError, GradientError
from ..private.warp_source import (
    declared_overloads,
    definition,
    is_function,
    is_users,
    lookup,
    max_unroll,
    member,
    overwrites_are_copies,
    own_parts,
)
from .names import Code, as_abstract, code_of, is_static
from .values import Object


def outside(code: Code) -> tuple[Any, ...] | None:
    """What a function's free names stand for now, those of modules and types by attribute; None where one stands for what may
    change and stay the same object."""
    found: list[Any] = []
    for name, *attributes in code.free.values():
        value = lookup(code, name)
        for attribute in attributes:
            if not isinstance(value, (types.ModuleType, type)):
                break
            value = member(value, attribute)
        fixed = isinstance(value, types.ModuleType) or callable(value) or not isinstance(as_abstract(value), Object)
        if is_static(value) or not fixed:
            return None
        found.append(value)
        if is_function(value) and not value.is_builtin():
            found += [part for one in declared_overloads(value) for part in (code_of(one), *own_parts(one))]
    return tuple(found)


# --- names that come to stand for something else ----------------------------------------------------------------------


class ChangedError(GradientError):
    """A name of a kernel's doesn't stand any more for what it stood for when the kernel was built."""


Names: TypeAlias = dict[tuple[Any, str], tuple[Any, ...]]


class Standing:
    """What the names of a kernel and of its functions stand for: Warp asks them when it builds code, and not again."""

    def __init__(self, kernel: Any, original: Standing | None = None) -> None:
        """``original`` is that of the kernel that was analysed, of which this one is a copy for other types."""
        self.module, self._code = weakref.ref(kernel.module), code_of(kernel)
        self.analysed: weakref.ref[Any] = weakref.ref(kernel) if original is None else original.analysed
        self._read: Names = self.now() if original is None else original._read
        self._built: Names | None = None

    def now(self) -> Names:
        kernel, found = self.analysed(), Names()
        if kernel is not None:  # the options of its module that the analysis asks for
            found[self._code.func, "max_unroll"] = (max_unroll(kernel),)
            found[self._code.func, "enable_vector_component_overwrites"] = (overwrites_are_copies(kernel),)
        codes = [self._code]
        for code in codes:
            for path, (name, *attributes) in code.free.items():
                value = lookup(code, name)
                for attribute in attributes:
                    value = None if value is None else member(value, attribute)
                parts: list[Any] = []
                if is_users(value):
                    parts = [part for one in declared_overloads(value) for part in (code_of(one), *own_parts(one))]
                    codes += [part for part in parts if isinstance(part, Code) and part not in codes]
                found[code.func, path] = (_held(value), *parts)
        return found

    def build(self, as_read: Callable[[], bool]) -> None:
        """The kernel is built, of what its names stand for now.

        Raises:
            ArgumentError: names have changed since it was analysed, and by ``as_read`` it does something else than was found.
        """
        now = self.now()
        changed = _changed(self._read, now, "decorated")
        if changed is not None and not as_read():
            raise ArgumentError(changed)
        self._read = self._built = now

    def written(self) -> Callable[[], None]:
        """Another kernel is written of it. Returns what is called when that one is built.

        Raises:
            ChangedError: the kernel itself was built of something else.
        """
        now = self.now()
        if self._built is None:
            self._built = now
        _compare(self._built, now)
        return lambda: _compare(now, self.now())


def _held(value: Any) -> Any:
    """What a name stands for, or what is in it, where that may change and it stay the same object."""
    if isinstance(value, ctypes.Array):  # Warp's vectors and matrices
        return type(value), bytes(value)
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, dict):
        return [(key, _held(item)) for key, item in value.items()]
    return list(map(_held, value)) if isinstance(value, (list, tuple)) else value


def _compare(then: Names, now: Names) -> None:
    changed = _changed(then, now, "built")
    if changed is not None:
        raise ChangedError(changed)


def _changed(then: Names, now: Names, when: str) -> str | None:
    """What there is to say of the first name that has changed."""
    for (function, name), (old, *parts) in then.items():
        new, *others = now.get((function, name), (None,))
        if not _same(old, new) or list(map(id, parts)) != list(map(id, others)):
            values = f": it was {old!r}, and is {new!r}" if isinstance(old, (bool, int, float, str)) else ""
            return (
                f"the name '{name}' in '{function.__name__}' stands for something else than when the kernel was {when}"
                f"{values}; define the kernel again"
            )
    return None


def _same(old: Any, new: Any) -> bool:
    with contextlib.suppress(Exception):  # whatever objects raise that can't be compared
        return old is new or (type(old) is type(new) and bool(old == new))
    return False


_standing: weakref.WeakKeyDictionary[Any, Standing] = weakref.WeakKeyDictionary()


def standing_of(kernel: Any) -> Standing:
    """That of the user's kernel that a kernel is, or is written of."""
    key = definition(kernel)
    found = _standing.get(key)
    if found is None:
        found = _standing[key] = Standing(kernel)
    return found


def hand_on(kernel: Any, made: Any) -> None:
    """``made`` is written of ``kernel``: it is built of what that was built of, or not at all."""
    standing = _standing[definition(made)] = standing_of(kernel)
    made.compare = standing.written()


def stands_as(kernel: Any, copy: Any) -> None:
    """``copy`` is ``kernel``, which was analysed, for other types."""
    _standing[definition(copy)] = Standing(copy, standing_of(kernel))
