"""What a function's text refers to that isn't its own: all that its analysis takes from there."""

from __future__ import annotations

import types
from typing import Any

from ..private.warp_source import declared_overloads, is_function, lookup, member, own_parts
from .names import Code, as_abstract, code_of, is_static
from .values import Object


def outside(code: Code) -> tuple[Any, ...] | None:
    """What a function's free names stand for now, those of modules and types by attribute; None where one stands for what may
    change and stay the same object."""
    found: list[Any] = []
    for path in code.paths:
        name, *attributes = path.split(".")
        if name in code.func.__code__.co_varnames:
            continue
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
