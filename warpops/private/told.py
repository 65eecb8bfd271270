"""One line for who waits: Warp's first build of a module takes seconds, on a GPU up to a minute."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import warp as wp

from .short import found

PATIENCE = 2.0
"""Seconds after which a build says that it goes on."""


@contextlib.contextmanager
def while_building(module: Any, device: Any, block_dim: int) -> Iterator[None]:
    """Say so on the standard error stream where it takes long, unless Warp was told to be quiet."""
    quiet = wp.config.log_level > wp.LOG_INFO or vars(wp.config).get("quiet")  # asked by its name, it warns
    if quiet or found(lambda: _is_built(module, device, block_dim), False):  # no thread then, which costs time
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


def _is_built(module: Any, device: Any, block_dim: int) -> bool:
    """Whether the module is in Warp's cache."""
    folder = os.path.join(wp.config.kernel_cache_dir or "", module.get_module_identifier(block_dim))
    ends = ".o" if device.is_cpu else (".ptx", ".cubin")
    return any(name.endswith(ends) for name in os.listdir(folder))
