"""Short ways past PyTorch's public names, each with a twin of public names alone: slower, and right."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

FAST = os.environ.get("WARPOPS_FAST", "1") != "0"
"""Take the short ways: those here, an entry point's for ``wp.launch``, a launch's for its raw op. ``WARPOPS_FAST=0`` takes
every twin."""


def either(short: Callable[[], Any], twin: Any) -> Any:
    """What ``short`` finds and tries out; the twin where it fails, as it does where a private name is gone."""
    if not FAST:
        return twin
    try:
        return short()
    except Exception:  # a name that means something else by now may raise anything
        return twin
