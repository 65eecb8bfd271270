"""What a program's function does in one run, to be compared with another run.

Arrays are told by which argument they are of and how they lie in it, and the program's own by their layout: where memory
is differs from run to run. Objects that the program makes are told by their order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy
import warp as wp

from ..arguments.number import plain_number
from ..arguments.ran import Ran, Step
from ..private import warp_types
from ..private.warp_calls import Watcher, is_struct_instance, root_array, title_of
from ..private.warp_types import OBJECTS
from .checks import leaves_of


class Trace:
    """The watcher that the function's calls come to first. It hands them on."""

    def __init__(self, inner: Watcher, arguments: Iterable[tuple[str, Any]]) -> None:
        self.op = inner.op
        self.stand_before(inner, arguments)
        self._steps: list[Step] = []
        self._made: list[Any] = []

    def stand_before(self, inner: Watcher, arguments: Iterable[tuple[str, Any]]) -> None:
        """Hand calls on to another watcher; ``arguments`` are those of the function that is about to run."""
        self.inner = inner
        found = [(label, array) for name, value in arguments for label, array in leaves_of(name, value)]
        self._named = {id(array): (label, array) for label, array in found if isinstance(array, wp.array)}

    def ran(self) -> Ran:
        return tuple(self._steps)

    def launch(self, original: Callable[..., Any], call: dict[str, Any]) -> Any:
        kernel, dim = call["kernel"], call["dim"]
        values = (*call["inputs"], *call["outputs"])
        names = [name for name, _ in warp_types.argument_types(kernel)] if isinstance(kernel, wp.Kernel) else []
        names += [f"argument {k}" for k in range(len(names), len(values))]
        dims = tuple(dim) if isinstance(dim, Sequence) else (dim,)
        given = [("kernel", kernel), ("dim", dims), ("adjoint", bool(call["adjoint"]))]
        given += [(name, self._told(value)) for name, value in zip(names, values, strict=False)]
        self._steps.append((f"the launch of {getattr(kernel, 'key', kernel)}", tuple(given)))
        return self.inner.launch(original, call)

    def call(self, name: str, original: Callable[..., Any], call: dict[str, Any]) -> Any:
        self._note(title_of(name), call)
        return self.inner.call(name, original, call)

    def refuse(self, name: str) -> None:
        self.inner.refuse(name)

    def read(self, name: str, array: Any) -> None:
        self.inner.read(name, array)

    def made(self, value: Any, call: dict[str, Any]) -> None:
        self._note(f"wp.{type(value).__name__}", call)
        self._made.append(value)
        self.inner.made(value, call)

    def change(self, value: Any, original: Callable[..., Any], call: dict[str, Any]) -> Any:
        self._note(f"wp.{type(value).__name__}.{original.__name__}", {"self": value, **call})
        return self.inner.change(value, original, call)

    def _note(self, title: str, call: dict[str, Any]) -> None:
        self._steps.append((title, tuple((name, self._told(value)) for name, value in call.items())))

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
