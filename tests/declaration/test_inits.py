"""What an output holds before the launch, with memory full of bad bytes."""

from __future__ import annotations

import math

import pytest
import torch
import warp as wp

import kernels
from support import check_against, close, dirty_allocator, leaf, values_and_grads
from warpops import SignatureError, warp_op


@wp.kernel
def some(x: wp.array[float], keep: wp.array[wp.bool], y: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    if keep[i]:
        y[i] = x[i] * x[i]
        z[i] = x[i]


@wp.kernel
def some_ints(x: wp.array[wp.int32], y: wp.array[wp.int32]):
    i = wp.tid()
    if x[i] > 0:
        y[i] = x[i]


@wp.kernel
def some_vectors(x: wp.array[wp.vec3], y: wp.array[wp.vec3]):
    i = wp.tid()
    if x[i][0] > 0.0:
        y[i] = x[i]


@wp.kernel
def early_return(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    if x[i] < 0.0:
        return
    y[i] = x[i] * x[i]


@wp.kernel
def with_workspace(x: wp.array[float], work: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(work, 0, x[i])
    y[i] = x[i]


X = torch.tensor([2.0, 3.0, -1.0, 4.0])
KEEP = torch.tensor([True, False, True, False])


def make(**options):
    return warp_op(some, "x[n], keep[n] -> y[n], z[n]", dim="n", **options)


@pytest.mark.parametrize(
    ("init", "y0", "z0"),
    [
        (None, 0.0, 0.0),
        ("auto", 0.0, 0.0),
        ("zeros", 0.0, 0.0),
        (1.5, 1.5, 1.5),
        (-3, -3.0, -3.0),
        (float("-inf"), -math.inf, -math.inf),
        ({"y": 7.0}, 7.0, 0.0),
        ({"y": 7.0, "z": "zeros"}, 7.0, 0.0),
        ({"z": math.inf}, 0.0, math.inf),
    ],
)
def test_elements_that_the_kernel_leaves(mode, init, y0, z0):
    op = make() if init is None else make(init=init)
    function = mode(op)
    for _ in range(2):
        dirty_allocator()
        y, z = function(X, KEEP)
        assert y.tolist() == [4.0, y0, 1.0, y0]
        assert z.tolist() == [2.0, z0, -1.0, z0]


def test_a_nan_init():
    y, z = make(init=float("nan"))(X, KEEP)
    assert torch.isnan(y[~KEEP]).all()
    assert not torch.isnan(y[KEEP]).any()
    assert torch.isnan(z[~KEEP]).all()


@pytest.mark.parametrize("init", ["zeros", 1.5])
def test_gradients_where_nothing_was_written(mode, init):
    op = make(init=init)
    dirty_allocator()
    _, (got,) = values_and_grads(lambda x: mode(op)(x, KEEP)[0], (X,))
    want = 2 * X * torch.where(KEEP, torch.linspace(-1, 2, 4), torch.zeros(4))
    close(got, want)


def test_ints_and_vectors():
    op = warp_op(some_ints, "x[n] -> y[n]", dim="n", init=-7)
    assert op(torch.tensor([1, -1], dtype=torch.int32)).tolist() == [1, -7]
    op = warp_op(some_vectors, "x[n] -> y[n]", dim="n", init=2.0)
    assert op(torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.0, 0.0]])).tolist() == [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]]


@pytest.mark.parametrize("value", [1.5, 2**31, float("nan")])
def test_a_number_that_an_int_array_can_not_hold(value):
    with pytest.raises(SignatureError, match="init of 'y'"):
        warp_op(some_ints, "x[n] -> y[n]", dim="n", init=value)


def test_auto_fills_where_a_thread_may_return_early(mode):
    op = warp_op(early_return, "x[n] -> y[n]", dim="n")
    dirty_allocator()
    assert mode(op)(X).tolist() == [4.0, 9.0, 0.0, 16.0]
    x = leaf(X)
    (grad,) = torch.autograd.grad(mode(op)(x).sum(), x)
    assert grad.tolist() == [4.0, 6.0, 0.0, 8.0]


def test_auto_fills_an_output_larger_than_the_launch(mode):
    op = warp_op(kernels.square, "x[n] -> y[n + 3]", dim="n")
    dirty_allocator()
    assert mode(op)(torch.tensor([2.0])).tolist() == [4.0, 0.0, 0.0, 0.0]


def test_auto_fills_where_sizes_come_from_callables(mode):
    op = warp_op(kernels.square, "-> y", dim=lambda x: x.shape[0] - 1, shapes={"y": lambda x: x.shape[0]})
    dirty_allocator()
    assert mode(op)(torch.tensor([2.0, 3.0])).tolist() == [4.0, 0.0]


def test_an_atomic_target_starts_from_zeros(mode):
    x, index = torch.arange(4.0), torch.tensor([0, 3, 3, 0], dtype=torch.int32)
    function = mode(kernels.scatter_op)
    for _ in range(2):
        dirty_allocator()
        check_against(lambda x: function(x, index, 5), lambda x: torch.zeros(5).index_add(0, index.long(), x * x), (x,))


def test_an_atomic_target_can_not_be_empty():
    with pytest.raises(SignatureError, match="'y'.*empty.*atomic_add"):
        warp_op(kernels.scatter, "x[n], index[n] -> y[k]", dim="n", sizes="k", init="empty")


def test_scratch_starts_as_auto_does(mode):
    op = warp_op(with_workspace, "x[n] -> y[n]", dim="n", scratch="work[1]")
    dirty_allocator()
    close(mode(op)(X), X)


def test_empty_is_not_filled():
    op = make(init="empty")
    assert "empty" in op.source
    y, _ = op(X, KEEP)
    assert y[KEEP].tolist() == [4.0, 1.0]


def test_nan_inputs_stay_where_they_are(mode):
    """A zeroed gradient times nan is nan: a masked element must not poison its neighbours, or its own gradient."""
    x = torch.tensor([2.0, float("nan"), 3.0, 4.0])
    op = make()
    _, (grad,) = values_and_grads(lambda x: mode(op)(x, torch.tensor([True, False, True, False]))[0], (x,))
    assert not torch.isnan(grad).any()


@pytest.mark.parametrize("init", [1e300, {"y": -1e300}])
def test_an_init_that_the_type_can_not_hold(init):
    with pytest.raises(SignatureError, match=r"init of 'y' is .*, which float32 can't hold"):
        make(init=init)


@pytest.mark.parametrize("init", ["ones", None, 10**400])
def test_an_init_that_is_none(init):
    with pytest.raises(SignatureError, match="init of 'y' is 'auto', 'zeros', 'empty' or a number, and got"):
        make(init={"y": init})
