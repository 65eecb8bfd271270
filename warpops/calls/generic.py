"""Generic kernels: which types a call asks for, and the concrete kernel of them."""

from __future__ import annotations

import dataclasses
import math
from collections import ChainMap
from collections.abc import Sequence
from typing import Any

import torch
import warp as wp

from ..effects.outside import stands_as
from ..emit.again import Again
from ..errors import ArgumentError, SignatureError
from ..kernel.scalars import WARP_SCALAR
from ..plan.model import OpPlan, Slot
from ..private import warp_code, warp_types
from .instances import Instance

ADVICE = (
    "annotate it with a type (generic lengths may stay: wp.types.vector(length=Any, dtype=wp.float32)), or declare the types "
    "of a call with wp.overload before"
)
"""What to do where nothing says a generic type."""


def resolve(name: str, plan: OpPlan, values: dict[str, Any]) -> Any:
    """The concrete kernel for a call's values: a copy in a module of its own, so that types which the kernel can't be
    built for leave the others alone.

    Raises:
        ArgumentError: the generic tensors' dtypes differ where an output has to follow them.
        SignatureError: no argument says what a generic output's dtype is.
    """
    kernel = plan.kernel.kernel
    concrete = warp_code.specialize(name, kernel, resolve_types(name, plan, values))
    stands_as(kernel, concrete)
    return concrete


def resolve_types(name: str, plan: OpPlan, values: dict[str, Any]) -> list[Any]:
    """The concrete argument types for a call's values. Raises as ``resolve``."""
    return _Resolver(name, plan, values).types()


def check_followed(plan: OpPlan) -> None:
    """Refuse fresh generic arrays whose type nothing can say.

    Raises:
        SignatureError: a fresh array is generic, no input array is, and no overload is declared.
    """
    if warp_types.overload_types(plan.kernel.kernel):
        return
    types = dict(warp_types.argument_types(plan.kernel.kernel))
    given = [slot for slot in plan.slots if slot.is_array and slot.is_input and slot.leaf.generic]
    for slot in plan.slots:
        if slot.is_input or not slot.is_array or not slot.leaf.generic:
            continue
        template = types[slot.label].dtype
        if not any(warp_code.share_scalars(template, types[other.label].dtype) for other in given):
            what = "no input array is" if not given else f"no input array's can be one of {slot.leaf.type_name}"
            raise SignatureError(
                f"{plan.name}: the dtype of '{slot.label}' is generic, and {what}, so that nothing says it; {ADVICE} "
                f"({plan.kernel.file}:{plan.kernel.line})"
            )


class _Resolver:
    """The types of one call's arguments. What tensors say is certain; numbers and fresh arrays follow them."""

    def __init__(self, name: str, plan: OpPlan, values: dict[str, Any]) -> None:
        self.name, self.plan, self.values = name, plan, values
        self.slots = {slot.name: slot for slot in plan.slots}
        self.templates: dict[str, Any] = {}
        self.certain: dict[str, Any] = {}
        """Types by argument: those that aren't generic, and those of the generic tensors."""
        self.given: list[tuple[Slot, Any]] = []
        """The generic tensors with their types."""
        for argument, (label, warp_type) in zip(
            plan.kernel.arguments, warp_types.argument_types(plan.kernel.kernel), strict=True
        ):
            self.templates[label] = warp_type
            leaf = argument.leaves[0]
            if argument.struct or not leaf.generic:
                self.certain[label] = warp_type
                continue
            slot = self.slots[leaf.name]
            value = values.get(slot.name) if slot.is_input else None
            if slot.is_array and isinstance(value, torch.Tensor):
                self.certain[label] = found = self._array_type(slot, warp_type, value)
                self.given.append((slot, found))

    def types(self) -> list[Any]:
        """One type per argument; an overload that the user declared wins over what would be made."""
        declared = [types for types in warp_types.overload_types(self.plan.kernel.kernel) if self._fits(types)]
        try:
            types = [self.certain[label] if label in self.certain else self._follow(label) for label in self.templates]
        except (ArgumentError, SignatureError):
            if declared:
                return declared[0]
            raise
        if declared and not any(warp_types.same_types(types, other) for other in declared):
            return declared[0]
        return types

    def _fits(self, types: list[Any]) -> bool:
        """Whether a declared overload takes this call."""
        for (label, template), warp_type in zip(self.templates.items(), types, strict=True):
            if label in self.certain:
                if not warp_types.same_types([self.certain[label]], [warp_type]):
                    return False
            elif not warp_types.is_array(template):
                value = self.values.get(label)
                scalar = getattr(warp_type, "_wp_scalar_type_", warp_type)
                if isinstance(value, (float, torch.SymFloat)) and not warp_types.is_float(scalar):
                    return False
                if isinstance(value, (list, tuple)) and len(value) != math.prod(getattr(warp_type, "_shape_", ())):
                    return False
        return True

    def _array_type(self, slot: Slot, template: Any, value: torch.Tensor) -> Any:
        """The type of a given array: its dtype, and its trailing axes where the elements are generic too."""
        leaf = slot.leaf
        scalar = WARP_SCALAR.get(value.dtype)
        if scalar is None or not warp_types.admits(template.dtype, scalar):
            raise ArgumentError(
                f"{self.name}: argument '{slot.label}': expected a dtype that {leaf.type_name} takes, got {value.dtype}"
            )
        extra = value.ndim - leaf.ndim
        shape = tuple(int(n) for n in value.shape[leaf.ndim :])
        ranks = (0, 1, 2) if template.dtype is Any else (len(getattr(template.dtype, "_shape_", ())),)
        if extra not in ranks or 0 in shape:
            axes = "or ".join(f"{leaf.ndim + rank} " for rank in ranks)
            hint = "" if extra < max(ranks) else "; for leading batch dimensions use torch.vmap"
            raise ArgumentError(
                f"{self.name}: argument '{slot.label}': expected {axes}dimensions ({leaf.type_name}), got shape "
                f"{value.shape}{hint}"
            )
        element = warp_types.with_element(template.dtype, scalar, shape)
        return warp_types.array_annotation(element, leaf.ndim)

    def _follow(self, label: str) -> Any:
        template = self.templates[label]
        if not warp_types.is_array(template):
            return self._value_type(label, template)
        slot = self.slots[label]
        element = self._absent(slot, template.dtype) if slot.is_input else self._element_of(slot, template.dtype)
        return warp_types.array_annotation(element, slot.leaf.ndim)

    def _absent(self, slot: Slot, template: Any) -> Any:
        """The element type of an optional array that isn't given: null, and of a type that goes with the others."""
        try:
            return self._element_of(slot, template)
        except (ArgumentError, SignatureError):  # they don't agree on one
            elements = [found.dtype for _, found in self.given]
            if template is Any:
                return elements[0] if elements else wp.float32
            scalars = [getattr(element, "_wp_scalar_type_", element) for element in elements]
            own = getattr(template, "_wp_scalar_type_", template)
            scalar = next((s for s in (*scalars, wp.float32, wp.int32) if warp_types.admits(template, s)), own)
            shape = slot.leaf.component or (1,) * len(getattr(template, "_shape_", ()))
            return warp_types.with_element(template, scalar, shape)

    def _element_of(self, slot: Slot, template: Any) -> Any:
        """The element type of a fresh array: the generic tensors' own, as far as the annotation is open."""
        sources = [
            (other, found.dtype)
            for other, found in self.given
            if warp_types.admits(template, getattr(found.dtype, "_wp_scalar_type_", found.dtype))
        ]
        if not sources:
            raise SignatureError(
                f"{self.name}: the dtype of '{slot.label}' ({slot.leaf.type_name}) is generic, and that of no generic "
                f"tensor of the call can be it; {ADVICE}"
            )
        scalar = self._shared(slot, [(other, getattr(e, "_wp_scalar_type_", e)) for other, e in sources])
        if slot.leaf.component is not None:
            return warp_types.with_element(template, scalar, slot.leaf.component)
        if template is Any:
            return self._shared(slot, sources)
        rank = len(template._shape_)
        shaped = [(other, e) for other, e in sources if hasattr(e, "_shape_") and len(e._shape_) == rank]
        if not shaped:
            raise SignatureError(
                f"{self.name}: the size of the elements of '{slot.label}' is generic, and no tensor of the call says "
                f"it; {ADVICE}"
            )
        return warp_types.with_element(template, scalar, tuple(self._shared(slot, shaped)._shape_))

    def _shared(self, slot: Slot, found: list[tuple[Slot, Any]]) -> Any:
        first, element = found[0]
        for other, another in found[1:]:
            if warp_types.same_types([element], [another]):
                continue
            mine, theirs = self.values[first.name], self.values[other.name]
            expected, got = f"dtype {mine.dtype}", f"{theirs.dtype}"
            what, advice = "dtype", ""
            if mine.dtype == theirs.dtype:
                expected = f"elements of shape {tuple(mine.shape[first.leaf.ndim :])}"
                got = f"{tuple(theirs.shape[other.leaf.ndim :])}"
                what, advice = "element type", f"; {ADVICE}"
            raise ArgumentError(
                f"{self.name}: argument '{other.label}': expected {expected}, as '{first.label}' has, got {got}; the "
                f"{what} of '{slot.label}' follows the generic tensors, which must share one{advice}"
            )
        return element

    def _value_type(self, label: str, template: Any) -> Any:
        """The type of a number or a vector: by the tensors' dtype, by Warp's defaults where that says nothing."""
        value = self.values.get(label)
        inner = getattr(template, "_wp_scalar_type_", template)
        scalars = {getattr(found.dtype, "_wp_scalar_type_", found.dtype) for _, found in self.given}
        real = isinstance(value, (float, torch.SymFloat))
        if isinstance(value, torch.Tensor):  # declared in tensor_scalars
            real = value.is_floating_point()
        options = [s for s in scalars if warp_types.admits(inner, s) and (not real or warp_types.is_float(s))]
        if len(options) == 1:
            scalar = options[0]
        elif real or not warp_types.admits(inner, wp.int32):
            scalar = wp.float32
        else:
            scalar = wp.float32 if isinstance(value, (list, tuple)) else wp.int32
        if template is inner:
            return scalar
        count = len(value) if isinstance(value, (list, tuple)) else 0
        shape = tuple(template._shape_)
        if len(shape) == 1:
            shape = (shape[0] or count,)
        elif 0 in shape:
            side = math.isqrt(count)
            rows, columns = shape
            shape = (rows or (count // columns if columns else side), columns or (count // rows if rows else side))
        if math.prod(shape) != count:
            raise ArgumentError(
                f"{self.name}: argument '{label}': expected the numbers of a {self.slots[label].leaf.type_name}, got "
                f"{count}; a matrix whose size is generic is taken for square"
            )
        return warp_types.with_element(template, scalar, shape)


def align(instance: Instance, plan: OpPlan) -> Instance:
    """An instance whose backward takes what the generic plan's operators give it.

    Which arrays have gradients depends on the dtypes: the operators have a place for every array that might have one,
    and the launches only for those that do.
    """
    # A remembered launch is found by its tensors; a number's type would have to be compared as well.
    typed = any(slot.leaf.generic and not slot.is_array for slot in plan.inputs)
    cotangents = [slot.name for slot in plan.cotangents]
    gradients = [slot.name for slot in plan.gradients]
    buffers = [*cotangents, *(slot.name for slot in plan.gradient_buffers)]
    live = {slot.name for slot in instance.plan.slots if slot.differentiable}
    whole, launches = live >= {*cotangents, *gradients} or instance.plan.gradient != "adjoint", instance.launches

    def again(way: str) -> Again | None:
        return instance.again(way) if not typed and (whole or way.startswith("forward")) else None

    if whole:
        return dataclasses.replace(instance, again=again)

    def chosen(values: Sequence[Any], names: list[str]) -> list[Any]:
        return [value for value, name in zip(values, names, strict=True) if name in live]

    def given(values: tuple[Any, ...]) -> tuple[Any, ...]:
        head = len(values) - 1 - len(cotangents)
        return (*values[:head], *chosen(values[head:-1], cotangents), chosen(values[-1], gradients))

    def aligned_prepare(*values: Any) -> tuple[Any, ...]:
        made = launches["prepare"](*given(values))
        head = len(made) - sum(name in live for name in buffers)
        grads = iter(made[head:])
        return (*made[:head], *(next(grads) if name in live else None for name in buffers))

    def aligned_into(*values: Any) -> None:
        tail = len(values) - len(buffers)
        launches["backward_into"](*values[:tail], *chosen(values[tail:], buffers))

    aligned = {
        "prepare": aligned_prepare,
        "backward": lambda *values: launches["backward"](*given(values)),
        "backward_into": aligned_into,
    }
    return dataclasses.replace(instance, launches=ChainMap(aligned, launches), again=again)
