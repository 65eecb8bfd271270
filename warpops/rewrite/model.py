"""The plan of a kernel that Warp's adjoint has right, as plain data."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any, Literal

from ..effects.model import LoopNeeds, Site
from ..frozen import frozen
from .trees import Place

CURED = ("loop-product", "loop-exit", "while", "component", "index", "replayed", "remainder", "local-array", "view")
"""The kinds of hazards that the rewritten kernel hasn't."""

Mode = Literal["as it is", "after", "gone", "turns"]


@dataclass
class LoopPlan:
    """What is done about one loop."""

    needs: LoopNeeds
    mode: Mode = "as it is"
    restored: set[str] = field(default_factory=set)
    """Variables that are given what they held, at the start of each turn."""
    after: set[str] = field(default_factory=set)
    """Variables that are given what the loop leaves, after it."""
    state: set[str] = field(default_factory=set)
    """Variables that are kept of a turn."""
    given: set[str] = field(default_factory=set)
    """Variables that the loop takes from where it is, besides those."""

    def describe(self) -> str:
        parts = []
        if self.mode == "turns":
            parts.append("its turns are counted first")
            if self.restored:
                parts.append(f"{listed(self.restored)} restored at the start of each turn")
        elif self.mode == "gone":
            parts.append("left out, for no gradient flows through it")
        if self.after:
            parts.append(f"{listed(self.after)} made again after it")
        if self.needs.before and not parts:
            parts.append(f"{listed(self.needs.before)} kept from before it")
        return ", ".join(parts)


def listed(names: Set[str]) -> str:
    return ", ".join(f"'{n}'" for n in sorted(names))


@dataclass
class FunctionPlan:
    """One function (or the kernel) that the adjoint launch gets another version of."""

    function: Any
    owner: Any
    """The ``wp.Kernel`` or ``wp.Function``."""
    loops: dict[Place, LoopPlan]
    stores: frozenset[Place]
    """Where it stores to arrays."""
    writes: bool
    """It writes to arrays, or one that it calls does: the reverse pass runs it again without that."""
    remainders: frozenset[Place] = frozenset()
    """Where a builtin is written so that Warp differentiates it."""
    small: frozenset[Place] = frozenset()
    """Loops that are written turn by turn, or with numbers for bounds."""
    own: frozenset[str] = frozenset()
    """Arrays of which a variable holds the one element that is touched."""
    kept: dict[str, int] = field(default_factory=dict)
    """Arrays whose stores keep what they overwrite, with their ranks."""
    threads: int = 1
    """The launch's rank, where there are such."""


@frozen
class AdjointPlan:
    """Which functions are rewritten for the adjoint launch, and why."""

    functions: dict[Any, FunctionPlan]
    """By Python function, callees first; the kernel's own is among them."""
    reasons: tuple[str, ...]
    kept: tuple[str, ...] = ()
    """Arrays whose stores keep what they overwrite, in order."""


class RefusedError(Exception):
    """A kernel's adjoint isn't made right, and why."""

    def __init__(self, reason: str, site: Site | None = None) -> None:
        super().__init__(f"it can't be made right: {reason}" + (f" ({site})" if site is not None else ""))
