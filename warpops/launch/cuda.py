"""The short way to a CUDA device: one call of Warp's entry to the driver, with packed arguments.

It is the call that ``wp.launch`` makes in the end, on PyTorch's current stream, which is asked for at each launch. It is
used for launches that went through ``wp.launch`` once, and on a device where a tiny kernel came out the same both ways;
whatever goes wrong on the way, launches go through ``wp.launch``, and one warning says so.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from typing import Any

import torch
import warp as wp

from ..private import locks, torch_modes, warp_launch
from . import devices, native
from .packing import UncertainError

_lock = locks.reentrant()
_trusted: dict[tuple[int, bool], bool] = {}
"""What the check of a device said, by its number and whether the native function launches."""


class Way:
    """The constant part of a launch on a CUDA device."""

    def __init__(self, kernel: Any, device: Any, driver: warp_launch.Driver, starts: tuple[int, ...]) -> None:
        self.driver, self.starts, self.stream = driver, starts, (device.ordinal,)
        self.stream_of, self.entry = torch_modes.raw_stream, warp_launch.entry()
        self.captures = warp_launch.graphs_in_capture()

        def failed() -> None:
            raise RuntimeError(f"Error launching kernel: {kernel.key} on device {device}: {warp_launch.last_error()}")

        self.failed = failed

    def launch(self, bounds: bytes, arguments: bytearray) -> None:
        """The native function's work on a device, in Python."""
        if self.captures:
            raise UncertainError
        memory = (ctypes.c_char * (len(arguments) + len(bounds))).from_buffer(arguments + bounds)
        base = ctypes.addressof(memory)
        places = [base + start for start in (len(arguments), *self.starts)]
        parameters = (ctypes.c_void_p * len(places))(*places)
        if self.entry(*self.driver, parameters, self.stream_of(*self.stream), None):  # type: ignore[misc]
            self.failed()


def trusted(device: torch.device, ordinal: int, try_it: Callable[[torch.device], None]) -> bool:
    """Whether the short way launches as ``wp.launch`` does on a device.

    Args:
        try_it: launches a tiny kernel both ways, and raises where they differ. It waits for the device, so it is called
            once, and never while a graph is captured.
    """
    if torch_modes.raw_stream is None:
        return False
    key = (ordinal, native.ready() is not None)
    known = _trusted.get(key)
    if known is not None or devices.is_capturing():
        return bool(known)
    with _lock:
        if key in _trusted:
            return _trusted[key]
        _trusted[key] = False  # for the launches that the check itself makes
        try:
            with devices.waiting_allowed():
                try_it(device)
        except Exception as error:
            warnings.warn(
                f"warpops: launches on {device} go through wp.launch, since the shorter way to the CUDA driver failed its "
                f"check (torch {torch.__version__}, warp {wp.config.version}, native: {key[1]}): {error}. Results are right, "
                f"calls take longer; please report this line",
                RuntimeWarning,
                stacklevel=2,
            )
            # One that failed by hand won't do better natively, and would warn again.
            _trusted.update({(ordinal, False): False, (ordinal, True): False})
        else:
            _trusted[key] = True
        return _trusted[key]
