"""Kernels that are loaded while other threads decorate, and children that are forked meanwhile."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import run_script
from warpops import warp_op


def test_a_kernel_that_came_while_its_module_was_being_loaded():
    """Warp stores what it has built after the other thread has marked the module as modified."""

    @wp.kernel
    def first(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = 2.0 * x[i]

    op = warp_op(first, "x[n] -> y[n]", dim="n")
    op(torch.ones(2))
    module = first.module
    built = module.hashers

    @wp.kernel
    def second(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = 3.0 * x[i]

    assert second.module is module
    module.hashers = built  # as the other thread does when it is through
    later = warp_op(second, "x[n] -> y[n]", dim="n")
    assert later(torch.ones(2)).tolist() == [3.0, 3.0]
    assert op(torch.ones(2)).tolist() == [2.0, 2.0]


FORKED = """
import functools, os, signal, threading
import torch
import warp as wp
import warp._src.codegen as codegen
from warpops import warp_op

wp.config.quiet = True

@wp.kernel
def double(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = 2.0 * x[i]

op = warp_op(double, "x[n] -> y[n]", dim="n")
op(torch.ones(2))
held = [codegen._codegen_lock]
held += [m.lock for m in vars(torch._ops.OpOverload).values() if isinstance(m, functools.cached_property) and hasattr(m, "lock")]
taken, done = threading.Event(), threading.Event()

def hold():
    for lock in held:
        lock.acquire()
    taken.set()
    done.wait()
    for lock in held:
        lock.release()

thread = threading.Thread(target=hold)
thread.start()
taken.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)  # a child that hangs is ended

    @wp.kernel
    def triple(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = 3.0 * x[i]

    made = warp_op(triple, "x[n] -> y[n]", dim="n")
    assert torch.ops.warpops.triple(torch.ones(2)).tolist() == made(torch.ones(2)).tolist() == [3.0, 3.0]
    assert made.overload._namespace == "warpops"
    os._exit(0)
done.set()
thread.join()
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_a_child_that_was_forked_while_a_thread_decorates(tmp_path):
    printed = run_script(FORKED, tmp_path / "forked.py")
    assert printed.strip().endswith("child 0"), printed
