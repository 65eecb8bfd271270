"""Inductor: the raw ops as extern kernels over planned buffers.

A compiled graph holds the functional raw ops, which cost little to trace. Where Inductor lowers one, it makes the buffers
itself, so that it plans their memory, and calls the op that writes into them. Where a torch has
no such hook, or a case isn't provided for, the functional op is called as it is.
"""

from __future__ import annotations

from typing import Any

from ..private import torch_inductor
from ..private.torch_inductor import buffer, call, contiguous, copy
from .packaged import pack, packaged_op
from .ways import Ways, one_or_many, plain_of


def register(ways: Ways) -> bool:
    """Teach Inductor one op; False where it isn't there yet, or has no way to be taught."""
    table = torch_inductor.table() if torch_inductor.loaded() else None
    if table is None:
        return False
    # The raw op, or the public one, which is equal to it: an exported program holds that.
    table[ways.ops.public] = lambda *given, **named: _lower_forward(ways, ways.placed(given, named))
    if ways.named:
        table[plain_of(ways.name).overload] = lambda *given, **named: _lower_packaged(ways, ways.placed(given, named))
    if ways.ops.backward is not None:
        table[ways.ops.backward] = lambda *arguments: _lower_backward(ways, arguments)
    return True


def _lower_forward(ways: Ways, arguments: tuple[Any, ...]) -> Any:
    plan = ways.instances.plan
    if ways.instances.generic or any(s.changes for s in plan.slots):
        return None
    if any(ways.values(arguments)[name] is None for name in ways.plan.scalar_defaults):
        return None
    if plan.scratch and torch_inductor.node().target is ways.ops.public:
        return None
    values = dict(zip([slot.name for slot in ways.plan.returned], torch_inductor.values(), strict=True))
    made: dict[str, Any] = {}
    for slot in plan.fresh:
        made[slot.name] = buffer(values[slot.name], slot.fill)
    call(ways.ops.forward_into, [*arguments, *made.values()])
    return one_or_many(tuple(made[slot.name] for slot in ways.plan.returned))


def _lower_packaged(ways: Ways, arguments: tuple[Any, ...]) -> Any:
    """The plain operator, which a package doesn't call by itself."""
    plan = ways.plan
    packed = pack(plan, arguments)
    if not torch_inductor.packaging() or packed is None or plan.mutated or plan.device_argument or not plan.results:
        return None
    made = call(packaged_op.overload(), [f"{ways.name} {ways.schema}", *packed])
    return made[0] if len(plan.results) == 1 else tuple(made)


def _lower_backward(ways: Ways, arguments: tuple[Any, ...]) -> Any:
    plan = ways.instances.plan
    *values, needs = arguments
    cotangents = values[len(plan.arguments) + len(plan.kept) :]
    if ways.instances.generic or plan.token or plan.private_data or any(c is None for c in cotangents):
        return None
    names = [*plan.arguments, *(slot.name for slot in plan.kept)]
    arrays = {slot.name for slot in (*plan.given_arrays, *plan.kept)}
    given = [contiguous(v) if n in arrays and v is not None else v for n, v in zip(names, values, strict=False)]
    private = {
        slot.name: contiguous(cotangent) if slot.retained else copy(cotangent)
        for slot, cotangent in zip(plan.cotangents, cotangents, strict=True)
    }
    gradients = iter(torch_inductor.values())
    made: dict[str, Any] = {}
    for slot, need in zip(plan.gradients, needs, strict=True):
        value = next(gradients) if need else None
        if slot.role == "inout":
            made[slot.name] = private[slot.name]
        elif value is None and not slot.null_adjoint_safe:
            return None
        else:
            made[slot.name] = None if value is None else buffer(value, None)
    call(ways.ops.backward_into, [*given, *private.values(), *(made[slot.name] for slot in plan.gradient_buffers)])
    return [made[slot.name] for slot, need in zip(plan.gradients, needs, strict=True) if need]
