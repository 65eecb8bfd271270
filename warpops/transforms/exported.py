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
from ..calls.ways import Ways, many
from ..private import torch_modes
from ..private.helper_op import HelperOp
from .carried import BATCHED, along


def record(transforms: Any, values: tuple[Any, ...]) -> Any:
    """Call a batched op through ``warpops::_mapped``; ``transforms`` and ``values`` are the batched op's."""
    packed = pack(transforms.root.plan, values)
    if packed is None:
        return transforms.ways.call_public(values)
    root: Ways = transforms.root
    check_exported(root)
    levels = "|".join(level.removeprefix(BATCHED) for level in transforms.levels)
    results = mapped_op(f"{root.name} {levels} {root.schema}", *packed)
    return tuple(results) if len(transforms.plan.results) != 1 else results[0]


def _find(op: str, tensors: list[Any], ints: list[Any], floats: list[Any]) -> tuple[Any, tuple[Any, ...]]:
    """The batched op and its values."""
    name, levels, schema = op.split(" ", 2)
    ways = look_up(name, schema)
    values = unpack(ways.plan, tensors, ints, floats)
    return along(ways, [f"{BATCHED}{level}" for level in levels.split("|")], values), values


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
