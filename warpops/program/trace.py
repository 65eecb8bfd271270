"""What a program's function does in one run, to be compared with another run.

Arrays are told by which argument they are of and how they lie in it, and the program's own by their layout: where memory
is differs from run to run. Objects that the program makes are told by their order. What it reads besides its arguments, a
global array or numbers that come from the host, is told by what it holds, and an object of Warp's by its stamp.
"""

from __future__ import annotations

import ctypes
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy
import torch
import warp as wp

from ..arguments.handle import object_of, stamp
from ..arguments.number import plain_number
from ..arguments.ran import Ran, Step
from ..launch import devices
from ..private import warp_types
from ..private.warp_calls import LIBRARY, Watcher, byte_range, is_struct_instance, root_array, title_of
from ..private.warp_types import OBJECTS
from .checks import leaves, leaves_of
from .memory import Use, uses_of

_KEPT = 2048
"""How many words of an array are kept, to be compared."""


class Content:
    """What an array holds: all of it, or, of a large one, words that lie evenly in it."""

    def __init__(self, array: Any, made: Sequence[Any]) -> None:
        """``made`` are the run's own objects, whose ids are told by their order."""
        low, high = byte_range(array)
        memory: Any = wp.array(ptr=low, dtype=wp.uint8, shape=(high - low,), device=array.device)
        words: torch.Tensor = wp.to_torch(memory)
        words = words if low % 8 or high % 8 else words.view(torch.int64)
        self.kept = words[:: -(-words.numel() // _KEPT) | 1].clone()  # of bytes, an odd step meets each of an element's
        for number, one in enumerate(made if words.dtype is torch.int64 else ()):
            self.kept.masked_fill_(self.kept == one.id, number)

    def __eq__(self, other: object) -> bool:
        kept = other.kept if isinstance(other, Content) else self.kept[:0]
        same = (kept.device, kept.dtype) == (self.kept.device, self.kept.dtype)
        return same and torch.equal(self.kept, kept)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<checksum {zlib.crc32(self.kept.cpu().numpy().tobytes()):08x}>"


class Trace(Watcher):
    """The watcher that the function's calls come to first. It hands them on."""

    def __init__(self, inner: Watcher, arguments: Iterable[tuple[str, Any]]) -> None:
        self.op = inner.op
        self.stand_before(inner, arguments)
        self._steps: list[Step] = []
        self._made: list[Any] = []
        self._own: dict[int, weakref.ref[Any]] = {}
        """The arrays that hold what the run itself put there, or nothing that it may read."""

    def stand_before(self, inner: Watcher, arguments: Iterable[tuple[str, Any]]) -> None:
        """Hand calls on to another watcher; ``arguments`` are those of the function that is about to run."""
        self.inner = inner
        found = [(label, array) for name, value in arguments for label, array in leaves_of(name, value)]
        self._named = {id(array): (label, array) for label, array in found if isinstance(array, wp.array)}

    def ran(self) -> Ran:
        return tuple(self._steps)

    def launch(self, original: Callable[..., Any], call: dict[str, Any]) -> Any:
        kernel, dim, values = call["kernel"], call["dim"], (*call["inputs"], *call["outputs"])
        dims = tuple(dim) if isinstance(dim, Sequence) else (dim,)
        given = [("kernel", kernel), ("dim", dims), ("adjoint", bool(call["adjoint"]))]
        names = (name for name, _ in warp_types.argument_types(kernel))
        given += [(name, self._told(value)) for name, value in zip(names, values, strict=True)]
        effects, uses = uses_of(kernel)
        found = dict(leaves(kernel, values))
        arrays = {
            label: (value, uses.get(label, Use())) for label, value in found.items() if isinstance(value, wp.array)
        }
        given += self._contents({label: value for label, (value, use) in arrays.items() if use.needs_before})
        self._fill(value for value, use in arrays.values() if use.writes)
        result = self.inner.launch(original, call)
        given += [(f"the state of {label}", self._stamp(v)) for label, v in found.items() if label in effects.handles]
        self._steps.append((f"the launch of {kernel.key}", tuple(given)))
        return result

    def call(self, name: str, original: Callable[..., Any], call: dict[str, Any]) -> Any:
        reads, writes = LIBRARY[name]
        self._note(title_of(name), call, reads)
        self._fill(call[name] for name in writes)
        return self.inner.call(name, original, call)

    def emptied(self, array: Any) -> None:
        self._fill([array])
        self.inner.emptied(array)

    def made(self, value: Any, call: dict[str, Any]) -> None:
        self._note(f"wp.{type(value).__name__}", call, call)
        self._made.append(value)
        self.inner.made(value, call)

    def change(self, value: Any, original: Callable[..., Any], call: dict[str, Any]) -> Any:
        self._note(f"wp.{type(value).__name__}.{original.__name__}", {"self": value, **call}, call)
        return self.inner.change(value, original, call)

    def _note(self, title: str, call: dict[str, Any], reads: Iterable[str]) -> None:
        told = [(name, self._told(value)) for name, value in call.items()]
        self._steps.append((title, (*told, *self._contents({name: call[name] for name in reads}))))

    def _contents(self, read: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """What arrays hold that are neither the program's arguments nor of the run's own making."""
        arrays: list[tuple[str, Any]] = [(n, a) for n, a in read.items() if isinstance(a, wp.array) and a.size]
        strange = [(label, array) for label, array in arrays if not self._is_own(root_array(array))]
        if not strange or (any(value.device.is_cuda for _, value in strange) and devices.is_capturing()):
            return []
        return [(f"the contents of {label}", Content(value, self._made)) for label, value in strange]

    def _is_own(self, root: Any) -> bool:
        found = self._own.get(id(root))
        return id(root) in self._named or (found is not None and found() is root)

    def _fill(self, arrays: Iterable[Any]) -> None:
        for root in (root_array(array) for array in arrays if isinstance(array, wp.array)):
            self._own[id(root)] = weakref.ref(root)

    def _stamp(self, value: Any) -> str:
        """The stamp of an object that the program didn't make; of one that it made, its changes are steps."""
        number = plain_number(value)
        given = isinstance(number, int) and all(one.id != number for one in self._made)
        return f"<stamp {stamp(object_of(int(number or 0)) if given else None) & 0xFFFFFFFF:08x}>"

    def _told(self, value: Any) -> Any:
        """A value by what is the same in another run."""
        if isinstance(value, wp.array):
            root = root_array(value)
            label = self._named.get(id(root), ("an array of its own",))[0]
            offset = value.ptr - root.ptr if value.size else 0
            return label, value.dtype, tuple(value.shape), tuple(value.strides), offset
        if is_struct_instance(value):
            return tuple((label, self._told(field)) for label, field in leaves_of("", value))
        number = plain_number(value)
        if isinstance(number, int) or isinstance(value, OBJECTS):
            handle = number if number is not None else value.id
            made = [k for k, one in enumerate(self._made) if one.id == handle]
            return ("an object that it made", made[0]) if made else handle
        if number is not None:
            return repr(number)  # 0.0 isn't -0.0, and a NaN is itself
        if isinstance(value, (list, tuple)):
            return tuple(map(self._told, value))
        if isinstance(value, (numpy.ndarray, ctypes.Array)):
            return tuple(map(repr, numpy.asarray(value).ravel().tolist()))
        return value if isinstance(value, (str, type(None))) else type(value)
