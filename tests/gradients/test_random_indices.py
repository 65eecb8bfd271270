"""Random states as indices: of arrays that are read, and of sums; once, and in loops that carry the state. And draws
inside of statements that store."""

from __future__ import annotations

import pytest
import torch
import warp as wp
from torch.func import grad, vmap

from derivatives import check_twice
from loop_kernels import check, uniform
from support import WARP, close
from warpops import warp_op

D = wp.array[wp.float64]

IN_ORDER = pytest.mark.skipif(WARP < (1, 18), reason="draws in another order where a statement stores (README, Limits)")


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


@IN_ORDER
def test_drawn_components():
    op = warp_op(components, "x[n, m] -> y[n, 3]", dim="n")
    for seed in range(3):
        check(lambda x, seed=seed: op(x, seed), uniform(2, 6))
    check_twice(lambda x: op(x, 3), uniform(2, 6).detach())


# --- draws inside of statements that store ----------------------------------------------------------------------------

E = wp.array2d[wp.float64]


@wp.kernel
def in_stores(x: E, seed: int, y: E):
    i = wp.tid()
    state = wp.rand_init(seed, i)
    p = wp.float64(1.0)
    for k in range(x.shape[1]):
        p = p * wp.sin(x[i, k]) * wp.float64(wp.randf(state))
        y[i, k] = p * wp.float64(wp.randf(state=state))
        y[i, wp.randi(state, 4, 8)] += p * wp.float64(wp.randf(state))
        wp.atomic_add(y, i, wp.randi(state, 4, wp.randi(state, 5, 9)), p * x[i, k] * wp.float64(wp.randn(state)))


@wp.kernel
def value_first(x: E, seed: int, y: E):
    i = wp.tid()
    state = wp.rand_init(seed, i)
    p = wp.float64(1.0)
    for k in range(x.shape[1]):
        p = p * wp.sin(x[i, k]) * wp.float64(wp.randf(state))
        y[i, wp.randi(state, 0, 8)] = p * wp.float64(wp.randi(state, 1, 8))


@wp.kernel
def where_they_may_not_be(x: E, seed: int, y: E):
    i = wp.tid()
    state = wp.rand_init(seed, i)
    p = wp.float64(1.0)
    for k in range(x.shape[1]):
        p = p * wp.sin(x[i, k]) * wp.float64(wp.randf(state))
        if wp.randf(state) > 0.4:
            y[i, k] = p * (wp.float64(wp.randf(state)) if wp.randf(state) > 0.5 else x[i, k])
        while wp.randf(state) > 0.4:
            y[i, 4] += p * wp.float64(wp.randf(state))
        for j in range(wp.randi(state, 0, 3)):
            y[i, 5 + j] += p * wp.float64(int(k > 0 and wp.randf(state) > 0.3))


@wp.kernel
def into_what_is_read(x: E, seed: int, y: E):
    i = wp.tid()
    state = wp.rand_init(seed, i)
    p = wp.float64(1.0)
    for k in range(x.shape[1]):
        p = p * wp.sin(x[i, k]) * wp.float64(wp.randf(state))
        y[i, wp.randi(state, 0, 8)] = y[i, 0] * p * wp.float64(wp.randi(state, 1, 8)) + x[i, k]


@wp.kernel
def into_a_local(x: E, seed: int, y: E):
    i = wp.tid()
    state = wp.rand_init(seed, i)
    p = wp.float64(1.0)
    v = wp.vec2d()
    for k in range(x.shape[1]):
        p = p * wp.sin(x[i, k]) * wp.float64(wp.randf(state))
        v[wp.randi(state, 0, 2)] += p * wp.float64(wp.randf(state))
        v[wp.randi(state, 0, 2)] = v[0] * p * wp.float64(wp.randi(state, 1, 8)) + x[i, k]
        y[i, k] = v[0] * v[1]


STORING = (in_stores, value_first, where_they_may_not_be, into_what_is_read, into_a_local)


@IN_ORDER
@pytest.mark.parametrize("kernel", STORING, ids=lambda kernel: kernel.key)
def test_draws_in_stores_of_a_loop(kernel):
    op = warp_op(kernel, "x[n, m] -> y[n, 8]", dim="n", init=0.0)
    x = torch.rand(2, 4, dtype=torch.float64) + 0.5
    y = wp.zeros((2, 8), dtype=wp.float64)
    wp.launch(kernel, 2, inputs=[wp.from_torch(x), 3], outputs=[y])
    close(op(x, 3), wp.to_torch(y))
    assert torch.autograd.gradcheck(lambda x: op(x, 3), x.clone().requires_grad_())
    check_twice(lambda x: op(x, 3), x)
    rows = torch.stack([x, x + 0.1])
    slope = grad(lambda x: op(x, 3).square().sum())
    close(vmap(slope)(rows), torch.stack([slope(row) for row in rows]))
