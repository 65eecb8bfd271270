"""Expressions as text: putting them together, and asking what they are."""

from __future__ import annotations

import ast
import functools

from .trees import parsed


def is_simple(text: str) -> bool:
    """Whether an expression may stand twice: a name, a field, a number."""
    node = parsed(text)
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    if isinstance(node, ast.Call) and not node.keywords and len(node.args) == 1:
        return isinstance(node.args[0], ast.Constant)  # a number of some type
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, (ast.Name, ast.Constant))


def is_cheap(node: ast.AST) -> bool:
    """Whether an index may stand twice: a name, a number, one of them and a number."""
    if isinstance(node, ast.BinOp):
        return is_cheap(node.left) and is_cheap(node.right)
    if isinstance(node, ast.UnaryOp):
        return is_cheap(node.operand)
    return isinstance(node, (ast.Name, ast.Constant))


def atom(text: str) -> str:
    """An expression that may stand beside any operator."""
    node = parsed(text)
    return text if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Tuple)) else f"({text})"


def joined(symbol: str, a: str, b: str) -> str:
    """Two expressions and an operator."""
    return f"({atom(a)} {symbol} {atom(b)})"


def summed(terms: list[str]) -> str:
    return functools.reduce(lambda a, b: joined("+", a, b), terms)
