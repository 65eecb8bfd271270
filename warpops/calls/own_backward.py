"""Backwards of the user's own, as they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..arguments.callbacks import callback_arguments
from ..errors import ArgumentError
from ..frozen import frozen
from ..plan.model import Slot
from .ways import Asked, OwnBackward, Ways


@frozen
class BackwardContext:
    """What a registered backward sees of the forward."""

    inputs: dict[str, Any]
    """The op's arguments by name, as the call gave them; a struct is a namespace of its fields."""
    outputs: dict[str, torch.Tensor]
    """The op's results by name; an in-out array's value after the launch."""
    needs_input_grad: tuple[bool, ...]
    """Whether each argument of the op needs a gradient."""


def custom_backward(
    ways: Ways, arguments: tuple[Any, ...], results: tuple[Any, ...], grads: tuple[Any, ...], needed: tuple[bool, ...]
) -> tuple[Any, ...]:
    """Call an op's own backward; returns one gradient per value of the schema."""
    assert ways.custom is not None
    return ways.custom.run(Asked(ways, arguments, results, grads, needed))


def registered(function: Callable[..., Any]) -> OwnBackward:
    """A function given to ``register_backward``."""

    def run(asked: Asked) -> tuple[Any, ...]:
        ways, plan = asked.ways, asked.ways.plan
        values = ways.values(asked.arguments)
        needed = dict(zip(plan.arguments, asked.needed, strict=False))
        context = BackwardContext(
            inputs=callback_arguments(plan, values),
            outputs={slot.label: result for slot, result in zip(plan.result_slots, asked.results, strict=True)},
            needs_input_grad=tuple(any(needed[s.name] for s in p.slots) for p in plan.parameters),
        )
        # Copies, for the function to change as it likes: a cotangent is the caller's, or shared with other nodes.
        found = function(context, *(None if grad is None else grad.clone() for grad in asked.grads))
        if not isinstance(found, (tuple, list)):
            found = (found,)
        if len(found) != len(plan.parameters):
            raise ArgumentError(
                f"{ways.name}: the registered backward returned {len(found)} gradients; expected "
                f"{len(plan.parameters)}, one for each argument of the op ({', '.join(p.name for p in plan.parameters)}), "
                f"None where there is none"
            )
        by_name: dict[str, Any] = {}
        for parameter, grad in zip(plan.parameters, found, strict=True):
            for slot in parameter.slots:
                part = grad
                if parameter.struct and grad is not None:
                    for name in slot.leaf.path[1:]:
                        part = part.get(name) if isinstance(part, dict) else getattr(part, name, None)
                by_name[slot.name] = _checked(ways.name, slot, part, values[slot.name]) if slot.differentiable else None
        return tuple(by_name.get(name) for name in plan.arguments)

    return OwnBackward(run, function)


def _reducible(shape: tuple[Any, ...], wider: tuple[Any, ...]) -> bool:
    """Whether PyTorch sums a gradient of the wider shape over the axes that the argument would be broadcast along."""
    ends = wider[len(wider) - len(shape) :]
    return len(wider) >= len(shape) and all(n in (1, m) for n, m in zip(shape, ends, strict=True))


def _checked(op: str, slot: Slot, grad: Any, value: Any) -> Any:
    """A gradient that a function has returned, if it can be one of that argument."""
    if grad is None or value is None:
        return grad
    what = f"{op}: the registered backward returned for '{slot.label}'"
    if not isinstance(grad, torch.Tensor):
        raise ArgumentError(f"{what} a {type(grad).__name__}; expected a tensor or None")
    if grad.shape != value.shape and not _reducible(tuple(value.shape), tuple(grad.shape)):
        raise ArgumentError(f"{what} a gradient of shape {tuple(grad.shape)}; expected {tuple(value.shape)}")
    return grad
