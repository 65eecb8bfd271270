"""Ops that are defined again and collected, in any order: PyTorch's registry stays whole.

Overloads that differ in their overload name only share an entry of TorchScript's table; removing two of them without a
definition in between used to leave a dangling pointer behind, and the next look at the name crashed.
"""

from __future__ import annotations

import gc
import itertools

import pytest
import torch
import warp as wp

import kernels
from warpops import warp_op

pytestmark = pytest.mark.usefixtures("frozen")

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


@wp.kernel
def twin(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = 2.0 * x[i]


@wp.kernel
def twin_fwd(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = 3.0 * x[i]


@pytest.mark.parametrize(
    "order", [(twin, twin_fwd), (twin_fwd, twin), (twin_fwd, twin, twin_fwd), (twin, twin_fwd, twin)]
)
def test_an_op_that_is_called_as_the_raw_op_of_another(order):
    torch._dynamo.reset()
    ops = {kernel: warp_op(kernel, "x[n] -> y[n]", dim="n", name=f"twins::{kernel.key}") for kernel in order}
    x = torch.ones(2, requires_grad=True)

    def both(x):
        return ops[twin](x) + 10.0 * ops[twin_fwd](x)

    for run in (both, torch.compile(both, fullgraph=True, backend="aot_eager")):
        assert run(x).tolist() == [32.0, 32.0]
        assert torch.autograd.grad(run(x).sum(), x)[0].tolist() == [32.0, 32.0]
    assert torch.ops.twins.twin(x).tolist() == [2.0, 2.0]
    assert torch.ops.twins.twin_fwd(x).tolist() == [3.0, 3.0]
    assert torch.ops.twins.twin_fwd is ops[twin_fwd].overload
    ops.pop(twin)
    gc.collect()
    assert torch.ops.twins.twin_fwd(x).tolist() == [3.0, 3.0]
