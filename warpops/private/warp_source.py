"""Warp's private side: a kernel's source, and where it is."""

from __future__ import annotations

from typing import Any


def source_location(kernel: Any) -> tuple[str, int]:
    """The file and the first line of the kernel's definition."""
    adjoint = kernel.adj
    return str(getattr(adjoint, "filename", "?")), int(getattr(adjoint, "fun_lineno", 0))


def source_text(kernel: Any) -> str:
    """A kernel's source, dedented, with its decorators."""
    return str(kernel.adj.source)
