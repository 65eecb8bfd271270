"""vmap in exported programs: one operator that stands for the op of any batched kernel.

The op of a batched kernel is made when vmap meets it, so a process that only loads a program hasn't got it. This operator
is there as soon as any op is. It names the op that is mapped, its schema included, and the arrays that have the batch
axis at each level of vmap, and makes the rest where it runs. Programs are saved with it: it keeps its schema and the form
of ``op`` from one version of warpops to the next.
"""

from __future__ import annotations

from typing import Any

import torch

from ..calls.traced import check_exported, fake_public
from ..calls.ways import many, newest
from ..errors import ArgumentError
from ..plan.model import OpPlan
from ..private import torch_modes
from ..private.helper_op import HelperOp


def record(transforms: Any, values: tuple[Any, ...]) -> Any:
    """Call a batched op through ``warpops::_mapped``; ``transforms`` and ``values`` are the batched op's."""
    root = transforms
    levels: list[str] = []
    while root.origin is not None:
        levels.insert(0, ",".join(sorted(root.batched_names)))
        root = root.origin
    packed = _pack(root.plan, values)
    if packed is None:
        return transforms.ways.call_public(values)
    check_exported(root.ways)
    results = mapped_op(f"{root.ways.name} {'|'.join(levels)} {root.ways.schema}", *packed)
    return tuple(results) if len(transforms.plan.results) != 1 else results[0]


def _pack(plan: OpPlan, values: tuple[Any, ...]) -> tuple[list[Any], list[Any], list[Any]] | None:
    """The values by type, as far as a schema can take them."""
    tensors: list[Any] = []
    ints: list[Any] = []
    floats: list[Any] = []
    for slot, value in zip(plan.inputs, values, strict=False):
        scalar = slot.leaf.scalar
        if slot.is_array or slot.role == "tensor_scalar":
            tensors.append(value)
        elif slot.role != "size" and slot.leaf.kind != "handle" and scalar is None:
            return None  # a generic number, whose type is its own
        elif slot.leaf.kind == "vector":
            (floats if scalar is not None and scalar.kind == "float" else ints).extend(value)
        elif slot.role == "size" or scalar is None or scalar.kind != "float":
            ints.append(int(value) if isinstance(value, bool) else value)
        else:
            floats.append(value)
    return tensors, ints, floats


def _unpack(plan: OpPlan, tensors: list[Any], ints: list[Any], floats: list[Any]) -> tuple[Any, ...]:
    # AOTInductor's executor has None for an empty list.
    streams = {"tensor": iter(tensors or ()), "int": iter(ints or ()), "float": iter(floats or ())}
    values: list[Any] = []
    for slot in plan.inputs:
        scalar = slot.leaf.scalar
        if slot.is_array or slot.role == "tensor_scalar":
            values.append(next(streams["tensor"]))
            continue
        kind = scalar.kind if scalar is not None and slot.role != "size" else "int"
        stream = streams["float" if kind == "float" else "int"]
        if slot.leaf.kind == "vector":
            count = 1
            for size in slot.leaf.component or ():
                count *= size
            values.append([bool(next(stream)) if kind == "bool" else next(stream) for _ in range(count)])
        else:
            values.append(bool(next(stream)) if kind == "bool" else next(stream))
    if plan.device_argument:
        values.append(None)
    return tuple(values)


def _find(op: str, tensors: list[Any], ints: list[Any], floats: list[Any]) -> tuple[Any, tuple[Any, ...]]:
    """The batched op and its values."""
    from .batched import element

    name, levels, schema = op.split(" ", 2)
    ways = newest(name)
    if ways.schema != schema:
        raise ArgumentError(
            f"{name}: a program was exported with vmap over {name}{schema}, and the op is {name}{ways.schema} now; export "
            f"the program again"
        )
    root: Any = ways.transforms()
    values = _unpack(root.plan, tensors, ints, floats)
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
