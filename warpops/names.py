"""What ops are called, and which op has a name."""

from __future__ import annotations

import itertools
import sys
import weakref
from dataclasses import dataclass, field
from typing import Any

from .kernel.signature import KernelSignature
from .plan.declaration import check_name
from .private import locks

MAIN = ("__main__", "__mp_main__")

lock = locks.reentrant()
_ops: dict[str, weakref.WeakValueDictionary[int, Any]] = {}
"""The ops of each name, by their order."""
_count = itertools.count()


@dataclass(eq=False)
class Place:
    """Where something is defined."""

    module: str
    qualname: str
    file: str
    line: int
    run: Any = field(init=False)
    """Of the module: another one after a reload."""

    def __post_init__(self) -> None:
        self.run = getattr(sys.modules.get(self.module), "__spec__", None)

    def is_run_again(self, other: Place) -> bool:
        """Whether the other is the same definition, run once more; in a function each call makes another."""
        if (self.module, self.qualname) != (other.module, other.qualname) or "<locals>" in self.qualname:
            return False
        return (self.file, self.line) == (other.file, other.line) or self.module in MAIN or self.run is not other.run


@dataclass(frozen=True, eq=False)
class Named:
    """The name that an op has."""

    name: str
    order: int | None
    """By the time that ops were named; None for a hidden one, which no list shows."""
    numbered: bool
    kernel: Any
    places: tuple[Place, Place]
    """Of the kernel, and of the call that made the op: it tells where two ops have one kernel."""

    def is_defined_again(self, kernel: Any, places: tuple[Place, Place]) -> bool:
        """Whether a kernel is this op's, defined once more, in a notebook or by a reload; or an op of the same kernel."""
        same = kernel is self.kernel and places[0].module not in MAIN
        return self.places[same].is_run_again(places[same])


def _caller() -> Place:
    """The line that makes an op."""
    frame: Any = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == __package__:
        frame = frame.f_back
    code, module = frame.f_code, frame.f_globals.get("__name__", "")
    return Place(module, "" if code.co_name == "<module>" else "<locals>", code.co_filename, frame.f_lineno)


def hidden_name(name: str) -> Named:
    """That of an op which was made for another one."""
    return Named(name, None, False, None, ())  # type: ignore[arg-type]


def default_name(kernel: KernelSignature) -> str:
    """The name of a kernel's op where nothing else is declared, and no other op has it."""
    root = kernel.module.split(".")[0]
    namespace = "warpops" if root in (*MAIN, "") or not root.isidentifier() else root
    return f"{namespace}::{kernel.name}"


def choose_name(declared: str | None, kernel: KernelSignature) -> Named:
    """The name of a new op: the declared one, or the kernel's, with a number where another op has it."""
    places = Place(kernel.module, kernel.qualname, kernel.file, kernel.line), _caller()
    if declared is not None:
        return Named(declared, next(_count), False, kernel.kernel, places)
    base = default_name(kernel)
    check_name(kernel.name, base)
    name, number = base, 0
    while (other := newest(name)) is not None and not other._named.is_defined_again(kernel.kernel, places):
        number += 1
        name = f"{base}_{number}"
    return Named(name, next(_count), number > 0, kernel.kernel, places)


def newest(name: str) -> Any:
    """The live op that has a name, the one before it where that was collected; None where there is none."""
    live = dict(_ops[name].items()) if name in _ops else {}  # items: an op may be collected at any line
    return live[max(live)] if live else None


def enter(op: Any, named: Named) -> None:
    """The op has the name from now on."""
    if named.order is not None:
        _ops.setdefault(named.name, weakref.WeakValueDictionary())[named.order] = op


def live_ops() -> list[Any]:
    """The live ops by name, the newest of each."""
    with lock:
        found = [newest(name) for name in sorted(_ops)]
        return [op for op in found if op is not None]
