"""Adjoint launches that keep what stores overwrite: a launch before counts how much, so that there is room for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import warp as wp

from ..errors import GradientError
from ..frozen import frozen
from ..private.warp_types import argument_types, described, size_in_bytes
from ..rewrite.adjoint import AdjointKernel
from . import devices

MOST = 2**31 - 1
"""How many stores can be kept: Warp's arrays have no more elements."""


def launch_kept(
    title: str,
    made: AdjointKernel,
    arguments: Sequence[Any],
    adjoints: Sequence[Any],
    device: torch.device,
    options: Mapping[str, Any],
) -> None:
    """Launch an adjoint that keeps what stores overwrite. It leaves the arrays as they were.

    Args:
        arguments: the kernel's, as ``wp.launch`` takes them.
        adjoints: the explicit ones.
        options: of ``wp.launch``, ``dim`` among them.

    Raises:
        GradientError: there can be no room for it.
    """
    if device.type == "cuda" and devices.is_capturing():
        raise GradientError(
            f"{title}: the gradient keeps what the kernel's stores overwrite, and how much that is can't be asked "
            f"of a device while a CUDA graph is captured"
        )
    names = [name for name, _ in argument_types(made.kernel)]
    types = dict(argument_types(made.kernel))
    added = [_Added(names[k], names[k + 1], names[k + 2], types) for k in range(len(arguments), len(names), 3)]
    rank = types[added[0].now].ndim
    threads = (*options["dim"], *(1,) * rank)[:rank]
    if 0 in options["dim"]:
        return
    room = [one.room(0, torch.zeros(threads, dtype=torch.int32, device=device)) for one in added]
    copies = [
        _copied(a, types[n], device) if n in made.kept else (a, None) for n, a in zip(names, arguments, strict=False)
    ]
    options = {**options, "record_tape": False}
    wp.launch(made.counts, inputs=[*(a for a, _ in copies), *(a for arrays, _ in room for a in arrays)], **options)
    kept = []
    for one, (_, (_, _, counts)) in zip(added, room, strict=True):
        ends = counts.view(-1).cumsum(0)
        with devices.waiting_allowed():
            total = int(ends[-1])
        if total > MOST:
            raise GradientError(f"{title}: the gradient would keep {total} stores, and can keep {MOST}")
        kept.append(one.room(total, (ends - counts.view(-1)).to(torch.int32).view(threads)))
    inputs = [*arguments, *(a for arrays, _ in kept for a in arrays)]
    given = [*adjoints, *[None] * (len(inputs) - len(adjoints))]
    wp.launch(made.kernel, inputs=inputs, adj_inputs=given, adjoint=True, **options)


@frozen
class _Added:
    """What the kernel takes for one array, by name: what was overwritten, where, and each thread's part of it."""

    old: str
    places: str
    now: str
    types: Mapping[str, Any]

    def room(self, count: int, now: torch.Tensor) -> tuple[list[Any], tuple[torch.Tensor, ...]]:
        """The arrays, and their memory."""
        sizes = [count * size_in_bytes(self.types[name].dtype) for name in (self.old, self.places)]
        memory = (*(torch.empty(size, dtype=torch.uint8, device=now.device) for size in sizes), now)
        shapes = ((count,), (count,), tuple(now.shape))
        arrays: list[Any] = [
            wp.array(
                ptr=m.data_ptr(), dtype=self.types[name].dtype, shape=shape, device=devices.warp_device(now.device)
            )
            for name, m, shape in zip((self.old, self.places, self.now), memory, shapes, strict=True)
        ]
        return arrays, memory


def _copied(array: Any, warp_type: Any, device: torch.device) -> tuple[Any, torch.Tensor | None]:
    """A copy of an array, and its memory."""
    made = described(array)
    axes = list(zip(made.shape[: made.ndim], made.strides[: made.ndim], strict=True))
    if 0 in made.shape[: made.ndim]:
        return array, None
    low = sum(min(stride, 0) * (size - 1) for size, stride in axes)
    count = size_in_bytes(warp_type.dtype) + sum(abs(stride) * (size - 1) for size, stride in axes)
    place: Any = wp.array(ptr=made.data + low, dtype=wp.uint8, shape=(count,), device=devices.warp_device(device))
    memory = wp.to_torch(place).clone()
    made.data = memory.data_ptr() - low
    return made, memory
