"""Tensors as they come: strided, transposed, expanded, empty, lazily negated. Gradients have the shape of what came."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import kernels
from support import afresh, check_against, close, compiled, graph_count, leaf, ramp, run_script
from warpops.private.short import FAST

VIEWS = {
    "dense": lambda b: b,
    "transposed": lambda b: b.t(),
    "every second row": lambda b: b[::2],
    "every second column": lambda b: b[:, ::2],
    "offset": lambda b: b[1:, 2:],
    "one row expanded": lambda b: b[:1].expand(4, -1),
    "one column expanded": lambda b: b[:, :1].expand(-1, 5),
    "one element expanded": lambda b: b[:1, :1].expand(3, 3),
    "of a stack": lambda b: torch.stack([b, 2 * b], -1)[..., 1],
    "overlapping": lambda b: b[0].unfold(0, 3, 1),
    "flipped": lambda b: b.flip(0),
    "diagonal": lambda b: b.diagonal().unsqueeze(0),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(mode, name):
    view = VIEWS[name]
    base = torch.randn(6, 6)
    check_against(mode(lambda b: kernels.triple_op(view(b))), lambda b: kernels.triple_(view(b)), (base,))


def test_a_leaf_that_is_no_dense_tensor(mode):
    x = torch.randn(4, 6).t().requires_grad_()
    y = mode(kernels.triple_op)(x)
    y.backward(ramp(y.detach()))
    want = leaf(x)
    kernels.triple_(want).backward(ramp(y.detach()))
    assert x.grad.shape == x.shape
    close(x.grad, want.grad)


def test_vectors_strided_in_their_components(mode):
    """(3, n) transposed: the components of one vector lie far apart."""
    p, w = torch.randn(3, 5).t(), torch.randn(5)
    check_against(mode(kernels.weigh_op), kernels.weigh_, (p, w))
    p = torch.randn(5, 6)[:, ::2]
    check_against(mode(kernels.weigh_op), kernels.weigh_, (p, w))


def test_a_channels_last_image(mode):
    image = torch.randn(1, 3, 4, 5).to(memory_format=torch.channels_last)
    check_against(
        mode(lambda t: kernels.triple_op(t[0].permute(1, 2, 0).flatten(0, 1))),
        lambda t: kernels.triple_(t[0].permute(1, 2, 0).flatten(0, 1)),
        (image,),
    )


def test_views_behind_the_op(mode):
    """The fake kernel must give the strides of the real output."""

    def net(f):
        def run(b):
            y = f(b.t())
            return y.t().reshape(-1).cumsum(0).sum() + y.view(-1)[3]

        return run

    check_against(mode(net(kernels.triple_op)), net(lambda x: kernels.triple_(x).contiguous()), (torch.randn(4, 6),))


@pytest.mark.parametrize("name", VIEWS)
def test_fake_and_real_results_agree(name):
    base = torch.randn(6, 6)
    real = kernels.triple_op(VIEWS[name](base))
    with FakeTensorMode() as fakes:
        fake = kernels.triple_op(VIEWS[name](fakes.from_tensor(base)))
    assert (real.shape, real.dtype, real.stride(), real.device) == (fake.shape, fake.dtype, fake.stride(), fake.device)


# --- empty ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 0), (0, 4), (0, 0)])
def test_nothing(mode, shape):
    x = torch.zeros(shape, requires_grad=True)
    y = mode(kernels.triple_op)(x)
    assert (y.shape, y.dtype) == (shape, torch.float32)
    y.sum().backward()
    assert x.grad.shape == shape


def test_no_vectors(mode):
    p, w = torch.zeros(0, 3, requires_grad=True), torch.zeros(0, requires_grad=True)
    y = mode(kernels.weigh_op)(p, w)
    y.sum().backward()
    assert (y.shape, p.grad.shape, w.grad.shape) == ((0,), (0, 3), (0,))


def test_nothing_scattered_into_something(mode):
    x = torch.zeros(0, requires_grad=True)
    y = mode(kernels.scatter_op)(x, torch.zeros(0, dtype=torch.int32), 4)
    assert y.tolist() == [0.0] * 4
    y.sum().backward()
    assert x.grad.shape == (0,)


def test_something_scattered_into_nothing(mode):
    """No launch, no write past the end of an array without elements."""
    y = mode(kernels.scatter_op)(torch.zeros(0), torch.zeros(0, dtype=torch.int32), 0)
    assert y.shape == (0,)


def test_sizes_come_and_go_in_compiled_code():
    function = compiled(kernels.square_op)
    for n in (5, 0, 5, 1, 7, 0):
        check_against(function, kernels.square_, (torch.randn(n),))
    assert graph_count() <= 4


# --- lazily negated ---------------------------------------------------------------------------------------------------

Z = torch.complex(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, -1.0, 2.0]))
LAZY = {
    "conjugate": lambda: Z.conj().imag,
    "imaginary": lambda: Z.imag,
    "real": lambda: Z.real,
    "negated": lambda: torch._neg_view(torch.tensor([1.0, 2.0])),
}


@pytest.mark.parametrize("name", LAZY)
def test_the_negative_bit(mode, name):
    x = LAZY[name]()
    close(mode(kernels.square_op)(x), x.clone() ** 2)
    close(mode(kernels.scale_op)(x, 3.0), x.clone() * 3.0)


def test_gradient_through_a_conjugate():
    a, b = Z.clone().requires_grad_(), Z.clone().requires_grad_()
    kernels.scale_op(a.conj().imag, 3.0).backward(torch.tensor([1.0, 2.0, 3.0]))
    (b.conj().imag * 3.0).backward(torch.tensor([1.0, 2.0, 3.0]))
    close(a.grad, b.grad)


def test_a_negated_tensor_that_requires_grad():
    base = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    y = kernels.square_op(torch._neg_view(base * 1.0))
    y.sum().backward()
    close(base.grad, 2 * base.detach())


# --- inputs are not touched -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dense", "transposed", "one row expanded", "overlapping"])
def test_inputs_stay_as_they_are(mode, name):
    base = torch.randn(6, 6)
    keep, version = base.clone(), base._version
    x = VIEWS[name](base).requires_grad_()
    afresh(mode, kernels.triple_op)(x).sum().backward()
    assert torch.equal(base, keep)
    assert base._version == version


def test_an_output_is_dense_and_its_own():
    x = torch.randn(6, 6).t()
    y = kernels.triple_op(x)
    assert y.is_contiguous()
    assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert y.untyped_storage().nbytes() == y.numel() * 4


NESTED = """
import torch
import kernels

for _ in range(3):
    kernels.square_op(torch.ones(3))
try:
    kernels.square_op(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
except Exception:
    print("alive")
"""


@pytest.mark.slow
def test_pytorchs_guard_doesnt_survive_a_strided_nested_tensor(tmp_path):
    """As README says. A function that ``torch.compile`` made ends in the same way."""
    if not FAST:  # nor does anything need to
        assert "alive" in run_script(NESTED, tmp_path / "script.py")
        return
    with pytest.raises(AssertionError, match=r"exit -\d"):
        run_script(NESTED, tmp_path / "script.py")
