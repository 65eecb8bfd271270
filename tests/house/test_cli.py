"""``python -m warpops`` and ``op.explain()``."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import warp as wp

import warpops
from support import HERE
from warpops import GradientWarning, warp_op
from warpops.__main__ import main

MODULE = '''
import warp as wp
from warpops import warp_op

@warp_op("x[n, m] -> y[n]")
@wp.kernel
def product_of_rows(x: wp.array2d[float], y: wp.array[float]):
    """Products of rows."""
    i = wp.tid()
    p = float(1.0)
    for j in range(x.shape[1]):
        p = p * x[i, j]
    y[i] = p

class Layer:
    @warp_op
    @wp.kernel
    def twice(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = 2.0 * x[i]

again = product_of_rows
number = 3
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ops")
    (folder / "cli_ops.py").write_text(MODULE)
    (folder / "cli_none.py").write_text("number = 1\n")
    (folder / "cli_broken.py").write_text("raise RuntimeError('no luck')\n")
    (folder / "cli_needs.py").write_text("import cli_no_such_module\n")
    (folder / "cli_wrong.py").write_text(
        MODULE.split("@warp_op")[0] + "@warp_op('x[n] -> z[n]')\ndef f(x: wp.array[float]):\n    pass\n"
    )
    return folder


@pytest.fixture(autouse=True)
def found(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))


def test_explain(capsys):
    assert main(["explain", "cli_ops:product_of_rows"]) == 0
    text, errors = capsys.readouterr()
    assert errors == ""
    assert text.startswith("cli_ops::product_of_rows: the kernel product_of_rows\n")
    for line in (
        "  x: input [n, m], wp.array2d[wp.float32] (declared on the left)",
        "    read in line 12: p = p * x[i, j]",
        "    written in line 13: y[i] = p",
        "  n (coordinate 0 of wp.tid(): it indexes axis 0 of 'x')",
        "    line 11, `for j in range(x.shape[1]):`: its turns are counted first, 'p'",
    ):
        assert line in text.splitlines()
    assert "y: empty (every element is written" in text


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"warpops {warpops.__version__}\n"


def test_explain_fits_80_columns(capsys):
    assert main(["explain", "cli_ops"]) == 0
    text = capsys.readouterr().out
    assert "cli_ops::product_of_rows" in text
    assert "cli_ops::twice" in text
    paths = [line for line in text.splitlines() if "cli_ops.py" in line]
    assert all(len(line) <= 80 for line in text.splitlines() if line not in paths)
    assert len(paths) == 2


def test_source(capsys):
    import cli_ops

    assert main(["source", "cli_ops:Layer.twice"]) == 0
    assert capsys.readouterr().out == cli_ops.Layer.twice.source


def test_list(capsys):
    assert main(["list", "cli_ops"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "product_of_rows(x: Tensor) -> Tensor",
        "    Products of rows.",
        "    cli_ops::product_of_rows, the kernel product_of_rows",
        "Layer.twice(x: Tensor) -> Tensor",
        "    cli_ops::twice, the kernel Layer.twice",
    ]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["explain", "cli_no_such_module"], "no module named 'cli_no_such_module'"),
        (["explain", "cli_ops.sub:op"], "'cli_ops.sub'"),
        (["explain", "cli_ops:product_of_row"], "did you mean 'product_of_rows'?"),
        (["source", "cli_ops:zzz"], "its ops are product_of_rows, Layer.twice"),
        (["explain", "cli_ops:number"], "cli_ops:number is a int, not an op"),
        (["list", "cli_none"], "holds no ops"),
        (["explain", "cli_none"], "holds no ops"),
        (["list", "cli_broken"], "RuntimeError: no luck"),
        (["list", "cli_needs"], "cli_needs can't be imported: No module named 'cli_no_such_module'"),
        (["list", "cli_wrong"], "cli_wrong can't be imported: SignatureError: "),
    ],
)
def test_what_is_not_there(argv, told, capsys):
    assert main(argv) == 1
    text, errors = capsys.readouterr()
    assert text == ""
    assert errors.startswith("python -m warpops: ")
    assert told in errors


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["explian", "cli_ops"],
        ["explain"],
        ["explain", "cli_ops.py"],
        ["explain", "pkg/cli_ops"],
        ["explain", "cli_ops:"],
        ["source", "cli_ops"],
        ["list", "cli_ops:product_of_rows"],
        ["list", "not a module"],
    ],
)
def test_what_is_no_command(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    text, errors = capsys.readouterr()
    assert text == ""
    assert "usage: python -m warpops" in errors


def run(folder, *argv):
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(HERE.parent)}
    command = [sys.executable, "-m", "warpops", *argv]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, timeout=120, check=False
    )


@pytest.mark.slow
def test_as_a_process_in_the_folder_of_the_module(folder):
    done = run(folder, "list", "cli_ops")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("product_of_rows(x: Tensor) -> Tensor\n")
    gone = run(folder, "explain", "cli_nothing")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "cli_nothing" in gone.stderr


# --- explain ----------------------------------------------------------------------------------------------------------


@wp.struct
class Wind:
    speed: wp.array[wp.vec3]
    drag: float


@wp.kernel
def drift(p: wp.array[wp.vec3], wind: Wind, mass: wp.array[float], dt: float, hits: wp.array[wp.int32]):
    i = wp.tid()
    p[i] = p[i] + wind.speed[i] * (wind.drag * dt * mass[i])
    wp.atomic_add(hits, 0, 1)


def test_every_conclusion_has_its_reason():
    op = warp_op(drift, "p[n], wind.speed[n] -> p[n], hits[1]", dim="n", optional="mass", tensor_scalars="dt")
    text = op.explain()
    assert all(len(line) <= 80 for line in text.splitlines()[:1] + text.splitlines()[2:])
    joined = " ".join(text.split())
    for told in (
        "p: in-out [n], wp.array[wp.vec3f] (declared on both sides)",
        "wind.speed: input [n], wp.array[wp.vec3f] (declared on the left)",
        "mass: input",
        "may be None",
        "dt: 0-d tensor, float32 (declared in tensor_scalars)",
        "hits: output [1], wp.array[wp.int32] (declared on the right)",
        "updated by atomic_add in line",
        "n (declared)",
        "hits: zeros",
        "cotangent of p: copied; the copy becomes the gradient of its input",
        "hits: takes no cotangent",
    ):
        assert told in joined, told


def test_a_registered_backward_is_told():
    with pytest.warns(GradientWarning):

        @warp_op("x[n] -> y[1]", dim="n")
        @wp.kernel
        def power(x: wp.array[float], y: wp.array[float]):
            i = wp.tid()
            y[0] = x[i] * x[i] * x[i] * x[i]

    assert "warning" in power.explain()
    power.register_backward(lambda ctx, grad: 4.0 * grad * ctx.inputs["x"] ** 3)
    text = power.explain()
    assert "registered with register_backward, for x" in text
    assert "warning" not in text
    assert "x: input [n]" in text
    assert torch.equal(power(torch.tensor([2.0])), torch.tensor([16.0]))
