"""Launches that are remembered on CUDA, shown against a stand-in for the driver: what it gets is what ``wp.launch`` hands it.

The stand-in also runs the kernels, so values and gradients are compared as well. ``test_gpu.py`` shows it on a device.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import warnings
import weakref

import pytest
import torch
import warp as wp
import warp._src.context as context

from cuda_stand_in import StandIn
from support import close, inductor
from warpops import warp_op
from warpops.launch import cuda as launch_cuda
from warpops.launch import cuda_check, native
from warpops.private import torch_modes, warp_launch
from warpops.private.short import FAST

pytestmark = pytest.mark.skipif(not FAST, reason="no launch is remembered with WARPOPS_FAST=0")


@wp.struct
class Weights:
    gain: float
    per_row: wp.array[wp.vec2]


@wp.kernel
def everything(
    small: wp.int8,
    x: wp.array2d[float],
    weights: Weights,
    half: wp.float16,
    turn: wp.quat,
    big: wp.int64,
    on: wp.bool,
    y: wp.array[float],
    z: wp.array2d[wp.float64],
):
    i, j = wp.tid()
    if on:
        z[i, j] = wp.float64(x[i, j] * weights.gain * weights.per_row[i][1] * float(half) * turn[3])
        y[j] = float(small) + float(big & wp.int64(7))


@wp.kernel
def product(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * w[i]


@wp.kernel(launch_bounds=64, module="unique")
def bounded(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] + 1.0


@wp.kernel(module="unique")
def tile_squares(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    tile = wp.tile_load(x[i], shape=64)
    wp.tile_store(y, wp.tile_sum(tile * tile), offset=i)


@wp.kernel
def push(x: wp.array[float], v: wp.array[float]):
    i = wp.tid()
    x[i] = x[i] + v[i]


@pytest.fixture(params=["native", "by hand"])
def way(request, monkeypatch):
    if request.param == "by hand":
        monkeypatch.setattr(native, "_made", None)
        monkeypatch.setattr(native, "_failed", True)
    return request.param


@pytest.fixture
def cuda(way):
    with StandIn() as found:
        yield found


def everything_op():
    return warp_op(everything, "x[n, m], weights.per_row[n] -> y[m], z[n, m]", dim="n, m", init="zeros")


def everything_given(n):
    per_row = torch.randn(n, 2)
    weights = {"gain": 1.5, "per_row": per_row}
    return (-3, torch.randn(4, n).t(), weights, 0.25, (0.1, 0.2, 0.3, 0.9), -(2**40) + 5, True)


CASES = {
    "everything": (everything_op, lambda: everything_given(3)),
    "two inputs": (lambda: warp_op(product), lambda: (torch.randn(12)[::3], torch.randn(4))),
    "a block of its own": (lambda: warp_op(product, block_dim=64), lambda: (torch.randn(300), torch.randn(300))),
    "launch bounds": (lambda: warp_op(bounded, block_dim=64), lambda: (torch.randn(5),)),
    "tiles": (
        lambda: warp_op(tile_squares, "x[n, 64] -> y[n]", dim="n", tiled=True, block_dim=32),
        lambda: (torch.randn(3, 64),),
    ),
}


def raw(op, suffix):
    namespace, name = op.name.split("::")
    return getattr(getattr(getattr(torch.ops, namespace), name + suffix), op.overload._overloadname)


def flat(given):
    """The values of the schema: a struct's fields one by one."""
    return [part for value in given for part in (value.values() if isinstance(value, dict) else (value,))]


@pytest.mark.parametrize("case", CASES)
def test_the_driver_gets_what_wp_launch_hands_it(case, way, launches, monkeypatch):
    """Function, grid, block, shared memory, stream, every byte: by ``wp.launch``, by one that is filled anew, remembered."""
    make, give = CASES[case]
    op, given = make(), flat(give())
    plan = op._plan
    with StandIn(execute=False) as cuda:
        cuda.use_stream(0, 77)
        results = op.overload(*given)
        results = results if isinstance(results, tuple) else (results,)
        buffers = [torch.empty_like(result) for result in results]
        cotangents = [torch.ones_like(result) for result in results]
        gradients = [torch.empty_like(given[plan.inputs.index(slot)]) for slot in plan.gradients]

        def launch():
            cuda.launched.clear()
            launches[:] = [0, 0]
            raw(op, "_fwd_")(*given, *buffers)
            raw(op, "_bwd_")(*given, *cotangents, *gradients)
            return list(cuda.launched), tuple(launches)

        with monkeypatch.context() as patched:
            patched.setattr(warp_launch, "followed", lambda: True)
            by_warp, counts = launch()
            assert counts == (1, 1)
        with monkeypatch.context() as patched:
            patched.setattr(launch_cuda, "trusted", lambda *given: False)
            for _ in range(2):
                refilled, counts = launch()
                assert counts == (1, 1)
        monkeypatch.setattr(launch_cuda, "trusted", lambda *given: True)
        for _ in range(8):
            remembered, counts = launch()
        assert counts == (0, 0), "a launch was made the long way"
    assert [launched.adjoint for launched in by_warp] == [False, True]
    assert {launched.stream for launched in by_warp} == {77}
    assert refilled == by_warp
    assert remembered == by_warp


def test_values_and_gradients(cuda, launches):
    op = everything_op()
    for turn in range(4):
        small, x, weights, half, turning, big, on = everything_given(3)
        x.requires_grad_()
        weights["per_row"].requires_grad_()
        launches[:] = [0, 0]
        y, z = op(small, x, weights, half, turning, big, on)
        want = (x * weights["gain"] * weights["per_row"][:, 1:] * half * turning[3]).double()
        close(z, want)
        close(y, torch.full((4,), float(small + (big & 7))))
        inputs, cotangent = (x, weights["per_row"]), torch.randn(3, 4, dtype=torch.float64)
        got = torch.autograd.grad((y, z), inputs, (torch.ones(4), cotangent))
        close(got, torch.autograd.grad(want, inputs, cotangent))
        assert launches == ([0, 0] if turn > 1 else launches)
    assert all(launched.device == 0 for launched in cuda.launched)


def test_what_is_mutated(cuda, launches):
    op = warp_op(push, "x[n], v[n]", dim="n", mutates="x")
    for _ in range(3):
        x, v = torch.randn(4), torch.randn(4)
        want = x + v
        launches[:] = [0, 0]
        op(x, v)
        close(x, want)
    assert launches == [0, 0]


@pytest.mark.slow
def test_compiled(cuda):
    op = warp_op(product)
    function = inductor(lambda x, w: op(x, w) * 2.0)
    for _ in range(4):
        x, w = torch.randn(6, requires_grad=True), torch.randn(6, requires_grad=True)
        y = function(x, w)
        close(y, 2 * x * w)
        y.sum().backward()
        close(x.grad, 2 * w.detach())


# --- the moment's stream ----------------------------------------------------------------------------------------------


@pytest.fixture
def op(cuda, launches):
    """A product whose forward and backward over 4 elements are remembered."""
    made = warp_op(product)
    for _ in range(3):
        run(made)
        made(torch.ones(4), torch.ones(4))
    launches[:] = [0, 0]
    cuda.launched.clear()
    return made


def run(op, n=4):
    x, w = torch.randn(n, requires_grad=True), torch.randn(n)
    y = op(x, w)
    close(y, x * w)
    y.backward(torch.ones(n))
    close(x.grad, w)


def test_the_current_stream_is_asked_for_at_each_launch(op, cuda, launches):
    for handle in (0, 17, 2**40, 17):
        cuda.use_stream(0, handle)
        run(op)
    assert launches == [0, 0]
    assert [launched.stream for launched in cuda.launched] == [0, 0, 17, 17, 2**40, 2**40, 17, 17]


def test_threads_have_their_own(op, cuda, launches):
    wanted, failures, barrier = {}, [], threading.Barrier(4)

    def work(handle):
        try:
            cuda.use_stream(0, handle)
            wanted[threading.get_ident()] = handle
            barrier.wait()
            for _ in range(20):
                x, w = torch.randn(4), torch.randn(4)
                close(op(x, w), x * w)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(handle,)) for handle in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert launches[0] == 0
    assert all(launched.stream == wanted[launched.thread] for launched in cuda.launched)


def test_a_stream_that_cannot_be_told_is_an_error(way, monkeypatch):
    """The native function asks Python for it, and hands on what that raises."""
    asked = []

    def stream(ordinal):
        asked.append(ordinal)
        if len(asked) > 50:
            raise RuntimeError("no stream")
        return 5

    with StandIn() as cuda:
        cuda.patch(torch_modes, "raw_stream", stream)
        op = warp_op(product)
        for _ in range(4):
            run(op)
        asked.extend(range(50))
        with pytest.raises(RuntimeError, match="no stream"):
            op(torch.ones(4), torch.ones(4))
    assert cuda.launched


# --- capture ----------------------------------------------------------------------------------------------------------


def test_a_remembered_launch_is_captured(op, cuda, launches):
    cuda.capturing = True
    cuda.use_stream(0, 99)
    run(op)
    run(op)
    assert launches == [0, 0]
    assert [launched.stream for launched in cuda.launched] == [99] * 4


def test_nothing_is_tried_in_a_capture(cuda, launches):
    op = warp_op(product)
    run(op, 4)
    launch_cuda._trusted.clear()
    op = warp_op(product, name="test_cuda_short::captured")
    op.preload("cpu")
    cuda.capturing = True
    for _ in range(3):
        run(op)
    assert launches[0] >= 4
    assert not launch_cuda._trusted
    assert "mixed" not in {launched.kernel for launched in cuda.launched[-6:]}
    cuda.capturing = False
    for _ in range(12):
        launches[:] = [0, 0]
        run(op)
    assert launches == [0, 0]


def test_a_graph_that_warp_captures_keeps_hold_of_the_code(op, cuda, launches, monkeypatch):
    """``wp.launch`` notes the code of each launch with such a graph, so launches go that way."""
    captures = warp_launch.graphs_in_capture()
    monkeypatch.setitem(captures, 1, object())
    run(op)
    assert launches == [1, 1]
    monkeypatch.undo()
    launches[:] = [0, 0]
    run(op)
    assert launches == [0, 0], "the launch was forgotten"


# --- the check --------------------------------------------------------------------------------------------------------


def test_a_kernel_is_launched_publicly_first(cuda):
    op = warp_op(product)
    for _ in range(3):  # the second is remembered, for which the device is tried
        op(torch.ones(4), torch.ones(4))
    assert [launched.kernel for launched in cuda.launched] == [*["product"] * 2, *["mixed"] * 4, "product"]
    assert launch_cuda._trusted == {(0, native.ready() is not None): True}
    other = warp_op(product, name="test_cuda_short::second")
    for _ in range(3):
        other(torch.ones(4), torch.ones(4))
    assert [launched.kernel for launched in cuda.launched].count("mixed") == 4, "a device is tried once"


def test_the_native_function_is_tried_by_itself(monkeypatch):
    function = native.ready()
    monkeypatch.setattr(native, "_made", None)
    monkeypatch.setattr(native, "_waited", 0)
    monkeypatch.setattr(native, "AFTER", 3)
    monkeypatch.setattr(native, "_build", lambda: function)
    with StandIn() as cuda:
        op = warp_op(product)
        for _ in range(12):
            run(op)
        assert launch_cuda._trusted == {(0, False): True, (0, True): True}
        assert [launched.kernel for launched in cuda.launched].count("mixed") == 8


def wrong_result(monkeypatch, cuda):
    launch = cuda_check._launch_short

    def swapped(launcher, device, dims, image, tensors, numbers):
        x, weight, y, *adjoints = tensors
        launch(launcher, device, dims, image, (x, y, weight, *adjoints), numbers)

    monkeypatch.setattr(cuda_check, "_launch_short", swapped)


def nothing_launched(monkeypatch, cuda):
    monkeypatch.setattr(cuda_check, "_launch_short", lambda *given: None)


def other_entry(monkeypatch, cuda):
    monkeypatch.setattr(warp_launch, "_ENTRY", [ctypes.c_void_p] * 9)


def other_hooks(monkeypatch, cuda):
    monkeypatch.setattr(warp_launch, "driver", lambda *given: given[1].no_such_attribute)


@pytest.mark.parametrize("fault", [wrong_result, nothing_launched, other_entry, other_hooks])
def test_whatever_fails_leaves_the_public_way(fault, way, monkeypatch, launches):
    with StandIn() as cuda:
        op = warp_op(product)
        fault(monkeypatch, cuda)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for turn in range(8):
                launches[:] = [0, 0]
                run(op)
                assert launches[0] >= 1, turn
        (warning,) = caught
        assert warning.category is RuntimeWarning
        text = str(warning.message)
        assert "go through wp.launch" in text
        assert torch.__version__ in text and wp.config.version in text
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(warp_op(product, name="test_cuda_short::after"), 5)


def test_without_the_raw_stream_nothing_is_tried(cuda, monkeypatch, launches):
    cuda.patch(torch_modes, "raw_stream", None)
    monkeypatch.setattr(
        "warpops.launch.devices.current_stream", lambda device, warp_device: wp.Stream(warp_device, cuda_stream=3)
    )
    op = warp_op(product)
    for _ in range(4):
        launches[:] = [0, 0]
        run(op)
        assert launches == [1, 1]
    assert not launch_cuda._trusted


def test_the_check_may_wait_whatever_the_user_forbids(monkeypatch):
    modes = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with StandIn():
        op = warp_op(product)
        for _ in range(3):
            run(op)
    assert modes == [0, 2]


# --- faults and changes -----------------------------------------------------------------------------------------------


def test_a_launch_that_fails(op, cuda, launches, monkeypatch):
    monkeypatch.setattr(type(context.runtime), "get_error_string", lambda self: "out of luck")
    cuda.failing = 700
    with pytest.raises(RuntimeError, match="Error launching kernel: product on device cuda:0: out of luck"):
        op(torch.ones(4), torch.ones(4))
    cuda.failing = 0
    run(op)
    assert launches == [0, 0]


@pytest.mark.parametrize("option", ["verify_cuda", "print_launches"])
def test_launches_that_warp_follows(option, cuda, launches, monkeypatch):
    monkeypatch.setattr(wp.config, option, True)
    op = warp_op(product)
    for _ in range(3):
        launches[:] = [0, 0]
        run(op)
        assert launches == [1, 1]


def test_a_kernel_that_is_built_again(way, cuda, launches):
    """The code that a remembered launch is of was replaced: it is looked up again."""
    module = wp.get_module(f"test_cuda_short_{way.replace(' ', '_')}")

    @wp.kernel(module=module)
    def double(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = 2.0 * x[i]

    op = warp_op(double)
    for turn in range(2):
        for _ in range(3):
            launches[:] = [0, 0]
            close(op(torch.ones(3)), torch.full((3,), 2.0))
        assert launches == [0, 0]
        loaded = len(cuda.loaded)
        if turn == 0:

            @wp.kernel(module=module)
            def another(x: wp.array[float]):
                x[wp.tid()] = 1.0

            close(op(torch.ones(3)), torch.full((3,), 2.0))
            assert len(cuda.loaded) > loaded, "the old code was launched"


@pytest.mark.usefixtures("only_new")
def test_nothing_is_held(op):
    x, w = torch.randn(4), torch.randn(4)
    y = op(x, w)
    seen = [weakref.ref(tensor) for tensor in (x, w, y)]
    del x, w, y
    gc.collect()
    assert [one() for one in seen] == [None] * 3


def test_sizes_that_keep_changing_hold_nothing(cuda):
    cuda.execute = False
    op = warp_op(product)
    place = None
    for n in range(1, 5000):
        op(torch.empty(n), torch.empty(n))
    place = op._instances.only.launcher._places[torch.device("cpu")]
    assert len(place.bounds) <= 4096
    assert [len(idle) for idle in place.idle] == [1, 0]
