"""What is asked of a CUDA device, shown without one: a stand-in for PyTorch's and Warp's calls records them.

``test_gpu.py`` shows the same on a device.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
import warp as wp

import kernels
from warpops import WarpOpError, _warp, devices
from warpops.kernel import inspect_kernel
from warpops.launch import Launcher


@wp.kernel
def scale(x: wp.array[float], factor: float, y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * factor


@wp.kernel
def tile_total(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    tile = wp.tile_load(x[i], shape=64)
    wp.tile_store(y, wp.tile_sum(tile), offset=i)


class StandIn:
    """Two CUDA devices that run nothing: PyTorch's streams, Warp's devices and launches, and a record of what was asked."""

    def __init__(self, monkeypatch):
        self.launches: list[dict] = []
        self.streams: dict[tuple[int, int], int] = {}
        self.current = 0
        self.capturing = False
        self.made: list[tuple[int, int]] = []
        self.loaded: list[tuple[str, int]] = []
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "current_stream", self.current_stream)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        for name in ("synchronize", "set_device", "set_stream", "stream"):
            monkeypatch.setattr(torch.cuda, name, self.forbidden(f"torch.cuda.{name}"))
        for name in ("synchronize", "synchronize_device", "ScopedStream", "ScopedDevice", "set_device", "set_stream"):
            monkeypatch.setattr(wp, name, self.forbidden(f"wp.{name}"))
        monkeypatch.setattr(wp, "device_from_torch", self.device_from_torch)
        monkeypatch.setattr(wp, "Stream", self.stream)
        monkeypatch.setattr(wp, "launch", self.launch)
        monkeypatch.setattr(_warp, "Compiled", self.compiled)
        monkeypatch.setattr(devices, "_streams", {})

    def forbidden(self, name):
        def call(*args, **kwargs):
            raise AssertionError(f"{name} was called")

        return call

    def use_stream(self, ordinal, handle):
        """What ``with torch.cuda.stream(...)`` does, in this thread."""
        self.streams[ordinal, threading.get_ident()] = handle

    def current_stream(self, device=None):
        ordinal = self.current if device is None or device.index is None else device.index
        return SimpleNamespace(cuda_stream=self.streams.get((ordinal, threading.get_ident()), 0))

    def device_from_torch(self, device):
        assert device.type == "cpu" or device.index is not None, "Warp takes a device with its number"
        cuda = device.type == "cuda"
        name = f"cuda:{device.index}" if cuda else "cpu"

        class Device(SimpleNamespace):
            __str__ = lambda self: name  # noqa: E731

        return Device(is_cuda=cuda, is_cpu=not cuda, ordinal=device.index if cuda else -1)

    def stream(self, device, cuda_stream):
        self.made.append((device.ordinal, cuda_stream))
        return SimpleNamespace(device=device, cuda_stream=cuda_stream)

    def launch(self, kernel, **options):
        self.launches.append({"kernel": kernel, "thread": threading.get_ident(), **options})

    def compiled(self, kernel, device, block_dim):
        loaded = self.loaded
        return SimpleNamespace(has_adjoint=True, load=lambda: loaded.append((str(device), block_dim)))

    @property
    def handles(self):
        return [launch["stream"].cuda_stream for launch in self.launches]


@pytest.fixture
def cuda(monkeypatch):
    _warp.runtime_ready()
    return StandIn(monkeypatch)


def make_launcher(kernel=scale, tiled=False, block_dim=None):
    return Launcher(inspect_kernel(kernel), block_dim, tiled, 1)


ARGUMENTS = bytes(256)
FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


def forward(launcher, device, dims=(4,)):
    launcher.forward(device, dims, ARGUMENTS)


# --- streams ----------------------------------------------------------------------------------------------------------


def test_the_current_stream_is_asked_for_at_each_call(cuda):
    launcher = make_launcher()
    for handle in (0, 17, 23, 17):
        cuda.use_stream(0, handle)
        forward(launcher, FIRST)
    assert cuda.handles == [0, 17, 23, 17]
    assert cuda.made == [(0, 0), (0, 17), (0, 23)], "one wrapper for each handle"


def test_the_adjoint_asks_for_the_stream_of_its_own_thread(cuda):
    """Autograd runs backward in a thread of its own, and makes forward's stream current there."""
    launcher = make_launcher()
    cuda.use_stream(0, 17)
    forward(launcher, FIRST)

    def backward():
        cuda.use_stream(0, 23)
        launcher.adjoint(FIRST, (4,), ARGUMENTS, ARGUMENTS)

    thread = threading.Thread(target=backward)
    thread.start()
    thread.join()
    assert cuda.handles == [17, 23]
    assert cuda.launches[0]["thread"] != cuda.launches[1]["thread"]
    assert [launch["adjoint"] for launch in cuda.launches] == [False, True]


def test_a_stream_belongs_to_its_device(cuda):
    """Handles of two devices may be equal, as those of the default streams are."""
    launcher = make_launcher()
    for device in (FIRST, SECOND):
        forward(launcher, device)
    assert [launch["stream"].device.ordinal for launch in cuda.launches] == [0, 1]


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
    assert len(cuda.launches) == 81
    assert all(launch["stream"].cuda_stream == wanted[launch["thread"]] for launch in cuda.launches[1:])


# --- devices ----------------------------------------------------------------------------------------------------------


def test_the_device_is_that_of_the_tensors(cuda):
    launcher = make_launcher()
    cuda.current = 0
    forward(launcher, SECOND)
    assert str(cuda.launches[0]["device"]) == "cuda:1"
    assert cuda.launches[0]["stream"].device.ordinal == 1


def test_a_device_without_a_number_is_the_current_one(cuda):
    launcher = make_launcher()
    for current in (1, 0):
        cuda.current = current
        forward(launcher, torch.device("cuda"))
    assert [str(launch["device"]) for launch in cuda.launches] == ["cuda:1", "cuda:0"]
    assert [launch["stream"].device.ordinal for launch in cuda.launches] == [1, 0]


def test_a_kernel_is_loaded_once_on_each_device(cuda):
    launcher = make_launcher()
    for device in (FIRST, SECOND, FIRST):
        forward(launcher, device)
        launcher.adjoint(device, (4,), ARGUMENTS, ARGUMENTS)
    assert cuda.loaded == [("cuda:0", 256), ("cuda:1", 256)]


def test_preload_loads_what_a_call_launches(cuda):
    launcher = make_launcher()
    launcher.preload(SECOND)
    assert not cuda.launches
    forward(launcher, SECOND)
    assert cuda.loaded == [("cuda:1", 256)]


# --- the launch -------------------------------------------------------------------------------------------------------


def test_a_launch_is_told_to_no_tape(cuda):
    launcher = make_launcher()
    forward(launcher, FIRST)
    launcher.adjoint(FIRST, (4,), ARGUMENTS, ARGUMENTS)
    assert [launch["record_tape"] for launch in cuda.launches] == [False, False]


def test_dims_and_blocks(cuda):
    forward(make_launcher(), FIRST, (3, 5))
    forward(make_launcher(), FIRST, ())
    forward(make_launcher(block_dim=32), FIRST)
    forward(make_launcher(tile_total, tiled=True), FIRST)
    forward(make_launcher(tile_total, tiled=True, block_dim=128), FIRST)
    found = [(launch["dim"], launch["block_dim"]) for launch in cuda.launches]
    assert found == [((3, 5), 256), ((1,), 256), ((4,), 32), ((4, 64), 64), ((4, 128), 128)]


def test_arguments_arrive_as_descriptors(cuda):
    """Pointers, sizes and numbers are what was packed; nothing is copied, and no ``wp.array`` is made."""
    x, y = torch.arange(12.0)[::2], torch.zeros(6)
    launcher = make_launcher()
    pack = launcher.layout.packer()
    arguments = pack(x.data_ptr(), 0, 6, 8, 1, 0, 2.5, y.data_ptr(), 0, 6, 4, 1, 0)
    adjoints = pack(11, 0, 6, 4, 1, 0, 0.0, 22, 0, 6, 4, 1, 0)
    launcher.adjoint(FIRST, (6,), arguments, adjoints)
    given, factor, output = cuda.launches[0]["inputs"]
    assert (given.data, given.ndim, given.shape[0], given.strides[0]) == (x.data_ptr(), 1, 6, 8)
    assert factor == 2.5
    assert output.data == y.data_ptr()
    gradient, _, cotangent = cuda.launches[0]["adj_inputs"]
    assert (gradient.data, cotangent.data) == (11, 22)


# --- capture ----------------------------------------------------------------------------------------------------------


def test_a_loaded_kernel_is_captured(cuda):
    launcher = make_launcher()
    launcher.preload(FIRST)
    cuda.capturing = True
    cuda.use_stream(0, 99)
    forward(launcher, FIRST)
    launcher.adjoint(FIRST, (4,), ARGUMENTS, ARGUMENTS)
    assert cuda.handles == [99, 99]


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
    assert not cuda.launches
    cuda.capturing = False
    forward(launcher, FIRST)
    assert len(cuda.launches) == 1


def test_the_cpu_asks_nothing_of_cuda(monkeypatch):
    def forbidden(*args):
        raise AssertionError("a CPU launch asked CUDA")

    for name in ("current_stream", "current_device", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, forbidden)
    x = torch.ones(3, requires_grad=True)
    kernels.square_op(x).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
