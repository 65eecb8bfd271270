"""What the kinds of arguments share: how a wrong one is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from ..errors import ArgumentError
from ..plan.model import Slot


def fail(op: str, slot: Slot, text: str) -> NoReturn:
    raise ArgumentError(f"{op}: argument '{slot.label}': {text}")


def require(condition: Any, message: Callable[[], str]) -> None:
    if isinstance(condition, bool):
        if not condition:
            raise ArgumentError(message())
        return
    torch._check_with(ArgumentError, condition, message)
