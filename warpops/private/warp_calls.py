"""Warp's launching side, for as long as a program runs: its calls of Warp come to a watcher of its thread.

Warp's tape is one for the whole process, is told of a launch after the fact, and hears nothing of fills, scans and
sorts. A program's gradient needs all of them, and before they happen. So the functions listed here are wrapped while
any program runs, and put back after. A wrapper asks for its own thread's watcher; without one it is the function
itself.

``tests/program/`` fails first when a new Warp changes any of it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import warp as wp
import warp._src.context as _context
import warp._src.types as _types
import warp._src.utils as _utils

from ..errors import SignatureError
from . import locks
from .warp_types import OBJECTS, size_in_bytes


class Watcher:
    """What a program's run does with its calls of Warp: as it is here, hand them on."""

    op: str
    """The name of its op, for messages."""
    inner: Watcher
    """Who is told next."""

    def launch(self, original: Callable[..., Any], call: dict[str, Any]) -> Any:
        """``wp.launch`` of a concrete kernel, with its arguments by name."""
        return self.inner.launch(original, call)

    def call(self, name: str, original: Callable[..., Any], call: dict[str, Any]) -> Any:
        """A library function of ``LIBRARY`` with its arguments by name."""
        return self.inner.call(name, original, call)

    def read(self, name: str, array: Any) -> None:
        """An array's data goes where it isn't followed any more."""
        self.inner.read(name, array)

    def emptied(self, array: Any) -> None:
        """An array was made, which holds anything."""
        self.inner.emptied(array)

    def made(self, value: Any, call: dict[str, Any]) -> None:
        """A Mesh, Bvh, HashGrid or Volume was made, of these arguments by name."""
        self.inner.made(value, call)

    def change(self, value: Any, original: Callable[..., Any], call: dict[str, Any]) -> Any:
        """A method of one that changes what it stands for, with its arguments by name."""
        return self.inner.change(value, original, call)


LIBRARY: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "copy": (("src",), ("dest",)),
    "fill_": ((), ("self",)),
    "zero_": ((), ("self",)),
    "array_scan": (("in_array",), ("out_array",)),
    "radix_sort_pairs": (("keys", "values"), ("keys", "values")),
    "segmented_sort_pairs": (("keys", "values", "segment_start_indices", "segment_end_indices"), ("keys", "values")),
    "runlength_encode": (("values",), ("run_values", "run_lengths", "run_count")),
    "array_sum": (("values",), ("out",)),
    "array_inner": (("a", "b"), ("out",)),
}
"""Warp's functions that work on arrays without a launch: the arguments that they read, and those that they write."""


def title_of(name: str) -> str:
    """A function of ``LIBRARY`` as users write it."""
    return f"wp.array.{name}" if name.endswith("_") else f"wp.{name}" if name == "copy" else f"wp.utils.{name}"


CHANGERS = ("build", "refit", "rebuild", "reserve")
"""The methods that change what an object of Warp stands for."""

NATIVE = {"wp_memcpy_": "copy", "wp_array_copy_": "copy", **{f"wp_{name}_": name for name in LIBRARY}}
"""Warp's native functions that do the work of those, by how their names begin."""

_local = threading.local()
_lock = locks.plain()
_users = 0
_installed: list[tuple[Any, str, Any, Any]] = []
"""What is wrapped now: its owner and name, the original and the wrapper."""
_wrappers: dict[Any, tuple[Any, Any]] = {}
"""By target, the original and its wrapper."""


@contextlib.contextmanager
def watching(new: Watcher) -> Iterator[None]:
    """This thread's calls of Warp go to a new watcher."""
    global _users
    before = watcher()
    with _lock:
        if _users == 0:
            _install()
        _users += 1
    _local.watcher = new
    try:
        yield
    finally:
        _local.watcher = before
        with _lock:
            _users -= 1
            if _users == 0:
                _restore()


def _install() -> None:
    for target in _targets():
        owner, name, make = target
        original = owner.__dict__[name]
        known = _wrappers.get(target)
        if known is None or known[0] is not original:
            known = _wrappers[target] = original, make(name, original)
        setattr(owner, name, known[1])
        _installed.append((owner, name, *known))


def _restore() -> None:
    for owner, name, original, wrapper in reversed(_installed):
        if owner.__dict__.get(name) is wrapper:  # not what somebody else put there meanwhile
            setattr(owner, name, original)
    _installed.clear()


@functools.cache
def _targets() -> tuple[tuple[Any, str, Callable[[str, Any], Any]], ...]:
    found: list[tuple[Any, str, Callable[[str, Any], Any]]] = [
        (_context.Launch, "launch", _refused("recorded launches aren't seen by the op; call wp.launch")),
        (wp.Tape, "__enter__", _refused("the op differentiates a program by itself; leave the tape out")),
        (wp.array, "numpy", _read),
        (wp.array, "__dlpack__", _read),
        (wp.array, "__array_interface__", _read_property),
        (wp.array, "__cuda_array_interface__", _read_property),
        (wp, "to_torch", _read),
        (wp, "to_dlpack", _read),
        (_context, "pack_arg", _bound_early("wp.launch")),
        (_context.runtime, "core", _guarded_core),
        (
            threading.Thread,
            "start",
            _refused("launches of another thread aren't seen by the op; launch in the program's own"),
        ),
    ]
    if hasattr(wp.array, "__array__"):  # an older Warp has __array_interface__ alone
        found.append((wp.array, "__array__", _read))
    found += [(owner, "__init__", _making) for owner in OBJECTS]
    found += [(owner, name, _changing) for owner in OBJECTS for name in CHANGERS if name in owner.__dict__]
    for owner in (wp, _context):
        found += [(owner, "launch", _watched_launch), (owner, "copy", _watched_call), (owner, "empty", _emptying)]
    for name in ("fill_", "zero_"):
        found += [
            (wp.array, name, _watched_call),
            (_types.noncontiguous_array_base, name, _refused("take plain arrays")),
        ]
    for owner in (wp.utils, _utils):
        found += [(owner, name, _watched_call) for name in LIBRARY if name in owner.__dict__ and name != "copy"]
    return tuple(found)


def watcher() -> Any:
    """This thread's watcher."""
    return getattr(_local, "watcher", None)


def original(name: str) -> Any:
    """A method of arrays, not its wrapper."""
    return behind(wp.array.__dict__[name])


def behind(value: Any) -> Any:
    """What was there before a wrapper was put in its place."""
    for _, _, original, wrapper in (*_installed,):
        if value is wrapper:
            return original
    return value


@functools.lru_cache(maxsize=64)
def _parameters(original: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The names of a function's parameters, and the defaults."""
    parameters = inspect.signature(original).parameters.values()
    return tuple(p.name for p in parameters), {p.name: p.default for p in parameters if p.default is not p.empty}


def _bound(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments by name, defaults included. What doesn't fit is told by the original's own ``TypeError``."""
    names, defaults = _parameters(original)
    call = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
    if len(call) != len(names) or len(args) > len(names):
        original(*args, **kwargs)
    return call


Tell = Callable[..., Any]
"""Of the watcher, the function's name, itself, and a call's arguments and keywords."""


def _watched(tell: Tell) -> Callable[[str, Any], Any]:
    """What makes wrappers of Warp's functions, which tell this thread's watcher; meanwhile those are themselves."""

    def wrapper(name: str, original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            told = watcher()
            if told is None:
                return original(*args, **kwargs)
            _local.watcher = None
            try:
                return tell(told, name, original, args, kwargs)
            finally:
                _local.watcher = told

        return call

    return wrapper


@_watched
def _watched_launch(watcher: Any, name: str, original: Any, args: Any, kwargs: Any) -> Any:
    call = _bound(original, args, kwargs)
    kernel, arguments = call["kernel"], (*call["inputs"], *call["outputs"])
    if call["record_cmd"]:
        refuse(watcher.op, "wp.launch(record_cmd=True)", "leave it out")
    if not isinstance(kernel, wp.Kernel) or len(arguments) != len(kernel.adj.args):
        return original(**call)  # which says what is wrong
    call["kernel"] = overload_for(kernel, arguments)
    return watcher.launch(original, call)


@_watched
def _watched_call(watcher: Any, name: str, original: Any, args: Any, kwargs: Any) -> Any:
    return watcher.call(name, original, _bound(original, args, kwargs))


@_watched
def _read(watcher: Any, name: str, original: Any, args: Any, kwargs: Any) -> Any:
    watcher.read(name, args[0])
    return original(*args, **kwargs)


@_watched
def _making(watcher: Any, name: str, original: Any, args: Any, kwargs: Any) -> None:
    original(*args, **kwargs)
    call = _bound(original, args, kwargs)
    watcher.made(call.pop("self"), call)


@_watched
def _changing(watcher: Any, name: str, original: Any, args: Any, kwargs: Any) -> Any:
    call = _bound(original, args, kwargs)
    return watcher.change(call.pop("self"), original, call)


@_watched
def _emptying(watcher: Any, name: str, original: Any, args: Any, kwargs: Any) -> Any:
    array = original(*args, **kwargs)
    watcher.emptied(array)
    return array


def _read_property(name: str, original: Any) -> Any:
    return property(_read(name, original.fget))


def _refused(advice: str, name: str | None = None) -> Callable[[str, Any], Any]:
    """What makes wrappers that refuse; ``name``: what is refused, None for the function itself."""

    @_watched
    def refused(watcher: Any, _: str, original: Any, args: Any, kwargs: Any) -> NoReturn:
        refuse(watcher.op, name or original.__qualname__, advice)

    return refused


def refuse(op: str, name: str, advice: str) -> NoReturn:
    """Refuse a call that a program can't make.

    Raises:
        SignatureError: always.
    """
    raise SignatureError(f"{op}: the program calls {name}, which a program can't: {advice}")


def _bound_early(title: str) -> Callable[[str, Any], Any]:
    """For what a function of Warp's does without that its wrapper has seen the call: it was called by a name bound earlier."""
    name = title.removeprefix("wp.")
    return _refused(f"write {title}, which the op can follow", f"{name} by a name imported from warp")


class _Core:
    """Warp's native library, with refusals in place of the functions of ``NATIVE``."""

    def __init__(self, core: Any) -> None:
        self._core = core
        for name, original in vars(core).items():
            function = next((NATIVE[prefix] for prefix in NATIVE if name.startswith(prefix)), None)
            setattr(self, name, original if function is None else _bound_early(title_of(function))(name, original))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


def _guarded_core(name: str, original: Any) -> Any:
    return _Core(original)


def overload_for(kernel: Any, arguments: tuple[Any, ...]) -> Any:
    """The concrete kernel that ``wp.launch`` launches of a generic one with these arguments; another one as it is."""
    return kernel.add_overload(kernel.infer_argument_types(arguments)) if kernel.is_generic else kernel


# --- arrays -----------------------------------------------------------------------------------------------------------


def is_struct_instance(value: object) -> bool:
    return bool(_types.is_struct(value))


def is_other_array(value: object) -> bool:
    """An array of Warp's that isn't a plain ``wp.array``, or anything that ``wp.launch`` converts to one."""
    if isinstance(value, wp.array):
        return False
    return (
        bool(_types.is_array(value))
        or hasattr(value, "__array_interface__")
        or (hasattr(value, "__cuda_array_interface__") or hasattr(value, "__array__"))
    )


def root_array(array: Any) -> Any:
    """The array that owns the memory that a view shows."""
    while isinstance(array._ref, wp.array):
        array = array._ref
    return array


def byte_range(array: Any) -> tuple[int, int]:
    """The first byte of an array and the one after its last."""
    low = high = int(array.ptr)
    for size, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += stride * (size - 1)
        else:
            high += stride * (size - 1)
    return low, high + size_in_bytes(array.dtype)
