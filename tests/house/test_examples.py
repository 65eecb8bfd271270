"""Every example runs, reaches what it promises (each checks that itself), and has no warning of ours."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

from support import HERE, run_script

FOLDER = HERE.parent / "examples"
EXAMPLES = sorted(file.name for file in FOLDER.glob("*.py"))

RUN = """
import runpy, sys, warnings
import warpops

warnings.filterwarnings("error", category=warpops.GradientWarning)  # told of the user's line
warnings.filterwarnings("error", module=r"warpops(\\.|$)")
sys.argv = {arguments!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(name: str, tmp_path: pathlib.Path, *options: str) -> str:
    file = FOLDER / name
    # The exit status of the example is that of the script.
    return run_script(RUN.format(arguments=[str(file), "--quick", *options]), tmp_path / "run.py")


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name, tmp_path):
    plots = '"--no-plot"' in (FOLDER / name).read_text()
    output = run(name, tmp_path, *(["--no-plot"] if plots else []))
    assert output
    assert "FAILED" not in output


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_a_picture_is_written(tmp_path):
    picture = tmp_path / "folder" / "picture.png"
    assert str(picture) in run("rosenbrock.py", tmp_path, "--output", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000
