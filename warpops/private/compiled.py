"""Generated text as functions, which tracebacks and debuggers find through ``linecache``."""

from __future__ import annotations

import itertools
import linecache
from typing import Any

_numbers = itertools.count()


def compile_text(text: str, scope: dict[str, Any], title: str) -> object:
    """Run generated text in ``scope``; tracebacks and debuggers find it through ``linecache``.

    Returns:
        What keeps the text there. The scope has it, and so have the functions in it; a function that is made of their
        code with globals of its own has to be given it.
    """
    filename = f"<warpops {title} {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    scope[filename] = entry = _Entry(filename)
    exec(compile(text, filename, "exec"), scope)
    return entry


class _Entry:
    """Drops a text from ``linecache`` when it is collected: a cell that is run again leaves nothing."""

    __slots__ = ("_cache", "_filename")

    def __init__(self, filename: str) -> None:
        self._filename, self._cache = filename, linecache.cache

    def __del__(self) -> None:
        self._cache.pop(self._filename, None)
