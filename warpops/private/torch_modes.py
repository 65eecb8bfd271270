"""PyTorch's private side: what is active on this thread. Dispatch modes, autocast, transforms, tracing, tangents.

``tests/test_torch_private.py`` fails first when a new torch changes any of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad as forward_ad

from . import locks
from .torch_registry import forget

FAST = os.environ.get("WARPOPS_FAST", "1") != "0"
"""Take the short ways, an entry point's for ``wp.launch`` and a launch's for its raw op; ``WARPOPS_FAST=0`` forbids them."""

functorch_level: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack
"""The innermost active torch.func transform; None outside of all."""

autocast_active: Callable[[], bool] = torch._C._is_any_autocast_enabled

increment_versions: Callable[[Sequence[torch.Tensor]], None] = torch._C._increment_version
"""Tells autograd that tensors changed, as an in-place op of PyTorch's own would; inference tensors have no version."""

grad_enabled: Callable[[], bool] = torch.is_grad_enabled

dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""How many ``TorchDispatchMode`` are active."""

function_mode: Callable[[], bool] = torch._C._is_torch_function_mode_enabled

tracing: Callable[[], Any] = getattr(torch._C, "_get_tracing_state")  # noqa: B009
"""The state of ``torch.jit.trace``; None outside of it."""

profiling: Callable[[], bool] = torch._C._autograd._profiler_enabled
raw_stream: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
"""The handle of this thread's current stream on a CUDA device, by its number; None where PyTorch is built without."""


def quick_apply(function: Any) -> Any:
    """An autograd function's ``apply``, less what it does for torch.func; its backward is called with no detour."""
    function._backward_cls.apply = function.backward
    return super(torch.autograd.Function, function).apply


below_autograd: Any = getattr(torch._C, "_AutoDispatchBelowAutograd")  # noqa: B009
"""A context in which operators are called as if nothing needed a gradient."""


def lowering_export() -> bool:
    """Whether an exported program is being decomposed: its operators are recorded below autograd."""
    return torch.compiler.is_exporting() and not torch.is_grad_enabled() and dispatch_modes() > 0


VMAP_KEY = "FuncTorchBatched"


def call_vmap_rule(rule: Callable[..., Any], op: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Run a rule ``(info, in_dims, *args, **kwargs)`` for the innermost vmap, as PyTorch does its own."""
    from torch._functorch.autograd_function import custom_function_call_vmap_helper
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

    interpreter: Any = retrieve_current_functorch_interpreter()
    return custom_function_call_vmap_helper(interpreter, rule, op, *arguments, **named)


DISPATCH_KEYS_OF_AUTOCAST = ("AutocastCPU", "AutocastCUDA")


def exclude_autocast() -> Any:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
        torch._C.DispatchKey.AutocastCUDA
    )
    return torch._C._ExcludeDispatchKeyGuard(keys)


def has_tangent(tensor: torch.Tensor) -> bool:
    """Whether a tensor carries a forward-mode tangent at the current level."""
    if forward_ad._current_level < 0 or torch._C._functorch.is_batchedtensor(tensor):
        # PyTorch can't look into a batched tensor. Below the vmap the jvp of our autograd functions raises.
        return False
    return forward_ad.unpack_dual(tensor).tangent is not None


parse_schema: Callable[[str], torch.FunctionSchema] = torch._C.parse_schema

for _member in vars(torch._ops.OpOverload).values():
    locks.renewed(getattr(_member, "lock", None))  # a cached_property's, until Python 3.11


def constant_while_tracing(function: Any) -> Any:
    """A function that Dynamo runs instead of tracing it: ``torch.compiler.assume_constant_result``, without its import."""
    function._dynamo_marked_constant = True
    return function


def attach(namespace: str, name: str, overloads: dict[str, Any]) -> None:
    """Let what ``torch.ops`` has for a name find these overloads, in place of objects that it would make anew."""
    space = getattr(torch.ops, namespace)
    found = space.__dict__.get(name)
    if not isinstance(found, torch._ops.OpOverload):
        if found is not None and all(found.__dict__.get(key) is overload for key, overload in overloads.items()):
            return
        forget(namespace, name)  # a new packet, that no overload holds: they would keep each other
    for key, overload in overloads.items():
        if overload is not getattr(space, name):
            setattr(getattr(space, name), key, overload)


def detach(overload: Any, key: str) -> None:
    """Forget another overload that is gone."""
    overload.__dict__.pop(key, None)


class RawOverload(torch._ops.OpOverload):
    """A raw operator that lists and sets take for the public one: those of selective checkpointing meet raw ones."""

    public: Any

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.public

    def __hash__(self) -> int:
        return hash(self.public)


def stand_for(raw: Any, public: Any) -> None:
    """Make a raw operator's overload equal to the public one's."""
    raw.__class__, raw.public = RawOverload, public


def replicates_implicitly(kind: Any) -> bool:
    """Whether ``torch.distributed.tensor.experimental.implicit_replication`` is on; ``kind`` is ``DTensor``."""
    return bool(getattr(kind._op_dispatcher, "_allow_implicit_replication", False))


def is_vmapped(values: tuple[Any, ...]) -> bool:
    """Whether any value is batched by an active vmap."""
    return any(isinstance(v, torch.Tensor) and torch._C._functorch.is_batchedtensor(v) for v in values)


def cached_graphs(function: Callable[..., Any]) -> int:
    """How many compiled forms of a function Dynamo keeps: one per set of guards."""
    return len(torch._C._dynamo.eval_frame._debug_get_cache_entry_list(function.__code__))


def is_wrapped(values: tuple[Any, ...]) -> bool:
    """Whether any value belongs to an active transform."""
    return any(isinstance(v, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(v) for v in values)
