"""PyTorch's private side: the few questions that its public functions answer too slowly, or not at all.

``tests/test_torch_private.py`` fails first when a new torch changes any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad as forward_ad

from . import locks

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

GUARDS: Any = getattr(torch._C._dynamo, "guards", None)
"""PyTorch's guards on tensors; without them no launch is recalled."""

DATA_PTR: int = getattr(GUARDS, "_torchinductor_pyobject_tensor_data_ptr", 0)
"""The address of PyTorch's ``void* (PyObject*)`` that tells a tensor's data pointer, as its generated code calls it."""

empty_strided_cpu: Callable[..., torch.Tensor] | None = getattr(GUARDS, "_empty_strided_cpu", None)
"""``torch.empty_strided(size, stride, dtype=dtype)`` on the CPU, past the dispatcher."""

empty_strided_cuda: Callable[..., torch.Tensor] | None = getattr(GUARDS, "_empty_strided_cuda", None)
"""The same on the current CUDA device."""

raw_stream: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
"""The handle of this thread's current stream on a CUDA device, by its number; None where PyTorch is built without."""

is_alias: Callable[[torch.Tensor, torch.Tensor], bool] = getattr(torch._C, "_is_alias_of")  # noqa: B009
"""Whether two tensors, fake ones too, share a storage."""

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Tensors whose dispatch nobody overrides."""

_ordinary: dict[str, frozenset[int]] = {}


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether a tensor is just dense memory: of a class and of dispatch keys that nothing is asked about.

    Lazily negated and all-zero tensors aren't, nor those of functionalization, nested and sparse ones.
    """
    if tensor.__class__ not in PLAIN:
        return False
    kind = tensor.device.type
    known = _ordinary.get(kind)
    if known is None:
        found = []
        for inference in (False, True):
            with torch.inference_mode(inference):
                found.append(torch._C._dispatch_keys(torch.empty(0, device=kind)).raw_repr())
        known = _ordinary[kind] = frozenset(found)
    return torch._C._dispatch_keys(tensor).raw_repr() in known


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


MOST_ARGUMENTS = 64
"""How many arguments PyTorch's dispatcher takes."""


class PublishedOverload(torch._ops.OpOverload):
    """An overload that stands where its packet would: the packet's other overloads are found on it."""

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {key!r}")
        return getattr(self._overloadpacket, key)


def publish(namespace: str, name: str, overload: Any) -> None:
    """Make ``torch.ops.namespace.name`` one overload, whatever else is registered under the name.

    Compiled code that calls it then holds the overload's whole name, contract included, where the usual packet would
    leave the bare name in the keys of PyTorch's caches.
    """
    overload.__class__ = PublishedOverload
    key = overload._overloadname
    setattr(overload, key, overload)
    overload.overloads = lambda: [key]
    overload.op_overloads = lambda: [overload]
    space = getattr(torch.ops, namespace)
    setattr(space, name, overload)
    if name in space._dir:  # PyTorch's walks over packets go by this list
        space._dir.remove(name)


def attach(namespace: str, name: str, overloads: dict[str, Any]) -> None:
    """Let what ``torch.ops`` has for a name find these overloads, in place of objects that it would make anew."""
    if overloads:
        found = getattr(getattr(torch.ops, namespace), name)
        for key, overload in overloads.items():
            if overload is not found:
                setattr(found, key, overload)


def forget(namespace: str, name: str, key: str | None = None) -> None:
    """Drop what ``torch.ops`` remembers of a name, so that the next look finds what is registered then.

    With ``key``, the name of an overload, a name that was given to another op since is left alone.
    """
    space = getattr(torch.ops, namespace)
    found = space.__dict__.get(name)
    if found is None or (key is not None and isinstance(found, torch._ops.OpOverload) and found._overloadname != key):
        return
    delattr(space, name)
    if name in getattr(space, "_dir", []):
        space._dir.remove(name)


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


class Rules:
    """The rules for tensor subclasses of one operator: PyTorch's own, then the one of a class that is met for the first
    time."""

    __slots__ = ("own",)
    own: Any

    def of_class(self, kind: type) -> Callable[..., Any] | None:
        raise NotImplementedError

    def find(self, kind: type) -> Any:
        return self.own.find(kind) or self.of_class(kind)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


def register_python_side(library: Any, name: str, fake: Callable[..., Any], rules: Rules) -> None:
    """What PyTorch keeps of an operator outside of its dispatcher: its fake kernel, its rules for tensor subclasses.

    It is what ``torch.library.register_fake`` and ``register_torch_dispatch`` do, without a look at the caller's source
    file, without an undoing of each, since ``destroy`` drops the whole entry, and for classes that needn't exist yet.
    """
    entry = torch._library.simple_registry.singleton.find(name)
    entry.fake_impl.kernels.append(torch._library.utils.Kernel(fake, "warpops"))
    library.impl(name, fake, "Meta")
    rules.own = entry.torch_dispatch_rules
    entry.torch_dispatch_rules = rules  # type: ignore[assignment]


def replicates_implicitly(kind: Any) -> bool:
    """Whether ``torch.distributed.tensor.experimental.implicit_replication`` is on; ``kind`` is ``DTensor``."""
    return bool(getattr(kind._op_dispatcher, "_allow_implicit_replication", False))


def destroy(library: Any) -> None:
    """Take a library's operators out of the registry and out of ``torch.ops``, where another op's overload stays.

    PyTorch's own way clears a name whoever has it now, and once more when the library is collected.
    """
    names = set(library._op_defs)
    library._op_defs.clear()
    torch.library._defs.difference_update(names)
    library._destroy()
    for name in names:
        torch._library.simple_registry.singleton._data.pop(name, None)
        namespace, _, rest = name.partition("::")
        forget(namespace, *rest.split("."))


def is_vmapped(values: tuple[Any, ...]) -> bool:
    """Whether any value is batched by an active vmap."""
    return any(isinstance(v, torch.Tensor) and torch._C._functorch.is_batchedtensor(v) for v in values)


def can_guard(tensors: Sequence[Any]) -> bool:
    """Whether tensors are such that a guard's verdict says all: plain ones, each once."""
    return GUARDS is not None and len({id(t) for t in tensors}) == len(tensors) and all(map(is_ordinary, tensors))


def guard(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A check of other tensors against these: type, dispatch state, dtype, device, sizes, strides, requires_grad."""
    assert GUARDS is not None
    check: Callable[..., bool] = GUARDS.TensorGuards(
        *tensors,
        dynamic_dims_sizes=[list(t.shape) for t in tensors],
        dynamic_dims_strides=[list(t.stride()) for t in tensors],
    ).check
    return check


def zero_all(*tensors: torch.Tensor | None) -> None:
    """Fill tensors with zeros in one call; those that are None are left out."""
    given = [tensor for tensor in tensors if tensor is not None]
    if given:
        torch._foreach_zero_(given)


def shorten(overload: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put ``make(way)`` in place of an operator's way into the dispatcher, for calls from Python."""
    overload._op = make(overload._op)


def cached_graphs(function: Callable[..., Any]) -> int:
    """How many compiled forms of a function Dynamo keeps: one per set of guards."""
    return len(torch._C._dynamo.eval_frame._debug_get_cache_entry_list(function.__code__))


def is_wrapped(values: tuple[Any, ...]) -> bool:
    """Whether any value belongs to an active transform."""
    return any(isinstance(v, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(v) for v in values)
