"""PyTorch's private side: what tensors are made of, and a guard that tells whether others look the same.

``tests/test_torch_private.py`` fails first when a new torch changes any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

GUARDS: Any = getattr(torch._C._dynamo, "guards", None)
"""PyTorch's guards on tensors; without them no launch is recalled."""

DATA_PTR: int = getattr(GUARDS, "_torchinductor_pyobject_tensor_data_ptr", 0)
"""The address of PyTorch's ``void* (PyObject*)`` that tells a tensor's data pointer, as its generated code calls it."""

empty_strided_cpu: Callable[..., torch.Tensor] | None = getattr(GUARDS, "_empty_strided_cpu", None)
"""``torch.empty_strided(size, stride, dtype=dtype)`` on the CPU, past the dispatcher."""

empty_strided_cuda: Callable[..., torch.Tensor] | None = getattr(GUARDS, "_empty_strided_cuda", None)
"""The same on the current CUDA device."""
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


def bytes_spanned(tensor: torch.Tensor) -> int:
    """How many bytes lie between the first of a tensor's elements and the end of its last."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
