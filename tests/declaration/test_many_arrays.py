"""Ops of many arrays, up to what PyTorch's operators take."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from support import close
from warpops import SignatureError, warp_op

MANY = """import warp as wp

@wp.kernel
def many({parameters}, y: wp.array[float]):
    i = wp.tid()
    y[i] = {total}
"""


def many(count, tmp_path):
    """A kernel that adds many arrays."""
    file = tmp_path / f"many_{count}.py"
    file.write_text(
        MANY.format(
            parameters=", ".join(f"x{k}: wp.array[float]" for k in range(count)),
            total=" + ".join(f"{k + 1}.0 * x{k}[i]" for k in range(count)),
        )
    )
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.many


def test_thirty_arrays(mode, tmp_path):
    op = warp_op(many(30, tmp_path))
    xs = [torch.randn(3, requires_grad=True) for _ in range(30)]
    for _ in range(2):
        y = mode(op)(*xs)
        close(y, sum((k + 1.0) * x for k, x in enumerate(xs)))
        grads = torch.autograd.grad(y.sum(), xs)
        close(grads, tuple(torch.full((3,), k + 1.0) for k in range(30)))


def test_more_arrays_than_an_operator_takes(tmp_path):
    with pytest.raises(SignatureError, match=r"at most 64 arguments, and its backward has 69; .*nondiff"):
        warp_op(many(34, tmp_path))
    kernel = many(40, tmp_path)
    op = warp_op(kernel, nondiff=[f"x{k}" for k in range(20, 40)])
    xs = [torch.ones(2, requires_grad=k < 20) for k in range(40)]
    assert op(*xs).tolist() == [820.0, 820.0]
    with pytest.raises(SignatureError, match="at most 64 arguments, and it has 71"):
        warp_op(many(70, tmp_path), nondiff=[f"x{k}" for k in range(70)])
