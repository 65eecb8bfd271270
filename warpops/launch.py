"""Launching a kernel with packed arguments: on the CPU by its entry point, elsewhere by ``wp.launch``.

``devices.py`` holds what is asked of a device. Nothing here keeps a tensor or an array alive.
"""

from __future__ import annotations

import math
import os
import struct
from typing import TYPE_CHECKING, Any

import torch

from . import _warp, devices, locks, native
from .kernel import KernelSignature
from .packing import BOUNDS, Layout, argument_image, argument_layout, number_format

if TYPE_CHECKING:
    from .reverse import Reverse

_lock = locks.reentrant()

FAST = os.environ.get("WARPOPS_FAST", "1") != "0"
"""Take the short ways, an entry point's for ``wp.launch`` and a launch's for its raw op; ``WARPOPS_FAST=0`` forbids them."""


class Launcher:
    """Launches one concrete kernel, on any device."""

    __slots__ = (
        "_bounds",
        "_compiled",
        "_fast",
        "_layout",
        "block_dim",
        "kernel",
        "rank",
        "reverse",
        "signature",
        "tiled",
    )

    def __init__(self, signature: KernelSignature, block_dim: int | None, tiled: bool, rank: int | None) -> None:
        self.reverse: Reverse | None = None
        """What launches the adjoint, where that isn't the kernel's own."""
        self.signature = signature
        self.kernel = signature.kernel
        self.block_dim = block_dim
        self.tiled = tiled
        self.rank = rank
        self._compiled: dict[Any, Any] = {}
        self._bounds: dict[tuple[int, ...], bytes | None] = {}
        self._layout: Layout | None = None
        self._fast: Any = None

    @property
    def layout(self) -> Layout:
        if self._layout is None:
            self._layout = argument_layout(self.signature)
        return self._layout

    @property
    def adjoint_layout(self) -> Layout:
        return argument_layout(self.signature, adjoint=True)

    def number_packer(self) -> Any:
        """Packs the kernel's numbers, which ask Warp for their types at the first use."""
        made: list[Any] = []

        def pack(*values: Any) -> bytes:
            if not made:
                made.append(struct.Struct("=" + number_format(self.signature)).pack)
            packed: bytes = made[0](*values)
            return packed

        return pack

    def recall(
        self,
        device: torch.device,
        dims: tuple[int, ...],
        descriptors: tuple[bytes, ...],
        explicit: tuple[bytes, ...] | None = None,
    ) -> tuple[native.Launch, native.Start, Any, Any] | None:
        """A launch that was made before, less its tensors and numbers; None where there is no short way.

        Args:
            descriptors: of the kernel's arrays, in its order.
            explicit: for an adjoint launch, the descriptors of the explicit adjoints.

        Returns:
            What to call with the tensors, the constant part to call it with, and what changes when the code is replaced:
            the module, and its ``hashers`` as they are.
        """
        if explicit is not None and self.reverse is not None:
            return self.reverse.launcher.recall(device, dims, descriptors, explicit)
        bounds = self._bounds.get(dims)
        compiled = self._fast
        if bounds is None or compiled is None or device.type != "cpu":
            return None
        loaded = compiled.current()
        image = argument_image(self.signature, descriptors, explicit)
        if len(image.packed) > native.LARGEST:
            return None
        start = native.Start(loaded, explicit is not None, bounds, image)
        made = native.ready()
        launch = made[bool(image.copies)] if made is not None else native.by_hand(start)
        return launch, start, compiled.module, loaded.hashers

    def forward(self, device: torch.device, dims: tuple[int, ...], arguments: bytes) -> None:
        """Launch the kernel over ``dims``."""
        bounds = self._bounds.get(dims, False)
        if bounds is False or self._fast is None or device.type != "cpu":
            self._launch(device, dims, arguments, None)
        elif bounds is not None:
            self._fast.forward(bounds, arguments)

    def adjoint(self, device: torch.device, dims: tuple[int, ...], arguments: bytes, adjoints: bytes) -> None:
        """Launch the kernel's adjoint over ``dims``."""
        if self.reverse is not None:
            self.reverse.adjoint(device, dims, arguments, adjoints)
            return
        bounds = self._bounds.get(dims, False)
        if bounds is False or self._fast is None or device.type != "cpu":
            self._launch(device, dims, arguments, adjoints)
        elif bounds is not None:
            self._fast.adjoint(bounds, arguments, adjoints)

    def preload(self, device: torch.device) -> None:
        """Build and load the kernel for a device."""
        _warp.runtime_ready()
        warp_device = devices.warp_device(device)
        block_dim = _warp.resolved_block_dim(warp_device, self._block_dim(warp_device))
        self._load(warp_device, block_dim)

    def is_loaded(self, device: torch.device) -> bool:
        """Whether the kernel has been launched or loaded on this type of device."""
        return any(name.split(":")[0] == device.type for name, _ in self._compiled)

    def _block_dim(self, warp_device: Any) -> int | None:
        if self.block_dim is None and self.tiled:
            return 64 if not warp_device.is_cpu else 1
        return self.block_dim

    def _load(self, warp_device: Any, block_dim: int) -> Any:
        key = (str(warp_device), block_dim)
        with _lock:
            compiled = self._compiled.get(key)
            if compiled is None:
                devices.refuse_loading_in_capture(self.kernel.key, warp_device)
                compiled = _warp.Compiled(self.kernel, warp_device, block_dim)
                compiled.load()
                self._compiled[key] = compiled
        return compiled

    def _launch(self, device: torch.device, dims: tuple[int, ...], arguments: bytes, adjoints: bytes | None) -> None:
        if device.type == "meta":
            return  # an op without tensors, asked for shapes alone
        _warp.runtime_ready()
        warp_device = devices.warp_device(device)
        block_dim = _warp.resolved_block_dim(warp_device, self._block_dim(warp_device))
        if self.tiled:
            dims = (*dims, block_dim)
        compiled = self._load(warp_device, block_dim)
        if adjoints is not None and not compiled.has_adjoint:
            raise _warp.no_adjoint(self.kernel)
        if FAST and warp_device.is_cpu and _warp.cpu_fast_path(self.kernel, block_dim):
            bounds = self._bounds_of(dims or (1,))
            if not self.tiled:
                with _lock:
                    if len(self._bounds) > 4096:
                        self._bounds.clear()
                    self._bounds[dims] = bounds
                    self._fast = compiled
            if bounds is None:
                return
            if adjoints is None:
                compiled.forward(bounds, arguments)
            else:
                compiled.adjoint(bounds, arguments, adjoints)
            return
        # The way that every Warp has, and the only one on CUDA.
        unpacked = self._unpack(adjoints) if adjoints is not None else None
        devices.launch(self.kernel, device, warp_device, dims or (1,), block_dim, self._unpack(arguments), unpacked)

    def _bounds_of(self, dims: tuple[int, ...]) -> bytes | None:
        """Packed launch bounds; None for an empty launch."""
        rank = _warp.launch_rank(self.kernel)
        total = math.prod(dims)
        if total == 0:
            return None
        kept = (dims + (1,) * rank)[:rank]
        repeats = math.prod(dims[rank:])
        return BOUNDS[rank](*kept, total, repeats)

    def _unpack(self, packed: bytes) -> list[Any]:
        return [
            _warp.unpack_argument(warp_type, packed, offset)
            for (_, warp_type), offset in zip(_warp.argument_types(self.kernel), self.layout.offsets, strict=True)
        ]
