"""Writing a run of a program down while it goes on, so that it can be repeated without the program's Python."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import warp as wp

from ..arguments.handle import check_handle
from ..kernel.signature import inspect_kernel
from ..launch.launcher import Launcher
from ..launch.packing import POINTER, Image
from ..private import warp_launch, warp_types
from ..private.warp_calls import byte_range
from ..private.warp_types import OBJECTS
from .launches import Called, unchanging
from .memory import Maker, Ref, Use
from .reads import Reads
from .script import OWN, Launch, Place, Script, Step, Tensors

_ALIGNED = 64
Range = tuple[int, int, int]
"""Memory: in which tensor, its first byte, and the one after its last."""


class Take(Maker):
    """Writes down a run while it goes on."""

    def __init__(
        self, reads: Reads, launchers: dict[Any, Launcher], device: torch.device, warp_device: Any, private: bool
    ) -> None:
        """``launchers``: those that earlier runs made, by kernel and block size. ``private``: nobody sees what the program
        writes, as in a backward, whose results are gradients."""
        self.reads, self.device, self.warp_device, self.private = reads, device, warp_device, private
        self._launchers = launchers
        self.why: str | None = None
        """What of the run can't be repeated so."""
        self._steps: list[tuple[Step, list[Range], list[Range] | None]] = []
        """Each with what it reads, and what it writes; None where it is repeated in any case."""
        self._kept: list[Range] = []
        """What objects are made of, and may look at whenever a kernel asks them."""
        self._calls = False
        self._sizes = [0, 0]
        self._ranges: list[tuple[int, int, int, int]] = []
        self._objects: list[Any] = []
        self._held: list[Any] = []
        """Memory of the run, whose addresses mean something as long as it isn't freed."""

    def script(self) -> Script | None:
        if self.why is not None:
            return None
        steps = self._needed() if self.private else [step for step, _, _ in self._steps]
        return Script((self._sizes[0], self._sizes[1]), tuple(steps), self._calls)

    def _needed(self) -> list[Step]:
        """The steps less those whose results nobody reads: of a backward, the last launches forward."""
        found, read = [], set(self._kept)
        for step, reads, writes in reversed(self._steps):
            if writes is None or any(_overlap(one, other) for one in writes for other in read):
                found.append(step)
                read.update(reads)
        return found[::-1]

    def refuse(self, why: str) -> None:
        self.why = self.why or why

    # --- memory -------------------------------------------------------------------------------------------------------

    def give(self, index: int, tensor: torch.Tensor) -> None:
        """A tensor that a repetition is given, dense, by its number among those."""
        if tensor.numel():
            low = tensor.data_ptr()
            self._ranges.append((low, low + tensor.numel() * tensor.element_size(), len(OWN) + index, 0))

    def adopt(self, owner: Any, low: int, high: int, kind: str = "empty") -> Place:
        """Memory that the run has made for itself."""
        index = OWN.index(kind)
        place = Place(index, self._sizes[index])
        self._sizes[index] += high - low + -(high - low) % _ALIGNED
        self._ranges.append((low, high, *(place.index, place.offset)))
        self._held.append(owner)
        return place

    def zeros(self, like: torch.Tensor) -> torch.Tensor:
        made = super().zeros(like)
        self.adopt(made, made.data_ptr(), made.data_ptr() + made.numel(), "zeros")
        return made

    def copy(self, memory: torch.Tensor) -> torch.Tensor:
        made = super().copy(memory)
        source = self._place(memory.data_ptr())
        target = self.adopt(made, made.data_ptr(), made.data_ptr() + made.numel())
        if source is not None:
            count = made.numel()

            def keep(tensors: Tensors, objects: list[Any]) -> None:
                target.bytes(tensors, count).copy_(source.bytes(tensors, count))

            self._steps.append((keep, [_range(source, count)], [_range(target, count)]))
        return made

    def _place(self, address: int) -> Place | None:
        for end in (0, 1):  # an empty view may begin where memory ends
            for low, high, index, offset in self._ranges:
                if low <= address < high + end:
                    return Place(index, offset + address - low)
        self.refuse("memory that the op didn't see being made")
        return None

    # --- steps --------------------------------------------------------------------------------------------------------

    def launch(self, call: dict[str, Any], given: Mapping[str, Any], uses: Mapping[str, Use] | None) -> None:
        """A launch that was made.

        Args:
            given: by label, the arguments whose data it may read.
            uses: what it does to the arrays among them; None for an adjoint, which has results of its own.
        """
        if self.why is not None:
            return
        if math.prod(call["dim"]) == 0:
            return
        device = call["device"] if call["stream"] is None else call["stream"].device
        if call["max_blocks"] or wp.get_device(device) != self.warp_device:
            self.refuse("a launch with max_blocks, or on another device")
            return
        packed = warp_launch.packed(call)
        if packed is None:
            self.refuse("a launch that is several to Warp")
            return
        try:
            launcher = self._launcher(packed.kernel, call["block_dim"])
        except ValueError as error:
            self.refuse(str(error))
            return
        image, objects = self._image(launcher, packed, call["adjoint"])
        if self.why is None:
            step = Launch(launcher, self.device, call["dim"], image, objects)
            arrays = {label: value for label, value in given.items() if isinstance(value, wp.array)}
            writes = None
            if uses is not None and all(label in uses and not uses[label].private for label in arrays):
                writes = self._of(value for label, value in arrays.items() if uses[label].writes)
            self._steps.append((step, self._of(arrays.values()), writes))

    def _of(self, arrays: Iterable[Any]) -> list[Range]:
        """The memory of arrays."""
        found = []
        for array in arrays:
            if isinstance(array, wp.array) and array.size:
                low, high = byte_range(array)
                place = self._place(low)
                if place is not None:
                    found.append(_range(place, high - low))
        return found

    def _launcher(self, kernel: Any, block_dim: int | None) -> Launcher:
        key = kernel, block_dim
        if key not in self._launchers:
            self._launchers[key] = Launcher(inspect_kernel(kernel), block_dim, False)
        return self._launchers[key]

    def _image(self, launcher: Launcher, packed: warp_launch.Packed, adjoint: bool) -> tuple[Image, tuple[int, ...]]:
        types = [warp_type for _, warp_type in warp_types.argument_types(launcher.kernel)]
        offsets, size = launcher.layout.offsets, launcher.layout.size
        second = size + -size % 16 if adjoint else 0
        made = bytearray(second + size)
        places: list[tuple[int, int]] = []
        ids: list[tuple[int, int]] = []
        for first, arguments in ((0, packed.arguments), (second, packed.adjoints)):
            for start, warp_type, argument in zip(offsets, types, arguments, strict=False):
                at = first + start
                made[at : at + len(argument)] = argument
                for leaf, leaf_type in warp_types.leaves_in_c(warp_type, at):
                    if warp_types.is_array(leaf_type):
                        for pointer in (leaf, leaf + POINTER.size):
                            (address,) = POINTER.unpack_from(made, pointer)
                            place = self._place(address) if address else None
                            if place is not None:
                                POINTER.pack_into(made, pointer, place.offset)
                                places.append((place.index, pointer))
                    elif leaf_type in (wp.uint64, wp.int64):
                        (number,) = POINTER.unpack_from(made, leaf)
                        ids += [(k, leaf) for k, value in enumerate(self._objects) if value.id == number]
        copies = tuple((8 * k, leaf, 8) for k, (_, leaf) in enumerate(ids))
        starts = (*offsets, *(second + offset for offset in offsets if second))
        return Image(bytes(made), second, tuple(places), copies, (), starts), tuple(index for index, _ in ids)

    def call(self, function: Callable[..., Any], call: dict[str, Any], result: Any = None) -> None:
        """A call of a function of Warp's that was made."""
        reads = self._of(call.values())
        if any(isinstance(value, OBJECTS) for value in call.values()):
            self._kept += reads
        self._steps.append((self._call(function, call), reads, None))
        if result is not None:
            self.refuse("the result of a function of Warp's")

    def make(self, value: Any, call: dict[str, Any]) -> None:
        """An object that was made."""
        reads = self._of(call.values())
        self._kept += reads
        again = self._call(type(value), call)
        self._steps.append((lambda tensors, objects: objects.append(again(tensors, objects)), reads, None))
        self._objects.append(value)

    def _call(self, function: Callable[..., Any], call: dict[str, Any]) -> Step:
        self._calls = True
        given = {name: self._given(value) for name, value in call.items()}
        return lambda tensors, objects: function(**{name: make(tensors, objects) for name, make in given.items()})

    def _given(self, value: Any) -> Step:
        """What makes an argument of a function of Warp's anew."""
        if isinstance(value, wp.array):
            return _array(self._place(value.ptr) if value.size else None, value)
        if isinstance(value, OBJECTS):
            known = [k for k, one in enumerate(self._objects) if one is value]
            if known:
                return lambda tensors, objects: objects[known[0]]
        if isinstance(value, int) and any(value == one.id for one in self._objects):
            self.refuse("the id of an object in an array")
        if not _is_plain(value):
            self.refuse(f"a {type(value).__name__} that is given to a function of Warp's")
        kept = unchanging(value)
        return lambda tensors, objects: kept

    def adjoint(self, called: Called) -> None:
        """The adjoint of a call, before it is run."""
        found: dict[str, tuple[Ref, Place]] = {}
        for ref in called.refs:
            if ref.block is not None and ref.live:
                place = self._place(ref.block.gradient_memory().data_ptr() + ref.low - ref.block.low)
                if place is not None:
                    found[ref.label] = ref.bare, place
        adjoint = called.adjoint
        assert adjoint is not None

        def repeat(tensors: Tensors, objects: list[Any]) -> None:
            views = {label: ref.view(place.bytes(tensors, ref.high - ref.low)) for label, (ref, place) in found.items()}
            adjoint(views)

        self._steps.append((repeat, [], None))

    def handle(self, title: str, label: str, kinds: frozenset[str], handle: int) -> None:
        """A handle that a launch was given: the object may be gone when it is repeated."""
        device = self.device
        if all(handle != value.id for value in self._objects):
            check = functools.partial(check_handle, f"{title}: argument '{label}'", kinds, handle, device)
            self._steps.append((lambda tensors, objects: check(), [], None))


def _array(place: Place | None, like: Any) -> Step:
    """What makes an array with the layout of another one."""
    layout = {name: getattr(like, name) for name in ("dtype", "shape", "strides", "device")}

    def make(tensors: Tensors, objects: list[Any]) -> Any:
        made: Any = wp.array(ptr=None if place is None else place.address(tensors), **layout)
        made._tensor = None if place is None else tensors[place.index]
        return made

    return make


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, a vector, a name or a type, or a sequence of such: nothing that may change unseen."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    plain = (type(None), int, float, str, type, enum.Enum, wp.Device)
    return isinstance(value, plain) or warp_types.is_number(value) or warp_types.is_struct(value)


def _range(place: Place, count: int) -> Range:
    return place.index, place.offset, place.offset + count


def _overlap(one: Range, other: Range) -> bool:
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]
