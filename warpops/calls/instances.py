"""The concrete kernels of an op: plan, launcher and generated launches of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..emit.launches import emit_launches
from ..launch.launcher import Launcher
from ..launch.reverse import Reverse
from ..plan.model import OpPlan, Slot
from ..private import locks

_lock = locks.reentrant()


@dataclass(frozen=True)
class Instance:
    """What serves one op for one set of types. A kernel that isn't generic has exactly one."""

    plan: OpPlan
    launcher: Launcher
    source: str
    allocate: Callable[..., tuple[Any, ...]] | None
    forward: Callable[..., Any]
    forward_into: Callable[..., None]
    prepare: Callable[..., tuple[Any, ...]] | None
    backward_into: Callable[..., None] | None
    backward: Callable[..., list[Any]] | None
    recall_forward: Callable[..., Any] | None = None
    recall_backward: Callable[..., Any] | None = None
    recall_forward_into: Callable[..., Any] | None = None
    recall_backward_into: Callable[..., Any] | None = None


def make_instance(op: str, plan: OpPlan) -> Instance:
    """Generate the launches of a concrete plan."""
    declaration = plan.declaration
    launcher = Launcher(plan.kernel, declaration.block_dim, declaration.tiled, plan.extents.rank)
    if plan.adjoint is not None:
        launcher.reverse = Reverse(
            plan.kernel.kernel, plan.adjoint, declaration.block_dim, declaration.tiled, plan.extents.rank
        )
    source, functions = emit_launches(op, plan, launcher)
    return Instance(
        plan=plan,
        launcher=launcher,
        source=source,
        allocate=functions.get("allocate"),
        forward=functions["forward"],
        forward_into=functions["forward_into"],
        prepare=functions.get("prepare"),
        backward_into=functions.get("backward_into"),
        backward=functions.get("backward"),
        recall_forward=functions.get("recall_forward"),
        recall_backward=functions.get("recall_backward"),
        recall_forward_into=functions.get("recall_forward_into"),
        recall_backward_into=functions.get("recall_backward_into"),
    )


class Instances:
    """The concrete kernels of an op, by the types of a call."""

    def __init__(
        self,
        op: str,
        plan: OpPlan,
        make: Callable[[str, dict[str, Any]], Instance] | None,
        single: Callable[[str], Instance] | None,
    ) -> None:
        """``make(op, values)`` serves a generic kernel, ``single(op)`` one that isn't."""
        self.op, self.plan, self._single = op, plan, single
        self._make = make
        self._only: Instance | None = None
        self._found: dict[tuple[Any, ...], Instance] = {}
        self._names = [slot.name for slot in plan.inputs]
        self._waiting: list[Callable[[Instance], None]] = []

    @property
    def generic(self) -> bool:
        """The types of a call say which kernel serves it."""
        return self._single is None

    @property
    def only(self) -> Instance | None:
        """The one instance of a kernel that isn't generic; its text is written at the first use."""
        if self._only is None and self._single is not None:
            with _lock:
                if self._only is None:
                    self._only = self._single(self.op)
                    for told in self._waiting:
                        told(self._only)
                    self._waiting.clear()
        return self._only

    @property
    def made(self) -> Instance | None:
        """The one instance, if it is there already."""
        return self._only

    def when_made(self, told: Callable[[Instance], None]) -> None:
        """Tell of the one instance as soon as there is one."""
        if self._only is not None:
            told(self._only)
        elif self._single is not None:
            self._waiting.append(told)

    def forward(self, *values: Any) -> Any:
        return self.select(values).forward(*values)

    def forward_into(self, *values: Any) -> None:
        self.select(values).forward_into(*values)

    def backward(self, *values: Any) -> list[Any]:
        backward = self.select(values).backward
        assert backward is not None
        return backward(*values)

    def backward_into(self, *values: Any) -> None:
        backward_into = self.select(values).backward_into
        assert backward_into is not None
        backward_into(*values)

    def select(self, values: tuple[Any, ...]) -> Instance:
        """The instance for a call's values (positional, as in the public schema; more may follow)."""
        only = self._only or self.only
        if only is not None:
            return only
        named = dict(zip(self._names, values, strict=False))
        key = tuple(type_key(slot, named[slot.name]) for slot in self.plan.inputs if slot.leaf.generic)
        found = self._found.get(key)
        if found is None:
            assert self._make is not None
            found = self._found[key] = self._make(self.op, named)
        return found

    def source(self) -> str:
        only = self.only
        if only is not None:
            reverse = only.launcher.reverse if isinstance(only.launcher, Launcher) else None
            return only.source + (f"\n\n{reverse.text}" if reverse is not None and reverse.text else "")
        return f'"""{self.op}: a generic kernel; its launches are generated for each set of dtypes on first use."""\n'


def type_key(slot: Slot, value: Any) -> Any:
    """What a generic argument's type depends on."""
    if isinstance(value, torch.Tensor):
        trailing = value.shape[slot.leaf.ndim :]
        return (value.dtype, tuple(map(int, trailing)) if slot.leaf.component is None else value.ndim)
    if isinstance(value, (list, tuple)):
        return len(value)
    return float if isinstance(value, (float, torch.SymFloat)) else (None if value is None else int)
