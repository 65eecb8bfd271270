"""What the generated text calls besides the launches. Nothing here is on the eager fast path."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..arguments.call import to_device
from ..arguments.dynamo import traced_value
from ..arguments.handle import alive, check_unchanged, id_of, keep_alive
from ..arguments.ids import to_ids
from ..arguments.kinds import KINDS, convert
from ..arguments.number import SYMBOLIC_NUMBERS, guard_number, traced_int
from ..arguments.ran import check_ran, latest_ran
from ..arguments.struct import field_reader
from ..arguments.tensor_scalar import refuse_number, traced_tensor
from ..arguments.vector import default_value, traced_nesting, traced_vector, wrong_item
from ..launch.packing import NOT_RECALLED
from ..private import torch_modes
from .copies import copy_of
from .eager import eager, launch_or_op
from .own_backward import custom_backward
from .refusal import refuser
from .remember import Store
from .special import (
    backward_again,
    has_tangents,
    refuse_gradient,
    special,
)
from .traced import check_exported, traced_backward, traced_forward
from .ways import Plain, Ways, plain_of

MODES = ("autocast_active", "dispatch_modes", "forward_ad", "function_mode", "functorch_level", "grad_enabled")
"""Of ``torch_modes``, by their own names."""
SHARED: dict[str, Any] = {
    "is_compiling": torch.compiler.is_compiling,
    "get_default_device": torch.get_default_device,
    "profiling": torch_modes.profiling,
    "NotRecalled": NOT_RECALLED,
    "Tensor": torch.Tensor,
    "Device": torch.device,
    "AutogradFunction": torch.autograd.Function,
    "INTS": (int, torch.SymInt),
    "NUMBERS": SYMBOLIC_NUMBERS,
    "guard_scalar": guard_number,
    "handle": id_of,
    "partial": partial,
}
PLAIN: tuple[Callable[..., Any], ...] = (alive, copy_of, has_tangents, keep_alive)
PLAIN += (latest_ran, traced_int, traced_nesting, traced_tensor, traced_value, traced_vector, wrong_item)
"""By their own names."""
OVER_WAYS: tuple[Callable[..., Any], ...] = (special, refuse_gradient, traced_forward, traced_backward)
OVER_WAYS += (backward_again, custom_backward)
"""By their own names, and for one op."""


def to_export(ways: Ways, plain: Plain) -> dict[str, Any]:
    """Whether a program is being written, where the op may be, and the operator that it is written with."""

    @torch_modes.constant_while_tracing
    def exporting() -> bool:
        if not torch.compiler.is_exporting():
            return False
        check_exported(ways)
        return True

    return {"exporting": exporting, "plain": plain}


def helpers(ways: Ways, forward_op: Callable[..., Any]) -> dict[str, Any]:
    """The scope of one op's text; ``forward_op`` is the raw forward."""
    plan = ways.plan
    slots = {slot.name: slot for slot in plan.inputs}
    refuse_traced = refuser(ways)
    found = SHARED | {name: getattr(torch_modes, name) for name in MODES}
    found |= {function.__name__: function for function in PLAIN}
    found |= {function.__name__: partial(function, ways) for function in OVER_WAYS}
    found |= {kind.convert_name: partial(convert, ways.name, slots) for kind in KINDS if kind.convert_name}
    found["to_ids"] = partial(to_ids, ways.name, slots)
    found["to_device"] = partial(to_device, ways.name)
    if any(parameter.struct for parameter in plan.parameters):
        optional = frozenset(slot.label for slot in plan.inputs if slot.optional)
        labels = [leaf.label for leaf in plan.kernel.leaves]
        found["field"] = field_reader(ways.name, labels, optional, refuse_traced)
    found |= to_export(ways, plain_of(ways.name) if ways.named else Plain(ways.name, overload=ways.ops.public))
    launch_forward = launch_or_op(ways, "forward", forward_op)
    launch_backward = launch_or_op(ways, "backward", ways.ops.backward)
    return found | {
        "eager": partial(eager, ways, launch_forward),
        "refuse_traced": refuse_traced,
        "refuse_number": lambda name: refuse_number(ways.name, slots[name]),
        "launch_forward": launch_forward,
        "launch_backward": launch_backward,
        "forwards": Store(ways.instances, "forward", launch_forward),
        "backwards": Store(ways.instances, "backward", launch_backward),
        "public_op": ways.ops.public,
        "defaults": {p.name: default_value(p.default) for p in plan.parameters},
        "check_ran": partial(check_ran, ways.name),
        "check_alive": partial(check_unchanged, ways.name, [slots[name].label for name in plan.holding]),
    }
