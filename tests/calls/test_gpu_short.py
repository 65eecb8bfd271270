"""The short way on a CUDA device: it is taken, and computes what ``wp.launch`` does.

``test_cuda_short.py`` shows the rest, without a device.
"""

from __future__ import annotations

import pytest
import torch
import warp as wp

import kernels
from support import close, leaf
from warpops import warp_op
from warpops.launch import cuda, native
from warpops.private.short import FAST

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not FAST, reason="no launch is remembered with WARPOPS_FAST=0"),
]


@pytest.fixture(params=["native", "by hand"])
def way(request, monkeypatch):
    if request.param == "by hand":
        monkeypatch.setattr(native, "_made", None)
        monkeypatch.setattr(native, "_failed", True)
    return request.param


@pytest.fixture
def op(way, launches):
    """A product whose launches over 100 elements are remembered."""
    made = warp_op(kernels.product_op.kernel, name=f"test_gpu_short::{way.replace(' ', '_')}")
    for _ in range(4):
        step(made)
        made(torch.ones(100, device="cuda"), torch.ones(100, device="cuda"))
    launches[:] = [0, 0]
    return made


def step(op, n=100):
    x, w = leaf(torch.randn(n, device="cuda")), leaf(torch.randn(n, device="cuda"))
    y = op(x, w)
    close(y, x * x * w)
    y.sum().backward()
    close(x.grad, 2 * x.detach() * w.detach())
    close(w.grad, x.detach() ** 2)


def test_it_is_trusted_and_taken(op, way, launches):
    device = torch.cuda.current_device()
    assert cuda._trusted[device, way == "native"], "the check failed, and a warning said why"
    for _ in range(5):
        step(op)
    assert launches == [0, 0], "a launch was made the long way"


def test_sizes_change(op):
    for n in (100, 3, 1000, 100, 0, 3):
        step(op, n)


def test_it_is_ordered_on_a_side_stream(op, launches):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for turn in range(20):
            x = torch.full((100,), float(turn), device="cuda")
            close(op(x, x) * 1.0, x**3)
    assert launches == [0, 0]


def test_it_is_captured(op, launches):
    x, w = torch.randn(100, device="cuda"), leaf(torch.randn(100, device="cuda"))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(4):
            w.grad = None
            op(x, w).sum().backward()
    torch.cuda.current_stream().wait_stream(stream)
    launches[:] = [0, 0]
    graph = torch.cuda.CUDAGraph()
    w.grad = None
    with torch.cuda.graph(graph):
        y = op(x, w)
        y.sum().backward()
    assert launches == [0, 0]
    for _ in range(3):
        x.copy_(torch.randn(100, device="cuda"))
        graph.replay()
        close(y.detach(), (x * x * w).detach())
        close(w.grad, x * x)


def test_arrays_change_in_place(way, launches):
    op = kernels.step_op
    for turn in range(6):
        x, v = torch.ones(50, device="cuda"), torch.full((50,), 2.0, device="cuda")
        launches[:] = [0, 0]
        op(x, v, float(turn))
        close(x, torch.full_like(x, 1.0 + 2.0 * turn))


def test_a_kernel_that_is_built_again(way):
    """The code of a remembered launch was replaced."""
    module = wp.get_module(f"test_gpu_short_{way.replace(' ', '_')}")

    @wp.kernel(module=module)
    def double(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = 2.0 * x[i]

    op = warp_op(double, name=f"test_gpu_short::double_{way.replace(' ', '_')}")
    x = torch.ones(5, device="cuda")
    for _ in range(4):
        close(op(x), 2.0 * x)

    @wp.kernel(module=module)
    def another(x: wp.array[float]):
        x[wp.tid()] = 1.0

    for _ in range(4):
        close(op(x), 2.0 * x)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_memory_and_launch_are_on_the_tensors_device(op):
    last = torch.device("cuda", torch.cuda.device_count() - 1)
    for _ in range(5):
        x = torch.randn(100, device=last)
        y = op(x, x)
        assert y.device == last
        close(y, x**3)
        assert torch.cuda.current_device() == 0
