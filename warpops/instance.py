"""One concrete kernel of an op: its plan, its launcher, its generated launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .emit import emit_launches
from .launch import Launcher
from .plan import OpPlan


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
    )
