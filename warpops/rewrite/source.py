"""Reading a kernel's or a function's source, and making kernels, functions and structs of text.

What vmap, the adjoint of loops and the tangent share: fresh names, what a name means, what is called, and new objects of
Warp that live in modules of their own, with the user's globals and closure, and the user's lines.
"""

from __future__ import annotations

import ast
import linecache
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..effects.model import Site
from ..effects.names import Code, code_of, is_static
from ..private import warp_code, warp_source
from ..private.compiled import compile_text
from ..private.warp_source import declared_overloads, is_function


class UnreadableError(Exception):
    """A function whose source can't be rewritten, and why."""


class Names:
    """Names that nothing else in a function has."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def has(self, name: str) -> bool:
        """Whether a name is taken."""
        return name in self._taken

    def fresh(self, name: str) -> str:
        """``name``, or a variation of it."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


@dataclass
class Source:
    """One function of the user's: a tree that may be changed, and the scope that it is read in."""

    tree: ast.FunctionDef
    """Without decorators, annotations and docstring."""
    code: Code
    names: Names
    local: set[str]
    """Arguments, and all names that are assigned. Whoever adds variables to the tree adds them here."""
    kept: dict[str, str] = field(default_factory=dict)
    """Arrays whose stores keep what they overwrite, each with the variable that says how much was kept."""
    keepers: set[str] = field(default_factory=set)
    """The functions that they call."""
    stored: set[tuple[int, int]] = field(default_factory=set)
    """Where they are."""

    @property
    def parameters(self) -> list[str]:
        return [argument.arg for argument in self.tree.args.args]

    def meaning(self, node: ast.AST) -> Any:
        """The object behind a free name, or an attribute of one; None for what is a value of the kernel's."""
        first = node
        while isinstance(first, ast.Attribute):
            first = first.value
        local = isinstance(first, ast.Name) and first.id in self.local
        return None if local else warp_source.meaning(self.code, node)

    def calls(self) -> Iterator[tuple[ast.Call, Any]]:
        """All calls with what they call. What is inside of ``wp.static`` is Python, and left out."""
        yield from calls_in(self, self.tree.body)

    def functions(self) -> Iterator[tuple[ast.Call, Any]]:
        """The calls of the user's ``wp.func``s, and those that get one to call (``wp.tile_map``)."""
        for call, called in self.calls():
            for function in (called, *(self.meaning(argument) for argument in call.args)):
                if is_function(function) and not function.is_builtin():
                    yield call, function


def read(owner: Any) -> Source:
    """The source of a ``wp.Kernel`` or ``wp.Function``, as a fresh tree.

    Raises:
        UnreadableError: it has none.
    """
    text = warp_source.source_text(owner)
    try:
        tree = ast.parse(text).body[0]
    except (SyntaxError, TypeError) as error:
        raise UnreadableError(f"the source of '{owner.key}' can't be read") from error
    if not isinstance(tree, ast.FunctionDef):
        raise UnreadableError(f"'{owner.key}' is no function")
    body = tree.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:] or [ast.copy_location(ast.Pass(), body[0])]
    parameters = [ast.arg(a.arg) for a in tree.args.args]
    made = function_tree(tree.name, parameters, body)
    stored = {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    local = stored | {a.arg for a in parameters}
    names = {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name)} | local | {tree.name}
    return Source(made, code_of(owner), Names(names), local)


def as_it_is(owner: Any) -> Source:
    """The source as Warp has parsed it, to be looked at alone."""
    code = code_of(owner)
    parameters = code.func.__code__.co_varnames[: code.func.__code__.co_argcount]
    return Source(function_tree(code.func.__name__, [], list(code.body)), code, Names(()), {*parameters, *code.bound})


def function_tree(name: str, parameters: list[ast.arg], body: list[ast.stmt]) -> ast.FunctionDef:
    """A function definition."""
    arguments = ast.arguments([], parameters, None, [], [], None, [])
    made = ast.FunctionDef(name, arguments, body or [ast.Pass()], [], None)
    if "type_params" in ast.FunctionDef._fields:  # since Python 3.12
        setattr(made, "type_params", [])  # noqa: B010
    return made


def calls_in(source: Source, body: Iterable[ast.AST]) -> Iterator[tuple[ast.Call, Any]]:
    """The calls in statements or expressions, with what they call."""
    for node in body:
        if isinstance(node, ast.Call):
            called = source.meaning(node.func)
            yield node, called
            if is_static(called):
                continue
        yield from calls_in(source, ast.iter_child_nodes(node))


def results_of(source: Source) -> int:
    """How many values a function returns."""
    found = 0
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Return) and node.value is not None:
            called: Any = source.meaning(node.value.func) if isinstance(node.value, ast.Call) else None
            if isinstance(node.value, ast.Tuple):
                found = max(found, len(node.value.elts))
            elif is_function(called) and not called.is_builtin():
                overloads = [o for o in declared_overloads(called) if getattr(o, "native_snippet", None) is None]
                found = max(found, 1, *(results_of(read(overload)) for overload in overloads))
            else:
                found = max(found, 1)
    return found


# --- writing ----------------------------------------------------------------------------------------------------------


def lines_of(body: Iterable[ast.stmt], title: str) -> list[str]:
    """Statements as lines; those that are the user's say which line of the function ``title`` they come from."""
    return [line for statement in body for line in _lines(statement, title)]


def _lines(statement: ast.stmt, title: str) -> list[str]:
    row = getattr(statement, "lineno", 0)
    note = f"  # line {row} of {title}" if row else ""
    if not isinstance(statement, (ast.If, ast.For, ast.While)):
        lines = ast.unparse(ast.fix_missing_locations(statement)).splitlines()
        return [lines[0] + note, *lines[1:]]
    if isinstance(statement, ast.For):
        head = f"for {ast.unparse(statement.target)} in {ast.unparse(statement.iter)}:"
    else:
        head = f"{'if' if isinstance(statement, ast.If) else 'while'} {ast.unparse(statement.test)}:"
    result = [head + note, *indented(lines_of(statement.body or [ast.Pass()], title))]
    if isinstance(statement, ast.If) and statement.orelse:
        result += ["else:", *indented(lines_of(statement.orelse, title))]
    return result


def indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def users_line(message: str, lines: Mapping[str, tuple[str, int]]) -> str | None:
    """The user's file and line that a message about generated text is about; ``lines``: where each function begins."""
    for row, title in re.findall(r"# line (\d+) of (\w+)", message):
        if title in lines:
            file, first = lines[title]
            return f"{file}:{first + int(row) - 1}"
    return None


def make_function(
    original: Any,
    text: str,
    own: str,
    given: Mapping[str, Any],
    annotations: Mapping[str, Any],
    defaults: tuple[Any, ...] | None = None,
) -> types.FunctionType:
    """A Python function of a text that defines ``own``.

    It has the original's globals, the very cells of its closure, and ``given``, what other names stand for.

    Args:
        original: the user's function.
        text: its definition, undecorated and without annotations.
        own: the name that the text defines.
        given: free names of the text that aren't the user's.
        annotations: the types of its arguments.
        defaults: the values of its last arguments where they are left out.
    """
    cells = dict(zip(original.__code__.co_freevars, original.__closure__ or (), strict=True))
    cells |= {name: types.CellType(value) for name, value in given.items()}
    names = [n for n in cells if n != own]
    lines = ["def enclosing():", *([f"    {' = '.join(names)} = None"] if names else [])]
    lines += [f"    {line}" if line else line for line in text.splitlines()]
    lines += [f"    return {own}", ""]
    scope: dict[str, Any] = {}
    entry = compile_text("\n".join(lines), scope, own)
    code = scope["enclosing"]().__code__
    function = types.FunctionType(code, original.__globals__, own, defaults, tuple(cells[n] for n in code.co_freevars))
    function.__dict__["text"] = entry  # Warp reads it when it builds the kernel
    function.__dict__["made_of"] = original
    function.__module__ = original.__module__
    function.__qualname__ = own
    function.__annotations__ = dict(annotations)
    return function


def users_site(owner_function: Any, site: Site) -> Site:
    """The user's place that a place in a kernel or function is about: the same, or the one that its text was made from."""
    original = owner_function.__dict__.get("made_of")
    if original is None:
        return site
    line = linecache.getline(site.file, site.line)
    first = original.__code__.co_firstlineno
    note = re.search(r"# line (\d+) of ", line)
    row = first + int(note[1]) - 1 if note else first
    file = original.__code__.co_filename
    code = linecache.getline(file, row).strip() if note else site.code
    return users_site(original, Site(file, row, code))


def make_kernel(kernel: Any, function: types.FunctionType, key: str, **options: Any) -> Any:
    """A ``wp.Kernel`` of another function with the options of ``kernel`` and those, in a module of its own."""
    return warp_code.sibling_kernel(kernel, function, key, **options)


def make_func(function: types.FunctionType, key: str, overload_of: Any = None) -> Any:
    """A ``wp.Function``, in a module of its own, or an overload of another one of that key."""
    return warp_code.sibling_function(function, key, overload_of)


def dotted(node: ast.AST) -> str | None:
    """``s.inner.pos`` of a chain of attributes on a name; None for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None
