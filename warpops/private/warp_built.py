"""Warp's private side: the types that its own building of a kernel finds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import warp as wp
import warp._src.codegen as _codegen
import warp._src.context as _context
import warp._src.types as _types

from .warp_code import copy_of, loading, module_like


def local_types(kernel: Any) -> list[tuple[Any, Any, dict[str, Any], list[Any]]]:
    """The types of the variables of a concrete kernel, and of the functions that it calls, as Warp infers them.

    Returns:
        For each: the Python function, the ``wp.Function`` (None for the kernel), the types by name, and those of the
        results. A generic function is there once for each set of types.
    """
    with loading:
        module = module_like(kernel.module, "types")
        copy = copy_of(kernel, module)
        if copy.is_generic:
            copy = copy.add_overload([argument.type for argument in kernel.adj.args])
        resolve = getattr(module, "resolve_options", None)
        options = dict(module.options) if resolve is None else resolve(wp.config, block_dim=module.options["block_dim"])
        options |= {"output_arch": None, **kernel.options}
        builder = _context.ModuleBuilder(module, options)
        found = [(copy.func, None, copy.adj), *((f.func, f, f.adj) for f in builder.functions)]
        return [
            (func, owner, _types_of(adj.symbols), [strict_type(result.type) for result in adj.return_var or ()])
            for func, owner, adj in found
            if func is not None
        ]


def _types_of(symbols: dict[str, Any]) -> dict[str, Any]:
    types = {name: getattr(variable, "type", None) for name, variable in symbols.items()}
    return {name: strict_type(found) for name, found in types.items() if found is not None}


def strict_type(warp_type: Any) -> Any:
    """The type of a value of this type, by its one name: ``float`` is ``float32``."""
    return _types.type_to_warp(_types.strip_reference(warp_type))


def types_of(found: Any) -> Any:
    """The type of what Warp made of an expression; a list for several results, None for what isn't a value."""
    if isinstance(found, _codegen.Var):
        return _types.strip_reference(found.type)
    if isinstance(found, (list, tuple)):
        return [types_of(item) for item in found]
    return None


def watch_build(
    owner: Any,
    options: dict[str, Any],
    evaluated: Callable[[Any, Any], None],
    resolved: Callable[[Any, Any], None],
) -> None:
    """Let Warp generate the code of a function, and tell what it makes of each node. Nothing of Warp's changes.

    Args:
        owner: the kernel or function.
        options: of the module.
        evaluated: called with each node and what came of it.
        resolved: called with each node in which a function was called, and the overload.
    """
    own = copy.copy(owner.adj)
    own.used_by_backward_kernel = own.force_adjoint_codegen = False
    if hasattr(own, "deterministic"):  # it holds the function that it is of
        own.deterministic = type(own.deterministic)(own)
    nodes: list[Any] = []

    def evaluate(node: Any) -> Any:
        nodes.append(node)
        try:
            found = _codegen.Adjoint.eval(own, node)
        finally:
            nodes.pop()
        evaluated(node, found)
        return found

    def resolve(func: Any, args: Any, kwargs: Any, *rest: Any, **named: Any) -> Any:
        found = _codegen.Adjoint.resolve_call(own, func, args, kwargs, *rest, **named)
        # Warp's own calls, which load and convert, come without the nodes of their arguments.
        if named.get("arg_nodes") is not None or not found[0].is_builtin():
            resolved(nodes[-1], found[0])
        return found

    own.eval, own.resolve_call = evaluate, resolve
    with loading:
        own.build(None, {"output_arch": None, **options})  # which Warp's tile builtins ask for


def operator_name(operator: Any) -> str:
    """The builtin behind an operator of Python's."""
    return str(_codegen.builtin_operators[type(operator)])


def is_transform(warp_type: Any) -> bool:
    return getattr(warp_type, "_wp_generic_type_str_", "") == "transform_t"


def tile_of(warp_type: Any) -> tuple[Any, tuple[int, ...], str] | None:
    """The elements' type, the shape and the storage of a tile; None for any other type."""
    kind = getattr(_types, "tile", None)
    if kind is None or not isinstance(warp_type, kind):
        return None
    tile: Any = warp_type
    return tile.dtype, tuple(tile.shape), str(tile.storage)
