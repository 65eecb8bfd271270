"""Ops that change their arguments in place, and say so."""

from __future__ import annotations

import pytest
import torch
import torch._functorch.config
import warp as wp

import kernels
from support import afresh, close, compiled, eager, inductor, leaf
from warpops import ArgumentError, GradientError, SignatureError, warp_op


@wp.kernel
def count_and_square(x: wp.array[float], hits: wp.array[wp.int32], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(hits, 0, 1)
    y[i] = x[i] * x[i]


@wp.kernel
def scale_both(a: wp.array[float], b: wp.array[float], s: float):
    i = wp.tid()
    a[i] = a[i] * s
    b[i] = b[i] + s


counting_op = warp_op(count_and_square, "x[n] -> y[n]", dim="n", mutates="hits")
both_op = warp_op(scale_both, "a[n], b[n]", dim="n", mutates=["a", "b"])


def state():
    return torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 30.0])


def test_the_argument_itself_changes(mode):
    x, v = state()
    place = x.data_ptr()
    assert mode(kernels.step_op)(x, v, 0.5) is None
    close(x, torch.tensor([6.0, 12.0, 18.0]))
    assert x.data_ptr() == place
    close(v, torch.tensor([10.0, 20.0, 30.0]))


def test_the_schema_says_so():
    assert "Tensor(a!) x" in kernels.step_op.schema
    assert "Tensor v" in kernels.step_op.schema
    assert kernels.step_op.schema.endswith("-> ()")
    assert "Tensor(a!) a" in both_op.schema
    assert "Tensor(b!) b" in both_op.schema


def test_several_arguments_change(mode):
    a, b = state()
    mode(both_op)(a, b, 2.0)
    close(a, torch.tensor([2.0, 4.0, 6.0]))
    close(b, torch.tensor([12.0, 22.0, 32.0]))


def test_compiled_code_sees_the_change_between_two_calls(mode):
    def run(x, v):
        before = x * 1.0
        kernels.step_op(x, v, 1.0)
        middle = x * 1.0
        kernels.step_op(x, v, 1.0)
        return before, middle, x * 1.0

    x, v = state()
    start = x.clone()
    before, middle, after = mode(run)(x, v)
    close(before, start)
    close(middle, start + v)
    close(after, start + 2 * v)
    close(x, start + 2 * v)


def test_a_view_changes_its_base(mode):
    base = torch.zeros(6)
    mode(lambda b, v: kernels.step_op(b[::2], v, 1.0))(base, torch.ones(3))
    assert base.tolist() == [1.0, 0.0] * 3


def test_autograd_is_told_of_the_change(mode):
    """A tensor that a graph has saved and that an op then changes must not be used for the gradient."""
    x, v = state()
    w = torch.ones(3, requires_grad=True)
    y = w * x
    mode(kernels.step_op)(x, v, 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_the_version_counts_up_once_a_call():
    x, v = state()
    before = x._version
    kernels.step_op(x, v, 1.0)
    assert x._version > before
    assert v._version == 0


def test_outputs_beside_it_stay_differentiable(mode):
    hits = torch.zeros(1, dtype=torch.int32)
    x = leaf(torch.tensor([1.0, -2.0, 3.0]))
    y = mode(counting_op)(x, hits)
    assert hits.item() == 3
    y.sum().backward()
    close(x.grad, 2 * x.detach())
    assert hits.item() == 3, "the adjoint must not count again"


@pytest.mark.parametrize("which", ["x", "v"])
def test_a_tensor_that_requires_grad_is_refused_by_name(mode, which):
    x, v = state()
    (x if which == "x" else v).requires_grad_()
    with pytest.raises(Exception, match=f"argument '{which}'") as caught:
        mode(kernels.step_op)(x, v, 1.0)
    if mode.__name__ == "eager":
        assert isinstance(caught.value, GradientError)
    close(x.detach(), state()[0])


def test_a_result_of_autograd_is_refused_too():
    x, v = state()
    with pytest.raises(GradientError, match="'x'"):
        kernels.step_op(leaf(x) * 1.0, v, 1.0)


def test_a_mutated_array_beside_outputs(mode):
    with pytest.raises(Exception, match="argument 'b'"):
        op = warp_op(scale_both, "a[n], b[n] -> a[n]", dim="n", mutates="b")
        mode(op)(state()[0], leaf(state()[1]), 1.0)


def test_it_is_allowed_without_grad_mode(mode):
    x, v = state()
    x = torch.nn.Parameter(x)

    def run(x, v):
        with torch.no_grad():
            kernels.step_op(x, v, 1.0)

    mode(run)(x, v)
    close(x.detach(), torch.tensor([11.0, 22.0, 33.0]))
    assert x.is_leaf
    with torch.inference_mode():
        kernels.step_op(x, v, 1.0)
    close(x.detach(), torch.tensor([21.0, 42.0, 63.0]))


def test_overlapping_tensors_are_refused():
    x, v = state()
    with pytest.raises(ArgumentError) as caught:
        kernels.step_op(x, x, 1.0)
    assert str(caught.value) == (
        "kernels::step: argument 'x': is changed in place, and shares memory with 'v'; pass a .clone() of one"
    )
    with pytest.raises(ArgumentError) as caught:
        kernels.step_op(x[:1].expand(3), v, 1.0)
    assert str(caught.value) == (
        "kernels::step: argument 'x': is changed in place, and its elements overlap (strides (0,)); pass a .clone()"
    )
    base = torch.zeros(6)
    with pytest.raises(ArgumentError, match="'x'.*shares memory with 'v'"):
        kernels.step_op(base[:3], base[2:5], 1.0)
    assert base.tolist() == [0.0] * 6


def test_overlaps_are_seen_in_compiled_code_too():
    x, _ = state()
    with pytest.raises(Exception, match="'x'.*shares memory with 'v'"):
        compiled(lambda x: kernels.step_op(x, x, 1.0))(x)


def test_interleaved_tensors_do_not_overlap():
    base = torch.zeros(6)
    base[1::2] = 1.0
    kernels.step_op(base[::2], base[1::2], 2.0)
    assert base.tolist() == [2.0, 1.0] * 3


def test_a_lazily_negated_tensor_changes(mode):
    """The kernel must not write un-negated numbers into it."""
    base = torch.tensor([1.0, 2.0, 3.0])
    kernels.step_op(torch._neg_view(base), torch.ones(3), 1.0)
    close(base, torch.tensor([0.0, 1.0, 2.0]))


def test_a_name_can_not_be_both():
    with pytest.raises(SignatureError, match="'x'.*mutates"):
        warp_op(kernels.step, "x[n], v[n] -> x[n]", dim="n", mutates="x")


def test_functional_calls_of_it_in_a_module(mode):
    class Integrator(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("x", torch.zeros(3))

        def forward(self, v):
            kernels.step_op(self.x, v, 0.5)
            return self.x * 2.0

    module = Integrator()
    function = mode(module)
    for n in (1, 2, 3):
        close(function(torch.ones(3)), torch.full((3,), float(n)))
    close(module.x, torch.full((3,), 1.5))


@wp.kernel
def used_then_changed(x: wp.array[float], g: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = g[i] * x[i]
    g[i] = g[i] + 1.0


@pytest.mark.parametrize(
    ("how", "layout"),
    [
        (eager, "dense"),
        (eager, "strided"),
        (compiled, "dense"),
        (compiled, "strided"),
        pytest.param(inductor, "dense", marks=pytest.mark.slow),
    ],
)
def test_backward_needs_what_the_launch_has_changed(how, layout):
    """A graph is free to take a clone of an input for the input itself, which the launch changes later."""
    op = warp_op(used_then_changed, "x[n], g[n] -> y[n]", mutates="g")
    call = afresh(how, lambda x, g: op(x, g) * 2.0)
    with torch._functorch.config.patch(enable_autograd_cache=False):  # a graph that was made before would hide it
        for _ in range(2):
            g = torch.tensor([5.0, 7.0]) if layout == "dense" else torch.tensor([5.0, 0.0, 7.0])[::2]
            x = torch.tensor([2.0, 3.0], requires_grad=True)
            y = call(x, g)
            close(y, torch.tensor([20.0, 42.0]))
            close(torch.autograd.grad(y.sum(), x), (torch.tensor([10.0, 14.0]),))
            close(g, torch.tensor([6.0, 8.0]))
