"""One line for who waits: Warp's first build of a module takes seconds, on a GPU up to a minute."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import warp as wp

PATIENCE = 2.0
"""Seconds after which a build says that it goes on."""


@contextlib.contextmanager
def while_building(module: Any, device: Any) -> Iterator[None]:
    """Say so on the standard error stream where it takes long, unless Warp was told to be quiet."""
    if wp.config.log_level > wp.LOG_INFO or vars(wp.config).get("quiet"):  # asked by its name, it warns
        yield
        return
    text = f"warpops: Warp is building the module {module.name} for {device}; it is kept in Warp's cache\n"
    timer = threading.Timer(PATIENCE, sys.stderr.write, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
