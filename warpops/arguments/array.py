"""Arrays: a tensor for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..plan.model import Slot
from .kind import Kind, demand, fail, refused

IDS = "compiled code, export and vmap take a tensor of ids: torch.tensor([x.id for x in objects], dtype=torch.uint64)"
"""What is said where a list of Warp's objects isn't taken."""


def expected_shape(slot: Slot) -> str:
    """The torch shape that a slot takes, as text."""
    dims = slot.dims or (None,) * slot.leaf.ndim
    axes = ["*" if d is None else str(d) for d in dims] + [str(n) for n in slot.leaf.component or ()]
    return f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"


class Array(Kind):
    """An array of the kernel: a tensor."""

    def schema(self, slot: Slot) -> str:
        return "Tensor?" if slot.optional else "Tensor"

    def annotation(self, slot: Slot) -> Any:
        return torch.Tensor | None if slot.optional else torch.Tensor

    def check(self, op: str, slot: Slot, value: Any) -> None:
        leaf = slot.leaf
        if value is None:
            if slot.optional:
                return
            fail(op, slot, f"expected a tensor ({leaf.type_name}), got None; only arrays declared optional may be None")
        if not isinstance(value, torch.Tensor):
            hint = "; convert it with torch.as_tensor" if hasattr(value, "__array__") or isinstance(value, list) else ""
            if type(value).__module__.startswith("warp"):
                hint = "; convert it with wp.to_torch"
            if isinstance(value, (list, tuple)) and leaf.scalar is not None and leaf.scalar.name == "uint64":
                hint = f"; {IDS}"
            fail(op, slot, f"expected a tensor ({leaf.type_name}), got {type(value).__name__}{hint}")
        scalar = leaf.scalar
        assert scalar is not None and leaf.component is not None
        if value.is_nested:
            fail(
                op,
                slot,
                "expected a dense tensor, got a nested one; pass its values (.values()), or call for each part",
            )
        if value.layout is not torch.strided:
            fail(
                op,
                slot,
                f"expected a strided tensor, got layout {value.layout}; convert it with .to_dense(), or pass its parts",
            )
        if value.dtype not in scalar.dtypes:
            accepted = " or ".join(map(str, scalar.dtypes))
            fail(op, slot, f"expected dtype {accepted} ({leaf.type_name}), got {value.dtype}; convert it with .to(...)")
        rank = leaf.ndim + len(leaf.component)
        if value.ndim != rank:
            hint = ""
            if value.ndim > rank:
                hint = f"; for {value.ndim - rank} leading batch dimension{'s' if value.ndim - rank > 1 else ''} use torch.vmap"
            elif value.ndim == rank - 1 and leaf.component and value.ndim:
                hint = f"; for a single element pass {slot.name}.unsqueeze(0)"
            elif value.ndim == 0:
                hint = "; a 0-d tensor is no array, pass a tensor of one element with .reshape(1)"
            fail(
                op,
                slot,
                f"expected {rank} dimension{'s' if rank != 1 else ''} {expected_shape(slot)} ({leaf.type_name}), got shape "
                f"{value.shape}{hint}",
            )
        for axis, size in enumerate(leaf.component, start=leaf.ndim):
            wanted = f"expected shape {expected_shape(slot)} ({leaf.type_name}), got {{}}"
            demand(op, slot, value.shape[axis] == size, wanted, value.shape)

    def traced(self, slot: Slot, place: int, use: Callable[[str], str]) -> Iterator[str]:
        test = f"isinstance({slot.name}, {use('Tensor')})"
        yield from refused(f"({slot.name} is None or {test})" if slot.optional else test, slot, place, use)
