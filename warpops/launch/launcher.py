"""Launching a kernel with packed arguments: by ``wp.launch``, and by shorter ways where they were tried.

On the CPU that is the kernel's entry point, on CUDA the driver (``cuda.py``). ``launch/devices.py`` holds what is asked of a
device. Nothing here keeps a tensor or an array alive.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import warp as wp

from ..effects import Hazard
from ..kernel.signature import KernelSignature, inspect_kernel
from ..private import locks, warp_code, warp_launch, warp_types
from ..private.short import FAST
from . import cuda, devices, native, switch
from .packing import BOUNDS, Image, Layout, Parts
from .races import tell_races

_lock = locks.reentrant()


Recalled = tuple[native.Launch, native.Start, Any, Any]
"""What to call with the tensors, the constant part to call it with, and what changes when the code is replaced: the module,
and its ``hashers`` as they are."""
UNSEEN = b"a launch size that there was no launch over"
_MOST_DIMS = 4096
"""Launch sizes that a place remembers: a limit, so that sizes which change at every call take no more and more memory."""


class Place:
    """One kernel on one device: its code, and the launch sizes that it was launched over."""

    def __init__(self, kernel: Any, device: Any, block_dim: int) -> None:
        from ..effects.analysis import before_build  # not needed by the import
        from ..effects.outside import standing_of

        self.device, self.block_dim = device, block_dim
        self.is_cuda: bool = device.is_cuda
        self.direct: bool = FAST and not self.is_cuda and warp_code.has_entry_point(kernel, block_dim)
        """Launches call the kernel's entry point."""
        self.compiled = warp_code.Compiled(
            kernel, device, block_dim, standing_of(kernel).module(), partial(before_build, kernel)
        )
        self.compiled.load()
        self.bounds: dict[tuple[int, ...], bytes | None] = {}
        """Packed bounds by launch size; None for an empty one."""
        self.idle: tuple[list[warp_launch.Recorded], list[warp_launch.Recorded]] = ([], [])
        """Recorded launches that no thread is using, of the kernel and of its adjoint."""

    def remember(self, dims: tuple[int, ...], bounds: bytes | None) -> None:
        """Note that there was a launch over ``dims``."""
        with _lock:
            if len(self.bounds) >= _MOST_DIMS:
                self.bounds.clear()
            self.bounds[dims] = bounds


class Launcher:
    """Launches one concrete kernel, on any device."""

    def __init__(self, signature: KernelSignature, block_dim: int | None, tiled: bool) -> None:
        self.reverse: Any = None
        """What launches the adjoint, where that isn't the kernel's own."""
        self.checked: Any = None
        """What launches in its place where indices are compared."""
        self.suspects: tuple[Hazard, ...] = ()
        """What the adjoint has wrong at some sizes. A launch that is recalled is of sizes that were told of."""
        self.signature = signature
        self.kernel = signature.kernel
        self.block_dim = block_dim
        self.tiled = tiled
        self._places: dict[torch.device, Place] = {}
        self._layout: Layout | None = None
        self._parts: Parts | None = None

    def like(self, kernel: Any) -> Launcher:
        """Of another kernel, in blocks of the same size."""
        return Launcher(inspect_kernel(kernel), self.block_dim, self.tiled)

    @property
    def layout(self) -> Layout:
        if self._layout is None:
            self._layout = self.parts.layout()
        return self._layout

    @property
    def parts(self) -> Parts:
        """Made at the first launch, since it asks Warp for its types, which costs time."""
        if self._parts is None:
            self._parts = Parts(self.signature)
        return self._parts

    @property
    def adjoint_layout(self) -> Layout:
        return self.parts.layout(adjoint=True)

    def recall(self, device: torch.device, dims: tuple[int, ...], image: Image) -> Recalled | None:
        """A launch over a size that there was one over, less its tensors and numbers; None where there is no short way."""
        if switch.scopes:
            return None
        if image.adjoint and self.reverse is not None:
            found: Recalled | None = self.reverse.recall(self, device, dims, image)
            return found
        place = self._places.get(device)
        if not FAST or place is None:
            return None
        if not place.is_cuda:
            return self.remembered(device, dims, image) if place.direct else None
        if warp_launch.followed() or not cuda.trusted(device, place.device.ordinal, _try_short):
            return None
        return self.remembered(device, dims, image)

    def remembered(self, device: torch.device, dims: tuple[int, ...], image: Image) -> Recalled | None:
        """``recall`` on a device whose short way is trusted."""
        place = self._places[device]
        bounds = place.bounds.get(dims)
        if bounds is None or len(image.packed) > native.LARGEST:
            return None
        loaded = place.compiled.current()
        way = None
        if place.is_cuda:
            threads = math.prod(self._launched(place, dims))
            driver = warp_launch.driver(self.kernel, place.device, place.block_dim, loaded, image.adjoint, threads)
            if driver is None:
                return None
            way = cuda.Way(self.kernel, place.device, driver, image.starts)
        start = native.Start(loaded, bounds, image, way)
        made = native.ready()
        launch = made[bool(image.copies)] if made is not None else native.by_hand(start)
        return launch, start, place.compiled.watched, loaded.hashers

    def forward(self, device: torch.device, dims: tuple[int, ...], arguments: bytes) -> None:
        """Launch the kernel over ``dims``."""
        if switch.scopes and self.checked is not None and device.type != "meta":
            self.checked.forward(self, device, dims, arguments)
        else:
            self.launch(device, dims, arguments, None)

    def adjoint(self, device: torch.device, dims: tuple[int, ...], arguments: bytes, adjoints: bytes) -> None:
        """Launch the kernel's adjoint over ``dims``."""
        if self.suspects:
            tell_races(self.signature, self.suspects, dims, self._unpack(arguments))
        if self.reverse is not None:
            self.reverse.adjoint(self, device, dims, arguments, adjoints)
        else:
            self.launch(device, dims, arguments, adjoints)

    def fill(
        self,
        device: torch.device,
        dims: tuple[int, ...],
        image: Image,
        tensors: tuple[torch.Tensor | None, ...],
        numbers: bytes = b"",
    ) -> None:
        """Launch what an image is of, where it can't be recalled."""
        packed, second = bytes(image.filled(tensors, numbers)), image.second
        if image.adjoint:
            self.adjoint(device, dims, packed[:second], packed[second:])
        else:
            self.forward(device, dims, packed)

    def preload(self, device: torch.device) -> None:
        """Build and load the kernel for a device."""
        self._load(device)

    def prepare(self, device: torch.device, dims: tuple[int, ...]) -> None:
        """Note a launch size, as the first launch over it does."""
        place = self._load(device)
        if dims not in place.bounds:
            place.remember(dims, self._bounds_of(self._launched(place, dims)))

    def is_loaded(self, device: torch.device) -> bool:
        """Whether the kernel has been launched or loaded on this type of device."""
        return any(place.type == device.type for place in self._places)

    def place(self, device: torch.device) -> tuple[Any, int]:
        """Warp's device, and how many threads a block has there."""
        warp_code.runtime_ready()
        warp_device = devices.warp_device(device)
        wanted = self.block_dim
        if wanted is None and self.tiled:
            wanted = 1 if warp_device.is_cpu else 64
        return warp_device, warp_code.resolved_block_dim(warp_device, wanted)

    def _load(self, device: torch.device) -> Place:
        """The kernel on a device, built and loaded at the first use."""
        device = devices.concrete(device)
        with _lock:
            place = self._places.get(device)
            if place is None:
                warp_device, block_dim = self.place(device)
                devices.refuse_loading_in_capture(self.kernel.key, warp_device)
                place = self._places[device] = Place(self.kernel, warp_device, block_dim)
        return place

    def _launched(self, place: Place, dims: tuple[int, ...]) -> tuple[int, ...]:
        """What Warp launches over."""
        return (*dims, place.block_dim) if self.tiled else dims or (1,)

    def launch(
        self, device: torch.device, dims: tuple[int, ...], arguments: bytes, adjoints: bytes | None = None
    ) -> None:
        """Launch the kernel, or its adjoint, as it is."""
        place = self._places.get(device)
        if place is None:
            if device.type == "meta":
                return  # an op without tensors, asked for shapes alone
            place = self._load(device)
        compiled = place.compiled
        loaded = compiled.current()
        if adjoints is not None and loaded.adjoint is None:
            raise warp_code.no_adjoint(self.kernel)
        bounds = place.bounds.get(dims, UNSEEN)
        new = bounds is UNSEEN
        if new:
            bounds = self._bounds_of(self._launched(place, dims))
        if bounds is not None:
            if not place.direct or (new and warp_code.capturing()):
                self._launch_publicly(place, device, self._launched(place, dims), arguments, adjoints)
            elif adjoints is None:
                compiled.launch(bounds, arguments)
            else:
                compiled.launch(bounds, arguments, adjoints)
        if new:
            place.remember(dims, bounds)

    def _launch_publicly(
        self, place: Place, device: torch.device, dims: tuple[int, ...], arguments: bytes, adjoints: bytes | None
    ) -> None:
        """By a launch of Warp's that was recorded and is filled anew, else by ``wp.launch``: what every Warp has."""
        stream = devices.current_stream(device, place.device) if place.is_cuda else None
        if not warp_launch.followed():
            idle = place.idle[adjoints is not None]
            recorded = idle.pop() if idle else None
            if recorded is None or recorded.hashers is not self.kernel.module.hashers:
                idle.clear()
                recorded = warp_launch.record(
                    self.kernel,
                    self.layout.offsets,
                    self.layout.size,
                    **self._options(place, stream, dims, arguments, adjoints),
                )
            if recorded is not None:
                recorded.launch(dims, arguments, adjoints, stream)
                idle.append(recorded)
                return
        wp.launch(self.kernel, **self._options(place, stream, dims, arguments, adjoints))

    def _options(
        self, place: Place, stream: Any, dims: tuple[int, ...], arguments: bytes, adjoints: bytes | None
    ) -> dict[str, Any]:
        """What ``wp.launch`` takes besides the kernel. No tape of the user's hears of it."""
        return {
            "dim": dims,
            "inputs": self._unpack(arguments),
            "adj_inputs": self._unpack(adjoints) if adjoints is not None else [],
            "device": place.device,
            "stream": stream,
            "adjoint": adjoints is not None,
            "record_tape": False,
            "block_dim": place.block_dim,
        }

    def _bounds_of(self, dims: tuple[int, ...]) -> bytes | None:
        """Packed launch bounds; None for an empty launch."""
        rank = warp_code.launch_rank(self.kernel)
        total = math.prod(dims)
        if total == 0:
            return None
        kept = (dims + (1,) * rank)[:rank]
        repeats = math.prod(dims[rank:])
        return BOUNDS[rank](*kept, total, repeats)

    def _unpack(self, packed: bytes) -> list[Any]:
        return warp_types.unpack_arguments(self.kernel, packed, self.layout.offsets)


def _try_short(device: torch.device) -> None:
    from . import cuda_check  # a kernel of its own, which few need

    cuda_check.compare(Launcher(inspect_kernel(cuda_check.KERNEL), None, False), device)
