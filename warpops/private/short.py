"""Short ways past PyTorch's public names, each with a twin of public names alone: slower, and right."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

FAST = os.environ.get("WARPOPS_FAST", "1") != "0"
"""Take the short ways: those here, an entry point's for ``wp.launch``, a launch's for its raw op. ``WARPOPS_FAST=0`` takes
every twin."""


def found(look: Callable[[], Any], otherwise: Any = None) -> Any:
    """What ``look`` finds and tries out; the other where that fails, as it does where a private name is gone."""
    try:
        return look()
    except Exception:  # a name that means something else by now may raise anything
        return otherwise


def either(short: Callable[[], Any], twin: Any) -> Any:
    """A short way where it is found and allowed, else its twin."""
    return found(short, twin) if FAST else twin


def late(short: Callable[[], Any], twin: Any) -> Any:
    """A function that is ``either``, chosen at its first call: what it imports is a good part of PyTorch."""
    chosen = functools.cache(lambda: either(short, twin))
    return lambda *given: chosen()(*given)
