"""The house's nevers: what a room must not know of, lazily or for types alone."""

from __future__ import annotations

import re

import pytest

from support import HERE

IMPORT = r"(?m)^ *(?:from|import) +"
NEVERS = {
    "effects": IMPORT + r"torch\b",
    "plan": IMPORT + r"(torch\b|\.\.(arguments|calls|emit|launch|op|register|transforms)\b)",
    "launch": IMPORT + r"\.\.(plan|arguments|calls|emit|op|register|transforms)\b",
    "private": IMPORT + r"\.\.(?!errors\b)",
    "(?!private)": r"torch\._[a-zA-Z]|warp\._src|\.adj\b",
}
"""By room: what no file of it says."""


@pytest.mark.parametrize("room", NEVERS)
def test_never(room):
    package = HERE.parent / "warpops"
    files = [path for path in package.rglob("*.py") if re.match(room, str(path.relative_to(package)))]
    assert files and not [path for path in files if re.search(NEVERS[room], path.read_text())]


def test_the_map_names_every_room():
    import warpops

    rooms = {path.name for path in (HERE.parent / "warpops").iterdir() if (path / "__init__.py").exists()}
    assert set(re.findall(r"(?:- |, )``(\w+)``", warpops.__doc__)) == rooms
