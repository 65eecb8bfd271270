"""The tangent of an expression."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable
from typing import Any

from .. import _warp
from ..effects.source import code_of, declared_overloads, is_array, is_function, is_static, is_struct, lookup, member
from .tangent_compositions import COMPOSED, composed
from .tangent_rules import COMPONENTWISE, FLAT, LINEAR, PRODUCTS, ROWS
from .tangent_scope import Form, MixedArraysError, Scope, has_tangent, is_simple, scalar_of

CONSTRUCTORS = frozenset({"vector", "matrix", "quaternion", "transformation", "spatial_vector"})
TYPE_ARGUMENTS = frozenset({"dtype", "length", "shape"})


class Expressions:
    """Evaluates expressions of one function into forms; what has to come first is written on the way."""

    def __init__(self, scope: Scope, function: Callable[[Any, tuple[bool, ...]], Any]) -> None:
        """``function(overload, active)`` is the tangent of a user's function."""
        self.scope, self.function = scope, function
        self.loses: set[str] = set()
        """Array parameters without a tangent that values with one are stored into."""

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
        return self.kept(form) if self._is_impure(node) else form

    def _is_impure(self, node: ast.AST) -> bool:
        """Whether evaluating it earlier or later makes a difference: random states, counters, the user's functions."""
        for inner in ast.walk(node):
            called = self.scope.typed.called.get(id(inner))
            if called is not None and (not called[0].is_builtin() or is_impure(called[0])):
                return True
        return False

    def condition(self, node: ast.expr) -> str:
        """An expression that can have no tangent, as text."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and self._writes(inner):
                raise self.scope.refuse(node, "a function that writes to arrays is called inside of a condition")
        return self.scope.plain(node)

    def kept(self, form: Form, hint: str = "t") -> Form:
        """A form whose value may stand several times."""
        if is_simple(form.text):
            return form
        return Form(self.scope.local(form.text, hint), form.type, form.tangent)

    def _name(self, name: str, kind: Any) -> str | None:
        if name in self.scope.leaves:
            return self.scope.leaves[name]
        if is_struct(kind) and any(t for label, t in self.scope.leaves.items() if label.startswith(f"{name}.")):
            self.scope.activate(name)  # a struct argument used as a whole
        if name in self.scope.active and has_tangent(kind):
            return self.scope.twin(name)
        return None

    def _attribute(self, node: ast.Attribute, kind: Any) -> Form:
        path = dotted(node)
        if path in self.scope.leaves:
            return Form(path, kind, self.scope.leaves[path])
        if kind is None or self.scope.typed.type_of(node.value) is None or self._is_untouched(path):
            return Form(self.scope.plain(node), kind)
        base = self.form(node.value)
        text = f"{_atom(base.text)}.{node.attr}"
        if not has_tangent(kind) or is_array(base.type):
            return Form(text, kind)
        return Form(text, kind, None if base.tangent is None else f"{_atom(base.tangent)}.{node.attr}")

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
        text = f"{_atom(base.text)}[{index}]"
        if base.tangent is None or not has_tangent(kind):
            return Form(text, kind)
        return Form(text, kind, f"{_atom(base.tangent)}[{index}]")

    def index(self, node: ast.expr, again: bool) -> str:
        """An index as text; ``again``: it stands more than once."""
        items = node.elts if isinstance(node, ast.Tuple) else [node]
        parts = []
        for item in items:
            if isinstance(item, (ast.Slice, ast.Starred)):
                parts.append(self.condition(item))
                continue
            form = self.form(item)
            if again and not _is_cheap(item):
                form = self.kept(form, "k")
            parts.append(form.text)
        return ", ".join(parts)

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
                    scope.add(f"{twin} = {form.tangent or scope.zero(kind)}")
                scope.add(f"{name} = {form.text}")
        return Form(name, kind, None if all(s.tangent is None for s in sides) else twin)

    # --- operators ----------------------------------------------------------------------------------------------------

    def _operator(self, node: ast.BinOp | ast.UnaryOp, kind: Any) -> Form:
        parts = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.operand]
        operands = [self.form(part) for part in parts]
        called = self.scope.typed.called.get(id(node))
        if called is not None:  # the user's own operator
            return self._users(node, called[0], operands, kind)[0]
        if isinstance(node, ast.BinOp):
            return self.binary(node, node.op, operands, kind)
        (x,) = operands
        text = f"({ast.unparse(ast.UnaryOp(node.op, ast.Name('x')))[:-1]}{_atom(x.text)})"
        if x.tangent is None or not has_tangent(kind):
            return Form(text, kind)
        return Form(text, kind, f"(-{_atom(x.tangent)})" if isinstance(node.op, ast.USub) else x.tangent)

    def binary(self, node: ast.AST, op: ast.operator, operands: list[Form], kind: Any) -> Form:
        """An operator of Warp's own between two forms."""
        name = _warp.operator_name(op)
        symbol = ast.unparse(ast.BinOp(ast.Name("a"), op, ast.Name("b")))[2:-2]
        if all(o.tangent is None for o in operands) or not has_tangent(kind):
            return Form(_joined(symbol, *(o.text for o in operands)), kind)
        return self.builtin(
            node, name, list(ROWS.get(name, ("a", "b"))), operands, kind, lambda a, b: _joined(symbol, a, b)
        )[0]

    # --- calls --------------------------------------------------------------------------------------------------------

    def called(self, node: ast.Call) -> tuple[Any, list[str]] | None:
        """The overload that a call resolves to, and the parameters that it gives; None for what is no function."""
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
        called = self.called(node)
        if called is None or self._is_python(node):
            return [Form(self.scope.plain(node), kind)]
        function, given = called
        if not root and not function.is_builtin() and stores(function):
            raise self.scope.refuse(node, f"'{function.key}' writes to arrays, and is called inside of an expression")
        forms, names = self._arguments(node, function, given)
        if not function.is_builtin():
            return self._users(node, function, forms, kind, names)

        def text(*values: str) -> str:
            own = [v for v, n in zip(values, names, strict=True) if n is None]
            named = [f"{n}={v}" for v, n in zip(values, names, strict=True) if n is not None]
            return f"{self.scope.plain(node.func)}({', '.join([*own, *named])})"

        parameters = [n or p for n, p in zip(names, _parameters(function, given, len(forms)), strict=True)]
        if all(f.tangent is None for f in forms) or not has_tangent(kind):
            form = Form(text(*(f.text for f in forms)), kind)
            if function.is_differentiable and function.key not in FLAT and any(f.tangent for f in forms):
                raise self.scope.refuse(node, f"'{function.key}' has no tangent rule")
            return [self.kept(form) if is_impure(function) and not root else form]
        return self.builtin(node, function.key, parameters, forms, kind, text)

    def _arguments(self, node: ast.Call, function: Any, given: list[str]) -> tuple[list[Form], list[str | None]]:
        forms: list[Form] = []
        names: list[str | None] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                raise self.scope.refuse(node, "a call with a starred argument has no tangent rule")
            forms.append(self.form(argument))
            names.append(None)
        for keyword in node.keywords:
            forms.append(self.form(keyword.value))
            names.append(keyword.arg)
        return forms, names

    def _is_python(self, node: ast.Call) -> bool:
        """``wp.static`` that depends on an unrolled loop's variable."""
        target: Any = None
        if isinstance(node.func, ast.Name):
            target = lookup(self.scope.code, node.func.id)
        elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            target = member(lookup(self.scope.code, node.func.value.id), node.func.attr)
        return is_static(target)

    def builtin(
        self, node: ast.AST, name: str, parameters: list[str], forms: list[Form], kind: Any, text: Callable[..., str]
    ) -> list[Form]:
        """A builtin of which an argument has a tangent."""
        scope = self.scope
        if name == "mul" and all(_warp.is_transform(f.type) for f in forms):
            name = "transform_multiply"
        if name in ("div", "div_approx") and _components(forms[1].type):
            name = "div_by_components"
        if name in FLAT:
            return [Form(text(*(f.text for f in forms)), kind)]
        composition = COMPOSED.get((name, parameters[0]))
        if composition is not None and not (name in ("min", "max") and len(forms) == 2):
            overload = composed(composition).get_overload([f.type for f in forms], {})
            return self._users(node, overload, forms, kind)
        if name in LINEAR and "scale" not in parameters:
            return [self._linear(node, name, parameters, forms, kind, text)]
        if name in PRODUCTS:
            forms = [self.kept(f) for f in forms]
            values = [f.text for f in forms]
            terms = [text(*values[:k], f.tangent, *values[k + 1 :]) for k, f in enumerate(forms) if f.tangent]
            return [Form(text(*values), kind, _sum(terms))]
        if name == "determinant":
            return [self._determinant(forms[0], kind, text)]
        if name in COMPONENTWISE and _components(kind):
            return [self._componentwise(name, parameters, forms, kind, text)]
        if name in ROWS:
            return [self._row(name, parameters, forms, kind, text)]
        raise scope.refuse(node, f"'{name}' has no tangent rule")

    def _linear(
        self, node: ast.AST, name: str, parameters: list[str], forms: list[Form], kind: Any, text: Callable[..., str]
    ) -> Form:
        value = text(*(f.text for f in forms))
        same = all(f.type is kind or scalar_of(f.type) is f.type for f in forms)
        if name in ("add", "sub") and same and all(_same(f.type, kind) for f in forms if f.tangent is not None):
            a, b = (f.tangent for f in forms)
            if b is None:
                return Form(value, kind, a)
            if a is None:
                return Form(value, kind, b if name == "add" else f"(-{_atom(b)})")
        forms = [self.kept(f, "c") if not has_tangent(f.type) and name == "where" else f for f in forms]
        value = text(*(f.text for f in forms))
        parts = []
        for parameter, form in zip(parameters, forms, strict=True):
            if parameter in TYPE_ARGUMENTS or (not has_tangent(form.type) and name not in CONSTRUCTORS):
                parts.append(form.text)
            elif form.tangent is None and is_array(form.type):
                raise self.scope.refuse(
                    node, "an array with a tangent and one without are used as one", MixedArraysError
                )
            elif has_tangent(form.type):
                parts.append(form.tangent or self.scope.zero(form.type))
            else:
                parts.append(self.scope.number(0.0, scalar_of(kind)))
        return Form(value, kind, text(*parts))

    def _row(self, name: str, parameters: list[str], forms: list[Form], kind: Any, text: Callable[..., str]) -> Form:
        rows = ROWS[name]
        wanted = [(rows[p], p) for p, f in zip(parameters, forms, strict=True) if f.tangent is not None]
        used = {n.id for term, _ in wanted if term for n in ast.walk(ast.parse(term)) if isinstance(n, ast.Name)}
        forms = [self.kept(f) if p in used else f for p, f in zip(parameters, forms, strict=True)]
        value = Form(text(*(f.text for f in forms)), kind)
        if "r" in used:
            value = self.kept(value, "r")
        tangents = {}
        for parameter, form in zip(parameters, forms, strict=True):
            if form.tangent is not None:
                again = rows[parameter].count(f"d_{parameter}") > 1
                tangents[f"d_{parameter}"] = (
                    self.kept(Form(form.tangent, form.type), "d_t").text if again else form.tangent
                )
        meaning = {p: f.text for p, f in zip(parameters, forms, strict=True)} | {"r": value.text} | tangents
        terms = [self._term(term, meaning, scalar_of(kind)) for term, _ in wanted if term]
        if not terms:
            return value
        return Form(value.text, kind, _sum(terms))

    def _term(self, term: str, meaning: dict[str, str], scalar: Any) -> str:
        return ast.unparse(_Term(self.scope, meaning, scalar).visit(ast.parse(term, mode="eval").body))

    def _componentwise(
        self, name: str, parameters: list[str], forms: list[Form], kind: Any, text: Callable[..., str]
    ) -> Form:
        """A row for each component of a vector or matrix."""
        scalar = scalar_of(kind)
        forms = [
            Form(f.text, f.type, f.tangent and self.kept(Form(f.tangent, f.type), "d_t").text)
            for f in map(self.kept, forms)
        ]
        shape = tuple(kind._shape_)
        places = [(i,) for i in range(shape[0])]
        if len(shape) == 2:
            places = [(i, j) for i in range(shape[0]) for j in range(shape[1])]  # type: ignore[misc]
        parts = []
        for place in places:
            index = ", ".join(map(str, place))
            items = [
                Form(f"{f.text}[{index}]", scalar, f.tangent and f"{f.tangent}[{index}]") if _components(f.type) else f
                for f in forms
            ]
            meaning = {p: f.text for p, f in zip(parameters, items, strict=True)}
            meaning |= {f"d_{p}": f.tangent for p, f in zip(parameters, items, strict=True) if f.tangent is not None}
            rows = [ROWS[name][p] for p, f in zip(parameters, items, strict=True) if f.tangent is not None]
            terms = [self._term(row, meaning, scalar) for row in rows if row]
            parts.append(_sum(terms))
        return Form(text(*(f.text for f in forms)), kind, f"{self.scope.type_text(kind)}({', '.join(parts)})")

    def _determinant(self, form: Form, kind: Any, text: Callable[..., str]) -> Form:
        """Linear in each row, so right where the matrix is singular too."""
        form = self.kept(form)
        tangent = self.kept(Form(form.tangent or "", form.type), "d_t").text
        count = form.type._shape_[0]
        terms = []
        for row in range(count):
            rows = [f"{tangent if i == row else form.text}[{i}]" for i in range(count)]
            terms.append(text(f"{self.scope.wp}.matrix_from_rows({', '.join(rows)})"))
        return Form(text(form.text), kind, _sum(terms))

    # --- the user's functions -----------------------------------------------------------------------------------------

    def _writes(self, node: ast.Call) -> bool:
        """Whether a call writes tangents into arrays."""
        called = self.scope.typed.called.get(id(node))
        if called is None or called[0].is_builtin():
            return False
        arrays = [a for a in (*node.args, *(k.value for k in node.keywords)) if is_array(self.scope.typed.type_of(a))]
        return any(self.form(a).tangent is not None for a in arrays)

    def _users(
        self, node: ast.AST, function: Any, forms: list[Form], kind: Any, names: list[str | None] | None = None
    ) -> list[Form]:
        """A call of a user's function: its tangent function returns values, then tangents."""
        scope = self.scope
        parameters = list(function.input_types)
        places = {n or p: f for n, p, f in zip(names or [None] * len(forms), parameters, forms, strict=False)}
        plain = [f"{n}={f.text}" if n else f.text for n, f in zip(names or [None] * len(forms), forms, strict=True)]
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
        tangents = [f"{found.twins[p]}={places[p].tangent}" for p, a in zip(parameters, active, strict=True) if a]
        call = f"{scope.give(found.function, found.function.key)}({', '.join([*plain, *tangents])})"
        if kind is None:
            scope.add(call)
            return []
        values = [scope.fresh("t") for _ in kinds]
        ds = [scope.fresh("d_t") if a else None for a in found.results]
        scope.add(f"{', '.join([*values, *(d for d in ds if d is not None)])} = {call}")
        return [Form(v, k, d) for v, k, d in zip(values, kinds, ds, strict=True)]

    def _lose(self, text: str) -> None:
        """A function stores tangents into an array that has none: a local one gets a twin."""
        root = text.replace("[", ".").split(".")[0]
        if root not in self.scope.typed.arguments:
            self.scope.activate(root)
        elif root not in self.scope.heads:
            self.loses.add(root)


class _Term(ast.NodeTransformer):
    """A row's term with its names replaced."""

    def __init__(self, scope: Scope, meaning: dict[str, str], scalar: Any) -> None:
        self.scope, self.meaning, self.scalar = scope, meaning, scalar

    def visit_Name(self, node: ast.Name) -> ast.AST:
        text = self.meaning.get(node.id)
        return _expression(text if text is not None else f"{self.scope.wp}.{node.id}")

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        assert isinstance(node.value, float)
        return _expression(self.scope.number(node.value, self.scalar))


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def is_impure(builtin: Any) -> bool:
    """Whether a builtin changes what it is given: a random state, a query, memory."""
    return (
        "state" in builtin.input_types or builtin.key.startswith(("atomic_", "tile_")) or builtin.key.endswith("_next")
    )


@functools.cache
def stores(function: Any) -> bool:
    """Whether a user's function, or one that it calls, writes to arrays."""
    found = list(ast.walk(function.adj.tree))
    callees = [node.func for node in found if isinstance(node, ast.Call)]
    names = {c.attr if isinstance(c, ast.Attribute) else getattr(c, "id", "") for c in callees}
    if any(name.startswith(("atomic_", "tile_")) for name in names):
        return True
    arrays = {a.label for a in function.adj.args if is_array(a.type) or is_struct(a.type)}
    if not arrays:
        return False
    if any(isinstance(n, (ast.Subscript, ast.Attribute)) and not isinstance(n.ctx, ast.Load) for n in found):
        return True
    code = code_of(function.adj)
    others = [lookup(code, name) for name in names]
    return any(is_function(o) and not o.is_builtin() and any(map(stores, declared_overloads(o))) for o in others)


def dotted(node: ast.AST) -> str | None:
    """``s.inner.pos`` of a chain of attributes on a name; None for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _is_cheap(node: ast.AST) -> bool:
    """An index that may stand twice: a name, a number, one of them and a number."""
    if isinstance(node, ast.BinOp):
        return _is_cheap(node.left) and _is_cheap(node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_cheap(node.operand)
    return isinstance(node, (ast.Name, ast.Constant))


def _atom(text: str) -> str:
    node = ast.parse(text, mode="eval").body
    return text if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Tuple)) else f"({text})"


def _joined(symbol: str, a: str, b: str) -> str:
    return f"({_atom(a)} {symbol} {_atom(b)})"


def _sum(terms: list[str]) -> str:
    return functools.reduce(lambda a, b: _joined("+", a, b), terms)


def _same(a: Any, b: Any) -> bool:
    return _warp.same_types([a], [b])


def _components(kind: Any) -> int:
    return math.prod(getattr(kind, "_shape_", ())) if hasattr(kind, "_shape_") else 0


def _parameters(function: Any, given: list[str], count: int) -> list[str]:
    """The parameters that positional arguments stand for."""
    names = list(function.input_types)
    if names and names[0].startswith("*"):
        return [f"item_{k}" for k in range(count)]
    return [*names[:count], *(["?"] * (count - len(names)))]
