"""What Warp says of a kernel's arguments, parsed once into plain data.

One kernel argument becomes one or more *leaves*, the values that PyTorch's schema knows: an array or a number is one
leaf, a struct is one leaf per field.
"""

from __future__ import annotations

import inspect
import typing
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
    path: tuple[str, ...]
    """The kernel argument, then the field names."""
    kind: LeafKind
    scalar: Scalar | None
    """None where the kernel is generic in it (``typing.Any``)."""
    component: tuple[int, ...] | None = ()
    """The trailing axes of a vec, mat, quat or transform; () for scalars; None where generic."""
    ndim: int = 0
    default: Any = MISSING
    type_name: str = ""
    """As Warp prints it."""

    @property
    def label(self) -> str:
        """Its name as the user writes it: ``s.pos``."""
        return ".".join(self.path)

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

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return tuple(leaf for argument in self.arguments for leaf in argument.leaves)


def inspect_kernel(kernel: Any) -> KernelSignature:
    """Parse a ``wp.Kernel``. Builds nothing.

    Raises:
        SignatureError: an argument's type has no counterpart in PyTorch.
    """
    function = kernel.func
    parameters = inspect.signature(function).parameters
    where = warp_source.source_location(kernel)
    arguments = []
    for name, warp_type in warp_types.argument_types(kernel):
        default = parameters[name].default if name in parameters else MISSING
        leaves = tuple(_leaves(function.__name__, (name,), warp_type, default, where))
        arguments.append(Argument(name, leaves, warp_types.struct_fields(warp_type) is not None, default))
    names = [leaf.name for argument in arguments for leaf in argument.leaves]
    for name in names:
        if names.count(name) > 1:
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
    fields = warp_types.struct_fields(warp_type)
    if fields is None:
        yield _leaf(op, path, warp_type, default, where)
        return
    for field, inner in fields.items():
        yield from _leaves(op, (*path, field), inner, MISSING, where)


def _leaf(op: str, path: tuple[str, ...], warp_type: Any, default: Any, where: tuple[str, int]) -> Leaf:
    name, label = "_".join(path), ".".join(path)
    type_name = warp_types.type_name(warp_type)

    def refuse(advice: str) -> SignatureError:
        return SignatureError(
            f"{op}: argument '{label}' has the type {type_name}, which no tensor or number stands for "
            f"({where[0]}:{where[1]}); {advice}"
        )

    wrong = next((part for part in path if part in CPP_WORDS or not part.isascii()), None)
    if wrong is not None:
        why = (
            "C++, which Warp generates, has that word for itself" if wrong in CPP_WORDS else "PyTorch takes ASCII names"
        )
        raise SignatureError(
            f"{op}: '{label}' can't be called so: {why}; rename it in the kernel ({where[0]}:{where[1]})"
        )
    if warp_types.is_array(warp_type):
        if not warp_types.is_plain_array(warp_type):
            raise refuse("take a wp.array and index the tensor before the call, as in op(x[idx])")
        if warp_types.struct_fields(warp_type.dtype) is not None:
            raise refuse("take one array per field, or a struct of arrays in place of an array of structs")
        scalar, component = _element(warp_type.dtype)
        if scalar is None and not warp_types.is_generic(warp_type.dtype) and component == ():
            raise refuse("take an array of scalars, vectors, matrices, quaternions or transforms")
        return Leaf(name, path, "array", scalar, component, warp_type.ndim, default, type_name)
    if warp_type is wp.uint64:
        return Leaf(name, path, "handle", SCALARS[wp.uint64], (), 0, default, type_name)
    if warp_types.is_texture(warp_type):
        raise refuse("sample the texture in PyTorch, or pass its texels as an array")
    if typing.get_origin(warp_type) is tuple or warp_type is tuple:
        raise refuse("take its items as separate arguments")
    if warp_types.is_function_type(warp_type):
        raise refuse("make one kernel per function, for example in a function that returns the op")
    if warp_types.is_generic(warp_type):
        return Leaf(name, path, "number", None, (), 0, default, type_name)
    scalar, component = _element(warp_type)
    if hasattr(warp_type, "_wp_scalar_type_"):
        return Leaf(name, path, "vector", scalar, component, 0, default, type_name)
    if scalar is None:
        raise refuse("take arrays, numbers, vectors, structs, or the id of a Warp object as wp.uint64")
    return Leaf(name, path, "number", scalar, (), 0, default, type_name)


def _element(warp_type: Any) -> tuple[Scalar | None, tuple[int, ...] | None]:
    """The scalar type and the component axes of an element type; None for what is generic."""
    inner = getattr(warp_type, "_wp_scalar_type_", None)
    if inner is None:
        return (SCALARS.get(warp_type) if warp_type is not Any else None), (None if warp_type is Any else ())
    shape = tuple(warp_type._shape_)
    component = shape if all(isinstance(n, int) and n > 0 for n in shape) else None
    return SCALARS.get(inner), component
