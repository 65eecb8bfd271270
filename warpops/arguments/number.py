"""Numbers: what is one, in eager and in traced code."""

from __future__ import annotations

import operator
from typing import Any

import numpy
import torch

from ..kernel.scalars import Scalar
from ..plan.model import Slot
from .kind import fail


def check_number(op: str, slot: Slot, scalar: Scalar | None, value: Any) -> None:
    """Check a number for one scalar type. Symbolic numbers are checked again when the op runs."""
    kind = scalar.kind if scalar is not None else "float"
    name = scalar.name if scalar is not None else "number"
    if isinstance(value, torch.Tensor):
        what = f"expected a number ({name}), got a tensor of shape {value.shape}"
        if slot.role == "size" or kind == "bool" or len(slot.leaf.path) > 1:
            fail(op, slot, f"{what}; pass a Python number, with .item() (its gradient would be lost)")
        declare = f"declare tensor_scalars='{slot.label}' to give it as a 0-d tensor"
        learn = (
            f", or take an array of one element in the kernel, {slot.label}[0], to keep it"
            if value.requires_grad
            else ""
        )
        fail(op, slot, f"{what}; {declare}, or pass a Python number, with .item() (its gradient would be lost){learn}")
    if isinstance(value, (torch.SymInt, torch.SymBool)) or (isinstance(value, torch.SymFloat) and kind == "float"):
        return
    plain = plain_number(value)
    if plain is None:
        fail(op, slot, f"expected a number ({name}), got {type(value).__name__}")
    if kind == "bool":
        if not isinstance(plain, bool) and (isinstance(plain, float) or plain not in (0, 1)):
            fail(op, slot, f"expected a bool, got {value!r}")
        return
    if kind == "int":
        if isinstance(plain, float):
            fail(op, slot, f"expected an int ({name}), got the float {value!r}")
        assert scalar is not None or isinstance(plain, int)
        low, high = (scalar.low, scalar.high) if scalar is not None else (-(2**63), 2**63 - 1)
        if slot.leaf.kind == "handle":
            low = -(2**63)  # a schema's int is signed: the upper half arrives as negative numbers
        if not low <= plain <= high:
            fail(op, slot, f"expected an int in [{low}, {high}] ({name}), got {value!r}")
        return
    if scalar is not None and not scalar.holds(plain):
        fail(op, slot, f"expected a float that {name} can hold, got {value!r}; inf and nan are allowed")


def plain_number(value: Any) -> int | float | bool | None:
    """A Python number of anything that is one (numpy's and Warp's included); None for the rest."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, numpy.bool_):
        return bool(value)
    if isinstance(value, numpy.generic):
        return value.item() if isinstance(value, (numpy.integer, numpy.floating)) else None
    if hasattr(value, "__index__") and not isinstance(value, (numpy.ndarray, torch.Tensor)):
        return operator.index(value)
    inner = getattr(value, "value", None)
    if type(value).__module__.startswith("warp") and isinstance(inner, (bool, int, float)):
        return inner
    return None


SYMBOLIC_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


def guard_number(value: Any) -> Any:
    """Make a number a constant of the graph, checked at each call."""
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    return guard_scalar(value)


def traced_int(value: Any) -> Any:
    """An int, which stays symbolic where it is: AOTAutograd traces a backward of the user's with ``SymInt``."""
    return value if isinstance(value, torch.SymInt) else int(value)
