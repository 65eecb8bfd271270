"""The adjoint launches of a kernel whose own adjoint is wrong: those of a kernel that is written at the first of them."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..errors import GradientError
from ..kernel.signature import inspect_kernel
from ..private import locks, warp_code, warp_source, warp_types
from ..rewrite.adjoint import AdjointKernel, make_adjoint
from ..rewrite.model import AdjointPlan
from ..rewrite.source import users_line
from . import devices
from .kept import launch_kept
from .launcher import Launcher

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

    __slots__ = ("_launcher", "kernel", "op", "options", "plan")

    def __init__(self, op: str, kernel: Any, plan: AdjointPlan | str, *options: Any) -> None:
        """``plan``: what is launched, or why nothing is. ``options``: the launcher's, after the kernel's signature."""
        self.op, self.kernel, self.plan, self.options = op, kernel, plan, options
        self._launcher: Launcher | None = None

    @property
    def launcher(self) -> Launcher:
        """The rewritten kernel's."""
        if isinstance(self.plan, str):
            raise GradientError(self.plan)
        if self._launcher is None:
            made = adjoint_kernel(self.op, self.kernel, self.plan)
            self._launcher = Launcher(inspect_kernel(made.kernel), *self.options)
        return self._launcher

    def adjoint(self, device: torch.device, dims: tuple[int, ...], arguments: bytes, adjoints: bytes) -> None:
        launcher = self.launcher
        assert not isinstance(self.plan, str)
        made = adjoint_kernel(self.op, self.kernel, self.plan)
        if not launcher.is_loaded(device):
            try:
                launcher.preload(device)
                if made.counts is not None:
                    warp_code.build(made.counts, *launcher.place(device))
            except Exception as error:
                raise _failed(self.op, self.kernel, self.plan, error) from error
        if made.counts is None:
            launcher.adjoint(device, dims, arguments, adjoints)
        else:
            warp_device, block_dim = launcher.place(device)
            options = {"dim": dims or (1,), "block_dim": block_dim, "device": warp_device}
            options["stream"] = devices.current_stream(device, warp_device)
            offsets = launcher.layout.offsets
            given, cotangents = (
                warp_types.unpack_arguments(self.kernel, packed, offsets) for packed in (arguments, adjoints)
            )
            launch_kept(self.op, made, given, cotangents, device, options)

    @property
    def counts(self) -> bool:
        """A launch has to count first how much it will keep."""
        return not isinstance(self.plan, str) and bool(self.plan.kept)

    @property
    def text(self) -> str:
        """What was written; empty as long as nothing is."""
        made = _made.get(warp_source.definition(self.kernel)) if self._launcher is not None else None
        return "" if made is None else made.text
