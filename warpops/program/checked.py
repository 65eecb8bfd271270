"""A program's launch with its indices compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import warp as wp

from ..effects.analysis import before_launch
from ..launch.checked import bounds_kernel, new_record, refuse_wrong, warn
from ..private import warp_code


def launch_checked(op: str, original: Callable[..., Any], call: dict[str, Any], current: Any) -> Any:
    """Launch the kernel that compares its indices, where there is one.

    Args:
        op: the program's name, for messages.
        original: ``wp.launch``.
        call: its arguments by name.
        current: PyTorch's stream; None on the CPU.

    Raises:
        ArgumentError: an index was wrong.
    """
    kernel = call["kernel"]
    title = f"{op}: the program launches {kernel.key}"
    device = wp.get_device(call["device"]) if call["stream"] is None else call["stream"].device
    block_dim = warp_code.resolved_block_dim(device, call["block_dim"])
    made = bounds_kernel(kernel, frozenset(), device, block_dim)
    if isinstance(made, str):
        result = original(**call)
        warn(title, kernel, made)
        return result
    before_launch(made.kernel)
    record = new_record(torch.device(wp.device_to_torch(device)))
    elsewhere = device.is_cuda and call["stream"] is not current
    if elsewhere:
        wp.synchronize_device(device)
    found = wp.from_torch(record, requires_grad=False)
    result = original(**{**call, "kernel": made.kernel, "outputs": [*call["outputs"], found]})
    if elsewhere:
        wp.synchronize_device(device)
    refuse_wrong(title, made, record)
    warn(title, kernel, made)
    return result
