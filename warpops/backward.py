"""Backwards of the user's own: a registered function, or a kernel or op declared with ``backward=``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from . import _warp, checks
from .declaration import Declaration, declare
from .errors import ArgumentError, SignatureError
from .kernel import Leaf, inspect_kernel
from .plan import OpPlan, Slot

if TYPE_CHECKING:
    from .op import WarpOp
    from .runtime import Runtime


@dataclass(frozen=True)
class BackwardContext:
    """What a registered backward sees of the forward."""

    inputs: dict[str, Any]
    """The op's arguments by name, as the call gave them; a struct is a namespace of its fields."""
    outputs: dict[str, torch.Tensor]
    """The op's results by name; an in-out array's value after the launch."""
    needs_input_grad: tuple[bool, ...]
    """Whether each argument of the op needs a gradient."""


class RegisteredBackward:
    """A function given to ``register_backward``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    @property
    def meaning(self) -> Any:
        return self.function

    def __call__(
        self,
        runtime: Runtime,
        arguments: tuple[Any, ...],
        results: tuple[Any, ...],
        grads: tuple[Any, ...],
        needed: tuple[bool, ...],
    ) -> tuple[Any, ...]:
        plan = runtime.plan
        values = runtime.values(arguments)
        by_slot = dict(zip(runtime.front.arguments, needed, strict=False))
        context = BackwardContext(
            inputs=checks.callback_arguments(plan, values),
            outputs={slot.label: result for slot, result in zip(plan.result_slots, results, strict=True)},
            needs_input_grad=tuple(any(by_slot[s.name] for s in p.slots) for p in plan.parameters),
        )
        # Copies, for the function to change as it likes: a cotangent is the caller's, or shared with other nodes.
        found = self.function(context, *(None if grad is None else grad.clone() for grad in grads))
        if not isinstance(found, (tuple, list)):
            found = (found,)
        if len(found) != len(plan.parameters):
            raise ArgumentError(
                f"{runtime.name}: the registered backward returned {len(found)} gradients; expected "
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
                by_name[slot.name] = (
                    _checked(runtime.name, slot, part, values[slot.name]) if slot.differentiable else None
                )
        return tuple(by_name.get(name) for name in runtime.front.arguments)


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


class DeclaredBackward:
    """The option ``backward``: an op whose arguments and results are known by their names.

    It takes the forward's inputs and outputs under their names and ``grad_<output>``, and gives ``grad_<input>``. An
    in-out ``y`` is the value before the launch, and ``grad_y`` the cotangent on entry and the gradient on exit.
    """

    def __init__(self, op: WarpOp, launch_rank: int, made_here: bool) -> None:
        self.op, self.launch_rank, self.made_here = op, launch_rank, made_here
        self.meaning = [op.schema, op.source]

    def __call__(
        self,
        runtime: Runtime,
        arguments: tuple[Any, ...],
        results: tuple[Any, ...],
        grads: tuple[Any, ...],
        needed: tuple[bool, ...],
    ) -> tuple[Any, ...]:
        plan = runtime.plan
        values = runtime.values(arguments)
        given: dict[str, Any] = checks.callback_arguments(plan, values)
        for slot, result, grad in zip(plan.result_slots, results, grads, strict=True):
            if slot.role == "output":
                given[slot.label] = result
            if slot.differentiable:
                given[f"grad_{slot.label}"] = grad
        if self.made_here:
            instance = runtime.instances.select(arguments)
            found = checks.measure(runtime.name, instance.plan, values, runtime.device(arguments))
            for axis, size in enumerate(found.launch):
                given[f"dim_{axis}"] = size
            for slot in plan.gradients:
                for axis in range(slot.leaf.ndim):
                    given[f"{slot.name}_size_{axis}"] = values[slot.name].shape[axis]
        own = self.op._plan
        names = [parameter.name for parameter in own.parameters]
        made = self.op(**{name: given[name] for name in names})
        made = made if isinstance(made, tuple) else (made,)
        by_name = {slot.label: grad for slot, grad in zip(own.result_slots, made, strict=True)}
        by_slot = {slot.name: by_name.get(f"grad_{slot.label}") for slot in plan.gradients}
        return tuple(by_slot.get(name) for name in runtime.front.arguments)


def declared_backward(plan: OpPlan, value: Any, build: Callable[[Any, Declaration, str], WarpOp]) -> DeclaredBackward:
    """Make the option ``backward`` an op and check that its names fit the forward's.

    Raises:
        SignatureError: an argument's name stands for nothing of the forward, or nothing is given.
    """
    from .op import WarpOp

    inputs = [p.name for p in plan.parameters]
    outputs = [s.label for s in plan.result_slots if s.role == "output"]
    cotangents = {f"grad_{s.label}" for s in plan.result_slots if s.differentiable}
    inout = {f"grad_{s.label}" for s in plan.result_slots if s.role == "inout" and s.differentiable}
    gradients = {f"grad_{s.label}": s for s in plan.gradients if s.role != "inout"}
    if isinstance(value, WarpOp):
        op = value
        unknown = [p.name for p in op._plan.parameters if p.name not in {*inputs, *outputs, *cotangents}]
        given = {slot.label for slot in op._plan.result_slots}
        _check_names(plan, unknown, given, set(gradients) | inout, op.name)
        _check_types(plan, [slot.leaf for slot in (*op._plan.inputs, *op._plan.result_slots)], op.name)
        return DeclaredBackward(op, 0, False)
    is_lambda = getattr(value, "__name__", "") == "<lambda>"
    if callable(value) and not _warp.is_kernel(value) and hasattr(value, "__code__") and not is_lambda:
        import warp as wp

        value = wp.kernel(value)
    if not _warp.is_kernel(value):
        got = "a lambda" if is_lambda else type(value).__name__
        raise SignatureError(
            f"{plan.name}: backward takes a kernel or a WarpOp, and got {got}; a function goes to op.register_backward"
        )
    kernel = inspect_kernel(value)
    names = [argument.name for argument in kernel.arguments]
    known = {*inputs, *outputs, *cotangents, *gradients}
    _check_names(plan, [n for n in names if n not in known], set(names), set(gradients) | inout, value.key)
    _check_types(plan, list(kernel.leaves), value.key)
    right = [name for name in names if name in gradients or name in inout]
    left = [name for name in names if name in inout]
    launch = plan.extents.launch
    rank = len(launch) if not callable(launch) else plan.extents.rank
    if rank is None:
        rank = 1
    sizes = [f"dim_{axis}" for axis in range(rank)]
    shapes: dict[str, str] = {}
    for name in right:
        if name in inout:
            continue
        slot = gradients[name]
        own = [f"{slot.name}_size_{axis}" for axis in range(slot.leaf.ndim)]
        sizes += own
        shapes[name] = ", ".join(own)
    declaration = declare(
        value.key,
        f"{', '.join(left)} -> {', '.join(right)}",
        name=None,
        dim=", ".join(f"dim_{axis}" for axis in range(rank)) if rank else (),
        shapes=shapes or None,
        sizes=sizes,
        optional=[s.label for s in plan.inputs if s.optional and s.label in names] or None,
        block_dim=plan.declaration.block_dim,
        tiled=plan.declaration.tiled,
    )
    return DeclaredBackward(build(value, declaration, plan.name), rank, True)


def _check_types(plan: OpPlan, leaves: list[Leaf], title: str) -> None:
    """An array and its gradient are of one type: PyTorch would sum a gradient of more axes into the right shape."""
    forward = {slot.label: slot.leaf for slot in plan.slots}
    for leaf in leaves:
        own = forward.get(leaf.label.removeprefix("grad_"), forward.get(leaf.label))
        if own is None or not (leaf.is_array and own.is_array) or leaf.generic or own.generic:
            continue
        if (leaf.scalar, leaf.component, leaf.ndim) != (own.scalar, own.component, own.ndim):
            raise SignatureError(
                f"{plan.name}: backward: {title}: argument '{leaf.label}': expected {own.type_name}, the type of "
                f"'{own.label}' in the forward, got {leaf.type_name}"
            )


def _check_names(plan: OpPlan, unknown: list[str], given: set[str], wanted: set[str], where: str) -> None:
    if unknown:
        raise SignatureError(
            f"{plan.name}: backward {where} takes '{unknown[0]}', which is no input, output or gradient of the op; its "
            f"arguments are named after the forward's inputs and outputs, 'grad_<output>' for a cotangent and "
            f"'grad_<input>' for a gradient"
        )
    if not given & wanted:
        raise SignatureError(
            f"{plan.name}: backward {where} gives no gradient; name at least one of {', '.join(sorted(wanted))}"
        )
