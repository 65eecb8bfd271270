"""Where the obvious adjoint launch is wrong: each way of touching an array, against PyTorch, eager and compiled."""

from __future__ import annotations

import pytest
import torch
import warp as wp

import kernels
from kinds import running_sum_op, store_by_row_op
from support import check_against, close, leaf
from test_views import tile_to_tile_op
from warpops import warp_op

# --- stores -----------------------------------------------------------------------------------------------------------


@wp.kernel
def leaky(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = 3.0 * x[i]
    if x[i] < 0.0:
        y[i] = 0.25 * x[i]


@wp.kernel
def stored_in_loop(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    for j in range(4):
        y[i] = x[i, j] * x[i, j]


@wp.kernel
def read_back(x: wp.array[float], y: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    y[i] = wp.sin(x[i])
    z[i] = y[i] * y[i] * x[i]


leaky_op = warp_op(leaky, "x[n] -> y[n]", dim="n")
stored_in_loop_op = warp_op(stored_in_loop, "x[n, 4] -> y[n]", dim="n")
read_back_op = warp_op(read_back, "x[n] -> y[n], z[n]", dim="n")


def test_a_second_store_replaces_the_first(mode):
    x = torch.tensor([1.0, -2.0, 3.0, -0.5])
    check_against(mode(leaky_op), lambda x: torch.where(x < 0, 0.25 * x, 3.0 * x), (x,))


def test_only_the_last_store_of_a_loop_counts(mode):
    check_against(mode(stored_in_loop_op), lambda x: x[:, 3] ** 2, (torch.randn(3, 4),))


def test_an_output_that_is_read_back(mode):
    check_against(mode(running_sum_op), lambda x: (x * x).cumsum(1), (torch.randn(3, 5),))


def test_an_output_that_another_output_reads(mode):
    check_against(mode(read_back_op), lambda x: (x.sin(), x.sin() ** 2 * x), (torch.randn(6),))


@pytest.mark.parametrize("which", [0, 1])
def test_an_output_read_back_whose_own_cotangent_is_missing(mode, which):
    x = torch.randn(6)
    check_against(mode(lambda x: read_back_op(x)[which]), lambda x: (x.sin(), x.sin() ** 2 * x)[which], (x,))


# --- in-out -----------------------------------------------------------------------------------------------------------


@wp.kernel
def add_onto(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] += x[i] * x[i]


@wp.kernel
def add_atomically(x: wp.array[float], index: wp.array[int], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(y, index[i], x[i] * x[i])


@wp.kernel
def overwrite(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i]


@wp.kernel
def overwrite_some(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    if x[i] > 0.0:
        y[i] = y[i] * x[i]


@wp.kernel
def rescale_rows(y: wp.array2d[float], s: wp.array[float]):
    i = wp.tid()
    row = y[i]
    for j in range(3):
        row[j] = row[j] * s[i]


add_onto_op = warp_op(add_onto, "x[n], y[n] -> y[n]", dim="n")
add_atomically_op = warp_op(add_atomically, "x[n], index[n], y[m] -> y[m]", dim="n")
overwrite_op = warp_op(overwrite, "x[n], y[n] -> y[n]", dim="n")
overwrite_some_op = warp_op(overwrite_some, "x[n], y[n] -> y[n]", dim="n")
rescale_rows_op = warp_op(rescale_rows, "y[n, 3], s[n] -> y[n, 3]", dim="n")

X, Y = torch.tensor([1.5, -2.0, 0.5, -1.0]), torch.tensor([2.0, 3.0, -4.0, 5.0])
INDEX = torch.tensor([0, 2, 2, 0], dtype=torch.int32)
IN_OUT = {
    "read, modify, write": (kernels.multiply_op, lambda x, y: y * x),
    "add": (add_onto_op, lambda x, y: y + x * x),
    "add atomically": (
        lambda x, y: add_atomically_op(x, INDEX, y),
        lambda x, y: y.index_add(0, INDEX.long(), x * x),
    ),
    "overwrite": (overwrite_op, lambda x, y: x * x + 0.0 * y),
    "overwrite some": (overwrite_some_op, lambda x, y: torch.where(x > 0, y * x, y)),
    "through a view": (
        lambda x, y: rescale_rows_op(y[:, None].expand(-1, 3), x),
        lambda x, y: (y * x)[:, None].expand(-1, 3),
    ),
}


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)], ids=["x", "y", "both"])
@pytest.mark.parametrize("kind", IN_OUT)
def test_in_out(mode, kind, wanted):
    op, reference = IN_OUT[kind]
    x, y = X.clone(), Y.clone()
    check_against(mode(op), reference, (x, y), wanted)
    assert torch.equal(x, X), "the caller's tensors stay as they are"
    assert torch.equal(y, Y), "the caller's tensors stay as they are"


# --- cotangents -------------------------------------------------------------------------------------------------------

CONSUMERS = {
    "stored once": (kernels.square_op, lambda x: x * x, (5,)),
    "stored twice": (leaky_op, lambda x: torch.where(x < 0, 0.25 * x, 3.0 * x), (5,)),
    "read back": (running_sum_op, lambda x: (x * x).cumsum(1), (3, 4)),
    "in-out": (lambda x: kernels.multiply_op(x, x), lambda x: x * x, (5,)),
    "stored by view": (store_by_row_op, lambda x: x * x, (4, 3)),
    "tile": (tile_to_tile_op, lambda x: x * x, (4, 4)),
    "vectors": (
        lambda x: kernels.spring_op(x, x[:, 0])[1],
        lambda x: -x[:, :1] * x,
        (4, 3),
    ),
}


@pytest.mark.parametrize("kind", CONSUMERS)
def test_a_cotangent_is_never_changed(mode, kind):
    op, reference, shape = CONSUMERS[kind]
    function = mode(op)
    base = torch.randn(shape)
    seed = torch.randn(reference(base).shape)
    keep = seed.clone()
    a, b = leaf(base), leaf(base)
    (want,) = torch.autograd.grad(reference(b), b, seed)
    for _ in range(2):
        (got,) = torch.autograd.grad(function(a), a, seed)
        close(got, want)
        assert torch.equal(seed, keep)


@pytest.mark.parametrize("kind", CONSUMERS)
def test_two_backwards_over_one_graph_agree(kind):
    op, _, shape = CONSUMERS[kind]
    x = leaf(torch.randn(shape))
    y = op(x)
    seed = torch.randn(y.shape)
    (first,) = torch.autograd.grad(y, x, seed, retain_graph=True)
    (second,) = torch.autograd.grad(y, x, seed)
    assert torch.equal(first, second)


COTANGENTS = {
    "one number": lambda y: torch.tensor(2.0).expand(y.shape),
    "expanded rows": lambda y: torch.randn(1, *y.shape[1:]).expand(y.shape),
    "strided": lambda y: torch.randn(2 * y.shape[0], *y.shape[1:])[::2],
    "transposed": lambda y: torch.randn(y.shape[::-1]).permute(*range(y.ndim - 1, -1, -1)),
    "negated lazily": lambda y: torch._neg_view(torch.randn(y.shape)),
    "offset": lambda y: torch.randn(y.shape[0] + 1, *y.shape[1:])[1:],
}


@pytest.mark.parametrize("layout", COTANGENTS)
@pytest.mark.parametrize("kind", CONSUMERS)
def test_layouts_of_the_cotangent(kind, layout):
    op, reference, shape = CONSUMERS[kind]
    base = torch.randn(shape)
    a, b = leaf(base), leaf(base)
    y = op(a)
    seed = COTANGENTS[layout](y.detach())
    (got,) = torch.autograd.grad(y, a, seed)
    (want,) = torch.autograd.grad(reference(b), b, seed.clone())
    close(got, want)


# --- atomic minima and maxima -----------------------------------------------------------------------------------------


@wp.kernel
def highest(x: wp.array[float], group: wp.array[wp.int32], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_max(y, group[i], x[i])


@wp.kernel
def lowest(x: wp.array[float], group: wp.array[wp.int32], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_min(y, group[i], x[i])


highest_op = warp_op(highest, "x[n], group[n] -> y[k]", dim="n", sizes="k", init=float("-inf"))
lowest_op = warp_op(lowest, "x[n], group[n] -> y[k]", dim="n", sizes="k", init={"y": float("inf")})

GROUPS = torch.tensor([0, 0, 1, 2, 1, 2], dtype=torch.int32)


@pytest.mark.parametrize(("op", "how", "start"), [(highest_op, "amax", "-inf"), (lowest_op, "amin", "inf")])
def test_atomic_extremes(mode, op, how, start):
    x = torch.tensor([-3.0, -1.0, 4.0, 0.5, 2.0, -0.5])
    check_against(
        mode(lambda x: op(x, GROUPS, 3)),
        lambda x: torch.full((3,), float(start)).scatter_reduce(0, GROUPS.long(), x, how),
        (x,),
    )


def test_every_winner_of_a_tie_gets_the_whole_gradient(mode):
    """Warp's rule, and a subgradient; PyTorch's amax shares it out instead."""
    x = leaf(torch.tensor([5.0, 5.0, 1.0]))
    group = torch.zeros(3, dtype=torch.int32)
    (got,) = torch.autograd.grad(mode(highest_op)(x, group, 1), x, torch.tensor([2.0]))
    assert got.tolist() == [2.0, 2.0, 0.0]
