"""Generic kernels: which overload a call's dtypes ask for."""

from __future__ import annotations

from typing import Any

import torch

from . import _warp
from .errors import ArgumentError, SignatureError
from .kernel import WARP_SCALAR
from .plan import OpPlan, Slot


def resolve(name: str, plan: OpPlan, values: dict[str, Any]) -> Any:
    """The concrete kernel for a call's values.

    Raises:
        ArgumentError: the generic tensors' dtypes differ where an output has to follow them.
        SignatureError: no argument says what a generic output's dtype is.
    """
    kernel = plan.kernel.kernel
    by_name = {slot.name: slot for slot in plan.slots}
    generic = [s for s in plan.inputs if s.is_array and s.leaf.generic and isinstance(values[s.name], torch.Tensor)]
    types = []
    for argument, (_, warp_type) in zip(plan.kernel.arguments, _warp.argument_types(kernel), strict=True):
        leaf = argument.leaves[0]
        if argument.struct or not leaf.generic:
            types.append(warp_type)
            continue
        slot = by_name[leaf.name]
        if not slot.is_array:
            types.append(_value_type(slot, warp_type, values[slot.name]))
            continue
        value = values.get(slot.name) if slot.is_input else None
        if isinstance(value, torch.Tensor):
            types.append(_array_type(name, slot, warp_type, value))
            continue
        types.append(_following(name, plan, slot, warp_type, generic, values))
    return _warp.concrete_kernel(kernel, types)


def _scalar_of(name: str, slot: Slot, dtype: torch.dtype) -> Any:
    scalar = WARP_SCALAR.get(dtype)
    if scalar is None:
        raise ArgumentError(f"{name}: argument '{slot.label}': expected a dtype that Warp has, got {dtype}")
    return scalar


def _array_type(name: str, slot: Slot, warp_type: Any, value: torch.Tensor) -> Any:
    scalar = _scalar_of(name, slot, value.dtype)
    element = warp_type.dtype
    if element is Any:
        extra = value.ndim - slot.leaf.ndim
        if extra == 0:
            return _warp.array_annotation(scalar, slot.leaf.ndim)
        if extra in (1, 2):
            shape = tuple(int(n) for n in value.shape[slot.leaf.ndim :])
            return _warp.array_annotation(_warp.element_type(scalar, shape), slot.leaf.ndim)
        raise ArgumentError(
            f"{name}: argument '{slot.label}': expected {slot.leaf.ndim} dimensions ({slot.leaf.type_name}), got shape "
            f"{value.shape}; for leading batch dimensions use torch.vmap"
        )
    if not hasattr(element, "_wp_scalar_type_"):
        return _warp.array_annotation(scalar, slot.leaf.ndim)
    shape = tuple(int(n) for n in value.shape[slot.leaf.ndim :])
    return _warp.array_annotation(_warp.with_element(element, scalar, shape), slot.leaf.ndim)


def _value_type(slot: Slot, warp_type: Any, value: Any) -> Any:
    import warp as wp

    if isinstance(value, (bool, torch.SymBool)):
        return wp.bool
    if isinstance(value, (int, torch.SymInt)):
        return wp.int32
    if isinstance(value, (list, tuple)) and hasattr(warp_type, "_wp_scalar_type_"):
        return _warp.with_element(warp_type, wp.float32, (len(value),))
    return wp.float32


def _following(
    name: str, plan: OpPlan, slot: Slot, warp_type: Any, generic: list[Slot], values: dict[str, Any]
) -> Any:
    """The type of a generic array that isn't given: that of the generic tensors."""
    if not generic:
        raise SignatureError(
            f"{name}: the dtype of '{slot.label}' is generic, and no tensor of the call is; annotate it with a type"
        )
    dtypes = {values[s.name].dtype for s in generic}
    if len(dtypes) > 1:
        first, other = generic[0], next(s for s in generic if values[s.name].dtype != values[generic[0].name].dtype)
        raise ArgumentError(
            f"{name}: argument '{other.label}': expected dtype {values[first.name].dtype}, that of '{first.label}', got "
            f"{values[other.name].dtype}; the dtype of '{slot.label}' follows the generic tensors, which must share one"
        )
    source = generic[0]
    return _array_type(name, slot, warp_type, values[source.name]) if warp_type.dtype is Any and source.leaf.component is None else (
        _warp.array_annotation(_scalar_of(name, slot, values[source.name].dtype), slot.leaf.ndim)
        if not hasattr(warp_type.dtype, "_wp_scalar_type_")
        else _warp.array_annotation(
            _warp.with_element(
                warp_type.dtype,
                _scalar_of(name, slot, values[source.name].dtype),
                tuple(int(n) for n in values[source.name].shape[source.leaf.ndim :]),
            ),
            slot.leaf.ndim,
        )
    )
