"""Callables for ``dim`` and ``shapes``: what they are given, and what they may return."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch

from ..errors import ArgumentError
from ..plan.model import OpPlan
from .ran import ASKED, latest_ran, note_ran


def callback_arguments(plan: OpPlan, values: Mapping[str, Any]) -> dict[str, Any]:
    """The op's arguments by name, as a callable for ``dim`` or ``shapes`` sees them."""
    arguments: dict[str, Any] = {}
    for parameter in plan.parameters:
        if not parameter.struct:
            arguments[parameter.name] = values[parameter.slots[0].name]
            continue
        root = types.SimpleNamespace()
        for slot in parameter.slots:
            node = root
            for part in slot.leaf.path[1:-1]:
                if not hasattr(node, part):
                    setattr(node, part, types.SimpleNamespace())
                node = getattr(node, part)
            setattr(node, slot.leaf.path[-1], values[slot.name])
        arguments[parameter.name] = root
    return arguments


def call_back(op: str, what: str, plan: OpPlan, function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call a callable with those of the op's arguments that it names."""
    arguments = callback_arguments(plan, values)
    parameters = inspect.signature(function).parameters.values()
    unknown = [p.name for p in parameters if p.name not in arguments and p.default is p.empty]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise ArgumentError(
            f"{op}: {what}: the callable asks for '{unknown[0]}', which is no argument of the op; those are "
            f"{', '.join(arguments)}"
        )
    return ask(function, arguments)


def ask(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a callable with those of the arguments that it names, and note what it gave: the backward asks it again."""
    before = latest_ran()
    result = function(**asked_for(function, arguments))
    if latest_ran() is before:  # or else it is one of this package's around the user's, which counts
        dims = result if isinstance(result, (tuple, list)) else (result,)
        note_ran(((ASKED, tuple((f"axis {k}", d if isinstance(d, int) else None) for k, d in enumerate(dims))),))
    return result


def asked_for(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that a callable names."""
    parameters = inspect.signature(function).parameters.values()
    everything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return {name: value for name, value in arguments.items() if everything or name in named}


def called_dims(op: str, what: str, result: Any, rank: int | None) -> tuple[Any, ...]:
    dims = (result,) if isinstance(result, (int, torch.SymInt, numpy.integer)) else result
    if not isinstance(dims, (tuple, list)):
        raise ArgumentError(f"{op}: {what}: expected an int or a tuple of ints from the callable, got {result!r}")
    sizes: list[Any] = []
    for item in dims:
        if isinstance(item, torch.SymInt):
            sizes.append(item)
            continue
        if isinstance(item, bool) or not isinstance(item, (int, numpy.integer)):
            kind = f"{item!r}" if not isinstance(item, torch.Tensor) else "a tensor; use .shape or int(...)"
            raise ArgumentError(f"{op}: {what}: expected ints from the callable, got {kind}")
        sizes.append(int(item))
    if rank is not None and len(sizes) != rank:
        raise ArgumentError(
            f"{op}: {what}: expected {rank} size{'s' if rank != 1 else ''}, got {len(sizes)}: {tuple(sizes)}"
        )
    return tuple(sizes)
