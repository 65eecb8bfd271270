"""The scripts of a program, by what its runs depended on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..arguments.ran import Ran
from ..launch.launcher import Launcher
from ..private import locks
from .reads import Reads
from .script import Script
from .take import Take

Key = tuple[torch.device, tuple[torch.Size | None, ...], bytes, tuple[bool, ...]]
"""The device, the shapes of the tensors, the numbers, and which gradients there are."""

_KEPT = 64
_PATIENCE = 32
"""After as many runs in a row whose sizes or numbers were new, only one in as many is written down."""

_lock = locks.plain()


class Found(NamedTuple):
    """A run that was written down."""

    reads: Reads
    script: Script
    ran: Ran


class Scripts:
    """The latest scripts of one program, on all devices."""

    def __init__(self, reads: Callable[[], Reads]) -> None:
        self._reads = reads
        self._found: dict[Any, Found] = {}
        self._missed = 0
        self.launchers: dict[Any, Launcher] = {}
        """Of the kernels that are launched, by kernel and block size."""

    def find(self, key: Key | None) -> Found | None:
        """The script of a run; None where there is none, or the program would read something else now."""
        found = self._found.get(key)
        if found is None or not found.reads.same():
            return None
        self._missed = 0
        return found

    def wanted(self) -> bool:
        """Whether the run that there is no script for is to be written down."""
        self._missed += 1
        return self._reads().why is None and (self._missed <= _PATIENCE or self._missed % _PATIENCE == 0)

    def add(self, key: Key | None, take: Take | None, ran: Ran) -> Ran:
        """Keep what was written down. Runs that came to the same share what they came to, which is returned."""
        ran = next((found.ran for found in [*self._found.values()] if found.ran == ran), ran)
        script = take.script() if take is not None else None
        if take is None or script is None or not take.reads.same():
            return ran
        if len(self.launchers) > _KEPT:
            self.launchers.clear()
        with _lock:
            self._found.pop(key, None)
            if len(self._found) >= _KEPT:
                del self._found[next(iter(self._found))]
            self._found[key] = Found(take.reads, script, ran)
        return ran
