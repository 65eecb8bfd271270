"""What a launch asks of a device: which one Warp means, PyTorch's stream on it, whether a graph is being captured.

All that needs a CUDA device passes through these functions and ``wp.launch``. Each asks anew at every call, since
PyTorch's current stream and device belong to the thread and to the moment; nothing waits for a device.
``tests/test_devices.py`` runs them against a stand-in that records what was asked, ``tests/test_gpu.py`` on a device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import warp as wp

from ..errors import WarpOpError
from ..private import torch_guards, torch_modes

_streams: dict[tuple[int, int], Any] = {}


def concrete(device: torch.device) -> torch.device:
    """The device with its number: ``cuda`` alone is the current one."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def warp_device(device: torch.device) -> Any:
    """Warp's object for a PyTorch device."""
    return wp.device_from_torch(concrete(device))


def current_stream(device: torch.device, warp_device: Any) -> Any:
    """PyTorch's current stream on a device, as Warp's object; None on the CPU.

    The raw handle is asked for at each call. Only the wrapper is kept, one per handle: a stream that is made current
    for the length of a call, or kept across calls, would put work on another stream than PyTorch's.
    """
    if not warp_device.is_cuda:
        return None
    if torch_modes.raw_stream is not None:
        handle = torch_modes.raw_stream(warp_device.ordinal)
    else:
        handle = torch.cuda.current_stream(concrete(device)).cuda_stream
    key = (warp_device.ordinal, handle)
    stream = _streams.get(key)
    if stream is None:
        stream = _streams[key] = wp.Stream(warp_device, cuda_stream=handle)
    return stream


def is_capturing() -> bool:
    """Whether PyTorch captures a graph on its current stream."""
    return torch.cuda.is_current_stream_capturing()


@contextlib.contextmanager
def waiting_allowed() -> Iterator[None]:
    """A scope that may wait for a device, whatever ``torch.cuda.set_sync_debug_mode`` says."""
    before = torch.cuda.get_sync_debug_mode() if torch.cuda.is_initialized() else 0
    if before:
        torch.cuda.set_sync_debug_mode(0)
    try:
        yield
    finally:
        if before:
            torch.cuda.set_sync_debug_mode(before)


def allocator(device: torch.device) -> Callable[..., torch.Tensor]:
    """``empty_strided(size, stride, dtype)`` on a CUDA device; PyTorch's short one takes the current device."""
    make = torch_guards.empty_strided_cuda
    if torch.cuda.device_count() == 1:
        return make

    def empty(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if torch.cuda.current_device() == device.index:
            return make(size, stride, dtype)
        return torch.empty_strided(size, stride, dtype=dtype, device=device)

    return empty


def refuse_loading_in_capture(name: str, warp_device: Any) -> None:
    """Raise where a kernel would be built and loaded while PyTorch captures a graph: that isn't part of any graph."""
    if warp_device.is_cuda and is_capturing():
        raise WarpOpError(
            f"{name}: the kernel isn't loaded on {warp_device} yet, and can't be while a CUDA graph is captured; call "
            f"op.preload({str(warp_device)!r}), or the op itself, before the capture"
        )
