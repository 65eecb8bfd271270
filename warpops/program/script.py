"""What one run of a program came to, to be repeated over other tensors of the same sizes.

A program's Python says which launches and calls there are. Where it can say nothing else for the same sizes and numbers
(``reads.py``), the run is written down: each launch as the bytes that Warp packed for it, with every pointer as a distance
from the start of some tensor, so that a repetition is one call per launch. Memory that the run made for itself lies in two
pieces, which a repetition makes anew. A script holds no memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import torch

from ..emit.checks import allocator
from ..frozen import frozen
from ..launch.launcher import Launcher
from ..launch.packing import NOT_RECALLED, Image
from .memory import bytes_of

OWN = ("empty", "zeros")
"""The first tensors of a repetition: the memory that the run made for itself, without and with zeros in it."""

Tensors = tuple[torch.Tensor | None, ...]
Step = Callable[[Tensors, list[Any]], Any]
"""One thing to repeat, of the tensors and the objects made so far."""


@frozen
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


class Launch:
    """A launch, by the shortest way that there is."""

    def __init__(
        self,
        launcher: Launcher,
        device: torch.device,
        dims: tuple[int, ...],
        image: Image,
        ids: tuple[int, ...],
    ):
        """``ids``: which of the objects that the program made it is given the ids of: the image's numbers."""
        self.launcher, self.device, self.dims = launcher, device, dims
        self.image, self.ids = image, ids
        launcher.prepare(device, dims)
        self._find()

    def _find(self) -> None:
        found = self.launcher.recall(self.device, self.dims, self.image)
        self.found: tuple[Any, ...] = found or (None, None, None, None)

    def __call__(self, tensors: Tensors, objects: list[Any]) -> None:
        numbers = (struct.pack(f"={len(self.ids)}Q", *(objects[index].id for index in self.ids)),) if self.ids else ()
        for _ in range(2):
            launch, start, module, hashers = self.found
            if launch is not None and module.hashers is hashers:
                try:
                    launch(tensors, start, *numbers)
                    return
                except NOT_RECALLED:
                    pass
            self._find()
        self.launcher.fill(self.device, self.dims, self.image, tensors, *numbers)


@frozen
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
