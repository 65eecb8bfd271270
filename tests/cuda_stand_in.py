"""CUDA devices that aren't there: everything up to the driver's call is PyTorch's, Warp's and warpops' own.

Warp builds kernels for them as for any device, its own compiler makes PTX, and what reaches Warp's entry to the driver is
recorded: function, grid, block, bytes of every argument, stream. Then the kernel is run on the CPU on these very
arguments, so that values and gradients are right, or wrong, as they would be on a device. A tensor on the CPU is taken
for one on the first device.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import sys
import threading
from dataclasses import dataclass
from typing import Any

import torch
import warp as wp
import warp._src.context as context

from warpops.launch import cuda, devices
from warpops.private import torch_modes, warp_code, warp_types


@dataclass(frozen=True)
class Launched:
    """What the driver was asked for."""

    device: int
    kernel: str
    adjoint: bool
    threads: int
    block: tuple[int, ...]
    """max_blocks, block_dim, grid_stride, cluster_dim, bytes of shared memory."""
    arguments: tuple[bytes, ...]
    """The launch bounds, then the kernel's arguments, then the explicit adjoints."""
    stream: int
    thread: int


_handles = itertools.count(0x1000, 16)
"""No two are equal, whatever stand-in they are of: Warp keeps what it loaded by them."""


class StandIn:
    """A context in which there are CUDA devices.

    Args:
        count: how many.
        execute: run the kernels, on the CPU.
        driver: the address of a C function to put in the driver's place, for measuring; nothing is recorded then.
    """

    def __init__(self, count: int = 2, execute: bool = True, driver: int = 0) -> None:
        self.count, self.execute = count, execute
        self.launched: list[Launched] = []
        self.streams: dict[tuple[int, int], int] = {}
        self.current, self.capturing, self.failing = 0, False, 0
        self.made: list[tuple[int, int]] = []
        self.loaded: list[int] = []
        self._functions: dict[int, tuple[Any, bool]] = {}
        self._contexts: dict[int, int] = {}
        self._undo = contextlib.ExitStack()
        prototype = ctypes.CFUNCTYPE(
            ctypes.c_size_t,
            *[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 5],
            *[ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_void_p],
        )
        self._silent = bool(driver)
        self._entry = prototype(driver) if driver else prototype(self._launch)

    # --- PyTorch's and Warp's side ------------------------------------------------------------------------------------

    def __enter__(self) -> StandIn:
        warp_code.runtime_ready()
        runtime = context.runtime
        self.devices = [self._device(runtime, ordinal) for ordinal in range(self.count)]
        self.patch(runtime, "core", _Core(self, runtime.core))
        self.patch(context.ModuleExec, "get_kernel_hooks", self._hooks(context.ModuleExec.get_kernel_hooks))
        self.patch(devices, "warp_device", self._warp_device)
        self.patch(devices, "is_capturing", lambda: self.capturing)
        self.patch(devices, "_streams", {})
        self.patch(sys.modules[torch_modes.has_tangent.__module__], "raw_stream", self.current_stream)
        # A driver that computes nothing passes no check.
        self.patch(cuda, "_trusted", {(0, native): True for native in (False, True)} if self._silent else {})
        self.patch(torch.cuda, "current_device", lambda: self.current)
        for name in ("synchronize", "set_device", "set_stream", "stream", "current_stream"):
            self.patch(torch.cuda, name, _forbidden(f"torch.cuda.{name}"))
        for name in ("synchronize", "synchronize_device", "ScopedStream", "ScopedDevice", "set_device", "set_stream"):
            self.patch(wp, name, _forbidden(f"wp.{name}"))
        return self

    def __exit__(self, *error: Any) -> None:
        self._undo.close()

    def patch(self, owner: Any, name: str, value: Any) -> None:
        """As ``monkeypatch.setattr``, for as long as the stand-in stands."""
        before = owner.__dict__[name]
        setattr(owner, name, value)
        self._undo.callback(setattr, owner, name, before)

    def _device(self, runtime: Any, ordinal: int) -> Any:
        device = object.__new__(context.Device)
        values = dict(runtime.cpu_device.__dict__)
        self._contexts[where := next(_handles)] = ordinal
        values |= {"alias": f"cuda:{ordinal}", "ordinal": ordinal, "is_primary": True, "_context": where}
        values |= {
            "arch": 80,
            "sm_count": 1,
            "max_shared_memory_per_block": 1 << 16,
            "captures": {},
            "name": "stand-in",
        }
        device.__dict__.update(values)
        return device

    def _warp_device(self, device: torch.device) -> Any:
        assert device.type == "cpu" or device.index is not None, "Warp takes a device with its number"
        return self.devices[device.index or 0]

    def use_stream(self, ordinal: int, handle: int) -> None:
        """What ``with torch.cuda.stream(...)`` does, in this thread."""
        self.streams[ordinal, threading.get_ident()] = handle

    def current_stream(self, ordinal: int) -> int:
        return self.streams.get((ordinal, threading.get_ident()), 0)

    # --- the driver ---------------------------------------------------------------------------------------------------

    def _hooks(self, original: Any) -> Any:
        def get_kernel_hooks(module: Any, kernel: Any) -> Any:
            hooks = original(module, kernel)
            if module.device.is_cuda:
                self._functions[hooks.forward] = (kernel, False)
                self._functions[hooks.backward] = (kernel, True)
            return hooks

        return get_kernel_hooks

    def load(self, where: int, path: bytes, *more: Any) -> int:
        self.loaded.append(self._contexts[where])
        return next(_handles)

    def register(self, where: int, stream: int) -> None:
        self.made.append((self._contexts[where], stream))

    def _launch(self, where: int, function: int, threads: int, *rest: Any) -> int:
        *block, parameters, stream, _ = rest
        kernel, adjoint = self._functions[function]
        types = [warp_types.argument_ctype(warp_type) for _, warp_type in warp_types.argument_types(kernel)]
        bounds = type(wp._src.types.launch_bounds_t((1,) * kernel.adj.kernel_dim))
        given = [bounds, *types, *(types if adjoint else ())]
        values = tuple(ctypes.string_at(parameters[k], ctypes.sizeof(kind)) for k, kind in enumerate(given))
        ordinal, thread = self._contexts[where], threading.get_ident()
        self.launched.append(Launched(ordinal, kernel.key, adjoint, threads, tuple(block), values, stream or 0, thread))
        if self.failing:
            return self.failing
        if self.execute:
            compiled = warp_code.Compiled(kernel, wp.get_device("cpu"), 1)
            compiled.load()
            layout = struct_layout(kernel)
            packed = []
            for part in (values[1 : 1 + len(types)], values[1 + len(types) :]):
                arguments = layout()
                for index, value in enumerate(part):
                    place = ctypes.addressof(arguments) + getattr(layout, f"a{index}").offset
                    ctypes.memmove(place, value, len(value))
                packed.append(bytes(arguments))
            compiled.launch(values[0], *packed[: 1 + adjoint])
        return 0


class _Core:
    """Warp's native library, with a driver."""

    def __init__(self, cuda: StandIn, own: Any) -> None:
        self._own = own
        self.wp_cuda_launch_kernel = cuda._entry
        self.wp_cuda_load_module = cuda.load
        self.wp_cuda_unload_module = lambda context, module: None
        self.wp_cuda_get_kernel = lambda context, module, name: next(_handles)
        self.wp_cuda_configure_kernel_shared_memory = lambda function, size: True
        self.wp_cuda_get_kernel_static_shared_memory = lambda context, function: 0
        self.wp_cuda_stream_register = cuda.register
        self.wp_cuda_stream_unregister = lambda context, stream: None
        self.wp_cuda_context_check = lambda context: 0
        self.wp_cuda_stream_is_capturing = lambda stream: cuda.capturing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def _forbidden(name: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"{name} was called")

    return call


def struct_layout(kernel):
    """The ctypes structure that Warp's CPU launch builds from a kernel's arguments, in their order."""
    types = [warp_types.argument_ctype(warp_type) for _, warp_type in warp_types.argument_types(kernel)]
    return type("Arguments", (ctypes.Structure,), {"_fields_": [(f"a{i}", t) for i, t in enumerate(types)]})
