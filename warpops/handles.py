"""Handles: the objects of Warp that kernels take by their id, and how they outlive a pending backward.

An op's schema takes the id alone, so that compiled code never holds an object. The backward launch needs the object all
the same: eager code keeps it on the autograd node, and compiled code in a token, an empty tensor that is saved for
backward and whose storage owns the object.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import numpy
import torch
import warp as wp

from . import locks
from .errors import ArgumentError

OBJECTS = (wp.Mesh, wp.Bvh, wp.HashGrid, wp.Volume)

_known: dict[int, weakref.ref[Any]] = {}
_searches_left = 8
"""How often the heap is searched in vain before ids of unknown objects are taken for plain numbers."""
_lookups_left = 32
"""How often the heap is searched for an id that was given as a number, before such are believed."""
_lock = locks.reentrant()
_token: list[Any] = []


class _Owner(numpy.ndarray):
    """Empty memory that owns Warp objects: PyTorch keeps the array that a tensor's storage was made from."""

    objects: tuple[Any, ...] = ()


def id_of(value: Any) -> Any:
    """The id of a Warp object; anything else as it is."""
    return value.id if isinstance(value, OBJECTS) else value


def remember(value: Any) -> None:
    """Note which object has an id."""
    if isinstance(value, OBJECTS) and value.id:
        found = _known.get(value.id)
        if found is None or found() is not value:
            if len(_known) > 256:
                for key in [key for key, reference in list(_known.items()) if reference() is None]:
                    _known.pop(key, None)
            _known[value.id] = weakref.ref(value)


def object_of(handle: int) -> Any:
    """The live object that has an id, where one was seen; else None."""
    reference = _known.get(handle & 0xFFFFFFFFFFFFFFFF)
    value = reference() if reference is not None else None
    if value is None or value.id != handle & 0xFFFFFFFFFFFFFFFF:
        return None
    return value


def check_handle(op: str, label: str, kinds: frozenset[str], handle: int, device: torch.device) -> None:
    """Refuse what a kernel would follow as a pointer of its own though it isn't one.

    Args:
        op: the op's name.
        label: the argument's.
        kinds: the classes that the kernel takes it for; empty where that isn't known.
        handle: the id.
        device: that of the tensors.

    Raises:
        ArgumentError: no object has the id, and the kernel uses it without a look; or the object behind it is of another
            class or on another device. Ids that are new are looked up on the heap, the first of them: later ones that
            came as plain numbers are believed.
    """
    wanted = " or ".join(sorted(kinds))
    if not handle and kinds:
        raise ArgumentError(f"{op}: argument '{label}': expected a wp.{wanted}, or its id, got 0, which no object has")
    value = _look_up(handle) if kinds else object_of(handle)
    if value is None:
        if kinds and _lookups_left > 0 and not gc.get_freeze_count():
            raise ArgumentError(
                f"{op}: argument '{label}': expected a wp.{wanted}, or its id, got {handle & 0xFFFFFFFFFFFFFFFF}, which no "
                f"live object has"
            )
        return
    if kinds and not any(isinstance(value, getattr(wp, kind)) for kind in kinds):
        raise ArgumentError(
            f"{op}: argument '{label}': expected a wp.{wanted}, as the kernel uses it, got a {type(value).__name__}"
        )
    where = str(wp.device_to_torch(value.device))
    if where != str(device) and not (device.index is None and where.startswith(device.type)):
        raise ArgumentError(
            f"{op}: argument '{label}': expected a {type(value).__name__} on {device}, the device of the tensors, got "
            f"one on {where}"
        )


def alive(*handles: Any) -> tuple[Any, ...]:
    """The objects behind ids, for an autograd node to hold. Symbolic ids, of traced code, have none."""
    return tuple(object_of(handle) for handle in handles if isinstance(handle, int))


def _search_heap(handle: int) -> Any:
    with _lock:
        for value in gc.get_objects():
            if issubclass(type(value), OBJECTS):
                remember(value)
    return object_of(handle)


def _search(handle: int) -> Any:
    """Find an object that only compiled code has seen, which knows its id alone."""
    global _searches_left
    found = object_of(handle)
    if found is None and _searches_left > 0 and handle:
        found = _search_heap(handle)
        _searches_left = 8 if found is not None else _searches_left - 1
    return found


def _look_up(handle: int) -> Any:
    """Find the object that a number should be the id of, the first times that it isn't known."""
    global _lookups_left
    found = object_of(handle)
    if found is None and _lookups_left > 0:
        found = _search_heap(handle)
        if found is not None:
            _lookups_left -= 1
    return found


def keep(handles: Sequence[int]) -> torch.Tensor:
    """A token that keeps the objects behind ids alive."""
    owner = numpy.zeros(0, numpy.uint8).view(_Owner)
    owner.objects = tuple(_search(handle) for handle in handles)
    return torch.from_numpy(owner)


def keep_op() -> Any:
    """``keep`` as an operator for compiled graphs."""
    with _lock:
        if not _token:
            library = torch.library.Library("warpops", "FRAGMENT")
            library.define("_keep(SymInt[] handles) -> Tensor")
            library.impl("_keep", keep, "CompositeExplicitAutograd")
            torch.library.register_fake(
                "warpops::_keep", lambda handles: torch.empty(0, dtype=torch.uint8), lib=library
            )
            _token.extend([torch.ops.warpops._keep.default, library])
    return _token[0]
