"""Writing Python text, and making it functions whose tracebacks show that text."""

from __future__ import annotations

import builtins
import contextlib
import keyword
import re
from collections.abc import Iterable, Iterator, Sequence

WIDTH = 120
_PYTHONS = {*keyword.kwlist, *dir(builtins)}
_WORD = re.compile(r"\w+")
_BREAK = re.compile(r"(?<=,) | (?=(?:or|and|if|else) )")


def wrapped(line: str) -> list[str]:
    """A statement, or a part of one that is in brackets, as lines of at most ``WIDTH``."""
    if len(line) <= WIDTH:
        return [line]
    text = line.lstrip()
    indent = line[: -len(text)]
    left = text.partition(" = ")[0]
    if len(parts := _parts(text)) > 1 and text.endswith(","):
        return _filled(indent, parts)
    if text.startswith("if ") and text.endswith(":"):
        head, inside, tail = "if (", text[3:-1], "):"
    elif left != text and len(left) > WIDTH // 2:
        head, inside, tail = "(", left, f"){text[len(left) :]}"
    elif text.startswith("return ") and text[-1] not in ")]":
        head, inside, tail = "return (", text[7:], ")"
    elif (group := _group(text, WIDTH - len(indent))) is not None:
        head, inside, tail = text[: group[0] + 1], text[group[0] + 1 : group[1]], text[group[1] :]
    elif left != text:
        head, inside, tail = f"{left} = (", text[len(left) + 3 :], ")"
    else:
        return [line]
    return [indent + head, *_filled(f"{indent}    ", _parts(inside)), *wrapped(indent + tail)]


def _group(text: str, limit: int) -> tuple[int, int] | None:
    """The brackets to break within: the last that open within the limit at no depth, or what is alone in them."""
    stack: list[int] = []
    pairs: dict[int, int] = {}
    found = None
    for at, letter in enumerate(text):
        if letter in "([{":
            stack.append(at)
        elif letter in ")]}" and stack:
            pairs[opened := stack.pop()] = at
            if not stack and opened < limit and at > opened + 1:
                found = opened
    while found is not None and pairs.get(found + 1) == pairs[found] - 1:
        found += 1
    return None if found is None else (found, pairs[found])


def _parts(text: str) -> list[str]:
    """A list or a condition at its commas and operators."""
    parts, start, depth = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == " " and not depth and _BREAK.match(text, at):
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def _filled(indent: str, parts: list[str]) -> list[str]:
    """As many parts in a line as fit."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 1 + len(part) <= WIDTH:
            lines[-1] += f" {part}"
        else:
            lines += wrapped(indent + part)
    return lines


class Text:
    """Python text under construction. Names of helpers give way to the names that the user chose."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._lines: list[str] = []
        self._indent, self._levels = 0, list[int]()
        self._free: dict[tuple[str, str], str] = {}
        self._lets: list[tuple[int, Sequence[str], str, bool]] = []
        """Names of the function being written that are wanted only if something says them: the line, the names, their value,
        and whether that is wanted all the same."""

    def free(self, name: str, kind: str = "") -> str:
        """``name``, or a variation of it that nothing of another kind has; the same one for the same name and kind."""
        found = self._free.get((kind, name))
        if found is None:
            found = name
            while found in self._taken or found in _PYTHONS:
                found += "_"
            self._free[kind, name] = found
            self._taken.add(found)
        return found

    def names(self, kind: str) -> dict[str, str]:
        """What the names of a kind became."""
        return {name: own for (found, name), own in self._free.items() if found == kind}

    def local(self, name: str) -> str:
        """A local variable derived from an argument."""
        return self.free(name, "local")

    def size(self, name: str) -> str:
        """The local variable of a size."""
        return self.free(name, "size")

    def add(self, line: str) -> None:
        self._lines += wrapped("    " * self._indent + line)

    def add_all(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.add(line)

    def let(self, name: str, value: str) -> None:
        """Name a value, if what is written in the function after it says that name."""
        self.unpack([name], value, wanted=False)

    def unpack(self, names: Sequence[str], value: str, wanted: bool = True) -> None:
        """Name the parts of a value; what the function doesn't say after it is ``_``."""
        self._lets.append((len(self._lines), names, value, wanted))
        self._lines.append("    " * self._indent)

    def blank(self) -> None:
        self._lines.append("")

    def deeper(self, levels: int = 1) -> Text:
        """For a ``with`` statement: what is written in it is so much deeper."""
        self._levels.append(levels)
        return self

    def indented(self, header: str) -> Text:
        """Under a header; where that is empty, where it is."""
        if header:
            self.add(header)
        return self.deeper(bool(header))

    def __enter__(self) -> None:
        self._indent += self._levels[-1]

    def __exit__(self, *raised: object) -> None:
        self._indent -= self._levels.pop()

    @contextlib.contextmanager
    def function(self, name: str, parameters: Iterable[str]) -> Iterator[None]:
        if self._lines:
            self._lines += ["", ""]
        with self.indented(f"def {name}({', '.join(parameters)}):"):
            yield
        words: set[str] = set()
        last = len(self._lines)
        for line, names, value, wanted in reversed(self._lets):
            words.update(_WORD.findall("\n".join(self._lines[line + 1 : last])))
            said = [name if name in words else "_" for name in names]
            made = wrapped(f"{self._lines[line]}{', '.join(said)} = {value}") if wanted or said != ["_"] else []
            words.update(_WORD.findall(value) if made else ())
            self._lines[line : line + 1], last = made, line
        self._lets.clear()

    def take(self) -> str:
        """The text so far; what is added from here on is a text of its own, with the same names."""
        lines, self._lines = self._lines, []
        return "".join(f"{line}\n" for line in lines)


def tuple_of(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def targets(names: Sequence[str]) -> str:
    """What a tuple is assigned to."""
    return f"({names[0]},)" if len(names) == 1 else ", ".join(names)
