"""``torch.func``: grad, vjp, jacrev, vmap, and vmap of grad, against pure PyTorch."""

from __future__ import annotations

import pytest
import torch

import kernels
from support import close, compiled, leaf, ramp

BATCH, N = 3, 4


def energy(square):
    return lambda x: square(x).sum()


# --- grad, vjp, jacrev ------------------------------------------------------------------------------------------------


def test_grad():
    x, w = torch.randn(N), torch.randn(N)
    got = torch.func.grad(lambda x, w: kernels.product_op(x, w).sum(), argnums=(0, 1))(x, w)
    close(got, (2 * x * w, x * x))


def test_grad_and_value_with_aux():
    x = torch.randn(N)
    grad, (value, aux) = torch.func.grad_and_value(lambda x: (kernels.square_op(x).sum(), x + 1), has_aux=True)(x)
    close(grad, 2 * x)
    close(value, (x * x).sum())
    close(aux, x + 1)


def test_vjp():
    p, k = torch.randn(N, 3), torch.rand(N)
    got, pull = torch.func.vjp(kernels.spring_op, p, k)
    want, pull_ = torch.func.vjp(kernels.spring_, p, k)
    close(got, want)
    seeds = (torch.randn(N), torch.randn(N, 3))
    close(pull(seeds), pull_(seeds))
    close(pull(seeds), pull_(seeds))


@pytest.mark.parametrize("chunk", [None, 1, 2])
def test_jacrev(chunk):
    x, w = torch.randn(N), torch.randn(3)
    got = torch.func.jacrev(kernels.gauss_op, argnums=(0, 1), chunk_size=chunk)(x, w)
    want = torch.func.jacrev(kernels.gauss_, argnums=(0, 1))(x, w)
    close(got, want)


def test_grad_of_an_in_out_op():
    x, y = torch.randn(N), torch.randn(N)
    got = torch.func.grad(lambda y, x: kernels.multiply_op(x, y).sin().sum(), argnums=(0, 1))(y, x)
    want = torch.func.grad(lambda y, x: (x * y).sin().sum(), argnums=(0, 1))(y, x)
    close(got, want)


def test_grad_of_grad():
    x = torch.randn(N)
    got = torch.func.grad(lambda x: torch.func.grad(energy(kernels.square_op))(x).sum())(x)
    close(got, torch.func.grad(lambda x: torch.func.grad(energy(kernels.square_))(x).sum())(x))


def test_grad_with_numbers_and_keywords():
    x = torch.randn(N)
    got = torch.func.grad(lambda x: kernels.mixed_op(x, n=3, s=2.0, flip=True).sum())(x)
    close(got, -4 * x)


# --- vmap -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_dims", "shapes"),
    [
        ((0, 0), ((BATCH, N), (BATCH, N))),
        ((0, None), ((BATCH, N), (N,))),
        ((None, 0), ((N,), (BATCH, N))),
        ((1, 0), ((N, BATCH), (BATCH, N))),
        ((-1, None), ((N, BATCH), (N,))),
    ],
)
@pytest.mark.parametrize("out_dims", [0, 1])
def test_vmap(in_dims, out_dims, shapes):
    tensors = [torch.randn(shape) for shape in shapes]
    got = torch.vmap(kernels.product_op, in_dims=in_dims, out_dims=out_dims)(*tensors)
    want = torch.vmap(kernels.product_, in_dims=in_dims, out_dims=out_dims)(*tensors)
    close(got, want)


def test_vmap_has_gradients():
    a, b = torch.randn(BATCH, N), torch.randn(N)
    results = []
    for f in (kernels.product_op, kernels.product_):
        x, w = leaf(a), leaf(b)
        y = torch.vmap(f, in_dims=(0, None))(x, w)
        y.backward(ramp(y.detach()))
        results.append((x.grad, w.grad))
    close(*results)


def test_nested_vmap():
    x, w = torch.randn(BATCH, N), torch.randn(2, N)

    def nested(f):
        return torch.vmap(lambda w: torch.vmap(lambda x: f(x, w))(x))(w)

    close(nested(kernels.product_op), nested(kernels.product_))


def test_vmap_of_grad():
    """Per-sample gradients."""
    x, w = torch.randn(BATCH, N), torch.randn(3)

    def per_sample(f):
        loss = lambda w, x: f(x, w).square().sum()  # noqa: E731
        return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, x)

    close(per_sample(kernels.gauss_op), per_sample(kernels.gauss_))


def test_grad_of_vmap():
    x, w = torch.randn(BATCH, N), torch.randn(N)

    def total(f):
        return torch.func.grad(lambda w: torch.vmap(f, in_dims=(0, None))(x, w).square().sum())(w)

    close(total(kernels.product_op), total(kernels.product_))


def test_vmap_of_vjp():
    x, seeds = torch.randn(N), torch.randn(BATCH, N)

    def rows(f):
        _, pull = torch.func.vjp(f, x)
        return torch.vmap(pull)(seeds)

    close(rows(kernels.square_op), rows(kernels.square_))


def test_vmap_over_nothing_and_over_one():
    w = torch.randn(N)
    assert torch.vmap(kernels.product_op, in_dims=(0, None))(torch.randn(1, N), w).shape == (1, N)


def test_vmap_of_an_op_that_mutates():
    """Right, or refused by name with nothing changed."""
    x, v = torch.zeros(BATCH, N), torch.ones(BATCH, N)
    refused = None
    try:
        torch.vmap(lambda x, v: kernels.step_op(x, v, 2.0))(x, v)
    except Exception as error:
        refused = str(error)
    close(x, torch.full((BATCH, N), 2.0 if refused is None else 0.0))
    assert refused is None or "kernels::step" in refused


def test_arguments_are_checked_within_vmap():
    with pytest.raises(ValueError, match="'w': expected size 4"):
        torch.vmap(kernels.product_op)(torch.randn(BATCH, N), torch.randn(BATCH, N + 1))


# --- inside compiled code ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "transform",
    [
        lambda x: torch.func.grad(energy(kernels.square_op))(x),
        lambda x: torch.vmap(torch.func.grad(energy(kernels.square_op)))(x.expand(2, N)),
    ],
    ids=["grad", "vmap of grad"],
)
def test_transforms_in_compiled_code_are_right_or_raise(transform):
    """Never a wrong number: PyTorch's own tracing of these loses the gradient of a Function without a word."""
    x = torch.randn(N)
    try:
        got = compiled(transform)(x)
    except Exception:
        return
    close(got, (2 * x).expand(got.shape))


def test_a_batched_backward_goes_by_vmap():
    """PyTorch's own (``is_grads_batched``) goes by a batching that operators of Python can't have a rule for."""
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    _, vjp = torch.func.vjp(kernels.square_op, x)
    (rows,) = torch.vmap(vjp)(torch.eye(3))
    close(rows, torch.diag(2.0 * x.detach()))
    with pytest.raises(RuntimeError, match="Batching rule not implemented for kernels::square"):
        torch.autograd.grad(kernels.square_op(x), x, torch.eye(3), is_grads_batched=True)
