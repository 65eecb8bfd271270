"""Handles: the objects of Warp that kernels take by their id, and how they outlive a pending backward.

An op's schema takes the id alone, so that compiled code never holds an object. The backward launch needs the object all
the same: eager code keeps it on the autograd node, and compiled code in a token, an empty tensor that is saved for
backward and whose storage owns the object. Both know the object's stamp, too: a backward would follow the geometry that
the object has by then.
"""

from __future__ import annotations

import functools
import gc
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
import warp as wp

from ..errors import ArgumentError, GradientError, GradientWarning
from ..private import locks
from ..private.helper_op import HelperOp
from ..private.warp_types import OBJECTS
from .ran import Ran, check_ran, ran_of

_known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""Objects that were seen, by their ids."""
_searches_left = 8
"""How often the heap is searched in vain before ids of unknown objects are taken for plain numbers."""
_lock = locks.reentrant()


class _Owner(numpy.ndarray):
    """Empty memory that owns Warp objects: PyTorch keeps the array that a tensor's storage was made from. Empty, since
    PyTorch would rather compute another than save one that has a size."""

    held: tuple[Held, ...] = ()
    ran: Ran | None = None


_owners: weakref.WeakValueDictionary[int, _Owner] = weakref.WeakValueDictionary()
"""By the address of their memory."""


def id_of(value: Any) -> Any:
    """The id of a Warp object; anything else as it is."""
    return value.id if isinstance(value, OBJECTS) else value


def remember(value: Any) -> None:
    """Note which object has an id."""
    if isinstance(value, OBJECTS) and value.id and _known.get(value.id) is not value:
        _known[value.id] = value


def object_of(handle: int) -> Any:
    """The live object that has an id, where one was seen; else None."""
    value = _known.get(handle & 0xFFFFFFFFFFFFFFFF)
    return value if value is not None and value.id == handle & 0xFFFFFFFFFFFFFFFF else None


def check_handle(title: str, kinds: frozenset[str], handle: int, device: torch.device) -> None:
    """Refuse what a kernel would follow as a pointer of its own though it isn't one.

    Args:
        title: the op and the argument, for messages.
        kinds: the classes that the kernel takes it for; empty where that isn't known.
        handle: the id.
        device: that of the tensors.

    Raises:
        ArgumentError: no object has the id, and the kernel uses it without a look; or the object behind it is of another
            class or on another device. An id that is new is looked up on the heap, which takes milliseconds: an object
            that is given itself is known at once. With the heap frozen (``gc.freeze``) it is believed.
    """
    wanted = " or ".join(sorted(kinds))
    if not handle and kinds:
        raise ArgumentError(f"{title}: expected a wp.{wanted}, or its id, got 0, which no object has")
    value = _look_up(handle, True) if kinds else object_of(handle)
    if value is None:
        if kinds and not _frozen():
            raise ArgumentError(
                f"{title}: expected a wp.{wanted}, or its id, got {handle & 0xFFFFFFFFFFFFFFFF}, which no "
                f"live object has"
            )
        return
    if kinds and not any(isinstance(value, getattr(wp, kind)) for kind in kinds):
        raise ArgumentError(f"{title}: expected a wp.{wanted}, as the kernel uses it, got a {type(value).__name__}")
    where = str(wp.device_to_torch(value.device))
    if where != str(device) and not (device.index is None and where.startswith(device.type)):
        raise ArgumentError(
            f"{title}: expected a {type(value).__name__} on {device}, the device of the tensors, got one on {where}"
        )


Held = tuple[tuple[Any, int], ...]
"""The objects behind one argument, and their stamps."""


def ids_tensor(ids: Sequence[int], objects: Sequence[Any], device: Any) -> torch.Tensor:
    """A tensor of ids, which the objects behind them live as long as."""
    tensor = torch.from_numpy(numpy.array([n & 0xFFFFFFFFFFFFFFFF for n in ids], numpy.uint64).view(numpy.int64)).to(
        device
    )
    tensor._warpops_objects = tuple(objects)  # type: ignore[attr-defined]
    return tensor


def _objects(value: Any) -> tuple[Any, ...]:
    """The objects behind an id, or behind a tensor that was made of them. Symbolic ids, of traced code, have none."""
    if isinstance(value, int):
        return (object_of(value),)
    found: tuple[Any, ...] = getattr(value, "_warpops_objects", ())
    return found


def alive(*values: Any) -> tuple[Held, ...]:
    """The objects behind ids and arrays of such, and their stamps, for an autograd node to hold."""
    return tuple(tuple((value, stamp(value)) for value in _objects(given)) for given in values)


_CHANGERS = ("refit", "rebuild", "build")
"""The methods that change what an object stands for."""


def stamp(value: Any) -> int:
    """A number that is another one once the object was changed; 0 for none. The object counts from the first time on."""
    if value is None:
        return 0
    if not hasattr(value, "_warpops_changes"):
        value._warpops_changes = 0
        for name in _CHANGERS:
            if hasattr(type(value), name):
                setattr(value, name, functools.partial(_change, weakref.ref(value), name))
    points = getattr(value, "points", None)
    tensor = getattr(points, "_tensor", None)
    version = None if tensor is None or tensor.is_inference() else tensor._version
    return hash((value._warpops_changes, getattr(points, "ptr", None), version))


def _change(reference: weakref.ref[Any], name: str, *args: Any, **kwargs: Any) -> Any:
    value: Any = reference()
    value._warpops_changes += 1
    return getattr(type(value), name)(value, *args, **kwargs)  # which a program watches while it runs


def check_unchanged(title: str, labels: Sequence[str], held: Sequence[Held]) -> None:
    """Compare objects with their stamps of the forward, and warn of gradients that they don't get.

    Raises:
        GradientError: one was changed since.
    """
    for label, objects in zip(labels, held, strict=False):
        for value, _ in objects:
            _warn_of_vertices(title, label, value)
        if changed := next((value for value, before in objects if stamp(value) != before), None):
            raise GradientError(
                f"{title}: the wp.{type(changed).__name__} given for '{label}' has been modified (built anew, refit, or its "
                f"points changed) since the forward, and the gradient needs it as it was then; change it after the "
                f"backward, or use another object"
            )


def _warn_of_vertices(title: str, label: str, value: Any) -> None:
    """Warp's adjoint reaches a mesh's own arrays nowhere."""
    lost = [n for n in ("points", "velocities") if getattr(getattr(value, n, None), "requires_grad", False)]
    if lost and isinstance(value, wp.Mesh):
        warnings.warn(
            f"{title}: the {lost[0]} of the mesh given for '{label}' require a gradient, and get none from what the kernel asks "
            f"the mesh; read them from an array argument, or give backward=",
            GradientWarning,
            stacklevel=2,
        )


def _frozen() -> bool:
    """Whether ``gc.freeze`` hides objects of Warp from a search: it has hidden their classes, then. Python 3.12 has a few
    frozen objects of its own from the start."""
    return gc.get_freeze_count() > 0 and not any(found is OBJECTS[0] for found in gc.get_objects())


def _look_up(handle: int, sure: bool) -> Any:
    """The object behind an id, which may be one that only compiled code has seen; ``sure`` if it is one for certain."""
    global _searches_left
    found = object_of(handle)
    if found is None and (sure or (handle and _searches_left > 0)):
        with _lock:
            for value in gc.get_objects():
                if issubclass(type(value), OBJECTS):
                    remember(value)
        found = object_of(handle)
        if not sure:
            _searches_left = 8 if found is not None else _searches_left - 1
    return found


def keep(handles: Sequence[int], made: Sequence[torch.Tensor] = ()) -> torch.Tensor:
    """A token that keeps the objects behind ids alive, and knows their stamps, and what a program did that has just made
    some tensors."""
    owner = numpy.zeros(0, numpy.uint8).view(_Owner)
    owner.held = tuple(((value, stamp(value)),) for value in (_look_up(handle, False) for handle in handles))
    if made:
        owner.ran = ran_of(made)
    token = torch.from_numpy(owner)
    _owners[token.untyped_storage().data_ptr()] = owner
    return token


def held_by(token: torch.Tensor | None) -> tuple[tuple[Held, ...], Ran | None]:
    """The objects that a token keeps alive, and their stamps; and what a program did."""
    owner = None if token is None else _owners.get(token.untyped_storage().data_ptr())
    return ((), None) if owner is None else (owner.held, owner.ran)


keep_op = HelperOp(
    "_keep(SymInt[] handles, Tensor[] made) -> Tensor", keep, lambda handles, made: torch.empty(0, dtype=torch.uint8)
)
"""``keep`` as an operator for compiled graphs."""


def keep_alive(made: Sequence[torch.Tensor | None], *ids: Any) -> torch.Tensor | None:
    """In traced code: what keeps Warp objects alive until backward, and what a program did that made some tensors."""
    return None if torch.compiler.is_exporting() else keep_op(list(ids), [t for t in made if t is not None])


def with_token(op: str, labels: Sequence[str], into: Callable[..., None]) -> Callable[..., None]:
    """The raw backward over given buffers, whose last argument is the token of the objects."""

    def run(*values: Any) -> None:
        held, ran = held_by(values[-1])
        check_unchanged(op, labels, held)
        into(*values[:-1])
        check_ran(op, ran)

    return run
