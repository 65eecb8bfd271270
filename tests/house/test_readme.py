"""The READMEs name tests and files: each is there."""

from __future__ import annotations

import re

import pytest

from support import HERE

READMES = (HERE.parent / "README.md", HERE / "README.md")


def named_tests():
    """``file::test`` for each that a README names; a file holds for the names after it, up to the end of the cell."""
    for cell in re.split(r"[|\n]", "\n".join(path.read_text() for path in READMES)):
        file = None
        for match in re.finditer(r"`(test_\w+\.py)?(?:::(test_\w+))?`", cell):
            file = match[1] or file
            if match[2]:
                yield f"{file}::{match[2]}"


def test_many_are_named():
    assert len(set(named_tests())) > 40


@pytest.mark.parametrize("name", sorted(set(named_tests())))
def test_a_named_test_is_there(name):
    file, _, function = name.partition("::")
    assert re.search(rf"^def {function}\(", next(HERE.rglob(file)).read_text(), re.M)


def test_every_folder_is_described():
    folders = {path.name for path in HERE.iterdir() if path.is_dir() and list(path.glob("test_*.py"))}
    assert folders == set(re.findall(r"^\| `(\w+)/` \|", READMES[1].read_text(), re.M))


@pytest.mark.parametrize(
    ("file", "path"),
    [(file, path) for file in READMES for path in sorted(set(re.findall(r"\]\(([\w/.]+)\)", file.read_text())))],
)
def test_a_linked_file_is_there(file, path):
    assert (file.parent / path).exists()
