"""Random states as indices: of arrays that are read, and of sums; once, and in loops that carry the state."""

from __future__ import annotations

import pytest
import torch
import warp as wp
from torch.func import grad, vmap

from derivatives import check_twice
from loop_kernels import check, uniform
from support import close
from warpops import warp_op

D = wp.array[wp.float64]


@wp.kernel
def once(x: D, seed: int, turns: int, y: D):
    i = wp.tid()
    state = wp.rand_init(seed, i)
    y[i] = x[int(state % wp.uint32(x.shape[0]))] * x[i] * x[i]


@wp.kernel
def looped(x: D, seed: int, turns: int, y: D):
    i = wp.tid()
    state = wp.rand_init(seed, i)
    v = wp.float64(1.0)
    for _ in range(turns):
        r = wp.randi(state, 0, 5)
        v = v * x[int(state % wp.uint32(x.shape[0]))] + wp.float64(r) * x[i]
    y[i] = v * x[wp.randi(state, 0, x.shape[0])]


@wp.kernel
def summed(x: D, seed: int, turns: int, y: D):
    i = wp.tid()
    state = wp.rand_init(seed, i)
    for _ in range(turns):
        wp.randf(state)
        wp.atomic_add(y, int(state % wp.uint32(y.shape[0])), x[i] * x[i])


OPS = {kernel.key: warp_op(kernel, "x[n] -> y[n]", dim="n") for kernel in (once, looped, summed)}


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
@pytest.mark.parametrize("seed", [3, 8])
def test_gradients_twice_and_under_vmap(op, seed):
    x = torch.rand(3, 4, dtype=torch.float64) + 0.5

    def run(x):
        return op(x, seed, 6)

    assert torch.autograd.gradcheck(run, x[0].clone().requires_grad_())
    check_twice(run, x[0])
    close(vmap(run)(x), torch.stack([run(row) for row in x]))
    slope = grad(lambda row: run(row).square().sum())
    close(vmap(slope)(x), torch.stack([slope(row) for row in x]))


@wp.kernel
def components(x: wp.array2d[wp.float64], seed: int, y: wp.array2d[wp.float64]):
    i = wp.tid()
    state = wp.rand_init(seed, i)
    m = wp.mat33d()
    for j in range(x.shape[1]):
        m[wp.randi(state, 0, 3), 0] = wp.sin(x[i, j] + m[0, 1]) * wp.float64(wp.randf(state))  # Warp takes this first
        m[wp.randi(state, 0, 3), wp.randi(state, 0, 3)] += wp.sin(x[i, j]) * wp.float64(wp.randf(state))  # this last
        m[1, wp.randi(state, 0, 3)] *= x[i, j]
    for k in range(3):
        y[i, k] = m[k, 0] * m[k, 1] + m[k, 2]


def test_drawn_components():
    op = warp_op(components, "x[n, m] -> y[n, 3]", dim="n")
    for seed in range(3):
        check(lambda x, seed=seed: op(x, seed), uniform(2, 6))
