"""What PyTorch's dispatcher calls for an op's operators: the public one, also under its plain name, and the raw ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import GradientError
from ..private import torch_modes
from .special import cast, has_tangents
from .traced import pin, traced
from .ways import Plain, Ways


def run_public(op: Ways | Plain, /, *arguments: Any, **named: Any) -> Any:
    """The public op."""
    ways, overload = op.now()
    arguments = ways.complete(arguments, named)
    eager = ways.live().eager
    if torch_modes.functorch_level() is not None and torch_modes.is_wrapped(arguments):
        raise GradientError(
            f"{ways.name}: torch.func.grad, vjp and jacrev work on op(...) in eager code, not on op.overload "
            f"and not inside compiled code; take the gradient outside torch.compile"
        )
    if torch.compiler.is_compiling():
        pin(ways)
        return traced(ways, arguments, overload)
    if has_tangents(arguments):
        return ways.transforms().call(arguments)
    return eager(*arguments)


def run_cast(op: Ways | Plain, /, *arguments: Any, **named: Any) -> Any:
    """The public op under autocast."""
    ways, overload = op.now()
    values = cast(ways, ways.complete(arguments, named))
    with torch_modes.exclude_autocast():
        return ways.call_public(values, overload)


def run_mapped(op: Ways | Plain, keyset: Any, /, *arguments: Any, **named: Any) -> Any:
    """The public op under vmap, where it is called by itself (``op.overload``) or from compiled code."""
    ways, overload = op.now()

    def rule(info: Any, in_dims: Any, /, *arguments: Any, **named: Any) -> Any:
        values = ways.complete(arguments, named)
        dims = (*in_dims, *(None for _ in values[len(in_dims) :]))
        return ways.transforms().map_forward(info, dims, values, public=True)

    return torch_modes.call_vmap_rule(rule, overload, arguments, named)


PUBLIC: tuple[tuple[str, Callable[..., Any], bool], ...] = (
    ("Autograd", run_public, False),
    ("CompositeExplicitAutograd", run_public, False),
    (torch_modes.VMAP_KEY, run_mapped, True),
    *((key, run_cast, False) for key in torch_modes.AUTOCAST.values()),
)
"""The kernels of the public operator, by dispatch key, and whether each is given the set of keys."""


# --- raw operators ----------------------------------------------------------------------------------------------------


def run_forward(ways: Ways, keyset: Any, /, *arguments: Any) -> Any:
    """The raw forward where a gradient is wanted: in a graph that was traced without one (``make_fx``)."""
    plan = ways.plan
    _refuse_tangents(ways, arguments)
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


def run_raw(ways: Ways, way: str, /, *values: Any) -> Any:
    """The raw backward, or one of those over given buffers: none has a derivative."""
    _refuse_tangents(ways, values)
    recorded = way != "forward_into" and torch.is_grad_enabled()
    if recorded and any(isinstance(v, torch.Tensor) and v.requires_grad for v in _followed(ways, values)):
        raise GradientError(
            f"{ways.name}: a graph that was traced with its gradient can't be differentiated once more; trace it with "
            f"create_graph=True and the second derivative in it, or take that in eager code"
        )
    return ways.instances.launch(way, *values)


def _followed(ways: Ways, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Those of a raw operator's values that a derivative may be asked of: what is named in ``nondiff`` has none."""
    plan = ways.plan
    inputs = (v for s, v in zip(plan.inputs, values, strict=False) if s.differentiable or plan.mutated)
    return (*inputs, *values[len(plan.inputs) :])


def _refuse_tangents(ways: Ways, values: tuple[Any, ...]) -> None:
    if torch_modes.forward_ad._current_level >= 0 and has_tangents(_followed(ways, values)):
        raise GradientError(
            f"{ways.name}: a graph that was traced without tangents has none to give; take them in eager code"
        )
