"""Which launches are remembered: the last few of each way of an op, with a check that the next call's tensors look the same.

The check is PyTorch's own guard on tensors, one call for all of them: it compares types, dtypes, devices, sizes, strides,
and the state of dispatch, so that a tensor subclass, a dispatch mode, autocast, inference mode or a torch.func transform
never meets a remembered launch.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from ..arguments.call import bind_sizes, fresh_shape, launch_size
from ..emit import checks
from ..launch.packing import (
    NOT_RECALLED,
    OutdatedError,
    argument_image,
    dense_strides,
    descriptor,
    number_packer,
    pairs_apart,
)
from ..private import locks, torch_guards, torch_modes
from ..private.warp_types import RETAIN_GRAD
from .instances import Instances

_LONGEST = 64
_KEPT = 4
"""How many launches are remembered for each way: a model calls one op on arrays of several sizes."""


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """One remembered launch. A call's values are those of its raw operator."""

    check: Callable[..., bool]
    """Whether tensors look as those of the launch did."""
    tensors: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    """Picks the tensors out of a call's values."""
    others: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    """Picks the rest that it depends on: ints that sizes follow from, what is None, which gradients are wanted."""
    fixed: tuple[Any, ...] | None
    """What that was."""
    differentiable: bool
    """Gradients may be wanted."""
    run: Callable[..., Any] | None
    """Of a forward, what is called with a tuple of its tensors and the numbers."""
    recall: Callable[..., Any]
    """The same, of a call's values."""


def _nothing(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return ()


NEVER = Memory(lambda *tensors: False, _nothing, _nothing, None, False, None, _nothing)
"""What stands for a remembered launch where there is none."""


_stores: weakref.WeakSet[Store] = weakref.WeakSet()
_lock = locks.plain()


def forget_all() -> None:
    """Let all ops make their next launches anew, the long way."""
    with _lock:
        stores = list(_stores)
    for store in stores:
        store.memories = (NEVER,)


class Store:
    """One way of an op, ``forward`` or ``backward`` or one over given buffers, with its last launches remembered.

    Over given buffers it is what compiled code calls: as the kernel that the dispatcher calls, and, with ``direct``, in place
    of the way through the dispatcher. A generated graph calls operators one by one, and boxing and unboxing their arguments
    costs more than a launch.
    """

    __slots__ = ("__weakref__", "_direct", "_instances", "_length", "_run", "_wait", "_way", "memories")

    def __init__(self, instances: Instances, way: str, run: Callable[..., Any], direct: bool = True) -> None:
        """``run`` launches what isn't remembered; ``direct``: nobody else asks who watches."""
        self._instances, self._way, self._run, self._direct = instances, way, run, direct
        self._wait, self._length = 1, 0  # not the first: what is called once needs no memory
        self.memories: tuple[Memory, ...] = (NEVER,)
        """The latest first. One tuple, replaced at once: other threads launch meanwhile."""
        with _lock:
            _stores.add(self)

    def find(self, values: tuple[Any, ...]) -> Memory:
        """The launch among the older ones that such values were seen in, which becomes the latest; else ``NEVER``."""
        memories = self.memories
        for index, memory in enumerate(memories[1:], 1):
            if memory.check(*memory.tensors(values)):
                self.memories = (memory, *memories[:index], *memories[index + 1 :])
                return memory
        return NEVER

    def gave_way(self, memory: Memory, error: Exception) -> None:
        """Forget a launch whose code was replaced; one that was given a wrong number stays."""
        if isinstance(error, OutdatedError):
            self.memories = tuple(one for one in self.memories if one is not memory) or (NEVER,)

    def missed(self, values: tuple[Any, ...]) -> None:
        """Remember the launch that was just made: each time at first, more rarely while sizes keep changing."""
        if self._wait > 0:
            self._wait -= 1
            return
        if torch_modes.watched():  # a jit trace makes sizes tensors
            return
        self._length = min(self._length + 1, 4 * _LONGEST)
        self._wait = self._length // 4
        given = [index for index, value in enumerate(values) if isinstance(value, torch.Tensor)]
        tensors = [values[index] for index in given]
        run = _again(self._instances, self._way, values) if torch_guards.can_guard(tensors) else None
        if run is None:
            return
        plan = self._instances.plan
        others = [*plan.sizing_places, *(index for index, value in enumerate(values) if value is None)]
        pick = picker([*others, len(values) - 1] if self._way == "backward" else others)
        wants = any(
            value.requires_grad
            for slot, value in zip(plan.inputs, values, strict=False)
            if slot.is_array and (slot.differentiable or plan.mutated)
        )
        every, recall = picker(given), run
        if self._way == "forward":
            numbers = picker([index for index in range(len(values)) if index not in given])
            recall = _of_values(run, every, numbers)
        made = Memory(torch_guards.guard(tensors), every, pick, pick(values), wants, run, recall)
        self.memories = (made, *(one for one in self.memories if one is not NEVER))[:_KEPT]

    def __hash__(self) -> int:
        return hash(self._run)

    def launch(self, *values: Any, **named: Any) -> Any:
        """By a remembered launch, or anew."""
        if named:
            return self._run(*values, **named)
        memory = self.memories[0]
        if not memory.check(*memory.tensors(values)):
            memory = self.find(values)
        fits = memory.others(values) == memory.fixed and torch_modes.forward_ad._current_level < 0
        if fits and not (self._direct and torch_modes.watched()):
            try:
                return memory.recall(*values)
            except NOT_RECALLED as error:
                self.gave_way(memory, error)
        found = self._run(*values)
        self.missed(values)
        return found

    __call__ = launch

    def follow(self, memory: Memory | None, *values: Any) -> Any:
        """By a remembered launch that was found to apply, or anew."""
        if memory is not None:
            try:
                return memory.recall(*values)
            except NOT_RECALLED as error:
                self.gave_way(memory, error)
        return self._run(*values)


def remembering(instances: Instances, way: str, run: Callable[..., None], direct: bool = False) -> Callable[..., None]:
    """A raw op over given buffers, which ``run`` is, with its launches remembered where they may be; ``direct`` where
    ``run`` is the dispatcher's way, to be shortened."""
    plan = instances.plan
    recalls = plan.recalls_forward if way == "forward_into" else plan.recalls_backward
    return Store(instances, way, run, direct) if recalls else run


def _of_values(run: Callable[..., Any], tensors: Callable[..., Any], numbers: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: run(tensors(values), *numbers(values))


def picker(places: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """A function that takes those places of a tuple."""
    if not places:
        return _nothing
    if len(places) == 1:
        (place,) = places
        return lambda values: (values[place],)
    return itemgetter(*places)


def _again(instances: Instances, way: str, values: tuple[Any, ...]) -> Callable[..., Any] | None:
    """The launch that was just made of ``values`` with all that is constant worked out; None where there is no short way."""
    instance = instances.select(values)
    again, plan, launcher = instance.again(way), instance.plan, instance.launcher
    if again is None or (way == "backward" and any(value is None for value in values)):
        return None
    adjoint = way.startswith("backward")
    kept = plan.kept if adjoint else plan.fresh
    named = dict(zip((*plan.arguments, *(slot.name for slot in kept)), values, strict=False))
    sizes = bind_sizes(instances.op, plan, named)
    where = named[plan.given_arrays[0].name].device
    constants: dict[Any, Any] = {"where": where}
    attached, explicit = [], []
    for slot in plan.arrays:
        scalar, rank, tensor = slot.leaf.scalar, slot.leaf.ndim, named.get(slot.name)
        assert scalar is not None
        if tensor is None:
            shape = (*fresh_shape(instances.op, plan, slot, sizes, named), *(slot.leaf.component or ()))
        else:
            shape = tuple(tensor.shape)
        strides = dense = dense_strides(shape)
        # The rows of a null array are null, as its dense strides say: PyTorch's are 1 and more.
        if not (tensor is None or way == "backward" or (way == "forward" and slot.role == "inout") or 0 in shape):
            strides = tensor.stride()
            loose = any(strides[axis] != dense[axis] for axis in range(rank, len(shape)) if shape[axis] != 1)
            if loose and slot.is_input:
                return None
        constants |= {(slot.name, "size"): shape, (slot.name, "step"): dense}
        plain = descriptor(shape[:rank], strides, scalar.size)
        attached.append(
            descriptor(shape[:rank], strides, scalar.size, RETAIN_GRAD) if adjoint and slot.retained else plain
        )
        if len(slot.leaf.path) == 1:
            explicit.append(plain if slot.explicit else None)
    inputs = [named[slot.name] if slot.is_input else None for slot in plan.arrays]
    apart = () if adjoint else pairs_apart(inputs, [plan.arrays.index(slot) for slot in plan.mutated])
    image = argument_image(launcher.parts, attached, explicit if adjoint else None, apart)
    found = launcher.recall(where, launch_size(instances.op, plan, sizes, named), image)
    if found is None:
        return None
    constants |= zip(("launch", "start", "module", "hashers"), found, strict=True)
    constants["pack_numbers"] = number_packer(launcher.signature)
    if "empty" in again.constants:
        constants["empty"] = checks.allocator(where)
    function, bound = again.function, tuple(constants[key] for key in again.constants)
    return types.FunctionType(function.__code__, function.__globals__, function.__name__, bound)
