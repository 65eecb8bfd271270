"""Tangents of ``atomic_max`` and ``atomic_min``: the winner's, in all orders, and where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import warp as wp
from torch.func import hessian, jacfwd, jacrev, jvp, vmap

from derivatives import check_twice
from support import close
from warpops import GradientError, warp_op

D = wp.array[wp.float64]


@wp.kernel
def extremes(x: D, w: D, at: wp.array[int], high: wp.array2d[wp.float64], low: D, total: D):
    i = wp.tid()
    for k in range(w.shape[0]):
        wp.atomic_max(high, at[i], k % 2, x[i] * x[i] * w[k])
    wp.atomic_min(low, at[i], wp.sin(x[i]) * w[0])
    wp.atomic_add(total, 0, x[i] * w[1])


@wp.kernel
def generic(x: wp.array[Any], y: wp.array[Any]):
    i = wp.tid()
    wp.atomic_max(y, i % 2, x[i] * x[i])


@wp.kernel
def vectors(x: wp.array[wp.vec3d], y: wp.array[wp.vec3d]):
    i = wp.tid()
    wp.atomic_max(y, 0, x[i])


@wp.kernel
def shifted(x: D, y: D):
    i = wp.tid()
    wp.atomic_max(y, 0, x[i])
    wp.atomic_add(y, 0, x[i])


op = warp_op(
    extremes,
    "x[n], w[m], at[n] -> high[k, 2], low[k], total[1]",
    dim="n",
    sizes="k",
    init={"high": float("-inf"), "low": float("inf")},
)
AT = torch.tensor([0, 1, 0, 1, 1], dtype=torch.int32)


def rand(*shape):
    return torch.rand(*shape, dtype=torch.float64) + 0.2


def reference(x, w, at, k):
    high = [x.new_full((k,), float("-inf")).scatter_reduce(0, at.long(), x * x * w[j::2].max(), "amax") for j in (0, 1)]
    low = x.new_full((k,), float("inf")).scatter_reduce(0, at.long(), x.sin() * w[0], "amin")
    return torch.stack(high, 1), low, (x * w[1]).sum()[None]


def loss(function):
    def total(x, w):
        high, low, summed = function(x, w, AT, 2)
        return high.square().sum() + (low * summed).sum()

    return total


def test_all_orders():
    x, w, v = rand(5), rand(3), rand(5)
    check_twice(lambda x, w: op(x, w, AT, 2), x, w)
    close(jvp(lambda x: op(x, w, AT, 2), (x,), (v,)), jvp(lambda x: reference(x, w, AT, 2), (x,), (v,)))
    close(hessian(loss(op), (0, 1))(x, w), hessian(loss(reference), (0, 1))(x, w))
    third = jacrev(jacfwd(jacfwd(loss(op))))
    close(third(x, w), jacrev(jacfwd(jacfwd(loss(reference))))(x, w))


def test_a_generic_kernel():
    made = warp_op(generic, "x[n] -> y[2]", dim="n", init="zeros", name="extremes::generic")
    for x in (rand(4), rand(4).float()):
        want = jacrev(lambda x: (x * x).view(2, 2).amax(0))(x)
        close(jacfwd(made)(x), want)
        close(jacrev(made)(x), want)
        with forward_ad.dual_level():
            close(forward_ad.unpack_dual(made(forward_ad.make_dual(x, x))).tangent, want @ x)


def test_under_vmap():
    x, w = rand(3, 5), rand(3)
    for made in (jacfwd, jacrev, hessian):
        close(vmap(made(loss(op)), (0, None))(x, w), torch.stack([made(loss(reference))(row, w) for row in x]))


def test_the_tangent_as_an_operator():
    x, w, v = rand(5), rand(3), rand(5)
    want = jvp(lambda x: reference(x, w, AT, 2), (x,), (v,))
    close(op.tangent(x, w, AT, 2, tangent_x=v), (*want[0], *want[1]))
    assert "high: input" in op.tangent.explain()
    with pytest.raises(GradientError, match="extremes_tangent: tangent: 'high' is a maximum or minimum"):
        _ = op.tangent.tangent


def test_each_of_several_winners_counts_in_full():
    """As in the adjoint."""
    x, w, v = torch.tensor([1.0, 2.0, 1.0, 2.0, 0.5], dtype=torch.float64), rand(3), rand(5)
    for place in range(2):
        jacobian = jacrev(lambda x, place=place: op(x, w, AT, 2)[place])(x)
        close(jvp(lambda x, place=place: op(x, w, AT, 2)[place], (x,), (v,))[1], jacobian @ v)


@pytest.mark.filterwarnings("ignore::warpops.GradientWarning")
@pytest.mark.parametrize(("kernel", "shape"), [(vectors, (4, 3)), (shifted, (4,))], ids=["vectors", "and a sum"])
def test_refused(kernel, shape):
    made = warp_op(kernel, "x[n] -> y[1]", dim="n", init="zeros", name=f"extremes::{kernel.key}_refused")
    with pytest.raises(GradientError, match="'atomic_max' has no tangent rule"):
        jvp(made, (rand(*shape),), (rand(*shape),))
