"""Ops that change arrays in place, launched again: what is compared, counted and let go of at each call."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import warp as wp

from support import close, inductor
from warpops import ArgumentError, GradientError, warp_op
from warpops.launch import native
from warpops.private.short import FAST

pytestmark = pytest.mark.skipif(not FAST, reason="no launch is remembered with WARPOPS_FAST=0")


@wp.kernel
def push(x: wp.array[float], v: wp.array[float], s: float, speed: wp.array[float]):
    i = wp.tid()
    x[i] = x[i] + s * v[i]
    speed[i] = wp.abs(v[i])


@wp.kernel
def tally(x: wp.array[float], total: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(total, 0, x[i])
    y[i] = x[i] * x[i]


@pytest.fixture(params=["native", "by hand"])
def way(request, monkeypatch):
    if request.param == "by hand":
        monkeypatch.setattr(native, "_made", None)
        monkeypatch.setattr(native, "_failed", True)
    return request.param


@pytest.fixture
def push_op(way, launches):
    """With launches over three elements remembered; ``launches`` counts those that aren't."""
    op = warp_op(push, "x[n], v[n], speed[n]", dim="n", mutates=["x", "speed"])
    for _ in range(2):
        op(torch.zeros(3), torch.ones(3), 1.0, torch.zeros(3))
    launches[:] = [0, 0]
    return op


def test_arrays_change_and_say_so(push_op, launches):
    for s in (1.0, -2.0, 0.5):
        x, v, speed = torch.randn(3), torch.randn(3), torch.randn(3)
        before = x.clone()
        assert push_op(x, v, s, speed) is None
        close(x, before + s * v)
        close(speed, v.abs())
        assert (x._version, v._version, speed._version) == (1, 0, 1)
    assert launches == [0, 0], "a launch was made the long way"


def test_an_overlap_is_refused_after_good_calls(push_op):
    memory = torch.zeros(8)
    for x, v, speed, named in (
        (memory[0:3], memory[2:5], torch.zeros(3), "'x' .* shares memory with 'v'"),
        (memory[2:5], memory[0:3], torch.zeros(3), "'x' .* shares memory with 'v'"),
        (memory[0:3], torch.ones(3), memory[2:5], "'x' .* shares memory with 'speed'"),
        (torch.zeros(3), memory[0:3], memory[2:5], "'speed' .* shares memory with 'v'"),
    ):
        with pytest.raises(ArgumentError, match=named.replace(" .*", ".*")):
            push_op(x, v, 1.0, speed)
        assert not memory.any(), "something was written"


def test_neighbours_do_not_overlap(push_op, launches):
    memory = torch.arange(9.0)
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        x, v, speed = (memory[3 * k : 3 * k + 3] for k in order)
        want = x + 2.0 * v
        push_op(x, v, 2.0, speed)
        close(x, want)
        close(speed, v.abs())
    assert launches == [0, 0]


def test_arrays_that_interlace_do_not_overlap(push_op, launches):
    """Only the whole check can tell; it is made at each call."""
    for _ in range(4):
        memory = torch.arange(6.0)
        want = memory[::2] + memory[1::2]
        push_op(memory[::2], memory[1::2], 1.0, torch.zeros(3))
        close(memory[::2], want)
    assert launches[0] == 4


def test_what_requires_grad_is_refused_in_grad_mode_only(push_op):
    x = torch.zeros(3, requires_grad=True)
    for _ in range(3):
        with torch.no_grad():
            push_op(x, torch.ones(3), 1.0, torch.zeros(3))
        with pytest.raises(GradientError, match="'x'"):
            push_op(x, torch.ones(3), 1.0, torch.zeros(3))
    assert x.tolist() == [3.0] * 3
    with pytest.raises(GradientError, match="'v'"):
        push_op(torch.zeros(3), torch.ones(3, requires_grad=True), 1.0, torch.zeros(3))


def test_saved_tensors_are_told(push_op):
    x, w = torch.ones(3), torch.ones(3, requires_grad=True)
    y = w * x
    push_op(x, torch.ones(3), 1.0, torch.zeros(3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_inference_tensors(push_op):
    with torch.inference_mode():
        for _ in range(3):
            x = torch.zeros(3)
            push_op(x, torch.ones(3), 1.0, torch.zeros(3))
            assert x.tolist() == [1.0] * 3


def test_outputs_beside_it(way):
    """Gradients of the outputs are right, and the total is counted once a call."""
    op = warp_op(tally, "x[n], total[k] -> y[n]", dim="n", mutates="total")
    for calls in range(1, 5):
        total = torch.zeros(1)
        x = torch.randn(3)
        close(op(x, total), x * x)
        close(total, x.sum()[None])
        leaf = x.clone().requires_grad_()
        op(leaf, total).sum().backward()
        close(leaf.grad, 2 * x)
        close(total, 2 * x.sum()[None])
        assert total._version == 2, calls


@pytest.mark.usefixtures("only_new")
def test_nothing_is_held(push_op):
    x, v, speed = torch.zeros(3), torch.ones(3), torch.zeros(3)
    push_op(x, v, 1.0, speed)
    seen = [weakref.ref(tensor) for tensor in (x, v, speed)]
    del x, v, speed
    gc.collect()
    assert [one() for one in seen] == [None] * 3


@pytest.mark.slow
def test_compiled(way):
    op = warp_op(push, "x[n], v[n], speed[n]", dim="n", mutates=["x", "speed"])

    def step(x, v, speed):
        op(x, v, 0.5, speed)
        op(x, v, 0.5, speed)
        return x + speed

    function = inductor(step)
    for _ in range(4):
        x, v, speed = torch.randn(3), torch.randn(3), torch.zeros(3)
        want = x + v
        close(function(x, v, speed), want + v.abs())
        close(x, want)
