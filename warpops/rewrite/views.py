"""Views that are given to functions with a gradient of the user's: Warp adds that to the view's own adjoint, which is
nobody's. The adjoint kernel calls a function of the array and the index in its place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import warp as wp

from ..private import warp_types
from ..private.warp_source import parameters
from .source import Names, Source, UnreadableError, definition, definitions, make_func, make_function, read
from .trees import has_slice, indices_of, is_stored, name, names_in, nodes_of, together

Viewed = tuple[ast.Call, Any, dict[int, ast.Subscript]]
"""A call, what it calls, and the views among its arguments by position."""


def viewed_calls(source: Source) -> list[Viewed]:
    """The calls of one function that give views to functions with a gradient of the user's.

    Raises:
        UnreadableError: one can't be given the array and the index.
    """
    return [found for found in _viewed(source) if found[2]]


def index_views(source: Source) -> list[str]:
    """Call functions of arrays and indices in a function's tree in place of these; returns their texts."""
    texts: list[str] = []
    made: dict[Any, Any] = {}
    for call, function, views in viewed_calls(source):
        counts = {k: len(indices_of(view)) for k, view in views.items()}
        key = (function, tuple(counts.items()))
        if key not in made:
            made[key] = _function_at(function, counts, texts)
        arguments: list[ast.expr] = []
        for k, argument in enumerate(call.args):
            view = views.get(k)
            arguments += [argument] if view is None else [view.value, *indices_of(view)]
        call.func, call.args = name(source.names.give(made[key], made[key].key)), arguments
    return texts


def _viewed(source: Source) -> Iterator[Viewed]:
    for call, called in source.calls():
        overloads = definitions(called).values()
        if all(getattr(overload, "custom_grad_func", None) is None for overload in overloads):
            continue
        types = list(parameters(called).values())
        views: dict[int, ast.Subscript] = {}
        for k, (argument, warp_type) in enumerate(zip(call.args, types, strict=False)):
            if not warp_types.is_array(warp_type) or (isinstance(argument, ast.Name) and _is_given(source, argument)):
                continue
            view = _view(source, argument)
            if view is None:
                raise UnreadableError(f"`{ast.unparse(call)}` is given something else than an array's element or row")
            views[k] = view
        simple = len(overloads) == 1 and not call.keywords and not any(map(warp_types.is_generic, types))
        if views and (not simple or getattr(called, "custom_replay_func", None) is not None):
            raise UnreadableError(
                f"'{called.key}' is generic, overloaded, called by keyword, or has a replay of its own"
            )
        yield call, called, views


def _view(source: Source, argument: ast.expr) -> ast.Subscript | None:
    """The view of an array argument that an argument of a call is, or is a name for."""
    if isinstance(argument, ast.Name):
        bound = _assigned(source, argument.id)
        if len(bound) != 1 or any(
            len(_assigned(source, n)) + (n in source.parameters) > 1 for n in names_in(ast.walk(bound[0]))
        ):
            return None
        argument = bound[0]
    if not isinstance(argument, ast.Subscript) or has_slice(argument):
        return None
    return argument if isinstance(argument.value, ast.Name) and _is_given(source, argument.value) else None


def _is_given(source: Source, node: ast.Name) -> bool:
    return node.id in source.parameters and not _assigned(source, node.id)


def _assigned(source: Source, variable: str) -> list[ast.expr]:
    """What a variable is assigned, at each place: itself, where that is no plain assignment."""
    nodes = list(nodes_of(source.tree.body))
    plain = {id(n.targets[0]): n.value for n in nodes if isinstance(n, ast.Assign)}
    stores = [n for n in nodes if isinstance(n, ast.Name) and n.id == variable and is_stored(n)]
    return [plain.get(id(store), store) for store in stores]


# --- functions of an array and an index -------------------------------------------------------------------------------


def _function_at(function: Any, counts: dict[int, int], texts: list[str]) -> Any:
    adjoint = function.custom_grad_func
    source = read(adjoint)
    names, types = list(parameters(function)), list(parameters(function).values())
    cotangents = source.parameters[len(names) :]
    own = Names([*names, *source.parameters, function.key])
    forward: list[str] = []
    backward: list[str] = []
    annotations: list[Any] = []
    given: list[str] = []
    places: dict[str, list[str]] = {}
    for k, (one, warp_type) in enumerate(zip(names, types, strict=True)):
        indices = [own.fresh(f"{one}_at_{axis}") for axis in range(counts.get(k, 0))]
        forward += [one, *indices]
        backward += [source.parameters[k], *indices]
        given.append(f"{one}[{', '.join(indices)}]" if indices else one)
        if indices:
            places[source.parameters[k]] = indices
            warp_type = warp_types.array_annotation(warp_type.dtype, warp_type.ndim + len(indices))
        annotations += [warp_type, *([int] * len(indices))]
    key, original = own.fresh(f"{function.key}_at"), own.fresh("original")
    call = f"{'return ' if cotangents else ''}{original}({', '.join(given)})"
    text = definition(key, forward, [call])
    made = make_func(function.func, text, key, {original: function}, dict(zip(forward, annotations, strict=True)))
    source.tree.body = [_Indexed(places).visit(statement) for statement in source.tree.body]
    source.tree.name = f"{key}_adjoint"
    source.tree.args.args = [ast.arg(p) for p in (*backward, *cotangents)]
    text_back = ast.unparse(ast.fix_missing_locations(source.tree))
    annotated = dict(zip(backward, annotations, strict=True))
    annotated |= {p: parameters(adjoint)[p] for p in cotangents}
    wp.func_grad(made)(make_function(adjoint.func, text_back, source.tree.name, source.names.given, annotated))
    texts += [text, text_back]
    return made


class _Indexed(ast.NodeTransformer):
    """Writes ``row[k]`` as ``row[i, k]``, and the same for the adjoint: what was a view is the array."""

    def __init__(self, places: dict[str, list[str]]) -> None:
        self.places = places

    def _of(self, node: ast.AST) -> list[str] | None:
        """The indices of a view, or of its adjoint."""
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "adjoint":
            node = node.slice
        return self.places.get(node.id) if isinstance(node, ast.Name) else None

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        indices = self._of(node.value)
        if indices is not None and not has_slice(node):
            inner = [self.visit(index) for index in indices_of(node)]
            return ast.Subscript(node.value, together([*map(name, indices), *inner]), node.ctx)
        own = self._of(node)
        if own is not None:
            return ast.Subscript(node, together([*map(name, own)]), node.ctx)
        shape = node.value
        lengths = self._of(shape.value) if isinstance(shape, ast.Attribute) and shape.attr == "shape" else None
        if lengths is not None:
            axis = ast.BinOp(self.visit(node.slice), ast.Add(), ast.Constant(len(lengths)))
            return ast.Subscript(shape, axis, node.ctx)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        indices = self.places.get(node.id)
        return node if indices is None else ast.Subscript(node, together([*map(name, indices)]), node.ctx)
