"""The tangent of an expression."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from ..effects.chains import dotted
from ..effects.tables import row
from ..private import warp_built
from ..private.warp_types import is_array
from .tangent_builtins import Builtins
from .tangent_scope import Form, MixedArraysError, Scope, has_tangent
from .tangent_text import atom, is_cheap, joined
from .tangent_tiles import mapped
from .trees import given, items_of


class Expressions:
    """Evaluates expressions of one function into forms; what has to come first is written on the way."""

    def __init__(
        self, scope: Scope, function: Callable[[Any, tuple[bool, ...]], Any], stores: Callable[[Any], bool]
    ) -> None:
        """``function(overload, active)`` is the tangent of a user's function; ``stores(overload)``: it writes to arrays."""
        self.scope, self.function, self.stores = scope, function, stores
        self.builtins = Builtins(scope, self.users)
        self._taken: dict[int, str] = {}
        """Indices that are evaluated already, by node."""

    # --- forms --------------------------------------------------------------------------------------------------------

    def form(self, node: ast.expr) -> Form:
        """An expression with one value."""
        kind = self.scope.typed.type_of(node)
        if isinstance(node, ast.Name):
            return Form(self.scope.plain(node), kind, self._name(node.id, kind))
        if isinstance(node, ast.Attribute):
            return self._attribute(node, kind)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, kind)
        if isinstance(node, ast.Call):
            return self._call(node, kind)
        if isinstance(node, (ast.BinOp, ast.UnaryOp)):
            return self._operator(node, kind)
        if isinstance(node, ast.IfExp) and has_tangent(kind):
            return self._conditional(node, kind)
        form = Form(self.condition(node), kind)
        return self.scope.kept(form) if self.has_effects(node) else form

    def has_effects(self, node: ast.AST) -> bool:
        """Whether evaluating it earlier or later makes a difference: random states, counters, the user's functions."""
        for inner in ast.walk(node):
            called = self.scope.typed.called.get(id(inner))
            if called is not None and (not called.is_builtin() or is_impure(called)):
                return True
        return False

    def condition(self, node: ast.expr) -> str:
        """An expression that can have no tangent, as text."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and self._writes(inner):
                raise self.scope.refuse(node, "a function that writes to arrays is called inside of a condition")
        return self.scope.plain(node)

    def _name(self, name: str, kind: Any) -> str | None:
        if name in self.scope.leaves:
            return self.scope.leaves[name]
        inside = [twin for label, twin in self.scope.leaves.items() if label.startswith(f"{name}.")]
        if any(inside) or (inside and name in self.scope.active):  # a struct argument used as a whole
            if None in inside:  # its twin would hold arrays that are null
                raise MixedArraysError(f"some arrays of '{name}' have a tangent, and it is used as a whole")
            self.scope.activate(name)
        if name in self.scope.active and has_tangent(kind):
            return self.scope.twin(name)
        return None

    def _attribute(self, node: ast.Attribute, kind: Any) -> Form:
        path = dotted(node)
        if path in self.scope.leaves:
            return Form(path, kind, self.scope.leaves[path])
        if not self._is_value(path) or self._is_untouched(path):
            return Form(self.scope.plain(node), kind)
        base = self.form(node.value)
        text = f"{atom(base.text)}.{node.attr}"
        if not has_tangent(kind) or is_array(base.type):
            return Form(text, kind)
        return Form(text, kind, None if base.tangent is None else f"{atom(base.tangent)}.{node.attr}")

    def _is_value(self, path: str | None) -> bool:
        """Whether a chain of attributes starts from a value of the kernel's, and not from a module or a type."""
        typed = self.scope.typed
        return path is None or path.split(".")[0] in {*typed.locals, *typed.arguments}

    def _is_untouched(self, path: str | None) -> bool:
        """A field of a struct argument that holds no array with a tangent, of a struct that nothing is stored into."""
        if path is None or path.split(".")[0] in self.scope.active:
            return False
        leaves = self.scope.leaves
        inside = any(t for label, t in leaves.items() if label.startswith(f"{path}."))
        return not inside and any(label.startswith(f"{path.split('.')[0]}.") for label in leaves)

    def _subscript(self, node: ast.Subscript, kind: Any) -> Form:
        base = self.form(node.value)
        index = self.index(node.slice, base.tangent is not None)
        text = f"{atom(base.text)}[{index}]"
        if base.tangent is None or not has_tangent(kind):
            return Form(text, kind)
        return Form(text, kind, f"{atom(base.tangent)}[{index}]")

    def index(self, node: ast.expr, again: bool) -> str:
        """An index as text; ``again``: it stands more than once."""
        return ", ".join(self._item(item, again) for item in items_of(node))

    def _item(self, item: ast.expr, again: bool) -> str:
        if isinstance(item, (ast.Slice, ast.Starred)):
            return self.condition(item)
        if id(item) in self._taken:
            return self._taken[id(item)]
        form = self.form(item)
        return self.scope.kept(form, "k").text if again and not is_cheap(item) else form.text

    def take(self, target: ast.expr) -> None:
        """Evaluate a target's indices now, and once: Warp does so before it evaluates what is added there."""
        if isinstance(target, (ast.Subscript, ast.Attribute)):
            self.take(target.value)
        if isinstance(target, ast.Subscript):
            self._taken |= {id(item): self._item(item, again=True) for item in items_of(target.slice)}

    def _conditional(self, node: ast.IfExp, kind: Any) -> Form:
        """``a if c else b``, as statements: only the side that is taken is evaluated."""
        scope = self.scope
        name, twin = scope.fresh("t"), scope.fresh("d_t")
        sides = []
        test = self.condition(node.test)
        for header, side in ((f"if {test}:", node.body), ("else:", node.orelse)):
            with scope.block(header):
                form = self.form(side)
                sides.append(form)
                if form.type is not None:  # None: never run, for the condition is a constant
                    scope.add(f"{twin} = {form.tangent or scope.zero(kind, node)}")
                scope.add(f"{name} = {form.text}")
        return Form(name, kind, None if all(s.tangent is None for s in sides) else twin)

    # --- operators ----------------------------------------------------------------------------------------------------

    def _operator(self, node: ast.BinOp | ast.UnaryOp, kind: Any) -> Form:
        parts = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.operand]
        operands = [self.form(part) for part in parts]
        called = self.scope.typed.called.get(id(node))
        if called is not None:  # the user's own operator
            return self.users(node, called, operands, kind)[0]
        if isinstance(node, ast.BinOp):
            return self.binary(node, node.op, operands, kind)
        (x,) = operands
        text = f"({ast.unparse(ast.UnaryOp(node.op, ast.Name('x')))[:-1]}{atom(x.text)})"
        if x.tangent is None or not has_tangent(kind):
            return Form(text, kind)
        return Form(text, kind, f"(-{atom(x.tangent)})" if isinstance(node.op, ast.USub) else x.tangent)

    def binary(self, node: ast.AST, op: ast.operator, operands: list[Form], kind: Any) -> Form:
        """An operator of Warp's own between two forms."""
        name = warp_built.operator_name(op)
        symbol = ast.unparse(ast.BinOp(ast.Name("a"), op, ast.Name("b")))[2:-2]
        if all(o.tangent is None for o in operands) or not has_tangent(kind):
            return Form(joined(symbol, *(o.text for o in operands)), kind)
        return self.builtins.derive(
            node, name, list(row(name).terms or ("a", "b")), operands, kind, lambda a, b: joined(symbol, a, b)
        )[0]

    # --- calls --------------------------------------------------------------------------------------------------------

    def called(self, node: ast.Call) -> Any:
        """The overload that a call resolves to; None for what is no function."""
        if id(node) in self.scope.typed.ambiguous:
            raise self.scope.refuse(node, "another function is called in each turn of an unrolled loop")
        return self.scope.typed.called.get(id(node))

    def _call(self, node: ast.Call, kind: Any) -> Form:
        if isinstance(kind, list):
            raise self.scope.refuse(node, "several results are used as one value")
        return self.results(node, kind)[0]

    def results(self, node: ast.Call, kind: Any, root: bool = False) -> list[Form]:
        """A call, as one form per result; a call without a result comes to no form, and is written.

        Args:
            node: the call.
            kind: its type, or types.
            root: nothing else is evaluated in the statement.
        """
        function = self.called(node)
        if function is None or self.scope.is_python(node):
            return [Form(self.scope.plain(node), kind)]
        if not root and not function.is_builtin() and self.stores(function):
            raise self.scope.refuse(node, f"'{function.key}' writes to arrays, and is called inside of an expression")
        forms, names = self._arguments(node)
        if not function.is_builtin():
            return self.users(node, function, forms, kind, names)

        def text(*values: str) -> str:
            own = [v for v, n in zip(values, names, strict=True) if n is None]
            named = [f"{n}={v}" for v, n in zip(values, names, strict=True) if n is not None]
            return f"{self.scope.plain(node.func)}({', '.join([*own, *named])})"

        own = list(function.input_types)
        if own and own[0].startswith("*"):
            own = [own[0]] * len(forms)
        parameters = [n or p for n, p in zip(names, own, strict=False)]
        if all(f.tangent is None for f in forms) or not has_tangent(kind):
            form = Form(text(*(f.text for f in forms)), kind)
            if function.is_differentiable and row(function.key).tangent != "flat" and any(f.tangent for f in forms):
                raise self.scope.refuse(node, f"'{function.key}' has no tangent rule")
            return [self.scope.kept(form) if is_impure(function) and not root else form]
        if function.key == "tile_map":
            return [mapped(self.scope, node, forms, kind, self.function)]
        return self.builtins.derive(node, function.key, parameters, forms, kind, text)

    def _arguments(self, node: ast.Call) -> tuple[list[Form], list[str | None]]:
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            raise self.scope.refuse(node, "a call with a starred argument has no tangent rule")
        return [self.form(a) for a in given(node)], [*(None for _ in node.args), *(k.arg for k in node.keywords)]

    # --- the user's functions -----------------------------------------------------------------------------------------

    def _writes(self, node: ast.Call) -> bool:
        """Whether a call writes tangents into arrays."""
        called = self.scope.typed.called.get(id(node))
        if called is None or called.is_builtin() or (called.native_snippet is None and not self.stores(called)):
            return False
        arrays = [a for a in given(node) if is_array(self.scope.typed.type_of(a))]
        return any(self.form(a).tangent is not None for a in arrays)

    def users(
        self, node: ast.AST, function: Any, forms: list[Form], kind: Any, names: list[str | None] | None = None
    ) -> list[Form]:
        """A call of a user's function: its tangent function returns values, then tangents."""
        scope = self.scope
        parameters = list(function.input_types)
        names = names or [None] * len(forms)
        places = {n or p: f for n, p, f in zip(names, parameters, forms, strict=False)}
        plain = [f"{n}={f.text}" if n else f.text for n, f in zip(names, forms, strict=True)]
        kinds = kind if isinstance(kind, list) else [kind] if kind is not None else []
        own = scope.plain(node.func) if isinstance(node, ast.Call) else ""
        active = tuple(p in places and places[p].tangent is not None for p in parameters)
        found = self.function(function, active) if any(active) else None
        for lost in found.loses if found is not None else ():
            self._lose(places[lost].text)
        if found is None or not (any(found.results) or found.writes):
            if not own:
                own = scope.give(function, function.key)
            text = f"{own}({', '.join(plain)})"
            if kind is None:
                scope.add(text)
                return []
            made = [scope.fresh("t") for _ in kinds]
            scope.add(f"{', '.join(made)} = {text}")
            return [Form(n, k) for n, k in zip(made, kinds, strict=True)]
        scope.writes = scope.writes or found.writes
        values = [places[p].text if p in places else self._default(function, p) for p in parameters]
        tangents = [places[p].tangent or "" for p, a in zip(parameters, active, strict=True) if a]
        call = f"{scope.give(found.function, found.function.key)}({', '.join([*values, *tangents])})"
        if kind is None:
            scope.add(call)
            return []
        count = len(kinds) + sum(found.results)
        if found.packs and count > 1:
            result = scope.local(call, "results")
            made = [f"{result}.r{k}" for k in range(count)]
        else:
            made = [scope.fresh("t" if k < len(kinds) else "d_t") for k in range(count)]
            scope.add(f"{', '.join(made)} = {call}")
        tangent = iter(made[len(kinds) :])
        return [Form(v, k, next(tangent) if a else None) for v, k, a in zip(made, kinds, found.results, strict=False)]

    def _default(self, function: Any, parameter: str) -> str:
        """What a parameter is where the call doesn't give it."""
        value = function.defaults[parameter]
        return repr(value) if isinstance(value, (bool, int)) else self.scope.give(value, parameter)

    def _lose(self, text: str) -> None:
        """A function stores tangents into an array that has none: a local one gets a twin."""
        root = text.replace("[", ".").split(".")[0]
        if root not in self.scope.typed.arguments:
            self.scope.activate(root)
        elif root not in self.scope.heads:
            self.scope.loses.add(root)


def is_impure(builtin: Any) -> bool:
    """Whether a builtin changes what it is given: a random state, a query, memory."""
    return (
        "state" in builtin.input_types or builtin.key.startswith(("atomic_", "tile_")) or builtin.key.endswith("_next")
    )
