"""What a call meets off the plain way: autocast, transforms, tangents, in-place changes, a backward that is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from ..arguments.ran import check_ran
from ..arguments.tensor_scalar import refuse_number
from ..errors import GradientError
from ..private import torch_modes
from .ways import Ways

AUTOCAST_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@torch_modes.untraced
def special(ways: Ways, arguments: tuple[Any, ...]) -> Any:
    """A call under autocast, forward-mode AD or a torch.func transform."""
    if torch_modes.autocast_active():
        arguments = cast(ways, arguments)
    if torch_modes.functorch_level() is not None or has_tangents(arguments):
        return ways.transforms().call(arguments)
    return ways.live().eager(*arguments)


def has_tangents(arguments: tuple[Any, ...]) -> bool:
    """Whether a tensor carries a forward-mode tangent."""
    if torch_modes.forward_ad._current_level < 0:
        return False
    return any(isinstance(value, torch.Tensor) and torch_modes.has_tangent(value) for value in arguments)


def cast(ways: Ways, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Autocast: bring float16, bfloat16 and float32 to the kernel's own dtype."""
    found = list(arguments)
    for index, slot in enumerate(ways.plan.inputs):
        value, scalar = arguments[index], slot.leaf.scalar
        if not slot.is_array or not isinstance(value, torch.Tensor) or scalar is None or slot.role == "mutated":
            continue
        if (
            value.dtype in AUTOCAST_DTYPES
            and scalar.dtype in AUTOCAST_DTYPES
            and value.dtype is not scalar.dtype
            and torch.is_autocast_enabled(value.device.type)
        ):
            found[index] = value.to(scalar.dtype)
    return tuple(found)


def refuse_mutation(ways: Ways, arguments: tuple[Any, ...]) -> None:
    """Refuse to change in place what autograd or forward mode would have to follow."""
    for slot, value in zip(ways.plan.inputs, arguments, strict=False):
        if not slot.is_array or not isinstance(value, torch.Tensor) or (slot.role != "mutated" and ways.plan.results):
            continue
        how = torch_modes.followed(value)
        if how is None:
            continue
        call = "call under torch.no_grad(), " if how == "requires grad" else ""  # which tangents don't heed
        if slot.role == "mutated":
            raise GradientError(
                f"{ways.name}: argument '{slot.label}' is changed in place and {how}; {call}pass {slot.name}.detach(), or "
                f"make it in-out in the signature"
            )
        raise GradientError(
            f"{ways.name}: argument '{slot.label}' {how}, and an op that only changes arrays in place has no output to "
            f"carry it; {call}pass {slot.name}.detach(), or make what is changed in-out in the signature, for a gradient"
        )


def refuse_numbers(ways: Ways, arguments: tuple[Any, ...]) -> None:
    """Refuse ``tensor_scalars`` that a derivative is asked of, where transforms hide that from the launch."""
    for slot, value in zip(ways.plan.inputs, arguments, strict=False):
        if slot.role == "tensor_scalar" and isinstance(value, torch.Tensor) and torch_modes.followed(value):
            refuse_number(ways.name, slot)


def refuse_gradient(ways: Ways) -> NoReturn:
    raise GradientError(f"{ways.name} has no gradient: {ways.plan.gradient_why} [backward]")


def resolve_negated(ways: Ways, arguments: tuple[Any, ...], call: Callable[..., Any] | None = None) -> Any:
    """Call with mutated tensors that carry PyTorch's lazy negation: on plain numbers, which then go back."""
    plain = list(arguments)
    changed = []
    for index, (slot, value) in enumerate(zip(ways.plan.inputs, arguments, strict=False)):
        if slot.role == "mutated" and value is not None and value.is_neg():
            plain[index] = value.resolve_neg()
            changed.append(index)
    results = (call or ways.live().eager)(*plain)
    with torch.no_grad():
        for index in changed:
            arguments[index].copy_(plain[index])
    return results


def increment_version(tensor: torch.Tensor | None) -> None:
    """Tell autograd that a tensor changed, as an in-place op of PyTorch's own would."""
    if tensor is not None and not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def backward_again(ways: Ways, ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
    """The backward where it is itself recorded: an operation that is differentiable again."""
    plan, saved = ways.plan, ctx.saved_tensors
    recorded = plan.kernel.program and torch.compiler.is_compiling()
    if recorded and (why := plan.kernel.kernel.reads().why) is not None:
        raise GradientError(
            f"{ways.name}: a gradient that is itself recorded inside of compiled code runs the program again, and can't tell "
            f"whether that comes to the same: {why}; pass it as an argument, or take the derivative in eager code"
        )
    count = len(plan.tensor_places)
    values = plan.join(saved[:count], ctx.numbers if plan.other_places else ())
    kept = saved[count : count + len(plan.kept)]
    # Saved are what the launch left in such arrays and, last of all, what they held before.
    written = [plan.arguments.index(slot.name) for slot in plan.written_back]
    left = [values[position] for position in written]
    for position, value in zip(written, saved[len(saved) - len(written) :], strict=True):
        values[position] = value
    live = [c for c, slot in zip(cotangents, plan.result_slots, strict=True) if slot.differentiable]
    needs = [bool(ctx.needs_input_grad[position]) for position in plan.gradient_places]
    found = ways.transforms().backward_function.apply(*values, *kept, *left, *live, needs)
    if plan.runs_again and not torch.compiler.is_compiling():
        check_ran(ways.name, ctx.ran)
    return tuple(plan.spread(found))
