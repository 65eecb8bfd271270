"""vmap in exported programs: one operator that stands for the op of any batched kernel.

The op of a batched kernel is made when vmap meets it, so a process that only loads a program hasn't got it. This operator
is there as soon as any op is. It names the op that is mapped, its schema included, and the arrays that have the batch
axis at each level of vmap, and makes the rest where it runs. Programs are saved with it: it keeps its schema and the form
of ``op`` from one version of warpops to the next.
"""

from __future__ import annotations

from typing import Any

import torch

from ..calls.packaged import look_up, pack, unpack
from ..calls.traced import check_exported, fake_public
from ..calls.ways import many
from ..errors import ArgumentError
from ..private import torch_modes
from ..private.helper_op import HelperOp


def record(transforms: Any, values: tuple[Any, ...]) -> Any:
    """Call a batched op through ``warpops::_mapped``; ``transforms`` and ``values`` are the batched op's."""
    root = transforms
    levels: list[str] = []
    while root.origin is not None:
        levels.insert(0, ",".join(sorted(root.batched_names)))
        root = root.origin
    packed = pack(root.plan, values)
    if packed is None:
        return transforms.ways.call_public(values)
    check_exported(root.ways)
    results = mapped_op(f"{root.ways.name} {'|'.join(levels)} {root.ways.schema}", *packed)
    return tuple(results) if len(transforms.plan.results) != 1 else results[0]


def _find(op: str, tensors: list[Any], ints: list[Any], floats: list[Any]) -> tuple[Any, tuple[Any, ...]]:
    """The batched op and its values."""
    from .batched import element

    name, levels, schema = op.split(" ", 2)
    ways = look_up(name, schema)
    root: Any = ways.transforms()
    values = unpack(root.plan, tensors, ints, floats)
    names = [set(level.split(",")) for level in levels.split("|")]
    single = []
    for slot, value in zip(root.plan.inputs, values, strict=False):
        for level in names:
            if slot.name in level:
                value = element(value)
        single.append(value)
    given: tuple[Any, ...] = (*single, *values[len(single) :])
    found = root
    for level in names:
        batched = found.batched(given, [None] * len(given), level)
        if batched is None:
            raise ArgumentError(
                f"{name}: a program was exported with vmap as one launch, which the kernel as it is now has no room for "
                f"(Warp's arrays have four axes at most); export the program again"
            )
        found, given = batched, values
    return found, values


def _run(op: str, tensors: list[Any], ints: list[Any], floats: list[Any]) -> list[torch.Tensor]:
    found, values = _find(op, tensors, ints, floats)
    return list(many(found.ways.call_public(values)))


def _fake(op: str, tensors: list[Any], ints: list[Any], floats: list[Any]) -> list[torch.Tensor]:
    found, values = _find(op, tensors, ints, floats)
    return list(many(fake_public(found.ways, *values)))


def _autograd(op: str, tensors: list[Any], ints: list[Any], floats: list[Any]) -> Any:
    if torch_modes.lowering_export():
        with torch_modes.below_autograd():
            return mapped_op(op, tensors, ints, floats)
    return _run(op, tensors, ints, floats)


mapped_op = HelperOp(
    "_mapped(str op, Tensor?[] tensors, SymInt[] ints, float[] floats) -> Tensor[]", _run, _fake, _autograd
)
"""``op`` is the mapped op's name, the batched arrays by level of vmap, and the schema, with a space in between."""
