"""What runs while a graph is traced: the public op over the raw ones, and the fake kernels of all."""

from __future__ import annotations

from typing import Any

import torch

from ..arguments.call import measure
from ..errors import ArgumentError, GradientError
from ..private import torch_modes
from . import inductor
from .instances import Instance
from .special import has_tangents, refuse_mutation, resolve_negated
from .ways import Lease, Plain, Ways, by_name, many, newest, one_or_many

_pinned: set[Lease] = set()
"""Leases of ops that were compiled: graphs call their operators by name."""


def pin(ways: Ways) -> None:
    """A graph is being made with this op: keep its operators for as long as the process lives."""
    if torch.compiler.is_exporting():
        check_exported(ways)
    lease = ways.lease()
    if lease is None:
        return
    _pinned.add(lease)
    lease.parts = ways.parts()
    if ways.functional and not lease.lowered:
        lease.lowered = inductor.register(ways)


def check_exported(ways: Ways) -> None:
    """Refuse to write an op into a program whose name stands for another one, here or where the program is loaded."""
    if ways.numbered:
        raise ArgumentError(
            f"{ways.name}: the name was numbered because it was taken, and may stand for another op where the program "
            f"is loaded; give the op a name of its own with name='namespace::op' to export it"
        )
    if ways.named and by_name.get(ways.name) is not ways:
        raise ArgumentError(
            f"{ways.name}: {newest(ways.name).where} has taken the name, which a program would call; export that op, or "
            f"give this one, {ways.where}, a name of its own with name='namespace::op'"
        )


def traced(ways: Ways, arguments: tuple[Any, ...], overload: Any = None) -> Any:
    """The public op while a graph is traced; ``overload`` is the one that was called."""
    plan, values = ways.plan, ways.values(arguments)
    if torch_modes.forward_ad._current_level >= 0 and has_tangents(arguments):
        raise GradientError(f"{ways.name}: tangents aren't followed inside of compiled code; take them in eager code")
    if plan.mutated:
        if torch.is_grad_enabled():
            refuse_mutation(ways, arguments)
        if any(values[s.name] is not None and values[s.name].is_neg() for s in plan.mutated):
            return resolve_negated(ways, arguments, lambda *plain: traced(ways, plain, overload))
    if torch_modes.lowering_export():
        # The program may be differentiated where it is loaded: only the public op can be.
        with torch_modes.below_autograd():
            return ways.call_public(arguments, overload)
    wants = torch.is_grad_enabled() and any(
        isinstance(values[slot.name], torch.Tensor) and values[slot.name].requires_grad for slot in plan.gradients
    )
    function = ways.live().function() if wants else None
    if function is not None:
        return function.apply(*arguments)
    return one_or_many(many(traced_forward(ways, *arguments))[: len(plan.results)])


def traced_forward(ways: Ways, /, *arguments: Any) -> Any:
    """The forward in traced code: buffers that the graph sees, and one op that writes into them."""
    if torch.compiler.is_exporting() or ways.functional:
        return ways.ops.forward(*arguments)
    instance = ways.instances.select(arguments)
    fresh = _allocate(ways, instance, arguments)
    given = list(arguments)
    for index, slot in enumerate(instance.plan.inputs):
        if slot.role == "inout":
            whole = given[index].detach() if slot.severed else given[index]
            given[index] = fresh[slot.name] = whole.clone(memory_format=torch.contiguous_format)
    ways.ops.forward_into(*given, *(fresh[s.name] for s in instance.plan.fresh))
    return one_or_many(tuple(fresh[slot.name] for slot in ways.plan.returned))


def _allocate(ways: Ways, instance: Instance, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """What the op makes, by name."""
    return instance.allocate(measure(ways.name, instance.plan, ways.values(arguments), ways.device(arguments)))


def traced_backward(ways: Ways, /, *arguments: Any, token: torch.Tensor | None = None) -> list[Any]:
    """The backward in traced code. The op takes the token of live objects too, so that it lasts until then."""
    if ways.functional:
        found: list[Any] = ways.ops.backward(*arguments)
        return found
    instance, plan = ways.instances.select(arguments), ways.plan
    prepared = instance.launches["prepare"](*arguments)
    names = [s.name for s in plan.given_arrays] + [s.name for s in plan.kept]
    grads = [s.name for s in (*plan.cotangents, *plan.gradient_buffers)]
    tensors = dict(zip(names, prepared, strict=False))
    buffers = dict(zip(grads, prepared[len(names) :], strict=True))
    values = ways.values(arguments)
    given = [tensors.get(name, values[name]) for name in plan.arguments]
    last = (token,) if plan.token else ()
    ways.ops.backward_into(*given, *(tensors[s.name] for s in plan.kept), *(buffers[name] for name in grads), *last)
    return [buffers[slot.name] for slot, need in zip(plan.gradients, arguments[-1], strict=True) if need]


# --- fakes ------------------------------------------------------------------------------------------------------------


def fake_public(op: Ways | Plain, /, *arguments: Any, **named: Any) -> Any:
    ways, _ = op.now()
    return one_or_many(_fakes(ways, arguments, named)[: len(ways.plan.results)])


def fake_forward(ways: Ways, /, *arguments: Any, **named: Any) -> Any:
    return one_or_many(_fakes(ways, arguments, named))


def fake_backward(ways: Ways, /, *arguments: Any) -> list[Any]:
    _pin_if_tracing(ways)
    values = ways.values(arguments)
    return [
        torch.empty_like(values[slot.name], memory_format=torch.contiguous_format)
        for slot, need in zip(ways.plan.gradients, arguments[-1], strict=True)
        if need
    ]


def fake_into(ways: Ways, /, *arguments: Any) -> None:
    """Of both ops over given buffers."""
    _pin_if_tracing(ways)


def _fakes(ways: Ways, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """What the raw forward returns."""
    _pin_if_tracing(ways)
    arguments = ways.complete(arguments, named)
    fresh = _allocate(ways, ways.instances.select(arguments), arguments)
    for slot, value in zip(ways.plan.inputs, arguments, strict=False):
        if slot.role == "inout":
            fresh[slot.name] = torch.empty_like(value, memory_format=torch.contiguous_format)
    return tuple(fresh[slot.name] for slot in ways.plan.returned)


def _pin_if_tracing(ways: Ways) -> None:
    if torch.compiler.is_compiling():
        pin(ways)
