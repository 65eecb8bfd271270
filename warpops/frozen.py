"""Records: what is made once, and never changed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar

from typing_extensions import dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[_T]) -> type[_T]:
    """A frozen dataclass to the type checker. Nothing guards it at run time: a guard triples what making one takes.

    What makes, compares and hashes one is compiled when it is first called: for all records that is half the import's time.
    Only one that works something out once has a dictionary, to keep it in: without, it is made in two thirds of the time.
    """
    slots = not any(isinstance(value, functools.cached_property) for value in cls.__dict__.values())
    made = dataclass(init=False, eq=False, repr=False, slots=slots)(cls)
    for name in _METHODS:
        if name not in cls.__dict__:
            setattr(made, name, _at_first_call(made, name))
    if "__repr__" not in cls.__dict__:
        made.__repr__ = _repr  # type: ignore[method-assign]
    return made


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def hashed(cls: type[_T]) -> type[_T]:
    """A frozen class whose values are in many sets, or hold much: each counts its hash once."""
    cls.__annotations__["_hash"] = "int | None"
    cls._hash = field(default=None, init=False, repr=False, compare=False)  # type: ignore[attr-defined]
    made: Any = frozen(cls)
    counter = functools.cache(functools.partial(_compiled, made, "__hash__"))

    def remembered(self: Any) -> int:
        found: int | None = self._hash
        if found is None:
            found = self._hash = counter()(self)
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


def _init(parts: tuple[Field[Any], ...]) -> str:
    parameters, given = ["self"], ["pass"]
    for one in parts:
        name = value = one.name
        if not one.init:
            value = f"default_{name}"
        elif one.default_factory is not MISSING:
            parameters.append(f"{name}=missing")
            value = f"made_{name}() if {name} is missing else {name}"
        else:
            parameters.append(name if one.default is MISSING else f"{name}=default_{name}")
        given.append(f"self.{name} = {value}")
    return f"def made({', '.join(parameters)}): {'; '.join(given)}"


def _equal(parts: tuple[Field[Any], ...]) -> str:
    pairs = [(f"self.{one.name}", f"other.{one.name}") for one in parts if one.compare]
    equal = " and ".join(["True", *(f"({mine} is {other} or {mine} == {other})" for mine, other in pairs)])
    return f"def made(self, other): return {equal} if other.__class__ is self.__class__ else NotImplemented"


def _hash(parts: tuple[Field[Any], ...]) -> str:
    mine = "".join(f"self.{one.name}, " for one in parts if one.compare and one.hash is not False)
    return f"def made(self): return hash(({mine}))"


def _twin(parts: tuple[Field[Any], ...]) -> str:
    copied = [f"new.{one.name} = {f'self.{one.name}' if one.init else f'default_{one.name}'}" for one in parts]
    return f"def made(self): {'; '.join(['new = create(self.__class__)', *copied, 'return new'])}"


_METHODS = {"__init__": _init, "__eq__": _equal, "__hash__": _hash, "_twin": _twin}
"""The texts of what a record has by its fields."""


def _compiled(cls: Any, name: str) -> Callable[..., Any]:
    parts = fields(cls)
    scope: dict[str, Any] = {"create": object.__new__, "missing": MISSING}
    for one in parts:
        scope |= {f"default_{one.name}": one.default, f"made_{one.name}": one.default_factory}
    exec(_METHODS[name](parts), scope)
    made: Callable[..., Any] = scope["made"]
    made.__qualname__ = f"{cls.__qualname__}.{name}"
    return made


def _at_first_call(cls: Any, name: str) -> Callable[..., Any]:
    def first(*given: Any, **named: Any) -> Any:
        setattr(cls, name, _compiled(cls, name))
        return getattr(cls, name)(*given, **named)

    return first


def _repr(record: Any) -> str:
    shown = (f"{one.name}={getattr(record, one.name)!r}" for one in fields(record) if one.init)
    return f"{type(record).__qualname__}({', '.join(shown)})"
