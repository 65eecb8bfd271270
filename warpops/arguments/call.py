"""A call's arguments together: devices, sizes, shapes, the launch size, and that no index leaves an array.

Generated code compares the expected case inline and comes here when a comparison fails; fake kernels and traced code
come here always, where sizes may be symbolic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from ..effects import Limit
from ..errors import ArgumentError
from ..frozen import frozen
from ..plan.bounds import Cover, Reach
from ..plan.model import OpPlan, Slot
from ..plan.sizes import Expr, SizeError
from ..plan.solving import Solved
from .callbacks import call_back, called_dims
from .kind import demand, fail, require
from .kinds import check_slot
from .overlap import check_mutated
from .size import value_of


@frozen
class Measure:
    """The sizes of one call: Warp shapes of everything fresh, the launch size, and where it runs."""

    shapes: dict[str, tuple[Any, ...]]
    launch: tuple[Any, ...]
    device: torch.device


def measure(op: str, plan: OpPlan, values: Mapping[str, Any], device: Any = None) -> Measure:
    """Check every argument of a call and compute its sizes.

    Args:
        op: the op's name, for messages.
        plan: the op's plan, concrete in every type.
        values: tensors and numbers by schema name.
        device: what was given for ``device``, for an op without a required array.

    Raises:
        ArgumentError: an argument doesn't fit.
    """
    for slot in plan.inputs:
        check_slot(op, slot, values[slot.name])
    where = device_of(op, plan, values, device)
    check_mutated(op, plan, values)
    sizes = bind_sizes(op, plan, values)
    shapes: dict[str, tuple[Any, ...]] = {}
    for slot in plan.fresh:
        shapes[slot.name] = fresh_shape(op, plan, slot, sizes, values)
    launch = launch_size(op, plan, sizes, values)
    warp_shapes = dict(shapes)
    for slot in plan.arrays:
        value = values.get(slot.name)
        if slot.is_input and value is not None:
            warp_shapes[slot.name] = tuple(value.shape[: slot.leaf.ndim])
    _check_reach(op, plan, warp_shapes, launch, sizes, where)
    return Measure(shapes, launch, where)


def to_device(op: str, value: Any) -> torch.device:
    """What ``torch.device`` makes of an argument ``device``."""
    try:
        return torch.device(value)
    except (RuntimeError, TypeError):
        raise ArgumentError(f"{op}: argument 'device': expected cpu or cuda, got {value!r}") from None


def existing(op: str, device: torch.device) -> torch.device:
    """A device, if there is one of its number: an argument ``device``, or PyTorch's default."""
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        there = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
        raise ArgumentError(
            f"{op}: argument 'device': expected a device that there is ({', '.join(there)}), got {device}"
        )
    return device


def device_of(op: str, plan: OpPlan, values: Mapping[str, Any], given: Any) -> torch.device:
    first: tuple[Slot, torch.device] | None = None
    for slot in plan.inputs:
        value = values[slot.name]
        if not slot.is_array or value is None:
            continue
        if first is None:
            first = (slot, value.device)
            if value.device.type not in ("cpu", "cuda", "meta"):
                fail(op, slot, f"expected a tensor on cpu or cuda, got one on {value.device}; Warp runs on these only")
        elif value.device != first[1]:
            fail(op, slot, f"expected device {first[1]}, that of '{first[0].label}', got {value.device}")
    if given is not None:
        wanted = torch.device(given)
        if first is not None and first[1] != wanted and (wanted.index is not None or wanted.type != first[1].type):
            raise ArgumentError(
                f"{op}: argument 'device': expected {first[1]}, that of '{first[0].label}', got {wanted}"
            )
        if wanted.type not in ("cpu", "cuda", "meta"):
            raise ArgumentError(f"{op}: argument 'device': expected cpu or cuda, got {wanted}")
        if first is None:
            return existing(op, wanted)
    return first[1] if first is not None else existing(op, torch.get_default_device())


def bind_sizes(op: str, plan: OpPlan, values: Mapping[str, Any]) -> dict[str, Any]:
    """Bind the sizes that follow from the arrays, then compare everything else."""
    sizes: dict[str, Any] = {slot.label: _number(values[slot.name]) for slot in plan.ints}
    given = [slot for slot in plan.given_arrays if values[slot.name] is not None]
    solved = plan.solved({slot.name for slot in given})
    for one in solved:
        sizes[one.name] = _solve(op, plan.slot(one.of.array), one, values, sizes)
    binder = {one.name: f", bound by '{plan.slot(one.of.array).label}'" for one in solved}
    settled = {(one.of.array, one.of.axis) for one in solved}
    for slot in given:
        for axis, dim in enumerate(slot.dims or ()):
            if dim is None or (slot.name, axis) in settled:
                continue
            wanted = _evaluate(op, f"the size '{dim}' of '{slot.label}'", dim, sizes)
            shape = values[slot.name].shape
            if shape[axis] is not wanted:
                said = "" if dim.is_int else f" ('{dim}'{binder.get(str(dim), '')})"
                text = f"expected size {{}} on axis {axis}{said}, got {{}}: shape {{}}"
                demand(op, slot, shape[axis] == wanted, text, wanted, shape[axis], shape)
    return sizes


def _number(value: Any) -> Any:
    """An int or bool argument, symbolic or not, as a size."""
    return int(value) if isinstance(value, bool) else value


def _solve(op: str, slot: Slot, solved: Solved, values: Mapping[str, Any], sizes: Mapping[str, Any]) -> Any:
    """The size that an axis says.

    Raises:
        ArgumentError: its factor is 0, something remains, or it would be negative.
    """
    axis, dim, name = solved.of.axis, solved.of.size, solved.name
    got = values[slot.name].shape[axis]
    if solved.bare:
        return got
    title = f"the size '{dim}' of '{slot.label}'"
    factor = _evaluate(op, title, solved.factor, sizes)
    rest = got - _evaluate(op, title, solved.offset, sizes)

    def check(condition: Any, why: str, *shown: Any) -> None:
        text = f"its axis {axis} has size {{}}, and is declared '{dim}': {why}; shape {{}}"
        demand(op, slot, condition, text, got, *shown, values[slot.name].shape)

    check(factor != 0, f"'{solved.factor}', by which '{name}' is multiplied, is 0")
    if not isinstance(factor, int) or factor != 1:
        check(rest % factor == 0, f"no whole '{name}' gives that")
        rest = rest // factor
    check(rest >= 0, f"'{name}' would be {{}}", rest)
    return rest


def _evaluate(op: str, what: str, expr: Expr, sizes: Mapping[str, Any]) -> Any:
    try:
        return value_of(expr, sizes)
    except SizeError as error:
        raise ArgumentError(f"{op}: {what}: {error}") from None


def _nonnegative(op: str, what: str, sizes: tuple[Any, ...], texts: Sequence[str] = ()) -> None:
    for axis, size in enumerate(sizes):
        origin = f" ('{texts[axis]}')" if texts else ""
        require(size >= 0, lambda size=size, origin=origin: f"{op}: {what}: the size {size}{origin} is negative")  # type: ignore[misc]


def fresh_shape(
    op: str, plan: OpPlan, slot: Slot, sizes: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[Any, ...]:
    what = f"the shape of '{slot.label}'"
    shape = slot.shape
    assert shape is not None
    if callable(shape):
        result = called_dims(op, what, call_back(op, what, plan, shape, values), slot.leaf.ndim)
        _nonnegative(op, what, result)
        return result
    result = tuple(_evaluate(op, what, expr, sizes) for expr in shape)
    _nonnegative(op, what, result, [str(e) for e in shape])
    return result


def refuse_outdated(op: str, slot: Slot, buffer: torch.Tensor, shape: tuple[int, ...]) -> NoReturn:
    """Say that the callable for a shape gives another one than compiled code has, or than the forward had."""
    raise ArgumentError(
        f"{op}: the shape of '{slot.label}': its callable gives {shape}, and the array was made with "
        f"{tuple(buffer.shape[: slot.leaf.ndim])}; what it reads besides its arguments may not change"
    )


def launch_size(op: str, plan: OpPlan, sizes: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[Any, ...]:
    launch = plan.extents.launch
    rank = plan.extents.rank
    if callable(launch):
        result = called_dims(op, "dim", call_back(op, "dim", plan, launch, values), None)
        check_rank(op, plan, len(result), rank)
        _nonnegative(op, "dim", result)
    else:
        result = tuple(_evaluate(op, "dim", expr, sizes) for expr in launch)
        _nonnegative(op, "dim", result, [str(e) for e in launch])
    for axis, size in enumerate(result):
        if isinstance(size, int) and size > 2**31 - 1:
            raise ArgumentError(f"{op}: dim: {size} threads on axis {axis} are more than wp.tid() counts ({2**31 - 1})")
    return result


def check_rank(op: str, plan: OpPlan, given: int, rank: int | None) -> None:
    """The rank of a launch is part of the kernel's meaning: too few leaves elements out, too many repeats them."""
    if rank is None:
        return
    allowed = (rank, rank - 1) if plan.declaration.tiled else (rank,)
    if given not in allowed and not (rank == 0 and given == 1):
        raise ArgumentError(
            f"{op}: dim: the kernel {plan.kernel.name} takes {rank} coordinate{'s' if rank != 1 else ''} from wp.tid(), "
            f"and dim has {given}"
        )


def _unless_null(
    op: str, plan: OpPlan, shapes: Mapping[str, tuple[Any, ...]], sizes: Mapping[str, Any]
) -> dict[str, tuple[Any, ...]]:
    """The shapes of what surely isn't null, or may not be for all that symbols tell.

    Raises:
        ArgumentError: an array is null, and the kernel doesn't ask whether it is.
    """
    found = dict(shapes)
    for slot in plan.arrays:
        shape = shapes.get(slot.name)
        if shape is not None and not (slot.nullable and any(isinstance(n, int) and n == 0 for n in shape)):
            continue
        found.pop(slot.name, None)
        for flags in slot.unasked:
            numbers = [sizes.get(flag) for flag in flags]
            if all(isinstance(number, int) for number in numbers) and all(numbers):
                got = "None" if shape is None else f"the shape {tuple(shape)}, for which it is null"
                given = f" where {' and '.join(map(repr, sorted(flags)))} isn't 0" if flags else ""
                fail(
                    op,
                    slot,
                    f"expected a tensor ({slot.leaf.type_name}), got {got}, and the kernel uses it{given} without asking "
                    f"whether it is there (if {slot.label}:)",
                )
    return found


def _check_reach(
    op: str,
    plan: OpPlan,
    shapes: Mapping[str, tuple[Any, ...]],
    launch: tuple[Any, ...],
    sizes: Mapping[str, Any],
    device: torch.device,
) -> None:
    if any(isinstance(size, int) and size == 0 for size in launch):
        return
    empty = [size == 0 for size in launch if not isinstance(size, int)]
    shapes = _unless_null(op, plan, shapes, sizes)

    def check(place: Cover | Reach, condition: Any, why: str, *shown: Any) -> None:
        """Nothing is launched over an empty dim, and a null array isn't indexed, which symbols can't tell."""
        slot, shape = plan.slot(place.array), shapes[place.array]
        null = [n == 0 for n in shape if not isinstance(n, int)] if slot.nullable else []
        for nothing in (*empty, *null) if condition is not True else ():
            condition = nothing if condition is False else condition | nothing
        demand(op, slot, condition, f"its axis {place.axis} has size {{}}, and {why}", shape[place.axis], *shown)

    def number(limit: Limit) -> Any:
        if isinstance(limit.base, tuple):
            name, axis = limit.base
            return shapes[name][axis] + limit.offset if name in shapes else 0
        return (sizes[limit.base] if isinstance(limit.base, str) else limit.base) + limit.offset

    for cover in plan.extents.covers:
        if cover.array not in shapes:
            continue
        size = shapes[cover.array][cover.axis]
        if cover.coordinate < len(launch):
            threads = launch[cover.coordinate]
        else:
            threads = 1 if device.type in ("cpu", "meta") else plan.block
        for bound in cover.bounds:
            threads = torch.sym_min(threads, number(bound))
        enough = size is threads and cover.offset <= 0 and cover.factor <= cover.divisor
        if enough or (isinstance(threads, int) and threads <= 0):
            continue
        last = (threads - 1) // cover.divisor * cover.factor if cover.factor * cover.divisor != 1 else threads - 1
        why = f"the launch has {{}} threads on axis {cover.coordinate} of dim, which indexes it{cover.text}"
        check(cover, last + cover.offset < size, why, threads)
    for reach in plan.extents.reaches:
        if reach.array not in shapes:
            continue
        size, needed = shapes[reach.array][reach.axis], number(reach.needed)
        limits = [number(limit) for limit in reach.limits]
        if not reach.sure and not all(isinstance(number, int) for number in (size, *limits)):
            continue  # whether a thread gets there, the launch itself sees
        if not any(number <= 0 for number in limits):
            check(reach, size >= needed, f"the kernel indexes it {reach.how}", needed)
