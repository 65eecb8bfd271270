"""One C function that starts a kernel's launch: it reads the data pointers of all tensors, packs them, and calls the kernel.

Asking each tensor for its pointer from Python and packing it costs more than a small kernel does (``benchmarks/README.md``
has the figures). Warp brings a compiler along, so the function is compiled by Warp, as native code in a kernel of one thread that
tells its address: a fresh cache of kernels takes a second or two for it once. So it is made after the first ``AFTER``
launches of a process that would have used it. Whatever goes wrong on the way, launches go on without it.

On a CUDA device it calls Warp's entry to the driver in place of the kernel; see ``cuda.py``.

A launch comes as a ``Start``: bytes that hold all that is constant. The function reads nothing of Python's or PyTorch's
objects itself; it calls Python's stable API and PyTorch's function for a tensor's pointer by their addresses.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import torch
import warp as wp

from ..private import locks, torch_guards, warp_code
from .packing import BOUNDS, POINTER, Image, OutdatedError, UncertainError, descriptor

AFTER = 200
"""How many launches of a process go without the function before it is made."""

LARGEST = 1 << 15
"""Bytes of arguments that the function takes; they are put on the stack."""

Launch = Callable[..., None]
"""``launch(tensors, start)``, or ``launch(tensors, start, numbers)`` for a kernel that takes numbers."""

_lock = locks.plain()
_waited = 0
_made: tuple[Launch, Launch] | None = None
_failed = False
_kept: list[warp_code.Loaded] = []

_HEAD = struct.Struct("=8Q10I")
_PLACE = struct.Struct("=2I")
_COPY = struct.Struct("=3I")
_PAIR = struct.Struct("=4Q")
_DRIVER = struct.Struct("=3Q5iI8Q")


class Start(bytes):
    """What is constant about a launch, as the function reads it: addresses, tables, packed bounds, the argument structs.

    It holds the code that it starts, and so does whoever is running it.
    """

    loaded: warp_code.Loaded
    bounds: bytes
    image: Image
    way: Any | None

    def __new__(cls, loaded: warp_code.Loaded, bounds: bytes, image: Image, way: Any | None = None) -> Start:
        table = b"".join(
            [*(_PLACE.pack(*place) for place in image.places), *(_COPY.pack(*copy) for copy in image.copies)]
        )
        apart = b"".join(_PAIR.pack(*pair) for pair in image.apart)
        driver = _packed_way(way) if way is not None else b""
        pairs = _HEAD.size + len(table) + -len(table) % 8
        call = pairs + len(apart)
        at = call + len(driver) + -len(driver) % 8
        after = at + len(bounds) + -len(bounds) % 16
        head = _HEAD.pack(
            *(_address(loaded.entry(image.adjoint)) if way is None else _address(way.entry), *_addresses()),
            *(len(image.packed), image.second, len(image.places), len(image.copies)),
            *(len(image.apart), pairs, call if way is not None else 0, at, after, 0),
        )
        parts = (
            (head + table).ljust(pairs, b"\0"),
            apart,
            driver.ljust(at - call, b"\0"),
            bounds.ljust(after - at, b"\0"),
        )
        self = super().__new__(cls, b"".join((*parts, image.packed)))
        self.loaded, self.bounds, self.image, self.way = loaded, bounds, image, way
        return self


def by_hand(start: Start) -> Launch:
    """The function's work in Python, until there is the function."""
    image, way = start.image, start.way
    entry = start.loaded.entry(image.adjoint)

    def launch(tensors: tuple[Any, ...], start: Start, numbers: bytes = b"") -> None:
        if due():
            raise OutdatedError
        made = image.filled(tensors, numbers)
        for left, span, right, more in image.apart:
            first, second = (POINTER.unpack_from(made, at)[0] for at in (left, right))
            if first < second + more and second < first + span:
                raise UncertainError
        if way is not None:
            way.launch(start.bounds, made)
        elif image.adjoint:
            entry(start.bounds, bytes(made[: image.second]), bytes(made[image.second :]))
        else:
            entry(start.bounds, bytes(made))

    return launch


def ready() -> tuple[Launch, Launch] | None:
    """The function, for launches without numbers and with; None where there is none (yet)."""
    return _made


def due() -> bool:
    """Count a launch that goes without the function, and make it when there were enough; whether it is there."""
    global _waited
    if _made is not None:
        return True
    if _failed:
        return False
    _waited += 1
    if _waited <= AFTER:
        return False
    make()
    return _made is not None


def make() -> None:
    """Make the function, unless that is going on: in another thread, or in this one, whose collector runs finalisers."""
    global _made, _failed
    if not _lock.acquire(blocking=False):
        return
    try:
        if _made is None and not _failed:
            _made = _build()
    except Exception:  # a compiler, a Python or a PyTorch that differs: launches go on without
        _failed = True
    finally:
        _lock.release()


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _packed_way(way: Any) -> bytes:
    """What is called, Warp's graphs in capture, and Python's functions and objects that tell the stream or an error."""
    python = ctypes.pythonapi
    functions = [python.PyObject_Size, python.PyObject_CallObject, python.PyLong_AsVoidPtr, python.Py_DecRef]
    size, call, pointer, release = map(_address, functions)
    found = _DRIVER.pack(
        *(
            *way.driver,
            len(way.starts),
            id(way.captures),
            size,
            call,
            id(way.stream_of),
            id(way.stream),
            pointer,
            release,
        ),
        id(way.failed),
    )
    return found + struct.pack(f"={len(way.starts)}I", *way.starts)


def _addresses() -> tuple[int, ...]:
    """PyTorch's function for a tensor's pointer; ``PyTuple_GetItem``, ``None``, the two functions that hand on the GIL,
    the one that raises, and what it raises."""
    python = ctypes.pythonapi
    functions = [python.PyTuple_GetItem, python.PyEval_SaveThread, python.PyEval_RestoreThread, python.PyErr_SetNone]
    item, save, restore, set_error = map(_address, functions)
    return (torch_guards.DATA_PTR or 0, item, id(None), save, restore, set_error, id(UncertainError))


def _build() -> tuple[Launch, Launch]:
    if not torch_guards.DATA_PTR:
        raise RuntimeError("PyTorch doesn't tell its function for a tensor's pointer")
    from .native_kernel import tell_address  # a kernel, which Warp would build along with a program's own

    warp_code.runtime_ready()
    address = torch.zeros(1, dtype=torch.int64, device="cpu")
    array = wp.from_torch(address, dtype=wp.uint64, requires_grad=False)
    wp.launch(tell_address, 1, inputs=[array], device="cpu", record_tape=False)
    found = int(address)
    compiled = warp_code.Compiled(
        tell_address, wp.get_device("cpu"), warp_code.resolved_block_dim(wp.get_device("cpu"), None)
    )
    loaded = compiled.load()
    _kept.append(loaded)
    plain = ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.c_char_p)(found)
    numbered = ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.c_char_p, ctypes.c_char_p)(found)
    address.zero_()
    image = Image(descriptor((1,), (1,), 8), 0, ((0, 0),), ())
    plain((address,), Start(loaded, BOUNDS[1](1, 1, 1), image))
    if int(address) != found:
        raise RuntimeError("the function doesn't launch as Warp does")
    return plain, numbered
