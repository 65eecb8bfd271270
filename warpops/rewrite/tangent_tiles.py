"""The tangent of ``wp.tile_map(f, tile)``: another function, of an element and its tangent, mapped over both tiles."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from ..private import warp_built
from ..private.warp_source import is_function, meaning
from .source import make_func
from .tangent_scope import Form, Scope


def mapped(scope: Scope, node: ast.Call, forms: list[Form], kind: Any, tangent_of: Callable[..., Any]) -> Form:
    """A call of ``wp.tile_map``, of which a tile has a tangent.

    Args:
        node: the call.
        forms: its arguments.
        kind: the type of its result.
        tangent_of: ``tangent_of(overload, active)`` is the tangent of a user's function.
    """
    function = meaning(scope.code, node.args[0])
    tile = warp_built.tile_of(forms[1].type)
    if len(forms) != 2 or not is_function(function) or tile is None:
        raise scope.refuse(node, "'tile_map' of two arguments has no tangent rule")
    one = _made(scope, f"of_{function.key}", ["x"], "return f(x)", function, tile[0])
    found = tangent_of(one, (True,))
    forms = [forms[0], scope.kept(forms[1])]
    value = f"{scope.plain(node.func)}({forms[0].text}, {forms[1].text})"
    if not any(found.results):
        return Form(value, kind)
    body = "value, tangent = f(x, d_x)\n    return tangent"
    other = _made(scope, f"tangent_of_{function.key}", ["x", "d_x"], body, found.function, tile[0])
    tangent = f"{scope.plain(node.func)}({scope.give(other, other.key)}, {forms[1].text}, {forms[1].tangent})"
    return Form(value, kind, tangent)


def _made(scope: Scope, name: str, parameters: list[str], body: str, function: Any, dtype: Any) -> Any:
    """A function of numbers that calls ``f``."""
    name = scope.names.fresh(name)
    text = f"def {name}({', '.join(parameters)}):\n    {body}"
    annotations = dict.fromkeys(parameters, dtype)
    return make_func(scope.code.func, text, name, {"f": function}, annotations)
