"""A registration that is interrupted at any line leaves nothing behind, and neither does an op that is collected."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import kernels
from support import run_script
from warpops import warp_op

INTERRUPTED = '''
import gc, os, sys
import torch
import kernels
from warpops import warp_op
from warpops.private import torch_modes, torch_registry
from warpops.register import registration, unregister

OURS = {module.__file__ for module in (registration, unregister, torch_modes, torch_registry)}
X = torch.tensor([1.0, 3.0])


class Interrupt(BaseException):
    pass


def at_line(wanted):
    """A trace function that raises at a line of the registration, counted from its first, and a list of all lines."""
    lines = []

    def line(frame, event, value):
        if event == "line":
            lines.append((frame.f_code.co_filename, frame.f_lineno))
            if len(lines) == wanted:
                sys.settrace(None)
                raise Interrupt
        return line

    def call(frame, event, value):
        inside = lines or (frame.f_code.co_filename, frame.f_code.co_name) == (registration.__file__, "_register")
        return line if inside and frame.f_code.co_filename in OURS else None

    return call, lines


def define():
    return warp_op(kernels.square, "x[n] -> y[n]", dim="n", name="faults::square")


gc.collect()
gc.freeze()  # what is there already needn't be looked through a hundred times
op, older, interrupted = define(), define(), 0
trace, lines = at_line(0)
sys.settrace(trace)
op._register(op._plan, None, None)
sys.settrace(None)
first = {place: number for number, place in reversed(list(enumerate(lines, 1)))}
last = {place: number for number, place in enumerate(lines, 1)}
for wanted in sorted({*first.values(), *last.values()}):
    gc.disable()  # a finaliser that is traced is another matter
    trace, _ = at_line(wanted)
    sys.settrace(trace)
    try:
        op._register(op._plan, None, None)
    except Interrupt:
        interrupted += 1
    finally:
        sys.settrace(None)
        gc.enable()
    gc.collect()
    assert torch.ops.faults.square(X).tolist() == op(X).tolist() == [1.0, 9.0], wanted
    if interrupted % 20 == 0:  # an op that was there is collected, and another one made
        older = None
        gc.collect()
        older = define()
        assert torch.ops.faults.square(X).tolist() == [1.0, 9.0], wanted
op = None
older = None
gc.collect()
for _ in range(20):
    define()
    gc.collect()
print("interrupted", interrupted)
'''


@pytest.mark.slow
def test_a_registration_is_interrupted_at_every_line(tmp_path):
    """In a process of its own: it ended in a crash at some later decoration."""
    printed = run_script(INTERRUPTED, tmp_path / "interrupted.py")
    assert int(printed.split("interrupted")[-1]) > 100


COLLECTED = """
import gc, sys
import torch
import warp as wp
import kernels
from warpops import warp_op
from warpops.register import plain, registration, unregister

OURS = {module.__file__ for module in (plain, registration, unregister)}
X = torch.tensor([1.0, 3.0])


@wp.kernel
def scaled(x: wp.array[float], factor: float, y: wp.array[float]):
    i = wp.tid()
    y[i] = factor * x[i]


def define(kernel):
    return warp_op(kernel, "x[n] -> y[n]", dim="n", name="faults::collected")


def trial(wanted):
    \"""Two ops in turn, so that the plain operator is another after each; one is collected at a line.\"""
    first, older = define(kernels.square), [define(scaled)]
    del first
    lines = []

    def line(frame, event, value):
        if event == "line":
            lines.append((frame.f_code.co_filename, frame.f_lineno))
            if len(lines) == wanted:
                older.clear()
                gc.collect()
        return line

    def call(frame, event, value):
        inside = lines or (frame.f_code.co_filename, frame.f_code.co_name) == (registration.__file__, "_register")
        return line if inside and frame.f_code.co_filename in OURS else None

    sys.settrace(call)
    newest = define(kernels.square)
    sys.settrace(None)
    assert torch.ops.faults.collected(X).tolist() == newest(X).tolist() == [1.0, 9.0], wanted
    assert torch.ops.faults.collected.default(X).tolist() == [1.0, 9.0], wanted
    return lines


gc.collect()
gc.freeze()
gc.disable()
trial(0)
lines = trial(0)
places = {place: number for number, place in reversed(list(enumerate(lines, 1)))}
for wanted in sorted(places.values()):
    trial(wanted)
print("collected", len(places))
"""


@pytest.mark.slow
def test_an_op_is_collected_at_every_line_of_a_registration_of_its_name(tmp_path):
    """The collector may come at any time: then the plain name was defined twice, and was lost for good."""
    printed = run_script(COLLECTED, tmp_path / "collected.py")
    assert int(printed.split("collected")[-1]) > 100


def test_a_backward_that_cannot_be_registered_leaves_the_op_as_it_was(monkeypatch):
    op = warp_op(kernels.square, "x[n] -> y[n]", dim="n", name="faults::kept")
    x = torch.tensor([3.0], requires_grad=True)
    with monkeypatch.context() as patch:
        patch.setattr(torch.library.Library, "impl", None)
        for register in (op.register_backward, op.register_vmap):
            try:
                register(lambda ctx, grad: grad)
            except TypeError:
                continue
            raise AssertionError("the registration went through")
    assert torch.autograd.grad(op(x).sum(), x)[0].tolist() == [6.0]
    assert torch.ops.faults.kept(x).tolist() == [9.0]
    assert "register_backward" not in op.explain()


def test_what_pytorch_keeps_of_a_collected_op_is_empty():
    """PyTorch keeps each function that it was given, for good: 40 KB for each contract before."""
    gone = []
    for scale in range(3):
        op = warp_op(kernels.square, "x[n] -> y[n]", dim=lambda x, scale=scale: x.shape[0] + 0 * scale)
        assert op(torch.ones(2)).tolist() == [1.0, 1.0]
        gone.append((weakref.ref(op), weakref.ref(op._registration.ways), weakref.ref(op._instances)))
        del op
    warp_op(kernels.square, "x[n] -> y[n]", dim="n")  # renews what PyTorch's table shares between such ops
    gc.collect()
    assert all(reference() is None for references in gone[:2] for reference in references)
