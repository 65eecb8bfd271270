"""What one function's tangent is written with: names, types, lines, and which values have a tangent."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

import warp as wp

from ..effects.names import code_of, is_static
from ..frozen import frozen
from ..private import warp_built, warp_types
from ..private.warp_source import lookup, meaning
from ..private.warp_types import is_array, is_struct
from .source import Names, in_names, indented, lines_of
from .tangent_text import is_simple
from .trees import names_in
from .typed import Typed


class TangentError(Exception):
    """Something has no tangent: what, where, and why."""


class MixedArraysError(TangentError):
    """An array with a tangent and one without are used as one."""


class GrownError(Exception):
    """A local or a result turned out to have a tangent: what was written before doesn't know of it."""


@frozen
class Form:
    """An expression as text: its value, and its tangent (None: zero)."""

    text: str
    type: Any
    tangent: str | None = None
    power: tuple[Form, int] | None = None
    """What it is a product of alone, and how many times."""


def scalar_of(warp_type: Any) -> Any:
    """The scalar type of a number, vector, matrix, quaternion or transform, or of a tile of them."""
    tile = warp_built.tile_of(warp_type)
    if tile is not None:
        return scalar_of(tile[0])
    return warp_built.strict_type(getattr(warp_type, "_wp_scalar_type_", warp_type))


def has_tangent(warp_type: Any) -> bool:
    """Whether values of a type have a tangent: floats, and all that holds any.

    Warp reads ``m[i][j]`` in one go, so that the type of a part of an expression may not be known: it may have one.
    """
    if warp_type is None:
        return True
    if is_array(warp_type) or warp_built.tile_of(warp_type) is not None:
        return has_tangent(warp_type.dtype)
    if is_struct(warp_type):
        return any(has_tangent(variable.type) for variable in warp_type.vars.values())
    if isinstance(warp_type, list):
        return any(map(has_tangent, warp_type))
    return warp_types.is_float(scalar_of(warp_type))


def holds_arrays(warp_type: Any) -> bool:
    """Whether a type is an array of what has a tangent, or a struct with one."""
    if is_struct(warp_type):
        return any(holds_arrays(variable.type) for variable in warp_type.vars.values())
    return is_array(warp_type) and has_tangent(warp_type)


class Scope:
    """The state of writing one function."""

    def __init__(self, owner: Any, typed: Typed) -> None:
        self.owner, self.typed = owner, typed
        self.code = code_of(owner)
        self.names = Names(names_in(ast.walk(typed.tree)) | {*typed.arguments, typed.tree.name})
        self.given, self.give = self.names.given, self.names.give
        self.active: set[str] = set()
        """Locals that have a tangent somewhere."""
        self.twins: dict[str, str] = {}
        self.leaves: dict[str, str | None] = {}
        """The tangent of each array among a kernel's arguments and their fields, by dotted name."""
        self.heads: frozenset[str] = frozenset()
        """A kernel's arguments: all arrays among them that it writes have a tangent."""
        self.dropped: Collection[str] = ()
        """A kernel's arrays that aren't stored to."""
        self.written: Collection[str] = ()
        """A kernel's arrays whose tangent is stored wherever the array is."""
        self.extremes: Collection[str] = ()
        """A kernel's arrays of maxima or minima, which are given as it leaves them."""
        self.results: list[bool] = []
        """Which results have a tangent, as far as is known."""
        self.packs = False
        """Several results are returned as one struct."""
        self._struct: tuple[list[Any], Any] | None = None
        self.row = 0
        """The line of the user's that is written about."""
        self.start()
        self.wp = "wp" if lookup(self.code, "wp") is wp and "wp" not in self.code.bound else self.give(wp, "warp")

    # --- lines --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Write anew, with what is known of the locals."""
        self._lines: list[tuple[str, int]] = []
        self._indent, self._locals = 1, 0
        self.writes = False
        """Tangents are written into arrays."""
        self.loses: set[str] = set()
        """Array parameters without a tangent that values with one are stored into."""

    def add(self, line: str) -> None:
        self._lines.append(("    " * self._indent + line, self.row))

    @contextlib.contextmanager
    def block(self, header: str) -> Iterator[None]:
        self.add(header)
        self._indent += 1
        before = len(self._lines)
        yield
        if len(self._lines) == before:
            self.add("pass")
        self._indent -= 1

    def text(self, name: str, parameters: Iterable[str]) -> str:
        """The function as text."""
        head = f"def {name}({', '.join(parameters)}):"
        lines = self._lines or [("    pass", 0)]
        body = ast.parse("\n".join([head, *(line for line, _ in lines)])).body[0].body  # type: ignore[attr-defined]
        for node in (n for statement in body for n in ast.walk(statement) if isinstance(n, ast.stmt)):
            node.lineno = lines[node.lineno - 2][1]
        return "\n".join([head, *indented(lines_of(body, self.typed.tree.name))])

    # --- names --------------------------------------------------------------------------------------------------------

    def twin(self, name: str) -> str:
        """The name of a local's tangent."""
        if name not in self.twins:
            self.twins[name] = self.names.fresh(f"d_{name}")
        return self.twins[name]

    def activate(self, name: str) -> None:
        """A local has a tangent, from its first assignment on."""
        if name not in self.active:
            self.active.add(name)
            raise GrownError

    def local(self, text: str, hint: str = "t") -> str:
        """Keep an expression's value in a local of its own."""
        name = self.fresh(hint)
        self.add(f"{name} = {text}")
        return name

    def kept(self, form: Form, hint: str = "t") -> Form:
        """A form whose value may stand several times."""
        if is_simple(form.text):
            return form
        return replace(form, text=self.local(form.text, hint))

    def kept_tangent(self, form: Form) -> str:
        """A form's tangent, as text that may stand several times."""
        assert form.tangent is not None
        return self.kept(Form(form.tangent, form.type), "d_t").text

    def fresh(self, hint: str) -> str:
        """The name of a new local."""
        self._locals += 1
        while self.names.has(f"{hint}{self._locals}"):
            self._locals += 1
        return self.names.fresh(f"{hint}{self._locals}")

    # --- types --------------------------------------------------------------------------------------------------------

    def type_text(self, warp_type: Any) -> str:
        """How a type is written."""
        warp_type = warp_built.strict_type(warp_type)
        name = getattr(warp_type, "__name__", getattr(warp_type, "key", "T"))
        if getattr(wp, name, None) is warp_type:
            return f"{self.wp}.{name}"
        return self.give(warp_type, name.split(".")[-1])

    def number(self, value: float, scalar: Any) -> str:
        """A constant of a scalar type."""
        return f"{self.type_text(scalar)}({value!r})"

    def zero(self, warp_type: Any, node: ast.AST) -> str:
        """The tangent of what has none. An array's would be an array of zeros, which nobody has made."""
        if holds_arrays(warp_type):
            raise self.refuse(
                node, "an array without a tangent takes the place of one with a tangent", MixedArraysError
            )
        return self.blank(warp_type)

    def blank(self, warp_type: Any) -> str:
        """A zero of any type but an array; arrays in it are null."""
        tile = warp_built.tile_of(warp_type)
        if tile is not None:
            dtype, shape, storage = tile
            return f"{self.wp}.tile_zeros(shape={shape}, dtype={self.type_text(dtype)}, storage={storage!r})"
        if is_struct(warp_type) or hasattr(warp_type, "_wp_scalar_type_"):
            return f"{self.type_text(warp_type)}()"
        return self.number(0.0, warp_type)

    def packed(self, types: list[Any]) -> Any:
        """The struct of a function's results, with fields ``r0``, ``r1``, …"""
        if self._struct is None or len(self._struct[0]) != len(types):
            fields = {f"r{k}": t for k, t in enumerate(types)}
            self._struct = types, warp_types.make_struct(f"{self.typed.tree.name}_results", fields)
        return self._struct[1]

    # --- the user's text ----------------------------------------------------------------------------------------------

    def plain(self, node: ast.AST) -> str:
        """The user's own text, with what ``wp.static`` came to under names."""
        return ast.unparse(self.plain_tree(node))

    def plain_tree(self, node: ast.AST) -> Any:
        """The same as a fresh tree."""
        return in_names(node, self.give)

    def is_python(self, node: ast.Call) -> bool:
        """Whether a call is ``wp.static``, of what depends on an unrolled loop's variable."""
        return is_static(meaning(self.code, node.func))

    def refuse(self, node: ast.AST, why: str, kind: type[TangentError] = TangentError) -> TangentError:
        site = self.code.site(node)
        return kind(f"{why} ({site}: `{site.code}`)")
