"""What is asked of a CUDA device, shown without one: a stand-in records what reaches the driver.

``test_gpu.py`` shows the same on a device, ``test_cuda_short.py`` the launches that are remembered.
"""

from __future__ import annotations

import struct
import threading
from types import SimpleNamespace

import pytest
import torch
import warp as wp

import kernels
from cuda_stand_in import StandIn
from warpops import WarpOpError
from warpops.kernel.signature import inspect_kernel
from warpops.launch import devices, native
from warpops.launch.launcher import Launcher
from warpops.launch.packing import argument_image
from warpops.private import torch_guards, torch_modes
from warpops.private.short import FAST


@wp.kernel
def scale(x: wp.array[float], factor: float, y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * factor


@wp.kernel
def tile_total(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    tile = wp.tile_load(x[i], shape=64)
    wp.tile_store(y, wp.tile_sum(tile), offset=i)


@pytest.fixture
def cuda():
    with StandIn(execute=False) as found:
        yield found


def make_launcher(kernel=scale, tiled=False, block_dim=None):
    return Launcher(inspect_kernel(kernel), block_dim, tiled)


ARGUMENTS = bytes(256)
FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


def forward(launcher, device, dims=(4,)):
    launcher.forward(device, dims, ARGUMENTS[: launcher.layout.size])


def adjoint(launcher, device, dims=(4,)):
    packed = ARGUMENTS[: launcher.layout.size]
    launcher.adjoint(device, dims, packed, packed)


def streams(cuda):
    return [launched.stream for launched in cuda.launched]


# --- streams ----------------------------------------------------------------------------------------------------------


def test_the_current_stream_is_asked_for_at_each_call(cuda):
    launcher = make_launcher()
    for handle in (0, 17, 23, 17):
        cuda.use_stream(0, handle)
        forward(launcher, FIRST)
    assert streams(cuda) == [0, 17, 23, 17]
    assert cuda.made == [(0, 0), (0, 17), (0, 23)], "one wrapper for each handle"


def test_the_adjoint_asks_for_the_stream_of_its_own_thread(cuda):
    """Autograd runs backward in a thread of its own, and makes forward's stream current there."""
    launcher = make_launcher()
    cuda.use_stream(0, 17)
    forward(launcher, FIRST)

    def backward():
        cuda.use_stream(0, 23)
        adjoint(launcher, FIRST)

    thread = threading.Thread(target=backward)
    thread.start()
    thread.join()
    first, second = cuda.launched
    assert (first.stream, second.stream) == (17, 23)
    assert first.thread != second.thread
    assert (first.adjoint, second.adjoint) == (False, True)


def test_a_stream_belongs_to_its_device(cuda):
    """Handles of two devices may be equal, as those of the default streams are."""
    launcher = make_launcher()
    for device in (FIRST, SECOND):
        forward(launcher, device)
    assert [launched.device for launched in cuda.launched] == [0, 1]
    assert cuda.made == [(0, 0), (1, 0)]


def test_threads_launch_on_their_own_streams(cuda):
    launcher = make_launcher()
    forward(launcher, FIRST)
    barrier = threading.Barrier(4)
    wanted = {}

    def run(handle):
        cuda.use_stream(0, handle)
        wanted[threading.get_ident()] = handle
        barrier.wait()
        for _ in range(20):
            forward(launcher, FIRST)

    threads = [threading.Thread(target=run, args=(handle,)) for handle in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cuda.launched) == 81
    assert all(launched.stream == wanted[launched.thread] for launched in cuda.launched[1:])


def test_a_pytorch_without_the_raw_handle_is_asked_for_its_stream(cuda, monkeypatch):
    monkeypatch.setattr(torch_modes, "raw_stream", None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=40 + device.index))
    launcher = make_launcher()
    for device in (FIRST, SECOND):
        forward(launcher, device)
    assert streams(cuda) == [40, 41]


# --- devices ----------------------------------------------------------------------------------------------------------


def test_the_device_is_that_of_the_tensors(cuda):
    launcher = make_launcher()
    cuda.current = 0
    forward(launcher, SECOND)
    assert cuda.launched[0].device == 1
    assert cuda.made == [(1, 0)]


def test_a_device_without_a_number_is_the_current_one(cuda):
    launcher = make_launcher()
    for current in (1, 0):
        cuda.current = current
        forward(launcher, torch.device("cuda"))
    assert [launched.device for launched in cuda.launched] == [1, 0]
    assert cuda.made == [(1, 0), (0, 0)]


def test_a_kernel_is_loaded_once_on_each_device(cuda):
    launcher = make_launcher()
    for device in (FIRST, SECOND, FIRST):
        forward(launcher, device)
        adjoint(launcher, device)
    assert cuda.loaded == [0, 1]


def test_preload_loads_what_a_call_launches(cuda):
    launcher = make_launcher()
    launcher.preload(SECOND)
    assert not cuda.launched
    forward(launcher, SECOND)
    assert cuda.loaded == [1]


def test_memory_is_made_on_the_tensors_device(monkeypatch):
    """The short function allocates on the current device, which isn't asked where there is one only."""
    asked = []
    monkeypatch.setattr(torch_guards, "empty_strided_cuda", lambda *given: asked.append(given))
    monkeypatch.setattr(torch, "empty_strided", lambda *given, **options: asked.append((given, options["device"])))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    layout = (3, 2), (2, 1), torch.float32
    devices.allocator(SECOND)(*layout)
    devices.allocator(FIRST)(*layout)
    assert asked == [layout, (layout[:2], FIRST)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert devices.allocator(FIRST) is torch_guards.empty_strided_cuda


# --- the launch -------------------------------------------------------------------------------------------------------


def test_a_launch_is_told_to_no_tape(cuda):
    launcher = make_launcher()
    with wp.Tape() as tape:
        for _ in range(2):
            forward(launcher, FIRST)
            adjoint(launcher, FIRST)
    assert not tape.launches
    assert len(cuda.launched) == 4


def test_dims_and_blocks(cuda):
    forward(make_launcher(), FIRST, (3, 5))
    forward(make_launcher(), FIRST, ())
    forward(make_launcher(block_dim=32), FIRST)
    forward(make_launcher(tile_total, tiled=True), FIRST)
    forward(make_launcher(tile_total, tiled=True, block_dim=128), FIRST)
    forward(make_launcher(), FIRST, (0,))
    found = [(launched.threads, launched.block[1]) for launched in cuda.launched]
    assert found == [(15, 256), (1, 256), (4, 32), (4 * 64, 64), (4 * 128, 128)]
    bounds = [struct.unpack("=I4xQQ", launched.arguments[0]) for launched in cuda.launched]
    assert bounds == [(3, 15, 5), (1, 1, 1), (4, 4, 1), (4, 256, 64), (4, 512, 128)]


def test_sizes_that_change(cuda):
    launcher = make_launcher()
    for dims in ((4,), (7,), (4,), (0,), (2, 2), (4,)):
        forward(launcher, FIRST, dims)
    bounds = [struct.unpack("=I4xQQ", launched.arguments[0]) for launched in cuda.launched]
    assert bounds == [(4, 4, 1), (7, 7, 1), (4, 4, 1), (2, 4, 2), (4, 4, 1)]


def test_arguments_arrive_as_they_were_packed(cuda):
    """Pointers, sizes and numbers; nothing is copied, and no ``wp.array`` is made."""
    launcher = make_launcher()
    pack = launcher.layout.packer()
    for start in (11, 66):
        arguments = pack(start, start + 1, 6, 8, 1, 0, start + 0.5, start + 2, 0, 6, 4, 1, 0)
        adjoints = pack(start + 3, 0, 6, 4, 1, 0, 0.0, start + 4, 0, 6, 4, 1, 0)
        launcher.adjoint(FIRST, (6,), arguments, adjoints)
        given = cuda.launched[-1].arguments[1:]
        size = launcher.layout.size
        assert b"".join((*given[:1], given[1].ljust(8, b"\0"), given[2])) == arguments
        assert b"".join((*given[3:4], given[4].ljust(8, b"\0"), given[5])) == adjoints
        assert len(arguments) == size


# --- capture ----------------------------------------------------------------------------------------------------------


def test_a_loaded_kernel_is_captured(cuda):
    launcher = make_launcher()
    launcher.preload(FIRST)
    cuda.capturing = True
    cuda.use_stream(0, 99)
    forward(launcher, FIRST)
    adjoint(launcher, FIRST)
    assert streams(cuda) == [99, 99]


def test_a_kernel_is_not_loaded_in_a_capture(cuda):
    launcher = make_launcher()
    cuda.capturing = True
    with pytest.raises(WarpOpError) as caught:
        forward(launcher, FIRST)
    assert str(caught.value) == (
        "scale: the kernel isn't loaded on cuda:0 yet, and can't be while a CUDA graph is captured; call "
        "op.preload('cuda:0'), or the op itself, before the capture"
    )
    assert not cuda.loaded
    assert not cuda.launched
    cuda.capturing = False
    forward(launcher, FIRST)
    assert len(cuda.launched) == 1


def test_the_cpu_asks_nothing_of_cuda(monkeypatch):
    def forbidden(*args):
        raise AssertionError("a CPU launch asked CUDA")

    for name in ("current_stream", "current_device", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, forbidden)
    monkeypatch.setattr(torch_modes, "raw_stream", forbidden)
    x = torch.ones(3, requires_grad=True)
    for _ in range(3):
        x.grad = None
        kernels.square_op(x).sum().backward()
        assert x.grad.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.skipif(not FAST, reason="no launch is remembered with WARPOPS_FAST=0")
@pytest.mark.parametrize("way", ["native", "by hand"])
def test_remembered_launches_of_two_devices(way, cuda, monkeypatch):
    if way == "by hand":
        monkeypatch.setattr(native, "_made", None)
        monkeypatch.setattr(native, "_failed", True)
    launcher = make_launcher(kernels.square)
    packed, image = bytes(launcher.layout.size), argument_image(launcher.parts, (bytes(56),) * 2)
    for ordinal in (0, 1, 0, 1):
        device = torch.device("cuda", ordinal)
        cuda.use_stream(ordinal, 10 + ordinal)
        launcher.forward(device, (4,), packed)
        launch, start, *_ = launcher.remembered(device, (4,), image)
        launch((None, None), start)
    assert [(one.device, one.stream) for one in cuda.launched] == [(0, 10), (0, 10), (1, 11), (1, 11)] * 2
    assert launcher.recall(torch.device("cuda", 2), (4,), image) is None
