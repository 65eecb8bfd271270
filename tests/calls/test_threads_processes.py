"""Ops on many threads, in forked and spawned workers, and in a DataLoader."""

from __future__ import annotations

import concurrent.futures
import os
import threading

import pytest
import torch
import torch.multiprocessing
import warp as wp

import kernels
from support import close, compiled, leaf, run_script
from warpops import warp_op

WAIT = 120


@wp.kernel
def fresh(x: wp.array[float], s: float, y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i] * s


fresh_op = warp_op(fresh, "x[n] -> y[n]", dim="n")


def use(seed):
    """Values and gradients of an op, of sizes and numbers that differ by thread."""
    generator = torch.Generator().manual_seed(seed)
    for turn in range(40):
        n = 1 + (seed * 7 + turn) % 23
        x = torch.randn(n, generator=generator).requires_grad_()
        y = fresh_op(x, float(seed + 1))
        close(y.detach(), x.detach() ** 2 * (seed + 1))
        (grad,) = torch.autograd.grad(y.sum(), x)
        close(grad, 2 * x.detach() * (seed + 1))
    return True


def test_eight_threads_from_the_first_call_on():
    start = threading.Barrier(8)

    def run(seed):
        start.wait()
        return use(seed)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(8)))


def test_eight_threads_of_compiled_code():
    function = compiled(lambda x, s: fresh_op(x, s) * 2.0, dynamic=True)
    start = threading.Barrier(8)

    def run(seed):
        start.wait()
        for n in (3, 5, 9):
            x = torch.linspace(-1, 1, n).requires_grad_()
            (grad,) = torch.autograd.grad(function(x, 1.5).sum(), x)
            close(grad, 6.0 * x.detach())
        return True

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(8)))


def test_one_graph_forward_on_one_thread_and_backward_on_another():
    x = leaf(torch.randn(5))
    y = kernels.square_op(x)
    thread = threading.Thread(target=lambda: y.sum().backward())
    thread.start()
    thread.join()
    close(x.grad, 2 * x.detach())


def test_eight_threads_decorate():
    def decorate(_):
        op = warp_op(kernels.square, "x[n] -> y[n]", dim="n")
        return op, op.name

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        made = list(pool.map(decorate, range(16)))
    assert len({name for _, name in made}) == 16
    for op, _ in made:
        close(op(torch.tensor([3.0])), torch.tensor([9.0]))


# --- processes --------------------------------------------------------------------------------------------------------


def child(rank, queue):
    torch.set_num_threads(1)
    x = torch.full((3,), float(rank + 2)).requires_grad_()
    kernels.square_op(x).sum().backward()
    queue.put((rank, x.grad.tolist()))


SPAWN, FORKSERVER = (pytest.param(method, marks=pytest.mark.slow) for method in ("spawn", "forkserver"))


@pytest.mark.parametrize("method", ["fork", SPAWN, FORKSERVER])
def test_child_processes(method, tmp_path):
    """From a parent that has run forward and backward itself.

    In a process of its own: PyTorch refuses backward in a fork of a process whose autograd has started threads, and a
    test that ran before may have had it do so.
    """
    script = f"""
import warnings
import torch, torch.multiprocessing
import kernels
from test_threads_processes import WAIT, child

warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork.*")
if __name__ == "__main__":
    kernels.square_op(torch.ones(3, requires_grad=True)).sum().backward()
    context = torch.multiprocessing.get_context({method!r})
    queue = context.Queue()
    children = [context.Process(target=child, args=(rank, queue)) for rank in range(2)]
    for process in children:
        process.start()
    results = sorted(queue.get(timeout=WAIT) for _ in children)
    for process in children:
        process.join(WAIT)
    print(results, [process.exitcode for process in children])
"""
    printed = run_script(script, tmp_path / "parent.py")
    assert printed.strip().splitlines()[-1] == "[(0, [4.0, 4.0, 4.0]), (1, [6.0, 6.0, 6.0])] [0, 0]"


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return kernels.square_op(torch.full((2,), float(index)))


@pytest.mark.parametrize("method", [None, "fork", SPAWN, FORKSERVER])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_data_loader(method):
    kernels.square_op(torch.ones(2))
    workers = {"num_workers": 2, "multiprocessing_context": method, "timeout": WAIT} if method is not None else {}
    loader = torch.utils.data.DataLoader(Squares(), batch_size=2, **workers)
    got = torch.cat(list(loader))
    close(got, torch.tensor([[0.0, 0.0], [1.0, 1.0], [4.0, 4.0], [9.0, 9.0]]))


@pytest.mark.slow
def test_a_fork_before_anything_was_launched(tmp_path):
    script = """
import os, torch, warp as wp
from warpops import warp_op

wp.config.log_level = wp.LOG_ERROR

@warp_op("x[n] -> y[n]", dim="n")
@wp.kernel
def twice(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = 2.0 * x[i]

pid = os.fork()
right = twice(torch.ones(2)).tolist() == [2.0, 2.0]
if pid == 0:
    os._exit(0 if right else 1)
_, status = os.waitpid(pid, 0)
print(right, status)
"""
    assert run_script(script, tmp_path / "script.py").strip().splitlines()[-1] == "True 0"


SQUARE = """
import os, signal, threading, torch, warp as wp
from warpops import warp_op
from warpops.calls import instances
from warpops.launch import launcher, native
from warpops.private import warp_code

wp.config.log_level = wp.LOG_ERROR

@warp_op
@wp.kernel
def square(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i]

"""


@pytest.mark.slow
def test_first_launches_of_a_process_on_eight_threads(tmp_path):
    """Warp isn't started yet: it starts in steps, and each thread has to find it whole."""
    script = """
start, found = threading.Barrier(8), []

def work():
    x = torch.randn(4)
    start.wait()
    try:
        found.append(torch.equal(square(x), x * x))
    except BaseException as error:
        found.append(repr(error))

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(found)
"""
    for turn in range(2):
        printed = run_script(SQUARE + script, tmp_path / f"script{turn}.py")
        assert printed.strip().splitlines()[-1] == str([True] * 8)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_while_another_thread_holds_a_lock(tmp_path):
    script = """
square.preload("cpu")
held, leave = threading.Event(), threading.Event()

def hold():
    with warp_code.loading, launcher._lock, instances._lock, native._lock:
        held.set()
        leave.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    os._exit(0 if all(square(torch.full((2,), 3.0)).tolist() == [9.0, 9.0] for _ in range(3)) else 1)
_, status = os.waitpid(pid, 0)
leave.set()
thread.join()
print("child:", status, square(torch.ones(1)).tolist())
"""
    assert run_script(SQUARE + script, tmp_path / "script.py").strip().splitlines()[-1] == "child: 0 [1.0]"
