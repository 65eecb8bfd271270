"""The options of ``warp_op`` and ``warp_program``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Dim = str | int | tuple[int | str, ...] | Callable[..., Any]
