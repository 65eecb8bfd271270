"""The launches that a program makes: compared with the sizes of what they are given, before they are made."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import warp as wp

from ..arguments.handle import check_handle, object_of
from ..arguments.number import plain_number
from ..effects import Effects, Limit
from ..errors import ArgumentError, GradientError, GradientWarning, wrong_launch
from ..private import warp_types
from ..private.warp_calls import is_struct_instance


def leaves(kernel: Any, arguments: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """The arguments of a launch by their labels; of a struct, its fields."""
    for (name, _), value in zip(warp_types.argument_types(kernel), arguments, strict=True):
        yield from leaves_of(name, value)


def leaves_of(label: str, value: Any) -> Iterator[tuple[str, Any]]:
    """One argument by its label; of a struct, its fields."""
    if not is_struct_instance(value):
        yield label, value
        return
    for name in warp_types.struct_fields(value._cls) or {}:
        yield from leaves_of(f"{label}.{name}", getattr(value, name))


def of_leaves(label: str, warp_type: Any, leaf: Callable[[str, Any], Any]) -> Any:
    """One argument made of its leaves: of a struct, of its fields. Those that are None are left out."""
    fields = warp_types.struct_fields(warp_type)
    if fields is None:
        return leaf(label, warp_type)
    instance = warp_type()
    for name, field_type in fields.items():
        value = of_leaves(f"{label}.{name}", field_type, leaf)
        if value is not None:
            setattr(instance, name, value)
    return instance


def check_launch(op: str, kernel: Any, effects: Effects, values: dict[str, Any], dim: Any) -> tuple[int, ...]:
    """Refuse a launch of another rank than the kernel's, one without an array that it needs, and one that surely leaves
    an array.

    Args:
        op: the program's name, for messages.
        values: what the kernel is given, by label.
        dim: as it was given to ``wp.launch``.

    Returns:
        The launch size.

    Raises:
        ArgumentError: a launch size, an index by a coordinate or a constant index doesn't fit, or an array is None.
    """
    try:
        dims = tuple(operator.index(size) for size in (dim if isinstance(dim, Sequence) else (dim,)))
    except TypeError:
        raise wrong_launch(
            f"{op}: the program launches {kernel.key}: dim: expected an int or a tuple of ints, got {dim!r}"
        ) from None
    title = f"{op}: the program launches {kernel.key} over {dims if len(dims) != 1 else dims[0]}"
    rank = effects.tid_rank
    if rank and not effects.tiled and len(dims) != rank:
        raise wrong_launch(
            f"{title}, which is {len(dims)} size{'s' if len(dims) != 1 else ''}, and it takes {rank} coordinate"
            f"{'s' if rank != 1 else ''} from wp.tid()"
        )
    if math.prod(dims) == 0:
        return dims

    def size_of(limit: Limit) -> int | None:
        bound = limit.base
        if isinstance(bound, int):
            return bound + limit.offset
        value = values.get(bound if isinstance(bound, str) else bound[0])
        if isinstance(bound, str):
            number = _int_of(value)
            return number + limit.offset if number is not None else None
        return int(value.shape[bound[1]]) + limit.offset if isinstance(value, wp.array) else None

    for label, known in effects.arrays.items():
        array = values.get(label)
        if array is None and known.touched and not known.tested:
            raise wrong_launch(
                f"{title}: '{label}': expected an array, got None, and the kernel uses it without asking whether it is "
                f"there (if {label}:)"
            )
        if not isinstance(array, wp.array) or array.ndim != known.ndim:
            continue
        for axis, use in enumerate(known.axes):
            size = int(array.shape[axis])
            for below in use.below:
                bounds = [size_of(bound) for bound in below.bounds]
                if below.doubt or below.coordinate >= len(dims) or None in bounds:
                    continue
                threads = min([dims[below.coordinate], *(bound for bound in bounds if bound is not None)])
                last = (threads - 1) // below.divisor * below.factor + below.offset
                if threads > 0 and last >= size:
                    raise wrong_launch(
                        f"{title}: '{label}' is indexed up to {last} on axis {axis}, and has size {size}"
                    )
            for need in use.needs:
                limits = [size_of(limit) for limit in need.limits]
                if not need.doubt and size < need.size and all(limit is not None and limit > 0 for limit in limits):
                    raise wrong_launch(
                        f"{title}: '{label}' has size {size} on axis {axis}, which is indexed where it takes at least "
                        f"{need.size}"
                    )
            for constant in use.constants:
                if not -size <= constant < size:
                    raise wrong_launch(
                        f"{title}: '{label}' is indexed at {constant} on axis {axis}, and has size {size}"
                    )
    return dims


def check_handles(op: str, kernel: Any, effects: Effects, values: dict[str, Any], device: Any) -> dict[str, Any]:
    """Refuse what the kernel would follow to an object of Warp though it is none.

    Returns:
        The objects behind the ids that are known, by label.

    Raises:
        ArgumentError: an id is that of no object, or of one of another class or device.
    """
    title = f"{op}: the program launches {kernel.key}"
    found = {}
    for label, value in values.items():
        if label in effects.arrays:
            continue
        if label in effects.handles and isinstance(value, (wp.array, torch.Tensor)):
            wanted = " or ".join(sorted(effects.handles[label])) or "object of Warp's"
            raise ArgumentError(f"{title}: '{label}': expected the id of a {wanted}, got a {type(value).__name__}")
        number = _int_of(value)
        if number is None:
            continue
        if label in effects.handles:
            where = torch.device(wp.device_to_torch(wp.get_device(device)))
            check_handle(f"{title}: argument '{label}'", effects.handles[label], number, where)
        known = object_of(number)
        if known is not None:
            found[label] = known
    return found


def check_followed(
    op: str, kernel: Any, effects: Effects, values: dict[str, Any], spans: Sequence[tuple[int, int]]
) -> None:
    """Refuse a launch through which gradients can't be followed: it gets at arrays by their addresses.

    Args:
        spans: the addresses of the arrays that are known.

    Raises:
        GradientError: an argument is an address, or an array holds structs that hold arrays.
    """
    for label, value in values.items():
        number = _int_of(value)
        address = number is not None and any(low <= number < high for low, high in spans)
        if number and effects.opaque and object_of(number) is None:
            address = address or dict(warp_types.argument_types(kernel)).get(label) is wp.uint64
        if address:
            raise GradientError(
                f"{op}: the program gives {kernel.key} an address for '{label}', through which the op can't follow "
                f"gradients; pass a wp.array"
            )
        if isinstance(value, wp.array) and _holds_arrays(value.dtype):
            raise GradientError(
                f"{op}: the program gives {kernel.key} an array of structs that hold arrays for '{label}', through which "
                f"the op can't follow gradients; pass the arrays themselves"
            )


_warned: set[tuple[str, str]] = set()


def warn_once(key: tuple[str, str], message: str) -> None:
    """Warn of gradients, once for an op and what it is about."""
    if key not in _warned:
        _warned.add(key)
        warnings.warn(message, GradientWarning, stacklevel=2)


def _int_of(value: Any) -> int | None:
    if isinstance(value, (wp.array, float, bool)) or value is None:
        return None
    number = plain_number(value)
    return number if isinstance(number, int) else None


def _holds_arrays(dtype: Any) -> bool:
    fields = warp_types.struct_fields(dtype) or {}
    return any(warp_types.is_array(field) or _holds_arrays(field) for field in fields.values())
