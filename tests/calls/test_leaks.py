"""Nothing is kept: no tensors, no Warp arrays, no memory, with the garbage collector switched off."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
import torch
import warp as wp

import kernels
from support import leaf
from warpops import warp_program

pytestmark = pytest.mark.usefixtures("only_new")

STEPS = 60


def live():
    return sum(issubclass(type(thing), (torch.Tensor, wp.array)) for thing in gc.get_objects())


def loop(function, steps, back):
    w = torch.ones(3, requires_grad=True)
    k = torch.ones(16)
    for _ in range(steps):
        energy, force = function(w, k)
        if back:
            (energy.sum() + force.sum()).backward()
            w.grad = None


@pytest.mark.parametrize("back", [True, False], ids=["with backward", "dropped graphs"])
def test_the_number_of_tensors_does_not_grow(mode, back):
    function = mode(lambda w, k: kernels.spring_op(torch.ones(16, 3) * w, k))
    loop(function, 10, back)
    gc.collect()
    gc.disable()
    try:
        before = live()
        loop(function, STEPS, back)
        after = live()
    finally:
        gc.enable()
    assert after - before <= 4


def test_inputs_and_outputs_are_freed_at_once():
    gc.collect()
    gc.disable()
    try:
        x = leaf(torch.randn(4))
        y = kernels.multiply_op(x, x.detach().clone())
        gone = [weakref.ref(x), weakref.ref(y)]
        y.sum().backward()
        del x, y
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()


def test_a_failed_call_keeps_nothing():
    gc.collect()
    gc.disable()
    try:
        x = torch.randn(4)
        gone = weakref.ref(x)
        try:
            kernels.product_op(x, torch.randn(5))
        except ValueError:
            pass
        del x
        assert gone() is None
    finally:
        gc.enable()


def test_only_what_the_adjoint_reads_is_saved():
    """An output that is neither read back nor needed for the adjoint must not be kept for backward."""
    x = leaf(torch.randn(4))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        y = kernels.square_op(x)
    assert saved == [x.data_ptr()]
    assert y.data_ptr() not in saved


@wp.kernel
def doubled(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = 2.0 * x[i]


@warp_program("x[n] -> y[n]", scratch="tmp[n]")
def twice(x: wp.array[float], y: wp.array[float], tmp: wp.array[float]):
    wp.launch(doubled, dim=x.shape, inputs=[x], outputs=[tmp])
    wp.launch(doubled, dim=x.shape, inputs=[tmp], outputs=[y])


@pytest.mark.slow
@pytest.mark.parametrize(("op", "sizes"), [(kernels.square_op, 4_999), (twice, 800)], ids=["op", "program"])
def test_calls_of_changing_sizes_keep_nothing(op, sizes):
    """What is remembered is of some sizes only: once it is full, nothing is added."""

    def most():
        blocks = []
        for size in range(1, sizes + 1):
            x = torch.ones(size, requires_grad=size % 2 == 0)
            y = op(x)
            if x.requires_grad:
                y.sum().backward()
            if size % 100 == 0:
                gc.collect(0)
                blocks.append(sys.getallocatedblocks())
        return max(blocks)

    for _ in range(3):
        most()
    # Far from one for a call. Launch sizes are let go 4096 at a time, at another point of each run.
    assert abs(most() - most()) < sizes / 2
