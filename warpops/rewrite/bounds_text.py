"""Pieces of the trees and texts that ``bounds_expressions.py`` puts together."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from ..private import warp_types


def array_type(kind: Any) -> Any:
    return warp_types.array_annotation(kind.dtype, kind.ndim)


def narrow(index: str) -> str:
    return f"warp.int32({index})"


def element(indices: Sequence[str]) -> str:
    return f"array[{', '.join(map(narrow, indices))}]"


def zero(dtype: Any) -> str:
    return "Element()" if warp_types.is_struct(dtype) or hasattr(dtype, "_wp_scalar_type_") else "Element(0)"


def is_sure(node: ast.expr, size: int) -> bool:
    """Whether an index into what has ``size`` components needs no look. Warp fits slices of them when it builds."""
    if isinstance(node, ast.Slice) or size == 0:
        return True
    try:
        found = ast.literal_eval(node)
    except (ValueError, TypeError):
        return False
    return type(found) is int and -size <= found < size
