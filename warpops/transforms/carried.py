"""Hidden ops in compiled code: one operator that runs the raw forward or backward of any of them.

A graph may be read from PyTorch's cache on disk by a process that never traced it, and so never made the tangent ops that it
calls. This operator is there as soon as any op is. It names the op that they come from, its contract included, and the
way from it to the hidden one, which is made where it runs.
"""

from __future__ import annotations

from typing import Any

import torch

from ..calls.packaged import pack_coded, unpack_coded
from ..calls.traced import fake_backward, fake_forward
from ..calls.ways import Ways, by_key, many
from ..errors import ArgumentError
from ..private.helper_op import HelperOp
from .batched import element

BATCHED = "v:"
"""A step from an op to a hidden one begins so where it is the op over a batch; the arrays with a batch axis follow."""


def carry(transforms: Any, what: str, values: tuple[Any, ...]) -> list[torch.Tensor]:
    """Call a hidden op through ``warpops::_carried``."""
    kinds, levels = "".join(map(_code, values)), "|".join(transforms.levels)
    found: list[torch.Tensor] = carrier(f"{transforms.root.key} {what} {levels} {kinds}", *pack_coded(kinds, values))
    return found


def _code(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{''.join(map(_code, value))}]"
    if value is None or isinstance(value, torch.Tensor):
        return "t"
    return "f" if isinstance(value, (float, torch.SymFloat)) else "b" if isinstance(value, bool) else "i"


def _find(op: str, tensors: list[Any], ints: list[Any], floats: list[Any]) -> tuple[Any, str, tuple[Any, ...]]:
    """The hidden op, what of it is called, and the values."""
    key, what, levels, kinds = op.split(" ")
    ways = by_key.get(key)
    if ways is None:
        raise ArgumentError(
            f"{key.partition('.')[0]}: a compiled graph calls a derivative of this op, and the op as it is now has another "
            f"contract than {key}, or isn't there; import the module that makes it, or compile the graph again"
        )
    values = unpack_coded(kinds, tensors, ints, floats)
    return along(ways, levels.split("|"), values), what, values


def along(ways: Ways, path: list[str], values: tuple[Any, ...]) -> Any:
    """The hidden op at the end of the path from an op to it, whose values are given."""
    found: Any = ways.transforms()
    for depth, level in enumerate(path):
        found = found.at(level, _values_at(found, path[depth:], values))
    return found


def _values_at(transforms: Any, path: list[str], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an op, as far as types and ranks go, among those of one that is further along the path."""
    inputs = transforms.plan.inputs
    names = transforms.plan.arguments
    found = dict(zip(names, values, strict=False))
    for level in path:
        for name in level.removeprefix(BATCHED).split(",") if level.startswith(BATCHED) else ():
            if isinstance(found.get(name), torch.Tensor):
                found[name] = element(found[name])
    sizes = [slot.name for slot in inputs if slot.role == "size"]
    return tuple(2 if name in sizes else found[name] for name in names)


def _run(op: str, tensors: list[Any], ints: list[Any], floats: list[Any]) -> list[torch.Tensor]:
    transforms, what, values = _find(op, tensors, ints, floats)
    ops = transforms.ways.ops
    return list(many(ops.forward(*values)) if what == "forward" else ops.backward(*values))


def _fake(op: str, tensors: list[Any], ints: list[Any], floats: list[Any]) -> list[torch.Tensor]:
    transforms, what, values = _find(op, tensors, ints, floats)
    ways = transforms.ways
    return list(many(fake_forward(ways, *values)) if what == "forward" else fake_backward(ways, *values))


carrier = HelperOp(
    "_carried(str op, Tensor?[] tensors, SymInt[] ints, float[] floats) -> Tensor[]",
    _run,
    _fake,
    torch.library.fallthrough_kernel,
)
"""Its ``op`` is the first op's key, ``forward`` or ``backward``, the levels, and the values' kinds."""
