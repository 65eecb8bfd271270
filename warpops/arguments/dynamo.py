"""Compiled code that is given a Warp vector, matrix, quaternion or transform by value.

Such a value is a ctypes array, which Dynamo can't look into. Its numbers become constants of the graph, and a guard on
its bytes has the graph made anew when they change, as for a tuple of floats.
"""

from __future__ import annotations

from typing import Any

from ..private import torch_dynamo
from ..private.torch_modes import constant_while_tracing
from .number import plain_number
from .vector import flatten


def is_warp_value(value: object) -> bool:
    return hasattr(type(value), "_wp_scalar_type_")


def numbers_of(value: Any) -> Any:
    """The numbers of a Warp value, a matrix's by rows; anything else as it is."""
    if not is_warp_value(value):
        return value
    numbers = tuple(plain_number(item) for item in flatten(value) or ())
    shape = type(value)._shape_
    return numbers if len(shape) == 1 else tuple(zip(*[iter(numbers)] * shape[1], strict=True))


@constant_while_tracing
def teach() -> bool:
    """Have Dynamo know ``numbers_of``. Run while a graph is traced, before ``numbers_of`` is named."""
    return torch_dynamo.teach(numbers_of, is_warp_value)


def traced_value(value: Any) -> Any:
    """A vector argument as a sequence of numbers, in traced code, where it is one or a Warp value; else itself."""
    if isinstance(value, (list, tuple)):
        return value
    return numbers_of(value) if teach() else value
