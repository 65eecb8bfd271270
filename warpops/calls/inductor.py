"""Inductor's private side: the raw ops as extern kernels over planned buffers.

A compiled graph holds the functional raw ops, which cost little to trace. Where Inductor lowers one, it makes the buffers
itself, so that it plans their memory, and calls the op that writes into them. Where a torch has
no such hook, or a case isn't provided for, the functional op is called as it is.

``tests/test_torch_private.py`` fails first when a new torch changes any of it.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from .ways import Ways, one_or_many


def loaded() -> bool:
    """Whether Inductor is there: it is before a graph reaches it."""
    return "torch._inductor.lowering" in sys.modules


def register(ways: Ways) -> bool:
    """Teach Inductor one op; False where this torch has no way to."""
    from torch._inductor import lowering

    table = getattr(lowering, "user_lowerings", None)
    if table is None:
        return False
    # The raw op, or the public one, which is equal to it: an exported program holds that.
    table[ways.ops.public] = lambda *given, **named: _lower_forward(ways, ways.complete(given, named))
    if ways.ops.backward is not None:
        table[ways.ops.backward] = lambda *arguments: _lower_backward(ways, arguments)
    return True


def _node() -> Any:
    """The node that is being lowered."""
    from torch._inductor.virtualized import V

    return V.graph.current_node


def _values() -> tuple[Any, ...]:
    """Its fake results."""
    value = _node().meta["val"]
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _buffer(size: Any, dtype: torch.dtype, device: torch.device, fill: Any) -> Any:
    """A buffer that Inductor plans, uninitialised where ``fill`` is None.

    It is filled by PyTorch's own kernels: generated ones would be compiled by a C++ compiler, which takes longer than all
    the rest.
    """
    from torch._inductor import lowering

    made = lowering.empty_strided(list(size), None, dtype=dtype, device=device)
    if fill == 0:
        _call(torch.ops.aten.zero_.default, [made])
    elif fill is not None:
        _call(torch.ops.aten.fill_.Scalar, [made, fill])
    return made


def _like(value: torch.Tensor, fill: Any) -> Any:
    from torch._inductor.utils import convert_shape_to_inductor as convert_shape

    return _buffer(convert_shape(value.size()), value.dtype, value.device, fill)


def _call(op: Any, arguments: list[Any]) -> None:
    from torch._inductor import ir

    ir.FallbackKernel.create(op, *arguments)


def _lower_forward(ways: Ways, arguments: tuple[Any, ...]) -> Any:
    plan = ways.instances.plan
    if ways.instances.generic or any(s.role in ("inout", "mutated") for s in plan.slots):
        return None
    if plan.scratch and _node().target is ways.ops.public:
        return None
    values = dict(zip([slot.name for slot in ways.plan.returned], _values(), strict=True))
    made: dict[str, Any] = {}
    for slot in plan.fresh:
        made[slot.name] = _like(values[slot.name], slot.fill)
    _call(ways.ops.forward_into, [*arguments, *made.values()])
    return one_or_many(tuple(made[slot.name] for slot in ways.plan.returned))


def _lower_backward(ways: Ways, arguments: tuple[Any, ...]) -> Any:
    from torch._inductor import ir, lowering

    plan = ways.instances.plan
    needs = arguments[-1]
    count = len(ways.plan.arguments)
    given, kept = list(arguments[:count]), list(arguments[count : count + len(plan.kept)])
    cotangents = list(arguments[count + len(plan.kept) : -1])
    if ways.instances.generic or ways.plan.handles or plan.private_data or any(c is None for c in cotangents):
        return None
    for index, slot in enumerate(plan.inputs):
        if slot.is_array and given[index] is not None:
            given[index] = ir.ExternKernel.require_contiguous(given[index])
    kept = [ir.ExternKernel.require_contiguous(value) for value in kept]
    private = []
    for slot, cotangent in zip(ways.plan.cotangents, cotangents, strict=True):
        if slot.retained:
            private.append(ir.ExternKernel.require_contiguous(cotangent))
            continue
        copy = lowering.clone(cotangent)
        copy.realize()
        private.append(ir.ExternKernel.require_contiguous(copy))
    gradients = iter(_values())
    buffers: dict[str, Any] = {}
    results = []
    for slot, need in zip(plan.gradients, needs, strict=True):
        value = next(gradients) if need else None
        if slot.role == "inout":
            buffer = private[[s.name for s in ways.plan.cotangents].index(slot.name)]
        elif value is not None:
            buffer = _like(value, None)
        elif slot.null_adjoint_safe:
            buffer = None
        else:
            return None
        buffers[slot.name] = buffer
        if need:
            results.append(buffer)
    grads = [buffers[slot.name] for slot in ways.plan.gradient_buffers]
    assert ways.ops.backward_into is not None
    _call(ways.ops.backward_into, [*given, *kept, *private, *grads])
    return results
