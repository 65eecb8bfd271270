"""What type checkers and editors see: mypy and pyright over the examples, and the signature of an op.

Warp's own stubs don't model what is allowed in a kernel (``x[i] = ...``), so what is told of kernels is left out.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import pathlib
import re
import subprocess
import sys

import pytest
import torch

import kernels
from support import HERE

EXAMPLES = sorted((HERE.parent / "examples").glob("*.py"))

USER = """
import torch
import warp as wp
from typing_extensions import assert_type

import warpops
from warpops import WarpOp, warp_op
from warpops.testing import check

@warp_op
def bare(x: wp.array[float], y: wp.array[float]) -> None: ...

@warp_op("x[n] -> y[n]", dim="n", init={"y": "zeros"}, nondiff=["x"])
@wp.kernel
def declared(x: wp.array[float], y: wp.array[float]) -> None: ...

made = warp_op(declared.kernel, shapes={"y": lambda x: x.shape}, dim=("n", 3), sizes="n")

assert_type(bare, WarpOp)
assert_type(declared, WarpOp)
assert_type(made, WarpOp)
assert_type(warpops.list_ops(), list[WarpOp])
assert_type(declared.explain(), str)
assert_type(declared.schema, str)
z: torch.Tensor = declared(torch.ones(3))
first, second = made(torch.ones(3), n=3)
check(declared, torch.ones(3))
check(made, torch.ones(3), n=3)
"""
MISTAKES = """
import warp as wp
from warpops import warp_op
from warpops.testing import check

@warp_op("x[n] -> y[n]", dims="n")
def misspelt(x: wp.array[float], y: wp.array[float]) -> None: ...

check("square")
"""


def kernel_lines(file: pathlib.Path) -> set[int]:
    """The lines of functions that Warp compiles: decorated ones, and those that take its arrays."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef):
            head = " ".join(map(ast.unparse, [*node.decorator_list, node.args]))
            if re.search(r"\b(wp\.(kernel|func|array|struct)|warp_op|warp_program)", head):
                lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent, timeout=300, check=False)


def mypy(files: list[pathlib.Path], folder: pathlib.Path) -> list[tuple[str, int, str]]:
    cache = HERE.parent / ".mypy_cache" / "examples"
    options = [
        "--config-file=",
        "--ignore-missing-imports",
        "--no-error-summary",
        "--no-color-output",
        "--cache-dir",
        str(cache),
    ]
    done = run([sys.executable, "-m", "mypy", *options, *map(str, files)])
    found = re.findall(r"^(.+?):(\d+): error: (.+)$", done.stdout, re.MULTILINE)
    assert found or done.returncode == 0, done.stdout + done.stderr
    return [(str((HERE.parent / file).resolve()), int(line), text) for file, line, text in found]


def pyright(files: list[pathlib.Path], folder: pathlib.Path) -> list[tuple[str, int, str]]:
    (folder / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(HERE.parent)], "include": []}))
    options = ["-p", str(folder), "--pythonpath", sys.executable, "--outputjson"]
    done = run([sys.executable, "-m", "pyright", *options, *map(str, files)])
    assert done.stdout.lstrip().startswith("{"), done.stdout + done.stderr
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [(d["file"], d["range"]["start"]["line"] + 1, d["message"]) for d in found if d["severity"] == "error"]


@pytest.fixture(params=[mypy, pyright], ids=["mypy", "pyright"])
def checker(request):
    name = request.param.__name__
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    return request.param


@pytest.mark.slow
def test_type_checkers(checker, tmp_path):
    """One run for all, since starting is what takes long."""
    user, mistakes = tmp_path / "user.py", tmp_path / "mistakes.py"
    user.write_text(USER)
    mistakes.write_text(MISTAKES)
    told = checker([*EXAMPLES, user, mistakes], tmp_path)
    outside = [
        (pathlib.Path(file).name, line, text)
        for file, line, text in told
        if pathlib.Path(file).name != mistakes.name and line not in kernel_lines(pathlib.Path(file))
    ]
    assert not outside, "\n".join(map(str, outside))
    # By name: mypy's cache tells again where the file was in an earlier run.
    assert {line for file, line, _ in told if pathlib.Path(file).name == mistakes.name} == {6, 9}


def test_the_signature_is_that_of_the_op():
    signature = inspect.signature(kernels.scatter_op)
    assert str(signature).replace("torch.", "") == "(x: Tensor, index: Tensor, k: int) -> Tensor"
    assert inspect.signature(kernels.spring_op).return_annotation == tuple[torch.Tensor, torch.Tensor]
    assert inspect.signature(kernels.step_op).return_annotation is None
    assert signature.bind(1, 2, k=3).arguments == {"x": 1, "index": 2, "k": 3}
    assert kernels.scatter_op.__name__ == "scatter"
    assert inspect.unwrap(kernels.scatter_op) is kernels.scatter.func
