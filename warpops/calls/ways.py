"""One op as the ways that a call takes see it: a record, over which the modules beside this one have functions."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..arguments.vector import default_value
from ..kernel.signature import MISSING
from ..plan.model import OpPlan
from .instances import Instances
from .parts import Parts

by_key: weakref.WeakValueDictionary[str, Ways] = weakref.WeakValueDictionary()
"""For operators that name an op in a graph."""


class Lease:
    """Keeps an op's operators registered. Held by the ``WarpOp``, by pending backwards, and for good once compiled."""

    __slots__ = ("__weakref__", "lowered", "transforms")

    def __init__(self) -> None:
        self.transforms: Any = None
        self.lowered = False
        """Inductor was taught to lower the op."""


@dataclass(frozen=True)
class Ops:
    """An op's operators: the public one, and the raw ones, functional and over given buffers."""

    public: Any
    forward: Any
    forward_into: Any
    backward: Any = None
    backward_into: Any = None


@dataclass(frozen=True)
class Asked:
    """What a backward of the user's own is asked."""

    ways: Ways
    arguments: tuple[Any, ...]
    results: tuple[Any, ...]
    grads: tuple[Any, ...]
    """One cotangent per result."""
    needed: tuple[bool, ...]
    """Whether a gradient is wanted, by the schema's values."""


@dataclass(frozen=True)
class OwnBackward:
    """A backward in place of the adjoint: it gives one gradient per value of the schema."""

    run: Callable[[Asked], tuple[Any, ...]]
    meaning: Any
    """What the contract knows it by."""
    given: Any
    """What the user gave: a function, or a ``WarpOp``."""


@dataclass(frozen=True, eq=False)
class Ways:
    """One op. PyTorch's registry holds this record, so that it holds weakly what keeps the op registered."""

    name: str
    """In messages; a hidden op has the name of the op that it was made for."""
    key: str
    plan: OpPlan
    instances: Instances
    ops: Ops
    custom: OwnBackward | None
    vmap: Callable[..., Any] | None
    numbered: bool
    """The name was taken, and got a number."""
    lease: weakref.ref[Lease]
    parts: weakref.ref[Parts]
    make_transforms: Callable[[Ways], Any]

    @property
    def functional(self) -> bool:
        """Graphs hold the functional raw ops, and Inductor is taught to lower them over buffers that it plans."""
        return not self.plan.mutated and not self.plan.handles

    def transforms(self) -> Any:
        """The op's functions for transforms.

        They hold the lease and the lease them, so that they live as long as the op and as any graph that they are part
        of.
        """
        lease = self.lease()
        if lease is None:
            return self.make_transforms(self)
        if lease.transforms is None:
            lease.transforms = self.make_transforms(self)
        return lease.transforms

    def live(self) -> Parts:
        """The generated functions.

        Raises:
            RuntimeError: the op was collected, and only a graph knows its operators.
        """
        parts = self.parts()
        if parts is None:
            raise RuntimeError(f"{self.name} is gone: its WarpOp was collected")
        return parts

    # --- the schema's values ------------------------------------------------------------------------------------------

    def values(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        """By name; more may follow."""
        return dict(zip(self.plan.arguments, arguments, strict=False))

    def device(self, arguments: tuple[Any, ...]) -> Any:
        return arguments[len(self.plan.inputs)] if self.plan.device_argument else None

    def complete(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """By position, defaults included."""
        names = self.plan.arguments
        if len(arguments) >= len(names):
            return arguments
        defaults: dict[str, Any] = {"device": None}
        for parameter in self.plan.parameters:
            if parameter.default is not MISSING and not parameter.struct:
                defaults[parameter.slots[0].name] = default_value(parameter.default)
        return (*arguments, *(named[n] if n in named else defaults[n] for n in names[len(arguments) :]))

    def call_public(self, arguments: tuple[Any, ...]) -> Any:
        """The public op with the values by position."""
        last = {p.name for p in self.plan.parameters if p.keyword_only}
        if self.plan.device_argument:
            last.add("device")
        named = {n: v for n, v in zip(self.plan.arguments, arguments, strict=True) if n in last}
        return self.ops.public(*arguments[: len(arguments) - len(named)], **named)


def one_or_many(values: tuple[Any, ...]) -> Any:
    """As PyTorch's operators return them: nothing, one value, or a tuple."""
    return (values[0] if len(values) == 1 else values) if values else None


def many(returned: Any) -> tuple[Any, ...]:
    """A tuple again."""
    return returned if isinstance(returned, tuple) else (returned,)
