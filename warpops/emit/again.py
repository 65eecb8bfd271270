"""The launches for tensors whose sizes and strides were seen before, less what then is constant.

What is constant comes as parameters after the call's own, which ``warpops.calls.remember`` works out for tensors of some sizes,
and binds. It also decides when such a launch applies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..frozen import frozen
from ..launch.packing import OutdatedError
from ..plan.model import Slot
from ..private import torch_modes
from . import checks
from .adjoint import backward_arguments, buffers, grad_name, zero_gradients
from .forward import number, private_copy
from .packed import packed_value
from .text import tuple_of
from .writer import Key, Writer


@frozen
class Again:
    """A launch that waits for its constants."""

    function: Callable[..., Any]
    constants: tuple[Key, ...]
    """What is bound to the last parameters: ``launch``, ``start``, ``module`` and ``hashers`` are those of
    ``Launcher.recall``, ``pack_numbers`` packs what it says, ``empty`` allocates at ``where``, and of an array there are its
    ``size`` and ``step`` (shape and strides, component axes included)."""


@contextmanager
def _function(w: Writer, way: str, parameters: Iterable[str], more: Iterable[Key] = ()) -> Iterator[None]:
    """The function of one way; it leaves where the kernel's code was replaced since."""
    w.constants[way] = ("launch", "start", "module", "hashers", *(("pack_numbers",) if w.plan.numbers else ()), *more)
    constants = [_constant(w, key) for key in w.constants[way]]
    with w.text.function(w.function(f"recalled_{way}"), [*parameters, *constants]):
        if way == "forward":
            w.text.add(
                '"""For tensors of sizes that were seen before; what is constant then is bound, from launch on."""'
            )
        w.text.add(f"if {_constant(w, 'module')}.hashers is not {_constant(w, 'hashers')}:")
        w.text.add(f"    raise {w.provide('OutdatedError', OutdatedError)}")
        yield


def _constant(w: Writer, key: Key) -> str:
    return w.text.local("_".join(key) if isinstance(key, tuple) else key)


def _launch(w: Writer, tensors: str) -> None:
    """The launch of a tuple of all tensors, the arrays' and then their adjoints', and of the numbers."""
    given = [tensors, _constant(w, "start")]
    if w.plan.numbers:
        given.append(f"{_constant(w, 'pack_numbers')}({', '.join(packed_value(w, slot) for slot in w.plan.numbers)})")
    w.text.add(f"{_constant(w, 'launch')}({', '.join(given)})")


def _layout(slots: Iterable[Slot]) -> list[Key]:
    return [(slot.name, what) for slot in slots for what in ("size", "step")]


def _empty(w: Writer, slot: Slot) -> str:
    """Allocated in half the time that it takes through PyTorch's dispatcher."""
    layout = ", ".join(_constant(w, key) for key in _layout([slot]))
    return f"{_constant(w, 'empty')}({layout}, {w.dtype(slot)})"


def recalled_forward(w: Writer) -> None:
    """Of a tuple of the tensors, which is the launch's own but for what is made here, and of the numbers."""
    text, plan = w.text, w.plan
    extends = plan.arrays == (*plan.given_arrays, *plan.fresh) and not any(s.role == "inout" for s in plan.arrays)
    given = text.local("given")
    constants: list[Key] = [*(("empty",) if plan.fresh else ()), *(("where",) if plan.handles else ())]
    constants += _layout(plan.fresh)
    numbers = [slot.name for slot in plan.inputs if not slot.is_array]
    with _function(w, "forward", [given, *numbers], constants):
        checks.check_handles(w, _constant(w, "where"))
        if not extends or plan.mutated:
            text.add(f"{w.targets(plan.given_arrays)} = {given}")
        for slot in plan.fresh:
            text.add(f"{slot.name} = {_empty(w, slot)}")
            if slot.fill is not None:
                text.add(f"{slot.name}.{'zero_()' if slot.init == 'zeros' else f'fill_({number(slot.fill)})'}")
        for slot in plan.given_arrays:
            if slot.role == "inout":
                text.add(f"{slot.name} = {private_copy(w, slot)}")
        if extends:
            _launch(w, f"{given} + {w.tuple_of(plan.fresh)}" if plan.fresh else given)
        else:
            _launch(w, w.tuple_of(plan.arrays))
        if plan.mutated:
            text.add(f"{w.provide('increment_versions', torch_modes.increment_versions)}({w.tuple_of(plan.mutated)})")
        if plan.returned:
            text.add(f"return {', '.join(slot.name for slot in plan.returned)}")


def recalled_forward_into(w: Writer) -> None:
    plan = w.plan
    parameters = [*plan.arguments, *(slot.name for slot in plan.fresh)]
    with _function(w, "forward_into", parameters, ["where"] if plan.handles else []):
        checks.check_handles(w, _constant(w, "where"))
        _launch(w, w.tuple_of(plan.arrays))


def _launch_adjoint(w: Writer) -> None:
    plan = w.plan
    data = [slot.name if slot.is_input or slot.saved else "None" for slot in plan.arrays]
    given = (*plan.cotangents, *plan.gradient_buffers)
    _launch(w, tuple_of([*data, *(grad_name(w, slot) if slot in given else "None" for slot in plan.arrays)]))


def recalled_backward(w: Writer) -> None:
    text, plan = w.text, w.plan
    cotangents = [grad_name(w, slot) for slot in plan.cotangents]
    quick = plan.zeroed_at_once
    places = {slot.name: place for place, slot in enumerate(plan.gradients)}
    constants: list[Key] = [*(("empty", *_layout(plan.gradient_buffers)) if quick else ())]
    with _function(w, "backward", [*backward_arguments(w), *cotangents, "needs"], constants):
        for slot in (*plan.given_arrays, *plan.kept):
            text.add(f"{slot.name} = {slot.name}.contiguous()")
        for slot, grad in zip(plan.cotangents, cotangents, strict=True):
            dense = f"clone(memory_format={w.torch}.contiguous_format)"
            text.add(f"{grad} = {grad}.{'contiguous()' if slot.retained else dense}")
        for slot in plan.gradient_buffers:
            made = _empty(w, slot) if quick else f"{w.torch}.zeros_like({slot.name})"
            needed = f" if needs[{places[slot.name]}] else None" if slot.null_adjoint_safe else ""
            text.add(f"{grad_name(w, slot)} = {made}{needed}")
        if quick:
            zero_gradients(w)
        _launch_adjoint(w)
        grads = [grad_name(w, slot) for slot in plan.gradients]
        if len(grads) == 1:
            text.add(f"return {tuple_of(grads)}")
        else:
            text.add(f"return [grad for grad, need in zip({tuple_of(grads)}, needs) if need]")


def recalled_backward_into(w: Writer) -> None:
    with _function(w, "backward_into", [*backward_arguments(w), *buffers(w)]):
        zero_gradients(w)
        _launch_adjoint(w)
