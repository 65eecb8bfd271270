"""The check of one argument of a call, with its messages: tensors, numbers, vectors by value."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy
import torch
import warp as wp

from .errors import ArgumentError
from .kernel import SCALARS, Leaf, Scalar
from .plan import Slot

SIZE = SCALARS[wp.int64]
"""What an extra size may be."""


def expected_shape(slot: Slot) -> str:
    """The torch shape that a slot takes, as text."""
    dims = slot.dims or (None,) * slot.leaf.ndim
    axes = ["*" if d is None else str(d) for d in dims] + [str(n) for n in slot.leaf.component or ()]
    return f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"


def fail(op: str, slot: Slot, text: str) -> NoReturn:
    raise ArgumentError(f"{op}: argument '{slot.label}': {text}")


def check_slot(op: str, slot: Slot, value: Any) -> None:
    """Check one value by itself."""
    if slot.is_array:
        _check_array(op, slot, value)
    elif slot.role == "tensor_scalar":
        _check_tensor_scalar(op, slot, value)
    elif slot.leaf.kind == "vector":
        _check_vector(op, slot, value)
    elif slot.leaf.kind == "handle" and isinstance(value, torch.Tensor):
        fail(
            op,
            slot,
            f"expected a wp.Mesh, Bvh, HashGrid or Volume, or its id (an int), got a tensor of shape {value.shape}",
        )
    else:
        check_number(op, slot, SIZE if slot.role == "size" else slot.leaf.scalar, value)


def _check_array(op: str, slot: Slot, value: Any) -> None:
    leaf = slot.leaf
    if value is None:
        if slot.optional:
            return
        fail(op, slot, f"expected a tensor ({leaf.type_name}), got None; only arrays declared optional may be None")
    if not isinstance(value, torch.Tensor):
        hint = "; convert it with torch.as_tensor" if hasattr(value, "__array__") or isinstance(value, list) else ""
        fail(op, slot, f"expected a tensor ({leaf.type_name}), got {type(value).__name__}{hint}")
    scalar = leaf.scalar
    assert scalar is not None and leaf.component is not None
    if value.is_nested:
        fail(op, slot, "expected a dense tensor, got a nested one; pass its values (.values()), or call for each part")
    if value.layout is not torch.strided:
        fail(op, slot, f"expected a strided tensor, got layout {value.layout}")
    if value.dtype not in scalar.dtypes:
        accepted = " or ".join(map(str, scalar.dtypes))
        fail(op, slot, f"expected dtype {accepted} ({leaf.type_name}), got {value.dtype}; convert it with .to(...)")
    rank = leaf.ndim + len(leaf.component)
    if value.ndim != rank:
        hint = ""
        if value.ndim > rank:
            hint = f"; for {value.ndim - rank} leading batch dimension{'s' if value.ndim - rank > 1 else ''} use torch.vmap"
        elif value.ndim == rank - 1 and leaf.component and value.ndim:
            hint = f"; for a single element pass {slot.name}.unsqueeze(0)"
        elif value.ndim == 0:
            hint = "; a 0-d tensor is no array, pass a tensor of one element with .reshape(1)"
        fail(
            op,
            slot,
            f"expected {rank} dimension{'s' if rank != 1 else ''} {expected_shape(slot)} ({leaf.type_name}), got shape "
            f"{value.shape}{hint}",
        )
    for axis, size in enumerate(leaf.component, start=leaf.ndim):
        got = value.shape[axis]
        require(
            got == size,
            lambda: (
                f"{op}: argument '{slot.label}': expected shape {expected_shape(slot)} ({leaf.type_name}), got "
                f"{value.shape}"
            ),
        )


def _check_tensor_scalar(op: str, slot: Slot, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        check_number(op, slot, slot.leaf.scalar, value)
        return
    if value.ndim != 0:
        fail(op, slot, f"expected a 0-d tensor (tensor_scalars), got shape {value.shape}")
    if value.device.type not in ("cpu", "meta"):
        fail(op, slot, f"expected a 0-d tensor on cpu (tensor_scalars), got one on {value.device}; move it with .cpu()")
    if value.dtype.is_complex:
        fail(op, slot, f"expected a real 0-d tensor, got {value.dtype}")
    scalar = slot.leaf.scalar
    if scalar is not None and scalar.kind != "float" and value.dtype.is_floating_point:
        fail(op, slot, f"expected an int, got a 0-d tensor of {value.dtype}")
    if value.requires_grad and torch.is_grad_enabled():
        fail(
            op,
            slot,
            "it requires grad, and a number of the kernel gets no gradient; pass .detach(), or make it an array of one "
            "element in the kernel",
        )


def check_number(op: str, slot: Slot, scalar: Scalar | None, value: Any) -> None:
    """Check a number for one scalar type. Symbolic numbers are checked again when the op runs."""
    kind = scalar.kind if scalar is not None else "float"
    name = scalar.name if scalar is not None else "number"
    if isinstance(value, torch.Tensor):
        fail(
            op,
            slot,
            f"expected a number ({name}), got a tensor of shape {value.shape}; pass a Python number with .item(), or "
            f"declare tensor_scalars='{slot.label}' to give it as a 0-d tensor (its gradient would be lost)",
        )
    if isinstance(value, (torch.SymInt, torch.SymBool)) or (isinstance(value, torch.SymFloat) and kind == "float"):
        return
    plain = plain_number(value)
    if plain is None:
        fail(op, slot, f"expected a number ({name}), got {type(value).__name__}")
    if kind == "bool":
        if not isinstance(plain, bool) and (isinstance(plain, float) or plain not in (0, 1)):
            fail(op, slot, f"expected a bool, got {value!r}")
        return
    if kind == "int":
        if isinstance(plain, float):
            fail(op, slot, f"expected an int ({name}), got the float {value!r}")
        assert scalar is not None or isinstance(plain, int)
        low, high = (scalar.low, scalar.high) if scalar is not None else (-(2**63), 2**63 - 1)
        if slot.leaf.kind == "handle":
            low = -(2**63)  # a schema's int is signed: the upper half arrives as negative numbers
        if not low <= plain <= high:
            fail(op, slot, f"expected an int in [{low}, {high}] ({name}), got {value!r}")
        return
    if scalar is not None and not scalar.holds(plain):
        fail(op, slot, f"expected a float that {name} can hold, got {value!r}; inf and nan are allowed")


def plain_number(value: Any) -> int | float | bool | None:
    """A Python number of anything that is one (numpy's and Warp's included); None for the rest."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, numpy.bool_):
        return bool(value)
    if isinstance(value, numpy.generic):
        return value.item() if isinstance(value, (numpy.integer, numpy.floating)) else None
    if hasattr(value, "__index__") and not isinstance(value, (numpy.ndarray, torch.Tensor)):
        return operator.index(value)
    inner = getattr(value, "value", None)
    if type(value).__module__.startswith("warp") and isinstance(inner, (bool, int, float)):
        return inner
    return None


def _check_vector(op: str, slot: Slot, value: Any) -> None:
    leaf = slot.leaf
    assert leaf.component is not None and leaf.scalar is not None
    if isinstance(value, torch.Tensor):
        fail(
            op,
            slot,
            f"expected {math.prod(leaf.component)} numbers ({leaf.type_name}), got a tensor of shape {value.shape}; pass "
            f"numbers with .tolist() (its gradient would be lost), or take an array in the kernel",
        )
    items = flatten(value)
    if items is None:
        fail(op, slot, f"expected {math.prod(leaf.component)} numbers ({leaf.type_name}), got {type(value).__name__}")
    lengths = nesting(value)
    if lengths not in nestings(leaf):
        parts = " or ".join(_described(form) for form in reversed(nestings(leaf)) if form)
        fail(op, slot, f"expected {parts} ({leaf.type_name}), got {_described(lengths)}")
    if len(items) != math.prod(leaf.component):
        fail(op, slot, f"expected {math.prod(leaf.component)} numbers ({leaf.type_name}), got {len(items)}")
    for item in items:
        check_number(op, slot, leaf.scalar, item)


def nesting(value: Any) -> tuple[int, ...]:
    """How a sequence is nested: the length of each of its items, 0 for a number; empty where all are numbers."""
    items = numpy.atleast_1d(value).tolist() if isinstance(value, numpy.ndarray) else value
    lengths = tuple(len(flatten(item) or ()) if _is_nested(item) else 0 for item in items)
    return lengths if any(_is_nested(item) for item in items) else ()


def _is_nested(item: Any) -> bool:
    nested = isinstance(item, (Sequence, numpy.ndarray)) and not isinstance(item, (str, bytes))
    return nested or hasattr(item, "_wp_scalar_type_")


def nestings(leaf: Leaf) -> tuple[tuple[int, ...], ...]:
    """The ways to nest a value of a leaf's type: as numbers; a matrix by rows; a transform as position and rotation, a
    spatial vector as two vectors, a quaternion as vector and number."""
    component = leaf.component or ()
    if len(component) == 2:
        return ((), (component[1],) * component[0])
    if component == (7,):
        return ((), (3, 4))
    if component == (6,):
        return ((), (3, 3))
    return ((), (3, 0)) if component == (4,) else ((),)


def _described(lengths: tuple[int, ...]) -> str:
    if not lengths:
        return "numbers"
    if len(set(lengths)) == 1:
        return f"{len(lengths)} times {lengths[0]} number{'s' if lengths[0] != 1 else ''}"
    return f"{', '.join(str(length or 1) for length in lengths)} numbers"


def flatten(value: Any) -> list[Any] | None:
    """The numbers of a flat or nested sequence, in row-major order; None for what is no sequence."""
    if isinstance(value, (str, bytes, Mapping)):
        return None
    if isinstance(value, numpy.ndarray):
        return list(value.ravel().tolist())
    if not isinstance(value, Sequence) and not hasattr(value, "_wp_scalar_type_"):
        return None
    items: list[Any] = []
    for item in value:
        if isinstance(item, (str, bytes)):
            items.append(item)
        elif isinstance(item, (Sequence, numpy.ndarray)) or hasattr(item, "_wp_scalar_type_"):
            inner = flatten(item)
            if inner is None:
                return None
            items += inner
        else:
            items.append(item)
    return items


def require(condition: Any, message: Callable[[], str]) -> None:
    if isinstance(condition, bool):
        if not condition:
            raise ArgumentError(message())
        return
    torch._check_with(ArgumentError, condition, message)
