"""Numbers that arrive as 0-d tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch

from ..plan.model import Slot
from .kind import Kind, fail
from .number import Number, check_number, guard_number


class TensorScalar(Number):
    """A number that a 0-d tensor is given for."""

    convert_name = "to_tensor"
    annotation, guarded, code = Kind.annotation, Kind.guarded, Kind.code

    def schema(self, slot: Slot) -> str:
        return "Tensor"

    def default(self, slot: Slot, value: Any) -> str:
        return "=None"  # no number can be the default of a tensor: the call's own is looked up

    def check(self, op: str, slot: Slot, value: Any) -> None:
        if not isinstance(value, torch.Tensor):
            check_number(op, slot, slot.leaf.scalar, value)
            return
        if value.ndim != 0:
            fail(op, slot, f"expected a 0-d tensor (tensor_scalars), got shape {value.shape}")
        if value.device.type not in ("cpu", "meta"):
            fail(
                op,
                slot,
                f"expected a 0-d tensor on cpu (tensor_scalars), got one on {value.device}; move it with .cpu()",
            )
        if value.dtype.is_complex:
            fail(op, slot, f"expected a real 0-d tensor, got {value.dtype}")
        scalar = slot.leaf.scalar
        if scalar is not None and scalar.kind != "float" and value.dtype.is_floating_point:
            fail(op, slot, f"expected an int, got a 0-d tensor of {value.dtype}")
        if value.requires_grad and torch.is_grad_enabled():
            refuse_number(op, slot)

    def convert(self, op: str, slot: Slot, value: Any) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return value
        scalar = slot.leaf.scalar
        exact = torch.float64 if scalar is None or scalar.kind == "float" else torch.int64
        return torch.tensor(super().convert(op, slot, value), dtype=exact, device="cpu")

    def eager(self, slot: Slot, use: Callable[[str], str]) -> Iterator[str]:
        yield f"if {slot.name}.__class__ is not {use('Tensor')}:"
        for line in Kind.eager(self, slot, use):
            yield f"    {line}"

    def traced(self, slot: Slot, place: int, use: Callable[[str], str]) -> Iterator[str]:
        yield f"{slot.name} = {use('traced_tensor')}({slot.name})"


def refuse_number(op: str, slot: Slot) -> NoReturn:
    """Say that a number has no derivative."""
    fail(
        op,
        slot,
        "it requires grad, and a number of the kernel gets no gradient; pass .detach(), or make it an array of one "
        "element in the kernel",
    )


def traced_tensor(value: Any) -> Any:
    """A number for a ``tensor_scalars`` argument, in traced code: a constant of the graph, guarded."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (float, torch.SymFloat)):
        return torch.full((), guard_number(value), dtype=torch.float64, device="cpu")
    return torch.full((), value, dtype=torch.int64, device="cpu")
