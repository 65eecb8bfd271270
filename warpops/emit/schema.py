"""The schemas of an op's operators."""

from __future__ import annotations

import itertools

from ..arguments.kinds import kind_of
from ..kernel.signature import MISSING
from ..plan.model import OpPlan, Slot


def _letters(number: int) -> str:
    """The name of an alias set: a to z, then aa, ba, …"""
    return chr(ord("a") + number % 26) + (_letters(number // 26 - 1) if number >= 26 else "")


def _type_of(slot: Slot, alias: str = "") -> str:
    """The schema type of a value."""
    return kind_of(slot).schema(slot).replace("Tensor", f"Tensor{alias}")


class Schemas:
    """The schemas of one op's operators."""

    def __init__(self, plan: OpPlan) -> None:
        self.plan = plan

    def arguments_schema(self, defaults: bool, mutate: bool = True) -> list[str]:
        parts: list[str] = []
        star = False
        for parameter in self.plan.parameters:
            if parameter.keyword_only and defaults and not star:
                parts.append("*")
                star = True
            for index, slot in enumerate(parameter.slots):
                alias = f"({_letters(self._alias(slot))}!)" if slot.role == "mutated" and mutate else ""
                text = f"{_type_of(slot, alias)} {slot.name}"
                if defaults and slot.role == "tensor_scalar" and parameter.default is not MISSING:
                    text = f"Tensor? {slot.name}"  # no number can be the default of a tensor
                if defaults and not parameter.struct and index == 0 and parameter.default is not MISSING:
                    text += kind_of(slot).default(slot, parameter.default)
                parts.append(text)
        if self.plan.device_argument:
            if defaults and not star:
                parts.append("*")
            parts.append("Device? device" + ("=None" if defaults else ""))
        return parts

    def _alias(self, slot: Slot) -> int:
        return [s.name for s in self.plan.mutated].index(slot.name)

    def result_schema(self) -> str:
        results = ", ".join("Tensor" for _ in self.plan.results)
        return f"({results})" if len(self.plan.results) != 1 else "Tensor"

    def public(self) -> str:
        return f"({', '.join(self.arguments_schema(True))}) -> {self.result_schema()}"

    def forward(self) -> str:
        returned = ["Tensor"] * len(self.plan.returned)
        result = returned[0] if len(returned) == 1 else f"({', '.join(returned)})"
        return f"({', '.join(self.arguments_schema(False))}) -> {result}"

    def forward_into(self) -> str:
        parts = []
        letters = map(_letters, itertools.count())
        for slot in self.plan.inputs:
            alias = f"({next(letters)}!)" if slot.changes else ""
            parts.append(f"{_type_of(slot, alias)} {slot.name}")
        if self.plan.device_argument:
            parts.append("Device? device")
        for slot in self.plan.fresh:
            parts.append(f"Tensor({next(letters)}!) {slot.name}")
        return f"({', '.join(parts)}) -> ()"

    def _shared_backward(self) -> list[str]:
        parts = self.arguments_schema(False, mutate=False)
        return [*parts, *(f"Tensor {slot.name}" for slot in self.plan.kept)]

    def backward(self) -> str:
        cots = [f"Tensor? grad_{slot.name}" for slot in self.plan.cotangents]
        return f"({', '.join([*self._shared_backward(), *cots, 'bool[] needs'])}) -> Tensor[]"

    def backward_into(self) -> str:
        letters = map(_letters, itertools.count())
        buffers = []
        for slot in (*self.plan.cotangents, *self.plan.gradient_buffers):
            alias = "" if slot.retained else f"({next(letters)}!)"
            buffers.append(f"Tensor{alias}? grad_{slot.name}")
        if self.plan.token:
            names = {slot.name for slot in self.plan.slots}
            buffers.append("Tensor? alive" + "_" * sum(name.startswith("alive") for name in names))
        return f"({', '.join([*self._shared_backward(), *buffers])}) -> ()"
