"""What is public: names, classes of errors, and what an op tells of itself."""

from __future__ import annotations

import inspect
import linecache
import textwrap
import traceback

import pytest
import torch
import warp as wp

import kernels
import warpops
from kinds import running_sum_op
from support import close, run_script
from warpops import warp_op


def test_the_public_names():
    for name in (
        "ArgumentError",
        "GradientError",
        "GradientWarning",
        "SignatureError",
        "WarpOp",
        "WarpOpError",
        "list_ops",
        "warp_op",
    ):
        assert hasattr(warpops, name), name
        assert name in warpops.__all__, name
    assert all(hasattr(warpops, name) for name in warpops.__all__)


@pytest.mark.slow
def test_what_is_listed_and_what_is_imported(tmp_path):
    """``dir`` lists the public names; ``testing`` is there, and costs nothing until it is asked for."""
    text = """
        import sys
        import warpops

        assert not {"warpops.testing", "warpops.program", "warpops.rewrite.bounds"} & set(sys.modules)
        assert dir(warpops) == sorted(warpops.__all__)
        assert callable(warpops.testing.check) and callable(warpops.testing.bounds_checked)
        assert "warpops.rewrite.bounds" not in sys.modules
    """
    run_script(textwrap.dedent(text), tmp_path / "listed.py")


def test_what_errors_are():
    assert issubclass(warpops.SignatureError, (warpops.WarpOpError,))
    assert issubclass(warpops.SignatureError, ValueError)
    assert issubclass(warpops.ArgumentError, warpops.WarpOpError)
    assert issubclass(warpops.ArgumentError, ValueError)
    assert issubclass(warpops.GradientError, warpops.WarpOpError)
    assert issubclass(warpops.GradientError, RuntimeError)
    assert issubclass(warpops.GradientWarning, UserWarning)
    assert not issubclass(warpops.GradientError, ValueError)


@pytest.mark.parametrize(
    "make",
    [
        lambda: warp_op("x[n] -> y[n]", dim="n")(kernels.square),
        lambda: warp_op(kernels.square, "x[n] -> y[n]", dim="n"),
        lambda: warp_op(signature="x[n] -> y[n]", dim="n")(kernels.square),
    ],
    ids=["decorator", "call", "by keyword"],
)
def test_ways_to_make_an_op(make):
    op = make()
    assert isinstance(op, warpops.WarpOp)
    close(op(torch.tensor([3.0])), torch.tensor([9.0]))
    assert op.kernel is kernels.square


def test_schema_and_overload():
    op = kernels.mixed_op
    assert isinstance(op.schema, str)
    assert "(Tensor x, float s, SymInt n, bool flip) -> Tensor" in op.schema
    assert isinstance(op.overload, torch._ops.OpOverload)
    x = torch.ones(2)
    close(op.overload(x, 1.0, 2, False), op(x, 1.0, 2, False))
    close(torch.ops.kernels.mixed(x, 1.0, 2, False), op(x, 1.0, 2, False))
    assert "(Tensor p, Tensor k) -> (Tensor, Tensor)" in kernels.spring_op.schema


def test_it_looks_like_the_function_it_wraps():
    op = kernels.product_op
    assert op.__name__ == "product"
    assert op.__module__ == "kernels"
    assert list(inspect.signature(op).parameters) == ["x", "w"]
    assert "kernels::product" in repr(op)
    assert op.name == "kernels::product"


def test_the_docstring_is_the_kernel_s():
    @wp.kernel
    def documented(x: wp.array[float], y: wp.array[float]):
        """Twice the input."""
        i = wp.tid()
        y[i] = 2.0 * x[i]

    assert "Twice the input." in warp_op(documented, "x[n] -> y[n]", dim="n").__doc__


def test_the_generated_source():
    source = kernels.spring_op.source
    compile(source, "generated", "exec")
    for name in ("p", "k", "energy", "force"):
        assert name in source
    assert max(len(line) for line in source.splitlines()) < 400


def test_tracebacks_show_the_generated_source():
    try:
        kernels.product_op(torch.ones(2), torch.ones(3))
    except warpops.ArgumentError as error:
        frames = traceback.extract_tb(error.__traceback__)
    generated = [frame for frame in frames if "kernels::product" in frame.filename]
    assert generated
    for frame in generated:
        assert frame.line
        assert frame.line.strip() in kernels.product_op.source
        assert linecache.getline(frame.filename, frame.lineno).strip() == frame.line.strip()


def test_explain():
    text = running_sum_op.explain()
    assert isinstance(text, str)
    for needle in ("running_sum", "x", "y", "input", "output", "launch", "gradient"):
        assert needle in text
    assert text.count("\n") > 5
    scatter = kernels.scatter_op.explain()
    assert "zeros" in scatter
    assert "index" in scatter, "what isn't checked is named"


def test_preload():
    @warp_op("x[n] -> y[n]", dim="n")
    @wp.kernel(module="unique")
    def later(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = x[i] + 1.0

    assert not later.kernel.module.execs
    assert later.preload() is None
    later.preload("cpu")
    assert later.kernel.module.execs
    later.preload(torch.device("cpu"))
    assert later(torch.ones(1)).tolist() == [2.0]


def test_a_warp_kernel_stays_usable():
    import numpy as np

    x = wp.array(np.array([3.0], dtype=np.float32), dtype=float, device="cpu")
    y = wp.zeros(1, dtype=float, device="cpu")
    wp.launch(kernels.square_op.kernel, dim=1, inputs=[x, y], device="cpu")
    assert y.numpy().tolist() == [9.0]


def test_ops_compare_by_identity():
    other = warp_op(kernels.square, "x[n] -> y[n]", dim="n")
    assert kernels.square_op == kernels.square_op
    assert kernels.square_op != other
    assert len({kernels.square_op, other, kernels.square_op}) == 2
