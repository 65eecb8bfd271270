"""A wrong argument: the words for it, and how they reach the user where PyTorch traces."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable
from typing import Any, NoReturn

import numpy
import torch

from ..arguments.call import measure
from ..arguments.kind import fail
from ..arguments.kinds import check_slot, kind_of
from ..arguments.number import check_number
from ..arguments.vector import Vector
from ..private.helper_op import HelperOp
from .ways import Ways, by_key

SAMPLES: dict[str, Any] = {"list": [], "tuple": (), "dict": {}, "ndarray": numpy.empty(0)}
"""What stands for a wrong argument in a message, by its class, where compiled code can't show it."""
_SAMPLE_CLASSES = tuple(type(sample) for sample in SAMPLES.values())


def explain_failure(ways: Ways, arguments: tuple[Any, ...]) -> None:
    """Raise what is wrong with a call's arguments; returns where nothing is."""
    values, inputs = ways.values(arguments), ways.plan.inputs
    for slot in inputs:
        value = values[slot.name]
        if not slot.leaf.generic:
            check_slot(ways.name, slot, value)
        elif slot.is_array and not isinstance(value, torch.Tensor) and value is not None:
            fail(ways.name, slot, f"expected a tensor ({slot.leaf.type_name}), got {type(value).__name__}")
    tensors = [values[slot.name] for slot in inputs if slot.is_array and values[slot.name] is not None]
    for slot in inputs:
        absent = slot.role == "tensor_scalar" and getattr(values[slot.name], "is_meta", False)
        if absent and not all(tensor.is_meta for tensor in tensors):
            fail(ways.name, slot, "expected a 0-d tensor on cpu (tensor_scalars), got one on meta, which has no value")
    instance = ways.instances.select(arguments)
    try:
        measure(ways.name, instance.plan, values, ways.device(arguments))
    except (AttributeError, TypeError, RuntimeError):
        return


def refuser(ways: Ways) -> Callable[..., Any]:
    """What traced code calls with a wrong argument: an exception raised there would lose its text."""
    key, refuse = ways.key, refusal_op.overload()

    def refuse_traced(
        index: int, value: Any, item: bool = False, nesting: tuple[int, ...] | None = None, said: str = ""
    ) -> Any:
        if said:
            return refuse(key, index, None, f"={said}")
        if nesting is not None:
            parts = [f"[{'0, ' * length}]" if length else "0" for length in nesting]
            return refuse(key, index, None, f"literal [{', '.join(parts)}]")
        if isinstance(value, torch.Tensor):
            return refuse(key, index, value, "item" if item else "")
        if value is None or isinstance(value, (bool, int, float, str)):
            return refuse(key, index, None, f"{'item' if item else 'literal'} {value!r}")
        for kind in _SAMPLE_CLASSES:
            if isinstance(value, kind):
                return refuse(key, index, None, f"{'item' if item else 'sample'} {kind.__name__}")
        return refuse(key, index, None, type(value).__name__)

    return refuse_traced


def _refuse(op: str, index: int, value: torch.Tensor | None, shown: str) -> NoReturn:
    """Raise for one argument whose type compiled code found wrong, in the words of eager code."""
    ways = by_key[op]
    name, slot = ways.name, ways.plan.inputs[index]
    if shown.startswith("="):
        fail(name, slot, shown[1:])
    how, _, rest = shown.partition(" ")
    found: Any = value
    if how == "sample" or (how == "item" and rest in SAMPLES):
        found = SAMPLES[rest]
    elif how in ("literal", "item") and value is None:
        found = ast.literal_eval(rest)
    elif value is None:
        found = types.new_class(shown)()
    vector, numbers = isinstance(kind_of(slot), Vector), f"expected numbers ({slot.leaf.type_name}), got"
    if how == "sample" and rest == "ndarray" and vector:
        fail(
            name, slot, f"{numbers} a numpy array, which compiled code doesn't take by value; pass them with .tolist()"
        )
    if how == "item":
        check_number(name, slot, slot.leaf.scalar, found)
    elif vector and value is None and how not in ("literal", "sample"):
        why = "a Warp value that is made in compiled code has to be a tuple of its numbers"
        fail(name, slot, f"{numbers} {shown}; {why}")
    else:
        check_slot(name, slot, found)
    fail(name, slot, f"can't be used in compiled code: {shown}")


refusal_op = HelperOp("_refuse(str op, int index, Tensor? value, str shown) -> Tensor", _refuse, _refuse)
"""Only ever raises, while PyTorch runs a graph's fakes: there an exception keeps its text."""
