"""What Warp says of a kernel's arguments, parsed once into plain data.

One kernel argument becomes one or more *leaves*, the values that PyTorch's schema knows: an array or a number is one
leaf, a struct is one leaf per field.
"""

from __future__ import annotations

import inspect
import typing
from dataclasses import field
from functools import cached_property
from typing import Any, Literal

import warp as wp

from ..errors import SignatureError
from ..frozen import frozen
from ..private import warp_code, warp_source, warp_types
from .scalars import SCALARS, Scalar

MISSING: Any = inspect.Parameter.empty
LeafKind = Literal["array", "number", "vector", "handle", "size"]


@frozen
class Leaf:
    """One value of the op's schema."""

    name: str
    """Its name in the schema; a struct's field is ``s_pos``."""
    label: str
    """Its name as the user writes it: ``s.pos``."""
    path: tuple[str, ...]
    """The kernel argument, then the field names."""
    kind: LeafKind
    scalar: Scalar | None
    """None where the kernel is generic in it (``typing.Any``)."""
    component: tuple[int, ...] | None = ()
    """The trailing axes of a vec, mat, quat or transform; () for scalars; None where generic."""
    ndim: int = 0
    default: Any = MISSING
    warp_type: Any = field(default=None, compare=False)

    @cached_property
    def type_name(self) -> str:
        """Its type as Warp prints it."""
        return "" if self.warp_type is None else warp_types.type_name(self.warp_type)

    @property
    def is_array(self) -> bool:
        return self.kind == "array"

    @property
    def is_number(self) -> bool:
        """A number or bool by value, of one scalar type or of any."""
        return self.kind == "number"

    @property
    def is_integral(self) -> bool:
        """An int or bool, which sizes may be written with."""
        return self.is_number and self.scalar is not None and self.scalar.kind in ("int", "bool")

    @property
    def generic(self) -> bool:
        return self.scalar is None or self.component is None

    @property
    def differentiable(self) -> bool:
        return self.is_array and (self.scalar is None or self.scalar.differentiable)


_CPP_WORDS = """
alignas alignof and_eq asm auto bitand bitor bool case catch char char8_t char16_t char32_t compl concept
const consteval constexpr constinit const_cast co_await co_return co_yield decltype default delete do double
dynamic_cast enum explicit export extern false float friend goto inline int long mutable namespace new
noexcept not_eq nullptr operator or_eq private protected public register reinterpret_cast requires short
signed sizeof static static_assert static_cast struct switch template this thread_local throw true typedef
typeid typename union unsigned using virtual void volatile wchar_t xor xor_eq
"""
CPP_WORDS = frozenset(_CPP_WORDS.split())
"""Keywords of C++ that Python takes for names: arguments and fields keep theirs in the code that Warp generates."""


@frozen
class Argument:
    """One argument of the kernel and its leaves."""

    name: str
    leaves: tuple[Leaf, ...]
    struct: bool = False
    default: Any = MISSING


@frozen
class KernelSignature:
    """What Warp says of one kernel."""

    kernel: Any
    name: str
    module: str
    qualname: str
    file: str
    line: int
    arguments: tuple[Argument, ...]
    enable_backward: bool
    generic: bool
    doc: str | None = None
    program: bool = False
    """It is a Python function that launches kernels (``warp_program``)."""

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        return tuple(leaf for argument in self.arguments for leaf in argument.leaves)


def inspect_kernel(kernel: Any) -> KernelSignature:
    """Parse a ``wp.Kernel``, or a program. Builds nothing.

    Raises:
        SignatureError: an argument's type has no counterpart in PyTorch; the function doesn't run when it is called.
    """
    function = kernel.func
    if function.__code__.co_flags & (inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        raise SignatureError(
            f"{function.__name__} is a generator or async, and not run by a call: write a plain function"
        )
    has_defaults = function.__defaults__ or function.__kwdefaults__
    parameters = inspect.signature(function).parameters if has_defaults else {}
    where = warp_source.source_location(kernel)
    arguments = []
    for name, warp_type in warp_types.argument_types(kernel):
        default = parameters[name].default if name in parameters else MISSING
        leaves = tuple(_leaves(function.__name__, (name,), warp_type, default, where))
        arguments.append(Argument(name, leaves, warp_types.is_struct(warp_type), default))
    names = [leaf.name for argument in arguments for leaf in argument.leaves]
    if len(names) > len(set(names)):
        name = next(name for name in names if names.count(name) > 1)
        raise SignatureError(
            f"{function.__name__}: the name '{name}' would stand for two values of the op, a struct's field and an "
            f"argument; rename one of them in the kernel ({where[0]}:{where[1]})"
        )
    return KernelSignature(
        kernel=kernel,
        name=function.__name__,
        module=function.__module__,
        qualname=function.__qualname__,
        file=where[0],
        line=where[1],
        arguments=tuple(arguments),
        enable_backward=warp_code.backward_enabled(kernel),
        generic=kernel.is_generic,
        doc=function.__doc__,
    )


def _leaves(
    op: str, path: tuple[str, ...], warp_type: Any, default: Any, where: tuple[str, int]
) -> typing.Iterator[Leaf]:
    if not warp_types.is_struct(warp_type):
        yield _leaf(op, path, warp_type, default, where)
        return
    for name, inner in (warp_types.struct_fields(warp_type) or {}).items():
        yield from _leaves(op, (*path, name), inner, MISSING, where)


def _leaf(op: str, path: tuple[str, ...], warp_type: Any, default: Any, where: tuple[str, int]) -> Leaf:
    name, label = "_".join(path), ".".join(path)

    def refuse(advice: str) -> SignatureError:
        return SignatureError(
            f"{op}: argument '{label}' has the type {warp_types.type_name(warp_type)}, which no tensor or number stands "
            f"for ({where[0]}:{where[1]}); {advice}"
        )

    for part in path:
        if part in CPP_WORDS or not part.isascii():
            kept = part in CPP_WORDS
            why = "C++, which Warp generates, has that word for itself" if kept else "PyTorch takes ASCII names"
            raise SignatureError(
                f"{op}: '{label}' can't be called so: {why}; rename it in the kernel ({where[0]}:{where[1]})"
            )
    if warp_types.is_array(warp_type):
        if not warp_types.is_plain_array(warp_type):
            raise refuse("take a wp.array and index the tensor before the call, as in op(x[idx])")
        if warp_types.is_struct(warp_type.dtype):
            raise refuse("take one array per field, or a struct of arrays in place of an array of structs")
        scalar, component = _element(warp_type.dtype)
        if scalar is None and not warp_types.is_generic(warp_type.dtype) and component == ():
            raise refuse("take an array of scalars, vectors, matrices, quaternions or transforms")
        return Leaf(name, label, path, "array", scalar, component, warp_type.ndim, default, warp_type)
    if warp_type is wp.uint64:
        return Leaf(name, label, path, "handle", SCALARS[wp.uint64], (), 0, default, warp_type)
    if warp_types.is_texture(warp_type):
        raise refuse("sample the texture in PyTorch, or pass its texels as an array")
    if typing.get_origin(warp_type) is tuple or warp_type is tuple:
        raise refuse("take its items as separate arguments")
    if warp_types.is_function_type(warp_type):
        raise refuse("make one kernel per function, for example in a function that returns the op")
    if warp_types.is_generic(warp_type):
        return Leaf(name, label, path, "number", None, (), 0, default, warp_type)
    scalar, component = _element(warp_type)
    if hasattr(warp_type, "_wp_scalar_type_"):
        return Leaf(name, label, path, "vector", scalar, component, 0, default, warp_type)
    if scalar is None:
        raise refuse("take arrays, numbers, vectors, structs, or the id of a Warp object as wp.uint64")
    return Leaf(name, label, path, "number", scalar, (), 0, default, warp_type)


def _element(warp_type: Any) -> tuple[Scalar | None, tuple[int, ...] | None]:
    """The scalar type and the component axes of an element type; None for what is generic."""
    inner = getattr(warp_type, "_wp_scalar_type_", None)
    if inner is None:
        return (SCALARS.get(warp_type) if warp_type is not Any else None), (None if warp_type is Any else ())
    shape = tuple(warp_type._shape_)
    component = shape if all(isinstance(n, int) and n > 0 for n in shape) else None
    return SCALARS.get(inner), component
