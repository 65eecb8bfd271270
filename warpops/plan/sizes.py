"""Size expressions: parse, print, evaluate. ``2 * n + 1``, ``min(n, k)``, ``n // 2``.

An expression is a small tree; nothing else of Python is accepted, and nothing is ever passed to ``eval``.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Mapping

from ..frozen import frozen

OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
DEEPEST = 100
"""How many levels an expression may have."""
TOO_DEEP = f"a size expression of more than {DEEPEST} levels"
_RANK = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2}


class SizeError(ValueError):
    """A size expression can't be parsed, or has no value: text for the caller to put in its own message."""


@frozen
class Expr:
    """A size expression: an integer, a name, an operator or ``min``/``max`` over two expressions."""

    head: str
    """``int``, ``name``, an operator, ``min`` or ``max``."""
    value: int | str = 0
    items: tuple[Expr, ...] = ()

    @property
    def is_name(self) -> bool:
        return self.head == "name"

    @property
    def is_int(self) -> bool:
        return self.head == "int"

    def parts(self) -> Iterator[Expr]:
        """It, and every expression in it, in reading order."""
        yield self
        for item in self.items:
            yield from item.parts()

    def names(self) -> tuple[str, ...]:
        """Every name in it, in reading order."""
        if not self.items:
            return (str(self.value),) if self.is_name else ()
        return tuple(name for item in self.items for name in item.names())

    def __str__(self) -> str:
        return self.text({}) if self.items else str(self.value)

    def text(self, rename: Mapping[str, str], rank: int = 0) -> str:
        """As Python text, names renamed."""
        if self.is_int:
            return str(self.value) if int(self.value) >= 0 or rank == 0 else f"({self.value})"
        if self.is_name:
            return rename.get(str(self.value), str(self.value))
        if self.head in ("min", "max"):
            return f"{self.head}({', '.join(item.text(rename) for item in self.items)})"
        own = _RANK[self.head]
        left, right = self.items
        text = f"{left.text(rename, own)} {self.head} {right.text(rename, own + 1)}"
        return f"({text})" if own < rank else text


def unused(wanted: str, taken: Container[str]) -> str:
    """A size's name that nothing else has."""
    while wanted in taken:
        wanted += "_"
    return wanted


def integer(value: int) -> Expr:
    return Expr("int", value)


def name(value: str) -> Expr:
    return Expr("name", value)


def parse_sizes(text: str) -> tuple[Expr | None, ...]:
    """Parse a comma-separated list of expressions; ``_`` is None (any size).

    Raises:
        SizeError: with advice for the common mistakes.
    """
    text = text.strip()
    if not text:
        return ()
    try:
        tree = ast.parse(f"({text},)", mode="eval").body
    except (RecursionError, MemoryError):
        raise SizeError(TOO_DEEP) from None
    except (SyntaxError, ValueError):
        if len(text.split()) > 1 and all(part.isidentifier() or part.isdigit() for part in text.split()):
            raise SizeError(f"separate the sizes in '{text}' with commas: '{', '.join(text.split())}'") from None
        raise SizeError(f"'{text}' is no list of size expressions") from None
    if not isinstance(tree, ast.Tuple):
        raise SizeError(f"'{text}' is no list of size expressions")
    try:
        return tuple(None if _is_any(item) else _expression(item, DEEPEST) for item in tree.elts)
    except RecursionError:  # Python's own printing of what isn't allowed
        raise SizeError(TOO_DEEP) from None


def _is_any(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "_"


def _expression(node: ast.expr, levels: int) -> Expr:
    if not levels:
        raise SizeError(TOO_DEEP)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        if node.value >= 2**63:
            raise SizeError(f"'{node.value}' is larger than any size")
        return integer(node.value)
    if _is_any(node):
        raise SizeError("'_' stands for any size and can't be part of an expression")
    if isinstance(node, ast.Name):
        return name(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        operand = _expression(node.operand, levels - 1)
        if isinstance(node.op, ast.UAdd):
            return operand
        return integer(-int(operand.value)) if operand.is_int else Expr("-", 0, (integer(0), operand))
    if isinstance(node, ast.BinOp):
        symbol = OPERATORS.get(type(node.op))
        if symbol is None:
            advice = "; write '//' for a size" if isinstance(node.op, ast.Div) else ""
            raise SizeError(f"'{ast.unparse(node)}' uses an operator that sizes don't have (+ - * // %){advice}")
        return Expr(symbol, 0, (_expression(node.left, levels - 1), _expression(node.right, levels - 1)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        if node.keywords or len(node.args) < 2:
            raise SizeError(f"'{ast.unparse(node)}': {node.func.id} takes two sizes or more")
        items = [_expression(argument, levels - 1) for argument in node.args]
        folded = items[0]
        for item in items[1:]:
            folded = Expr(node.func.id, 0, (folded, item))
        return folded
    raise SizeError(
        f"'{ast.unparse(node)}' is not allowed in a size: use integers, names, + - * // %, parentheses, min and max"
    )
