"""Classes of the analysis's values, which are made, read and compared by the hundred thousand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from typing_extensions import dataclass_transform

_T = TypeVar("_T")

_twins: dict[type[Any], Callable[[Any], Any]] = {}
"""By class: what makes another one of the same."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[_T]) -> type[_T]:
    """A frozen dataclass to the type checker. Nothing guards it at run time: a guard triples what making one takes."""
    made = dataclass(unsafe_hash=True)(cls)
    names: tuple[str, ...] = made.__match_args__  # type: ignore[attr-defined]
    text = "\n".join(
        ["def twin(old):", "    new = create(cls)", *(f"    new.{n} = old.{n}" for n in names), "    return new"]
    )
    scope: dict[str, Any] = {"create": object.__new__, "cls": made}
    exec(text, scope)
    _twins[made] = scope["twin"]
    return made


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def hashed(cls: type[_T]) -> type[_T]:
    """A frozen class whose values are in many sets, or hold much: each counts its hash once."""
    made = frozen(cls)
    count = made.__hash__

    def remembered(self: Any) -> int:
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            found = self._hash = count(self)
        return found

    made.__hash__ = remembered  # type: ignore[method-assign]
    return made


def replace(value: _T, **changes: Any) -> _T:
    """The value, with other fields."""
    new: _T = _twins[type(value)](value)
    for name, changed in changes.items():
        setattr(new, name, changed)
    return new
