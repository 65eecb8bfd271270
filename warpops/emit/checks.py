"""The pieces that every launch is written from: comparisons, sizes, devices, descriptors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from ..arguments import overlap
from ..arguments.call import bind_sizes, device_of, fresh_shape, launch_size, refuse_outdated
from ..arguments.handle import check_handle
from ..arguments.kinds import check_slot
from ..arguments.number import converted
from ..effects import Limit
from ..launch import devices
from ..launch.packing import dense_strides
from ..plan.model import OpPlan, Slot
from ..plan.sizes import Expr, integer
from ..plan.solving import Solved
from ..private import torch_guards
from .text import targets, tuple_of
from .writer import Shapes, Writer

TORCH: Any = torch
"""What generated launches allocate with; the tests put an allocator here whose empty arrays are full of NaN."""

EMPTY_CPU: Any = torch_guards.empty_strided_cpu
"""What remembered launches on the CPU allocate with."""


def allocator(device: torch.device) -> Callable[..., torch.Tensor]:
    """``empty_strided(size, stride, dtype)`` on a device, past PyTorch's dispatcher."""
    made: Callable[..., torch.Tensor] = EMPTY_CPU if device.type == "cpu" else devices.allocator(device)
    return made


def wrong_inputs(w: Writer) -> Iterator[str]:
    """Name the shape of every given array; the conditions under which its type or rank isn't what is expected."""
    for slot in w.plan.given_arrays:
        leaf, shape = slot.leaf, w.local(slot, "shape")
        assert leaf.scalar is not None and leaf.component is not None
        dtypes = [f"{w.torch}.{str(d).removeprefix('torch.')}" for d in leaf.scalar.dtypes]
        wrong = [
            f"{slot.name}.dtype is not {dtypes[0]}"
            if len(dtypes) == 1
            else f"{slot.name}.dtype not in ({', '.join(dtypes)})",
            f"len({shape}) != {leaf.ndim + len(leaf.component)}",
        ]
        wrong += [f"{shape}[{leaf.ndim + k}] != {size}" for k, size in enumerate(leaf.component)]
        absent = f"{_no_sizes(slot)} if {slot.name} is None else " if slot.optional else ""
        w.text.add(f"{shape} = {absent}{slot.name}.shape")
        yield f"{slot.name} is not None and ({' or '.join(wrong)})" if slot.optional else " or ".join(wrong)


def describe(w: Writer, slots: Iterable[Slot]) -> None:
    """Name the shapes of arrays; for a kernel's launch their strides too, of copies where component axes aren't dense."""
    for slot in slots:
        shape, stride = w.local(slot, "shape"), w.local(slot, "stride")
        if not w.step.dense:
            absent = f"{_no_sizes(slot)} if {slot.name} is None else " if slot.optional else ""
            w.text.let(shape, f"{absent}{slot.name}.shape")
            continue
        loose = loosely(slot) if slot.is_input else ""
        if loose and slot.role == "mutated":
            w.text.let(w.local(slot, "given"), slot.name)
        if slot.optional:
            w.text.add(f"if {slot.name} is None:")
            w.text.add(f"    {shape} = {stride} = {_no_sizes(slot)}")
        with w.text.indented("else:" if slot.optional else ""):
            if loose:
                w.text.add(f"if {loose}:")
                w.text.add(f"    {slot.name} = {slot.name}.contiguous()")
            steps = f"{slot.name}.stride()"
            if slot.nullable:  # the rows of what is null are, too
                steps += f" if {slot.name}.numel() else {_no_sizes(slot)}"
            w.text.add(f"{shape}, {stride} = {slot.name}.shape, {steps}")


def _no_sizes(slot: Slot) -> str:
    """What stands for the shape and the strides of an array that isn't given."""
    return tuple_of(["0"] * (slot.leaf.ndim + len(slot.leaf.component or ())))


def loosely(slot: Slot) -> str:
    """The condition under which the component axes are not dense; empty where they always are."""
    component, rank = slot.leaf.component or (), slot.leaf.ndim
    steps = zip(component, dense_strides(component), strict=True)
    return " or ".join(f"{slot.name}.stride({rank + k}) != {step}" for k, (n, step) in enumerate(steps) if n != 1)


def give_back(w: Writer) -> None:
    """What was changed in a dense copy goes back to the array that was given."""
    for slot in w.plan.mutated:
        if loosely(slot):
            given = w.local(slot, "given")
            there = f"{slot.name} is not None and " if slot.optional else ""
            w.text.add(f"if {there}{given} is not {slot.name}:")
            w.text.add(f"    {given}.copy_({slot.name})")


def find_device(w: Writer) -> tuple[str, list[str]]:
    """The text of where the arrays are, and the conditions under which one is elsewhere."""
    required = [slot for slot in w.plan.given_arrays if not slot.optional]
    if not required:
        device = w.text.local("where")
        w.text.add(f"{device} = {w.ask('device_of', device_of, device=True)}")
        return device, []
    device = f"{required[0].name}.device"
    if len(w.plan.given_arrays) == 1:
        return device, []
    named = w.text.local("where")
    w.text.add(f"{named} = {device}")
    others = [slot for slot in w.plan.given_arrays if slot is not required[0]]
    return named, [
        (f"{slot.name} is not None and " if slot.optional else "") + f"{slot.name}.device != {named}" for slot in others
    ]


def check_handles(w: Writer, device: str) -> None:
    """Compare Warp's objects with what the kernel takes them for, and their devices with the tensors'."""
    for slot in map(w.plan.slot, w.plan.handles):
        check = w.provide(f"check_{slot.name}", partial(check_handle, f"{w.op}: argument '{slot.label}'", slot.objects))
        w.text.add(f"{check}({slot.name}, {device})")


def check_mutated(w: Writer) -> None:
    if w.plan.mutated:
        w.text.add(w.ask("check_mutated", overlap.check_mutated))


def check_memories(w: Writer) -> None:
    """A remembered launch sees a null pointer itself."""
    arrays = ", ".join(slot.name for slot in w.plan.given_arrays)
    w.text.add(f"if {w.provide('doubtful', overlap.doubtful)}({arrays}):")
    w.text.add(f"    {w.ask('check_memories', overlap.check_memories)}")


def separate(w: Writer) -> None:
    """In compiled code: read from private copies of what shares memory with a mutated array."""
    if w.plan.mutated:
        w.text.add(f"{w.targets(w.plan.given_arrays)} = {w.ask('separate', overlap.separate)}")


def measured(w: Writer) -> list[str]:
    """What ``measure`` returns: where the arrays are, and the sizes that launches need."""
    needed = {name for expr in w.plan.computed for name in expr.names()}
    return [w.text.local("where"), *(w.text.size(name) for name in w.plan.found_sizes if name in needed)]


def write_measure(w: Writer) -> None:
    """What every launch starts with: compare, find the device, bind sizes."""
    with w.text.function(w.function("measure"), w.plan.arguments):
        w.text.add('"""Compare what is given with what the launch takes; the device, and the sizes that follow."""')
        if w.plan.given_arrays:
            check_memories(w)
        wrong = list(wrong_inputs(w))
        device, elsewhere = find_device(w)
        w.refuse_if([*wrong, *elsewhere])
        _bind_sizes(w)
        w.refuse_if(divisions(w, (*w.plan.computed, *w.plan.demanded)))
        w.text.add(f"return {', '.join([device, *measured(w)[1:]])}")


def measure(w: Writer) -> str:
    """Call ``measure``; the text of the device."""
    w.text.unpack(measured(w), f"{w.function('measure')}({', '.join(w.plan.arguments)})")
    return w.text.local("where")


def _bind_sizes(w: Writer) -> None:
    """Bind the sizes that follow from the arrays, compare the rest."""
    plan, text, sizes = w.plan, w.text, w.sizes
    if plan.sizes_follow is None:
        text.unpack([sizes[name] for name in plan.found_sizes], w.ask("bind_sizes", _found_sizes))
        return
    for solved in plan.sizes_follow:
        size = f"{w.local(plan.slot(solved.of.array), 'shape')}[{solved.of.axis}]"
        if solved.bare:
            text.let(sizes[solved.name], size)
        else:
            _solve(w, solved, size)
    bound = {(solved.of.array, solved.of.axis) for solved in plan.sizes_follow if solved.factor == integer(1)}
    axes = [
        (slot, axis, dim)
        for slot in plan.given_arrays
        for axis, dim in enumerate(slot.dims or ())
        if dim is not None and (slot.name, axis) not in bound
    ]
    w.refuse_if(divisions(w, (dim for _, _, dim in axes)))
    wrong = [(slot, f"{w.local(slot, 'shape')}[{axis}] != {dim.text(sizes)}") for slot, axis, dim in axes]
    w.refuse_if(f"{slot.name} is not None and {text}" if slot.optional else text for slot, text in wrong)


def _found_sizes(op: str, plan: OpPlan, values: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(map(bind_sizes(op, plan, values).get, plan.found_sizes))


def _solve(w: Writer, solved: Solved, size: str) -> None:
    """A size from ``factor * name + offset``; that nothing remains is compared with the other axes."""
    factor, offset, own = solved.factor, solved.offset, w.sizes[solved.name]
    zero = [] if factor.is_int and factor.value != 0 else [f"{factor.text(w.sizes)} == 0"]
    w.refuse_if([*divisions(w, (factor, offset)), *zero])
    if offset != integer(0):
        size = f"{size} - {offset.text(w.sizes, 2)}"
    if factor != integer(1):
        size = f"({size}) // {factor.text(w.sizes, 3)}"
    w.text.add(f"{own} = {size}")
    w.refuse_if([f"{own} < 0"])


def divisions(w: Writer, exprs: Iterable[Expr]) -> list[str]:
    """Divisors that must not be zero."""
    divided = (part.items[1] for expr in exprs for part in expr.parts() if part.head in ("//", "%"))
    unsure = (by for by in divided if not by.is_int or by.value == 0)
    return list(dict.fromkeys(f"{by.text(w.sizes, 3)} == 0" for by in unsure))


def shapes_of(w: Writer, slots: Iterable[Slot]) -> Shapes:
    """The Warp shape of each fresh array as text, one expression per axis."""
    shapes: Shapes = {}
    asked: dict[tuple[int, int], list[str]] = {}  # a callable once, for a result and its tangent
    for slot in slots:
        assert slot.shape is not None
        if callable(slot.shape):
            key = id(slot.shape), slot.leaf.ndim
            if key in asked:
                shapes[slot.name] = asked[key]
                continue
            shapes[slot.name] = asked[key] = [w.local(slot, str(axis)) for axis in range(slot.leaf.ndim)]
            w.text.add(f"{targets(shapes[slot.name])} = {w.ask(f'shape_of_{slot.name}', fresh_shape, slot, {})}")
        else:
            shapes[slot.name] = _computed(w, slot.shape)
    return shapes


def check_computed(w: Writer) -> None:
    """A callable may give another shape than when code was compiled, if it reads more than its arguments."""
    for slot in w.plan.fresh:
        if callable(slot.shape):
            check_computed_as(w, slot, slot.name, slot.optional, shapes_of(w, [slot])[slot.name])


def check_computed_as(w: Writer, slot: Slot, buffer: str, optional: bool, sizes: Sequence[str]) -> None:
    """What stands for a fresh array, or is its gradient, has the shape that the callable gives."""
    there = f"{buffer} is not None and " if optional else ""
    w.text.add(f"if {there}{buffer}.shape[: {slot.leaf.ndim}] != {tuple_of(sizes)}:")
    refuse = w.provide(f"outdated_{slot.name}", partial(refuse_outdated, w.op, slot))
    w.text.add(f"    {refuse}({buffer}, {tuple_of(sizes)})")


def write_launch_size(w: Writer) -> str:
    launch = w.plan.extents.launch
    if not callable(launch):
        return tuple_of(_computed(w, launch))
    dims = w.text.local("dim")
    w.text.add(f"{dims} = {w.ask('launch_size', launch_size, {})}")
    return dims


def _computed(w: Writer, sizes: Sequence[Expr]) -> list[str]:
    """The text of sizes, once none is negative."""
    texts = [expr.text(w.sizes) for expr in sizes]
    w.refuse_if(f"{text} < 0" for expr, text in zip(sizes, texts, strict=True) if not _nonnegative(w, expr))
    return texts


def _nonnegative(w: Writer, expr: Expr) -> bool:
    """A size taken from an array, or a sum or product of such, can't be negative."""
    if expr.is_int:
        return int(expr.value) >= 0
    if expr.is_name:
        return all(slot.label != expr.value for slot in w.plan.ints)
    return expr.head in ("+", "*", "min", "max") and all(_nonnegative(w, item) for item in expr.items)


def check_reach(w: Writer, dims: str, device: str, shapes: Shapes) -> None:
    """No launch indexes an array outside its size, which has a name or is among ``shapes``."""
    plan, sizes = w.plan, w.sizes
    launch = plan.extents.launch

    def length(name: str, axis: int) -> str:
        return (shapes.get(name) or w.given_sizes(plan.slot(name)))[axis]

    def number(limit: Limit) -> str:
        if isinstance(limit.base, int):
            return str(limit.base + limit.offset)
        text = length(*limit.base) if isinstance(limit.base, tuple) else sizes[limit.base]
        return text + (f" {'+' if limit.offset > 0 else '-'} {abs(limit.offset)}" if limit.offset else "")

    def there(slot: Slot) -> str:
        if slot.optional:
            return f"{slot.name} is not None"
        return (
            " and ".join(f"{length(slot.name, axis)} != 0" for axis in range(slot.leaf.ndim)) if slot.nullable else ""
        )

    def guard(name: str, text: str) -> str:
        condition = there(plan.slot(name))
        return f"{condition} and {text}" if condition else text

    wrong = []
    for slot in plan.arrays:
        for flags in slot.unasked:
            if not sizes.keys() >= flags:
                continue  # a float's value isn't looked at
            asked = [f"{sizes[flag]} != 0" for flag in sorted(flags)]
            absent = [f"not ({there(slot)})" if slot.nullable else f"{slot.name} is None"]
            wrong.append(" and ".join([*absent, *asked]))
    for cover in plan.extents.covers:
        c = cover.coordinate
        block = f'(1 if {device}.type == "cpu" else {plan.block})'
        if callable(launch):
            threads = f"{dims}[{c}]"
            if plan.declaration.tiled:
                threads = f"({threads} if len({dims}) > {c} else {block})"
        else:
            threads = launch[c].text(sizes) if c < len(launch) else block
        limits = [threads, *map(number, cover.bounds)]
        if len(limits) > 1:
            threads = f"min({', '.join(limits)})"
        more = f" {'+' if cover.offset > 0 else '-'} {abs(cover.offset)}" if cover.offset else ""
        size = length(cover.array, cover.axis)
        if cover.factor * cover.divisor != 1:
            last = f"({threads} - 1) // {cover.divisor}" if cover.divisor > 1 else f"({threads} - 1)"
            last += f" * {cover.factor}" if cover.factor > 1 else ""
            wrong.append(guard(cover.array, f"{last}{more} >= {size} and {threads} > 0"))
            continue
        wrong.append(guard(cover.array, f"{threads}{more} > {size}"))
    for reach in plan.extents.reaches:
        text = f"{length(reach.array, reach.axis)} < {number(reach.needed)}"
        text += "".join(f" and {number(limit)} > 0" for limit in reach.limits)
        source = reach.needed.base
        wrong.append(guard(reach.array, guard(source[0], text) if isinstance(source, tuple) else text))
    w.refuse_if(wrong)


def prepare_numbers(w: Writer) -> None:
    """Numbers out of the tensors that they come in."""
    for slot in w.plan.inputs:
        if slot.role == "tensor_scalar":
            read = w.provide("read_scalar", partial(_read_scalar, w.op, w.plan))
            w.text.add(f"{slot.name} = {read}({slot.name!r}, {slot.name})")


def _read_scalar(op: str, plan: OpPlan, name: str, value: torch.Tensor) -> int | float:
    slot = plan.slot(name)
    check_slot(op, slot, value)
    number: int | float = converted(op, slot, slot.leaf.scalar, value.item())
    return number
