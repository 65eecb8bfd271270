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


class Calling(torch.nn.Module):
    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, x):
        return self.op(x, W, 3.0)


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


def forward_mode(call, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(call(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


def test_asking_for_it_changes_no_derivative_of_default():
    op = make("asked")
    default = torch.ops.custom.asked.default

    def call(x):
        return default(x, W, 3.0)

    program = torch.export.export(Calling(op), (X,)).module()
    for _ in range(2):
        for one in (call, program):
            close(forward_mode(one, X), 6.0 * X * W)
            for derive in (torch.func.grad(lambda x, one=one: one(x).sum()), torch.func.jacfwd(one)):
                with pytest.raises(GradientError, match="custom::asked"):
                    derive(X)
        close(torch.vmap(call)(torch.stack([X, 2 * X])), reference(torch.stack([X, 2 * X]), W))
        assert hasattr(op, "custom_op")


def test_under_a_kernel_of_a_users_no_derivative_is_lost():
    op = make("lost")
    op.custom_op.register_kernel("cpu")(lambda x, w, k: x * x * w * k)
    default = torch.ops.custom.lost.default

    def call(x):
        return default(x, W, 3.0)

    for derive in (
        lambda: forward_mode(call, X),
        lambda: torch.func.grad(lambda x: call(x).sum())(X),
        lambda: torch.func.jvp(call, (X,), (X,)),
        lambda: torch.vmap(torch.func.grad(lambda x: call(x).sum()))(torch.stack([X, X])),
    ):
        with pytest.raises(GradientError, match="custom::lost"):
            derive()
    close(forward_mode(lambda x: op(x, W, 3.0), X), 6.0 * X * W)


def test_vmap_calls_a_kernel_of_a_users():
    op, called = make("mapped"), []

    @op.custom_op.register_kernel("cpu")
    def run(x, w, k):
        called.append(tuple(x.shape))
        return x * x * w * k

    xs = torch.stack([X, 2 * X], dim=1)
    want = reference(xs.T, W)
    close(torch.vmap(op.custom_op, in_dims=(1, None, None))(xs, W, 3.0), want)
    assert called == [(3,), (3,)]
    xs = leaf(xs)
    mapped = torch.vmap(lambda x: torch.vmap(lambda w: torch.ops.custom.mapped.default(x, w, 3.0))(W.expand(2, 3)), 1)(
        xs
    )
    close(mapped, torch.stack([want, want], dim=1))
    assert len(called) == 6
    close(torch.autograd.grad(mapped.sum(), xs)[0], 2 * 6.0 * xs.detach() * W[:, None])
    close(torch.vmap(op, (1, None, None))(xs.detach(), W, 3.0), want)
    assert len(called) == 6
    assert torch.vmap(op.custom_op, (0, None, None))(X.new_zeros(0, 3), W, 3.0).shape == (0, 3)


def test_a_backward_of_a_users_serves_default_alone():
    op = make("backward")

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    op.custom_op.register_autograd(lambda ctx, grad: (7.0 * grad, None, None), setup_context=setup)
    x = leaf(X)
    close(torch.autograd.grad(torch.ops.custom.backward.default(x, W, 3.0).sum(), x)[0], torch.full((3,), 7.0))
    close(torch.autograd.grad(op(x, W, 3.0).sum(), x)[0], 6.0 * X * W)
