"""PyTorch's private side: what tensors are made of, and a guard that tells whether others look the same.

``tests/test_torch_private.py`` fails first when a new torch changes any of it; ``tests/test_taken_away.py`` does without.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import torch_modes
from .short import either


def _short_guard() -> Callable[[Sequence[torch.Tensor]], Callable[..., bool]]:
    made: Any = torch._C._dynamo.guards.TensorGuards

    def guard(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
        check: Callable[..., bool] = made(
            *tensors,
            dynamic_dims_sizes=[list(t.shape) for t in tensors],
            dynamic_dims_strides=[list(t.stride()) for t in tensors],
        ).check
        return check

    one, two, three = (torch.empty(n, device="cpu") for n in (1, 2, 3))
    check = guard([one, two])
    if not check(one, two) or check(one, three):
        raise NotImplementedError("another guard")
    return guard


guard: Any = either(_short_guard, None)
"""A check of other tensors against these: type, dispatch state, dtype, device, sizes, strides, requires_grad. Where there
is none, no launch is remembered."""

DATA_PTR: int = either(lambda: int(torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr), 0)  # type: ignore[attr-defined]
"""The address of PyTorch's ``void* (PyObject*)`` that tells a tensor's data pointer, as its generated code calls it."""


def _empty_on(device: str) -> Callable[..., torch.Tensor]:
    def empty(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device=device)

    return empty


empty_strided_cpu: Callable[..., torch.Tensor] = either(
    lambda: torch._C._dynamo.guards._empty_strided_cpu,  # type: ignore[attr-defined]
    _empty_on("cpu"),
)
"""``torch.empty_strided(size, stride, dtype=dtype)`` on the CPU, past the dispatcher."""

empty_strided_cuda: Callable[..., torch.Tensor] = either(
    lambda: torch._C._dynamo.guards._empty_strided_cuda,  # type: ignore[attr-defined]
    _empty_on("cuda"),
)
"""The same on the current CUDA device."""

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Tensors whose dispatch nobody overrides."""


def _short_keys() -> Callable[[torch.Tensor], int]:
    keys = torch._C._dispatch_keys
    keys(torch.empty(0, device="cpu")).raw_repr()
    return lambda tensor: keys(tensor).raw_repr()


_keys: Callable[[torch.Tensor], int] | None = either(_short_keys, None)
_ordinary: dict[tuple[str, bool], int] = {}


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether a tensor is just dense memory: of a class and of dispatch keys that nothing is asked about.

    Lazily negated and all-zero tensors aren't, nor those of functionalization, nested and sparse ones. Where it can't be
    told, none is: each launch is called by its raw operator then.
    """
    if _keys is None or tensor.__class__ not in PLAIN:
        return False
    kind = tensor.device.type, tensor.is_inference()
    known = _ordinary.get(kind)
    if known is None:
        other = kind[1] != torch.is_inference_mode_enabled()  # a context that changes nothing takes time, too
        with torch.inference_mode(kind[1]) if other else contextlib.nullcontext():
            known = _ordinary[kind] = _keys(torch.empty(0, device=kind[0]))
    return _keys(tensor) == known


def direct(*tensors: torch.Tensor | None) -> bool:
    """Whether a call may go past PyTorch's operators, to the launch itself: nobody watches, and tensors, less those that are
    None, are memory. The first tells whether it is on meta."""
    if torch_modes.watched():
        return False
    given = [tensor for tensor in tensors if tensor is not None]
    return all(map(is_ordinary, given)) and not (given and given[0].is_meta)


def can_guard(tensors: Sequence[Any]) -> bool:
    """Whether tensors are such that a guard's verdict says all: plain ones, each once."""
    return guard is not None and len({id(t) for t in tensors}) == len(tensors) and all(map(is_ordinary, tensors))


def share_storage(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors, fake ones too, are parts of one storage."""
    try:
        return left.untyped_storage() is right.untyped_storage()
    except (RuntimeError, NotImplementedError):  # one has none
        return False


def _zero_each(tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.zero_()


_zero: Callable[[Sequence[torch.Tensor]], Any] = either(lambda: torch._foreach_zero_, _zero_each)


def zero_all(*tensors: torch.Tensor | None) -> None:
    """Fill tensors with zeros in one call; those that are None are left out."""
    given = [tensor for tensor in tensors if tensor is not None]
    if given:
        _zero(given)


def bytes_spanned(tensor: torch.Tensor) -> int:
    """How many bytes lie between the first of a tensor's elements and the end of its last."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
