"""What PyTorch's dispatcher calls for an op's operators: the public one in each of its ways, the raw forward under autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..arguments.vector import default_value
from ..errors import GradientError
from ..kernel.signature import MISSING
from ..plan.model import OpPlan
from ..private import torch_modes


class Dispatched:
    """The dispatcher's side of one op."""

    name: str
    plan: OpPlan
    public_op: Any
    forward_op: Any
    function: Callable[[], Any]
    eager: Callable[[], Any]
    pin: Callable[[], None]
    traced: Callable[[tuple[Any, ...]], Any]
    transforms: Callable[[], Any]
    cast: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    has_tangents: Callable[[tuple[Any, ...]], bool]

    def run_public(self, *arguments: Any, **named: Any) -> Any:
        """The public op."""
        arguments = self.complete(arguments, named)
        function = self.eager()
        if function is None:
            raise RuntimeError(f"{self.name} is gone: its WarpOp was collected")
        if torch_modes.functorch_level() is not None and torch_modes.is_wrapped(arguments):
            raise GradientError(
                f"{self.name}: torch.func.grad, vjp and jacrev work on op(...) in eager code, not on op.overload "
                f"and not inside compiled code; take the gradient outside torch.compile"
            )
        if torch.compiler.is_compiling():
            self.pin()
            return self.traced(arguments)
        if self.has_tangents(arguments):
            return self.transforms().call(arguments)
        return function(*arguments)

    def run_cast(self, *arguments: Any, **named: Any) -> Any:
        """The public op under autocast."""
        cast = self.cast(self.complete(arguments, named))
        with torch_modes.exclude_autocast():
            return self.call_public(cast)

    def run_mapped(self, keyset: Any, *arguments: Any, **named: Any) -> Any:
        """The public op under vmap, where it is called by itself (``op.overload``) or from compiled code."""
        return torch_modes.call_vmap_rule(self._map, self.public_op, arguments, named)

    def _map(self, info: Any, in_dims: Any, *arguments: Any, **named: Any) -> Any:
        values = self.complete(arguments, named)
        dims = (*in_dims, *(None for _ in values[len(in_dims) :]))
        return self.transforms().map_public(info, dims, values)

    def run_forward(self, keyset: Any, *arguments: Any) -> Any:
        """The raw forward where a gradient is wanted: in a graph that was traced without one (``make_fx``)."""
        if torch.is_grad_enabled() and any(
            slot.differentiable and value is not None and value.requires_grad
            for slot, value in zip(self.plan.inputs, arguments, strict=False)
        ):
            if self.plan.mutated or len(self.plan.returned) != len(self.plan.results):
                raise GradientError(
                    f"{self.name}: a graph that was traced without gradients can't be differentiated; trace it with "
                    f"inputs that require grad, or run it under torch.no_grad()"
                )
            return self.function().apply(*arguments)
        return self.forward_op.redispatch(keyset.remove(keyset.highestPriorityTypeId()), *arguments)

    def complete(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """The values of the schema by position, defaults included."""
        names = self.plan.arguments
        if len(arguments) >= len(names):
            return arguments
        defaults: dict[str, Any] = {"device": None}
        for parameter in self.plan.parameters:
            if parameter.default is not MISSING and not parameter.struct:
                defaults[parameter.slots[0].name] = default_value(parameter.default)
        return (*arguments, *(named[n] if n in named else defaults[n] for n in names[len(arguments) :]))

    def call_public(self, arguments: tuple[Any, ...]) -> Any:
        """The public op with the values of the schema by position."""
        last = {p.name for p in self.plan.parameters if p.keyword_only}
        if self.plan.device_argument:
            last.add("device")
        named = {n: v for n, v in zip(self.plan.arguments, arguments, strict=True) if n in last}
        return self.public_op(*arguments[: len(arguments) - len(named)], **named)
