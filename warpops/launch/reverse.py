"""The adjoint launches of a kernel whose own adjoint is wrong: those of a kernel that is written at the first of them."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch

from ..errors import GradientError
from ..kernel.signature import inspect_kernel
from ..private import locks, warp_code, warp_source, warp_types
from ..private.told import while_building
from ..rewrite.adjoint import AdjointKernel, make_adjoint
from ..rewrite.model import AdjointPlan
from ..rewrite.source import users_line
from . import devices
from .kept import launch_kept
from .launcher import Launcher

_lock = locks.reentrant()
_made: weakref.WeakKeyDictionary[Any, AdjointKernel] = weakref.WeakKeyDictionary()


def adjoint_kernel(kernel: Any, plan: AdjointPlan) -> AdjointKernel:
    """The kernel of a plan, made once.

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
                raise _failed(kernel, plan, None, error) from error
        return found


def load(kernel: Any, plan: AdjointPlan, device: Any, block_dim: int | None) -> Any:
    """Build the kernel of a plan for one of Warp's devices.

    Raises:
        GradientError: Warp can't build it.
    """
    made = adjoint_kernel(kernel, plan)
    try:
        with while_building(made.kernel.module, device):
            made.kernel.module.load(device, warp_code.resolved_block_dim(device, block_dim))
    except Exception as error:
        raise _failed(kernel, plan, made, error) from error
    return made.kernel


def _failed(kernel: Any, plan: AdjointPlan, made: AdjointKernel | None, error: Exception) -> GradientError:
    file, line = warp_source.source_location(kernel)
    where = (users_line(str(error), made.lines) if made is not None else None) or f"{file}:{line}"
    return GradientError(
        f"{kernel.key}: the gradient needs the kernel in another form ({plan.reasons[0]}), which can't be built: {error} "
        f"({where})"
    )


class Reverse:
    """Launches the adjoint of one kernel by that of the kernel of a plan. The rest is the launcher's of the kernel."""

    __slots__ = ("_launcher", "kernel", "options", "plan")

    def __init__(self, kernel: Any, plan: AdjointPlan | str, *options: Any) -> None:
        """``plan``: what is launched, or why nothing is. ``options``: the launcher's, after the kernel's signature."""
        self.kernel, self.plan, self.options = kernel, plan, options
        self._launcher: Launcher | None = None

    @property
    def launcher(self) -> Launcher:
        """The rewritten kernel's."""
        if isinstance(self.plan, str):
            raise GradientError(self.plan)
        if self._launcher is None:
            made = adjoint_kernel(self.kernel, self.plan)
            self._launcher = Launcher(inspect_kernel(made.kernel), *self.options)
        return self._launcher

    def adjoint(self, device: torch.device, dims: tuple[int, ...], arguments: bytes, adjoints: bytes) -> None:
        launcher = self.launcher
        assert not isinstance(self.plan, str)
        if math.prod(dims) == 0:
            return
        if not launcher.is_loaded(device):
            try:
                launcher.preload(device)
            except Exception as error:
                raise _failed(self.kernel, self.plan, _made.get(warp_source.definition(self.kernel)), error) from error
        if not self.counts:
            launcher.adjoint(device, dims, arguments, adjoints)
            return
        given, cotangents = (
            warp_types.unpack_arguments(self.kernel, b, launcher.layout.offsets) for b in (arguments, adjoints)
        )
        warp_device, block_dim = launcher.place(device)
        stream = devices.current_stream(device, warp_device)
        made = adjoint_kernel(self.kernel, self.plan)
        options = {"dim": dims or (1,), "device": warp_device, "stream": stream, "block_dim": block_dim}
        launch_kept(made, self.plan, given, cotangents, device, options)

    @property
    def counts(self) -> bool:
        """What is launched has to be told of how much it will keep."""
        return not isinstance(self.plan, str) and bool(self.plan.kept)

    @property
    def text(self) -> str:
        """What was written; empty as long as nothing is."""
        made = _made.get(warp_source.definition(self.kernel)) if self._launcher is not None else None
        return "" if made is None else made.text
