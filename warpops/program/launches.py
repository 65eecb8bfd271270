"""What a program's run records: its launches and library calls, with all that their adjoints need."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from typing import Any

import numpy

from ..effects import Effects, Premise
from ..frozen import frozen
from ..private.warp_types import argument_types
from .checks import of_leaves
from .memory import Ref, Views


@frozen
class Launched:
    """One recorded launch."""

    kernel: Any
    """A concrete one."""
    effects: Effects
    options: dict[str, Any]
    """Of ``wp.launch``, ``dim`` among them."""
    arguments: dict[str, Any]
    """By label, a ``Ref`` for each array; of a struct, its fields."""
    objects: dict[str, tuple[Any, int]]
    """The objects of Warp that it was given, by argument, with their stamps."""

    @property
    def refs(self) -> tuple[Ref, ...]:
        return tuple(value for value in self.arguments.values() if isinstance(value, Ref))

    def turns_once(self, premise: Premise) -> bool:
        """Whether a coordinate runs over just the size that the premise names."""
        dims = self.options["dim"]
        label, axis = premise.right if isinstance(premise.right, tuple) else (str(premise.right), None)
        value = self.arguments.get(label)
        if axis is not None:
            value = value.shape[axis] if isinstance(value, Ref) else None
        return isinstance(premise.left, int) and premise.left < len(dims) and dims[premise.left] == value

    def rebuilt(self, device: Any, private: list[Any]) -> list[Any]:
        """Its arguments as its adjoint takes them; what is made for that goes into ``private``."""

        def leaf(label: str, warp_type: Any) -> Any:
            value = self.arguments[label]
            return value.array(device, private) if isinstance(value, Ref) else value

        return [of_leaves(label, warp_type, leaf) for label, warp_type in argument_types(self.kernel)]


@frozen
class Called:
    """One recorded call of a library function."""

    name: str
    refs: tuple[Ref, ...]
    adjoint: Callable[[Views], None] | None


def unchanging(value: Any) -> Any:
    """What is given by value, as it is now: a program may change a vector or a list between two launches."""
    return copy.deepcopy(value) if isinstance(value, (list, tuple, numpy.ndarray, ctypes.Array)) else value
