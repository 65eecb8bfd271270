"""The memory that a program's launches work on, and what each launch does to it.

What an adjoint launch needs is the memory as the launch saw it. Programs overwrite arrays all the time (ping-pong
buffers, in-place updates), so every read that a later adjoint repeats is noted as a ``Value``: a range of bytes at a
time. A later write to that range makes the value a copy first; a range that is never written again costs nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import warp as wp

from ..effects import ArrayEffects, Effects, analyse
from ..frozen import frozen
from ..kernel.scalars import SCALARS
from ..private import warp_types
from ..rewrite.loops import choose_adjoint

# --- what launches do -------------------------------------------------------------------------------------------------


@frozen
class Use:
    """What a kernel does to one of its array arguments, as far as recording cares."""

    reads: bool = True
    """It reads the array (or may: nobody knows)."""
    state: Literal["before", "after"] | None = "before"
    """The array's state that its adjoint gets: before the launch, or after it; None where it reads nothing."""
    writes: bool = True
    sure: bool = False
    """That it writes is certain."""
    site: Any = None
    null_adjoint_safe: bool = False
    private: bool = False
    """Functions, or code that nobody can follow, run again in the adjoint, and may write: it gets a copy."""

    @property
    def needs_before(self) -> bool:
        """What the launch does depends on what the array held, as far as is known."""
        return self.reads and self.state == "before" and not (self.private and self.sure)

    @property
    def is_read_again(self) -> bool:
        """The adjoint may read the array."""
        return self.state is not None or self.private


_uses: weakref.WeakKeyDictionary[Any, tuple[Effects, dict[str, Use]]] = weakref.WeakKeyDictionary()


def uses_of(kernel: Any) -> tuple[Effects, dict[str, Use]]:
    """A kernel's effects, and its array arguments' uses by label."""
    found = _uses.get(kernel)
    if found is None:
        effects = choose_adjoint(kernel, analyse(kernel)).effects
        found = effects, {label: _use_of(known, effects) for label, known in effects.arrays.items()}
        _uses[kernel] = found
    return found


def _use_of(known: ArrayEffects, effects: Effects) -> Use:
    if known.escapes or effects.opaque:
        return Use(sure=known.written, site=_site(known), private=True)
    if known.replayed:  # in the adjoint functions run again, from what was there before the launch
        return Use(site=_site(known), sure=True, null_adjoint_safe=known.null_adjoint_safe, private=True)
    reads = known.read or known.reads_back
    either: Literal["before", "after"] = (
        "before" if not known.written or known.reads_before_write is not None else "after"
    )
    return Use(
        reads=reads,
        state=known.adjoint_state or (either if reads else None),
        writes=known.written,
        sure=known.written,
        site=_site(known),
        null_adjoint_safe=known.null_adjoint_safe,
    )


def _site(known: ArrayEffects) -> Any:
    return known.stores[0] if known.stores else (known.atomics[0][1] if known.atomics else None)


# --- memory -----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Value:
    """The bytes ``[low, high)`` of a block at one time of the run."""

    low: int
    copy: torch.Tensor | None = None
    """Made when the range is about to be overwritten; None while memory still holds it."""

    def address(self, pointer: int) -> int:
        return pointer if self.copy is None else self.copy.data_ptr() + pointer - self.low


class Maker:
    """Makes the memory that a backward needs for itself, as bytes."""

    def zeros(self, like: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(like)

    def copy(self, memory: torch.Tensor) -> torch.Tensor:
        return memory.clone()


@dataclass(eq=False)
class Block:
    """One piece of memory that launches work on, and the memory of its gradient."""

    low: int
    high: int
    name: str
    memory: torch.Tensor
    """Its bytes."""
    owner: Any
    """What keeps it allocated."""
    maker: Maker
    given: bool = False
    """An input of the program, which must not be written."""
    gradient: torch.Tensor | None = None
    """The bytes of its gradient, laid out as the block."""
    active: bool = False
    """Gradients may flow through what it holds."""
    reached: bool = False
    """Backward: a gradient has arrived."""
    values: dict[tuple[int, int], Value] = field(default_factory=dict)
    """The ranges that adjoints need and that memory still holds."""

    def value(self, low: int, high: int) -> Value:
        found = self.values.get((low, high))
        if found is None:
            found = self.values[low, high] = Value(low)
        return found

    def overwrite(self, low: int, high: int) -> None:
        """The range is about to be written: copy what adjoints still need of it."""
        for (start, end), value in list(self.values.items()):
            if start < high and low < end:
                value.copy = self.maker.copy(self.memory[start - self.low : end - self.low])
                del self.values[start, end]

    def gradient_memory(self) -> torch.Tensor:
        if self.gradient is None:
            self.gradient = self.maker.zeros(self.memory)
        return self.gradient


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor's memory as bytes. Axes of size 1 may have any stride, which is no part of it."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


@frozen
class Ref:
    """An array argument of one recorded call: where it lies, its layout, and the value that the adjoint needs."""

    label: str
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    pointer: int
    low: int
    high: int
    block: Block | None
    """None for an empty array."""
    use: Use
    live: bool
    """Gradients flow through it."""
    value: Value | None = None

    @property
    def differentiable(self) -> bool:
        return warp_types.holds_floats(self.dtype)

    def array(self, device: Any, private: list[Any]) -> Any:
        """The array as the launch saw it, with the block's gradient attached."""
        if self.block is None:
            return wp.array(ptr=None, dtype=self.dtype, shape=self.shape, device=device)
        pointer = self.value.address(self.pointer) if self.value is not None else self.pointer
        own = self.block.memory[self.low - self.block.low : self.high - self.block.low]
        if self.use.private and self.use.writes:
            kept = self.value.copy if self.value is not None else None
            copy = self.block.maker.copy(own if kept is None else kept)
            private.append(copy)
            pointer = copy.data_ptr() + self.pointer - self.low
        layout = {"dtype": self.dtype, "shape": self.shape, "strides": self.strides, "device": device}
        adjoint: Any = None
        if self.live:
            adjoint = wp.array(ptr=self.block.gradient_memory().data_ptr() + self.pointer - self.block.low, **layout)
        elif self.differentiable and not self.use.null_adjoint_safe:
            buffer = self.block.maker.zeros(own)
            private.append(buffer)
            adjoint = wp.array(ptr=buffer.data_ptr() + self.pointer - self.low, **layout)
        return wp.array(ptr=pointer, grad=adjoint, **layout)

    @property
    def bare(self) -> Ref:
        """The layout alone, which holds no memory."""
        return replace(self, block=None, value=None)

    def gradient_view(self) -> torch.Tensor:
        """The array's gradient as a tensor of its scalars, component axes last."""
        assert self.block is not None
        return self.view(self.block.gradient_memory()[self.low - self.block.low : self.high - self.block.low])

    def view(self, memory: torch.Tensor) -> torch.Tensor:
        """The array over these bytes, as ``gradient_view`` shows it."""
        dtype, component = _view_of(self.dtype)
        piece = memory.view(dtype)
        size = dtype.itemsize
        inner = [1]
        for length in reversed(component[1:]):
            inner.insert(0, inner[0] * length)
        strides = (*(s // size for s in self.strides), *(inner if component else ()))
        offset = piece.storage_offset() + (self.pointer - self.low) // size
        return piece.as_strided((*self.shape, *component), strides, offset)


def _view_of(dtype: Any) -> tuple[torch.dtype, tuple[int, ...]]:
    """The scalar dtype and the component axes that show an array's gradients.

    Those of a struct are shown as numbers of its floats' dtype: what else it holds is zero in a gradient, and so are its
    bytes. Structs of different floats can't be shown so; they are bytes.
    """
    if warp_types.struct_fields(dtype) is not None:
        floats = {scalar.dtype for scalar in _scalars(dtype) if scalar is not None and scalar.kind == "float"}
        size = warp_types.size_in_bytes(dtype)
        shown = next(iter(floats)) if len(floats) == 1 and size % next(iter(floats)).itemsize == 0 else torch.uint8
        return shown, (size // shown.itemsize,)
    inner = getattr(dtype, "_wp_scalar_type_", None)
    if inner is not None:
        return SCALARS[inner].dtype, tuple(dtype._shape_)
    return SCALARS[dtype].dtype, ()


def _scalars(dtype: Any) -> list[Any]:
    """The scalar types in an element; None for what is no number."""
    fields = warp_types.struct_fields(dtype)
    if fields is None:
        return [SCALARS.get(getattr(dtype, "_wp_scalar_type_", dtype))]
    return [scalar for field in fields.values() for scalar in _scalars(field)]


# --- adjoints of library functions ------------------------------------------------------------------------------------

Views = Mapping[str, torch.Tensor]
"""The gradients of a call's arrays by argument; none where no gradient flows through."""


def adjoint_of(name: str, refs: dict[str, Ref], call: dict[str, Any]) -> Callable[[Views], None] | None:
    """The adjoint of a library call, as a function over gradients; None where there is none. It holds no memory."""
    if name in ("fill_", "zero_"):
        return lambda views: _end(views["self"])
    shapes = {label: ref.shape for label, ref in refs.items()}
    if name == "copy" and all(_view_of(ref.dtype)[0].is_floating_point for ref in refs.values()):
        offsets, count = (call["dest_offset"], call["src_offset"]), call["count"] or call["src"].size
        whole = count == call["src"].size == call["dest"].size and call["src"].shape == call["dest"].shape
        return lambda views: _copy_adjoint(shapes, views, None if whole else (*offsets, count))
    if name == "array_scan":
        inclusive = bool(call["inclusive"])
        return lambda views: _scan_adjoint(shapes, views, inclusive)
    return None


def _end(gradient: torch.Tensor) -> None:
    """What an array held before it was filled has no part in what follows."""
    gradient.zero_()


def _copy_adjoint(shapes: dict[str, tuple[int, ...]], views: Views, part: tuple[int, int, int] | None) -> None:
    """The destination's gradient goes to the source, and ends there: the copy overwrote what the destination held."""
    target, source = views["dest"], views.get("src")
    if part is not None:  # then Warp copies a range of elements, of dense or 1-D arrays
        first, other, count = part
        target = _elements(target, shapes["dest"])[first : first + count]
        if source is not None:
            source = _elements(source, shapes["src"])[other : other + count]
    passed = target.clone()
    target.zero_()
    if source is not None:
        source.add_(passed)


def _elements(view: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return view if len(shape) == 1 else view.view(-1, *view.shape[len(shape) :])


def _scan_adjoint(shapes: dict[str, tuple[int, ...]], views: Views, inclusive: bool) -> None:
    """The adjoint of a running sum is the running sum from the other end."""
    target, source = views["out_array"], views.get("in_array")
    passed = _elements(target, shapes["out_array"]).clone()
    target.zero_()
    if source is not None:
        sums = passed.flip(0).cumsum(0).flip(0)
        _elements(source, shapes["in_array"]).add_(sums if inclusive else sums - passed)
