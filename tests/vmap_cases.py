"""Kernels of each kind for vmap, what they compute in PyTorch, and how they are mapped."""

from __future__ import annotations

from typing import Any

import torch
import warp as wp

from kernels import product_op, square_op
from warpops import warp_op

OFFSET = 3.0


@wp.func
def row_sum(row: wp.array[float]):
    total = float(0.0)
    for j in range(row.shape[0]):
        total += row[j]
    return total


@warp_op("x[n, m] -> y[n]", dim="n")
@wp.kernel
def sums(x: wp.array2d[float], y: wp.array[float]):
    """A view goes to a helper function."""
    i = wp.tid()
    row = x[i]
    y[i] = row_sum(row) * OFFSET + wp.static(2.0 * OFFSET) * x[i][0]


@warp_op("x[n] -> y[n]", dim="n")
@wp.kernel
def twice_tid(x: wp.array[float], y: wp.array[float]):
    """``wp.tid()`` in several places, and not first."""
    n = x.shape[0]
    v = x[wp.tid()]
    if wp.tid() < n - 1:
        v = v + x[wp.tid() + 1]
    i = wp.tid()
    y[i] = v * v


@warp_op("x[n] -> y[1]", dim=1)
@wp.kernel
def total(x: wp.array[float], y: wp.array[float]):
    """No ``wp.tid()``."""
    s = float(0.0)
    for j in range(x.shape[0]):
        s += x[j] * 2.0
    y[0] = s


@warp_op("x[n] -> y[1]", dim="n", init="zeros")
@wp.kernel
def gather(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(y, 0, x[i] * x[i])


@warp_op(shapes={"y": lambda x: x.shape[0]}, dim=lambda x: x.shape[0])
@wp.kernel
def called(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i] * x[i]


@warp_op(shapes={"y": lambda index: int(index.max()) + 1}, dim=lambda x: x.shape[0], init="zeros")
@wp.kernel
def bins(x: wp.array[float], index: wp.array[wp.int32], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(y, index[i], x[i])


@warp_op("x[a, b, c, d] -> y[a, b, c, d]", dim="a, b, c, d")
@wp.kernel
def four(x: wp.array4d[float], y: wp.array4d[float]):
    i, j, k, m = wp.tid()
    y[i, j, k, m] = x[i, j, k, m] * x[i, j, k, m]


@wp.func
def pick(values: wp.array[float], i: int):
    return values[i] * 3.0


@wp.func_grad(pick)
def adj_pick(values: wp.array[float], i: int, adj_ret: float):
    wp.adjoint[values][i] += 3.0 * adj_ret


@warp_op("x[n] -> y[n]", dim="n")
@wp.kernel
def picked(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = pick(x, i)


@warp_op("x[n] -> y[n]", dim="n")
@wp.kernel
def rebound(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    x = x[0:4]
    y[i] = x[i] * x[i]


@warp_op("x[n, m] -> y[n, m]", dim="n, m")
@wp.kernel
def late(x: wp.array2d[float], y: wp.array2d[float]):
    """Coordinates that come late, a slice, an element of a row."""
    first = x[0, 0]
    i, j = wp.tid()
    row = x[i, 0:2]
    y[i, j] = x[i][j] * first + row[0]


@warp_op("x[n] -> y[k]", dim="n", sizes="k", init="zeros")
@wp.kernel
def whole_numbers(x: wp.array[float], y: wp.array[wp.int32]):
    i = wp.tid()
    wp.atomic_max(y, i % y.shape[0], int(x[i]))


@warp_op("x[n, m] -> y[n]", dim="n")
@wp.kernel
def generic_rows(x: wp.array2d(dtype=wp.Float), y: wp.array(dtype=wp.Float)):
    i = wp.tid()
    s = x.dtype(0.0)
    for j in range(x.shape[1]):
        s += x[i, j] * x[i, j]
    y[i] = s


@warp_op("x[n], k[n] -> y[n]", dim="n")
@wp.kernel
def generic_product(x: wp.array(dtype=Any), k: wp.array(dtype=wp.int32), y: wp.array(dtype=Any)):
    i = wp.tid()
    y[i] = x[i] * x.dtype(k[i])


def make_power(times: int):
    factor = wp.constant(float(times))

    @warp_op("x[n] -> y[n]", dim="n", name=f"vmaptest::power_{times}")
    @wp.kernel(module="unique")
    def power(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = x[i] * x[i] * factor

    return power


power_3 = make_power(3)
power_5 = make_power(5)


def twice_tid_(x):
    return (x + torch.cat([x[1:], x.new_zeros(1)])) ** 2


def rand(*shape):
    return torch.randn(*shape)


KEEP = torch.tensor([True, False, True, True])
INDEX = torch.tensor([[0, 1, 1, 2], [2, 2, 0, 1], [1, 0, 2, 2]], dtype=torch.int32)

# Each: the op, the same in PyTorch, the arguments, their batch axes. One launch each way.
ONE_LAUNCH = {
    "axis 1": (square_op, lambda x: x * x, lambda: (rand(4, 3),), (1,)),
    "negative axis": (square_op, lambda x: x * x, lambda: (rand(4, 3),), (-1,)),
    "one unbatched": (product_op, lambda x, w: x * x * w, lambda: (rand(3, 4), rand(4)), (0, None)),
    "other unbatched": (product_op, lambda x, w: x * x * w, lambda: (rand(4), rand(4, 3)), (None, 1)),
    "atomics": (gather, lambda x: (x * x).sum()[None], lambda: (rand(3, 4),), (0,)),
    "views": (sums, lambda x: x.sum(-1) * 3.0 + 6.0 * x[:, 0], lambda: (rand(3, 2, 4),), (0,)),
    "several tids": (twice_tid, twice_tid_, lambda: (rand(3, 4),), (0,)),
    "no tid": (total, lambda x: 2.0 * x.sum()[None], lambda: (rand(3, 4),), (0,)),
    "callables": (called, lambda x: x**3, lambda: (rand(3, 4),), (0,)),
    "late coordinates": (
        late,
        lambda x: x * x[0, 0] + x[:, :1],
        lambda: (rand(3, 2, 4),),
        (0,),
    ),
    "generic rows": (generic_rows, lambda x: (x * x).sum(-1), lambda: (rand(3, 2, 4).double(),), (0,)),
    "closure": (power_3, lambda x: 3.0 * x * x, lambda: (rand(3, 4),), (0,)),
    "another closure": (power_5, lambda x: 5.0 * x * x, lambda: (rand(3, 4),), (0,)),
}

LOOPS = {
    "custom gradient": (picked, lambda x: 3.0 * x, lambda: (rand(3, 4),), (0,)),
    "rebound argument": (rebound, lambda x: x * x, lambda: (rand(3, 4),), (0,)),
    "sizes from data": (
        bins,
        lambda x, index: torch.zeros(3).index_add(0, index.long(), x),
        lambda: (rand(3, 4), INDEX),
        (0, 0),
    ),
}
