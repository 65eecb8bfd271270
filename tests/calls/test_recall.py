"""Launches that are remembered: what they take for granted is checked at each call, and told to whoever watches."""

from __future__ import annotations

import pytest
import torch
import warp as wp
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
from support import close, inductor, leaf
from warpops import ArgumentError, warp_op
from warpops.private.short import FAST

pytestmark = pytest.mark.skipif(not FAST, reason="no launch is remembered with WARPOPS_FAST=0")


@wp.kernel
def blend(x: wp.array[float], w: wp.array[float], count: int, s: wp.int8, y: wp.array[float]):
    i = wp.tid()
    if i < count:
        y[i] = x[i] * x[i] * w[i] * float(s)


blend_op = warp_op(blend, "x[n], w[n] -> y[n]", dim="count")


def raw(op, suffix):
    """One of the raw operators over given buffers."""
    namespace, name = op.name.split("::")
    return getattr(getattr(getattr(torch.ops, namespace), name + suffix), op.overload._overloadname)


def forward(x, w, count, s):
    y = torch.full_like(x, float("nan"))
    raw(blend_op, "_fwd_")(x, w, count, s, y)
    return y


def backward(x, w, count, s, cotangent, wanted=(True, True)):
    grads = [torch.full_like(x, float("nan")) if need else None for need in wanted]
    raw(blend_op, "_bwd_")(x, w, count, s, cotangent, *grads)
    return grads


@pytest.fixture
def remembered(launches):
    """Counts the launches that aren't remembered ones: ``[forward, adjoint]``."""
    x, w = torch.randn(5), torch.randn(5)
    for _ in range(2):
        forward(x, w, 5, 1)
        backward(x, w, 5, 1, torch.ones(5))
    launches[:] = [0, 0]
    return launches


def test_a_remembered_launch_computes_what_a_first_one_does(remembered):
    for s in (1, -3, 100):
        x, w, g = torch.randn(5), torch.randn(5), torch.randn(5)
        close(forward(x, w, 5, s), x * x * w * s)
        got = backward(x, w, 5, s, g.clone())
        close(got[0], 2 * x * w * s * g)
        close(got[1], x * x * s * g)
    assert remembered == [0, 0], "a launch was made the long way"


@pytest.mark.parametrize("change", ["size", "strides", "count", "dtype", "number"])
def test_what_a_launch_takes_for_granted_is_compared(change):
    x, w = torch.randn(6), torch.randn(6)
    for _ in range(2):
        close(forward(x, w, 6, 2), x * x * w * 2)
    if change == "size":
        close(forward(x[:4].clone(), w[:4].clone(), 4, 2), (x * x * w * 2)[:4])
    elif change == "strides":
        wide = torch.randn(12)
        close(forward(wide[::2], w, 6, 2), wide[::2] ** 2 * w * 2)
    elif change == "count":
        y = forward(x, w, 3, 2)
        close(y[:3], (x * x * w * 2)[:3])
        assert bool(y[3:].isnan().all())
        with pytest.raises(ArgumentError):
            forward(x, w, 7, 2)
    elif change == "dtype":
        with pytest.raises(ArgumentError, match=r"expected dtype torch.float32 .* got torch.float64"):
            forward(x.double(), w, 6, 2)
    else:
        with pytest.raises(ArgumentError, match="argument 's'"):
            forward(x, w, 6, 128)


def test_gradients_that_are_wanted_are_compared():
    x, w, g = torch.randn(5), torch.randn(5), torch.randn(5)
    want = [2 * x * w * g, x * x * g]
    for wanted in ((True, True), (True, True), (True, False), (True, False), (False, True), (True, True)):
        got = backward(x, w, 5, 1, g.clone(), wanted)
        for grad, value, need in zip(got, want, wanted, strict=True):
            assert (grad is None) is not need
            if need:
                close(grad, value)


def test_launches_of_several_sizes_are_remembered(launches):
    """As a model calls one op on arrays of several sizes."""
    op = warp_op(blend, "x[n], w[n] -> y[n]", dim="count", name="test_recall::several")  # with nothing remembered yet
    sizes = (3, 4, 5)

    def run(n):
        x, w = leaf(torch.randn(n)), leaf(torch.randn(n))
        y = op(x, w, n, 1)
        close(y, x * x * w)
        y.backward(torch.ones(n))
        close(x.grad, 2 * x * w)
        buffer = torch.empty(n)
        raw(op, "_fwd_")(x.detach(), w.detach(), n, 2, buffer)
        close(buffer, x * x * w * 2)

    for n in sizes:
        for _ in range(2):
            run(n)
    launches[:] = [0, 0]
    for n in sizes * 5:
        run(n)
    assert launches == [0, 0]


class Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_a_remembered_launch(remembered):
    x, w = torch.randn(5), torch.randn(5)
    with Watch() as watch:
        forward(x, w, 5, 1)
    assert any("blend_fwd_" in name for name in watch.seen)


def test_the_profiler_sees_a_remembered_launch(remembered):
    x, w = torch.randn(5), torch.randn(5)
    with torch.profiler.profile() as profile:
        forward(x, w, 5, 1)
    assert any("blend_fwd_" in event.key for event in profile.key_averages())


@pytest.mark.slow
def test_compiled_sizes_that_change_back_and_forth():
    function = inductor(lambda x, w: kernels.product_op(x, w), dynamic=True)
    for n in (5, 5, 5, 7, 5, 7, 7, 7, 3, 5):
        x, w = leaf(torch.randn(n)), leaf(torch.randn(n))
        y = function(x, w)
        close(y, x * x * w)
        y.sum().backward()
        close(x.grad, 2 * x * w)
        close(w.grad, x * x)


def test_the_shorter_way_keeps_an_operator_s_identity():
    """Operators are keys of PyTorch's tables: one must hash as before, and be found under its name."""
    op = raw(blend_op, "_fwd_")
    assert op is raw(blend_op, "_fwd_")
    assert hash(op) == hash(op._op)
    assert {op: 1}[raw(blend_op, "_fwd_")] == 1
    assert str(op).startswith("test_recall.blend_fwd_.")
