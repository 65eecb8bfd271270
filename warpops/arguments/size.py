"""Extra sizes: plain ints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import warp as wp

from ..kernel.scalars import SCALARS, Scalar
from ..plan.model import Slot
from ..plan.sizes import Expr, SizeError
from ..private import torch_modes
from .number import Number


def value_of(expr: Expr, sizes: Mapping[str, Any]) -> Any:
    """Its value; works on symbolic integers.

    Raises:
        SizeError: a name has no value, or a divisor is zero.
    """
    if expr.is_int:
        return expr.value
    if expr.is_name:
        try:
            return sizes[str(expr.value)]
        except KeyError:
            raise SizeError(f"the size '{expr.value}' is not known") from None
    left, right = (value_of(item, sizes) for item in expr.items)
    if expr.head == "+":
        return left + right
    if expr.head == "-":
        return left - right
    if expr.head == "*":
        return left * right
    if expr.head in ("min", "max"):
        return torch.sym_min(left, right) if expr.head == "min" else torch.sym_max(left, right)
    if isinstance(right, int):
        if right == 0:
            raise SizeError(f"division by zero in '{expr}'")
    else:
        torch_modes.require(RuntimeError, right != 0, lambda: f"division by zero in '{expr}'")
    return left // right if expr.head == "//" else left % right


class Size(Number):
    """An extra size: an int of 64 bits."""

    def scalar(self, slot: Slot) -> Scalar:
        return SCALARS[wp.int64]
