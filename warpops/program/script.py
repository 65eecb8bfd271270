"""What one run of a program came to, to be repeated over other tensors of the same sizes.

A program's Python says which launches and calls there are. Where it can say nothing else for the same sizes and numbers
(``reads.py``), the run is written down: each launch as the bytes that Warp packed for it, with every pointer as a distance
from the start of some tensor, so that a repetition is one call per launch. Memory that the run made for itself lies in two
pieces, which a repetition makes anew. A script holds no memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import warp as wp

from ..arguments.handle import check_handle
from ..emit.checks import allocator
from ..launch.launcher import Launcher
from ..launch.packing import NOT_RECALLED, Image
from .launches import Called
from .memory import Ref, bytes_of

OWN = ("empty", "zeros")
"""The first tensors of a repetition: the memory that the run made for itself, without and with zeros in it."""

Tensors = tuple[torch.Tensor | None, ...]
Step = Callable[[Tensors, list[Any]], None]
"""One thing to repeat, of the tensors and the objects made so far."""


@dataclass(frozen=True)
class Place:
    """Where memory is: in which tensor, and how many bytes from its start."""

    index: int
    offset: int

    def address(self, tensors: Tensors) -> int:
        tensor = tensors[self.index]
        assert tensor is not None
        return tensor.data_ptr() + self.offset

    def bytes(self, tensors: Tensors, count: int) -> torch.Tensor:
        tensor = tensors[self.index]
        assert tensor is not None
        return bytes_of(tensor)[self.offset : self.offset + count]


# --- steps ------------------------------------------------------------------------------------------------------------


class Launch:
    """A launch, by the shortest way that there is."""

    def __init__(self, launcher: Launcher, device: torch.device, dims: tuple[int, ...], image: Image, adjoint: bool):
        self.launcher, self.device, self.dims = launcher, device, dims
        self.image, self.adjoint = image, adjoint
        launcher.prepare(device, dims)
        self._find()

    def _find(self) -> None:
        found = self.launcher.repeat(self.device, self.dims, self.image, self.adjoint)
        self.found: tuple[Any, ...] = found or (None, None, None, None)

    def __call__(self, tensors: Tensors, objects: list[Any], numbers: bytes | None = None) -> None:
        for _ in range(2):
            launch, start, module, hashers = self.found
            if launch is not None and module.hashers is hashers:
                try:
                    launch(*(tensors, start) if numbers is None else (tensors, start, numbers))
                    return
                except NOT_RECALLED:
                    pass
            self._find()
        self._publicly(tensors, numbers or b"")

    def _publicly(self, tensors: Tensors, numbers: bytes) -> None:
        packed, second = bytearray(self.image.packed), self.image.second
        for index, at in self.image.places:
            tensor, (distance,) = tensors[index], struct.unpack_from("=Q", packed, at)
            struct.pack_into("=Q", packed, at, distance + (tensor.data_ptr() if tensor is not None else 0))
        for source, at, count in self.image.copies:
            packed[at : at + count] = numbers[source : source + count]
        if self.adjoint:
            self.launcher.adjoint(self.device, self.dims, bytes(packed[:second]), bytes(packed[second:]))
        else:
            self.launcher.forward(self.device, self.dims, bytes(packed))


@dataclass(frozen=True)
class LaunchOfObjects:
    """A launch that is given ids of objects that the program made."""

    launch: Launch
    objects: tuple[int, ...]

    def __call__(self, tensors: Tensors, objects: list[Any]) -> None:
        ids = (objects[index].id for index in self.objects)
        self.launch(tensors, objects, struct.pack(f"={len(self.objects)}Q", *ids))


@dataclass(frozen=True)
class Copy:
    """Bytes that are kept before they are overwritten."""

    target: Place
    source: Place
    count: int

    def __call__(self, tensors: Tensors, objects: list[Any]) -> None:
        self.target.bytes(tensors, self.count).copy_(self.source.bytes(tensors, self.count))


@dataclass(frozen=True)
class Array:
    """An array that a function of Warp's is given."""

    place: Place | None
    layout: dict[str, Any]

    def make(self, tensors: Tensors, objects: list[Any]) -> Any:
        made: Any = wp.array(ptr=None if self.place is None else self.place.address(tensors), **self.layout)
        made._tensor = None if self.place is None else tensors[self.place.index]
        return made


@dataclass(frozen=True)
class Object:
    """An object that the program made."""

    index: int

    def make(self, tensors: Tensors, objects: list[Any]) -> Any:
        return objects[self.index]


@dataclass(frozen=True)
class Call:
    """A call of a function of Warp's."""

    function: Callable[..., Any]
    given: dict[str, Any]

    def __call__(self, tensors: Tensors, objects: list[Any]) -> Any:
        kinds = (Array, Object)
        return self.function(
            **{name: v.make(tensors, objects) if isinstance(v, kinds) else v for name, v in self.given.items()}
        )


@dataclass(frozen=True)
class Make:
    """An object of Warp that the program makes."""

    call: Call

    def __call__(self, tensors: Tensors, objects: list[Any]) -> None:
        objects.append(self.call(tensors, objects))


@dataclass(frozen=True)
class Adjoint:
    """The adjoint of a call, over the gradients of what it was given."""

    called: Called
    gradients: dict[int, Place]

    def __call__(self, tensors: Tensors, objects: list[Any]) -> None:
        def view(ref: Ref) -> torch.Tensor:
            return ref.view(self.gradients[id(ref)].bytes(tensors, ref.high - ref.low))

        assert self.called.adjoint is not None
        self.called.adjoint(view)


@dataclass(frozen=True)
class Handle:
    """A handle that isn't the program's own: the object may be gone by now."""

    title: str
    label: str
    kinds: frozenset[str]
    handle: int
    device: torch.device

    def __call__(self, tensors: Tensors, objects: list[Any]) -> None:
        check_handle(f"{self.title}: argument '{self.label}'", self.kinds, self.handle, self.device)


@dataclass(frozen=True)
class Script:
    """The steps of a run."""

    sizes: tuple[int, int]
    """Bytes of memory of its own, without and with zeros in it."""
    steps: tuple[Step, ...]
    calls: bool
    """There are functions of Warp's among them, which work on Warp's current stream."""

    def play(self, device: torch.device, given: Tensors) -> None:
        """Repeat the run over other tensors."""
        empty, zeros = (allocator(device)((n,), (1,), torch.uint8) if n else None for n in self.sizes)
        if zeros is not None:
            zeros.zero_()
        tensors, objects = (empty, zeros, *given), []  # type: ignore[var-annotated]
        for step in self.steps:
            step(tensors, objects)
