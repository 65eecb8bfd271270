"""The adjoint launches of a kernel whose own adjoint is wrong: those of a kernel that is written at the first of them."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..effects.analysis import before_launch
from ..errors import GradientError
from ..private import locks, warp_code, warp_source, warp_types
from ..rewrite.adjoint import AdjointKernel, make_adjoint
from ..rewrite.model import AdjointPlan
from ..rewrite.source import users_line
from . import devices
from .kept import launch_kept
from .launcher import Launcher, Recalled
from .packing import Image

_lock = locks.reentrant()
_made: weakref.WeakKeyDictionary[Any, AdjointKernel] = weakref.WeakKeyDictionary()


def adjoint_kernel(title: str, kernel: Any, plan: AdjointPlan) -> AdjointKernel:
    """The kernel of a plan, made once; ``title`` begins what is said where it can't be.

    Raises:
        GradientError: it can't be written.
    """
    with _lock:
        key = warp_source.definition(kernel)
        found = _made.get(key)
        if found is None:
            try:
                found = _made[key] = make_adjoint(kernel, plan)
            except Exception as error:
                raise _failed(title, kernel, plan, error) from error
        return found


def load(title: str, kernel: Any, plan: AdjointPlan, device: Any, block_dim: int | None) -> AdjointKernel:
    """Build the kernel of a plan for one of Warp's devices; ``title`` begins what is said where it can't be.

    Raises:
        GradientError: Warp can't build it.
    """
    made = adjoint_kernel(title, kernel, plan)
    try:
        before_launch(made.kernel)
        warp_code.build(made.kernel, device, block_dim)
        if made.counts is not None:
            warp_code.build(made.counts, device, block_dim)
    except Exception as error:
        raise _failed(title, kernel, plan, error) from error
    return made


def _failed(title: str, kernel: Any, plan: AdjointPlan, error: Exception) -> GradientError:
    file, line = warp_source.source_location(kernel)
    where = users_line(str(error), (one.owner for one in plan.functions.values())) or f"{file}:{line}"
    return GradientError(
        f"{title}: the gradient needs the kernel {kernel.key} in another form ({plan.reasons[0]}), which can't be built: "
        f"{error} ({where})"
    )


class Reverse:
    """Launches the adjoint of one kernel by that of the kernel of a plan. The rest is the launcher's of the kernel."""

    def __init__(self, op: str, plan: AdjointPlan | str) -> None:
        """``plan``: what is launched, or why nothing is."""
        self.op, self.plan = op, plan
        self._found: tuple[AdjointKernel, Launcher] | None = None

    def _of(self, own: Launcher) -> tuple[AdjointKernel, Launcher]:
        """The rewritten kernel, and what launches it; ``own`` launches the kernel."""
        if isinstance(self.plan, str):
            raise GradientError(self.plan)
        if self._found is None:
            made = adjoint_kernel(self.op, own.kernel, self.plan)
            self._found = made, own.like(made.kernel)
        return self._found

    def adjoint(
        self, own: Launcher, device: torch.device, dims: tuple[int, ...], arguments: bytes, adjoints: bytes
    ) -> None:
        made, launcher = self._of(own)
        assert not isinstance(self.plan, str)
        if not launcher.is_loaded(device):
            try:
                launcher.preload(device)
                if made.counts is not None:
                    warp_code.build(made.counts, *launcher.place(device))
            except Exception as error:
                raise _failed(self.op, own.kernel, self.plan, error) from error
        if made.counts is None:
            launcher.adjoint(device, dims, arguments, adjoints)
        else:
            warp_device, block_dim = launcher.place(device)
            options = {"dim": dims or (1,), "block_dim": block_dim, "device": warp_device}
            options["stream"] = devices.current_stream(device, warp_device)
            offsets = launcher.layout.offsets
            given, cotangents = (
                warp_types.unpack_arguments(own.kernel, packed, offsets) for packed in (arguments, adjoints)
            )
            launch_kept(self.op, made, given, cotangents, device, options)

    def recall(self, own: Launcher, device: torch.device, dims: tuple[int, ...], image: Image) -> Recalled | None:
        """As ``Launcher.recall``. Where a launch has to count first how much it will keep, there is no short way."""
        made, launcher = self._of(own)
        return launcher.recall(device, dims, image) if made.counts is None else None

    @property
    def text(self) -> str:
        """What was written; empty as long as nothing is."""
        return "" if self._found is None else self._found[0].text
