"""Warp's scalar types, with their PyTorch dtypes and their places in packed bytes."""

from __future__ import annotations

import math
import struct
from typing import Any, Literal

import torch
import warp as wp

from ..frozen import frozen

BFLOAT16_OVERFLOW = (2 - 2**-8) * 2.0**127
"""Where bfloat16 rounds to infinity."""


@frozen
class Scalar:
    """One of Warp's scalar types, with its PyTorch dtypes and its place in a packed argument struct."""

    name: str
    dtypes: tuple[torch.dtype, ...]
    """Accepted dtypes, the one that outputs get first."""
    kind: Literal["float", "int", "bool"]
    size: int
    code: str
    """The code of the ``struct`` module."""
    low: int = 0
    high: int = 0

    @property
    def dtype(self) -> torch.dtype:
        return self.dtypes[0]

    @property
    def differentiable(self) -> bool:
        return self.kind == "float"

    def holds(self, value: float) -> bool:
        """Whether this type has the number: an int in its range; any float without overflow, inf and nan."""
        if self.kind != "float":
            return self.low <= value <= self.high and float(value).is_integer()
        if self.name == "bfloat16":
            return not BFLOAT16_OVERFLOW <= abs(value) < math.inf
        try:
            struct.pack(f"<{self.code}", value)
        except (OverflowError, struct.error):
            return False
        return True


def _int(name: str, bits: int, code: str, *dtypes: torch.dtype) -> Scalar:
    signed = not name.startswith("u")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return Scalar(name, dtypes, "int", bits // 8, code, low, high)


SCALARS: dict[Any, Scalar] = {
    wp.float16: Scalar("float16", (torch.float16,), "float", 2, "e"),
    wp.float32: Scalar("float32", (torch.float32,), "float", 4, "f"),
    wp.float64: Scalar("float64", (torch.float64,), "float", 8, "d"),
    wp.int8: _int("int8", 8, "b", torch.int8),
    wp.int16: _int("int16", 16, "h", torch.int16),
    wp.int32: _int("int32", 32, "i", torch.int32),
    wp.int64: _int("int64", 64, "q", torch.int64),
    wp.uint8: _int("uint8", 8, "B", torch.uint8),
    wp.uint16: _int("uint16", 16, "H", torch.uint16, torch.int16),
    wp.uint32: _int("uint32", 32, "I", torch.uint32, torch.int32),
    wp.uint64: _int("uint64", 64, "Q", torch.uint64, torch.int64),
    wp.bool: Scalar("bool", (torch.bool,), "bool", 1, "?", 0, 1),
}
if hasattr(wp, "bfloat16"):
    SCALARS[wp.bfloat16] = Scalar("bfloat16", (torch.bfloat16,), "float", 2, "H")
SCALARS |= {float: SCALARS[wp.float32], int: SCALARS[wp.int32], bool: SCALARS[wp.bool]}

WARP_SCALAR = {scalar.dtype: warp_type for warp_type, scalar in SCALARS.items() if warp_type not in (float, int, bool)}
"""Warp's scalar type of a dtype, for generic kernels."""
