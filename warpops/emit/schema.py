"""The schemas of an op's operators."""

from __future__ import annotations

import itertools
import string
from collections.abc import Container, Iterator
from functools import cached_property

from ..arguments.kinds import kind_of
from ..kernel.signature import MISSING
from ..plan.model import OpPlan


def _aliases() -> Iterator[str]:
    """Sets of what an operator writes to: a to z, then aa, ab, …"""
    for length in itertools.count(1):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            yield f"({''.join(letters)}!)"


def _tensors(count: int) -> str:
    """The type of so many results."""
    return "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"


class Schemas:
    """The schemas of one op's operators."""

    def __init__(self, plan: OpPlan) -> None:
        self.plan = plan

    def arguments_schema(
        self, defaults: bool = False, written: Container[str] = ("mutated",), aliases: Iterator[str] | None = None
    ) -> list[str]:
        """The values of the op; ``written`` are the roles of those that are written to."""
        aliases, parts, star = aliases or _aliases(), [], not defaults
        for parameter in self.plan.parameters:
            if parameter.keyword_only and not star:
                parts.append("*")
                star = True
            for slot in parameter.slots:
                kind = kind_of(slot).schema(slot)
                if slot.role in written:
                    kind = kind.replace("Tensor", f"Tensor{next(aliases)}")
                default = ""
                if defaults and not parameter.struct and parameter.default is not MISSING:
                    default = kind_of(slot).default(slot, parameter.default)
                    if slot.role == "tensor_scalar":  # no number can be the default of a tensor
                        kind = "Tensor?"
                parts.append(f"{kind} {slot.name}{default}")
        if self.plan.device_argument:
            parts += [*([] if star else ["*"]), "Device? device" + ("=None" if defaults else "")]
        return parts

    @cached_property
    def public(self) -> str:
        return f"({', '.join(self.arguments_schema(True))}) -> {_tensors(len(self.plan.results))}"

    @cached_property
    def forward(self) -> str:
        return f"({', '.join(self.arguments_schema())}) -> {_tensors(len(self.plan.returned))}"

    @cached_property
    def forward_into(self) -> str:
        aliases = _aliases()
        parts = self.arguments_schema(written=("mutated", "inout"), aliases=aliases)
        parts += [f"Tensor{next(aliases)} {slot.name}" for slot in self.plan.fresh]
        return f"({', '.join(parts)}) -> ()"

    def _shared_backward(self) -> list[str]:
        return [*self.arguments_schema(written=()), *(f"Tensor {slot.name}" for slot in self.plan.kept)]

    @cached_property
    def backward(self) -> str:
        cots = [f"Tensor? grad_{slot.name}" for slot in self.plan.cotangents]
        return f"({', '.join([*self._shared_backward(), *cots, 'bool[] needs'])}) -> Tensor[]"

    @cached_property
    def backward_into(self) -> str:
        aliases = _aliases()
        buffers = []
        for slot in (*self.plan.cotangents, *self.plan.gradient_buffers):
            alias = "" if slot.retained else next(aliases)
            buffers.append(f"Tensor{alias}? grad_{slot.name}")
        if self.plan.token:
            names = {slot.name for slot in self.plan.slots}
            buffers.append("Tensor? alive" + "_" * sum(name.startswith("alive") for name in names))
        return f"({', '.join([*self._shared_backward(), *buffers])}) -> ()"
