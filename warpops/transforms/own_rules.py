"""What is the user's own under vmap: the results of a function given to ``register_vmap``, and a registered backward."""

from __future__ import annotations

from typing import Any

import torch

from ..calls.ways import Asked, OwnBackward, Ways
from ..errors import ArgumentError
from ..plan.model import OpPlan, Slot


def mapped_results(op: str, plan: OpPlan, size: int, found: Any) -> tuple[Any, Any]:
    """The results and their batch axes, one of each for each result of the op; bare for an op with one result.

    Args:
        op: the op's name, for messages.
        plan: the op's plan.
        size: of the batch.
        found: what the rule returned.

    Raises:
        ArgumentError: it can't be the results of the batch.
    """
    what, slots = f"{op}: the registered vmap rule", plan.result_slots
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise ArgumentError(f"{what} returned {_kind(found)}; expected a tuple (outputs, out_dims)")
    outputs, dims = found
    many = tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
    if len(many) != len(slots):
        names = ", ".join(slot.label for slot in slots)
        raise ArgumentError(
            f"{what} returned {len(many)} outputs; expected {len(slots)}, one for each result ({names})"
        )
    axes = tuple(dims) if isinstance(dims, (tuple, list)) else (dims,) * len(slots)
    if len(axes) != len(slots):
        raise ArgumentError(f"{what} returned {len(axes)} out_dims; expected {len(slots)}, one for each output")
    axes = tuple(_checked(what, slot, size, value, axis) for slot, value, axis in zip(slots, many, axes, strict=True))
    return (many, axes) if len(slots) != 1 else (many[0], axes[0])


def _checked(what: str, slot: Slot, size: int, value: Any, axis: Any) -> int | None:
    what, leaf = f"{what} returned for '{slot.label}'", slot.leaf
    if not isinstance(value, torch.Tensor):
        raise ArgumentError(f"{what} a {type(value).__name__}; expected a tensor")
    if leaf.scalar is not None and value.dtype is not leaf.scalar.dtype:
        raise ArgumentError(f"{what} a tensor of {value.dtype}; expected {leaf.scalar.dtype}")
    if axis is not None and (not isinstance(axis, int) or not -value.ndim <= axis < value.ndim):
        raise ArgumentError(
            f"{what} the batch axis {axis!r}; expected an axis of its shape {tuple(value.shape)}, or None"
        )
    shape = list(value.shape)
    if axis is not None and shape.pop(axis) != size:
        raise ArgumentError(
            f"{what} {value.shape[axis]} elements on axis {axis}; expected {size}, the size of the batch"
        )
    component = leaf.component
    if component is not None and (
        len(shape) != leaf.ndim + len(component) or tuple(shape[leaf.ndim :]) != tuple(component)
    ):
        sizes = ", ".join([*"*" * leaf.ndim, *map(str, component)])
        raise ArgumentError(f"{what} elements of shape {tuple(shape)}; expected ({sizes}) beside the batch axis")
    return axis if axis is None or axis >= 0 else axis + value.ndim


def _kind(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"


def mapped_backward(single: Ways, names: frozenset[str]) -> OwnBackward:
    """A backward of the user's own, over a batch: the backward of one element under vmap."""
    assert single.custom is not None
    own = single.custom

    def run(asked: Asked) -> tuple[Any, ...]:
        arguments = asked.arguments
        batched = [k for k, name in enumerate(asked.ways.plan.arguments) if name in names]
        found: list[int] = []

        def backward(inputs: list[Any], results: tuple[Any, ...], grads: tuple[Any, ...]) -> list[torch.Tensor]:
            values = list(arguments)
            for position, value in zip(batched, inputs, strict=True):
                values[position] = value
            made = own.run(Asked(single, tuple(values), results, grads, asked.needed))
            found[:] = [k for k, grad in enumerate(made) if grad is not None]
            return [grad for grad in made if grad is not None]

        made = torch.func.vmap(backward)([arguments[k] for k in batched], asked.results, asked.grads)
        whole: list[Any] = [None] * len(arguments)
        for position, grad in zip(found, made, strict=True):
            whole[position] = grad if position in batched else grad.sum(0)
        return tuple(whole)

    return OwnBackward(run, own.meaning)
