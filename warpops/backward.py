"""The option ``backward``: a kernel or an op in place of the adjoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .arguments.call import measure
from .arguments.callbacks import callback_arguments
from .calls.ways import Asked, OwnBackward, many
from .errors import SignatureError
from .kernel.signature import Leaf, inspect_kernel
from .op import WarpOp
from .plan.declaration import Declaration, declare
from .plan.model import OpPlan
from .private import warp_types


def declared(op: WarpOp, made_here: bool) -> OwnBackward:
    """The option ``backward``: an op whose arguments and results are known by their names.

    It takes the forward's inputs and outputs under their names and ``grad_<output>``, and gives ``grad_<input>``. An
    in-out ``y`` is the value before the launch, and ``grad_y`` the cotangent on entry and the gradient on exit.
    """

    def run(asked: Asked) -> tuple[Any, ...]:
        ways, plan = asked.ways, asked.ways.plan
        values = ways.values(asked.arguments)
        given: dict[str, Any] = callback_arguments(plan, values)
        for slot, result, grad in zip(plan.result_slots, asked.results, asked.grads, strict=True):
            if slot.role == "output":
                given[slot.label] = result
            if slot.differentiable:
                given[f"grad_{slot.label}"] = grad
        if made_here:
            concrete = ways.instances.select(asked.arguments).plan
            found = measure(ways.name, concrete, values, ways.device(asked.arguments))
            for axis, size in enumerate(found.launch):
                given[f"dim_{axis}"] = size
            for slot in plan.gradients:
                for axis in range(slot.leaf.ndim):
                    given[f"{slot.name}_size_{axis}"] = values[slot.name].shape[axis]
        made = many(op(**{parameter.name: given[parameter.name] for parameter in op._plan.parameters}))
        by_name = {slot.label: grad for slot, grad in zip(op._plan.result_slots, made, strict=True)}
        by_slot = {slot.name: by_name.get(f"grad_{slot.label}") for slot in plan.gradients}
        return tuple(by_slot.get(name) for name in plan.arguments)

    return OwnBackward(run, [op.schema, op.source], op)


def declared_backward(plan: OpPlan, value: Any, build: Callable[[Any, Declaration, str], WarpOp]) -> OwnBackward:
    """Make the option ``backward`` an op and check that its names fit the forward's.

    Raises:
        SignatureError: an argument's name stands for nothing of the forward, or nothing is given.
    """
    inputs = [p.name for p in plan.parameters]
    outputs = [s.label for s in plan.result_slots if s.role == "output"]
    cotangents = {f"grad_{s.label}" for s in plan.result_slots if s.differentiable}
    inout = {f"grad_{s.label}" for s in plan.result_slots if s.role == "inout" and s.differentiable}
    gradients = {f"grad_{s.label}": s for s in plan.gradient_buffers}
    if isinstance(value, WarpOp):
        op = value
        unknown = [p.name for p in op._plan.parameters if p.name not in {*inputs, *outputs, *cotangents}]
        given = {slot.label for slot in op._plan.result_slots}
        _check_names(plan, unknown, given, set(gradients) | inout, op.name)
        _check_types(plan, [slot.leaf for slot in (*op._plan.inputs, *op._plan.result_slots)], op.name)
        return declared(op, False)
    is_lambda = getattr(value, "__name__", "") == "<lambda>"
    if callable(value) and not warp_types.is_kernel(value) and hasattr(value, "__code__") and not is_lambda:
        import warp as wp

        value = wp.kernel(value)
    if not warp_types.is_kernel(value):
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
    return declared(build(value, declaration, plan.name), True)


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
