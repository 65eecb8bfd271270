"""Ops in AOTInductor's packages: one operator that stands for any of them.

A package looks an operator up once, and fits its own call to the schema that it finds: an int or a float that the op hasn't
got any more is dropped, and where the op gets another schema later the process crashes. So a package holds this operator,
which is given the op's name and schema, and compares them where it runs. Packages are saved with it: it keeps its schema
and the form of ``op`` from one version of warpops to the next.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ArgumentError
from ..plan.model import OpPlan, Slot
from ..private.helper_op import HelperOp
from .ways import Ways, many, newest, plain_of


def look_up(name: str, schema: str) -> Ways:
    """The op that a program was saved with, as it is now."""
    ways = newest(name)
    if ways.schema != schema:
        raise ArgumentError(
            f"{name}: the program was saved with {name}{schema}, and the op is {name}{ways.schema} now; export the program "
            f"again"
        )
    return ways


def _is_generic(slot: Slot) -> bool:
    """Whether a value is a number of any type."""
    return slot.role != "size" and slot.leaf.kind != "handle" and slot.leaf.scalar is None


def pack(plan: OpPlan, values: tuple[Any, ...]) -> tuple[list[Any], list[Any], list[Any]] | None:
    """The values by type; None where a schema can't take them so."""
    tensors: list[Any] = []
    ints: list[Any] = []
    floats: list[Any] = []
    for slot, value in zip(plan.inputs, values, strict=False):
        scalar = slot.leaf.scalar
        if slot.is_array or slot.role == "tensor_scalar":
            tensors.append(value)
        elif _is_generic(slot):
            # Its type is its own: 1 and a float, or 0 and an int.
            if type(value) not in (int, float):
                return None
            ints.append(int(type(value) is float))
            (floats if type(value) is float else ints).append(value)
        elif slot.leaf.kind == "vector":
            (floats if scalar is not None and scalar.kind == "float" else ints).extend(value)
        elif slot.role == "size" or scalar is None or scalar.kind != "float":
            ints.append(int(value) if isinstance(value, bool) else value)
        else:
            floats.append(value)
    return tensors, ints, floats


def unpack(plan: OpPlan, tensors: list[Any], ints: list[Any], floats: list[Any]) -> tuple[Any, ...]:
    # AOTInductor's executor has None for an empty list.
    streams = {"tensor": iter(tensors or ()), "int": iter(ints or ()), "float": iter(floats or ())}
    values: list[Any] = []
    for slot in plan.inputs:
        scalar = slot.leaf.scalar
        if slot.is_array or slot.role == "tensor_scalar":
            values.append(next(streams["tensor"]))
            continue
        if _is_generic(slot):
            values.append(next(streams["float" if next(streams["int"]) else "int"]))
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


def _run(op: str, tensors: list[Any], ints: list[Any], floats: list[Any]) -> list[torch.Tensor]:
    name, _, schema = op.partition(" ")
    ways = look_up(name, schema)
    return list(many(ways.call_public(unpack(ways.plan, tensors, ints, floats), plain_of(name).overload)))


packaged_op = HelperOp("_packaged(str op, Tensor?[] tensors, SymInt[] ints, float[] floats) -> Tensor[]", _run, _run)
"""``op`` is the op's name, a space, and its schema."""
