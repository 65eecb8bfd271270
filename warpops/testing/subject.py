"""The op under test with the arguments of one call, ready to be called again and again with changed values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..arguments.kinds import kind_of
from ..calls.instances import Instance
from ..errors import ArgumentError, GradientError
from ..frozen import frozen
from ..op import WarpOp
from ..plan.model import OpPlan, Slot

Values = dict[str, Any]
"""A call's values by schema name: tensors and numbers."""


@frozen
class Outcome:
    """What one call gave."""

    results: dict[str, torch.Tensor]
    """Results, and arrays changed in place, by label."""
    gradients: dict[str, torch.Tensor | None]
    """By label; empty where no gradients were asked for."""


class Subject:
    """One op and one call of it. Nothing that it is given is ever changed: every call gets copies."""

    def __init__(self, op: WarpOp, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if not hasattr(op, "_plan"):
            raise ArgumentError(
                f"warpops.testing.check takes an op, which @warp_op makes of a kernel, and its arguments; got {op!r}"
            )
        self.op, self.plan, self.name = op, op._plan, op.name
        bound = op.__signature__.bind(*args, **kwargs)
        bound.apply_defaults()
        self.device = bound.arguments.get("device") if self.plan.device_argument else None
        self.values: Values = {}
        for parameter in self.plan.parameters:
            for slot in parameter.slots:
                value = bound.arguments[parameter.name]
                for part in slot.leaf.path[1:] if parameter.struct else ():
                    value = value[part] if isinstance(value, Mapping) else getattr(value, part)
                self.values[slot.name] = schema_value(slot, value)
        self.alive = (args, kwargs)  # a mesh lives as long as the id that stands for it
        self.inputs: tuple[Slot, ...] = tuple(s for s in self.plan.gradients if self.values[s.name] is not None)
        """The inputs whose gradients are looked at."""
        self.outputs: tuple[Slot, ...] = tuple(s for s in self.plan.result_slots if s.differentiable)
        self.left_out: list[tuple[str, str]] = []
        """Parts of checks that could not be made, with the reason."""

    @functools.cached_property
    def gradient_error(self) -> str | None:
        """Why no gradient can be had, where that is so."""
        given = self.copies(grad=True)
        try:
            results = self.call(given)
            self._gradients(results, given, self.cotangents(results))
        except GradientError as error:
            return str(error)
        return None

    @property
    def differentiable(self) -> bool:
        return bool(self.inputs) and bool(self.outputs) and self.gradient_error is None

    @property
    def instance(self) -> Instance:
        """The launches for the dtypes of this call."""
        return self.op._instances.select(tuple(self.values.values()))

    @property
    def concrete(self) -> OpPlan:
        """Their plan."""
        return self.instance.plan

    # --- arguments ----------------------------------------------------------------------------------------------------

    def copies(self, values: Values | None = None, grad: bool = False) -> Values:
        """Fresh copies of all tensors, strides kept where no two elements share a place; those with gradients are leaves that
        require grad if so wished."""
        wanted = {slot.name for slot in self.inputs} if grad else set()
        found: Values = {}
        for name, value in (self.values if values is None else values).items():
            if isinstance(value, torch.Tensor):
                value = value.detach().clone().requires_grad_(name in wanted)
            found[name] = value
        return found

    # --- calls --------------------------------------------------------------------------------------------------------

    def call(self, values: Values, function: Callable[[Values], Any] | None = None) -> dict[str, torch.Tensor]:
        """What a call gives, by label: its results and the arrays that it changed in place.

        Args:
            function: another way to call the op, such as its compiled form.
        """
        returned = self.op(**op_arguments(self.plan, values, self.device)) if function is None else function(values)
        tensors = returned if isinstance(returned, tuple) else (returned,)
        found = {slot.label: tensor for slot, tensor in zip(self.plan.result_slots, tensors, strict=False)}
        found |= {slot.label: values[slot.name] for slot in self.plan.mutated if values[slot.name] is not None}
        return found

    def forward(self, values: Values | None = None) -> dict[str, torch.Tensor]:
        """The results of one call without gradients."""
        with torch.no_grad():
            return self.call(self.copies(values))

    def run(
        self,
        cotangents: Mapping[str, torch.Tensor],
        given: Values | None = None,
        function: Callable[[Values], Any] | None = None,
        retain: bool = False,
    ) -> Outcome:
        """One call and its backward.

        Args:
            cotangents: by label, for the outputs that take one.
            given: the tensors to use as they are (by default copies of the subject's).
            function: another way to call the op.
            retain: keep the graph, run backward twice and return the second time's gradients.
        """
        given = self.copies(grad=self.differentiable) if given is None else given
        results = self.call(given, function)
        gradients = self._gradients(results, given, cotangents, retain) if self.differentiable else {}
        return Outcome({label: t.detach() for label, t in results.items()}, gradients)

    def _gradients(
        self,
        results: Mapping[str, torch.Tensor],
        given: Values,
        cotangents: Mapping[str, torch.Tensor],
        retain: bool = False,
    ) -> dict[str, torch.Tensor | None]:
        live = [slot.label for slot in self.outputs if results[slot.label].requires_grad]
        leaves = [given[slot.name] for slot in self.inputs]
        grads: Sequence[torch.Tensor | None] = [None] * len(leaves)
        for again in (True, False) if retain else (False,):
            if live:
                outputs, weights = [results[label] for label in live], [cotangents[label] for label in live]
                grads = torch.autograd.grad(outputs, leaves, weights, retain_graph=again, allow_unused=True)
        return {slot.label: grad for slot, grad in zip(self.inputs, grads, strict=True)}

    def cotangents(self, results: Mapping[str, torch.Tensor], seed: int = 0) -> dict[str, torch.Tensor]:
        """Random cotangents for the outputs that take one."""
        generator = torch.Generator().manual_seed(seed)
        return {
            slot.label: torch.randn(results[slot.label].shape, generator=generator, dtype=torch.float64).to(
                results[slot.label]
            )
            for slot in self.outputs
        }


def op_arguments(plan: OpPlan, values: Values, device: Any) -> dict[str, Any]:
    """The op's arguments by name from the schema's values; plain enough to be traced."""
    arguments: dict[str, Any] = {}
    for parameter in plan.parameters:
        if not parameter.struct:
            arguments[parameter.name] = values[parameter.slots[0].name]
            continue
        root: dict[str, Any] = {}
        for slot in parameter.slots:
            node = root
            for part in slot.leaf.path[1:-1]:
                node = node.setdefault(part, {})
            node[slot.leaf.path[-1]] = values[slot.name]
        arguments[parameter.name] = root
    if plan.device_argument:
        arguments["device"] = device
    return arguments


def schema_value(slot: Slot, value: Any) -> Any:
    """What the schema takes for a value that the op takes; what is wrong stays as it is, for the op to refuse."""
    try:
        return value if isinstance(value, torch.Tensor) else kind_of(slot).convert("", slot, value)
    except ArgumentError:
        return value


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes, for comparisons that know no tolerance and no NaN."""
    dense = tensor.detach().resolve_neg().reshape(-1)
    # One element may have any stride and is contiguous all the same.
    return torch.empty(dense.shape, dtype=dense.dtype, device=dense.device).copy_(dense).view(torch.uint8)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and torch.equal(bits(left), bits(right))
