"""Records: what is made once, and never changed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from typing_extensions import dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[_T]) -> type[_T]:
    """A frozen dataclass to the type checker. Nothing guards it at run time: a guard triples what making one takes.

    What compares and hashes is compiled when it is first called: for all records that is a third of the import's time.
    Only one that works something out once has a dictionary, to keep it in: without, it is made in two thirds of the time.
    """
    slots = not any(isinstance(value, functools.cached_property) for value in cls.__dict__.values())
    made = dataclass(eq=False, repr=False, slots=slots)(cls)
    for name, text in {"__eq__": _EQUAL, "__hash__": _HASH, "_twin": _TWIN}.items():
        if name not in cls.__dict__:
            setattr(made, name, _at_first_call(made, name, text))
    if "__repr__" not in cls.__dict__:
        made.__repr__ = _repr  # type: ignore[method-assign]
    return made


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def hashed(cls: type[_T]) -> type[_T]:
    """A frozen class whose values are in many sets, or hold much: each counts its hash once."""
    cls.__annotations__["_hash"] = "int | None"
    cls._hash = field(default=None, init=False, repr=False, compare=False)  # type: ignore[attr-defined]
    made: Any = frozen(cls)

    def remembered(self: Any) -> int:
        found: int | None = self._hash
        if found is None:
            found = self._hash = _compiled(made, _HASH)(self)
        return found

    made.__hash__ = remembered
    return made  # type: ignore[no-any-return]


def replace(value: _T, /, **changes: Any) -> _T:
    """The value, with other fields."""
    record: Any = value
    new: _T = record._twin()
    for name, changed in changes.items():
        setattr(new, name, changed)
    return new


_EQUAL = """
def made(self, other):
    return {equal} if other.__class__ is self.__class__ else NotImplemented
"""
_HASH = """
def made(self):
    return hash(({mine}))
"""
_TWIN = """
def made(self):
    new = create(self.__class__)
    {copied}
    return new
"""


@functools.cache
def _compiled(cls: Any, text: str) -> Callable[..., Any]:
    compared = [one for one in fields(cls) if one.compare]
    pairs = [(f"self.{one.name}", f"other.{one.name}") for one in compared]
    equal = " and ".join(["True", *(f"({mine} is {other} or {mine} == {other})" for mine, other in pairs)])
    mine = "".join(f"self.{one.name}, " for one in compared if one.hash is not False)
    values = {one.name: f"self.{one.name}" if one.init else one.default for one in fields(cls)}
    copied = "; ".join(["pass", *(f"new.{name} = {value}" for name, value in values.items())])
    scope: dict[str, Any] = {"create": object.__new__}
    exec(text.format(mine=mine, equal=equal, copied=copied), scope)
    made: Callable[..., Any] = scope["made"]
    return made


def _at_first_call(cls: Any, name: str, text: str) -> Callable[..., Any]:
    def first(*given: Any) -> Any:
        setattr(cls, name, _compiled(cls, text))
        return getattr(cls, name)(*given)

    return first


def _repr(record: Any) -> str:
    shown = (f"{one.name}={getattr(record, one.name)!r}" for one in fields(record) if one.init)
    return f"{type(record).__qualname__}({', '.join(shown)})"
