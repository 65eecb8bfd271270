"""Where the obvious adjoint launch is wrong: each way of touching an array, against PyTorch, eager and compiled."""

from __future__ import annotations

import warnings

import pytest
import torch
import warp as wp

import kernels
from support import check_against, close, inductor, leaf, values_and_grads
from warpops import GradientError, GradientWarning, warp_op, warp_program

# --- views ------------------------------------------------------------------------------------------------------------


@wp.func
def first_times_last(row: wp.array[float]):
    return row[0] * row[row.shape[0] - 1]


@wp.kernel
def by_row(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    row = x[i]
    y[i] = row[0] * row[1]


@wp.kernel
def by_call(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = first_times_last(x[i])


@wp.kernel
def by_alias(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    same = x
    y[i] = same[i, 0] * same[i, 1]


@wp.kernel
def by_slice(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    part = x[i, 1:3]
    y[i] = part[0] * part[1]


@wp.kernel
def by_where(x: wp.array2d[float], u: wp.array2d[float], left: bool, y: wp.array[float]):
    i = wp.tid()
    chosen = wp.where(left, x, u)
    y[i] = chosen[i, 0] * x[i, 1]


@wp.kernel
def store_by_row(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    row = y[i]
    for j in range(3):
        row[j] = x[i, j] * x[i, j]


@wp.kernel
def by_tile(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    tile = wp.tile_load(x[i], shape=4)
    wp.tile_store(y, wp.tile_sum(tile * tile), offset=i)


@wp.kernel
def tile_to_tile(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    tile = wp.tile_load(x[i], shape=4)
    wp.tile_store(y[i], tile * tile)


by_row_op = warp_op(by_row, "x[n, _] -> y[n]", dim="n")
by_call_op = warp_op(by_call, "x[n, _] -> y[n]", dim="n")
by_alias_op = warp_op(by_alias, "x[n, _] -> y[n]", dim="n")
by_slice_op = warp_op(by_slice, "x[n, _] -> y[n]", dim="n")
by_where_op = warp_op(by_where, "x[n, m], u[n, m] -> y[n]", dim="n")
store_by_row_op = warp_op(store_by_row, "x[n, 3] -> y[n, 3]", dim="n")
by_tile_op = warp_op(by_tile, "x[n, 4] -> y[n]", dim="n", tiled=True, block_dim=32)
tile_to_tile_op = warp_op(tile_to_tile, "x[n, 4] -> y[n, 4]", dim="n", tiled=True, block_dim=32)

VIEWS = {
    "row": (by_row_op, lambda x: x[:, 0] * x[:, 1]),
    "call": (by_call_op, lambda x: x[:, 0] * x[:, -1]),
    "alias": (by_alias_op, lambda x: x[:, 0] * x[:, 1]),
    "slice": (by_slice_op, lambda x: x[:, 1] * x[:, 2]),
    "where": (lambda x: by_where_op(x, x + 1.0, True), lambda x: x[:, 0] * x[:, 1]),
    "where not": (lambda x: by_where_op(x, x + 1.0, False), lambda x: (x[:, 0] + 1.0) * x[:, 1]),
    "tile": (by_tile_op, lambda x: (x * x).sum(1)),
    "tile to tile": (tile_to_tile_op, lambda x: x * x),
    "store": (lambda x: store_by_row_op(x[:, :3]), lambda x: x[:, :3] ** 2),
}
LAYOUTS = {
    "dense": lambda: torch.randn(3, 4),
    "transposed": lambda: torch.randn(4, 3).t(),
    "strided": lambda: torch.randn(6, 8)[::2, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("view", VIEWS)
def test_views_keep_the_gradient(mode, view, layout):
    op, reference = VIEWS[view]
    base = LAYOUTS[layout]()
    check_against(mode(op), reference, (base,))


@pytest.mark.parametrize("view", ["row", "tile", "tile to tile", "store"])
def test_views_take_a_cotangent_without_strides(mode, view):
    """``.sum().backward()`` hands over one number with stride 0; a view would index past its end."""
    op, reference = VIEWS[view]
    a, b = leaf(torch.randn(3, 4)), leaf(torch.randn(3, 4))
    b.data.copy_(a.data)
    mode(op)(a).sum().backward()
    reference(b).sum().backward()
    close(a.grad, b.grad)


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
def running_sum(x: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    y[i, 0] = x[i, 0] * x[i, 0]
    for j in range(1, x.shape[1]):
        y[i, j] = y[i, j - 1] + x[i, j] * x[i, j]


@wp.kernel
def read_back(x: wp.array[float], y: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    y[i] = wp.sin(x[i])
    z[i] = y[i] * y[i] * x[i]


leaky_op = warp_op(leaky, "x[n] -> y[n]", dim="n")
stored_in_loop_op = warp_op(stored_in_loop, "x[n, 4] -> y[n]", dim="n")
running_sum_op = warp_op(running_sum, "x[n, m] -> y[n, m]", dim="n")
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


# --- custom gradients -------------------------------------------------------------------------------------------------


@wp.func
def hypotenuse(a: float, b: float):
    return wp.sqrt(a * a + b * b)


@wp.func_grad(hypotenuse)
def adj_hypotenuse(a: float, b: float, adj_ret: float):
    h = hypotenuse(a, b)
    wp.adjoint[a] += adj_ret * a / h
    wp.adjoint[b] += adj_ret * b / h


@wp.func
def pick(values: wp.array[float], i: int):
    return values[i] * 3.0


@wp.func_grad(pick)
def adj_pick(values: wp.array[float], i: int, adj_ret: float):
    wp.adjoint[values][i] += 3.0 * adj_ret


@wp.kernel
def lengths(a: wp.array[float], b: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = hypotenuse(a[i], b[i])


@wp.kernel
def picked(a: wp.array[float], b: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = pick(a, i) * pick(b, i)


lengths_op = warp_op(lengths, "a[n], b[n] -> y[n]", dim="n")
picked_op = warp_op(picked, "a[n], b[n] -> y[n]", dim="n")


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)], ids=["a", "b", "both"])
@pytest.mark.parametrize(
    ("op", "reference"),
    [(lengths_op, lambda a, b: (a * a + b * b).sqrt()), (picked_op, lambda a, b: 9.0 * a * b)],
    ids=["of numbers", "of arrays"],
)
def test_a_custom_gradient_writes_where_nobody_asked(mode, op, reference, wanted):
    """It has no null check of its own: an input that needs no gradient still needs a buffer to write into."""
    check_against(mode(op), reference, (torch.rand(5) + 0.5, torch.rand(5) + 0.5), wanted)


@wp.func_native(
    snippet="y[i] = x[i] * x[i] * x[i] * w[i];",
    adj_snippet="adj_x[i] += 3.0f * x[i] * x[i] * w[i] * adj_y[i]; adj_w[i] += x[i] * x[i] * x[i] * adj_y[i];",
)
def cube_natively(x: wp.array[float], w: wp.array[float], y: wp.array[float], i: int): ...


@wp.kernel
def native(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    cube_natively(x, w, y, i)


native_op = warp_op(native, "x[n], w[n] -> y[n]", dim="n")


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)], ids=["x", "w", "both"])
def test_a_native_snippet(mode, wanted):
    """It runs again in backward, and rewrites its output: the output must be there."""
    check_against(mode(native_op), lambda x, w: x**3 * w, (torch.randn(4), torch.randn(4)), wanted)


# --- structs ----------------------------------------------------------------------------------------------------------


@wp.struct
class Cloud:
    position: wp.array[wp.vec3]
    mass: wp.array[float]
    scale: float


@wp.kernel
def inertia(cloud: Cloud, y: wp.array[float]):
    i = wp.tid()
    p = cloud.position[i]
    y[i] = cloud.mass[i] * wp.dot(p, p) * cloud.scale


inertia_op = warp_op(inertia, "-> y", shapes={"y": lambda cloud: cloud.mass.shape}, dim=lambda cloud: cloud.mass.shape)


def test_arrays_in_a_struct(mode):
    check_against(
        mode(lambda p, m: inertia_op({"position": p, "mass": m, "scale": 2.0})),
        lambda p, m: (p * p).sum(-1) * m * 2.0,
        (torch.randn(4, 3), torch.rand(4)),
    )


# --- what can't be right, and what only may be ------------------------------------------------------------------------


@wp.kernel
def compact(x: wp.array[float], count: wp.array[int], y: wp.array[float]):
    i = wp.tid()
    if x[i] > 0.0:
        k = wp.atomic_add(count, 0, 1)
        y[k] = x[i] * x[i]


@wp.kernel
def power_by_loop(x: wp.array[float], n: int, y: wp.array[float]):
    i = wp.tid()
    v = wp.float32(1.0)
    for _ in range(n):
        v = v * x[i]
    y[i] = v


compact_op = warp_op(compact, "x[n] -> count[1], y[n]", dim="n", init="zeros")


def test_slots_from_a_counter_have_no_gradient(mode):
    """Replayed, every thread would get the same slot."""
    x = torch.tensor([1.0, -1.0, 2.0])
    count, y = mode(compact_op)(x)
    assert count.tolist() == [2]
    assert sorted(y.tolist()) == [0.0, 1.0, 4.0]
    with pytest.raises(Exception, match="compact") as caught:
        mode(compact_op)(leaf(x))[1].sum().backward()
    if mode.__name__ == "eager":
        assert isinstance(caught.value, GradientError)
    assert "count" in str(caught.value)


def test_a_doubtful_adjoint_warns_once_at_decoration():
    with pytest.warns(GradientWarning, match="last_wins") as caught:
        op = warp_op(last_wins, "x[n] -> y[1]", dim="n")
    assert len(caught) == 1
    x = torch.tensor([2.0, 3.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert op(x).item() in (4.0, 9.0)
        op(leaf(x)).sum().backward()


def test_a_loop_is_no_doubt(mode):
    op = warp_op(power_by_loop, "x[m] -> y[m]", dim="m")
    check_against(mode(lambda x: op(x, 3)), lambda x: x**3, (torch.tensor([2.0, 3.0]),))


# --- gradients belong to PyTorch --------------------------------------------------------------------------------------


@wp.kernel
def ignores_one(x: wp.array[float], unread: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i]


ignores_one_op = warp_op(ignores_one, "x[n], unread[n] -> y[n]", dim="n")


def test_an_unread_input_gets_zeros(mode):
    _, (_, unread) = values_and_grads(mode(ignores_one_op), (torch.randn(4), torch.randn(4)))
    assert torch.equal(unread, torch.zeros(4))


def test_no_two_gradients_share_storage(mode):
    _, grads = values_and_grads(mode(kernels.product_op), (torch.randn(4), torch.randn(4)))
    places = {g.untyped_storage().data_ptr() for g in grads}
    assert len(places) == 2


def test_a_gradient_is_not_the_cotangent():
    """An in-out gradient is made from a copy; handing out the cotangent itself would tie two tensors together."""
    y, x = leaf(Y), X
    seed = torch.ones(4)
    (got,) = torch.autograd.grad(kernels.multiply_op(x, y), y, seed)
    got.zero_()
    assert torch.equal(seed, torch.ones(4))


def test_one_tensor_twice_gets_the_sum(mode):
    check_against(mode(lambda x: kernels.product_op(x, x)), lambda x: x**3, (torch.randn(4),))


def test_nobodys_grad_is_touched(mode):
    x, w = leaf(torch.randn(4)), leaf(torch.randn(4))
    y = mode(kernels.product_op)(x, w)
    assert x.grad is None
    assert w.grad is None
    torch.autograd.grad(y.sum(), x)
    assert x.grad is None
    assert w.grad is None


def test_leaf_gradients_are_accumulated_once(mode):
    x, w = torch.randn(4), torch.nn.Parameter(torch.randn(4))
    function = mode(kernels.product_op)
    function(x, w).sum().backward()
    close(w.grad, x * x)
    function(x, w).sum().backward()
    close(w.grad, 2 * x * x)
    w.grad = torch.full_like(w, 10.0)
    function(x, w).sum().backward()
    close(w.grad, x * x + 10.0)


def test_several_outputs_of_which_some_are_used(mode):
    function = mode(kernels.spring_op)
    losses = {
        "first": lambda e, f: e.sum(),
        "second": lambda e, f: (f * f).sum(),
        "both": lambda e, f: e.sum() + f[:, 1].sum(),
        "second detached": lambda e, f: (e * f.detach()[:, 0]).sum(),
        "first twice": lambda e, f: (e * e).sum() + e.mean(),
    }
    p, k = torch.randn(4, 3), torch.rand(4)
    for name, loss in losses.items():
        results = []
        for f in (function, kernels.spring_):
            a, b = leaf(p), leaf(k)
            loss(*f(a, b)).backward()
            results.append((a.grad, b.grad))
        for mine, theirs in zip(*results, strict=True):
            close(mine, theirs, name)


@pytest.mark.parametrize("which", [(0,), (1,), (0, 1), ()], ids=["x", "w", "both", "none"])
def test_only_the_gradients_that_are_asked_for(mode, which):
    x, w = leaves = [torch.randn(4).requires_grad_(i in which) for i in range(2)]
    y = mode(kernels.product_op)(x, w)
    assert y.requires_grad == bool(which)
    if which:
        y.sum().backward()
    want = (2 * x * w, x * x)
    for i, tensor in enumerate(leaves):
        if i in which:
            close(tensor.grad, want[i].detach())
        else:
            assert tensor.grad is None


# --- stores by several threads ----------------------------------------------------------------------------------------


@wp.kernel
def last_wins(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[0] = x[i] * x[i]


@wp.kernel
def last_in_a_row(x: wp.array2d[float], y: wp.array[float]):
    i, j = wp.tid()
    y[i] = x[i, j] * x[i, j]


@wp.kernel
def first_alone(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    if i == 0:
        y[0] = x[i] * x[i]


@wp.kernel
def a_mark(x: wp.array[float], y: wp.array[float], mark: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i]
    mark[0] = 1.0


@pytest.mark.parametrize(
    ("kernel", "signature", "raced"),
    [
        (last_wins, "x[n] -> y[1]", True),
        (last_in_a_row, "x[n, m] -> y[n]", True),
        (first_alone, "x[n] -> y[1]", False),
        (a_mark, "x[n] -> y[n], mark[1]", False),
    ],
    ids=["one element", "one a row", "one thread", "no gradient"],
)
def test_stores_of_several_threads_to_one_element_are_warned_of(kernel, signature, raced):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warp_op(kernel, signature, dim="n, m" if "m" in signature.split("->")[0] else "n")
    told = [str(w.message) for w in caught if issubclass(w.category, GradientWarning)]
    assert bool(told) is raced
    assert not raced or "several threads store to one element of 'y'" in told[0]


# --- functions that write ---------------------------------------------------------------------------------------------
# Warp's adjoint calls a kernel's functions again, stores and all; the stores of the kernel itself it leaves out.


@wp.func
def put(y: wp.array[float], i: int, v: float):
    y[i] = v


@wp.func
def put_if_positive(y: wp.array[float], i: int, v: float):
    if v <= 0.0:
        return v
    put(y, i, v * v)
    return 2.0 * v


@wp.func
def put_row(row: wp.array[float], v: float):
    row[1] = v
    row[0] = v * v


@wp.func
def add(y: wp.array[float], i: int, v: float):
    wp.atomic_add(y, i, v)


@wp.func
def multiply(y: wp.array[float], i: int, v: float):
    y[i] = y[i] * v


@wp.struct
class Target:
    y: wp.array[float]
    gain: float


@wp.func
def put_field(target: Target, i: int, v: float):
    target.y[i] = v * target.gain


@wp.kernel
def square_by_function(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    put(y, i, x[i] * x[i])


@wp.kernel
def positive_by_function(x: wp.array[float], y: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    z[i] = put_if_positive(y, i, x[i]) * x[i]


@wp.kernel
def rows_by_function(x: wp.array[float], y: wp.array2d[float]):
    i = wp.tid()
    put_row(y[i], x[i])


@wp.kernel
def field_by_function(x: wp.array[float], target: Target):
    i = wp.tid()
    put_field(target, i, x[i] * x[i])


@wp.kernel
def sum_read_back(x: wp.array[float], m: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    add(m, i, x[i] * x[i])
    y[i] = m[i] * x[i]


@wp.kernel
def in_out_by_function(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    before = y[i]
    put(y, i, before * x[i])


@wp.kernel
def scale_by_function(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    multiply(y, i, x[i])


@wp.kernel
def both_ways(x: wp.array[float], m: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    m[i] = x[i]
    add(m, i, x[i] * x[i])
    y[i] = m[i] * x[i]


def positive(x):
    return torch.where(x > 0, x * x, 7.0), torch.where(x > 0, 2 * x * x, x * x)


WRITERS = {
    "store": (square_by_function, "x[n] -> y[n]", {}, lambda x: x * x, 1),
    "store, zeros": (square_by_function, "x[n] -> y[n]", {"init": "zeros"}, lambda x: x * x, 1),
    "store behind a return": (positive_by_function, "x[n] -> y[n], z[n]", {"init": {"y": 7.0}}, positive, 1),
    "row": (rows_by_function, "x[n] -> y[n, 2]", {}, lambda x: torch.stack([x * x, x], 1), 1),
    "sum": (sum_read_back, "x[n] -> m[n], y[n]", {}, lambda x: (x**2, x**3), 1),
    "sum in scratch": (sum_read_back, "x[n] -> y[n]", {"scratch": "m[n]"}, lambda x: x**3, 1),
    "sum, in-out": (sum_read_back, "x[n], m[n] -> m[n], y[n]", {}, lambda x, m: (m + x**2, (m + x**2) * x), 2),
    "in-out": (in_out_by_function, "x[n], y[n] -> y[n]", {}, lambda x, y: x * y, 2),
}


@pytest.mark.parametrize("what", WRITERS)
def test_functions_that_write(mode, what):
    kernel, signature, options, reference, count = WRITERS[what]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op = warp_op(kernel, signature, name="test_gradient_table::writer", **options)
    call = mode(op)
    given = [torch.tensor([1.0, -2.0, 3.0, 0.5])[: 4 - turn] * (turn + 1.0) for turn in range(2) for _ in range(count)]
    for turn in range(2):
        check_against(call, reference, given[turn * count : (turn + 1) * count])


@pytest.mark.parametrize("what", WRITERS)
def test_functions_that_write_leave_what_backward_runs_on(what):
    kernel, signature, options, reference, count = WRITERS[what]
    op = warp_op(kernel, signature, name="test_gradient_table::writer", **options)
    given = [torch.tensor([1.0, -2.0, 3.0, 0.5]) for _ in range(count)]
    inputs = [value.clone().requires_grad_() for value in given]
    results, wanted = op(*inputs), reference(*inputs)
    for _ in range(2):
        total, want = (sum(r.sum() for r in (one if isinstance(one, tuple) else (one,))) for one in (results, wanted))
        close(
            torch.autograd.grad(total, inputs, retain_graph=True), torch.autograd.grad(want, inputs, retain_graph=True)
        )
        close(results, wanted)
        close(tuple(i.detach() for i in inputs), tuple(given))


def test_a_function_that_writes_a_field(mode):
    op = warp_op(field_by_function, "x[n] -> target.y[n]")
    check_against(mode(lambda x: op(x, {"gain": 3.0})), lambda x: 3.0 * x * x, (torch.randn(4),))


def test_inductor_and_functions_that_write():
    op = warp_op(sum_read_back, "x[n] -> m[n], y[n]")
    check_against(inductor(op), lambda x: (x**2, x**3), (torch.randn(5),))


def test_what_functions_overwrite(mode):
    """The adjoint launch runs them again without what they store."""
    scale = warp_op(scale_by_function, "x[n], y[n] -> y[n]")
    check_against(mode(scale), lambda x, y: x * y, (torch.randn(4), torch.randn(4)))
    both = warp_op(both_ways, "x[n] -> m[n], y[n]")
    check_against(mode(both), lambda x: (x + x * x, (x + x * x) * x), (torch.randn(4),))


def test_a_program_s_kernels_whose_functions_write(mode):
    @warp_program("x[n] -> y[n]")
    def run(x: wp.array[float], y: wp.array[float]):
        m = wp.zeros_like(x)
        wp.launch(sum_read_back, x.shape[0], inputs=[x, m], outputs=[y])
        wp.launch(in_out_by_function, x.shape[0], inputs=[x, y])

    check_against(mode(run), lambda x: x**4, (torch.randn(4),))
