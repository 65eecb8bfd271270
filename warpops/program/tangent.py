"""The tangent of a program: the same function, run on values and tangents.

Each launch becomes one of the kernel's tangent kernel, each copy, fill and scan is made of the tangents too. What comes of it are
launches and calls like a program's own, so that the tangent of a program is a program: it has a backward, its runs are
repeated, and it has a tangent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import warp as wp

from ..errors import GradientError
from ..private import warp_calls, warp_code, warp_source, warp_types
from ..private.warp_calls import LIBRARY, Watcher, byte_range, root_array, title_of, watching
from ..private.warp_types import holds_floats
from ..rewrite.source import Names
from ..rewrite.tangent import tangent_kernel
from ..rewrite.tangent_scope import MixedArraysError, TangentError
from ..transforms.tangents import check_kernel
from .checks import leaves, leaves_of
from .memory import uses_of

Kernels = dict[Any, tuple[Any, tuple[str, ...]]]
"""Tangent kernels, and the arrays that they take the tangents of in their order, by the kernel and which arrays have one."""


def on_tangents(
    of: Any, twins: Mapping[str, str], zero: frozenset[str]
) -> tuple[Callable[..., None], list[tuple[str, Any]]]:
    """The function of a program run on values and tangents, and its arguments: the program's, then one for each tangent.

    Args:
        of: the program.
        twins: by an array's label, the argument that is its tangent.
        zero: the arrays, by label, whose tangent is zero before the program runs.
    """
    types = dict(warp_types.argument_types(of))
    kernels: Kernels = {}

    def run(*arguments: Any) -> None:
        own = dict(zip(types, arguments[: len(types)], strict=True))
        tangents = dict(zip(twins.values(), arguments[len(types) :], strict=True))
        trace = warp_calls.watcher()
        twice = Twice(kernels, trace.inner)
        for name, value in own.items():
            for label, array in leaves_of(name, value):
                if isinstance(array, wp.array) and array.size and holds_floats(array.dtype):
                    tangent = tangents.get(twins.get(label, ""))
                    twice.add(array, tangent, active=tangent is not None and label not in zero)
        trace.stand_before(twice, own.items())
        with watching(trace):
            of.func(*own.values())

    run.__name__ = run.__qualname__ = f"{of.func.__name__}_tangent"
    run.__module__, run.__doc__ = of.func.__module__, of.func.__doc__
    return run, [*types.items(), *((twin, warp_types.type_at(types, label)) for label, twin in twins.items())]


def _kernel_of(
    kernels: Kernels, kernel: Any, given: Mapping[str, Any], active: frozenset[str]
) -> tuple[Any, tuple[str, ...]]:
    """The tangent kernel of a concrete one, kept in ``kernels``.

    Args:
        given: its arguments by label.
        active: the arrays that have a tangent, by label.

    Raises:
        TangentError: it has none.
    """
    floats = tuple(label for label, value in given.items() if isinstance(value, wp.array) and holds_floats(value.dtype))
    key = kernel, floats, active
    found = kernels.get(key)
    if found is None:
        effects, uses = uses_of(kernel)
        check_kernel(kernel, effects)
        written = frozenset(label for label in floats if label not in uses or uses[label].writes)
        try:
            found = _make(kernel, floats, active | written, written)
        except MixedArraysError:
            found = _make(kernel, floats, frozenset(floats), written)
        kernels[key] = found
    return found


def _make(
    kernel: Any, every: tuple[str, ...], twins: frozenset[str], written: frozenset[str]
) -> tuple[Any, tuple[str, ...]]:
    """The tangent kernel where ``every`` array is given, of which ``twins`` have a tangent."""
    names = Names({label.partition(".")[0] for label in every} | {n for n, _ in warp_types.argument_types(kernel)})
    wanted = {label: names.fresh(f"tangent_{label.replace('.', '_')}") if label in twins else None for label in every}
    taken = tuple(label for label in every if wanted[label] is not None)
    return tangent_kernel(kernel, wanted, frozenset(), written), taken


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Twin:
    """A piece of memory, and that of its tangent."""

    low: int
    high: int
    owner: Any
    tangent: Any = None
    """An array that begins where the memory does; None while nobody has asked for a tangent of zero."""
    active: bool = False
    """The tangent may be anything but zero."""


class Twice(Watcher):
    """Watches one run of a program, and makes of each launch and call those on values and tangents."""

    def __init__(self, kernels: Kernels, inner: Watcher) -> None:
        self.kernels, self.inner = kernels, inner
        self.blocks: list[Twin] = []
        self.op = inner.op

    def add(self, array: Any, tangent: Any, active: bool) -> None:
        """One of the program's arguments, with the memory of its tangent, where there is one."""
        self.blocks.append(Twin(*byte_range(array), array, tangent, active))

    def block_of(self, array: Any) -> Twin:
        for block in self.blocks:
            if block.low <= array.ptr < block.high:
                return block
        root = root_array(array)
        low, high = byte_range(root)
        if not low <= array.ptr < high:
            low, high = byte_range(array)
        self.blocks.append(Twin(low, high, root))
        return self.blocks[-1]

    def active(self, value: Any) -> bool:
        plain = isinstance(value, wp.array) and value.size and holds_floats(value.dtype)
        return bool(plain) and self.block_of(value).active

    def twin(self, array: Any) -> Any:
        """The tangent of an array: a view like it into the tangent's memory."""
        if not array.size:
            return array
        block = self.block_of(array)
        if block.tangent is None:
            with watching(self.inner):
                block.tangent = wp.zeros(block.high - block.low, dtype=wp.uint8, device=array.device)
        made: Any = wp.array(
            ptr=block.tangent.ptr + array.ptr - block.low,
            dtype=array.dtype,
            shape=array.shape,
            strides=array.strides,
            device=array.device,
        )
        made._ref = block.tangent
        return made

    def no_tangent(self, what: str) -> NoReturn:
        raise GradientError(
            f"{self.op}: the program's tangent passes through {what}; second derivatives and jvp can't be had, unless "
            f"the op gets a differentiable backward with register_backward, or with the option backward"
        )

    # --- what Warp's functions come to --------------------------------------------------------------------------------

    def launch(self, original: Callable[..., Any], call: dict[str, Any]) -> Any:
        kernel, arguments = call["kernel"], (*call["inputs"], *call["outputs"])
        given = dict(leaves(kernel, arguments))
        active = frozenset(label for label, value in given.items() if self.active(value))
        if not active:
            return self.inner.launch(original, call)
        if call["adjoint"]:
            self.no_tangent(f"the adjoint of the kernel {kernel.key}, which has none")
        try:
            made, labels = _kernel_of(self.kernels, kernel, given, active)
        except TangentError as error:
            self.no_tangent(f"the kernel {kernel.key}, which has none: {error}")
        try:
            warp_code.build(made, given[min(active)].device, call["block_dim"])
        except Exception as error:
            where = ":".join(map(str, warp_source.source_location(kernel)))
            self.no_tangent(f"the kernel {kernel.key}, whose tangent kernel Warp can't build: {error} ({where})")
        twins = [self.twin(given[label]) if given[label] is not None else None for label in labels]
        result = self.inner.launch(original, {**call, "kernel": made, "inputs": [*arguments, *twins], "outputs": []})
        for label in labels:
            value = given[label]
            if isinstance(value, wp.array) and value.size:
                self.block_of(value).active = True
        return result

    def call(self, name: str, original: Callable[..., Any], call: dict[str, Any]) -> Any:
        reads, writes = LIBRARY[name]
        sources = [argument for argument in reads if self.active(call[argument])]
        targets = [argument for argument in writes if self.active(call[argument])]
        result = self.inner.call(name, original, dict(call))
        if not sources and not targets:
            return result
        if name in ("fill_", "zero_"):
            self.inner.call("zero_", warp_calls.original("zero_"), {"self": self.twin(call["self"])})
        elif name in ("copy", "array_scan"):
            self.inner.call(name, original, call | {n: self.twin(call[n]) for n in (*reads, *writes)})
            for argument in writes:
                block = self.block_of(call[argument])
                block.active = block.active or bool(sources)
        else:
            self.no_tangent(f"{title_of(name)}, which has none; keep it to ints, or write that step as a kernel")
        return result

    def read(self, name: str, array: Any) -> None:
        if self.active(array):
            self.no_tangent(f"{name}, which reads an array as numbers")
        self.inner.read(name, array)

    def made(self, value: Any, call: dict[str, Any]) -> None:
        if isinstance(value, wp.Mesh) and any(map(self.active, call.values())):
            self.no_tangent("a mesh made of arrays that have one")
        self.inner.made(value, call)
