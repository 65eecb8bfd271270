"""What only a CUDA device shows: streams, graphs, devices. The rest of the suite runs on the CPU."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
import warp as wp

import kernels
from kinds import KINDS, rows
from support import check_against, close, compiled, inductor, leaf, values_and_grads
from warpops import ArgumentError, warp_op

pytestmark = pytest.mark.gpu


@wp.kernel
def slow(x: wp.array[float], turns: int, y: wp.array[float]):
    i = wp.tid()
    v = x[i]
    for _ in range(turns):
        v = wp.sin(v) + x[i]
    y[i] = v


@wp.kernel
def ramp(n: int, y: wp.array[float]):
    i = wp.tid()
    y[i] = float(i)


@wp.kernel
def tile_sum(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    tile = wp.tile_load(x[i], shape=64)
    wp.tile_store(y, wp.tile_sum(tile * tile), offset=i)


slow_op = warp_op(slow, "x[n] -> y[n]", dim="n", nondiff="x")
ramp_op = warp_op(ramp, "-> y[n]", dim="n")
tile_op = warp_op(tile_sum, "x[n, 64] -> y[n]", dim="n", tiled=True, block_dim=64)


def cuda(*shape):
    return torch.randn(*shape, device="cuda")


def on_cuda(value):
    return value.cuda() if isinstance(value, torch.Tensor) and value.ndim else value


@pytest.mark.parametrize("name", rows("cuda"))
@pytest.mark.parametrize("run", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_values_and_gradients(name, run):
    kind = KINDS[name]
    given = [on_cuda(value) for value in kind.draw()]
    replace(kind, accuracy=10 * kind.accuracy).agree(run(kind.call), given)


def test_more_threads_than_a_block(mode):
    for op, reference, given in (
        (kernels.product_op, kernels.product_, (cuda(1000), cuda(1000))),
        (kernels.gauss_op, kernels.gauss_, (cuda(33), cuda(17))),
        (kernels.triple_op, kernels.triple_, (cuda(60, 20).t()[::2],)),
        (tile_op, lambda x: (x * x).sum(1), (cuda(9, 64),)),
    ):
        check_against(mode(op), reference, given, rtol=1e-3, atol=1e-4)


def test_inductor():
    check_against(
        inductor(lambda x, w: kernels.product_op(x * 2.0, w).sin()),
        lambda x, w: kernels.product_(x * 2.0, w).sin(),
        (cuda(100), cuda(100)),
        rtol=1e-3,
        atol=1e-4,
    )


# --- streams ----------------------------------------------------------------------------------------------------------


def test_work_is_ordered_on_a_side_stream(mode):
    """What comes before and after on the same stream is waited for; nothing is put on another one."""
    function = mode(lambda x: kernels.square_op(slow_op(x, 3000) * 1.0))
    x = torch.full((1 << 16,), 0.5, device="cuda")
    want = function(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(5):
            y = torch.zeros_like(x)
            y.copy_(x)
            got = function(y) + 0.0
    stream.synchronize()
    close(got, want)


def test_nothing_waits_for_the_default_stream():
    """A launch on a side stream isn't ordered behind work on the default stream, or on Warp's own."""
    x = torch.full((1 << 20,), 0.5, device="cuda")
    kernels.square_op(slow_op(x, 10))
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    slow_op(x, 200_000)
    done = torch.cuda.Event()
    with torch.cuda.stream(side):
        kernels.square_op(x[:4])
        done.record()
    done.synchronize()
    assert not torch.cuda.default_stream().query(), "the default stream's work was waited for"
    torch.cuda.synchronize()


def test_backward_runs_on_the_stream_of_forward():
    x = leaf(torch.full((1 << 16,), 0.5, device="cuda"))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = kernels.square_op(x * 1.0)
    torch.cuda.current_stream().wait_stream(stream)
    y.sum().backward()
    torch.cuda.synchronize()
    close(x.grad, 2 * x.detach())


def test_threads_have_streams_of_their_own():
    failures = []

    def run(seed):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(50):
                    x = torch.full((1000,), float(seed), device="cuda")
                    got = kernels.square_op(x) * 1.0
                    stream.synchronize()
                    assert bool((got == seed * seed).all())
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_warp_s_own_stream_stays_what_it_was():
    device = wp.get_device("cuda:0")
    before = device.stream.cuda_stream
    with torch.cuda.stream(torch.cuda.Stream()):
        kernels.square_op(cuda(4))
    assert device.stream.cuda_stream == before


# --- graphs -----------------------------------------------------------------------------------------------------------


def warm(function, times=3):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(times):
            function()
    torch.cuda.current_stream().wait_stream(stream)


def test_a_captured_graph_computes_again():
    x, w = cuda(100), cuda(100)
    warm(lambda: kernels.product_op(x, w))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = kernels.product_op(x, w)
    for _ in range(3):
        x.copy_(cuda(100))
        graph.replay()
        close(y, x * x * w)


def test_a_captured_training_step():
    x, w = cuda(100), leaf(cuda(100))

    def step():
        w.grad = None
        kernels.product_op(x, w).sum().backward()

    warm(step)
    graph = torch.cuda.CUDAGraph()
    w.grad = None
    with torch.cuda.graph(graph):
        kernels.product_op(x, w).sum().backward()
    for _ in range(3):
        x.copy_(cuda(100))
        graph.replay()
        close(w.grad, x * x)


def test_reduce_overhead():
    function = torch.compile(lambda x, w: kernels.product_op(x, w) + 1.0, fullgraph=True, mode="reduce-overhead")
    for _ in range(5):
        x, w = cuda(100), leaf(cuda(100))
        torch.compiler.cudagraph_mark_step_begin()
        y = function(x, w)
        y.sum().backward()
        close(y.detach(), (x * x * w + 1.0).detach())
        close(w.grad, x * x)


def test_an_op_without_tensors_is_captured():
    warm(lambda: ramp_op(100, device="cuda"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ramp_op(100, device="cuda") * 2.0
    y.zero_()
    graph.replay()
    close(y, 2.0 * torch.arange(100.0, device="cuda"))


# --- devices ----------------------------------------------------------------------------------------------------------


def test_mixed_devices_are_refused(mode):
    with pytest.raises(Exception, match="argument 'w': expected device cuda:0, that of 'x', got cpu") as caught:
        mode(kernels.product_op)(cuda(4), torch.randn(4))
    if mode.__name__ == "eager":
        assert isinstance(caught.value, ArgumentError)


def test_results_live_where_the_tensors_do():
    last = torch.device("cuda", torch.cuda.device_count() - 1)
    arguments = (torch.randn(4, device=last), torch.randn(4, device=last))
    results, grads = values_and_grads(kernels.product_op, arguments)
    assert {t.device for t in (*results, *grads)} == {last}
    assert kernels.square_op(torch.ones(2)).device.type == "cpu"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_the_current_device_is_not_asked():
    with torch.cuda.device(0):
        x = leaf(torch.randn(4, device="cuda:1"))
        kernels.square_op(x).sum().backward()
        assert torch.cuda.current_device() == 0
    close(x.grad, 2 * x.detach())


def test_an_op_without_tensors():
    assert ramp_op(3, device="cuda").device.type == "cuda"
    assert ramp_op(3).device.type == "cpu"
    with torch.device("cuda"):
        assert ramp_op(3).device.type == "cuda"


def test_memory_comes_from_pytorch():
    x = cuda(1 << 20)
    kernels.square_op(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = kernels.square_op(x)
    assert torch.cuda.memory_allocated() - before == y.numel() * 4


def test_autocast():
    x, w = leaf(cuda(4).half()), leaf(cuda(4))
    with torch.autocast("cuda", dtype=torch.float16):
        y = kernels.product_op(x, w)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad.dtype == torch.float16


def test_a_gradient_needs_no_wait():
    """Nothing in a call or its backward waits for the device."""
    x, w = leaf(cuda(100)), leaf(cuda(100))
    kernels.product_op(x, w).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        kernels.product_op(x, w).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
