"""What PyTorch's dispatcher calls for an op's operators: the public one in each of its ways, the raw forward under autograd."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import GradientError
from ..private import torch_modes
from .special import cast, has_tangents
from .traced import fake_public, pin, traced
from .ways import Plain, Ways, newest


def run_public(ways: Ways, /, *arguments: Any, **named: Any) -> Any:
    """The public op."""
    return _run(ways, ways.ops.public, ways.complete(arguments, named))


def _run(ways: Ways, overload: Any, arguments: tuple[Any, ...]) -> Any:
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


def run_cast(ways: Ways, /, *arguments: Any, **named: Any) -> Any:
    """The public op under autocast."""
    return _cast(ways, ways.ops.public, ways.complete(arguments, named))


def _cast(ways: Ways, overload: Any, arguments: tuple[Any, ...]) -> Any:
    values = cast(ways, arguments)
    with torch_modes.exclude_autocast():
        return ways.call_public(values, overload)


def run_mapped(ways: Ways, keyset: Any, /, *arguments: Any, **named: Any) -> Any:
    """The public op under vmap, where it is called by itself (``op.overload``) or from compiled code."""
    return _map(ways, ways.ops.public, arguments, named)


def _map(ways: Ways, overload: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    def rule(info: Any, in_dims: Any, /, *arguments: Any, **named: Any) -> Any:
        values = ways.complete(arguments, named)
        dims = (*in_dims, *(None for _ in values[len(in_dims) :]))
        return ways.transforms().map_forward(info, dims, values, public=True)

    return torch_modes.call_vmap_rule(rule, overload, arguments, named)


# --- under the plain name ---------------------------------------------------------------------------------------------


def run_plain(plain: Plain, /, *arguments: Any, **named: Any) -> Any:
    """The newest op of a name."""
    ways = newest(plain.name)
    return _run(ways, plain.overload, ways.complete(arguments, named))


def run_plain_cast(plain: Plain, /, *arguments: Any, **named: Any) -> Any:
    """The newest op of a name, under autocast."""
    ways = newest(plain.name)
    return _cast(ways, plain.overload, ways.complete(arguments, named))


def run_plain_mapped(plain: Plain, keyset: Any, /, *arguments: Any, **named: Any) -> Any:
    """The newest op of a name, under vmap."""
    return _map(newest(plain.name), plain.overload, arguments, named)


def fake_plain(plain: Plain, /, *arguments: Any, **named: Any) -> Any:
    """The fake kernel of the newest op of a name."""
    return fake_public(newest(plain.name), *arguments, **named)


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


def run_forward_into(ways: Ways, /, *values: Any) -> None:
    """The raw forward over given buffers."""
    _refuse_tangents(ways, values)
    ways.instances.forward_into(*values)


def run_backward(ways: Ways, /, *values: Any) -> list[torch.Tensor]:
    """The raw backward."""
    _refuse_second(ways, values)
    return ways.instances.backward(*values)


def run_backward_into(ways: Ways, /, *values: Any) -> None:
    """The raw backward over given buffers."""
    _refuse_second(ways, values)
    ways.instances.backward_into(*values)


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


def _refuse_second(ways: Ways, values: tuple[Any, ...]) -> None:
    _refuse_tangents(ways, values)
    if torch.is_grad_enabled() and any(
        isinstance(v, torch.Tensor) and v.requires_grad for v in _followed(ways, values)
    ):
        raise GradientError(
            f"{ways.name}: a graph that was traced with its gradient can't be differentiated once more; trace it with "
            f"create_graph=True and the second derivative in it, or take that in eager code"
        )
