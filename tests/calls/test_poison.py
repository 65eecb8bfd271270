"""The suite's poisoned allocator works: see ``PoisonedTorch`` in ``conftest.py``."""

from __future__ import annotations

import torch
import warp as wp

import kernels
from support import close
from warpops import WarpOp, warp_op


@wp.kernel
def every_other(x: wp.array[float], count: wp.array[int], y: wp.array[float]):
    i = wp.tid()
    if i % 2 == 0:
        y[i] = x[i]
        count[i] = 1


@wp.kernel
def every(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] + 1.0


def test_what_a_kernel_leaves_out_is_seen():
    op = warp_op(every_other, "-> count[n], y[n]", dim="n", sizes="n", init="empty")
    count, y = op(torch.ones(4), n=4)
    assert y.isnan().tolist() == [False, True, False, True]
    assert count[0] == 1 and count[1] == 0x55555555


def test_an_output_inferred_empty_is_never_poisoned(mode):
    op = warp_op(every)
    assert op._plan.slot("y").init == "empty"
    close(mode(op)(torch.ones(5)), torch.full((5,), 2.0))


def test_the_suite_has_many_such_outputs():
    ops = [value for value in vars(kernels).values() if isinstance(value, WarpOp)]
    empty = [slot.label for op in ops for slot in op._plan.slots if slot.role == "output" and slot.init == "empty"]
    assert len(empty) >= 10
