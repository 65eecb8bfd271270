"""Ops that are defined again and collected, in any order: PyTorch's registry stays whole.

Overloads that differ in their overload name only share an entry of TorchScript's table; removing two of them without a
definition in between used to leave a dangling pointer behind, and the next look at the name crashed.
"""

from __future__ import annotations

import gc
import itertools

import pytest
import torch

import kernels
from warpops import warp_op

NAME = "test_unregister::square"


def define():
    return warp_op(kernels.square, "x[n] -> y[n]", dim="n", name=NAME)


def works(op):
    x = torch.tensor([1.0, 3.0], requires_grad=True)
    for call in (op, torch.ops.test_unregister.square):
        (gradient,) = torch.autograd.grad(call(x).sum(), x)
        assert gradient.tolist() == [2.0, 6.0]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_three_alive_and_collected_in_any_order(order):
    ops = [define() for _ in range(3)]
    works(ops[2])
    for index in order:
        ops[index] = None
        gc.collect()
        left = [op for op in ops if op is not None]
        if left:
            works(left[-1])
    works(define())


def test_collected_while_another_is_registered():
    """The garbage collector runs at every chance, and finds an op of the same name each time."""
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(20):
            cycle = [define()]
            cycle.append(cycle)
            del cycle
        op = define()
    finally:
        gc.set_threshold(*threshold)
    works(op)
