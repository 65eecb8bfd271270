"""The function that launches natively, against the same work by hand: what is packed where, and when each is used."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from types import SimpleNamespace

import pytest
import torch
import warp as wp

from support import close
from warpops import ArgumentError, warp_op
from warpops.launch import native
from warpops.private import torch_guards
from warpops.private.short import FAST

pytestmark = pytest.mark.skipif(not FAST, reason="no launch is remembered with WARPOPS_FAST=0")


@wp.struct
class Inner:
    gain: float
    weight: wp.array[float]


@wp.struct
class Settings:
    on: wp.bool
    inner: Inner
    shift: wp.vec3d


@wp.kernel
def everything(
    small: wp.int8,
    x: wp.array[float],
    settings: Settings,
    half: wp.float16,
    grid: wp.array2d[wp.vec3],
    turn: wp.quat,
    big: wp.uint64,
    total: wp.array[float],
    y: wp.array[float],
):
    i = wp.tid()
    if settings.on:
        moved = wp.quat_rotate(turn, grid[i, 1]) * float(small)
        y[i] = x[i] * settings.inner.weight[i] * settings.inner.gain + moved[0] * float(half) + float(settings.shift[1])
    total[i] = total[i] + x[i] * x[i] + float(big & wp.uint64(7))


@wp.kernel
def product(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * w[i]


@wp.kernel
def scaled(x: wp.array[float], n: int, s: float, y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * s + float(n)


@wp.kernel
def slow(x: wp.array[wp.int64], turns: int, y: wp.array[wp.int64]):
    i = wp.tid()
    s = x[i]
    for k in range(turns):
        s = s ^ (s << wp.int64(13))
        s = s ^ (s >> wp.int64(7))
        s = s ^ (s << wp.int64(17)) ^ wp.int64(k)
    y[i] = s


mat80 = wp.types.matrix((80, 80), wp.float64)


@wp.kernel
def of_a_large_matrix(x: wp.array[wp.float64], m: mat80, y: wp.array[wp.float64]):
    i = wp.tid()
    y[i] = x[i] * m[i, 3]


@pytest.fixture(params=["native", "by hand"])
def way(request, monkeypatch):
    if request.param == "by hand":
        monkeypatch.setattr(native, "_made", None)
        monkeypatch.setattr(native, "_failed", True)
    assert bool(native.ready()) == (request.param == "native")
    return request.param


def everything_in_torch(small, x, settings, half, grid, turn, big, total):
    imaginary, real = turn[:3], turn[3]
    row = grid[:, 1]
    cross = torch.linalg.cross(imaginary.expand_as(row), row)
    moved = row * (2 * real * real - 1) + cross * 2 * real + imaginary * (row @ imaginary)[:, None] * 2
    y = x * settings["inner"]["weight"] * settings["inner"]["gain"] + moved[:, 0] * small * half
    return total + x * x + (big & 7), y + settings["shift"][1]


def test_every_kind_of_argument_is_packed_at_its_place(way):
    op = warp_op(everything, "total[n] -> total, y[n]", dim="n")
    turn = torch.nn.functional.normalize(torch.tensor([0.1, -0.4, 0.2, 0.9]), dim=0)
    for turn_number, small in enumerate((3, -2, 5, -7)):
        x, weight, total = (torch.randn(4, requires_grad=True) for _ in range(3))
        grid = torch.randn(4, 2, 3, requires_grad=True)
        settings = {
            "on": True,
            "inner": {"gain": 0.5 + turn_number, "weight": weight},
            "shift": (1.0, 2.0 * turn_number, 3.0),
        }
        arguments = (small, x, settings, 0.25, grid, turn.tolist(), 2**63 + 5, total)
        want = everything_in_torch(small, x, settings, 0.25, grid, turn, 2**63 + 5, total)
        got = op(*arguments)
        close(got, want)
        cotangents = (torch.randn(4), torch.randn(4))
        inputs = (x, weight, grid, total)
        close(torch.autograd.grad(got, inputs, cotangents), torch.autograd.grad(want, inputs, cotangents))


def test_gradients_of_some(way):
    op = warp_op(product)
    for wanted in ((True, False), (False, True), (True, True)) * 3:
        x, w = (torch.randn(5, requires_grad=need) for need in wanted)
        inputs = [t for t in (x, w) if t.requires_grad]
        cotangent = torch.randn(5)
        want = [cotangent * w.detach()] * wanted[0] + [cotangent * x.detach()] * wanted[1]
        close(torch.autograd.grad(op(x, w), inputs, cotangent), tuple(want))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [((2**40, 2.0), r"argument 'n': expected an int in .*\(int32\), got 1099511627776"), ((2, 1e300), "argument 's'")],
)
def test_a_number_out_of_range_after_good_ones(way, grad, arguments, message):
    op = warp_op(scaled)
    x = torch.randn(3, requires_grad=grad)
    for _ in range(4):
        close(op(x, 2, 3.0), x * 3.0 + 2)
    with pytest.raises(ArgumentError, match=message):
        op(x, *arguments)
    close(op(x, 2, 3.0), x * 3.0 + 2)


def test_arrays_without_elements(way):
    op = warp_op(product)
    for size in (0, 3, 0, 3, 0):
        x = torch.ones(size, requires_grad=True)
        op(x, torch.full((size,), 2.0)).sum().backward()
        assert x.grad.tolist() == [2.0] * size


@wp.func
def factor(x: float):
    return 2.0 * x


@wp.kernel(module="test_native_again")
def times_factor(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = factor(x[i])


def test_a_kernel_that_is_built_again(way, monkeypatch, launches):
    """A function that is defined anew, as in a notebook: Warp builds the kernels of the module again."""
    op = warp_op(times_factor)
    x = torch.randn(3, requires_grad=True)

    def run(number):
        y = op(x)
        close(y, number * x)
        close(torch.autograd.grad(y.sum(), x), (torch.full((3,), number),))
        with torch.no_grad():
            close(op(x), number * x)

    for number in (2.0, 3.0, 4.0):
        if number != 2.0:

            @wp.func
            def factor(x: float):
                return wp.static(number) * x

            monkeypatch.setitem(globals(), "factor", factor)
            times_factor.module.mark_modified()
        for _ in range(4):
            launches[:] = [0, 0]
            run(number)
        assert launches == [0, 0], "launches aren't remembered again"
    monkeypatch.undo()
    times_factor.module.mark_modified()
    run(2.0)


def test_the_function_is_made_after_some_launches(monkeypatch, launches):
    function = native.ready()
    monkeypatch.setattr(native, "_made", None)
    monkeypatch.setattr(native, "_waited", 0)
    monkeypatch.setattr(native, "AFTER", 5)
    built = []
    monkeypatch.setattr(native, "_build", lambda: built.append(native._waited) or function)
    op = warp_op(product)
    x, w = torch.randn(4, requires_grad=True), torch.randn(4)
    for turn in range(12):
        y = op(x, w)
        close(y, x * w)
        close(torch.autograd.grad(y.sum(), x), (w,))
        assert bool(built) == (native._waited > 5), turn
    assert built == [6]
    launches[:] = [0, 0]
    op(x, w)
    torch.autograd.grad(op(x, w).sum(), x)
    assert launches == [0, 0], "a launch was made the long way"
    assert native._waited == 6, "a launch went by hand"


def test_without_the_function_launches_go_on(monkeypatch):
    monkeypatch.setattr(native, "_made", None)
    monkeypatch.setattr(native, "_waited", 0)
    monkeypatch.setattr(native, "AFTER", 1)

    monkeypatch.setattr(native, "_failed", False)

    def build():
        raise OSError("no compiler")

    monkeypatch.setattr(native, "_build", build)
    op = warp_op(product)
    x, w = torch.randn(4, requires_grad=True), torch.randn(4)
    for _ in range(5):
        y = op(x, w)
        close(y, x * w)
        close(torch.autograd.grad(y.sum(), x), (w,))
    assert native._failed and native.ready() is None


def test_other_threads_run_during_a_kernel():
    op = warp_op(slow)
    x = torch.ones(1, dtype=torch.int64)
    for _ in range(3):
        op(x, 10)
    found = []
    thread = threading.Thread(target=lambda: found.append(op(x, 30_000_000)))
    thread.start()
    ticks = 0
    while thread.is_alive():
        time.sleep(0.001)
        ticks += 1
    thread.join()
    assert ticks > 5
    close(found[0], op(x, 30_000_000))


def test_a_launch_reads_no_more_than_it_is_given():
    """The addresses that a launch is made of, and PyTorch's function for a tensor's pointer among them."""
    data = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(torch_guards.DATA_PTR)
    x = torch.randn(3)
    assert data(x) == x.data_ptr()
    assert data(x[1:]) == x[1:].data_ptr()
    assert not data(x[:0]) and x[:0].data_ptr() == 0
    assert data(torch.nn.Parameter(x)) == x.data_ptr()
    assert all(native._addresses())


def test_what_a_kernel_adds_to_is_launched_once_a_call(way):
    """Giving way to another launch happens before anything is written."""

    @wp.kernel
    def count(x: wp.array[float], total: wp.array[float]):
        i = wp.tid()
        wp.atomic_add(total, 0, x[i])

    op = warp_op(count, "x[n], total[k] ->", mutates="total")
    x, total = torch.ones(3), torch.zeros(1)
    for calls in range(1, 8):
        op(x, total)
        assert total.item() == 3.0 * calls


def test_a_large_matrix_by_value(way):
    """An argument struct that has no place on the stack is packed by Python at each launch."""
    op = warp_op(of_a_large_matrix)
    for _ in range(4):
        matrix, x = torch.randn(80, 80, dtype=torch.float64), torch.randn(5, dtype=torch.float64, requires_grad=True)
        y = op(x, matrix.tolist())
        close(y, x * matrix[:5, 3])
        close(torch.autograd.grad(y.sum(), x), (matrix[:5, 3],))
    assert native.LARGEST < 80 * 80 * 8


def test_a_finaliser_that_calls_an_op_while_the_function_is_made(monkeypatch):
    function = native.ready()
    monkeypatch.setattr(native, "_made", None)
    monkeypatch.setattr(native, "_waited", 0)
    monkeypatch.setattr(native, "AFTER", 2)
    op = warp_op(product)
    x, w = torch.randn(4), torch.randn(4)
    inside = []

    def build():
        inside.append(op(x, w))
        return function

    monkeypatch.setattr(native, "_build", build)
    for _ in range(8):
        close(op(x, w), x * w)
    assert len(inside) == 1
    close(inside[0], x * w)
    assert native.ready() is function


@pytest.mark.usefixtures("frozen")
def test_code_is_held_while_it_runs(way):
    """A module that is built again while another thread runs what was built before."""
    module = wp.get_module(f"test_native_held_{way.replace(' ', '_')}")
    op = warp_op(wp.kernel(slow.func, module=module))
    x = torch.ones(1, dtype=torch.int64)
    for _ in range(3):
        op(x, 10)

    def build_again(option):
        wp.set_module_options({"fuse_fp": option}, module=SimpleNamespace(__name__=module.name))
        op(x, 10)
        gc.collect()

    for option in (False, True):  # from here on they only have to be loaded
        build_again(option)
    turns, running = 2_000_000, False
    while not running:  # as long a launch as building takes on this machine
        want, found = op(x, turns), []
        thread = threading.Thread(target=lambda turns=turns, found=found: found.append(op(x, turns)))
        thread.start()
        time.sleep(0.05)
        for option in (False, True):
            build_again(option)
        running = thread.is_alive()
        thread.join()
        close(found[0], want)
        turns *= 2


def test_an_error_of_the_user_s_own_is_theirs():
    """Packing raises OverflowError for a number out of range; what hooks raise isn't taken for it."""
    op = warp_op(product)
    x, w = torch.randn(4, requires_grad=True), torch.randn(4)
    for _ in range(4):
        op(x, w)
    calls = []

    def pack(tensor):
        calls.append(tensor)
        raise OverflowError("no room")

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), pytest.raises(OverflowError, match="no room"):
        op(x, w)
    assert len(calls) == 1
