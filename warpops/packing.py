"""How a kernel's arguments are laid out in the bytes that a launch takes.

Warp passes the arguments of a CPU launch as one C structure, and those of a CUDA launch by address; both are read from
one ``bytes`` object here, packed by ``struct`` in a single call. Packing checks ranges on the way: ``struct`` refuses an
int or a float that doesn't fit.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import Any

from . import _warp
from .kernel import KernelSignature, Leaf

PACK_ERRORS = (struct.error, OverflowError)
"""What ``struct`` raises for a number out of its type's range."""


@dataclass(frozen=True)
class Layout:
    """The format of one kernel's argument struct, and where each kernel argument starts in it."""

    format: str
    offsets: tuple[int, ...]
    size: int

    def packer(self) -> Any:
        return struct.Struct(self.format).pack


def _array_format(leaf: Leaf) -> str:
    """data, grad, shape per axis, strides per axis, then rank and flags; unused axes are zero bytes."""
    rest = 4 * (4 - leaf.ndim)
    pad = f"{rest}x" if rest else ""
    return f"QQ{leaf.ndim}i{pad}{leaf.ndim}i{pad}HH"


def _value_format(leaf: Leaf) -> str:
    assert leaf.scalar is not None
    if leaf.kind == "vector":
        count = 1
        for size in leaf.component or ():
            count *= size
        return f"{count}{leaf.scalar.code}"
    return leaf.scalar.code


def array_rest(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, flags: int, grad: bool) -> bytes:
    """A descriptor less its data pointer (and, unless ``grad``, less its adjoint's): strides arrive in elements."""
    rank = len(shape)
    unused = f"{4 * (4 - rank)}x"
    packed = struct.pack(
        f"={rank}i{unused}{rank}i{unused}HH4x", *shape, *(strides[axis] * itemsize for axis in range(rank)), rank, flags
    )
    return bytes(8) + packed if grad else packed


_QUICK = {"forward": "Q48s", "attached": "QQ40s", "explicit": "Q48s"}


def argument_layout(kernel: KernelSignature, adjoint: bool = False, quick: str | None = None) -> Layout:
    """The layout of a concrete kernel's arguments; of the explicit adjoints, only plain arrays are packed.

    ``quick`` names a layout whose descriptors come as pointers and bytes (``array_rest``).
    """
    types = dict(_warp.argument_types(kernel.kernel))
    structure = _warp.struct_layout(list(types.values()))
    parts: list[tuple[int, int, str]] = []
    offsets: list[int] = []
    adjoint = adjoint or quick == "explicit"

    def code(leaf: Leaf) -> str:
        if not leaf.is_array:
            return _value_format(leaf)
        return _QUICK[quick] if quick is not None else _array_format(leaf)

    for index, argument in enumerate(kernel.arguments):
        start = getattr(structure, f"a{index}").offset
        offsets.append(start)
        if adjoint and (argument.struct or not argument.leaves[0].is_array):
            continue
        if argument.struct:
            ctype = _warp.argument_ctype(types[argument.name])
            for leaf in argument.leaves:
                offset, size = _field_offset(ctype, leaf.path[1:])
                parts.append((start + offset, size, code(leaf)))
            continue
        leaf = argument.leaves[0]
        size = ctypes.sizeof(_warp.argument_ctype(types[argument.name]))
        parts.append((start, size, code(leaf)))
    return _join(parts, tuple(offsets), ctypes.sizeof(structure))


def _field_offset(ctype: Any, path: tuple[str, ...]) -> tuple[int, int]:
    field = getattr(ctype, path[0])
    if len(path) == 1:
        return field.offset, field.size
    inner = {name: kind for name, kind, *_ in ctype._fields_}[path[0]]
    offset, size = _field_offset(inner, path[1:])
    return field.offset + offset, size


def _join(parts: list[tuple[int, int, str]], offsets: tuple[int, ...], total: int) -> Layout:
    text, position = "=", 0
    for offset, size, code in parts:
        if offset > position:
            text += f"{offset - position}x"
        own = struct.calcsize("=" + code)
        assert own <= size, f"{code} packs {own} bytes into {size}"
        text += code + (f"{size - own}x" if size > own else "")
        position = offset + size
    if total > position:
        text += f"{total - position}x"
    return Layout(text, offsets, total)


BOUNDS = {rank: struct.Struct(f"={rank}I{'4x' if rank % 2 else ''}QQ").pack for rank in range(1, 5)}
"""Packs launch bounds: the extents, their product, and how often each coordinate repeats."""


def bfloat16_bits(value: float) -> int:
    """A float as the 16 bits of bfloat16, rounded to nearest even."""
    bits: int
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    if value != value:
        return (bits >> 16) | 0x40
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF
