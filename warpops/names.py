"""What ops are called, and which op has a name."""

from __future__ import annotations

import itertools
import sys
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .plan.declaration import check_name
from .private import locks

if TYPE_CHECKING:
    from .kernel.signature import KernelSignature
    from .op import WarpOp

MAIN = ("__main__", "__mp_main__")

lock = locks.reentrant()
_ops: dict[str, weakref.WeakValueDictionary[int, WarpOp]] = {}
"""The ops of each name, by their order."""
_count = itertools.count()


@dataclass(frozen=True, eq=False)
class Named:
    """The name that an op has."""

    name: str
    order: int | None
    """By the time that ops were named; None for a hidden one, which no list shows."""
    numbered: bool
    kernel: KernelSignature
    run: Any
    """Of the kernel's module: another one after a reload."""

    def is_defined_again(self, kernel: KernelSignature) -> bool:
        """Whether a kernel is the one of this op, defined once more: in a notebook, or by a reload."""
        mine = self.kernel
        if (mine.module, mine.qualname) != (kernel.module, kernel.qualname) or "<locals>" in kernel.qualname:
            return False
        if kernel.module in MAIN or self.run is not _run_of(kernel.module):
            return True
        same_place = (mine.file, mine.line) == (kernel.file, kernel.line)
        return same_place and mine.kernel.func is not kernel.kernel.func  # or one kernel is made two ops of


def hidden_name(name: str, kernel: KernelSignature) -> Named:
    """That of an op which was made for another one."""
    return Named(name, None, False, kernel, None)


def choose_name(declared: str | None, kernel: KernelSignature) -> Named:
    """The name of a new op: the declared one, or the kernel's, with a number where another op has it."""
    run = _run_of(kernel.module)
    if declared is not None:
        return Named(declared, next(_count), False, kernel, run)
    root = kernel.module.split(".")[0]
    namespace = "warpops" if root in (*MAIN, "") or not root.isidentifier() else root
    base = f"{namespace}::{kernel.name}"
    check_name(kernel.name, base)
    name, number = base, 0
    while (other := newest(name)) is not None and not other._named.is_defined_again(kernel):
        number += 1
        name = f"{base}_{number}"
    return Named(name, next(_count), number > 0, kernel, run)


def _run_of(module: str) -> Any:
    """What is made anew when a module is imported or reloaded."""
    return getattr(sys.modules.get(module), "__spec__", None)


def newest(name: str) -> WarpOp | None:
    """The live op that has a name; the one before it where that was collected."""
    live = dict(_ops.get(name, ()))
    return live[max(live)] if live else None


def enter(op: WarpOp, named: Named) -> None:
    """The op has the name from now on."""
    if named.order is not None:
        _ops.setdefault(named.name, weakref.WeakValueDictionary())[named.order] = op


def list_ops() -> list[WarpOp]:
    """The live ops by name, the newest of each.

    Example:
        >>> from warpops import list_ops
        >>> isinstance(list_ops(), list)
        True
    """
    with lock:
        found = [newest(name) for name in sorted(_ops)]
        return [op for op in found if op is not None]
