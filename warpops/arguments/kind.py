"""What the kinds of arguments share: how a wrong one is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import ArgumentError
from ..plan.model import Slot
from ..private import torch_modes


def fail(op: str, slot: Slot, text: str) -> NoReturn:
    raise ArgumentError(f"{op}: argument '{slot.label}': {text}")


def require(condition: Any, message: Callable[[], str]) -> None:
    if isinstance(condition, bool):
        if not condition:
            raise ArgumentError(message())
        return
    torch_modes.require(ArgumentError, condition, message)
