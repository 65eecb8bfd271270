"""What a function's text refers to that isn't its own: all that its analysis, and what is written of it, take from there."""

from __future__ import annotations

import contextlib
import types
import weakref
from collections.abc import Callable
from typing import Any

from ..errors import GradientError
from ..private.warp_source import declared_overloads, definition, is_function, is_users, lookup, member, own_parts
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


class Standing:
    """What the names of a kernel and of its functions stand for: Warp asks them when it builds code, and not again."""

    def __init__(self, kernel: Any) -> None:
        self.module, self._code = weakref.ref(kernel.module), code_of(kernel)
        self._built: dict[tuple[Code, str], tuple[Any, ...]] | None = None

    def now(self) -> dict[tuple[Code, str], tuple[Any, ...]]:
        found: dict[tuple[Code, str], tuple[Any, ...]] = {}
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
                found[code, path] = (value, *parts)
        return found

    def build(self) -> None:
        """The kernel is built, of what its names stand for now."""
        self._built = self.now()

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


def _compare(then: dict[tuple[Code, str], tuple[Any, ...]], now: dict[tuple[Code, str], tuple[Any, ...]]) -> None:
    for (code, name), (old, *parts) in then.items():
        new, *others = now.get((code, name), (None,))
        if not _same(old, new) or list(map(id, parts)) != list(map(id, others)):
            values = f": it was {old!r}, and is {new!r}" if isinstance(old, (bool, int, float, str)) else ""
            raise ChangedError(
                f"the name '{name}' in '{code.func.__name__}' stands for something else than when the kernel was built"
                f"{values}; decorate the kernel again"
            )


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


def before_build(kernel: Any) -> None:
    """A kernel is about to be built, or loaded.

    Raises:
        ChangedError: it is written of another one, of which names have come to stand for something else.
    """
    getattr(kernel, "compare", standing_of(kernel).build)()
