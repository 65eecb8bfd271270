"""One op as the ways that a call takes see it: a record, over which the modules beside this one have functions."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..arguments.tensor_scalar import traced_tensor
from ..arguments.vector import default_value
from ..errors import ArgumentError
from ..frozen import frozen
from ..kernel.signature import MISSING
from ..plan.model import OpPlan
from .instances import Instances
from .parts import Parts

by_key: weakref.WeakValueDictionary[str, Ways] = weakref.WeakValueDictionary()
"""For operators that name an op in a graph."""

by_name: weakref.WeakValueDictionary[str, Ways] = weakref.WeakValueDictionary()
"""The newest op of each name: programs call that."""

_plains: dict[str, Plain] = {}


def plain_of(name: str) -> Plain:
    """The operator under a plain name, which may not be defined yet. It stays."""
    return _plains.setdefault(name, Plain(name))


def newest(name: str) -> Ways:
    """The op that a name stands for.

    Raises:
        ArgumentError: there is none, or none any more.
    """
    ways = by_name.get(name)
    if ways is None:
        raise ArgumentError(
            f"{name} isn't there: a saved program needs the op that it calls. Import the module that makes it, first, and "
            f"keep the op (as an attribute of the module)"
        )
    return ways


class Lease:
    """Keeps an op's operators registered. Held by the ``WarpOp``, by pending backwards, and for good once compiled."""

    __slots__ = ("__weakref__", "lowered", "parts", "transforms")

    def __init__(self) -> None:
        self.transforms: Any = None
        self.parts: Any = None
        """The generated functions, once a graph may call them."""
        self.lowered = False
        """Inductor was taught to lower the op."""


@frozen
class Ops:
    """An op's operators: the public one, and the raw ones, functional and over given buffers."""

    public: Any
    forward: Any
    forward_into: Any
    backward: Any = None
    backward_into: Any = None
    run: Any = None
    """The raw forward for eager code, which asks autograd itself: whoever watches hears of ``forward``. None where short
    ways tell who does."""


@dataclass(eq=False)
class Plain:
    """The operator under a plain name, ``namespace::op``: it calls the newest op of the name."""

    name: str
    schema: str = ""
    """Without the name."""
    overload: Any = None
    lease: Any = None
    """Keeps it registered."""

    def now(self) -> tuple[Ways, Any]:
        """The op that it calls, and the operator that was called."""
        return newest(self.name), self.overload


@frozen
class Asked:
    """What a backward of the user's own is asked."""

    ways: Ways
    arguments: tuple[Any, ...]
    results: tuple[Any, ...]
    grads: tuple[Any, ...]
    """One cotangent per result."""
    needed: tuple[bool, ...]
    """Whether a gradient is wanted, by the schema's values."""


@frozen
class OwnBackward:
    """A backward in place of the adjoint: it gives one gradient per value of the schema."""

    run: Callable[[Asked], tuple[Any, ...]]
    meaning: Any
    """What the contract knows it by."""


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
    rows: frozenset[str]
    """Arrays that are treated row by row."""
    schema: str
    """The public op's, without a name."""
    named: bool
    """It has a name of its own, and isn't one that was made for another op."""
    numbered: bool
    """The name was taken, and got a number."""
    lease: weakref.ref[Lease]
    parts: weakref.ref[Parts]
    make_transforms: Callable[[Ways], Any]

    @property
    def functional(self) -> bool:
        """Graphs hold the functional raw ops, and Inductor is taught to lower them over buffers that it plans."""
        return not self.plan.mutated and not self.plan.token

    def now(self) -> tuple[Ways, Any]:
        """As of a ``Plain``."""
        return self, self.ops.public

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
        values = self.placed(arguments, named)
        for name, number in self.plan.scalar_defaults.items():
            place = self.plan.arguments.index(name)
            if values[place] is None:
                values = (*values[:place], traced_tensor(number), *values[place + 1 :])
        return values

    def placed(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """By position, defaults included as the schema has them."""
        names = self.plan.arguments
        if len(arguments) >= len(names):
            return arguments
        defaults: dict[str, Any] = {"device": None}
        for parameter in self.plan.parameters:
            if parameter.default is not MISSING and not parameter.struct:
                slot = parameter.slots[0]
                defaults[slot.name] = None if slot.role == "tensor_scalar" else default_value(parameter.default)
        return (*arguments, *(named[n] if n in named else defaults[n] for n in names[len(arguments) :]))

    @property
    def where(self) -> str:
        """The kernel's name and place."""
        kernel = self.plan.kernel
        return f"{kernel.module}.{kernel.qualname} ({kernel.file}:{kernel.line})"

    def call_public(self, arguments: tuple[Any, ...], overload: Any = None) -> Any:
        """The public op, or another overload of it, with the values by position."""
        last = {p.name for p in self.plan.parameters if p.keyword_only}
        if self.plan.device_argument:
            last.add("device")
        named = {n: v for n, v in zip(self.plan.arguments, arguments, strict=True) if n in last}
        return (overload or self.ops.public)(*arguments[: len(arguments) - len(named)], **named)


def one_or_many(values: tuple[Any, ...]) -> Any:
    """As PyTorch's operators return them: nothing, one value, or a tuple."""
    return (values[0] if len(values) == 1 else values) if values else None


def many(returned: Any) -> tuple[Any, ...]:
    """A tuple again."""
    return returned if isinstance(returned, tuple) else (returned,)
