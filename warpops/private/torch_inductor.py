"""Inductor's private side: a table of lowerings, and what one of them does with buffers.

``tests/test_torch_private.py`` fails first when a new torch changes any of it; ``tests/test_taken_away.py`` does without.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from .short import either


def loaded() -> bool:
    """Whether Inductor is there: it is before a graph reaches it."""
    return "torch._inductor.lowering" in sys.modules


@functools.cache
def table() -> dict[Any, Any] | None:
    """How operators are lowered; None where this torch has no such table, or not all that is used below."""

    def short() -> Any:
        from torch._inductor import ir, lowering, utils, virtualized

        used = ir.FallbackKernel.create, ir.ExternKernel.require_contiguous, lowering.empty_strided, lowering.clone
        used += utils.convert_shape_to_inductor, virtualized.V  # type: ignore[assignment]
        return lowering.user_lowerings if all(used) else None

    found: dict[Any, Any] | None = either(short, None)
    return found


def node() -> Any:
    """The node that is being lowered."""
    from torch._inductor.virtualized import V

    return V.graph.current_node


def values() -> tuple[Any, ...]:
    """Its fake results."""
    value = node().meta["val"]
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def packaging() -> bool:
    """Whether the graph is AOTInductor's."""
    from torch._inductor.virtualized import V

    return bool(V.graph.aot_mode)


def call(op: Any, arguments: list[Any]) -> list[Any]:
    """Call an operator as it is; what it returns, where that is a list."""
    from torch._inductor import ir

    made = ir.FallbackKernel.create(op, *arguments)
    return [ir.TensorBox.create(value) for value in made] if isinstance(made, list) else []


def contiguous(value: Any) -> Any:
    from torch._inductor import ir

    return ir.ExternKernel.require_contiguous(value)


def copy(value: Any) -> Any:
    from torch._inductor import lowering

    made = lowering.clone(value)
    made.realize()
    return contiguous(made)


def buffer(like: torch.Tensor, fill: Any) -> Any:
    """A buffer that Inductor plans, uninitialised where ``fill`` is None.

    It is filled by PyTorch's own kernels: generated ones would be compiled by a C++ compiler, which takes longer than all
    the rest.
    """
    from torch._inductor import lowering
    from torch._inductor.utils import convert_shape_to_inductor as convert_shape

    made = lowering.empty_strided(list(convert_shape(like.size())), None, dtype=like.dtype, device=like.device)
    if fill == 0:
        call(torch.ops.aten.zero_.default, [made])
    elif fill is not None:
        call(torch.ops.aten.fill_.Scalar, [made, fill])
    return made
