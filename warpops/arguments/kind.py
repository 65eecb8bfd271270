"""What a kind of argument is, wherever a value of it goes, and how a wrong one is told: the base of a class for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from ..errors import ArgumentError
from ..plan.model import Slot
from ..private import torch_modes

PYTHON: dict[str, type] = {"float": float, "int": int, "bool": bool}
"""By the kind of a scalar type."""


def fail(op: str, slot: Slot, text: str) -> NoReturn:
    raise ArgumentError(f"{op}: argument '{slot.label}': {text}")


def require(condition: Any, message: Callable[[], str]) -> None:
    if isinstance(condition, bool):
        if not condition:
            raise ArgumentError(message())
        return
    torch_modes.require(ArgumentError, condition, message)


def demand(op: str, slot: Slot, condition: Any, text: str, *shown: Any) -> None:
    """Refuse an argument unless a condition holds, symbolic or not; ``text`` is formatted where it doesn't."""
    require(condition, lambda: f"{op}: argument '{slot.label}': {text.format(*shown)}")


class Kind:
    """A kind of argument. What writes text is given ``use``, which names a helper of the text's scope."""

    convert_name = ""
    """What generated text calls ``convert``; empty where it is what the schema takes already."""

    def schema(self, slot: Slot) -> str:
        """Its type in a schema."""
        raise NotImplementedError

    def default(self, slot: Slot, value: Any) -> str:
        """How a schema says a default; empty where none can."""
        return "=None" if value is None else ""

    def annotation(self, slot: Slot) -> Any:
        """Its type in the op's Python signature; None where it has none."""
        return None

    def check(self, op: str, slot: Slot, value: Any) -> None:
        """Check one value by itself.

        Raises:
            ArgumentError: it doesn't fit.
        """
        raise NotImplementedError

    def convert(self, op: str, slot: Slot, value: Any) -> Any:
        """What the schema takes for a value that was given in eager code."""
        return value

    def eager(self, slot: Slot, use: Callable[[str], str]) -> Iterator[str]:
        """The lines by which eager code converts it, where it isn't what the schema takes."""
        if self.convert_name:
            yield f"{slot.name} = {use(self.convert_name)}({slot.name!r}, {slot.name})"

    def traced(self, slot: Slot, place: int, use: Callable[[str], str]) -> Iterator[str]:
        """The lines by which compiled code refuses it, where PyTorch's parser has no words for that."""
        raise NotImplementedError

    def guarded(self, slot: Slot, use: Callable[[str], str]) -> Iterator[str]:
        """The lines by which compiled code makes it a number of the schema's type, once nothing is refused."""
        yield from ()

    def packed(self, slot: Slot, bits: str) -> str:
        """The text of what a launch's bytes are packed from; ``bits`` is a function that each number is given to."""
        return f"{bits}({slot.name})" if bits else slot.name

    def native(self, warp_type: Any, value: Any) -> Any:
        """What Warp's own launch takes for a value of the schema."""
        return value

    def code(self, slot: Slot) -> str:
        """What a package knows it by (``calls/packaged.py``); empty where it can't."""
        return "t"


def refused(test: str, slot: Slot, place: int, use: Callable[[str], str]) -> Iterator[str]:
    """The lines that refuse a value, in compiled code, for which a test fails."""
    yield f"if not {test}:"
    yield f"    return {use('refuse_traced')}({place}, {slot.name})"
