"""Ops in AOTInductor's packages: one operator that stands for any of them.

A package looks an operator up once, and fits its own call to the schema that it finds: an int or a float that the op hasn't
got any more is dropped, and where the op gets another schema later the process crashes. So a package holds this operator,
which is given the op's name and schema, and compares them where it runs. Packages are saved with it: it keeps its schema
and the form of ``op`` from one version of warpops to the next.
"""

from __future__ import annotations

from typing import Any

import torch

from ..arguments.kinds import kind_of
from ..errors import ArgumentError
from ..plan.model import OpPlan
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


def pack(plan: OpPlan, values: tuple[Any, ...]) -> tuple[list[Any], list[Any], list[Any]] | None:
    """The values by type; None where a schema can't take them so."""
    streams: dict[str, list[Any]] = {"tensor": [], "int": [], "float": []}
    if not all(kind_of(slot).put(slot, value, streams) for slot, value in zip(plan.inputs, values, strict=False)):
        return None
    return streams["tensor"], streams["int"], streams["float"]


def unpack(plan: OpPlan, tensors: list[Any], ints: list[Any], floats: list[Any]) -> tuple[Any, ...]:
    # AOTInductor's executor has None for an empty list.
    streams = {"tensor": iter(tensors or ()), "int": iter(ints or ()), "float": iter(floats or ())}
    values = [kind_of(slot).take(slot, streams) for slot in plan.inputs]
    return (*values, None) if plan.device_argument else tuple(values)


def _run(op: str, tensors: list[Any], ints: list[Any], floats: list[Any]) -> list[torch.Tensor]:
    name, _, schema = op.partition(" ")
    ways = look_up(name, schema)
    return list(many(ways.call_public(unpack(ways.plan, tensors, ints, floats), plain_of(name).overload)))


packaged_op = HelperOp("_packaged(str op, Tensor?[] tensors, SymInt[] ints, float[] floats) -> Tensor[]", _run, _run)
"""``op`` is the op's name, a space, and its schema."""
