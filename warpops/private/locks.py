"""Locks that a forked process can use, whatever other threads were doing when it was forked."""

from __future__ import annotations

import os
import threading
from typing import Any

_made: list[Any] = []


def reentrant() -> Any:
    """A ``threading.RLock`` that is free in a forked child: the thread that held it isn't there to let go of it."""
    return _remember(threading.RLock())


def plain() -> Any:
    """A ``threading.Lock``, as ``reentrant``."""
    return _remember(threading.Lock())


def renewed(lock: Any) -> None:
    """Make somebody else's lock free in a forked child, too; None is no lock."""
    if hasattr(lock, "_at_fork_reinit"):
        _remember(lock)


def _remember(lock: Any) -> Any:
    _made.append(lock)
    return lock


def _renew() -> None:
    for lock in _made:
        lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
