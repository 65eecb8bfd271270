"""Which launch is remembered: the last one of each op, with a check that the next call's tensors look the same.

The check is PyTorch's own guard on tensors, one call for all of them: it compares types, dtypes, devices, sizes, strides,
and the state of dispatch, so that a tensor subclass, a dispatch mode, autocast, inference mode or a torch.func transform
never meets a remembered launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _torch
from .instance import Instances
from .plan import OpPlan


class Memory:
    """One remembered launch."""

    __slots__ = ("check", "differentiable", "needs", "numbers", "run")

    def __init__(
        self,
        check: Callable[..., bool],
        run: Callable[..., Any],
        numbers: tuple[int, ...],
        needs: Any,
        differentiable: bool,
    ) -> None:
        self.check, self.run, self.numbers, self.needs = check, run, numbers, needs
        self.differentiable = differentiable


def _never(*tensors: Any) -> bool:
    return False


NOTHING = Memory(_never, _never, (), None, False)
_LONGEST = 64


class Recall:
    """The remembered forward and backward of one op."""

    __slots__ = ("_arrays", "_instances", "_plan", "_sizing", "_waits", "backward", "forward")

    def __init__(self, plan: OpPlan, instances: Instances) -> None:
        self._plan, self._instances = plan, instances
        names = [slot.name for slot in plan.inputs]
        self._arrays = [names.index(slot.name) for slot in plan.inputs if slot.is_array]
        self._sizing = [names.index(slot.name) for slot in plan.sizing]
        self._waits = {"forward": [0, 0], "backward": [0, 0]}
        self.forward = NOTHING
        self.backward = NOTHING

    def _due(self, what: str) -> bool:
        """Whether a miss is worth remembering: each time at first, more rarely while sizes keep changing."""
        wait = self._waits[what]
        if wait[0] > 0:
            wait[0] -= 1
            return False
        wait[1] = min(wait[1] + 1, 4 * _LONGEST)
        wait[0] = wait[1] // 4
        return True

    def missed_forward(self, arguments: tuple[Any, ...]) -> None:
        """Remember the launch that a call just made."""
        if not self._due("forward"):
            return
        tensors = [arguments[index] for index in self._arrays]
        if not _torch.can_guard(tensors):
            return
        make = self._instances.select(arguments).recall_forward
        run = make(*arguments) if make is not None else None
        if run is None:
            return
        numbers = tuple(arguments[index] for index in self._sizing)
        names = {slot.name for slot in self._plan.gradients}
        wants = any(
            arguments[index].requires_grad and slot.name in names
            for index, slot in enumerate(self._plan.inputs)
            if slot.is_array
        )
        self.forward = Memory(_torch.guard(tensors), run, numbers, None, wants)

    def missed_backward(self, arguments: tuple[Any, ...], tensors: tuple[Any, ...], needs: tuple[bool, ...]) -> None:
        """Remember the adjoint launch that a backward just made; ``arguments`` are those of the raw backward."""
        if not self._due("backward"):
            return
        if not _torch.can_guard(tensors):
            return
        make = self._instances.select(arguments).recall_backward
        run = make(*arguments) if make is not None else None
        if run is None:
            return
        numbers = tuple(arguments[index] for index in self._sizing)
        self.backward = Memory(_torch.guard(tensors), run, numbers, needs, True)
