"""Reading a kernel's or a function's source, and making kernels, functions and structs of text.

What vmap, the adjoint of loops and the tangent share: fresh names, what a name means, what is called, and new objects of
Warp that live in modules of their own, with the user's globals and closure, and the user's lines.
"""

from __future__ import annotations

import ast
import dataclasses
import linecache
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import warp as wp

from ..effects.chains import root
from ..effects.model import Site
from ..effects.names import Code, code_of, is_static
from ..effects.outside import hand_on
from ..private import warp_code, warp_source
from ..private.compiled import compile_text
from ..private.warp_source import declared_overloads, is_users, meaning
from .trees import assigned_in, head_of, items_of, names_in, nodes_of, parts_of, rebuilt


class UnreadableError(Exception):
    """A function whose source can't be rewritten, and why."""


class Names:
    """Names that nothing else in a function has."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self.given: dict[str, Any] = {}
        """What free names of the text stand for that aren't the user's."""

    def has(self, name: str) -> bool:
        """Whether a name is taken."""
        return name in self._taken

    def fresh(self, name: str) -> str:
        """``name``, or a variation of it."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def give(self, value: Any, wanted: str) -> str:
        """The one free name that stands for an object."""
        found = next((n for n, other in self.given.items() if other is value), None)
        if found is None:
            found = self.fresh("".join(c if c.isalnum() or c == "_" else "_" for c in wanted))
            self.given[found] = value
        return found


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
    stored: set[tuple[int, int]] = field(default_factory=set)
    """Where they are."""

    @property
    def parameters(self) -> list[str]:
        return [argument.arg for argument in self.tree.args.args]

    def meaning(self, node: ast.AST) -> Any:
        """The object behind a free name, or an attribute of one; None for what is a value of the kernel's."""
        return None if root(node) in self.local else meaning(self.code, node)

    def called(self, node: ast.AST | None) -> Any:
        """What a call calls; None for any other node."""
        return self.meaning(node.func) if isinstance(node, ast.Call) else None

    def walk(self, body: Iterable[ast.AST]) -> Iterator[ast.AST]:
        """All nodes of statements or expressions, in order. What is inside of ``wp.static`` is Python, and left out."""
        waiting = [*body][::-1]
        while waiting:
            yield (node := waiting.pop())
            if not isinstance(node, ast.Call) or not is_static(self.meaning(node.func)):
                waiting += parts_of(node)[::-1]

    def calls(self, body: Iterable[ast.AST] | None = None) -> Iterator[tuple[ast.Call, Any]]:
        """The calls in statements or expressions (in all without), with what they call."""
        nodes = self.walk(self.tree.body if body is None else body)
        return ((node, self.called(node)) for node in nodes if isinstance(node, ast.Call))

    def functions(self) -> Iterator[Any]:
        """The user's functions that are called, and those that a call gets (``wp.tile_map``)."""
        for call, called in self.calls():
            yield from filter(is_users, (called, *map(self.meaning, call.args)))

    def variable(self, wanted: str) -> str:
        """A new variable."""
        found = self.names.fresh(wanted)
        self.local.add(found)
        return found


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
    parameters = [a.arg for a in tree.args.args]
    nodes = [*nodes_of(tree.body)]
    local = assigned_in(nodes) | set(parameters)
    names = Names(names_in(nodes) | local | {tree.name})
    code = code_of(owner)
    if "static" in text:  # what it came to when the kernel was defined; a tree takes longer to copy than to parse
        tree = in_names(warp_source.tree_of(owner), names.give)
        code = dataclasses.replace(code, given=code.given | names.given)
    body = tree.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:] or [ast.copy_location(ast.Pass(), body[0])]
    tree.args = ast.arguments([], [ast.arg(n) for n in parameters], None, [], [], None, [])
    tree.decorator_list, tree.returns, tree.body = [], None, body
    return Source(tree, code, names, local)


def in_names(node: ast.AST, give: Callable[[Any, str], str]) -> Any:
    """A fresh tree, with names for what ``wp.static`` came to and no text says."""
    return _InNames(give).visit(_copied(node))


def _copied(node: Any) -> Any:
    """A tree that may be changed; what ``wp.static`` came to stays the object that it is."""
    made = rebuilt(node, _copied)
    if isinstance(node, ast.AST):
        made.__dict__.update({k: v for k, v in node.__dict__.items() if k not in made.__dict__})
    return made


class _InNames(ast.NodeTransformer):
    def __init__(self, give: Callable[[Any, str], str]) -> None:
        self._give = give

    def _name(self, node: ast.AST, value: Any, wanted: str) -> ast.AST:
        return ast.copy_location(ast.Name(self._give(value, wanted), ast.Load()), node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value: Any = node.value
        if isinstance(value, (bool, str, type(None), type(...))):
            return node
        if type(value) in (int, float) and abs(value) < float("inf"):
            if value >= 0 and not str(value).startswith("-"):
                return node
            return ast.copy_location(ast.UnaryOp(ast.USub(), ast.copy_location(ast.Constant(-value), node)), node)
        return self._name(node, value, "constant")

    def visit_Name(self, node: ast.Name) -> ast.AST:
        function = getattr(node, "warp_func", None)
        return node if function is None else self._name(node, function, function.key)


def as_it_is(owner: Any) -> Source:
    """The source as Warp has parsed it, to be looked at alone."""
    code = code_of(owner)
    parameters = code.func.__code__.co_varnames[: code.func.__code__.co_argcount]
    tree = ast.FunctionDef(code.func.__name__, ast.arguments([], [], None, [], [], None, []), list(code.body), [])
    return Source(tree, code, Names(()), {*parameters, *code.bound})


def definitions(called: Any) -> dict[Any, Any]:
    """The Python functions behind a name of the user's, with their ``wp.Function``s: one for each overload."""
    return {code_of(overload).func: overload for overload in declared_overloads(called)} if is_users(called) else {}


def results_of(source: Source) -> int:
    """How many values a function returns."""
    found = 0
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Return) and node.value is not None:
            overloads = definitions(source.called(node.value)).values()
            callees = [read(o) for o in overloads if getattr(o, "native_snippet", None) is None]
            found = max(found, len(items_of(node.value)), *map(results_of, callees))
    return found


# --- writing ----------------------------------------------------------------------------------------------------------


def lines_of(body: Iterable[ast.stmt], title: str) -> list[str]:
    """Statements as lines; those that are the user's say which line of the function ``title`` they come from."""
    return [line for statement in body for line in _lines(statement, title)] or ["pass"]


def _lines(statement: ast.stmt, title: str) -> list[str]:
    row = getattr(statement, "lineno", 0)
    note = f"  # line {row} of {title}" if row else ""
    if not isinstance(statement, (ast.If, ast.For, ast.While)):
        lines = ast.unparse(ast.fix_missing_locations(statement)).splitlines()
        return [lines[0] + note, *lines[1:]]
    word = type(statement).__name__.lower()
    turns = f"{ast.unparse(statement.target)} in " if isinstance(statement, ast.For) else ""
    result = [f"{word} {turns}{ast.unparse(head_of(statement))}:{note}", *indented(lines_of(statement.body, title))]
    if isinstance(statement, ast.If) and statement.orelse:
        result += ["else:", *indented(lines_of(statement.orelse, title))]
    return result


def indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def definition(own: str, parameters: Iterable[str], lines: Iterable[str]) -> str:
    """The text of a function."""
    return "\n".join([f"def {own}({', '.join(parameters)}):", *indented(lines)])


def users_line(message: str, owners: Iterable[Any]) -> str | None:
    """The user's file and line that a message about text generated for these kernels and functions is about."""
    codes = {code.func.__name__: code for code in map(code_of, owners)}
    for row, title in re.findall(r"# line (\d+) of (\w+)", message):
        if title in codes:
            return f"{codes[title].file}:{codes[title].first_line + int(row) - 1}"
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


def make_kernel(
    kernel: Any, text: str, own: str, given: Mapping[str, Any], annotations: Mapping[str, Any], **options: Any
) -> Any:
    """A ``wp.Kernel`` of a text with the options of ``kernel`` and those, in a module of its own.

    Raises:
        ChangedError: names of the text stand for something else than when ``kernel`` was built.
    """
    function = make_function(warp_source.python_function(kernel), text, own, given, annotations)
    made = warp_code.sibling_kernel(kernel, function, own, **options)
    hand_on(kernel, made)
    return made


def make_func(
    original: Any,
    text: str,
    own: str,
    given: Mapping[str, Any],
    annotations: Mapping[str, Any],
    defaults: tuple[Any, ...] | None = None,
    overload_of: Any = None,
) -> Any:
    """A ``wp.Function`` of a text, in a module of its own; or another overload of ``overload_of``."""
    function = make_function(original, text, own, given, annotations, defaults)
    return warp_code.sibling_function(function, own if overload_of is None else overload_of.key, overload_of)


def give_adjoint(
    function: Any,
    result: Any,
    lines: Iterable[str],
    original: Any,
    given: Mapping[str, Any],
    annotations: Mapping[str, Any],
) -> str:
    """Let a ``wp.Function`` of these arguments have an adjoint of its own; returns its text.

    Args:
        result: the type of what it returns, whose cotangent is ``adj_result``.
    """
    own, types = f"{function.key}_adjoint", {**annotations, Names(annotations).fresh("adj_result"): result}
    text = definition(own, types, lines)
    wp.func_grad(function)(make_function(original, text, own, given, types))
    return text
