"""``op.custom_op``: the plain operator as PyTorch's own kind of custom op."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import warp as wp

import kernels
from support import check_against, close, compiled, leaf
from warpops import GradientError, warp_op


@wp.kernel
def weigh(x: wp.array[float], w: wp.array[float], k: float, y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i] * w[i] * k


def make(name):
    return warp_op(weigh, "x[n], w[n] -> y[n]", dim="n", name=f"custom::{name}")


def reference(x, w):
    return x * x * w * 3.0


X, W = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 1.0, 2.0])


def test_it_is_the_definition_of_default():
    op = make("definition")
    default = torch.ops.custom.definition.default
    made = op.custom_op
    assert isinstance(made, torch.library.CustomOpDef)
    assert made is op.custom_op
    assert torch.ops.custom.definition.default is default
    torch.library.opcheck(made, (leaf(X), leaf(W), 3.0))
    torch.library.opcheck(default, (leaf(X), leaf(W), 3.0))


@pytest.mark.parametrize("asked", [False, True], ids=["plain", "asked for"])
def test_default_has_values_gradients_and_second_ones(mode, asked):
    op = make(f"gradients_{asked}")
    default = getattr(torch.ops.custom, f"gradients_{asked}").default
    if asked:
        op.custom_op  # noqa: B018
    check_against(mode(lambda x, w: default(x, w, 3.0)), reference, (X, W))
    x, w = leaf(X), leaf(W)
    (first,) = torch.autograd.grad(default(x, w, 3.0).sum(), x, create_graph=True)
    close(torch.autograd.grad(first.sum(), w)[0], 6.0 * X)
    close(torch.vmap(lambda x: default(x, W, 3.0))(torch.stack([X, 2 * X])), reference(torch.stack([X, 2 * X]), W))
    with torch.autocast("cpu"):
        assert default(X.bfloat16(), W, 3.0).dtype is torch.float32


@pytest.mark.parametrize("asked", [False, True], ids=["plain", "asked for"])
def test_default_has_tangents_in_forward_mode(asked):
    op = make(f"tangents_{asked}")
    default = getattr(torch.ops.custom, f"tangents_{asked}").default
    if asked:
        op.custom_op  # noqa: B018
    with forward_ad.dual_level():
        found = default(forward_ad.make_dual(X, W), W, 3.0)
        close(forward_ad.unpack_dual(found).tangent, 6.0 * X * W * W)
    for transform in (torch.func.grad, torch.func.jacfwd):
        with pytest.raises(GradientError, match=r"work on op\(...\) in eager code"):
            transform(lambda x: default(x, W, 3.0).sum())(X)


def test_a_kernel_of_a_users_serves_default_alone():
    op = make("kernel")
    default, called = torch.ops.custom.kernel.default, []

    @op.custom_op.register_kernel("cpu")
    def run(x, w, k):
        called.append(1)
        return x * x * w * k

    for call in (op, op.overload, torch.ops.custom.kernel):
        close(call(X, W, 3.0), reference(X, W))
    assert not called
    check_against(lambda x, w: default(x, w, 3.0), reference, (X, W))
    assert len(called) == 1
    check_against(compiled(lambda x, w: default(x, w, 3.0)), reference, (X, W))
    assert len(called) == 2


def test_it_goes_with_the_name():
    op = make("taken")
    made, called = op.custom_op, []
    made.register_kernel("cpu")(lambda *given: called.append(1) or X.clone())
    default = torch.ops.custom.taken.default
    newer = make("taken")
    assert torch.ops.custom.taken.default is default
    close(default(X, W, 3.0), reference(X, W))
    assert not called
    assert newer.custom_op is not made
    newer.custom_op.register_kernel("cpu")(lambda *given: called.append(2) or X.clone())
    close(default(X, W, 3.0), X)
    newer.register_backward(lambda ctx, grad: (grad, grad, None))  # the same op still
    close(default(X, W, 3.0), X)
    assert called == [2, 2]
    del newer
    gc.collect()


def test_another_schema_takes_it_out():
    op = make("schema")
    op.custom_op  # noqa: B018
    other = warp_op(kernels.square, "x[n] -> y[n]", dim="n", name="custom::schema")
    close(torch.ops.custom.schema.default(X), X * X)
    torch.library.opcheck(other.custom_op, (leaf(X),))


def test_an_op_that_mutates():
    default = torch.ops.kernels.step.default
    assert kernels.step_op.custom_op is kernels.step_op.custom_op
    x, v = torch.zeros(3), torch.ones(3)
    want = x.clone()
    kernels.step_op.overload(want, v, 0.5)
    before = x._version
    assert default(x, v, 0.5) is None
    close(x, want)
    assert x._version > before
    with pytest.raises(GradientError, match="changed in place"):
        default(leaf(x), v, 0.5)
    torch.library.opcheck(default, (x, v, 0.5))
