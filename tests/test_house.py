"""The house's nevers: what a room must not know of."""

from __future__ import annotations

import ast

import pytest

from support import HERE

PACKAGE = HERE.parent / "warpops"
ROOMS = (
    *("errors", "private", "kernel", "effects", "rewrite", "plan", "arguments", "launch", "emit", "calls", "sharding"),
    *("register", "transforms", "explain", "op", "backward", "build", "options", "decorator", "program", "testing"),
)
"""From the cellar up: a room imports those before it, lazily or for types alone too."""

NO_TORCH = ("effects", "plan")
NEVER = {"launch": "plan", "rewrite": "plan"}


def imports(path):
    """The rooms, and the other packages, that a file imports."""
    parts = list(path.relative_to(PACKAGE).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            base = [*parts[: len(parts) - node.level], *(node.module or "").split(".")]
            names = [one for one in base if one] or [alias.name for alias in node.names]
            yield f"warpops.{names[0]}"


FILES = {str(path.relative_to(PACKAGE)): set(imports(path)) for path in sorted(PACKAGE.rglob("*.py"))}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_knows_only_those_below(room):
    below = {f"warpops.{one}" for one in ROOMS[: ROOMS.index(room) + 1]} - {f"warpops.{NEVER.get(room)}"}
    for file, found in FILES.items():
        if file.split("/")[0].removesuffix(".py") == room:
            assert {one for one in found if one.startswith("warpops.")} <= below, file
            assert room not in NO_TORCH or "torch" not in found, file


def test_private_names_are_in_private():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if path.parent.name != "private":
            assert not any(name in text for name in ("torch._", "warp._src", ".adj.")), path


def test_the_root_is_small():
    assert len(list(PACKAGE.glob("*.py"))) <= 10


def test_nothing_imports_in_a_circle():
    """Within a room too: no two files import each other, by whatever way round."""
    graph = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = [*parts[: len(parts) - node.level], *(node.module.split(".") if node.module else [])]
                for alias in node.names:
                    inner = (*base, alias.name)
                    is_file = PACKAGE.joinpath(*inner).with_suffix(".py").exists()
                    graph.setdefault(parts, set()).add(inner if is_file else tuple(base))
    done = set()

    def walk(one, trail):
        assert one not in trail, f"{' -> '.join('.'.join(part) for part in (*trail[trail.index(one) :], one))}"
        if one not in done:
            for other in sorted(graph.get(one, ())):
                walk(other, (*trail, one))
            done.add(one)

    for one in sorted(graph):
        walk(one, ())
