"""The tangent of a builtin's result, by the rules of ``effects/tables.py`` and ``tangent_compositions``."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import warp as wp

from ..effects.tables import Row, row
from ..private import warp_built, warp_types
from .tangent_compositions import COMPOSED, DECOMPOSED, composed
from .tangent_scope import Form, Scope, has_tangent, scalar_of
from .tangent_text import atom, joined, summed
from .trees import parsed

CONSTRUCTORS = frozenset({"vector", "matrix", "quaternion", "transformation", "spatial_vector"})
TYPE_ARGUMENTS = frozenset({"dtype", "length", "shape", "offset", "storage", "bounds_check", "aligned", "axis"})
"""Parameters that say what is made, and have no tangent."""


class Builtins:
    """Applies the rules within one function."""

    def __init__(self, scope: Scope, users: Callable[..., list[Form]]) -> None:
        """``users(node, overload, forms, kind)`` calls a function that has a source."""
        self.scope, self.users = scope, users

    def derive(
        self, node: ast.AST, name: str, parameters: list[str], forms: list[Form], kind: Any, text: Callable[..., str]
    ) -> list[Form]:
        """A builtin of which an argument has a tangent."""
        if name == "mul" and all(warp_built.is_transform(f.type) for f in forms):
            name = "transform_multiply"
        if name in ("div", "div_approx") and _components(forms[1].type):
            name = "div_by_components"
        known = row(name)
        if known.tangent == "flat":
            return [Form(text(*(f.text for f in forms)), kind)]
        composition = COMPOSED.get((name, parameters[0]))
        if composition is not None and not (name in ("min", "max") and len(forms) == 2):
            overload = composed(composition).get_overload([f.type for f in forms], {})
            return self.users(node, overload, forms, kind)
        if name in DECOMPOSED and len(forms) == 1:
            return self._decomposed(name, forms[0], kind)
        if known.tangent == "linear" and "scale" not in parameters:
            return [self._linear(node, name, parameters, forms, kind, text)]
        if known.tangent in ("product", "symmetric"):
            power = self._power(name, forms, kind, text) if known.tangent == "symmetric" else None
            if power is not None:
                return [power]
            forms = [self.scope.kept(f) for f in forms]
            values = [f.text for f in forms]
            terms = [text(*values[:k], f.tangent, *values[k + 1 :]) for k, f in enumerate(forms) if f.tangent]
            return [Form(text(*values), kind, summed(terms))]
        if name == "determinant":
            return [self._determinant(forms[0], kind, text)]
        if known.by_component and _components(kind):
            return [self._by_component(known.terms, parameters, forms, kind, text)]
        if known.terms:
            return [self._summed(known, parameters, forms, kind, text)]
        raise self.scope.refuse(node, f"'{name}' has no tangent rule")

    def _decomposed(self, name: str, form: Form, kinds: list[Any]) -> list[Form]:
        """The factors of a matrix, and their tangents."""
        scope, scalar = self.scope, scalar_of(form.type)
        function, least = DECOMPOSED[name]
        if scalar is not wp.float64:
            least = 1e-6
        made = composed(function).get_overload([form.type, form.type, scalar], {})
        values, tangents = ([scope.fresh(hint) for _ in kinds] for hint in ("t", "d_t"))
        given = f"{form.text}, {form.tangent}, {scope.number(least, scalar)}"
        scope.add(f"{', '.join([*values, *tangents])} = {scope.give(made, name)}({given})")
        return [Form(*result) for result in zip(values, kinds, tangents, strict=True)]

    def _linear(
        self, node: ast.AST, name: str, parameters: list[str], forms: list[Form], kind: Any, text: Callable[..., str]
    ) -> Form:
        value = text(*(f.text for f in forms))
        same = all(f.type is kind or scalar_of(f.type) is f.type for f in forms)
        moving = [f.type for f in forms if f.tangent is not None]
        if name in ("add", "sub") and same and warp_types.same_types(moving, [kind] * len(moving)):
            a, b = (f.tangent for f in forms)
            if b is None:
                return Form(value, kind, a)
            if a is None:
                return Form(value, kind, b if name == "add" else f"(-{atom(b)})")
        forms = [self.scope.kept(f, "c") if not has_tangent(f.type) and name == "where" else f for f in forms]
        value = text(*(f.text for f in forms))
        parts = []
        for parameter, form in zip(parameters, forms, strict=True):
            if parameter in TYPE_ARGUMENTS or (not has_tangent(form.type) and name not in CONSTRUCTORS):
                parts.append(form.text)
            elif has_tangent(form.type):
                parts.append(form.tangent or self.scope.zero(form.type, node))
            else:
                parts.append(self.scope.number(0.0, scalar_of(kind)))
        return Form(value, kind, text(*parts))

    def _power(self, name: str, forms: list[Form], kind: Any, text: Callable[..., str]) -> Form | None:
        """A factor times itself, or once more: one product is the tangent, not one for each factor."""
        a, b = forms
        base, times = a.power or (a, 1)
        if base.text != b.text or (times > 1 and name != "mul") or not (name != "mul" or scalar_of(b.type) is b.type):
            return None
        if times == 1:
            a = base = self.scope.kept(b)
        a = self.scope.kept(a)
        count = self.scope.number(float(times + 1), scalar_of(kind))
        tangent = joined("*", count, text(a.text, base.tangent))
        return Form(text(a.text, base.text), kind, tangent, (base, times + 1))

    def _summed(
        self, known: Row, parameters: list[str], forms: list[Form], kind: Any, text: Callable[..., str]
    ) -> Form:
        terms, whole = known.terms, known.whole
        wanted = [terms[p] for p, f in zip(parameters, forms, strict=True) if f.tangent is not None and terms[p]]
        used = {n.id for term in (*wanted, whole) for n in ast.walk(ast.parse(term)) if isinstance(n, ast.Name)}
        forms = [self.scope.kept(f) if p in used else f for p, f in zip(parameters, forms, strict=True)]
        value = Form(text(*(f.text for f in forms)), kind)
        if not wanted:
            return value
        if "r" in used:
            value = self.scope.kept(value, "r")
        meaning = {p: f.text for p, f in zip(parameters, forms, strict=True)} | {"r": value.text}
        for parameter, form in zip(parameters, forms, strict=True):
            if form.tangent is not None:
                again = terms[parameter].count(f"d_{parameter}") > 1
                meaning[f"d_{parameter}"] = self.scope.kept_tangent(form) if again else form.tangent
        meaning["total"] = summed([self._term(term, meaning, scalar_of(kind)) for term in wanted])
        return Form(value.text, kind, self._term(whole, meaning, scalar_of(kind)))

    def _term(self, term: str, meaning: dict[str, str], scalar: Any) -> str:
        return ast.unparse(_Term(self.scope, meaning, scalar).visit(ast.parse(term, mode="eval").body))

    def _by_component(
        self, terms: Mapping[str, str], parameters: list[str], forms: list[Form], kind: Any, text: Callable[..., str]
    ) -> Form:
        """The terms for each component of a vector or matrix."""
        scalar = scalar_of(kind)
        forms = [Form(f.text, f.type, f.tangent and self.scope.kept_tangent(f)) for f in map(self.scope.kept, forms)]
        parts = []
        for place in itertools.product(*map(range, kind._shape_)):
            index = ", ".join(map(str, place))
            items = [
                Form(f"{f.text}[{index}]", scalar, f.tangent and f"{f.tangent}[{index}]") if _components(f.type) else f
                for f in forms
            ]
            meaning = {p: f.text for p, f in zip(parameters, items, strict=True)}
            meaning |= {f"d_{p}": f.tangent for p, f in zip(parameters, items, strict=True) if f.tangent is not None}
            wanted = [terms[p] for p, f in zip(parameters, items, strict=True) if f.tangent is not None and terms[p]]
            parts.append(summed([self._term(term, meaning, scalar) for term in wanted]))
        return Form(text(*(f.text for f in forms)), kind, f"{self.scope.type_text(kind)}({', '.join(parts)})")

    def _determinant(self, form: Form, kind: Any, text: Callable[..., str]) -> Form:
        """Linear in each row, so right where the matrix is singular too."""
        form = self.scope.kept(form)
        tangent = self.scope.kept_tangent(form)
        count = form.type._shape_[0]
        terms = []
        for place in range(count):
            rows = [f"{tangent if i == place else form.text}[{i}]" for i in range(count)]
            terms.append(text(f"{self.scope.wp}.matrix_from_rows({', '.join(rows)})"))
        return Form(text(form.text), kind, summed(terms))


class _Term(ast.NodeTransformer):
    """A term with its names replaced."""

    def __init__(self, scope: Scope, meaning: dict[str, str], scalar: Any) -> None:
        self.scope, self.meaning, self.scalar = scope, meaning, scalar

    def visit_Name(self, node: ast.Name) -> ast.AST:
        text = self.meaning.get(node.id)
        return parsed(text if text is not None else f"{self.scope.wp}.{node.id}")

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        assert isinstance(node.value, float)
        return parsed(self.scope.number(node.value, self.scalar))


def _components(kind: Any) -> int:
    return math.prod(getattr(kind, "_shape_", (0,)))
