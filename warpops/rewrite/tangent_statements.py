"""The tangent of a statement."""

from __future__ import annotations

import ast
from typing import Any

from ..effects.chains import dotted, root
from ..private.warp_types import is_struct
from .tangent_expressions import Expressions
from .tangent_scope import Form, GrownError, Scope, has_tangent, holds_arrays
from .trees import chain, given, items_of

FRESH_ARRAYS = frozenset({"zeros"})
"""Builtins that make an array of the thread's own: its twin is made by the same call."""


class Statements:
    """Writes the statements of one function, each with its tangent before it."""

    def __init__(self, scope: Scope, expressions: Expressions) -> None:
        self.scope, self.expressions = scope, expressions

    def write(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.scope.row = statement.lineno
            writers: dict[type[ast.stmt], Any] = {
                ast.Assign: self._assign,
                ast.AugAssign: self._augmented,
                ast.Expr: self._expression,
                ast.If: self._branch,
                ast.For: self._for,
                ast.While: self._branch,
                ast.Return: self._return,
            }
            writers.get(type(statement), self._plain)(statement)

    def _plain(self, node: ast.stmt) -> None:
        self.scope.add(self.scope.plain(node))

    # --- assignments --------------------------------------------------------------------------------------------------

    def _assign(self, node: ast.Assign) -> None:
        (target,) = node.targets
        kind = self.scope.typed.type_of(node.value)
        if isinstance(target, ast.Tuple):
            self._several(node, target, kind)
        elif isinstance(target, ast.Name):
            if kind is None:  # a function, a type, or what is never run
                self._plain(node)
                return
            self._bind(node, target.id, self._value(node.value, kind), node.value)
        else:
            form = self._value(node.value, kind)
            # A value that reads a random state has it as it was before an index draws.
            self._store(node, target, self.scope.kept(form) if self.expressions.has_effects(target) else form)

    def _value(self, node: ast.expr, kind: Any) -> Form:
        if isinstance(node, ast.Call) and not isinstance(kind, list):
            found = self.expressions.results(node, kind, root=True)
            return found[0] if found else Form("", None)
        return self.expressions.form(node)

    def _bind(self, node: ast.stmt, name: str, form: Form, value: ast.expr | None = None) -> None:
        """``name = value``."""
        scope = self.scope
        if name in scope.leaves:
            raise scope.refuse(node, f"the argument '{name}' is assigned to")
        if form.tangent is not None and has_tangent(form.type):
            scope.activate(name)
        if name in scope.active and has_tangent(form.type):
            scope.add(f"{scope.twin(name)} = {self._tangent(node, form, value)}")
        scope.add(f"{name} = {form.text}")

    def _tangent(self, node: ast.stmt, form: Form, value: ast.expr | None = None) -> str:
        """A form's tangent, a zero where it has none."""
        if form.tangent is not None:
            return form.tangent
        called = self.scope.typed.called.get(id(value))
        if called is not None and called.key in FRESH_ARRAYS:
            return form.text
        if isinstance(value, ast.Call) and not any(holds_arrays(self.scope.typed.type_of(a)) for a in given(value)):
            return self.scope.blank(form.type)  # a new struct
        return self.scope.zero(form.type, node)

    def _several(self, node: ast.Assign, target: ast.Tuple, kind: Any) -> None:
        """``a, b = ...``"""
        scope = self.scope
        names = [item.id for item in target.elts if isinstance(item, ast.Name)]
        forms = self._values(node, kind)
        text = ", ".join(f.text for f in forms)
        if len(forms) == 1 and isinstance(forms[0].type, list):  # one text for all, without tangents
            forms = [Form("", own) for own in forms[0].type]
        if len(forms) != len(names):
            self._plain(node)
            return
        for name, form in zip(names, forms, strict=True):
            if form.tangent is not None and has_tangent(form.type):
                scope.activate(name)
        twins = [(n, f) for n, f in zip(names, forms, strict=True) if n in scope.active and has_tangent(f.type)]
        if twins:
            values = ", ".join(self._tangent(node, f) for _, f in twins)
            scope.add(f"{', '.join(scope.twin(n) for n, _ in twins)} = {values}")
        scope.add(f"{', '.join(names)} = {text}")

    def _values(self, node: ast.Assign, kind: Any) -> list[Form]:
        """The values that are unpacked; none where it isn't known what they are."""
        value = node.value
        if isinstance(value, ast.Tuple):
            return [self.expressions.form(item) for item in value.elts]
        if isinstance(value, ast.Call) and kind is not None:
            return self.expressions.results(value, kind, root=True)
        if not isinstance(kind, list):
            return []
        form = self.expressions.form(value)
        if form.tangent is not None:
            raise self.scope.refuse(node, "a tuple of values is unpacked")
        return [Form(form.text, kind)]

    def _store(self, node: ast.stmt, target: ast.expr, form: Form, symbol: str = "=") -> None:
        """A store into an array, a component or a field."""
        scope = self.scope
        name = root(target)
        label = self._array(target)
        value, twin = self._place(node, target, form)
        if twin is not None:
            if symbol == "=" or form.tangent is not None or label in self.scope.written:
                scope.add(f"{twin} {symbol} {self._tangent(node, form)}")
                scope.writes = scope.writes or label is not None
        elif form.tangent is not None:
            if name not in scope.typed.arguments or name in scope.heads:
                raise scope.refuse(node, f"a value with a tangent is stored into '{name}', which has none")
            scope.loses.add(name)
        if label is None or label not in self.scope.dropped:
            scope.add(f"{value} {symbol} {form.text}")

    def _array(self, target: ast.expr) -> str | None:
        """The dotted name of the array that a store goes to; '' for one without a name, None for no array."""
        array = self.scope.typed.array_of(target)
        return None if array is None else dotted(array) or ""

    def _place(self, node: ast.stmt, target: ast.expr, form: Form) -> tuple[str, str | None]:
        """Where a store goes, and where its tangent goes."""
        scope = self.scope
        name = root(target)
        if name is not None and form.tangent is not None:
            by_value = self._array(target) is None
            if name not in scope.typed.arguments or (by_value and name not in scope.leaves):
                scope.activate(name)
        base = target.value  # type: ignore[attr-defined]
        place = self.expressions.form(base)
        kind = scope.typed.type_of(base)
        floats = has_tangent(form.type)
        if isinstance(target, ast.Attribute):
            if is_struct(kind):
                floats = has_tangent(kind.vars[target.attr].type)
            suffix = f".{target.attr}"
        else:
            assert isinstance(target, ast.Subscript)
            suffix = f"[{self.expressions.index(target.slice, place.tangent is not None)}]"
            floats = floats or has_tangent(kind)
        return f"{place.text}{suffix}", f"{place.tangent}{suffix}" if place.tangent is not None and floats else None

    def _augmented(self, node: ast.AugAssign) -> None:
        if self.expressions.has_effects(node):
            self.expressions.take(node.target)
        value = self.expressions.form(node.value)
        typed = self.scope.typed
        called = typed.called.get(id(node))
        symbol = ast.unparse(ast.AugAssign(ast.Name("a"), node.op, ast.Name("b")))[2:-2]
        target: Any = node.target
        if isinstance(target, ast.Name):
            kind = typed.type_of(target) or typed.locals.get(target.id) or value.type
            own = self.expressions.form(ast.copy_location(ast.Name(target.id, ast.Load()), target))
            tangent = self.scope.twin(target.id) if target.id in self.scope.active else None
        elif isinstance(node.op, (ast.Add, ast.Sub)) and called is None:
            self._store(node, target, value, symbol)
            return
        else:
            own = self.expressions.form(target)
            kind, tangent = typed.type_of(target) or value.type, own.tangent
        operands = [Form(own.text, kind, tangent), value]
        if called is not None:
            form = self.expressions.users(node, called, operands, kind)[0]
        else:
            form = self.expressions.binary(node, node.op, operands, kind)
        if isinstance(target, ast.Name):
            self._bind(node, target.id, form)
        elif form.tangent is None and not has_tangent(kind):
            self.scope.add(f"{own.text} {symbol} {value.text}")
        else:
            self._store(node, target, form)

    # --- calls, control flow ------------------------------------------------------------------------------------------

    def _expression(self, node: ast.Expr) -> None:
        value = node.value
        if not isinstance(value, ast.Call):
            return  # a docstring
        called = self.expressions.called(value)
        if called is None:
            self._plain(node)
            return
        writers = {
            "atomic_add": self._atomic,
            "atomic_sub": self._atomic,
            "atomic_max": self._extreme,
            "atomic_min": self._extreme,
            "tile_store": self._tile_store,
            "tile_atomic_add": self._tile_store,
            "tile_matmul": self._tile_matmul,
            "transform_set_translation": self._setter,
            "transform_set_rotation": self._setter,
        }
        writer = writers.get(called.key, self._called) if called.is_builtin() else self._called
        writer(node, value)

    def _called(self, node: ast.stmt, call: ast.Call) -> None:
        """A call whose result isn't used."""
        kind = self.scope.typed.type_of(call)
        for form in self.expressions.results(call, kind, root=True)[:1]:
            if isinstance(ast.parse(form.text, mode="eval").body, ast.Call):
                self.scope.add(form.text)

    def _atomic(self, node: ast.stmt, call: ast.Call) -> None:
        """``wp.atomic_add(y, i, j, value)``, its result not used."""
        if call.keywords:
            raise self.scope.refuse(node, "an atomic operation with named arguments has no tangent rule")
        array, *index, value = call.args
        label = dotted(chain(array)[0])
        base = self.expressions.form(array)
        again = base.tangent is not None or self.expressions.has_effects(value)
        places = [self.expressions.index(i, again) for i in index]
        form = self.expressions.form(value)
        name = self.scope.plain(call.func)
        if base.tangent is not None and (form.tangent is not None or label in self.scope.written):
            self.scope.add(f"{name}({', '.join([base.tangent, *places, self._tangent(node, form)])})")
            self.scope.writes = True
        if label not in self.scope.dropped:
            self.scope.add(f"{name}({', '.join([base.text, *places, form.text])})")

    def _extreme(self, node: ast.stmt, call: ast.Call) -> None:
        """``wp.atomic_max(y, i, j, value)``, its result not used: who has given what ``y`` holds in the end has won. Several
        winners count as the adjoint counts them, each in full."""
        if call.keywords or dotted(chain(call.args[0])[0]) not in self.scope.extremes:
            self._called(node, call)
            return
        array, *index, value = call.args
        base = self.expressions.form(array)
        places = [self.expressions.index(i, True) for i in index]
        form = self.expressions.form(value)
        if form.tangent is not None:
            with self.scope.block(f"if {base.text}[{', '.join(places)}] == {form.text}:"):
                self.scope.add(f"{self.scope.wp}.atomic_add({', '.join([str(base.tangent), *places, form.tangent])})")
            self.scope.writes = True

    def _tile_store(self, node: ast.stmt, call: ast.Call) -> None:
        """``wp.tile_store(y, tile, ...)``, ``wp.tile_atomic_add(y, tile, ...)``."""
        if len(call.args) < 2:
            raise self.scope.refuse(node, "a tile that is stored with named arguments has no tangent rule")
        array, tile, *rest = call.args
        base, form = self.expressions.form(array), self.expressions.form(tile)
        more = [self.expressions.condition(r) for r in rest]
        more += [f"{k.arg}={self.expressions.condition(k.value)}" for k in call.keywords]
        name = self.scope.plain(call.func)
        if base.tangent is not None:
            self.scope.add(f"{name}({', '.join([base.tangent, self._tangent(node, form), *more])})")
            self.scope.writes = True
        elif form.tangent is not None:
            raise self.scope.refuse(node, "a tile with a tangent is stored into an array that has none")
        self.scope.add(f"{name}({', '.join([base.text, form.text, *more])})")

    def _tile_matmul(self, node: ast.stmt, call: ast.Call) -> None:
        """``wp.tile_matmul(a, b, out, alpha)``, which adds to a tile."""
        scope = self.scope
        if not 3 <= len(call.args) <= 4 or call.keywords or not isinstance(call.args[2], ast.Name):
            raise scope.refuse(node, "'tile_matmul' of more than tiles and 'alpha' has no tangent rule")
        a, b = (scope.kept(self.expressions.form(factor)) for factor in call.args[:2])
        out, *more = (scope.plain(argument) for argument in call.args[2:])
        name = scope.plain(call.func)
        for left, right in ((a.tangent, b.text), (a.text, b.tangent)):
            if left is not None and right is not None:
                scope.activate(out)
                scope.add(f"{name}({', '.join([left, right, scope.twin(out), *more])})")
        scope.add(f"{name}({', '.join([a.text, b.text, out, *more])})")

    def _setter(self, node: ast.stmt, call: ast.Call) -> None:
        """A builtin that changes a transform in place. Its copying sister has an adjoint that is right."""
        target, value = call.args
        if not isinstance(target, ast.Name):
            raise self.scope.refuse(node, "a transform that is no local is changed in place")
        form, own = self.expressions.form(value), self.expressions.form(target)
        name = f"{self.scope.plain(call.func)}_copy"
        tangent = None
        if form.tangent is not None or own.tangent is not None:
            tangent = f"{name}({own.tangent or self.scope.zero(own.type, node)}, {self._tangent(node, form)})"
        self._bind(node, target.id, Form(f"{name}({own.text}, {form.text})", own.type, tangent))

    def _branch(self, node: ast.If | ast.While) -> None:
        head = "if" if isinstance(node, ast.If) else "while"
        with self.scope.block(f"{head} {self.expressions.condition(node.test)}:"):
            self.write(node.body)
        if node.orelse:
            with self.scope.block("else:"):
                self.write(node.orelse)

    def _for(self, node: ast.For) -> None:
        header = f"for {self.scope.plain(node.target)} in {self.expressions.condition(node.iter)}:"
        with self.scope.block(header):
            self.write(node.body)

    def _return(self, node: ast.Return) -> None:
        if node.value is None:
            self.scope.add("return")
            return
        items = items_of(node.value)
        if len(items) == 1 and isinstance(items[0], ast.Call):
            kind = self.scope.typed.type_of(items[0])
            forms = self.expressions.results(items[0], kind, root=True)
        else:
            forms = [self.expressions.form(item) for item in items]
        active = [f.tangent is not None for f in forms]
        known = self.scope.results or active
        merged = self.scope.results = [a or b for a, b in zip(active, known, strict=True)]
        if merged != known:
            raise GrownError
        tangents = [self._tangent(node, f) for f, a in zip(forms, merged, strict=True) if a]
        values = [*(f.text for f in forms), *tangents]
        if not self.scope.packs or len(values) == 1:
            self.scope.add(f"return {', '.join(values)}")
            return
        types = [f.type for f in forms]
        struct = self.scope.packed(types + [t for t, a in zip(types, merged, strict=True) if a])
        result = self.scope.local(f"{self.scope.type_text(struct)}()", "results")
        for k, value in enumerate(values):
            self.scope.add(f"{result}.r{k} = {value}")
        self.scope.add(f"return {result}")
