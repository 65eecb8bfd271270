"""PyTorch's private side: what is active on this thread. Dispatch modes, autocast, transforms, tracing, tangents.

``tests/test_torch_private.py`` fails first when a new torch changes any of it; ``tests/test_taken_away.py`` does without.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as _forward_ad

from .short import FAST, either, found, late

grad_enabled: Callable[[], bool] = torch.is_grad_enabled


# --- transforms -------------------------------------------------------------------------------------------------------


_asked = torch.empty(0, device="cpu")


def _level_by_refusal() -> Any:
    """A leaf can't be told to require grad, nor not to, inside of a transform."""
    try:
        _asked.requires_grad_(False)
    except RuntimeError as error:
        return error
    return None


functorch_level: Callable[[], Any] = either(lambda: torch._C._functorch.peek_interpreter_stack, _level_by_refusal)
"""The innermost active torch.func transform, or what else tells that there is one; None outside of all."""


def _shown_as(*kinds: str) -> Callable[[torch.Tensor], bool]:
    return lambda tensor: functorch_level() is not None and repr(tensor).startswith(kinds)


_is_batched: Callable[[torch.Tensor], bool] = either(
    lambda: torch._C._functorch.is_batchedtensor, _shown_as("BatchedTensor(lvl")
)
_is_wrapped: Callable[[torch.Tensor], bool] = either(
    lambda: torch._C._functorch.is_functorch_wrapped_tensor,
    _shown_as("BatchedTensor(lvl", "GradTrackingTensor(lvl", "FunctionalTensor(lvl"),
)


def is_vmapped(values: tuple[Any, ...]) -> bool:
    """Whether any value is batched by an active vmap."""
    return any(isinstance(v, torch.Tensor) and _is_batched(v) for v in values)


def is_wrapped(values: tuple[Any, ...]) -> bool:
    """Whether any value belongs to an active transform."""
    return any(isinstance(v, torch.Tensor) and _is_wrapped(v) for v in values)


def _short_further_out() -> Callable[[tuple[Any, ...]], bool]:
    stack, inner = torch._C._functorch.peek_interpreter_stack, torch._C._functorch.get_unwrapped

    def followed(values: tuple[Any, ...]) -> bool:
        level = stack()
        if level is None or level.level() != 1:
            return True
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        return any((inner(v) if _is_wrapped(v) else v).requires_grad for v in tensors)

    return followed


followed_further_out: Callable[[tuple[Any, ...]], bool] = either(_short_further_out, lambda values: True)
"""Whether a derivative of values may be asked for outside of the innermost transform. Yes, where that can't be told."""


VMAP_KEY = "FuncTorchBatched"


def _short_vmap() -> Callable[..., Any]:
    from torch._functorch.autograd_function import custom_function_call_vmap_helper
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

    def call(rule: Callable[..., Any], op: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        interpreter: Any = retrieve_current_functorch_interpreter()
        return custom_function_call_vmap_helper(interpreter, rule, op, *arguments, **named)

    return call


def _public_vmap(rule: Callable[..., Any], op: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    made: list[Callable[..., Any]] = []
    library: Any = types.SimpleNamespace(impl=lambda name, function, *_, **__: made.append(function))
    torch.library.register_vmap(op, rule, lib=library)
    return made[0](None, *arguments, **named)


call_vmap_rule: Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any] = late(
    _short_vmap, _public_vmap
)
"""Run a rule ``(info, in_dims, *args, **kwargs)`` of an op for the innermost vmap, as PyTorch does its own."""


# --- tangents ---------------------------------------------------------------------------------------------------------


def _short_level() -> Any:
    if not isinstance(_forward_ad._current_level, int):
        raise NotImplementedError("another level")
    return _forward_ad


class _LevelByRefusal:
    """What is no tensor can be unpacked outside of all levels alone."""

    @property
    def _current_level(self) -> int:
        try:
            _forward_ad.unpack_dual(None)
        except Exception:  # a mode that traces may raise another one than TypeError
            return 0
        return -1


def _public_level() -> Any:
    level = _LevelByRefusal()
    with _forward_ad.dual_level():
        if level._current_level < 0:
            raise NotImplementedError("no level that shows")
    return level


forward_ad: Any = either(_short_level, None) or found(_public_level, types.SimpleNamespace(_current_level=0))
"""Its ``_current_level`` is negative where no tensor can have a tangent; where that is unknown, each tensor is asked."""


def has_tangent(tensor: torch.Tensor) -> bool:
    """Whether a tensor carries a forward-mode tangent at the current level."""
    if forward_ad._current_level < 0 or _is_batched(tensor):
        # PyTorch can't look into a batched tensor. Below the vmap the jvp of our autograd functions raises.
        return False
    return _forward_ad.unpack_dual(tensor).tangent is not None


def _followed_here(tensor: torch.Tensor) -> str | None:
    if tensor.requires_grad and torch.is_grad_enabled():
        return "requires grad"
    return "has a tangent" if has_tangent(tensor) else None


def _short_below() -> Callable[[torch.Tensor], str | None]:
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

    inner, level = torch._C._functorch.get_unwrapped, torch._C._functorch.maybe_get_level

    def below(tensor: torch.Tensor) -> str | None:
        interpreter: Any = retrieve_current_functorch_interpreter()
        own = _is_wrapped(tensor) and level(tensor) == interpreter.level()
        with interpreter.lower():
            return followed(inner(tensor) if own else tensor)

    return below


_followed_below: Callable[[torch.Tensor], str | None] = late(_short_below, lambda tensor: None)


def followed(tensor: torch.Tensor) -> str | None:
    """How a derivative of a tensor is asked for, at any level of transforms: it "requires grad" or "has a tangent"; None where
    none is. Where levels can't be told apart, the innermost is asked."""
    here = _followed_here(tensor)
    return here if here is not None or functorch_level() is None else _followed_below(tensor)


# --- autograd ---------------------------------------------------------------------------------------------------------


def _increment_each(tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


increment_versions: Callable[[Sequence[torch.Tensor]], None] = either(
    lambda: torch._C._increment_version, _increment_each
)
"""Tells autograd that tensors changed, as an in-place op of PyTorch's own would; inference tensors have no version."""


def _short_apply(function: Any) -> Any:
    function._backward_cls.apply = function.backward
    return super(torch.autograd.Function, function).apply


def quick_apply(function: Any) -> Any:
    """An autograd function's ``apply``, less what it does for torch.func; its backward is called with no detour."""
    return either(lambda: _short_apply(function), function.apply)


below_autograd: Any = found(lambda: getattr(torch._C, "_AutoDispatchBelowAutograd"))  # noqa: B009
"""A context in which operators are called as if nothing needed a gradient; None where there is none."""


# --- autocast ---------------------------------------------------------------------------------------------------------

AUTOCAST = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
"""The kinds of devices that the public operator has a cast for, and the keys that it is dispatched by."""

autocast_active: Callable[[], bool] = either(
    lambda: torch._C._is_any_autocast_enabled,
    lambda: torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
)


def _short_exclude() -> Callable[[], Any]:
    exclude, keys = torch._C._ExcludeDispatchKeyGuard, torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    keys = keys | torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
    return lambda: exclude(keys)


@contextlib.contextmanager
def _switch_off() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for kind in filter(torch.is_autocast_enabled, AUTOCAST):
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


exclude_autocast: Callable[[], Any] = either(_short_exclude, _switch_off)
"""A context in which no operator casts."""


# --- who watches ------------------------------------------------------------------------------------------------------


def _perhaps() -> bool:
    return True


_count_modes: Callable[[], int] | None = found(lambda: torch._C._len_torch_dispatch_stack)
dispatch_modes: Callable[[], int] = either(lambda: _count_modes, None) or _perhaps
"""How many ``TorchDispatchMode`` are active. Where that, or one of the next two, can't be told, operators are called that
each of them would hear of."""

function_mode: Callable[[], bool] = either(lambda: torch._C._is_torch_function_mode_enabled, _perhaps)

profiling: Callable[[], bool] = either(lambda: torch._C._autograd._profiler_enabled, _perhaps)

tracing: Callable[[], Any] = either(lambda: getattr(torch._C, "_get_tracing_state"), getattr(torch.jit, "is_tracing"))  # noqa: B009
"""Something true inside ``torch.jit.trace``."""


def watched() -> bool:
    """Whether somebody is to be told of operators that are called."""
    return not FAST or bool(dispatch_modes() or function_mode() or profiling() or tracing())


raw_stream: Callable[[int], int] | None = either(lambda: getattr(torch._C, "_cuda_getCurrentRawStream"), None)  # noqa: B009
"""The handle of this thread's current stream on a CUDA device, by its number; None where PyTorch is built without."""


def lowering_export() -> bool:
    """Whether an exported program is being decomposed: its operators are recorded below autograd.

    Where that can't be told, the program holds raw operators, which can't be differentiated after.
    """
    return (
        torch.compiler.is_exporting()
        and not torch.is_grad_enabled()
        and below_autograd is not None
        and _count_modes is not None
        and _count_modes() > 0
    )


# --- compiled code ----------------------------------------------------------------------------------------------------


def constant_while_tracing(function: Any) -> Any:
    """A function that Dynamo runs instead of tracing it: ``torch.compiler.assume_constant_result``, without its import."""
    function._dynamo_marked_constant = True
    return function


def _leave_alone(function: Callable[..., Any]) -> None:
    frames: Any = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))


def untraced(function: Any) -> Any:
    """A function that Dynamo leaves alone, with all that it calls, where a frame that it gave up calls it."""
    found(lambda: _leave_alone(function))
    return function


def _short_count() -> Callable[[Callable[..., Any]], int]:
    entries = torch._C._dynamo.eval_frame._debug_get_cache_entry_list
    return lambda function: len(entries(function.__code__))


cached_graphs: Callable[[Callable[..., Any]], int] = found(_short_count, lambda function: 0)
"""How many compiled forms of a function Dynamo keeps: one per set of guards. 0 where nobody knows."""


def _require_of_its_own(error: type[Exception], condition: Any, message: Callable[[], str]) -> None:
    if not condition:
        raise error(message())


def _short_require() -> Callable[..., None]:
    made: Callable[..., None] = torch._check_with
    made(ValueError, True, str)
    return made


require: Callable[[type[Exception], Any, Callable[[], str]], None] = late(_short_require, _require_of_its_own)
"""Raise an error unless a condition holds; one on a size that isn't known yet holds, and is checked in the graph."""


def replicates_implicitly(kind: Any) -> bool:
    """Whether ``torch.distributed.tensor.experimental.implicit_replication`` is on; ``kind`` is ``DTensor``."""
    return bool(getattr(getattr(kind, "_op_dispatcher", None), "_allow_implicit_replication", False))
