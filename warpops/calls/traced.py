"""What runs while a graph is traced: the public op over the raw ones, and the fake kernels of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..arguments.call import Measure, measure
from ..errors import ArgumentError
from ..plan.model import OpPlan
from ..private import torch_modes
from . import inductor
from .instances import Instance, Instances

_pinned: set[Any] = set()
"""Leases of ops that were compiled: graphs call their operators by name."""


class Traced:
    """The traced side of one op."""

    name: str
    plan: OpPlan
    instances: Instances
    numbered: bool
    functional: bool
    lease: Any
    public_op: Any
    forward_op: Any
    forward_into_op: Any
    backward_op: Any
    backward_into_op: Any
    _lowered: bool
    function: Callable[[], Any]
    values: Callable[[tuple[Any, ...]], dict[str, Any]]
    device: Callable[[tuple[Any, ...]], Any]
    call_public: Callable[[tuple[Any, ...]], Any]
    resolve_negated: Callable[[tuple[Any, ...]], Any]
    refuse_mutation: Callable[[tuple[Any, ...]], None]
    complete: Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]

    def pin(self) -> None:
        """A graph is being made with this op: keep its operators for as long as the process lives."""
        if self.numbered and torch.compiler.is_exporting():
            raise ArgumentError(
                f"{self.name}: the name was numbered because it was taken, and may stand for another op where the program "
                f"is loaded; give the op a name of its own with name='namespace::op' to export it"
            )
        lease = self.lease()
        if lease is not None:
            _pinned.add(lease)
        if self.functional and not self._lowered:
            self._lowered = inductor.register(self)

    def traced(self, arguments: tuple[Any, ...]) -> Any:
        """The public op while a graph is traced."""
        values = self.values(arguments)
        if self.plan.mutated:
            if torch.is_grad_enabled():
                self.refuse_mutation(arguments)
            if any(values[s.name] is not None and values[s.name].is_neg() for s in self.plan.mutated):
                return self.resolve_negated(arguments)
        if (
            torch_modes.lowering_export()
        ):  # the program may be differentiated where it is loaded: only the public op can be
            with torch_modes.below_autograd():
                return self.call_public(arguments)
        wants = torch.is_grad_enabled() and any(
            isinstance(values[slot.name], torch.Tensor) and values[slot.name].requires_grad
            for slot in self.plan.gradients
        )
        function = self.function() if wants else None
        if wants and function is not None:
            return function.apply(*arguments)
        results = self.traced_forward(*arguments)
        count = len(self.plan.results)
        if count == 0:
            return None
        return results if len(self.plan.returned) == 1 else (results[0] if count == 1 else results[:count])

    def traced_forward(self, *arguments: Any) -> Any:
        """The forward in traced code: buffers that the graph sees, and one op that writes into them."""
        instance = self.instances.select(arguments)
        plan = instance.plan
        if torch.compiler.is_exporting() or self.functional:
            return self.forward_op(*arguments)
        values = self.values(arguments)
        found = measure(self.name, plan, values, self.device(arguments))
        fresh = dict(
            zip(
                [s.name for s in plan.fresh],
                self.allocate(instance, found),
                strict=True,
            )
        )
        given = list(arguments)
        for index, slot in enumerate(plan.inputs):
            if slot.role == "inout":
                given[index] = fresh[slot.name] = given[index].clone(memory_format=torch.contiguous_format)
        self.forward_into_op(*given, *(fresh[s.name] for s in plan.fresh))
        returned = tuple(fresh[slot.name] for slot in self.plan.returned)
        return returned[0] if len(returned) == 1 else returned

    @staticmethod
    def allocate(instance: Instance, found: Measure) -> tuple[Any, ...]:
        if instance.allocate is None:
            return ()
        plan = instance.plan
        sizes = [n for s in plan.fresh for n in found.shapes[s.name]]
        return instance.allocate(found.device, *sizes)

    def traced_backward(self, *arguments: Any, token: torch.Tensor | None = None) -> list[Any]:
        """The backward in traced code. The op takes the token of live objects too, so that it lasts until then."""
        if self.functional:
            found: list[Any] = self.backward_op(*arguments)
            return found
        instance = self.instances.select(arguments)
        plan = self.plan
        assert instance.prepare is not None
        prepared = instance.prepare(*arguments)
        needs = arguments[-1]
        names = [s.name for s in plan.given_arrays] + [s.name for s in plan.kept]
        grads = [s.name for s in (*plan.cotangents, *plan.gradient_buffers)]
        tensors = dict(zip(names, prepared, strict=False))
        buffers = dict(zip(grads, prepared[len(names) :], strict=True))
        values = self.values(arguments)
        given = [tensors.get(name, values[name]) for name in plan.arguments]
        last = (token,) if plan.handles else ()
        self.backward_into_op(*given, *(tensors[s.name] for s in plan.kept), *(buffers[name] for name in grads), *last)
        return [buffers[slot.name] for slot, need in zip(plan.gradients, needs, strict=True) if need]

    # --- fakes --------------------------------------------------------------------------------------------------------

    def fake_forward(self, *arguments: Any, **named: Any) -> Any:
        self.pin_if_tracing()
        arguments = self.complete(arguments, named)
        instance = self.instances.select(arguments)
        found = measure(self.name, instance.plan, self.values(arguments), self.device(arguments))
        fresh = dict(
            zip(
                [s.name for s in instance.plan.fresh],
                self.allocate(instance, found),
                strict=True,
            )
        )
        values = self.values(arguments)
        for slot in self.plan.slots:
            if slot.role == "inout":
                fresh[slot.name] = torch.empty_like(values[slot.name], memory_format=torch.contiguous_format)
        returned = tuple(fresh[slot.name] for slot in self.plan.returned)
        if not returned:
            return None
        return returned[0] if len(returned) == 1 else returned

    def pin_if_tracing(self) -> None:
        if torch.compiler.is_compiling():
            self.pin()

    def fake_public(self, *arguments: Any, **named: Any) -> Any:
        results = self.fake_forward(*arguments, **named)
        count = len(self.plan.results)
        if len(self.plan.returned) == count:
            return results
        return None if count == 0 else (results[0] if count == 1 else results[:count])

    def fake_forward_into(self, *arguments: Any) -> None:
        self.pin_if_tracing()

    def fake_backward(self, *arguments: Any) -> list[Any]:
        self.pin_if_tracing()
        needs = arguments[-1]
        values = self.values(arguments)
        return [
            torch.empty_like(values[slot.name], memory_format=torch.contiguous_format)
            for slot, need in zip(self.plan.gradients, needs, strict=True)
            if need
        ]

    def fake_backward_into(self, *arguments: Any) -> None:
        self.pin_if_tracing()
