"""Every example runs, reaches what it promises (each checks that itself), and has no warning of ours.

By ``aot_eager``, where an example compiles: Inductor takes most of the time, and ``.ci/run`` runs two as they are.
"""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

from support import HERE, run_script

FOLDER = HERE.parent / "examples"
EXAMPLES = sorted(file.name for file in FOLDER.glob("*.py"))

DRAWN = "rosenbrock.py"

RUN = """
import functools, runpy, sys, warnings
import torch, warpops

warnings.filterwarnings("error", category=warpops.GradientWarning)  # told of the user's line
warnings.filterwarnings("error", module=r"warpops(\\.|$)")
torch.compile = functools.partial(torch.compile, backend="aot_eager")
sys.argv = {arguments!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(name: str, tmp_path: pathlib.Path, *options: str) -> str:
    file = FOLDER / name
    # The exit status of the example is that of the script.
    return run_script(RUN.format(arguments=[str(file), "--quick", *options]), tmp_path / "run.py")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != DRAWN])
def test_example(name, tmp_path):
    plots = '"--no-plot"' in (FOLDER / name).read_text()
    output = run(name, tmp_path, *(["--no-plot"] if plots else []))
    assert output
    assert "FAILED" not in output


@pytest.mark.slow
def test_a_picture_is_written(tmp_path):
    """Once, where matplotlib is there."""
    if importlib.util.find_spec("matplotlib") is None:
        assert "FAILED" not in run(DRAWN, tmp_path, "--no-plot")
        pytest.skip("matplotlib is not installed")
    picture = tmp_path / "folder" / "picture.png"
    output = run(DRAWN, tmp_path, "--output", str(picture))
    assert str(picture) in output
    assert "FAILED" not in output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000
