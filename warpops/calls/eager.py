"""The eager way past autocast and transforms: gradients where they are wanted, checks, the launch or its raw op."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..private import torch_modes
from ..private.torch_guards import direct
from .refusal import explain_failure
from .special import increment_version, refuse_mutation, resolve_negated
from .ways import Ways, many, one_or_many


def eager(ways: Ways, launch: Callable[..., Any], /, *arguments: Any) -> Any:
    """A call with all values of the schema, by position; ``launch`` is what ``launch_or_op`` made."""
    plan = ways.plan
    try:
        changed = [arguments[place] for place in plan.mutated_places]
        if changed:
            guarded = changed if plan.results else [arguments[k] for k, slot in enumerate(plan.inputs) if slot.is_array]
            if _wants_grad(guarded):
                refuse_mutation(ways, arguments)
            if any(value is not None and value.is_neg() for value in changed):
                return resolve_negated(ways, arguments)
        if plan.differentiable and _wants_grad(arguments[place] for place in plan.gradient_places):
            results = ways.live().apply(*arguments)
        else:
            results = launch(*arguments)
            if len(plan.returned) > len(plan.results):
                results = one_or_many(many(results)[: len(plan.results)])
        for value in changed:
            increment_version(value)
        return results
    except (AttributeError, TypeError, RuntimeError):
        explain_failure(ways, arguments)
        raise


def _wants_grad(values: Iterable[Any]) -> bool:
    return torch_modes.grad_enabled() and any(value is not None and value.requires_grad for value in values)


def launch_or_op(ways: Ways, way: str, op: Callable[..., Any]) -> Callable[..., Any]:
    """A launch, or its raw op where anything watches or changes dispatch, of the raw op's values."""
    plan, launch = ways.plan, ways.instances.launch
    arrays = [place for place, slot in enumerate(plan.inputs) if slot.is_array]
    places = [*arrays, *(place for place, slot in enumerate(plan.inputs) if slot.role == "tensor_scalar")]
    count = len(plan.arguments)

    def run(*values: Any) -> Any:
        more = values[count:-1]  # of a backward's, all but which gradients are wanted
        return launch(way, *values) if direct(*[values[place] for place in places], *more) else op(*values)

    return run
