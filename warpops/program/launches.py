"""What a program's run records: its launches and library calls, with all that their adjoints need."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy

from ..effects import Effects, Premise
from ..private.warp_types import argument_types
from .memory import Ref, Value, Views


@dataclass(frozen=True)
class StructValue:
    """A struct argument of a recorded launch, field by field."""

    cls: Any
    fields: dict[str, Any]


@dataclass(frozen=True)
class Launched:
    """One recorded launch."""

    kernel: Any
    effects: Effects
    dim: Any
    options: dict[str, Any]
    arguments: tuple[Any, ...]
    refs: tuple[Ref, ...]
    objects: dict[str, tuple[Any, int]]
    """The objects of Warp that it was given, by argument, with their stamps."""

    def turns_once(self, premise: Premise) -> bool:
        """Whether a coordinate runs over just the size that the premise names."""
        dims = (self.dim,) if isinstance(self.dim, int) else tuple(self.dim)
        label, axis = premise.right if isinstance(premise.right, tuple) else (str(premise.right), None)
        first, *path = label.split(".")
        value = {name: v for (name, _), v in zip(argument_types(self.kernel), self.arguments, strict=True)}.get(first)
        for part in path:
            value = value.fields.get(part) if isinstance(value, StructValue) else None
        if axis is not None:
            value = value.shape[axis] if isinstance(value, Ref) else None
        return isinstance(premise.left, int) and premise.left < len(dims) and dims[premise.left] == value


@dataclass(frozen=True)
class Called:
    """One recorded call of a library function."""

    name: str
    refs: tuple[Ref, ...]
    adjoint: Callable[[Views], None] | None


def frozen(value: Any) -> Any:
    """What is given by value, as it is now: a program may change a vector or a list between two launches."""
    return copy.deepcopy(value) if isinstance(value, (list, tuple, numpy.ndarray, ctypes.Array)) else value


def refs_in(arguments: Any) -> Iterator[Ref]:
    for argument in arguments:
        if isinstance(argument, Ref):
            yield argument
        elif isinstance(argument, StructValue):
            yield from refs_in(argument.fields.values())


def settled(argument: Any, values: dict[int, Value], flows: bool) -> Any:
    """A launch's argument with the values that its adjoint needs, and with gradients through what it wrote."""
    if isinstance(argument, Ref):
        written = flows and argument.use.writes and argument.differentiable and argument.block is not None
        return replace(argument, value=values.get(id(argument)), live=argument.live or written)
    if isinstance(argument, StructValue):
        return StructValue(
            argument.cls, {name: settled(value, values, flows) for name, value in argument.fields.items()}
        )
    return argument


def rebuilt(argument: Any, device: Any, private: list[Any]) -> Any:
    """An argument of a recorded launch as its adjoint takes it; what is made for that goes into ``private``."""
    if isinstance(argument, Ref):
        return argument.array(device, private)
    if isinstance(argument, StructValue):
        instance = argument.cls()
        for name, value in argument.fields.items():
            setattr(instance, name, rebuilt(value, device, private))
        return instance
    return argument
