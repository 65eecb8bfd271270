"""Writing Python text, and making it functions whose tracebacks show that text."""

from __future__ import annotations

import builtins
import contextlib
import keyword
import re
from collections.abc import Iterable, Iterator, Sequence

WIDTH = 120
_BREAK = re.compile(r"(?<=,) | (?=(?:or|and|if|else) )")


def wrapped(indent: str, line: str) -> list[str]:
    """A statement, or a part of one that is in brackets, as lines of at most ``WIDTH``."""
    if len(indent) + len(line) <= WIDTH:
        return [indent + line]
    if line.endswith(","):
        return _filled(indent, line)
    end = len(line.rstrip(":"))
    opened = _opening(line, end)
    if line.startswith("if "):
        head, inside, tail = "if (", line[3:end], "):"
    elif 0 < opened < WIDTH - len(indent):
        while opened + 1 < end - 1 and _opening(line, end - 1) == opened + 1:
            opened, end = opened + 1, end - 1
        head, inside, tail = line[: opened + 1], line[opened + 1 : end - 1], line[end - 1 :]
    else:
        start = len("return ") if line.startswith("return ") else line.index(" = ") + 3
        head, inside, tail = f"{line[:start]}(", line[start:], ")"
    return [indent + head, *_filled(f"{indent}    ", inside), indent + tail]


def _deeper(letter: str) -> int:
    return (letter in "([{") - (letter in ")]}")


def _opening(line: str, end: int) -> int:
    """Where the bracket opens that closes just before ``end``; -1 where there is none."""
    depth = 0
    for at in range(end - 1, -1, -1):
        depth += _deeper(line[at])
        if not depth:
            return at if at < end - 1 else -1
    return -1


def _filled(indent: str, text: str) -> list[str]:
    """The parts of a list or of a condition, as many in a line as fit."""
    parts, start, depth = [], 0, 0
    for at, letter in enumerate(text):
        depth += _deeper(letter)
        if not depth and _BREAK.match(text, at):
            parts.append(text[start:at])
            start = at + 1
    lines: list[str] = []
    for part in [*parts, text[start:]]:
        if lines and len(lines[-1]) + 1 + len(part) <= WIDTH:
            lines[-1] += f" {part}"
        else:
            lines.append(indent + part)
    return lines


class Text:
    """Python text under construction. Names of helpers give way to the names that the user chose."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._lines: list[str] = []
        self._indent = 0
        self._free: dict[tuple[str, str], str] = {}

    def free(self, name: str, kind: str = "") -> str:
        """``name``, or a variation of it that nothing of another kind has; the same one for the same name and kind."""
        found = self._free.get((kind, name))
        if found is None:
            found = name
            while found in self._taken or keyword.iskeyword(found) or hasattr(builtins, found):
                found += "_"
            self._free[kind, name] = found
            self._taken.add(found)
        return found

    def reserve(self, names: Iterable[str]) -> None:
        """Names that are the user's too."""
        self._taken.update(names)

    def local(self, name: str) -> str:
        """A local variable derived from an argument."""
        return self.free(name, "local")

    def size(self, name: str) -> str:
        """The local variable of a size."""
        return self.free(name, "size")

    def add(self, line: str) -> None:
        self._lines += wrapped("    " * self._indent, line)

    def blank(self) -> None:
        self._lines.append("")

    @contextlib.contextmanager
    def flat(self) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def deeper(self) -> Iterator[None]:
        self._indent += 1
        yield
        self._indent -= 1

    @contextlib.contextmanager
    def indented(self, header: str) -> Iterator[None]:
        self.add(header)
        self._indent += 1
        yield
        self._indent -= 1

    @contextlib.contextmanager
    def function(self, name: str, parameters: Iterable[str]) -> Iterator[None]:
        if self._lines:
            self._lines += ["", ""]
        with self.indented(f"def {name}({', '.join(parameters)}):"):
            yield

    @contextlib.contextmanager
    def indented_class(self, name: str, base: str) -> Iterator[None]:
        if self._lines:
            self._lines += ["", ""]
        with self.indented(f"class {name}({base}):"):
            yield

    def take(self) -> str:
        """The text so far; what is added from here on is a text of its own, with the same names."""
        text, self._lines = self.result() if self._lines else "", []
        return text

    def result(self) -> str:
        return "\n".join(self._lines) + "\n"


def tuple_of(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def targets(names: Sequence[str]) -> str:
    """What a tuple is assigned to."""
    return f"({names[0]},)" if len(names) == 1 else ", ".join(names)
