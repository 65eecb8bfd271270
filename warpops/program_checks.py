"""The launches that a program makes: compared with the sizes of what they are given, before they are made."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
import warp as wp

from .effects import Effects
from .errors import ArgumentError


def check_launch(
    op: str, kernel: Any, effects: Effects, names: list[str], arguments: tuple[Any, ...], dim: Any
) -> None:
    """Refuse a launch of another rank than the kernel's, and one that surely leaves an array.

    Args:
        op: the program's name, for messages.
        names: of the kernel's arguments.
        arguments: in their order.
        dim: as it was given to ``wp.launch``.

    Raises:
        ArgumentError: a launch size, an index by a coordinate or a constant index doesn't fit.
    """
    try:
        dims = tuple(operator.index(size) for size in (dim if isinstance(dim, Sequence) else (dim,)))
    except TypeError:
        raise ArgumentError(
            f"{op}: the program launches {kernel.key}: dim: expected an int or a tuple of ints, got {dim!r}"
        ) from None
    title = f"{op}: the program launches {kernel.key} over {dims if len(dims) != 1 else dims[0]}"
    rank = effects.tid_rank
    if rank and not effects.tiled and len(dims) != rank:
        raise ArgumentError(
            f"{title}, which is {len(dims)} size{'s' if len(dims) != 1 else ''}, and it takes {rank} coordinate"
            f"{'s' if rank != 1 else ''} from wp.tid()"
        )
    if math.prod(dims) == 0:
        return
    values = dict(zip(names, arguments, strict=True))

    for label, kinds in effects.handles.items():
        value = _at(values, label)
        if isinstance(value, (wp.array, torch.Tensor)):
            wanted = " or ".join(sorted(kinds)) or "object of Warp's"
            raise ArgumentError(f"{title}: '{label}': expected the id of a {wanted}, got a {type(value).__name__}")

    def size_of(bound: str | tuple[str, int] | int) -> int | None:
        if isinstance(bound, int):
            return bound
        value = _at(values, bound if isinstance(bound, str) else bound[0])
        if isinstance(bound, str):
            return int(value) if isinstance(value, int) or hasattr(value, "__index__") else None
        return int(value.shape[bound[1]]) if isinstance(value, wp.array) else None

    for label, known in effects.arrays.items():
        array = _at(values, label)
        if not isinstance(array, wp.array) or array.ndim != known.ndim:
            continue
        for axis, use in enumerate(known.axes):
            size = int(array.shape[axis])
            for below in use.below:
                bounds = [size_of(bound) for bound in below.bounds]
                if below.doubt or below.coordinate >= len(dims) or None in bounds:
                    continue
                threads = min([dims[below.coordinate], *(bound for bound in bounds if bound is not None)])
                if threads > 0 and threads + below.offset > size:
                    raise ArgumentError(
                        f"{title}: '{label}' is indexed up to {threads + below.offset - 1} on axis {axis}, and has size {size}"
                    )
            for constant in use.constants:
                if not -size <= constant < size:
                    raise ArgumentError(
                        f"{title}: '{label}' is indexed at {constant} on axis {axis}, and has size {size}"
                    )


def _at(values: dict[str, Any], label: str) -> Any:
    path = label.split(".")
    value = values.get(path[0])
    for part in path[1:]:
        value = getattr(value, part, None)
    return value
