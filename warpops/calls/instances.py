"""The concrete kernels of an op: plan, launcher and generated launches of each."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any

import torch

from ..arguments.call import Measure, existing, to_device
from ..emit.again import Again
from ..emit.launches import Launches
from ..emit.packed import packed_step
from ..emit.writer import Step
from ..errors import ArgumentError, SignatureError
from ..frozen import frozen
from ..launch import switch
from ..launch.checked import Checked
from ..launch.launcher import Launcher
from ..launch.reverse import Reverse
from ..plan.model import OpPlan, Slot
from ..private import locks

_lock = locks.reentrant()


@frozen
class Instance:
    """What serves one op for one set of types. A kernel that isn't generic has exactly one."""

    plan: OpPlan
    launcher: Launcher
    source: Callable[[], str]
    launches: MutableMapping[str, Callable[..., Any]]
    """By name, made when they are asked for: ``forward`` and ``forward_into``; ``allocate`` where anything is made;
    ``prepare``, ``backward`` and ``backward_into`` where there is an adjoint."""
    again: Callable[[str], Again | None]
    """What remembered launches are made of, by the way that is taken: forward, forward_into, backward, backward_into."""

    def allocate(self, found: Measure) -> dict[str, Any]:
        """What the op makes for a call, by name."""
        if not self.plan.fresh:
            return {}
        sizes = [size for slot in self.plan.fresh for size in found.shapes[slot.name]]
        made = self.launches["allocate"](found.device, *sizes)
        return dict(zip([slot.name for slot in self.plan.fresh], made, strict=True))


def make_instance(op: str, plan: OpPlan) -> Instance:
    """Generate the launches of a concrete plan: of its kernel, or the runs of its program."""
    kernel = plan.kernel
    step: Step = kernel.kernel.step(op, plan) if kernel.program else packed_step(_launcher(op, plan))
    launches = Launches(op, plan, step)
    if isinstance(step.target, Launcher):
        launches.around |= dict.fromkeys(("backward", "backward_into"), partial(_forward_first, plan, launches))
    return Instance(plan, step.target, launches.source, launches, launches.again)


def _forward_first(plan: OpPlan, launches: Launches, adjoint: Callable[..., Any]) -> Callable[..., Any]:
    """An adjoint launch, which has the indices of the forward: where they are compared that runs first, and changes nothing."""
    changed = [plan.arguments.index(slot.name) for slot in plan.mutated]

    def run(*values: Any) -> Any:
        if switch.scopes:
            given = list(values[: len(plan.arguments)])
            for place in changed:
                given[place] = None if given[place] is None else given[place].clone()
            launches["forward"](*given)
        return adjoint(*values)

    return run


def _launcher(op: str, plan: OpPlan) -> Launcher:
    launcher = Launcher(plan.kernel, plan.declaration.block_dim, plan.declaration.tiled)
    launcher.suspects = plan.suspects
    launcher.checked = Checked(op, plan.proven)
    if plan.adjoint is not None:
        launcher.reverse = Reverse(op, plan.adjoint)
    return launcher


class Instances:
    """The concrete kernels of an op, by the types of a call."""

    def __init__(self, op: str, plan: OpPlan, make: Callable[[str, dict[str, Any]], Instance]) -> None:
        """``make(op, values)`` makes what serves a call; of a kernel that isn't generic, with no values."""
        self.op, self.plan, self._make = op, plan, make
        self._only: Instance | None = None
        self._found: dict[tuple[Any, ...], Instance] = {}

    @property
    def generic(self) -> bool:
        """The types of a call say which kernel serves it."""
        return self.plan.kernel.generic

    @property
    def only(self) -> Instance | None:
        """The one instance of a kernel that isn't generic; its text is written at the first use."""
        if self._only is None and not self.generic:
            with _lock:
                if self._only is None:
                    self._only = self._make(self.op, {})
        return self._only

    def preload(self, op: str, device: torch.device | str | None) -> None:
        """Load the one kernel now, for PyTorch's default device where that is None. ``op`` is the name in messages."""
        if self.only is None:
            raise SignatureError(f"{op}: preload: the kernel is generic, and is made at the first call of each dtype")
        where = to_device(op, device) if device is not None else torch.get_default_device()
        if where.type not in ("cpu", "cuda"):
            raise ArgumentError(f"{op}: argument 'device': expected cpu or cuda, got {where}")
        self.only.launcher.preload(existing(op, where))

    def launch(self, way: str, *values: Any) -> Any:
        """Call one of the launches of the instance for a call's values."""
        return self.select(values).launches[way](*values)

    def select(self, values: tuple[Any, ...]) -> Instance:
        """The instance for a call's values (positional, as in the public schema; more may follow)."""
        only = self._only or self.only
        if only is not None:
            return only
        named = dict(zip(self.plan.arguments, values, strict=False))
        key = tuple(type_key(slot, named[slot.name]) for slot in self.plan.inputs if slot.leaf.generic)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._make(self.op, named)
        return found

    def source(self) -> str:
        """The text of all launches; of a generic kernel, of those that there were calls for."""
        made = [self.only] if self.only is not None else list(self._found.values())
        title = f'"""{self.op}: a generic kernel; its launches are generated for each set of dtypes on first use."""\n'
        parts = [title] if self.generic else []
        for instance in made:
            parts.append(instance.source())
            reverse = instance.launcher.reverse if isinstance(instance.launcher, Launcher) else None
            if reverse is not None and reverse.text:
                parts.append(reverse.text)
        return "\n\n".join(parts)


def type_key(slot: Slot, value: Any) -> Any:
    """What a generic argument's type depends on."""
    if isinstance(value, torch.Tensor):
        trailing = value.shape[slot.leaf.ndim :]
        return (value.dtype, tuple(map(int, trailing)) if slot.leaf.component is None else value.ndim)
    if isinstance(value, (list, tuple)):
        return len(value)
    return float if isinstance(value, (float, torch.SymFloat)) else (None if value is None else int)
