"""Writing Python text, and making it functions whose tracebacks show that text."""

from __future__ import annotations

import builtins
import contextlib
import keyword
from collections.abc import Iterable, Iterator, Sequence


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
        self._lines.append("    " * self._indent + line)

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
