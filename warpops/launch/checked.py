"""Launches of kernels that compare their indices, in place of the user's, and what is said of the first wrong one."""

from __future__ import annotations

import struct
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import torch

from ..errors import wrong_launch
from ..private import locks, warp_code, warp_source
from . import devices, switch
from .launcher import Launcher
from .packing import descriptor

if TYPE_CHECKING:
    from ..rewrite.bounds import BoundsKernel

Axes = frozenset[tuple[str, int]]
"""Axes of arrays, by label."""

_lock = locks.reentrant()
_made: weakref.WeakKeyDictionary[Any, dict[Axes, BoundsKernel | str]] = weakref.WeakKeyDictionary()
"""By kernel and what is proven of it; in place of one that can't be had the reason, empty where there is nothing to compare."""
_warned: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def bounds_kernel(kernel: Any, proven: Axes, device: Any, block_dim: int) -> BoundsKernel | str:
    """The kernel that compares the indices of a concrete one, built for one of Warp's devices.

    Args:
        proven: the axes whose indices need no look, where proofs are trusted.

    Returns:
        The kernel; where it can't be launched, the reason; nothing where there is nothing to compare.
    """
    from ..rewrite.bounds import make_bounds_kernel  # declares functions, which few need

    proven = frozenset() if any(switch.scopes) else proven
    with _lock:
        known = _made.setdefault(warp_source.definition(kernel), {})
        if proven not in known:
            try:
                known[proven] = make_bounds_kernel(kernel, proven, block_dim) or ""
            except Exception as error:  # whatever Warp's code generation raises
                known[proven] = f"it can't be rewritten: {error}"
        found = known[proven]
        if isinstance(found, str):
            return found
        if device.is_cuda and devices.is_capturing():
            return "the launch is captured into a CUDA graph"
        if found.tiles and (device.is_cuda or block_dim > 1):
            return f"on {device} its threads wait for each other at tiles"
        try:
            warp_code.Compiled(found.kernel, device, block_dim).load()
        except Exception as error:
            known[proven] = f"what compares its indices can't be built: {error}"
        return known[proven]


def warn(title: str, kernel: Any, found: BoundsKernel | str) -> None:
    """Say once of a kernel that indices of it aren't compared, where that is so."""
    why = found if isinstance(found, str) else "; ".join(found.unchecked)
    key = warp_source.definition(kernel)
    if why and key not in _warned:
        _warned[key] = True
        what = f"the kernel {kernel.key} runs" if isinstance(found, str) else f"a part of the kernel {kernel.key} runs"
        warnings.warn(f"{title}: bounds_checked: {what} unchecked: {why}", RuntimeWarning, stacklevel=2)


def new_record(device: torch.device) -> torch.Tensor:
    """Where a launch notes its first wrong index."""
    from ..rewrite.bounds_functions import RECORD

    return torch.zeros(RECORD, dtype=torch.int64, device=device)


def refuse_wrong(title: str, made: BoundsKernel, record: torch.Tensor) -> None:
    """Raise what a launch noted.

    Raises:
        ArgumentError: an index was wrong.
    """
    with devices.waiting_allowed():
        failed, number, index, size, *thread = record.tolist()
    if not failed:
        return
    what = made.indices[number]
    coordinates = thread[0] if made.rank == 1 else tuple(thread[: made.rank])
    raise wrong_launch(
        f"{title}: '{what.array}' is indexed at {index} on axis {what.axis}, and has size {size}, by thread {coordinates} at "
        f"{what.site}: `{what.site.code}`"
    )


class Checked:
    """Launches one kernel with its indices compared."""

    def __init__(self, title: str, proven: Axes) -> None:
        self.title, self.proven = title, proven
        self._launchers: dict[Any, Launcher] = {}

    def forward(self, own: Launcher, device: torch.device, dims: tuple[int, ...], arguments: bytes) -> None:
        """Launch the kernel over ``dims``.

        Args:
            own: the launcher of the kernel as it is, which launches where this can't.

        Raises:
            ArgumentError: an index was wrong.
        """
        found = bounds_kernel(own.kernel, self.proven, *own.place(device))
        if isinstance(found, str):
            own.launch(device, dims, arguments)
        else:
            launcher = self._launchers.get(found.kernel)
            if launcher is None:
                launcher = self._launchers[found.kernel] = own.like(found.kernel)
            record = new_record(device)
            last = struct.pack("=Q", record.data_ptr()) + descriptor((record.numel(),), (1,), record.element_size())[8:]
            launcher.launch(device, dims, arguments.ljust(launcher.layout.offsets[-1], b"\0") + last)
            refuse_wrong(self.title, found, record)
        warn(self.title, own.kernel, found)
