"""Warp's private side: types, their fields and what they are in C.

``tests/test_warp_private.py`` fails first when a new Warp changes any of it.
"""

from __future__ import annotations

import ctypes
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import warp as wp
import warp._src.codegen as _codegen
import warp._src.types as _types

RETAIN_GRAD = 1
"""Bit 0 of a descriptor's flags: a store leaves the adjoint in place."""

_VERSION = tuple(int(part) for part in wp.config.version.split(".")[:2])

CONDITIONAL_LOSES_LOADS = _VERSION < (1, 17)
"""This Warp passes no gradient to an array element that is a branch of a conditional expression by itself."""

COMPONENTS_ARE_STORED_AGAIN = _VERSION < (1, 18)
"""This Warp's adjoint stores components of elements again, into arrays that needn't be there, and adds to none."""

CONTINUES_ARE_UNROLLED = _VERSION >= (1, 19)
"""This Warp unrolls a loop that has a ``continue``."""


_FLOATS: dict[Any, bool] = {scalar: scalar is float or scalar in _types.float_types for scalar in _types.value_types}
"""The scalar types, and whether they are floats."""

_SMALL_INTS = (wp.int8, wp.uint8, wp.int16, wp.uint16)


def is_kernel(value: object) -> bool:
    return isinstance(value, wp.Kernel)


def argument_types(kernel: Any) -> Iterator[tuple[str, Any]]:
    """The kernel's arguments as (name, type), annotations resolved by Warp."""
    for argument in kernel.adj.args:
        yield argument.label, argument.type


def function_arguments(function: Any) -> dict[str, Any]:
    """The annotated types of a function's arguments, read and resolved as Warp reads a kernel's."""
    annotations = _codegen.get_full_arg_spec(function).annotations
    return {name: _codegen.Var(name, found).type for name, found in annotations.items() if name != "return"}


def struct_fields(warp_type: Any) -> dict[str, Any] | None:
    """The fields of a ``wp.struct`` type by name; None for any other type."""
    if not isinstance(warp_type, wp._src.codegen.Struct) or warp_type.vars is None:
        return None
    return {name: variable.type for name, variable in warp_type.vars.items()}


def type_at(types: Mapping[str, Any], label: str) -> Any:
    """The type of an argument, or of a field of one by its dotted name; ``types`` are those of the arguments."""
    head, *fields = label.split(".")
    found = types[head]
    for field in fields:
        found = (struct_fields(found) or {})[field]
    return found


def is_array(warp_type: Any) -> bool:
    return bool(_types.is_array(warp_type))


def is_null(array: Any) -> bool:
    """Whether an array has no memory, though not for being empty of elements."""
    return array.ptr is None and (array.shape is None or tuple(array.shape) == (0,))


def is_plain_array(warp_type: Any) -> bool:
    return bool(_types.matches_array_class(warp_type, wp.array))


def fixed_shape(warp_type: Any) -> tuple[int, ...] | None:
    """The shape of an array that lives in the thread; None for any other type."""
    kind = getattr(_types, "fixedarray", None)
    return tuple(warp_type.shape) if kind is not None and isinstance(warp_type, kind) else None


def is_texture(warp_type: Any) -> bool:
    return "texture" in getattr(warp_type, "__name__", "").lower()


def is_function_type(warp_type: Any) -> bool:
    return (
        warp_type in (Callable, typing.Callable, wp.Function)
        or typing.get_origin(warp_type) is Callable
        or isinstance(warp_type, wp.Function)
    )


def type_name(warp_type: Any) -> str:
    """A type as Warp's own messages print it."""
    if is_array(warp_type):
        text = repr(warp_type)
        if not text.startswith("array("):
            return text
        # One spelling, whether annotated as wp.array[float] or wp.array(dtype=float).
        element = type_name(warp_type.dtype)
        rank = "" if warp_type.ndim == 1 else f"{warp_type.ndim}d"
        return f"wp.array{rank}[{'wp.' if hasattr(wp, element) else ''}{element}]"
    fields = struct_fields(warp_type)
    if fields is not None:
        return str(warp_type.key)
    return str(_types.type_repr(warp_type)).removeprefix("warp._src.types.")


def overload_types(kernel: Any) -> list[list[Any]]:
    """The argument types of each overload that a generic kernel has."""
    return [[argument.type for argument in own.adj.args] for own in list(kernel.overloads.values())]


def same_types(left: list[Any], right: list[Any]) -> bool:
    """Whether two lists of concrete types are equal to Warp."""
    return bool(_types.get_signature(left) == _types.get_signature(right))


def is_generic(warp_type: Any) -> bool:
    """Whether a type stands for several scalar types."""
    return warp_type is Any or bool(_types.type_is_generic_scalar(warp_type))


def admits(template: Any, scalar: Any) -> bool:
    """Whether a generic element type can have a scalar type."""
    inner = getattr(template, "_wp_scalar_type_", template)
    if not is_generic(inner):
        return bool(inner is scalar)
    return bool(inner is Any or _types.type_matches_template(scalar, inner))


def is_float(scalar: Any) -> bool:
    return scalar in _types.float_types or scalar is float


def array_annotation(dtype: Any, ndim: int) -> Any:
    return wp.array(dtype=dtype, ndim=ndim)


def with_element(template: Any, scalar: Any, component: tuple[int, ...]) -> Any:
    """The concrete element type for a generic one: a scalar, vector, matrix, quaternion or transform."""
    kind = getattr(template, "_wp_generic_type_str_", "")
    if kind == "quat_t":
        return _types.quaternion(scalar)
    if kind == "transform_t":
        return _types.transformation(scalar)
    if not component or (template is not Any and not kind):
        return scalar
    if len(component) == 1:
        return _types.vector(component[0], scalar)
    return _types.matrix(component, scalar)


def argument_ctype(warp_type: Any) -> Any:
    """The ctypes type that a kernel argument has in Warp's argument struct."""
    if is_array(warp_type):
        return _types.array_t
    if struct_fields(warp_type) is not None:
        return warp_type.ctype
    if hasattr(warp_type, "_wp_scalar_type_"):
        return warp_type
    return warp_type._type_


def unpack_argument(warp_type: Any, packed: bytes, offset: int) -> Any:
    """One argument of ``packed`` as ``wp.launch`` takes it: a descriptor, a number, a vector or a struct."""
    ctype = argument_ctype(warp_type)
    value = ctype.from_buffer_copy(packed, offset)
    if is_array(warp_type):
        return value
    if struct_fields(warp_type) is not None:
        instance = warp_type()
        ctypes.memmove(ctypes.addressof(instance._ctype), ctypes.addressof(value), ctypes.sizeof(value))
        return instance
    if hasattr(warp_type, "_wp_scalar_type_"):
        return value
    if warp_type is wp.float16:
        return _types.half_bits_to_float(value.value)
    if warp_type is getattr(wp, "bfloat16", None):
        return _types.bfloat16_bits_to_float(value.value)
    return value.value


def unpack_arguments(kernel: Any, packed: bytes, offsets: Sequence[int]) -> list[Any]:
    """A kernel's arguments as ``wp.launch`` takes them."""
    return [unpack_argument(t, packed, offset) for (_, t), offset in zip(argument_types(kernel), offsets, strict=False)]


def described(array: Any) -> Any:
    """A descriptor of an array's (or of another descriptor's), which may be changed."""
    found = array if isinstance(array, _types.array_t) else array.__ctype__()
    return _types.array_t.from_buffer_copy(found)


def leaves_in_c(warp_type: Any, start: int = 0) -> Iterator[tuple[int, Any]]:
    """Where arrays and numbers are in what a kernel argument is in C, with their types: a struct has several."""
    fields = struct_fields(warp_type)
    if fields is None:
        yield start, warp_type
        return
    for name, field_type in fields.items():
        yield from leaves_in_c(field_type, start + getattr(warp_type.ctype, name).offset)


def size_in_bytes(warp_type: Any) -> int:
    """How much a value of a type takes; of a type that isn't stored in arrays, 0."""
    try:
        return int(_types.type_size_in_bytes(warp_type))
    except (KeyError, TypeError, AttributeError):
        return 0


def make_struct(title: str, fields: dict[str, Any]) -> Any:
    """A ``wp.struct`` type."""
    return wp.struct(type(title, (), {"__annotations__": fields, "__module__": __name__}), module="unique")


def is_int(warp_type: Any) -> bool:
    return isinstance(warp_type, type) and warp_type in _types.int_types


def is_number(value: object) -> bool:
    """Whether a Python object is a number, vector or matrix to Warp."""
    return bool(_types.is_value(value))


def is_value_type(value: object) -> bool:
    """Whether a Python object is the type of a number, vector or matrix to Warp."""
    return isinstance(value, type) and bool(_types.type_is_value(value))


def is_struct(warp_type: Any) -> bool:
    return isinstance(warp_type, _codegen.Struct)


def is_reference(warp_type: Any) -> bool:
    return bool(_types.is_reference(warp_type))


def holds_floats(dtype: Any) -> bool:
    """Whether elements of this type can carry a gradient; True where it can't be told."""
    if isinstance(dtype, type):
        found = _FLOATS.get(dtype)
        return _FLOATS.get(getattr(dtype, "_wp_scalar_type_", None), True) if found is None else found
    if is_struct(dtype):
        return any(holds_floats(variable.type) for variable in dtype.vars.values())
    return not is_array(dtype) or holds_floats(dtype.dtype)


def known_type(warp_type: Any) -> Any:
    """The type of a number or vector; None for anything else."""
    if not isinstance(warp_type, type):
        return None
    return _types.type_to_warp(warp_type) if warp_type in _FLOATS or _types.type_is_composite(warp_type) else None


def is_type_of(parameter: Any, argument: Any) -> bool:
    """Whether a builtin's parameter takes arguments of a type."""
    concrete = known_type(parameter)
    if concrete is not None and (concrete in _FLOATS or argument in _FLOATS):
        return concrete is argument
    return bool(_types.types_equal_generic(parameter, argument))


def cast_type(name: str) -> Any:
    """The type that a cast of this name makes."""
    return known_type({"float": float, "int": int, "bool": bool}.get(name) or getattr(wp, name, None))


def component_type(warp_type: Any, indices: int) -> Any:
    """The type of a part of a vector or matrix."""
    shape = getattr(warp_type, "_shape_", ())
    return getattr(warp_type, "_wp_scalar_type_", None) if len(shape) == indices else None


def adds_atomically(dtype: Any) -> bool:
    """Whether ``x[i] += v`` on elements of this type is an atomic addition."""
    scalar = getattr(dtype, "_wp_scalar_type_", dtype)
    return not (isinstance(scalar, type) and scalar in _SMALL_INTS)


OBJECTS = (wp.Mesh, wp.Bvh, wp.HashGrid, wp.Volume)
