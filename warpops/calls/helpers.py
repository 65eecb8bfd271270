"""What the generated text calls besides the launches. Nothing here is on the eager fast path."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..arguments.conversions import to_handle, to_number, to_tensor, to_vector
from ..arguments.dynamo import traced_value
from ..arguments.handle import alive, check_unchanged, id_of, keep_alive
from ..arguments.number import SYMBOLIC_NUMBERS, guard_number, traced_int
from ..arguments.struct import field_reader
from ..arguments.tensor_scalar import traced_tensor
from ..arguments.vector import default_value, traced_nesting, traced_vector, wrong_item
from ..launch.packing import NOT_RECALLED
from ..private import torch_guards, torch_modes
from ..private.torch_modes import FAST
from .copies import copy_of
from .dispatched import forward_below
from .own_backward import custom_backward
from .refusal import explain_failure, refuser
from .remember import Remembered
from .special import backward_again, increment_version, refuse_gradient, refuse_mutation, resolve_negated, special
from .traced import traced_backward, traced_forward
from .ways import Ways

SHARED: dict[str, Any] = {
    "is_compiling": torch.compiler.is_compiling,
    "functorch_level": torch_modes.functorch_level,
    "autocast_active": torch_modes.autocast_active,
    "forward_ad": torch_modes.forward_ad,
    "grad_enabled": torch_modes.grad_enabled,
    "get_default_device": torch.get_default_device,
    "dispatch_modes": torch_modes.dispatch_modes if FAST else (lambda: 1),
    "function_mode": torch_modes.function_mode,
    "profiling": torch_modes.profiling,
    "tracing": torch_modes.tracing,
    "is_ordinary": torch_guards.is_ordinary,
    "NotRecalled": NOT_RECALLED,
    "guard_scalar": guard_number,
    "increment_version": increment_version,
    "Tensor": torch.Tensor,
    "AutogradFunction": torch.autograd.Function,
    "copy_of": copy_of,
    "handle": id_of,
    "alive": alive,
    "keep_alive": keep_alive,
    "INTS": (int, torch.SymInt),
    "NUMBERS": SYMBOLIC_NUMBERS,
    "traced_int": traced_int,
    "traced_value": traced_value,
    "traced_nesting": traced_nesting,
    "traced_vector": traced_vector,
    "wrong_item": wrong_item,
    "traced_tensor": traced_tensor,
    "partial": partial,
}
OVER_WAYS: dict[str, Callable[..., Any]] = {
    "special": special,
    "explain_failure": explain_failure,
    "refuse_mutation": refuse_mutation,
    "refuse_gradient": refuse_gradient,
    "resolve_negated": resolve_negated,
    "traced_forward": traced_forward,
    "traced_backward": traced_backward,
    "forward_op": forward_below,
    "backward_again": backward_again,
    "custom_backward": custom_backward,
}
CONVERSIONS: dict[str, Callable[..., Any]] = {
    "to_number": to_number,
    "to_vector": to_vector,
    "to_handle": to_handle,
    "to_tensor": to_tensor,
}


def helpers(ways: Ways) -> dict[str, Any]:
    """The scope of one op's text."""
    plan = ways.plan
    slots = {slot.name: slot for slot in plan.inputs}
    refuse_traced = refuser(ways)
    found = SHARED | {name: partial(function, ways) for name, function in OVER_WAYS.items()}
    found |= {name: partial(function, ways.name, slots) for name, function in CONVERSIONS.items()}
    if any(parameter.struct for parameter in plan.parameters):
        optional = frozenset(slot.label for slot in plan.inputs if slot.optional)
        found["field"] = field_reader(ways.name, optional, refuse_traced)
    return found | {
        "refuse_traced": refuse_traced,
        "launch_forward": ways.instances.forward,
        "launch_backward": ways.instances.backward,
        "recall": Remembered(ways.instances),
        "public_op": ways.ops.public,
        "backward_op": ways.ops.backward,
        "defaults": {p.name: default_value(p.default) for p in plan.parameters},
        "check_alive": partial(check_unchanged, ways.name, [slots[name].label for name in plan.handles]),
    }
