"""What a launch asks of a device: which one Warp means, PyTorch's stream on it, whether a graph is being captured.

All that needs a CUDA device passes through these functions and ``wp.launch``. Each asks anew at every call, since
PyTorch's current stream and device belong to the thread and to the moment; nothing waits for a device.
``tests/test_devices.py`` runs them against a stand-in that records what was asked, ``tests/test_gpu.py`` on a device.
"""

from __future__ import annotations

from typing import Any

import torch
import warp as wp

from .errors import WarpOpError

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
    handle = torch.cuda.current_stream(concrete(device)).cuda_stream
    key = (warp_device.ordinal, handle)
    stream = _streams.get(key)
    if stream is None:
        stream = _streams[key] = wp.Stream(warp_device, cuda_stream=handle)
    return stream


def refuse_loading_in_capture(name: str, warp_device: Any) -> None:
    """Raise where a kernel would be built and loaded while PyTorch captures a graph: that isn't part of any graph."""
    if warp_device.is_cuda and torch.cuda.is_current_stream_capturing():
        raise WarpOpError(
            f"{name}: the kernel isn't loaded on {warp_device} yet, and can't be while a CUDA graph is captured; call "
            f"op.preload({str(warp_device)!r}), or the op itself, before the capture"
        )


def launch(
    kernel: Any,
    device: torch.device,
    warp_device: Any,
    dims: tuple[int, ...],
    block_dim: int,
    arguments: list[Any],
    adjoints: list[Any] | None,
) -> None:
    """``wp.launch`` on PyTorch's current stream; with ``adjoints``, of the adjoint. No tape of the user's hears of it."""
    wp.launch(
        kernel,
        dim=dims,
        inputs=arguments,
        adj_inputs=adjoints if adjoints is not None else [],
        device=warp_device,
        stream=current_stream(device, warp_device),
        adjoint=adjoints is not None,
        record_tape=False,
        block_dim=block_dim,
    )
