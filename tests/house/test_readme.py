"""The README names tests, files and options: each is there."""

from __future__ import annotations

import re

import pytest

from support import HERE

README = (HERE.parent / "README.md").read_text()


def named_tests():
    """``file::test`` for each that the README names; a file holds for the names after it, up to the end of the cell."""
    for cell in re.split(r"[|\n]", README):
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


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([\w/.]+)\)", README))))
def test_a_linked_file_is_there(path):
    assert (HERE.parent / path).exists()
