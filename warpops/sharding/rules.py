"""DTensors: each operator of an op runs on the local tensors, sharded where the plan says that rows are independent.

On each dimension of the device mesh, either all arrays that the op treats row by row are ``Shard(0)`` and the rest is
replicated, or everything is replicated. The first is taken where one of them is ``Shard(0)`` already. Results come as the
rows do, gradients of whole inputs as partial sums.

``register_sharding`` can't say this: backward returns a list, which it has no placements for; it can't refuse to move an
array that is changed in place; and it remembers shapes without the numbers that they follow from. So the operators have a
rule for DTensor as ``torch.library.register_torch_dispatch`` defines it, which is looked up when a DTensor comes, since
importing ``torch.distributed.tensor`` takes longer than a program of ordinary tensors should wait.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..arguments.call import measure
from ..calls.ways import Ways, many, one_or_many
from ..errors import ArgumentError
from ..frozen import frozen
from ..plan.model import Slot
from ..private import torch_modes, torch_registry


def rules(ways_of: Callable[[], Ways | None], suffix: str) -> torch_registry.Rules:
    """The rule of one operator for DTensor, and what finds it."""

    def rule(kind: Any, operator: Any, types: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        ways = ways_of()
        if ways is None:
            raise RuntimeError(f"{operator}: its WarpOp was collected")
        with torch.no_grad():
            return _RULES[suffix](ways, operator, arguments, named)

    return torch_registry.Rules(rule, _classes)


def _classes() -> tuple[type, ...]:
    base = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return () if base is None else (base,)


# --- the operators ----------------------------------------------------------------------------------------------------


def _forward(ways: Ways, operator: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The functional raw forward: inputs -> results and scratch."""
    return _run_forward(ways, arguments, lambda local: operator(*local), ways.plan.returned)


def _public(ways: Ways, operator: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The public op, which a call meets below autograd: in inference mode."""
    return _run_forward(ways, ways.complete(arguments, named), ways.call_public, ways.plan.result_slots)


def _run_forward(
    ways: Ways, arguments: tuple[Any, ...], run: Callable[[tuple[Any, ...]], Any], returned: Sequence[Any]
) -> Any:
    layout = _Layout(ways, arguments)
    if layout.sharded:
        # The ranks must agree on what is wrong: each of them sees the whole sizes.
        plan = ways.instances.select(arguments).plan
        measure(ways.name, plan, ways.values(arguments), ways.device(arguments))
    results = run(layout.local(arguments))
    if not returned:
        return None
    return one_or_many(tuple(layout.wrap(one, layout.placements, layout.whole_shape(one)) for one in many(results)))


def _backward(ways: Ways, operator: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The functional raw backward: inputs, what was kept, cotangents -> gradients."""
    plan = ways.plan
    rest = [_Given(slot.label, slot) for slot in plan.kept]
    rest += [_Given(f"cotangent of {slot.label}", slot) for slot in plan.cotangents]
    layout = _Layout(ways, arguments, rest)
    found = operator(*layout.local(arguments))
    values = ways.values(arguments)
    wanted = [s for s, need in zip(plan.gradients, arguments[-1], strict=True) if need]
    return [
        layout.wrap(grad, layout.placements if s.name in ways.rows else layout.sums, values[s.name].shape)
        for s, grad in zip(wanted, found, strict=True)
    ]


def _into(ways: Ways, operator: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    raise ArgumentError(
        f"{ways.name}: a DTensor in compiled code is not possible for an op that changes arrays in place or takes "
        f"handles of Warp objects; call it outside of torch.compile"
    )


_RULES: dict[str, Callable[..., Any]] = {
    "": _public,
    "_fwd": _forward,
    "_fwd_": _into,
    "_bwd": _backward,
    "_bwd_": _into,
}


# --- placements -------------------------------------------------------------------------------------------------------


@frozen
class _Given:
    """One tensor argument of an operator."""

    label: str
    slot: Slot


class _Layout:
    """How the tensors of one call lie on the device mesh."""

    def __init__(self, ways: Ways, arguments: tuple[Any, ...], rest: Iterable[_Given] = ()) -> None:
        """``rest``: what the operator takes after the op's own arguments."""
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

        self.kind: Any = DTensor
        self.op, self.rows = ways.name, ways.rows
        inputs = ways.plan.inputs
        tensors = {place: _Given(inputs[place].label, inputs[place]) for place in ways.plan.tensor_places}
        self.tensors = tensors | dict(enumerate(rest, start=len(ways.plan.arguments)))
        self.mesh: Any = next(arguments[k].device_mesh for k in self.tensors if isinstance(arguments[k], DTensor))
        self.whole: list[Any] = [Replicate()] * self.mesh.ndim
        self.placements = list(self.whole)
        self.sums = list(self.whole)
        self.length: Any = None
        for index, given in self.tensors.items():
            value = arguments[index]
            if not isinstance(value, DTensor):
                continue
            if value.device_mesh != self.mesh:
                raise self._fail(
                    given, f"expected a DTensor on {self.mesh}, as the others are, got one on {value.device_mesh}"
                )
            if not self._has_rows(given):
                continue
            self.length = value.shape[0]
            for dim, placement in enumerate(value.placements):
                if type(placement) is Shard and placement.dim == 0:
                    self.placements[dim], self.sums[dim] = placement, Partial("sum")
        self.sharded = self.placements != self.whole

    def _fail(self, given: _Given, text: str) -> ArgumentError:
        return ArgumentError(f"{self.op}: argument '{given.label}': {text}")

    def _has_rows(self, given: _Given) -> bool:
        return given.slot.is_array and given.slot.name in self.rows

    def local(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments as this rank computes with them."""
        found = list(arguments)
        for index, given in self.tensors.items():
            if arguments[index] is not None:
                found[index] = self._local(given, arguments[index])
        return tuple(found)

    def _local(self, given: _Given, value: Any) -> Any:
        if not isinstance(value, self.kind):
            if given.slot.role == "tensor_scalar":
                return value
            if not torch_modes.replicates_implicitly(self.kind):
                raise self._fail(
                    given,
                    "expected a DTensor, since another argument is one, got a plain tensor; distribute it with "
                    "torch.distributed.tensor.distribute_tensor",
                )
            value = self.kind.from_local(value, self.mesh, self.whole, run_check=False)
        wanted = self.placements if self._has_rows(given) else self.whole
        if list(value.placements) == wanted:
            return value.to_local()
        if given.slot.role == "mutated":
            raise self._fail(
                given,
                f"is changed in place, and would have to be moved from {_shown(value.placements)} to {_shown(wanted)}; "
                f"redistribute it before the call, or make it in-out in the signature",
            )
        return value.redistribute(self.mesh, wanted).to_local()

    def whole_shape(self, local: torch.Tensor) -> tuple[Any, ...]:
        """The shape of a result, of which this rank has a part."""
        return (self.length, *local.shape[1:]) if self.sharded else tuple(local.shape)

    def wrap(self, local: torch.Tensor, placements: list[Any], shape: Sequence[Any]) -> Any:
        strides: list[Any] = []
        step: Any = 1
        for size in reversed(shape):
            strides.insert(0, step)
            step = step * max(size, 1) if isinstance(size, int) else step * size
        return self.kind.from_local(
            local, self.mesh, placements, run_check=False, shape=torch.Size(shape), stride=tuple(strides)
        )


def _shown(placements: Sequence[Any]) -> str:
    return f"({', '.join(map(str, placements))})"
