"""The versions that pyproject.toml, the matrix and the README name are the same."""

from __future__ import annotations

import re
import runpy

import pytest

from support import HERE

nox = pytest.importorskip("nox")
ROOT = HERE.parent


@pytest.fixture(scope="module")
def project():
    return nox.project.load_toml(ROOT / "pyproject.toml")


@pytest.fixture(scope="module")
def matrix():
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return runpy.run_path("noxfile.py")  # once: nox keeps the sessions


def test_the_matrix_begins_at_the_floors(project, matrix):
    floors = dict(line.split(">=") for line in project["project"]["dependencies"])
    assert (floors["torch"], floors["warp-lang"], floors["numpy"]) == tuple(
        matrix[name][0] for name in ("TORCH", "WARP", "NUMPY")
    )
    assert project["project"]["requires-python"] == f">={matrix['PYTHON'][0]}"


def test_the_tools_check_for_the_oldest_python(project, matrix):
    oldest = matrix["PYTHON"][0]
    assert project["tool"]["mypy"]["python_version"] == oldest
    assert project["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"


def test_the_readme_names_every_version_of_the_matrix(matrix):
    line = re.search(r"^Needs Python.*?\n\n", (ROOT / "README.md").read_text(), re.M | re.S)[0]
    for versions in (matrix["PYTHON"], matrix["TORCH"], matrix["WARP"], matrix["NUMPY"][:1]):
        for version in versions:
            assert re.search(rf"\b{re.escape(version)}\b", line), version
