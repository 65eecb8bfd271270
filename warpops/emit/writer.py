"""What the text of an op's launches is written with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any

from ..arguments.call import measure
from ..frozen import frozen
from ..plan.model import OpPlan, Slot
from .text import Text, targets, tuple_of


@frozen
class Step:
    """What the launches of a plan are in the text: a kernel's, packed, or the runs of a program."""

    target: Any
    """What is called: a ``Launcher``, or a program's ``Runner``."""
    title: str
    dense: bool
    """It reads memory by strides, so that component axes have to be dense."""
    forward: Callable[[Writer, str, str], None]
    """Writes the launch: of the writer, the launch size, the device."""
    backward: Callable[[Writer, str], None]
    """Writes the adjoint launch, of the writer and the device."""


Sizes = dict[str, str]
"""The text of each name that dims are written with."""
Shapes = dict[str, list[str]]
"""The text of each size of an array, by the array's name."""
Key = str | tuple[str, str]
"""A constant of a remembered launch; of an array, its name and what of it."""


class Texts:
    """Texts with the same names, each of which is written once."""

    def __init__(self, op: str, plan: OpPlan, taken: Iterable[str]) -> None:
        self.op, self.plan, self.text = op, plan, Text(taken)
        self._texts: dict[Any, str] = {}

    def once(self, write: Callable[[Any], None]) -> str:
        """The text that a function writes, which it does once."""
        if write not in self._texts:
            write(self)
            self._texts[write] = self.text.take()
        return self._texts[write]


class Writer(Texts):
    """Writes the launch functions of one concrete plan."""

    def __init__(self, op: str, plan: OpPlan, step: Step) -> None:
        super().__init__(op, plan, [*(slot.name for slot in plan.slots), "needs", "device"])
        self.step = step
        self.scope: dict[str, Any] = {}
        self.constants: dict[str, tuple[Key, ...]] = {}
        """What remembered launches take, by their way, after what is given."""

    @cached_property
    def sizes(self) -> Sizes:
        """The text of each size: an argument, or what ``measure`` has found."""
        bools = [s for s in self.plan.ints if s.leaf.scalar is not None and s.leaf.scalar.kind == "bool"]
        given = {s.label: f"int({s.name})" if s in bools else s.name for s in self.plan.ints}
        return given | {name: self.text.size(name) for name in self.plan.found_sizes}

    def provide(self, name: str, value: Any) -> str:
        """Put a value into the functions' globals, under a name that no argument has."""
        name = self.text.free(name)
        self.scope[name] = value
        return name

    def function(self, name: str) -> str:
        return self.text.free(name, "function")

    def local(self, slot: Slot, what: str) -> str:
        return self.text.local(f"{slot.name}_{what}")

    @property
    def torch(self) -> str:
        return self.text.free("torch")

    def dtype(self, slot: Slot) -> str:
        assert slot.leaf.scalar is not None
        return f"{self.torch}.{str(slot.leaf.scalar.dtype).removeprefix('torch.')}"

    def given_sizes(self, slot: Slot) -> list[str]:
        """The Warp shape of an array whose shape has a name."""
        return [f"{self.local(slot, 'shape')}[{axis}]" for axis in range(slot.leaf.ndim)]

    def values(self) -> str:
        """The call's arguments as a dict, for the full check."""
        return "{" + ", ".join(f"{slot.name!r}: {slot.name}" for slot in self.plan.inputs) + "}"

    def ask(self, name: str, function: Callable[..., Any], *more: Any, device: bool = False) -> str:
        """The call of a function over the op's name, its plan, and more, with the call's arguments."""
        asked = self.provide(name, partial(function, self.op, self.plan, *more))
        return f"{asked}({self.values()}{', device' if device and self.plan.device_argument else ''})"

    def refuse_if(self, wrong: Iterable[str]) -> None:
        if wrong := list(wrong):
            self.text.add(f"if {' or '.join(wrong)}:")
            self.text.add(f"    {self.ask('refuse', measure, device=True)}")

    def targets(self, slots: Iterable[Slot]) -> str:
        return targets([slot.name for slot in slots])

    def tuple_of(self, slots: Iterable[Slot]) -> str:
        return tuple_of([slot.name for slot in slots])


class OpWriter(Texts):
    """Writes what is called of one op: ``call`` and the autograd function."""

    def __init__(self, op: str, plan: OpPlan, more: tuple[str, ...] = ()) -> None:
        """``more`` are tensors that come after the op's own arguments."""
        names = [parameter.name for parameter in plan.parameters] + [slot.name for slot in plan.slots]
        super().__init__(op, plan, [*names, *more, "ctx", "device"])
        self.more = more
        self.classname = self.text.free(plan.name, "class")
        """The autograd function's."""

    def use(self, name: str) -> str:
        """A helper from the scope, under a name that no argument has."""
        return self.text.free(name, "helper")

    def helpers(self) -> dict[str, str]:
        """The names of those that were used so far."""
        return self.text.names("helper")
