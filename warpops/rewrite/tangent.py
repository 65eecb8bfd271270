"""The tangent kernel: a kernel that computes, beside each float of the user's kernel, its directional derivative.

It is made statement by statement. Each float array, local and struct has a twin; integers and control flow stay as they
are. It is a kernel like any other, with an adjoint of Warp's, so that second derivatives follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..frozen import frozen
from ..private import warp_code, warp_source, warp_types
from .source import make_func, make_kernel
from .tangent_expressions import Expressions
from .tangent_scope import GrownError, MixedArraysError, Scope, TangentError, holds_arrays
from .tangent_statements import Statements
from .typed import Typed, UntypedError, typed


@frozen
class TangentFunction:
    """The tangent of one of the user's functions, for the parameters that have one."""

    function: Any
    """It takes the function's parameters, then their tangents; it returns the values, then their tangents: as fields of
    one struct where the function stores to arrays. In its reverse pass Warp runs a function of several results again as
    it is, stores and all, whatever replaces it there."""
    results: tuple[bool, ...]
    """Which results have a tangent."""
    writes: bool
    """It writes tangents into arrays."""
    loses: frozenset[str]
    """Array parameters without a tangent that it stores values with one into."""
    packs: bool
    """Several results come as one struct."""


def tangent_kernel(
    kernel: Any,
    twins: Mapping[str, str | None],
    dropped: Collection[str],
    written: Collection[str],
    extremes: Collection[str] = (),
) -> Any:
    """Make the tangent kernel of a concrete kernel.

    Args:
        kernel: the user's.
        twins: by the dotted name of each float array of the arguments, the name of the argument that holds its tangent;
            None where the tangent is zero.
        dropped: arrays that are stored to, and that the new kernel leaves out.
        written: arrays whose tangent is stored wherever the array is.
        extremes: arrays of maxima or minima, which are given as the kernel leaves them.

    Returns:
        A ``wp.Kernel`` with the arguments of ``kernel`` (less ``dropped``), then the twins in their order.

    Raises:
        TangentError: something has no tangent.
    """
    maker = _Maker(warp_code.module_options(kernel))
    read = maker.read(kernel)
    scope = Scope(kernel, read)
    for name in twins.values():
        if name is not None and scope.names.fresh(name) != name:
            raise TangentError(f"the kernel uses the name '{name}', which its tangent needs")
    scope.leaves, scope.heads = dict(twins), frozenset(read.arguments)
    scope.dropped, scope.written, scope.extremes = dropped, written, extremes
    types = dict(warp_types.argument_types(kernel))
    maker.body(scope, lambda: _twins_by_value(scope, twins, types))
    name = f"{read.tree.name}_tangent"
    parameters = [n for n in types if n not in dropped]
    annotations = {n: types[n] for n in parameters}
    for label, twin in twins.items():
        if twin is not None:
            annotations[twin] = warp_types.type_at(types, label)
    text = scope.text(name, annotations)
    return make_kernel(kernel, text, name, scope.given, annotations)


def _twins_by_value(scope: Scope, twins: Mapping[str, str | None], types: Mapping[str, Any]) -> None:
    """Locals that hold the twins of arguments by value: of structs used as a whole, and of what is assigned to."""
    for name, kind in types.items():
        if name not in scope.active:
            continue
        twin = scope.twin(name)
        scope.add(f"{twin} = {scope.blank(kind)}")
        for label, array in twins.items():
            if label.split(".")[0] == name and array is not None:
                scope.add(f"{twin}{label[len(name) :]} = {array}")


def _begin(scope: Scope, twins: Collection[str]) -> None:
    """A zero for what is given without a tangent, and assigned a value with one."""
    for name, kind in scope.typed.arguments.items():
        if name in scope.active and name not in twins:
            if holds_arrays(kind):
                raise MixedArraysError(f"'{name}' is given without a tangent to '{scope.owner.key}', which assigns one")
            scope.add(f"{scope.twin(name)} = {scope.blank(kind)}")


class _Maker:
    """Makes the tangent functions that one tangent kernel calls, each once."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self._functions: dict[tuple[Any, tuple[bool, ...]], TangentFunction] = {}
        self._read: dict[Any, Typed] = {}

    def read(self, owner: Any) -> Typed:
        """A kernel or function as Warp reads it."""
        if owner not in self._read:
            try:
                self._read[owner] = typed(owner, self.options)
            except UntypedError as error:
                raise TangentError(f"Warp can't build '{owner.key}': {error}") from error
        return self._read[owner]

    def stores(self, function: Any) -> bool:
        """Whether a user's function, or one that it calls, writes to arrays."""
        if function.native_snippet is not None:
            return False  # as far as is known
        read = self.read(function)
        callees = [f for f in read.called.values() if not f.is_builtin()]
        return read.writes() or any(map(self.stores, callees))

    def body(self, scope: Scope, begin: Callable[[], None]) -> None:
        """Write a function's body, anew whenever one more local turns out to have a tangent."""
        while True:
            scope.start()
            try:
                begin()
                Statements(scope, Expressions(scope, self.function, self.stores)).write(scope.typed.tree.body)
            except GrownError:
                continue
            return

    def function(self, function: Any, active: tuple[bool, ...]) -> TangentFunction:
        """The tangent of a user's function.

        Args:
            function: a concrete overload.
            active: which parameters have a tangent.

        Raises:
            TangentError: it has none.
        """
        key = (function, active)
        if key not in self._functions:
            self._functions[key] = self._make(function, active)
        return self._functions[key]

    def _make(self, function: Any, active: tuple[bool, ...]) -> TangentFunction:
        _check(function)
        read = self.read(function)
        scope = Scope(function, read)
        twins = {}
        for name, wanted in zip(read.arguments, active, strict=True):
            if wanted:
                twins[name] = scope.twin(name)
                scope.active.add(name)
        scope.packs = read.writes(own=True) or self.stores(function)
        self.body(scope, lambda: _begin(scope, twins))
        name = scope.names.fresh(f"{read.tree.name}_tangent")
        annotations = dict(read.arguments) | {twin: read.arguments[n] for n, twin in twins.items()}
        text = scope.text(name, annotations)
        made = make_func(scope.code.func, text, name, scope.given, annotations)
        return TangentFunction(made, tuple(scope.results), scope.writes, frozenset(scope.loses), scope.packs)


def _check(function: Any) -> None:
    """Refuse what has a derivative of its own, or no source."""
    name = function.key
    if function.native_snippet is not None:
        raise TangentError(f"the native function '{name}' has no tangent rule")
    root = getattr(function, "generic_parent", None) or function
    if function.custom_grad_func is not None or root.custom_grad_func is not None:
        raise TangentError(f"'{name}' has a gradient of its own (func_grad), and no tangent rule")
    if function.custom_replay_func is not None or root.custom_replay_func is not None:
        raise TangentError(f"'{name}' has a replay of its own (func_replay), and no tangent rule")
    if any(warp_types.is_function_type(t) for t in function.input_types.values()):
        raise TangentError(f"'{name}' takes a function, and has no tangent rule")
    if warp_source.takes_references(function):
        raise TangentError(f"'{name}' takes a reference (wp.ref), and has no tangent rule")
