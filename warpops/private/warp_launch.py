"""Warp's private side of a launch: one that is recorded and filled anew, and Warp's entry to the CUDA driver.

``tests/test_cuda_short.py`` fails first when a new Warp changes any of it.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import warp as wp
import warp._src.context as _context

from .warp_code import Loaded, capturing
from .warp_types import argument_ctype, argument_types

_config: Any = wp.config


def _runtime() -> Any:
    return _context.runtime


def followed() -> bool:
    """Whether Warp shows, verifies or records each launch, so that none may pass by ``wp.launch``."""
    return bool(_config.print_launches or _config.verify_cuda or capturing())


class Recorded:
    """A ``wp.Launch`` whose arguments lie one after the other in memory of its own, where each launch puts new ones.

    It holds no array, and the code that it launches. One thread at a time may use it.
    """

    def __init__(self, kernel: Any, offsets: tuple[int, ...], size: int, command: Any, dims: tuple[int, ...]) -> None:
        """``command`` was recorded over ``dims``; ``offsets`` and ``size`` are those of the packed arguments."""
        self.hashers = kernel.module.hashers
        self._command, self._dims = command, dims
        self._second = size + -size % 16
        self._memory = bytearray(2 * self._second)
        types = [argument_ctype(warp_type) for _, warp_type in argument_types(kernel)]
        starts = [first + offset for first in (0, self._second) for offset in offsets]
        for index, (ctype, start) in enumerate(zip(2 * types, starts, strict=True), 1):
            if index == len(command.params):
                break  # no adjoint: there are no explicit adjoints
            value = command.params[index] = ctype.from_buffer(self._memory, start)
            if command.params_addr:
                command.params_addr[index] = ctypes.addressof(value)

    def launch(self, dims: tuple[int, ...], arguments: bytes, adjoints: bytes | None, stream: Any) -> None:
        if dims != self._dims:
            self._command.set_dim(dims)
            self._dims = dims
        self._memory[: len(arguments)] = arguments
        if adjoints is not None:
            self._memory[self._second : self._second + len(adjoints)] = adjoints
        self._command.launch(stream)


def record(kernel: Any, offsets: tuple[int, ...], size: int, **options: Any) -> Recorded | None:
    """Record what ``wp.launch`` with these options launches; None where Warp makes more of it than one launch."""
    command = wp.launch(kernel, record_cmd=True, **options)
    return Recorded(kernel, offsets, size, command, options["dim"]) if type(command) is _context.Launch else None


class Packed(NamedTuple):
    """A launch as Warp packs it."""

    kernel: Any
    """The overload, of a generic kernel."""
    arguments: list[bytes]
    adjoints: list[bytes]
    """Of an adjoint launch, else empty."""


def packed(call: dict[str, Any]) -> Packed | None:
    """What ``wp.launch`` packs for a call, which isn't launched; None where Warp makes more of it than one launch."""
    command = _context.launch(**{**call, "record_cmd": True})
    if type(command) is not _context.Launch:
        return None
    given = list(map(bytes, command.params[1:]))
    count = len(command.kernel.adj.args)
    return Packed(command.kernel, given[:count], given[count:])


# --- the driver -------------------------------------------------------------------------------------------------------

_ENTRY = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 5]
_ENTRY += [ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_void_p]


class Driver(NamedTuple):
    """What Warp's entry to the CUDA driver is called with, less the arguments and the stream."""

    context: int
    function: int
    threads: int
    max_blocks: int
    block_dim: int
    grid_stride: int
    cluster_dim: int
    shared_memory: int


def driver(kernel: Any, device: Any, block_dim: int, loaded: Loaded, adjoint: bool, threads: int) -> Driver | None:
    """The call that ``wp.launch`` makes for a kernel; None where it makes more than one, or what is unknown here."""
    hooks = loaded.exec.get_kernel_hooks(kernel)
    deterministic = hooks.det_launch_meta is not None and hooks.det_launch_meta.needs_deterministic
    if deterministic or list(entry().argtypes or ()) != _ENTRY:
        return None
    shared_memory = hooks.backward_smem_bytes if adjoint else hooks.forward_smem_bytes
    options = 0, block_dim, int(kernel.grid_stride), hooks.cluster_dim, shared_memory
    return Driver(device.context, loaded.entry(adjoint), threads, *options)


def entry() -> Any:
    """Warp's function that launches a kernel on a CUDA device; nonzero where it failed."""
    return _runtime().core.wp_cuda_launch_kernel


def graphs_in_capture() -> dict[Any, Any]:
    """The CUDA graphs that Warp itself is capturing: they keep hold of the code of every launch."""
    captures: dict[Any, Any] = _runtime().captures
    return captures


def last_error() -> str:
    return str(_runtime().get_error_string())
