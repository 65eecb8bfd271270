"""Warp's private side: loaded code, and kernels made of kernels.

``tests/test_warp_private.py`` fails first when a new Warp changes any of it.
"""

from __future__ import annotations

import inspect
import itertools
import typing
from collections.abc import Callable
from typing import Any

import warp as wp
import warp._src.codegen as _codegen
import warp._src.context as _context
import warp._src.types as _types

from ..errors import ArgumentError, GradientError
from . import locks
from .told import while_building
from .warp_types import admits, argument_types, type_name

locks.renewed(getattr(_codegen, "_codegen_lock", None))

_exec_ids = itertools.count(1_000_000, 1_000)


def backward_enabled(kernel: Any) -> bool:
    """Whether the kernel is compiled with its adjoint."""
    own = kernel.options.get("enable_backward")
    if own is None:
        own = kernel.module.options.get("enable_backward", True)
    return bool(own)


def module_options(kernel: Any) -> dict[str, Any]:
    """The options that a kernel is built with."""
    return {**kernel.module.options, **kernel.options}


def module_like(module: Any, name: str) -> Any:
    """A module with the options of another one, and a name after it."""
    made = _context.Module(f"{module.name}_{name}", None)
    made.options = dict(module.options)
    return made


def copy_of(kernel: Any, module: Any) -> Any:
    """A kernel of the same source in another module."""
    return _context.Kernel(
        func=kernel.func,
        key=kernel.key,
        module=module,
        options=dict(kernel.options),
        code_transformers=kernel.adj.transformers,
        source=kernel.adj.source,
    )


def specialize(op: str, kernel: Any, types: list[Any]) -> Any:
    """A generic kernel for concrete argument types, as a copy in a module of its own. ``op`` is the name for messages.

    Warp builds all overloads of a module together, so that one which can't be built would take the rest with it.
    """
    module = module_like(kernel.module, kernel.key.split(".")[-1])
    # Code on the CPU is found by the module's name and this number, which starts at zero in each module.
    module.cpu_exec_id = next(_exec_ids)
    copy = copy_of(kernel, module)
    concrete = copy.add_overload(types)
    concrete.adj.fun_lineno = kernel.adj.fun_lineno  # a source that is given begins at line 1
    told = ", ".join(f"'{name}': {type_name(warp_type)}" for name, warp_type in argument_types(concrete))
    title = f"{op}: the generic kernel can't be built for the types of this call ({told}; wp.overload declares others)"
    unless_built(concrete, lambda error: ArgumentError(f"{title}: {error}"))
    return concrete


def unless_built(kernel: Any, say: Callable[[object], Exception]) -> None:
    """Have a kernel that Warp can't build say so in words of its own, of Warp's."""
    kernel.say_unbuilt = say


def build(kernel: Any, device: Any, block_dim: int | None) -> None:
    """Build and load a kernel's module for one of Warp's devices, whatever Warp raises."""
    threads = resolved_block_dim(device, block_dim)
    with while_building(kernel.module, device, threads):
        kernel.module.load(device, threads)


def share_scalars(left: Any, right: Any) -> bool:
    """Whether two generic element types can have one scalar type in common."""
    return any(admits(left, scalar) and admits(right, scalar) for scalar in _types.scalar_types)


loading = locks.reentrant()


class Loaded(typing.NamedTuple):
    """The code of one kernel. Whoever runs it holds this object: Warp unloads code with the last reference to ``exec``."""

    exec: Any
    forward: Any
    adjoint: Any
    """A function of packed bounds, arguments and explicit adjoints; None where the kernel has no backward."""
    hashers: Any
    """The module's, as they were: Warp makes new ones when it has to be loaded again."""

    def entry(self, adjoint: bool) -> Any:
        return self.adjoint if adjoint else self.forward


class Compiled:
    """One kernel, loaded on one device: calls its entry points with packed arguments.

    The argument structs arrive as ``bytes`` (one immutable object per launch, so any number of threads may launch),
    laid out as in C. The module is loaded again when Warp has marked it modified, as ``wp.launch``
    would do.
    """

    loaded: Loaded

    def __init__(
        self, kernel: Any, device: Any, block_dim: int, watched: Any = None, before: Callable[[], None] | None = None
    ) -> None:
        """``watched`` is another module that has to be as it was, and ``before`` is called before the kernel is loaded."""
        self.kernel = kernel
        self.module = kernel.module
        self.watched = watched or kernel.module
        self.device = device
        self.block_dim = block_dim
        self._before = before

    def load(self) -> Loaded:
        """Build and load the module where that is needed, and look the entry points up.

        Warp's own loading isn't made for several threads, and its modules are shared by kernels.
        """
        with loading:
            if self._before is not None:
                self._before()
            self.loaded = self._load()
            return self.loaded

    def _load(self, last: bool = False) -> Loaded:
        # Until Warp 1.16 a second attempt may build something else out of what the first one left.
        say, failed = (getattr(self.kernel, name, None) for name in ("say_unbuilt", "build_error"))
        if say is not None and failed is not None:
            raise say(failed)
        hashers = self.watched.hashers
        try:
            with while_building(self.module, self.device, self.block_dim):
                found = self.module.load(self.device, self.block_dim)
        except Exception as error:
            if say is None:
                raise
            self.kernel.build_error = str(error)
            raise say(error) from error
        if not found:
            raise RuntimeError(f"Warp failed to load the module {self.module.name} on {self.device}")
        try:
            hooks = found.get_kernel_hooks(self.kernel)
        except (KeyError, RuntimeError):  # of its hash, until Warp 1.17
            if last:
                raise
            # Another thread was building the module when the kernel came into it: Warp took that for all there is.
            self.module.mark_modified()
            return self._load(last=True)
        return Loaded(found, hooks.forward, hooks.backward, hashers)

    def current(self) -> Loaded:
        """The code of the kernel as it is now."""
        loaded = self.loaded
        return loaded if self.watched.hashers is loaded.hashers else self.load()

    def launch(self, bounds: bytes, *packed: bytes) -> None:
        """With the packed arguments, for the adjoint followed by the packed explicit adjoints."""
        loaded = self.current()
        loaded.entry(len(packed) > 1)(bounds, *packed)


def disown(kernel: Any) -> None:
    """Take a kernel out of its module, which is built with all that it has."""
    module = kernel.module
    if module.kernels.get(kernel.key) is kernel:
        del module.kernels[kernel.key]
    module._live_kernels.discard(kernel)
    module.mark_modified()


def no_adjoint(kernel: Any) -> GradientError:
    """What is said where a gradient is asked of a kernel that was built without its adjoint."""
    return GradientError(
        f"{kernel.key}: the kernel is compiled without its backward (enable_backward=False), so that it has no gradient"
    )


_ready = False


def runtime_ready() -> None:
    """Start Warp quietly where nobody has yet. Warp starts in steps, which other threads mustn't see."""
    global _ready
    if not _ready:
        with loading:
            wp.init()
            _ready = True


def resolved_block_dim(device: Any, block_dim: int | None) -> int:
    """The block size that Warp launches with."""
    resolve = getattr(_context, "_resolve_launch_block_dim", None)
    if resolve is not None:
        return int(resolve(device, block_dim))
    # Until Warp 1.17 a block on the CPU is one thread.
    return 1 if device.is_cpu else int(block_dim or 256)


def launch_rank(kernel: Any) -> int:
    """The rank of ``wp.tid()``, known once the module is loaded (1 for a kernel that doesn't call it)."""
    return int(kernel.adj.kernel_dim)


def has_entry_point(kernel: Any, block_dim: int) -> bool:
    """Whether the entry points can be called directly on the CPU."""
    return block_dim == 1 and bool(getattr(kernel, "uses_warp_entry_point_abi", True))


def capturing() -> bool:
    """Whether Warp records what is launched."""
    return getattr(_context.runtime, "_apic_capture", None) is not None


# --- kernels made of kernels ------------------------------------------------------------------------------------------


def is_rewritable(kernel: Any) -> bool:
    """Whether a kernel's source is all that there is to it: no transformers, no clusters, no entry point of its own."""
    options = module_options(kernel)
    return (
        not kernel.adj.transformers
        and getattr(kernel, "uses_warp_entry_point_abi", True)
        and (options.get("cluster_dim") or 1) == 1
        and not getattr(kernel.adj, "ref_params", None)
    )


def sibling_kernel(kernel: Any, function: Any, key: str, **other: Any) -> Any:
    """A kernel of another function with the options of ``kernel``, less those that are other ones, in a module of its own:
    the user's isn't rebuilt."""
    options = {"module": "unique", "module_options": dict(kernel.module.options), **kernel.options, **other}
    if "name" in inspect.signature(wp.kernel).parameters:
        return wp.kernel(function, name=key, **options)
    function.__qualname__ = key  # until Warp 1.16 a kernel's name is its function's
    return wp.kernel(function, **options)


def sibling_function(function: Any, key: str, overload_of: Any = None) -> Any:
    """A ``wp.Function`` of a Python function, in a module of its own; ``overload_of`` gets it as another overload, and is
    what is returned then."""
    made = wp.func(function, name=key, module="unique")
    if overload_of is None:
        return made
    overload_of.add_overload(made)
    return overload_of


def builtin(name: str) -> Any:
    """One of Warp's builtins, a hidden one too."""
    return _context.builtin_functions[name]
