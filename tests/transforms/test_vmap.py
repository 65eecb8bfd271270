"""vmap: one launch of a batched kernel where ranks allow, a loop elsewhere, and the same numbers either way."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.func import functional_call, grad, jacrev, vjp, vmap

import warpops
from kernels import gauss_op, mixed_op, multiply_op, product_op, scatter_op, spring_op, square_op, step_op
from kinds import KINDS, rows
from support import close, ramp, values_and_grads
from vmap_cases import INDEX, LOOPS, ONE_LAUNCH, bins, four, generic_product, make_power, rand, whole_numbers
from vmapping import check, scalar
from warpops import ArgumentError, GradientError


def batched(kind):
    """Three calls of a kind in one: arguments and axes with all tensors stacked, and with the first one alone."""
    draws = [kind.draw() for _ in range(3)]
    tensors = [k for k, value in enumerate(draws[0]) if isinstance(value, torch.Tensor)]
    for stacked in (tensors, tensors[:1])[: len(tensors)]:
        given = [torch.stack([d[k] for d in draws]) if k in stacked else value for k, value in enumerate(draws[0])]
        yield given, tuple(0 if k in stacked else None for k in range(len(given)))


@pytest.mark.parametrize("name", rows("vmap"))
def test_kinds(name, launches):
    """As many launches as of one call, unless the row says why it is a loop."""
    kind = KINDS[name]
    given = kind.draw()
    places = kind.differentiable(given)
    values_and_grads(kind.call, given, places) if places else kind.call(*given)
    forward, adjoint = launches
    for arguments, in_dims in batched(kind):
        turns = 3 if kind.loop and in_dims.count(0) == sum(isinstance(a, torch.Tensor) for a in given) else 1
        launches[:] = [0, 0]
        check(kind.call, kind.reference, arguments, in_dims, places, kind.accuracy)
        assert launches == [(3 if places else 1) * turns * forward, 2 * turns * adjoint]


@pytest.mark.parametrize("case", ONE_LAUNCH)
def test_one_launch(case, launches):
    op, reference, make, in_dims = ONE_LAUNCH[case]
    check(op, reference, make(), in_dims)
    # Three forwards (values, gradient of a vmap, vmap of a gradient) and two adjoints, whatever the batch.
    assert launches == [3, 2]


@pytest.mark.parametrize("case", LOOPS)
def test_loop(case, launches):
    op, reference, make, in_dims = LOOPS[case]
    arguments = make()
    check(op, reference, arguments, in_dims, wanted=(0,))
    assert launches == [9, 6]


def test_sizes_that_differ_between_elements_are_an_error():
    index = torch.tensor([[0, 1], [0, 4]], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="stack"):
        vmap(bins)(rand(2, 2), index)


@pytest.mark.parametrize("out_dims", [0, 1, -1, 2])
def test_out_dims(out_dims):
    x, w = rand(3, 2), rand(4)
    want = vmap(lambda x: torch.exp(-((x[:, None] - w) ** 2)), out_dims=out_dims)(x)
    close(vmap(lambda x: gauss_op(x, w), out_dims=out_dims)(x), want)


def test_out_dims_of_several_outputs():
    p, k = rand(3, 4, 3), rand(4)
    energy, force = vmap(lambda p: spring_op(p, k), out_dims=(1, 2))(p)
    assert energy.shape == (4, 3)
    assert force.shape == (4, 3, 3)
    close(force[:, :, 1], -k[:, None] * p[1])


def test_chunks(launches):
    x = rand(5, 4)
    close(vmap(square_op, chunk_size=2)(x), x * x)
    assert launches[0] == 3


def test_nested(launches):
    x, w = rand(2, 3, 4), rand(3, 4)
    got = vmap(vmap(product_op), (0, None))(x, w)
    close(got, x * x * w)
    assert launches[0] == 1
    outer = vmap(lambda w: vmap(product_op, (0, None))(x[0], w))(w)
    close(outer, torch.stack([x[0] * x[0] * v for v in w]))


def test_nested_to_the_highest_rank(launches):
    x = rand(2, 3, 2, 4)
    close(vmap(vmap(vmap(square_op)))(x), x * x)
    assert launches[0] == 1


def test_nested_beyond_the_highest_rank(launches):
    x = rand(2, 3, 2, 3, 4)
    close(vmap(vmap(vmap(vmap(square_op))))(x), x * x)
    assert launches[0] == 2


def test_nested_gradients():
    x, w = rand(2, 3, 4), rand(4)

    def both(op):
        inner = vmap(grad(scalar(op), (0, 1)), (0, None))
        of_grad = vmap(inner, (0, None))(x, w)
        mixed = vmap(grad(scalar(vmap(op, (0, None))), (0, 1)), (0, None))(x, w)
        whole = grad(lambda x, w: scalar(vmap(vmap(op, (0, None)), (0, None)))(x, w), (0, 1))(x, w)
        return [*of_grad, *mixed, *whole]

    for mine, theirs in zip(both(product_op), both(lambda x, w: x * x * w), strict=True):
        close(mine, theirs)


def test_jacobian(launches):
    x, w = rand(4), rand(4)
    mine = jacrev(product_op, (0, 1))(x, w)
    theirs = jacrev(lambda x, w: x * x * w, (0, 1))(x, w)
    for one, other in zip(mine, theirs, strict=True):
        close(one, other)
    assert launches == [1, 1]


def test_jacobian_per_sample():
    x, w = rand(3, 4), rand(4)
    close(vmap(jacrev(product_op), (0, None))(x, w), vmap(jacrev(lambda x, w: x * x * w), (0, None))(x, w))


def test_vjp():
    x, w, v = rand(3, 4), rand(4), rand(3, 4)
    out, pull_back = vjp(vmap(product_op, (0, None)), x, w)
    close(out, x * x * w)
    gx, gw = pull_back(v)
    close(gx, 2 * x * w * v)
    close(gw, (x * x * v).sum(0))


def test_only_some_gradients():
    x, w = rand(3, 4), rand(4)
    close(vmap(grad(scalar(product_op), 1), (0, None))(x, w), x * x * ramp(w))


def test_one_output_used():
    p, k = rand(3, 4, 3), rand(4)
    got = vmap(grad(lambda p: spring_op(p, k)[0].sum()))(p)
    close(got, k[:, None] * p)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(4))
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return product_op(self.linear(x), self.scale)


def test_gradients_of_a_module_per_sample(launches):
    layer = Layer()
    x, y = rand(3, 4), rand(3, 4)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters, x, y):
        return (functional_call(layer, parameters, (x,)) - y).square().sum()

    got = vmap(grad(loss), (None, 0, 0))(parameters, x, y)
    assert launches == [1, 1]
    for index in range(3):
        layer.zero_grad()
        (layer(x[index]) - y[index]).square().sum().backward()
        for name, parameter in layer.named_parameters():
            close(got[name][index], parameter.grad, name)


def test_ensemble():
    layers = [Layer() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(layers)
    x = rand(4)
    got = vmap(lambda p, b: functional_call(layers[0], (p, b), (x,)))(parameters, buffers)
    close(got, torch.stack([layer(x) for layer in layers]))
    got.sum().backward()
    assert parameters["scale"].grad is not None


@pytest.mark.parametrize("op", [square_op, four], ids=["one launch", "loop"])
def test_batch_of_none(op):
    x = torch.empty(0, *([2] * 4 if op is four else [4]), requires_grad=True)
    out = vmap(op)(x)
    assert out.shape == x.shape
    assert torch.autograd.grad(out.sum(), x)[0].shape == x.shape
    assert vmap(grad(lambda x: op(x).sum()))(x.detach()).shape == x.shape


def test_batch_of_one_and_no_elements(launches):
    close(vmap(square_op)(rand(1, 4) * 0 + 2.0), torch.full((1, 4), 4.0))
    assert vmap(square_op)(rand(3, 0)).shape == (3, 0)


def test_arguments_that_are_wrong_are_told_for_one_element():
    for call in (product_op, product_op.overload):
        with pytest.raises(ArgumentError, match=r"kernels::product: argument 'w': expected size 4 on axis 0 .* got 5"):
            vmap(call)(rand(3, 4), rand(3, 5))
    with pytest.raises(ArgumentError, match="argument 'x': expected dtype torch.float32"):
        vmap(square_op)(rand(3, 4).double())
    with pytest.raises(ArgumentError, match="argument 's': expected a number"):
        vmap(lambda x, s: mixed_op(x, s, 1, False))(rand(3, 4), rand(3))


def test_integers_have_no_gradient_and_floats_do():
    x = rand(3, 4).requires_grad_()
    y = vmap(scatter_op, (0, 0, None))(x, INDEX, 3)
    assert y.requires_grad
    assert torch.autograd.grad(y.sum(), x)[0].shape == x.shape


def test_results_without_gradients(launches):
    x = rand(3, 4) * 10.0
    got = vmap(whole_numbers, (0, None))(x, 2)
    close(got, x.int().reshape(3, 2, 2).amax(1).clamp(min=0))
    assert launches == [1, 0]


def test_generic_op_whose_arrays_have_no_gradient():
    x, k = rand(3, 4), torch.arange(12, dtype=torch.int32).reshape(3, 4)
    close(vmap(grad(scalar(generic_product)), (0, 0))(x, k), 1.0 * k * ramp(x[0]))
    assert vmap(generic_product)(k, k).dtype is torch.int32


def test_inputs_are_left_alone():
    x, y = rand(3, 4), rand(4)
    before = x.clone(), y.clone()
    x.requires_grad_()
    out = vmap(multiply_op, (0, None))(x, y)
    cotangent = torch.ones_like(out)
    torch.autograd.grad(out, x, cotangent)
    close(x.detach(), before[0])
    close(y, before[1])
    assert (cotangent == 1).all()


def test_in_place_changes_are_refused():
    with pytest.raises(GradientError, match=r"mutates.*in-out"):
        vmap(step_op, (0, 0, None))(rand(3, 4), rand(3, 4), 0.1)
    with pytest.raises(GradientError, match=r"mutates|in place"):
        vmap(grad(lambda v, x: (step_op(x, v, 0.1), v.sum())[1]))(rand(3, 4), rand(3, 4))


def test_autocast():
    x, w = rand(3, 4), rand(4)
    with torch.autocast("cpu", torch.bfloat16):
        got = vmap(product_op, (0, None))(x.bfloat16(), w)
    assert got.dtype is torch.float32
    close(got, x.bfloat16().float() ** 2 * w)


def test_the_module_and_the_list_of_ops_show_nothing_of_it():
    before = warpops.list_ops()
    vmap(square_op)(rand(3, 4))
    assert warpops.list_ops() == before
    assert not [name for name in dir(torch.ops.kernels) if "vmap" in name]


def test_second_calls_make_nothing_new(monkeypatch):
    vmap(square_op)(rand(3, 4))
    monkeypatch.setattr("warpops.transforms.vmap.batched_plan", lambda *a: pytest.fail("planned again"))
    close(vmap(square_op)(torch.full((2, 7), 2.0)), torch.full((2, 7), 4.0))


@pytest.mark.usefixtures("only_new")
def test_it_goes_away_with_the_op():
    op = make_power(7)
    x = rand(3, 4).requires_grad_()
    out = vmap(op)(x)
    seen = weakref.ref(op), weakref.ref(op._registration.lease)
    del op
    gc.collect()
    # The graph keeps what its backward needs.
    close(torch.autograd.grad(out.sum(), x)[0], 14.0 * x.detach())
    del out
    gc.collect()
    assert [r() for r in seen] == [None, None]
