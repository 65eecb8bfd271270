"""The concrete kernels of an op: plan, launcher and generated launches of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .emit import emit_launches
from .launch import Launcher
from .plan import OpPlan, Slot


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


def make_instance(op: str, plan: OpPlan) -> Instance:
    """Generate the launches of a concrete plan."""
    declaration = plan.declaration
    launcher = Launcher(plan.kernel, declaration.block_dim, declaration.tiled, plan.extents.rank)
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
    )


class Instances:
    """The concrete kernels of an op, by the types of a call."""

    def __init__(self, op: str, plan: OpPlan, make: Callable[[dict[str, Any]], Instance], only: Instance | None) -> None:
        self.op, self.plan, self.only = op, plan, only
        self._make = make
        self._found: dict[tuple[Any, ...], Instance] = {}
        self._names = [slot.name for slot in plan.inputs]
        if only is not None:
            self.forward: Callable[..., Any] = only.forward
            self.forward_into: Callable[..., Any] = only.forward_into
            self.backward: Any = only.backward
            self.backward_into: Any = only.backward_into
        else:
            self.forward = lambda *values: self.select(values).forward(*values)
            self.forward_into = lambda *values: self.select(values).forward_into(*values)
            self.backward = lambda *values: self._backward_of(values)(*values)
            self.backward_into = lambda *values: self._backward_into_of(values)(*values)

    def _backward_of(self, values: tuple[Any, ...]) -> Callable[..., Any]:
        backward = self.select(values).backward
        assert backward is not None
        return backward

    def _backward_into_of(self, values: tuple[Any, ...]) -> Callable[..., Any]:
        backward = self.select(values).backward_into
        assert backward is not None
        return backward

    def select(self, values: tuple[Any, ...]) -> Instance:
        """The instance for a call's values (positional, as in the public schema; more may follow)."""
        if self.only is not None:
            return self.only
        named = dict(zip(self._names, values, strict=False))
        key = tuple(type_key(slot, named[slot.name]) for slot in self.plan.inputs if slot.leaf.generic)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._make(named)
        return found

    def source(self) -> str:
        if self.only is not None:
            return self.only.source
        return f'"""{self.op}: a generic kernel; its launches are generated for each set of dtypes on first use."""\n'


def type_key(slot: Slot, value: Any) -> Any:
    """What a generic argument's type depends on."""
    if isinstance(value, torch.Tensor):
        trailing = value.shape[slot.leaf.ndim :]
        return (value.dtype, tuple(map(int, trailing)) if slot.leaf.component is None else value.ndim)
    if isinstance(value, (list, tuple)):
        return len(value)
    return float if isinstance(value, (float, torch.SymFloat)) else (None if value is None else int)
