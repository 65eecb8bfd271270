"""A tiny kernel that is launched both ways before the short way to a CUDA device is used; see ``cuda.py``."""

from __future__ import annotations

from typing import Any

import torch

from .cuda_kernel import mixed
from .packing import argument_image, descriptor

KERNEL = mixed
NUMBERS = (-3, 0.5, 1.0, 2.0, 3.0, 3)
COUNT = 4


def compare(launcher: Any, device: torch.device) -> None:
    """Raise where the two ways of a launcher of ``KERNEL`` differ. It waits for the device."""
    x = torch.arange(4.0 * COUNT, device=device).view(COUNT, 2, 2)
    weight = torch.arange(1.0, COUNT + 1, device=device)
    found = []
    for short in (False, True):
        y, *gradients = (torch.zeros_like(t) for t in (weight, x, weight))
        cotangent = torch.arange(2.0, COUNT + 2, device=device)
        run = _launch_short if short else _launch
        run(launcher, device, [x, weight, y], None)
        run(launcher, device, [x, weight, y], [*gradients, cotangent])
        found.append([t.tolist() for t in (y, *gradients)])
    if found[0] != found[1]:
        raise RuntimeError(f"the tiny kernel computed {found[1]}, and {found[0]} by wp.launch")


def _launch(launcher: Any, device: torch.device, data: list[Any], adjoints: list[Any] | None) -> None:
    small, shift, *turn, count = NUMBERS
    grads = adjoints or [None] * 3
    x, weight, y = (
        (a.data_ptr(), g.data_ptr() if g is not None else 0, *shape, rank, 0)
        for a, g, (*shape, rank) in zip(data, grads, ((COUNT, 2, 16, 8, 2), (COUNT, 4, 1), (COUNT, 4, 1)), strict=True)
    )
    arguments = launcher.layout.packer()(small, *x, shift, *weight, *turn, count, *y)
    if adjoints is None:
        launcher.forward(device, (COUNT,), arguments)
        return
    own = ((g[1], 0, *g[2:]) for g in (x, y))
    packed = launcher.adjoint_layout.packer()(*(value for part in own for value in part))
    launcher.adjoint(device, (COUNT,), arguments, packed)


def _launch_short(launcher: Any, device: torch.device, data: list[Any], adjoints: list[Any] | None) -> None:
    x, weight, y = descriptor((COUNT, 2), (4, 2), 4), descriptor((COUNT,), (1,), 4), descriptor((COUNT,), (1,), 4)
    image = argument_image(launcher.signature, (x, weight, y), (x, y) if adjoints else None)
    found = launcher.remembered(device, (COUNT,), image, adjoints is not None)
    if found is None:
        raise RuntimeError("Warp's entry to the driver isn't the one that is known")
    launch, start, *_ = found
    launch((*data, *(adjoints or ())), start, launcher.number_packer()(*NUMBERS))
