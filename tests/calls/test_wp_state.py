"""Warp's own state, which belongs to the user: tapes, scoped devices, initialisation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import warp as wp

import kernels
from support import close, leaf, run_script


@wp.kernel
def triple_it(a: wp.array[float], b: wp.array[float]):
    i = wp.tid()
    b[i] = 3.0 * a[i]


def test_nothing_goes_onto_an_active_tape(mode):
    a = wp.array(np.ones(2, dtype=np.float32), dtype=float, device="cpu", requires_grad=True)
    b = wp.zeros(2, dtype=float, device="cpu", requires_grad=True)
    x, square, product = leaf(torch.tensor([1.0, 2.0])), mode(kernels.square_op), mode(kernels.product_op)
    with wp.Tape() as tape:
        wp.launch(triple_it, dim=2, inputs=[a], outputs=[b], device="cpu")
        square(x).sum().backward()
        product(x, x)
    assert len(tape.launches) == 1
    tape.backward(grads={b: wp.array(np.ones(2, dtype=np.float32), dtype=float, device="cpu")})
    assert a.grad.numpy().tolist() == [3.0, 3.0]
    close(x.grad, 2 * x.detach())


def test_a_scoped_device_stays_what_it_was(mode):
    wp.init()
    before = wp.get_device()
    with wp.ScopedDevice("cpu"):
        inside = wp.get_device()
        x = leaf(torch.tensor([1.0, 2.0]))
        mode(kernels.square_op)(x).sum().backward()
        assert wp.get_device() is inside
    assert wp.get_device() is before


def test_a_scoped_stream_is_entered_and_left(mode):
    """There are streams on a GPU only; a scope without one must not matter."""
    x = leaf(torch.tensor([1.0, 2.0]))
    with wp.ScopedStream(None):
        mode(kernels.square_op)(x).sum().backward()
    close(x.grad, 2 * x.detach())


@pytest.mark.gpu
def test_a_scoped_stream_stays_what_it_was():
    x = torch.ones(1000, device="cuda", requires_grad=True)
    device = wp.device_from_torch(x.device)
    own, before = wp.Stream(device), wp.get_stream(device)
    with wp.ScopedStream(own):
        kernels.square_op(x).sum().backward()
        assert wp.get_stream(device) is own
    assert wp.get_stream(device) is before
    close(x.grad, 2 * x.detach())


def test_a_backward_inside_warp_s_own_tape_backward_is_untouched():
    """The op's gradients come from PyTorch's graph, whatever a tape does around them."""
    x = leaf(torch.tensor([1.0, 2.0]))
    with wp.Tape() as tape:
        y = kernels.square_op(x)
    tape.backward()
    y.sum().backward()
    close(x.grad, 2 * x.detach())


def test_memory_is_pytorch_s(mode):
    """A tensor that Warp allocated could be freed, or reused, behind PyTorch's back."""
    x = leaf(torch.randn(4))
    y = mode(kernels.square_op)(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    for tensor in (y, grad):
        assert tensor.untyped_storage().resizable()


SCRIPT = """
import torch, warp
import warpops

@warpops.warp_op("x[n] -> y[n]", dim="n")
@warp.kernel
def double(x: warp.array[float], y: warp.array[float]):
    i = warp.tid()
    y[i] = 2.0 * x[i]

from warp._src import context
assert context.runtime is None, "decorating must not initialise Warp"
x = torch.tensor([1.0, 2.0], requires_grad=True)
y = double(x)
y.sum().backward()
print(y.tolist(), x.grad.tolist())
"""


def test_nobody_calls_init(tmp_path):
    out = run_script(SCRIPT, tmp_path / "script.py")
    assert out.strip().splitlines()[-1] == "[2.0, 4.0] [2.0, 2.0]"


BACKWARD_FIRST = """
import torch, warp as wp
from warpops import warp_op

@warp_op("x[n] -> y[n]", dim="n")
@wp.kernel
def double(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = 2.0 * x[i]

x = torch.tensor([1.0, 2.0], requires_grad=True)
y = torch.compile(double, fullgraph=True, backend="aot_eager")(x)
y.sum().backward()
print(y.tolist(), x.grad.tolist())
"""


@pytest.mark.slow
def test_compiled_code_comes_first_in_a_fresh_process(tmp_path):
    out = run_script(BACKWARD_FIRST, tmp_path / "script.py")
    assert out.strip().splitlines()[-1] == "[2.0, 4.0] [2.0, 2.0]"


MANY = """
import sys
import torch, warp as wp
source = "import warp as wp\\n" + "\\n".join(
    f"@wp.kernel\\ndef k{i}(x: wp.array[float], y: wp.array[float]):\\n    i = wp.tid()\\n    y[i] = x[i] * {i}.0\\n"
    for i in range(160)
)
open("many_kernels.py", "w").write(source)
sys.path.insert(0, ".")
import many_kernels
from warpops import warp_op
kernels = [getattr(many_kernels, f"k{i}") for i in range(160)]
steps = 0

def counted(frame, event, argument):
    global steps
    steps += event == "call"

def decorated(several):
    global steps
    steps = 0
    sys.setprofile(counted)
    ops = [warp_op(kernel, "x[n] -> y[n]", dim="n") for kernel in several]
    sys.setprofile(None)
    return steps

first, early, between, late = [decorated(kernels[a:b]) for a, b in ((0, 60), (60, 90), (90, 130), (130, 160))]
print(early, late)
from warp._src import context
print(context.runtime is None)
"""


@pytest.mark.slow
def test_decorating_many_kernels_costs_each_the_same_and_compiles_none(tmp_path, monkeypatch):
    """Counted in calls of Python, not in time."""
    monkeypatch.chdir(tmp_path)
    early_and_late, untouched = run_script(MANY, tmp_path / "script.py").strip().splitlines()[-2:]
    assert untouched == "True"
    early, late = map(int, early_and_late.split())
    assert late < 1.05 * early
    assert early < 30 * 3000  # 1,900 for each, PyTorch's own among them
