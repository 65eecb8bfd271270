"""A tiny kernel that is launched both ways before the short way to a CUDA device is used; see ``cuda.py``."""

from __future__ import annotations

import functools
from typing import Any

import torch

from .cuda_kernel import mixed
from .packing import Image, argument_image, descriptor, number_packer

KERNEL = mixed
NUMBERS = (-3, 0.5, 1.0, 2.0, 3.0, 3)
COUNT = 4


def compare(launcher: Any, device: torch.device) -> None:
    """Raise where the two ways of a launcher of ``KERNEL`` differ. It waits for the device."""
    x = torch.arange(4.0 * COUNT, device=device).view(COUNT, 2, 2)
    weight = torch.arange(1.0, COUNT + 1, device=device)
    arrays = descriptor((COUNT, 2), (4, 2), 4), descriptor((COUNT,), (1,), 4), descriptor((COUNT,), (1,), 4)
    forward, adjoint = (argument_image(launcher.parts, arrays, own) for own in (None, (arrays[0], arrays[2])))
    numbers = number_packer(launcher.signature)(*NUMBERS)
    found = []
    for launch in (launcher.fill, functools.partial(_launch_short, launcher)):
        y, *gradients = (torch.zeros_like(t) for t in (weight, x, weight))
        cotangent = torch.arange(2.0, COUNT + 2, device=device)
        launch(device, (COUNT,), forward, (x, weight, y), numbers)
        launch(device, (COUNT,), adjoint, (x, weight, y, *gradients, cotangent), numbers)
        found.append([t.tolist() for t in (y, *gradients)])
    if found[0] != found[1]:
        raise RuntimeError(f"the tiny kernel computed {found[1]}, and {found[0]} by wp.launch")


def _launch_short(
    launcher: Any, device: torch.device, dims: tuple[int, ...], image: Image, tensors: tuple[Any, ...], numbers: bytes
) -> None:
    """``Launcher.fill`` by the short way."""
    found = launcher.remembered(device, dims, image)
    if found is None:
        raise RuntimeError("Warp's entry to the driver isn't the one that is known")
    launch, start, *_ = found
    launch(tensors, start, numbers)
