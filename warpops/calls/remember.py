"""Which launches are remembered: the last few of each op, with a check that the next call's tensors look the same.

The check is PyTorch's own guard on tensors, one call for all of them: it compares types, dtypes, devices, sizes, strides,
and the state of dispatch, so that a tensor subclass, a dispatch mode, autocast, inference mode or a torch.func transform
never meets a remembered launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

from ..launch.packing import NOT_RECALLED, OutdatedError
from ..private import torch_guards, torch_modes
from .instances import Instances


class Memory:
    """One remembered launch."""

    __slots__ = ("check", "differentiable", "needs", "numbers", "run")

    def __init__(
        self,
        check: Callable[..., bool],
        run: Callable[..., Any] | None,
        numbers: tuple[int, ...],
        needs: Any,
        differentiable: bool,
    ) -> None:
        self.check, self.run, self.numbers, self.needs = check, run, numbers, needs
        self.differentiable = differentiable


def _never(*tensors: Any) -> bool:
    return False


NOTHING = Memory(_never, None, (), None, False)
_LONGEST = 64
_KEPT = 4
"""How many launches are remembered for each way: a model calls one op on arrays of several sizes."""


class Pace:
    """How often a miss is worth remembering: each time at first, more rarely while sizes keep changing."""

    __slots__ = ("_length", "_wait")

    def __init__(self) -> None:
        self._wait = self._length = 0

    def due(self) -> bool:
        if self._wait > 0:
            self._wait -= 1
            return False
        self._length = min(self._length + 1, 4 * _LONGEST)
        self._wait = self._length // 4
        return True


class Memories:
    """The launches that one way of an op remembers; ``latest`` is tried first."""

    __slots__ = ("_older", "_pace", "latest")

    def __init__(self) -> None:
        self.latest = NOTHING
        self._older: tuple[Memory, ...] = ()
        self._pace = Pace()

    def find(self, *tensors: Any) -> Memory:
        """The launch among the older ones that such tensors were seen in; ``NOTHING`` where there is none."""
        older = self._older
        for index, memory in enumerate(older):
            if memory.check(*tensors):
                self._older = (self.latest, *older[:index], *older[index + 1 :])
                self.latest = memory
                return memory
        return NOTHING

    def due(self) -> bool:
        """Whether a miss is worth remembering."""
        return self._pace.due()

    def gave_way(self, memory: Memory, error: Exception) -> None:
        """Forget a launch whose code was replaced; one that was given a wrong number stays."""
        if isinstance(error, OutdatedError):
            if self.latest is memory:
                self.latest = NOTHING
            self._older = tuple(one for one in self._older if one is not memory)

    def add(self, memory: Memory) -> None:
        if self.latest is not NOTHING:
            self._older = (self.latest, *self._older)[: _KEPT - 1]
        self.latest = memory


class Remembered:
    """The remembered forwards and backwards of one op."""

    __slots__ = ("_instances", "backward", "forward")

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self.forward, self.backward = Memories(), Memories()

    def missed_forward(self, arguments: tuple[Any, ...]) -> None:
        """Remember the launch that a call just made."""
        if not self.forward.due():
            return
        plan = self._instances.plan
        tensors = [value for slot, value in zip(plan.inputs, arguments, strict=False) if slot.is_array]
        if not torch_guards.can_guard(tensors):
            return
        make = self._instances.select(arguments).recall_forward
        run = make(*arguments) if make is not None else None
        if run is None:
            return
        numbers = tuple(arguments[index] for index in plan.sizing_places)
        wants = any(
            value.requires_grad
            for slot, value in zip(plan.inputs, arguments, strict=False)
            if slot.is_array and (slot.differentiable or plan.mutated)
        )
        self.forward.add(Memory(torch_guards.guard(tensors), run, numbers, None, wants))

    def missed_backward(self, arguments: tuple[Any, ...], tensors: tuple[Any, ...], needs: tuple[bool, ...]) -> None:
        """Remember the adjoint launch that a backward just made; ``arguments`` are those of the raw backward."""
        if not self.backward.due():
            return
        if not torch_guards.can_guard(tensors):
            return
        make = self._instances.select(arguments).recall_backward
        run = make(*arguments) if make is not None else None
        if run is None:
            return
        numbers = tuple(arguments[index] for index in self._instances.plan.sizing_places)
        self.backward.add(Memory(torch_guards.guard(tensors), run, numbers, needs, True))


class Into:
    """A raw op over given buffers, with the last launches remembered: what compiled code calls.

    As the kernel that the dispatcher calls, and, with ``direct``, in place of the way through the dispatcher: a generated
    graph calls operators one by one, and boxing and unboxing their arguments costs more than a launch.
    """

    __slots__ = ("_direct", "_instances", "_memories", "_pace", "_run", "_way")

    def __init__(self, instances: Instances, way: str, run: Callable[..., None], direct: bool = False) -> None:
        self._instances, self._way, self._run, self._direct = instances, way, run, direct
        self._pace: Pace | None = None
        self._memories = _NO_MEMORIES

    def __hash__(self) -> int:
        return hash(self._run)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __call__(self, *values: Any, **named: Any) -> None:
        if named:
            self._run(*values, **named)
            return
        check, tensors, others, fixed, again = self._memories[0]
        if not check(*tensors(values)):
            check, tensors, others, fixed, again = self._find(values)
        if others(values) == fixed and not (self._direct and _watched()):
            try:
                again(*values)
                return
            except NOT_RECALLED as error:
                if isinstance(error, OutdatedError):
                    self._memories = tuple(one for one in self._memories if one[-1] is not again) or _NO_MEMORIES
        self._run(*values)
        if self._pace is None:
            self._pace = Pace()
        if self._pace.due():
            self._remember(values)

    def _find(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The remembered launch that such values were seen in, which becomes the first; else one that never applies."""
        memories = self._memories
        for index, memory in enumerate(memories[1:], 1):
            if memory[0](*memory[1](values)):
                self._memories = (memory, *memories[:index], *memories[index + 1 :])
                return memory
        return NEVER

    def _remember(self, values: tuple[Any, ...]) -> None:
        given = [index for index, value in enumerate(values) if isinstance(value, torch.Tensor)]
        tensors = [values[index] for index in given]
        if not torch_guards.can_guard(tensors):
            return
        make = getattr(self._instances.select(values), self._way)
        again = make(*values) if make is not None else None
        if again is None:
            return
        plan = self._instances.plan
        others = _picker([*plan.sizing_places, *(index for index, value in enumerate(values) if value is None)])
        memory = (torch_guards.guard(tensors), _picker(given), others, others(values), again)
        # One tuple, replaced at once: other threads launch meanwhile.
        self._memories = (memory, *(one for one in self._memories if one is not NEVER))[:_KEPT]


def _watched() -> bool:
    """Whether somebody is to be told of operators that are called."""
    return bool(torch_modes.dispatch_modes() or torch_modes.function_mode() or torch_modes.profiling())


def forward_into(instances: Instances, through: Callable[..., None] | None = None) -> Callable[..., None]:
    """The raw forward op over given buffers; ``through`` is the dispatcher's way, where that is to be shortened."""
    run = through or instances.forward_into
    if not instances.plan.recalls_forward:
        return run
    return Into(instances, "recall_forward_into", run, through is not None)


def backward_into(instances: Instances, through: Callable[..., None] | None = None) -> Callable[..., None]:
    """The raw backward op over given buffers."""
    run = through or instances.backward_into
    if not instances.plan.recalls_backward:
        return run
    return Into(instances, "recall_backward_into", run, through is not None)


def _nothing(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return ()


NEVER = (_never, _nothing, _nothing, None, _never)
"""What stands for a remembered launch where there is none: the numbers are never equal."""
_NO_MEMORIES: tuple[tuple[Any, ...], ...] = (NEVER,)


def _picker(places: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """A function that takes those places of a tuple."""
    if not places:
        return _nothing
    if len(places) == 1:
        (place,) = places
        return lambda values: (values[place],)
    return itemgetter(*places)
