"""Ops in AOTInductor's packages: one operator that stands for any of them.

A package looks an operator up once, and fits its own call to the schema that it finds: an int or a float that the op hasn't
got any more is dropped, and where the op gets another schema later the process crashes. So a package holds this operator,
which is given the op's name and schema, and compares them where it runs. Packages are saved with it: it keeps its schema
and the form of ``op`` from one version of warpops to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..arguments.kinds import kind_of
from ..errors import ArgumentError
from ..plan.model import OpPlan
from ..private.helper_op import HelperOp
from .ways import Ways, many, newest, plain_of

Streams = tuple[list[Any], list[Any], list[Any]]


def look_up(name: str, schema: str) -> Ways:
    """The op that a program was saved with, as it is now."""
    ways = newest(name)
    if ways.schema != schema:
        raise ArgumentError(
            f"{name}: the program was saved with {name}{schema}, and the op is {name}{ways.schema} now; export the program "
            f"again"
        )
    return ways


def pack(plan: OpPlan, values: tuple[Any, ...]) -> Streams | None:
    """The values by type; None where a schema can't take them so."""
    codes, given = [kind_of(slot).code(slot) for slot in plan.inputs], values[: len(plan.inputs)]
    symbolic = any(c == "n" and type(value) not in (int, float) for c, value in zip(codes, given, strict=True))
    return None if symbolic or "" in codes else pack_coded("".join(codes), given)


def unpack(plan: OpPlan, *packed: list[Any]) -> tuple[Any, ...]:
    values = unpack_coded("".join(kind_of(slot).code(slot) for slot in plan.inputs), *packed)
    return (*values, None) if plan.device_argument else values


def pack_coded(codes: str, values: Sequence[Any]) -> Streams:
    """The values by type: ``t`` is a tensor or None, ``i``, ``b`` and ``f`` are an int, a bool and a float, ``n`` a number
    whose type is its own (1 and a float, or 0 and an int); lists are in brackets."""
    streams: dict[str, list[Any]] = {"t": [], "i": [], "f": []}
    items = [item for value in values for item in (value if isinstance(value, (list, tuple)) else (value,))]
    for code, item in zip(codes.replace("[", "").replace("]", ""), items, strict=True):
        kind = code if code in streams else "f" if isinstance(item, float) else "i"
        if code == "n":
            streams["i"].append(int(kind == "f"))
        streams[kind].append(int(item) if isinstance(item, bool) else item)
    return streams["t"], streams["i"], streams["f"]


def unpack_coded(codes: str, tensors: list[Any], ints: list[Any], floats: list[Any]) -> tuple[Any, ...]:
    # AOTInductor's executor has None for an empty list.
    streams = {"t": iter(tensors or ()), "i": iter(ints or ()), "f": iter(floats or ())}
    found: list[Any] = []
    into = found
    for code in codes:
        if code == "[":
            found.append(into := [])
        elif code == "]":
            into = found
        elif code == "b":
            into.append(bool(next(streams["i"])))
        else:
            into.append(next(streams[("i", "f")[next(streams["i"])] if code == "n" else code]))
    return tuple(found)


def _run(op: str, tensors: list[Any], ints: list[Any], floats: list[Any]) -> list[torch.Tensor]:
    name, _, schema = op.partition(" ")
    ways = look_up(name, schema)
    return list(many(ways.call_public(unpack(ways.plan, tensors, ints, floats), plain_of(name).overload)))


packaged_op = HelperOp("_packaged(str op, Tensor?[] tensors, SymInt[] ints, float[] floats) -> Tensor[]", _run, _run)
"""``op`` is the op's name, a space, and its schema."""
