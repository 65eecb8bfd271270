"""What PyTorch's dispatcher calls for an op's operators: the public one in each of its ways, the raw forward under autograd."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import GradientError
from ..private import torch_modes
from .special import cast, has_tangents
from .traced import pin, traced
from .ways import Ways


def run_public(ways: Ways, /, *arguments: Any, **named: Any) -> Any:
    """The public op."""
    arguments, eager = ways.complete(arguments, named), ways.live().eager
    if torch_modes.functorch_level() is not None and torch_modes.is_wrapped(arguments):
        raise GradientError(
            f"{ways.name}: torch.func.grad, vjp and jacrev work on op(...) in eager code, not on op.overload "
            f"and not inside compiled code; take the gradient outside torch.compile"
        )
    if torch.compiler.is_compiling():
        pin(ways)
        return traced(ways, arguments)
    if has_tangents(arguments):
        return ways.transforms().call(arguments)
    return eager(*arguments)


def run_cast(ways: Ways, /, *arguments: Any, **named: Any) -> Any:
    """The public op under autocast."""
    values = cast(ways, ways.complete(arguments, named))
    with torch_modes.exclude_autocast():
        return ways.call_public(values)


def run_mapped(ways: Ways, keyset: Any, /, *arguments: Any, **named: Any) -> Any:
    """The public op under vmap, where it is called by itself (``op.overload``) or from compiled code."""

    def rule(info: Any, in_dims: Any, /, *arguments: Any, **named: Any) -> Any:
        values = ways.complete(arguments, named)
        dims = (*in_dims, *(None for _ in values[len(in_dims) :]))
        return ways.transforms().map_public(info, dims, values)

    return torch_modes.call_vmap_rule(rule, ways.ops.public, arguments, named)


def run_forward(ways: Ways, keyset: Any, /, *arguments: Any) -> Any:
    """The raw forward where a gradient is wanted: in a graph that was traced without one (``make_fx``)."""
    plan = ways.plan
    if torch.is_grad_enabled() and any(
        slot.differentiable and value is not None and value.requires_grad
        for slot, value in zip(plan.inputs, arguments, strict=False)
    ):
        if plan.mutated or len(plan.returned) != len(plan.results):
            raise GradientError(
                f"{ways.name}: a graph that was traced without gradients can't be differentiated; trace it with "
                f"inputs that require grad, or run it under torch.no_grad()"
            )
        return ways.live().function().apply(*arguments)
    return ways.ops.forward.redispatch(keyset.remove(keyset.highestPriorityTypeId()), *arguments)
