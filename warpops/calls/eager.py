"""The eager way past autocast and transforms: gradients where they are wanted, checks, the launch or its raw op."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..plan.model import OpPlan
from ..private import torch_modes
from ..private.torch_guards import direct
from .refusal import explain_failure
from .remember import picker
from .special import increment_version, refuse_mutation, resolve_negated
from .ways import Ways, many, one_or_many


def eager(ways: Ways, launch: Callable[..., Any], /, *arguments: Any) -> Any:
    """A call with all values of the schema, by position; ``launch`` is what ``launch_or_op`` made."""
    plan = ways.plan
    try:
        changed: list[Any] = []
        if plan.mutated:
            changed = [value for value, slot in zip(arguments, plan.inputs, strict=True) if slot.role == "mutated"]
            if _wants_grad(changed if plan.results else [arguments[place] for place in _arrays(plan)]):
                refuse_mutation(ways, arguments)
            if any(value is not None and value.is_neg() for value in changed):
                return resolve_negated(ways, arguments)
        if plan.differentiable and _wants_grad([arguments[place] for place in plan.gradient_places]):
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


def _arrays(plan: OpPlan) -> list[int]:
    return [place for place, slot in enumerate(plan.inputs) if slot.is_array]


def _wants_grad(values: Iterable[Any]) -> bool:
    if torch_modes.grad_enabled():
        for value in values:  # half the time of any() over a generator
            if value is not None and value.requires_grad:
                return True
    return False


def launch_or_op(ways: Ways, way: str, op: Callable[..., Any]) -> Callable[..., Any]:
    """A launch, or its raw op where anything watches or changes dispatch, of the raw op's values."""
    plan, launch = ways.plan, ways.instances.launch
    scalars = [place for place, slot in enumerate(plan.inputs) if slot.role == "tensor_scalar"]
    tensors, count = picker([*_arrays(plan), *scalars]), len(plan.arguments)

    def run(*values: Any) -> Any:
        more = values[count:-1]  # of a backward's, all but which gradients are wanted
        return launch(way, *values) if direct(*tensors(values), *more) else op(*values)

    return run
