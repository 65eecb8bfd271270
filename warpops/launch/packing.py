"""How a kernel's arguments are laid out in the bytes that a launch takes.

Warp passes the arguments of a CPU launch as one C structure, and those of a CUDA launch by address; both are read from
one ``bytes`` object here, packed by ``struct`` in a single call. Packing checks ranges on the way: ``struct`` refuses an
int or a float that doesn't fit.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from typing import Any

import torch

from ..frozen import frozen
from ..kernel.scalars import BFLOAT16_OVERFLOW
from ..kernel.signature import KernelSignature, Leaf
from ..private import warp_types
from ..private.torch_guards import bytes_spanned

PACK_ERRORS = (struct.error, OverflowError)
"""What ``struct`` raises for a number out of its type's range."""


class OutdatedError(Exception):
    """A remembered launch is of code that was replaced, or can be made a faster one."""


class UncertainError(Exception):
    """A remembered launch can't be sure of this call: arrays may overlap or have no memory, or Warp is recording what is
    launched."""


NOT_RECALLED = (*PACK_ERRORS, OutdatedError, UncertainError)
"""What makes a remembered launch give way to a whole one, which checks everything and says what is wrong."""

POINTER = struct.Struct("=Q")
DESCRIPTOR = 56
"""Bytes of an array's descriptor: data, adjoint, four sizes, four strides, rank and flags."""


@frozen
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
    return leaf.scalar.code * math.prod(leaf.component or ())


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense array, in elements."""
    return tuple(math.prod(max(size, 1) for size in shape[axis + 1 :]) for axis in range(len(shape)))


def descriptor(shape: Sequence[int], strides: Sequence[int], itemsize: int, flags: int = 0) -> bytes:
    """An array's descriptor with null pointers; strides arrive in elements."""
    rank = len(shape)
    unused = f"{4 * (4 - rank)}x"
    steps = (strides[axis] * itemsize for axis in range(rank))
    return struct.pack(f"=16x{rank}i{unused}{rank}i{unused}HH4x", *shape, *steps, rank, flags)


def _is_empty(packed: bytes) -> bool:
    """Whether the array of a descriptor has no element."""
    rank: int = struct.unpack_from("=H", packed, 48)[0]
    return 0 in struct.unpack_from(f"={rank}i", packed, 2 * POINTER.size)


class Parts:
    """Where the leaves of a concrete kernel's arguments are in its argument struct, by the rules of C. A ``ctypes.Structure``
    of each kernel would say the same, and is garbage that only the collector takes."""

    def __init__(self, kernel: KernelSignature) -> None:
        types = dict(warp_types.argument_types(kernel.kernel))
        self.offsets: list[int] = []
        self.leaves: list[tuple[int, int, Leaf]] = []
        """Offset, size and leaf, in order."""
        self.total, widest = 0, 1
        for argument in kernel.arguments:
            ctype = warp_types.argument_ctype(types[argument.name])
            widest = max(widest, ctypes.alignment(ctype))
            start = self.total + -self.total % ctypes.alignment(ctype)
            self.offsets.append(start)
            self.total = start + ctypes.sizeof(ctype)
            for leaf in argument.leaves:
                offset, size = _field_offset(ctype, leaf.path[1:]) if argument.struct else (0, ctypes.sizeof(ctype))
                self.leaves.append((start + offset, size, leaf))
        self.total += -self.total % widest

    def layout(self, adjoint: bool = False) -> Layout:
        """The layout of the arguments; of the explicit adjoints, only plain arrays are packed."""
        parts = [
            (offset, size, _array_format(leaf) if leaf.is_array else _value_format(leaf))
            for offset, size, leaf in self.leaves
            if not adjoint or _has_explicit_adjoint(leaf)
        ]
        return _join(parts, tuple(self.offsets), self.total)


def _has_explicit_adjoint(leaf: Leaf) -> bool:
    return leaf.is_array and len(leaf.path) == 1


def number_packer(kernel: KernelSignature) -> Any:
    """Packs a concrete kernel's numbers, one after the other."""
    return struct.Struct("=" + "".join(_value_format(leaf) for leaf in kernel.leaves if not leaf.is_array)).pack


@frozen
class Image:
    """The argument struct of a launch, for an adjoint followed by that of the explicit adjoints, less what changes."""

    packed: bytes
    """With zeros for numbers, and for each pointer how far it is from the start of its tensor."""
    second: int
    """Where the explicit adjoints start; 0 where there are none."""
    places: tuple[tuple[int, int], ...]
    """For each pointer, which tensor's it is and where it goes: the arrays' in order, then their adjoints'. Those of empty
    ones stay null, which no other one is, unless its memory was freed."""
    copies: tuple[tuple[int, int, int], ...]
    """For each number, where it is in what ``number_packer`` packs, where it goes, and how many bytes."""
    apart: tuple[tuple[int, int, int, int], ...] = ()
    """Arrays that must not overlap, in pairs: where the pointer of each goes, and how many bytes it spans."""
    starts: tuple[int, ...] = ()
    """Where each kernel argument starts, for an adjoint followed by the explicit adjoints."""

    @property
    def adjoint(self) -> bool:
        return self.second > 0

    def filled(self, tensors: Sequence[torch.Tensor | None], numbers: bytes) -> bytearray:
        """With the pointers of tensors, and numbers.

        Raises:
            UncertainError: a tensor has no memory.
        """
        made = bytearray(self.packed)
        for index, at in self.places:
            tensor = tensors[index]
            if tensor is not None:
                pointer = tensor.data_ptr()
                if not pointer:
                    raise UncertainError
                POINTER.pack_into(made, at, POINTER.unpack_from(made, at)[0] + pointer)
        for source, at, count in self.copies:
            made[at : at + count] = numbers[source : source + count]
        return made


def pairs_apart(
    tensors: Sequence[torch.Tensor | None], changed: Sequence[int]
) -> tuple[tuple[int, int, int, int], ...]:
    """The pairs of arrays one of which is changed in place: each by its index, with how many bytes it spans."""
    spans = {k: bytes_spanned(tensor) for k, tensor in enumerate(tensors) if tensor is not None and tensor.numel()}
    return tuple(
        (index, spans[index], other, spans[other])
        for index in changed
        for other in spans
        if index in spans and (other not in changed or other > index)
    )


def argument_image(
    found: Parts,
    descriptors: Sequence[bytes],
    explicit: Sequence[bytes | None] | None = None,
    apart: Sequence[tuple[int, int, int, int]] = (),
) -> Image:
    """The image of a launch.

    Args:
        descriptors: of the arrays, in the kernel's order.
        explicit: for an adjoint, the descriptors of the explicit adjoints, those of plain arrays; None for one that isn't
            given.
        apart: what ``pairs_apart`` says of the arrays.
    """
    second = found.total + -found.total % 16 if explicit is not None else 0
    packed = bytearray(second + found.total)
    places: list[tuple[int, int]] = []
    copies: list[tuple[int, int, int]] = []
    plain = iter(explicit or ())
    array = numbers = 0
    for offset, _, leaf in found.leaves:
        if not leaf.is_array:
            size = struct.calcsize("=" + _value_format(leaf))
            copies.append((numbers, offset, size))
            numbers += size
            continue
        packed[offset : offset + DESCRIPTOR] = descriptors[array]
        found_at = [(array, offset)]
        if explicit is not None:
            found_at.append((len(descriptors) + array, offset + POINTER.size))
            given = next(plain) if _has_explicit_adjoint(leaf) else None
            if given is not None:
                packed[second + offset : second + offset + DESCRIPTOR] = given
                found_at.append((len(descriptors) + array, second + offset))
        if not _is_empty(descriptors[array]):
            places += found_at
        array += 1
    own = {index: offset for index, offset in places if index < len(descriptors) and offset < (second or found.total)}
    pairs = tuple((own[index], span, own[other], more) for index, span, other, more in apart)
    starts = [*found.offsets, *(second + offset for offset in found.offsets if second)]
    return Image(bytes(packed), second, tuple(places), tuple(copies), pairs, tuple(starts))


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
    """A float as the 16 bits of bfloat16, rounded to nearest even.

    Raises:
        OverflowError: the number is finite, and would become infinite.
    """
    if BFLOAT16_OVERFLOW <= abs(value) < math.inf:
        raise OverflowError("float too large to pack as bfloat16")
    bits: int
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    if value != value:
        return (bits >> 16) | 0x40
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF
