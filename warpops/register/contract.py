"""The hash of an op's contract: what a compiled graph takes for granted about it.

PyTorch's compile caches, on disk too, know an op by its name alone. The contract's hash is part of the name that compiled
graphs hold, so that a graph made under another contract is never found. The kernel's body isn't part of it: a graph calls
the op, and the op looks its kernel up when it runs.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import os
import types
from collections.abc import Iterable
from typing import Any

import torch

from ..plan.model import OpPlan

_PLAIN = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis), torch.dtype, torch.device)
VERSION = "0.1.0"
"""Of warpops: what a graph holds may change with it."""

FORMAT = 5
"""Raised with each change of how an op is traced: a graph on disk that was traced otherwise isn't found."""

_session = os.urandom(8).hex()


class _UnhashableError(Exception):
    pass


def contract_hash(parts: Iterable[str], callables: Iterable[Any]) -> str:
    """A short hash over generated text and the callables that it calls.

    A callable that can't be followed makes the hash one of this process alone: nothing is found on disk, nothing is stale.
    """
    digest = hashlib.sha256(f"{torch.__version__} {VERSION} {FORMAT}".encode())
    for part in parts:
        digest.update(part.encode())
        digest.update(b"\0")
    try:
        for value in callables:
            _update(digest, value, set())
    except (_UnhashableError, RecursionError):
        digest.update(_session.encode())
        digest.update(os.urandom(8))
    return "c" + digest.hexdigest()[:12]


def plan_text(plan: OpPlan, rows: Iterable[str]) -> str:
    """What the generated launches and fakes are written from, as text: all of the plan but the kernel's body."""
    extents = plan.extents
    lines = []
    for slot in plan.slots:
        leaf = slot.leaf
        lines.append(
            (
                *(slot.name, slot.role, slot.optional, slot.init, slot.differentiable, slot.saved, slot.retained),
                *(slot.null_adjoint_safe, slot.explicit, slot.replayed, slot.state),
                *(leaf.kind, leaf.scalar.name if leaf.scalar else None, leaf.component, leaf.ndim),
                _sizes_text(slot.dims),
                _sizes_text(slot.shape),
            )
        )
    checked = (extents.rank, extents.covers, extents.reaches)
    rest = (plan.results, plan.gradient, plan.device_argument, bool(plan.effects.opaque), *plan.scalar_defaults.items())
    launch = (_sizes_text(extents.launch), plan.declaration.block_dim, plan.declaration.tiled)
    return repr((lines, checked, rest, launch, sorted(rows)))


def _sizes_text(dims: Any) -> str:
    if dims is None or callable(dims):
        return "any" if dims is None else "computed"
    return ", ".join("_" if dim is None else str(dim) for dim in dims)


def _update(digest: Any, value: Any, seen: set[int]) -> None:
    """Feed a value's meaning: a function's code, constants, defaults, closure and the globals that it names."""
    if isinstance(value, _PLAIN):
        digest.update(f"{type(value).__name__}:{value!r};".encode())
        return
    if id(value) in seen:
        digest.update(b"again;")
        return
    if isinstance(value, (tuple, list)):
        digest.update(f"{type(value).__name__}{len(value)}".encode())
        for item in value:
            _update(digest, item, seen)
        return
    if isinstance(value, (set, frozenset)):
        for item in sorted(value, key=repr):
            _update(digest, item, seen)
        return
    seen.add(id(value))
    if isinstance(value, dict):
        for key in sorted(value, key=repr):
            _update(digest, key, seen)
            _update(digest, value[key], seen)
        return
    if isinstance(value, types.CodeType):
        _update_code(digest, value, seen)
        return
    if isinstance(value, types.FunctionType):
        _update_function(digest, value, seen)
        return
    if isinstance(value, functools.partial):
        for part in (value.func, value.args, value.keywords):
            _update(digest, part, seen)
        return
    if isinstance(value, types.MethodType):
        _update(digest, value.__func__, seen)
        _update(digest, value.__self__, seen)
        return
    if isinstance(value, (types.BuiltinFunctionType, types.ModuleType, type)):
        digest.update(f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)};".encode())
        return
    if isinstance(value, types.MethodDescriptorType):
        digest.update(f"{value.__qualname__};".encode())
        return
    raise _UnhashableError(type(value).__name__)


def _update_code(digest: Any, code: types.CodeType, seen: set[int]) -> None:
    digest.update(code.co_code)
    for names in (code.co_names, code.co_varnames, code.co_freevars):
        digest.update(repr(names).encode())
    for constant in code.co_consts:
        _update(digest, constant, seen)


def _global_names(code: types.CodeType) -> set[str]:
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def _update_function(digest: Any, function: types.FunctionType, seen: set[int]) -> None:
    _update_code(digest, function.__code__, seen)
    _update(digest, function.__defaults__ or (), seen)
    _update(digest, function.__kwdefaults__ or {}, seen)
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:
            continue
        _update(digest, content, seen)
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__:
            digest.update(name.encode())
            _update(digest, function.__globals__[name], seen)
