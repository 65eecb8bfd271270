"""Launches of kernels that compare their indices, in place of the user's, and what is said of the first wrong one."""

from __future__ import annotations

import struct
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import torch

from ..errors import ArgumentError
from ..kernel.signature import inspect_kernel
from ..private import locks, warp_source
from . import devices, switch
from .launcher import Launcher
from .packing import descriptor

if TYPE_CHECKING:
    from ..rewrite.bounds import BoundsKernel

Axes = frozenset[tuple[str, int]]
"""Axes of arrays, by label."""

_lock = locks.reentrant()
_made: weakref.WeakKeyDictionary[Any, dict[Axes, BoundsKernel | None]] = weakref.WeakKeyDictionary()
_warned: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def bounds_kernel(title: str, kernel: Any, proven: Axes) -> BoundsKernel | None:
    """The kernel that compares the indices of a concrete one, made once; None where there is none, or nothing to compare.

    Args:
        title: who launches it, for the warning where something is left as it is.
        proven: the axes whose indices need no look, where proofs are trusted.
    """
    from ..rewrite.bounds import make_bounds_kernel  # declares functions, which few need

    proven = frozenset() if any(switch.scopes) else proven
    with _lock:
        known = _made.setdefault(warp_source.definition(kernel), {})
        if proven not in known:
            try:
                known[proven] = found = make_bounds_kernel(kernel, proven)
            except Exception as error:  # whatever Warp's code generation raises
                known[proven] = None
                warn(title, kernel, f"the kernel {kernel.key} runs unchecked: {error}")
            else:
                if found is not None and found.unchecked:
                    warn(title, kernel, f"in the kernel {kernel.key} runs unchecked: {'; '.join(found.unchecked)}")
        return known[proven]


def give_up(title: str, kernel: Any, proven: Axes, error: Exception) -> None:
    """Launch the kernel as it is from now on: its other form can't be built."""
    with _lock:
        known = _made.setdefault(warp_source.definition(kernel), {})
        known[frozenset() if any(switch.scopes) else proven] = None
    warn(
        title,
        kernel,
        f"the kernel {kernel.key} runs unchecked: the form that compares its indices can't be built: {error}",
    )


def warn(title: str, kernel: Any, what: str) -> None:
    """Say once of a kernel that its indices aren't compared."""
    key = warp_source.definition(kernel)
    if key not in _warned:
        _warned[key] = True
        warnings.warn(f"{title}: bounds_checked: {what}", RuntimeWarning, stacklevel=2)


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
    raise ArgumentError(
        f"{title}: '{what.array}' is indexed at {index} on axis {what.axis}, and has size {size}, by thread {coordinates} at "
        f"{what.site}: `{what.site.code}`"
    )


class Checked:
    """Launches one kernel with its indices compared."""

    __slots__ = ("_launchers", "kernel", "options", "proven", "title")

    def __init__(self, title: str, kernel: Any, proven: Axes, *options: Any) -> None:
        """``options``: the launcher's, after the kernel's signature."""
        self.title, self.kernel, self.proven, self.options = title, kernel, proven, options
        self._launchers: dict[Any, Launcher] = {}

    def forward(self, device: torch.device, dims: tuple[int, ...], arguments: bytes) -> bool:
        """Launch, if it can be; whether it could.

        Raises:
            ArgumentError: an index was wrong.
        """
        if device.type == "meta":
            return False
        made = bounds_kernel(self.title, self.kernel, self.proven)
        if made is None:
            return False
        if device.type == "cuda" and devices.is_capturing():
            warn(self.title, self.kernel, "a launch that is captured into a CUDA graph runs unchecked")
            return False
        launcher = self._launchers.get(made.kernel)
        if launcher is None:
            launcher = self._launchers[made.kernel] = Launcher(inspect_kernel(made.kernel), *self.options)
        if not launcher.is_loaded(device):
            try:
                launcher.preload(device)
            except Exception as error:
                give_up(self.title, self.kernel, self.proven, error)
                return False
        record = new_record(device)
        own = struct.pack("=Q", record.data_ptr()) + descriptor((record.numel(),), (1,), record.element_size())[8:]
        launcher.forward(device, dims, arguments.ljust(launcher.layout.offsets[-1], b"\0") + own)
        refuse_wrong(self.title, made, record)
        return True
