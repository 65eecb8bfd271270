"""The check of one argument of a call, by its kind."""

from __future__ import annotations

from typing import Any

import torch

from ..plan.model import Slot
from .array import check_array
from .kind import fail
from .number import check_number
from .size import SIZE
from .tensor_scalar import check_tensor_scalar
from .vector import check_vector


def check_slot(op: str, slot: Slot, value: Any) -> None:
    """Check one value by itself."""
    if slot.is_array:
        check_array(op, slot, value)
    elif slot.role == "tensor_scalar":
        check_tensor_scalar(op, slot, value)
    elif slot.leaf.kind == "vector":
        check_vector(op, slot, value)
    elif slot.leaf.kind == "handle" and isinstance(value, torch.Tensor):
        fail(
            op,
            slot,
            f"expected a wp.Mesh, Bvh, HashGrid or Volume, or its id (an int), got a tensor of shape {value.shape}",
        )
    else:
        check_number(op, slot, SIZE if slot.role == "size" else slot.leaf.scalar, value)
