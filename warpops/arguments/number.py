"""Numbers: what is one, in eager and in traced code."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

from ..kernel.scalars import Scalar
from ..plan.model import Slot
from .kind import PYTHON, Kind, fail, refused


class Number(Kind):
    """A number, or a bool, of one scalar type; of any, where the kernel is generic in it."""

    convert_name = "to_number"

    def scalar(self, slot: Slot) -> Scalar | None:
        """Its type; None where the kernel is generic in it."""
        return slot.leaf.scalar

    def schema(self, slot: Slot) -> str:
        scalar = self.scalar(slot)
        return schema_of(scalar) if scalar is not None else "Scalar"  # generic: an int stays one

    def default(self, slot: Slot, value: Any) -> str:
        if isinstance(value, bool):
            return f"={value}"
        if isinstance(value, (int, float)) and math.isfinite(value):
            scalar = slot.leaf.scalar
            return f"={float(value)!r}" if scalar is None or scalar.kind == "float" else f"={int(value)}"
        return super().default(slot, value)

    def annotation(self, slot: Slot) -> Any:
        scalar = self.scalar(slot)
        return PYTHON[scalar.kind] if scalar is not None else None

    def check(self, op: str, slot: Slot, value: Any) -> None:
        check_number(op, slot, self.scalar(slot), value)

    def convert(self, op: str, slot: Slot, value: Any) -> Any:
        return converted(op, slot, self.scalar(slot), value)

    def eager(self, slot: Slot, use: Callable[[str], str]) -> Iterator[str]:
        scalar = self.scalar(slot)
        wrong = f"{slot.name}.__class__ is not {scalar.kind if scalar is not None else 'int'}"
        if scalar is None:
            wrong += f" and {slot.name}.__class__ is not float"
        yield f"if {wrong}:"
        for line in super().eager(slot, use):
            yield f"    {line}"

    def traced(self, slot: Slot, place: int, use: Callable[[str], str]) -> Iterator[str]:
        scalar = self.scalar(slot)
        kind = scalar.kind if scalar is not None else "float"
        test = f"isinstance({slot.name}, {use('NUMBERS' if kind == 'float' else 'INTS')})"
        if kind == "bool":
            test = f"({test} and ({slot.name} == 0 or {slot.name} == 1))"
        yield from refused(test, slot, place, use)

    def guarded(self, slot: Slot, use: Callable[[str], str]) -> Iterator[str]:
        scalar, name = self.scalar(slot), slot.name
        if scalar is None:
            yield f"if not isinstance({name}, {use('INTS')}):"
            yield f"    {name} = {use('guard_scalar')}({name})"
        elif scalar.kind == "float":
            yield f"{name} = {use('guard_scalar')}(float({name}))"
        elif scalar.kind == "bool":
            yield f"{name} = bool({name})"
        else:
            yield f"{name} = {use('traced_int')}({name})"

    def packed(self, slot: Slot, bits: str) -> str:
        scalar = slot.leaf.scalar
        if scalar is not None and scalar.name == "uint64":  # a schema's int is signed
            return f"{slot.name} & 0xFFFFFFFFFFFFFFFF"
        return super().packed(slot, bits)

    def code(self, slot: Slot) -> str:
        scalar = self.scalar(slot)
        return scalar.kind[0] if scalar is not None else "n"


def schema_of(scalar: Scalar) -> str:
    """A scalar type as schemas say it."""
    return {"float": "float", "int": "SymInt", "bool": "bool"}[scalar.kind]


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


def converted(op: str, slot: Slot, scalar: Scalar | None, value: Any) -> Any:
    """A number as the schema takes it, once it is checked; a symbolic one as it is."""
    check_number(op, slot, scalar, value)
    plain = plain_number(value)
    if plain is None:
        return value
    if scalar is None:
        return plain if isinstance(plain, float) else int(plain)
    return PYTHON[scalar.kind](plain)


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
