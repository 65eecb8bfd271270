"""Numbers that are known, and are no constants to Warp: the loops that they count are not unrolled."""

from __future__ import annotations

import torch
import warp as wp

from support import check_against
from warpops import warp_op

TWO = 2
FLAG = False


@wp.struct
class Counts:
    n: int


@wp.func
def two():
    return 2


@wp.func
def pair():
    return 1, 2


@wp.func
def bend(v: float):
    return 1.5 * v * v


@wp.kernel
def counted(x: wp.array[float], y: wp.array2d[float]):
    i = wp.tid()
    same = 2
    if x[i] > 0.0:
        same = 2
    s0 = x[i]
    for _ in range(same):
        s0 = bend(s0)
    opposite = 1
    if not FLAG:
        opposite = 2
    s1 = x[i]
    for _ in range(opposite):
        s1 = bend(s1)
    copied = TWO
    copied_again = copied
    s2 = x[i]
    for _ in range(copied_again):
        s2 = bend(s2)
    returned = two()
    s3 = x[i]
    for _ in range(returned):
        s3 = bend(s3)
    counts = Counts()
    counts.n = 2
    s4 = x[i]
    for _ in range(counts.n):
        s4 = bend(s4)
    either = 2 if x[i] > 0.0 else 2  # noqa: RUF034
    s5 = x[i]
    for _ in range(either):
        s5 = bend(s5)
    both = (3, 2)
    s6 = x[i]
    for _ in range(both[1]):
        s6 = bend(s6)
    _one, other = pair()
    s7 = x[i]
    for _ in range(+other):
        s7 = bend(s7)
    number = 1
    if not TWO:
        number = 3
    else:
        number = 2
    s8 = x[i]
    for _ in range(number):
        s8 = bend(s8)
    y[i, 0] = s0
    y[i, 1] = s1
    y[i, 2] = s2
    y[i, 3] = s3
    y[i, 4] = s4
    y[i, 5] = s5
    y[i, 6] = s6
    y[i, 7] = s7
    y[i, 8] = s8


def test_numbers_that_are_no_constants(mode):
    op = warp_op(counted, "x[n] -> y[n, 9]")
    x = torch.tensor([0.3, 0.5, -0.4])
    check_against(mode(op), lambda x: (1.5 * (1.5 * x * x) ** 2)[:, None].expand(3, 9), [x])


def test_the_branch_that_a_not_of_a_number_takes():
    def kernel(x: wp.array[float], y: wp.array[float], z: wp.array[float]):
        i = wp.tid()
        if not TWO:
            y[i] = x[i]
        else:
            z[i] = x[i]

    op = warp_op(kernel, "x[n], y[n] -> y[n], z[n]")
    x, y = torch.tensor([1.0, 2.0]), torch.zeros(2)
    assert [t.tolist() for t in op(x, y)] == [[0.0, 0.0], [1.0, 2.0]]
