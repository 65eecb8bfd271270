"""Loops made right in all the ways that an op is used: vmap, programs, compiled code, dtypes, structs, CUDA, and in words."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import warp as wp

import warpops
from loop_kernels import D, check, ints, uniform
from warpops import warp_op, warp_program


@wp.struct
class Data:
    x: wp.array2d[D]
    w: wp.array[D]
    turns: int


@wp.kernel
def recurrence(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    a = D(1.0)
    for k in range(x.shape[1]):
        a = a * wp.sin(x[i, k]) + x[i, k]
    y[i] = a * a


@wp.kernel
def of_struct(d: Data, y: wp.array[D]):
    i = wp.tid()
    a = d.w[i]
    for k in range(d.turns):
        a = a * d.x[i, k] + d.w[k]
    y[i] = a


@wp.kernel
def single(x: wp.array2d[wp.float32], y: wp.array[wp.float32]):
    i = wp.tid()
    a = wp.float32(1.0)
    for k in range(x.shape[1]):
        a = a * wp.sin(x[i, k]) + x[i, k]
    y[i] = a * a


@wp.kernel
def half(x: wp.array2d[wp.float16], y: wp.array[wp.float16]):
    i = wp.tid()
    a = wp.float16(1.0)
    for k in range(x.shape[1]):
        a = a * x[i, k] + x[i, k]
    y[i] = a * a


@wp.kernel
def in_out(z: wp.array[D], x: wp.array2d[D]):
    i = wp.tid()
    a = z[i]
    for k in range(x.shape[1]):
        a = a * x[i, k] + z[i]
    z[i] = a * a


@wp.kernel
def grown(x: wp.array[D], turns: int, y: wp.array[D]):
    i = wp.tid()
    a = x[i]
    for _ in range(turns):
        a = a * a * D(0.3) + x[i]
    y[i] = a


def of_torch(x):
    a = torch.ones_like(x[:, 0])
    for k in range(x.shape[1]):
        a = a * x[:, k].sin() + x[:, k]
    return a * a


X = uniform(3, 5, low=0.3, high=1.2)


@pytest.fixture(scope="module")
def op():
    return warp_op(recurrence, "x[n, m] -> y[n]", dim="n", name="loops::recurrence")


def gradient(function, x):
    x = x.detach().clone().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


def test_compiled(op):
    got = gradient(torch.compile(lambda x: op(x) * 2.0, fullgraph=True, backend="aot_eager"), X)
    torch.testing.assert_close(got, gradient(of_torch, X) * 2.0)


def test_sizes_that_change(op):
    for turns in (1, 4, 70, 9):
        x = uniform(2, turns, low=0.2, seed=turns)
        torch.testing.assert_close(gradient(op, x), gradient(of_torch, x))


def test_vmap(op):
    x = uniform(4, 3, 5, low=0.3, seed=5).detach()
    got = torch.func.vmap(torch.func.grad(lambda x: op(x).sum()))(x)
    want = torch.func.vmap(torch.func.grad(lambda x: of_torch(x).sum()))(x)
    torch.testing.assert_close(got, want)


def test_struct():
    made = warp_op(of_struct, "d.x[n, m], d.w[n] -> y[n]", dim="n")
    check(lambda x, w: made({"x": x, "w": w, "turns": 3}), uniform(4, 3), uniform(4, seed=1))


@pytest.mark.parametrize(("kernel", "dtype", "tolerance"), [(single, torch.float32, 1e-4), (half, torch.float16, 2e-2)])
def test_dtypes(kernel, dtype, tolerance):
    made = warp_op(kernel, "x[n, m] -> y[n]", dim="n")
    x = uniform(3, 4, low=0.2, high=0.8).to(dtype)

    def wanted(x):
        a = torch.ones_like(x[:, 0])
        for k in range(x.shape[1]):
            a = a * (x[:, k].sin() if kernel is single else x[:, k]) + x[:, k]
        return a * a

    want = gradient(wanted, x.double()).to(dtype)
    torch.testing.assert_close(gradient(made, x), want, rtol=tolerance, atol=tolerance)


def test_in_out():
    check(warp_op(in_out, "z[n], x[n, m] -> z[n]", dim="n"), uniform(3, seed=2), X)


def test_program():
    @warp_program("x[n, m] -> y[n]", scratch="t[n]")
    def chain(x: wp.array2d[D], t: wp.array[D], y: wp.array[D]):
        wp.launch(recurrence, dim=x.shape[0], inputs=[x], outputs=[t])
        wp.launch(grown, dim=x.shape[0], inputs=[t, 3], outputs=[y])

    check(chain, uniform(2, 3, low=0.1, high=0.6))


def test_many_threads_at_once(op):
    """Eager calls on the short ways, one after the other and in a graph kept for later."""
    kept = []
    for seed in range(3):
        x = uniform(6, 7, low=0.2, seed=seed)
        kept.append((x, op(x)))
    for x, y in reversed(kept):
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], gradient(of_torch, x))


def test_in_words():
    made = warp_op(grown, "x[n] -> y[n]", name="loops::words")
    said = made.explain()
    assert "its turns are counted first" in said
    assert "'a' restored at the start of each turn" in " ".join(said.split())
    assert "warning" not in said
    assert "grown_adjoint" not in made.source
    gradient(lambda x: made(x, 2), uniform(2))
    assert "def grown_adjoint(x, turns, y):" in made.source
    assert "# line 6 of grown" in made.source


def test_loop_that_is_right_already():
    @wp.kernel
    def total(x: wp.array2d[D], y: wp.array[D]):
        i = wp.tid()
        s = D(0.0)
        for k in range(x.shape[1]):
            s += x[i, k] * x[i, k]
        y[i] = s

    made = warp_op(total)
    assert "the kernel's own adjoint" in made.explain()
    check(made, X)
    assert "total_adjoint" not in made.source


def test_what_can_not_be_made_right():
    """One warning, which says where and why."""

    @wp.kernel
    def of_view(x: wp.array2d[D], y: wp.array[D]):
        i = wp.tid()
        row = x[0]
        a = D(1.0)
        for k in range(x.shape[0]):
            a = a * row[i]
            row = x[k]
        y[i] = a * row[i]

    with pytest.warns(warpops.GradientWarning, match="'row', which the loop assigns, can't be kept"):
        warp_op(of_view, "x[n, m] -> y[m]", dim="m")


def test_cuda_source(op):
    """Warp compiles the rewritten kernel for CUDA, without a device."""
    gradient(op, X)
    launcher = op._instances.only.launcher
    kernel = launcher.reverse._of(launcher)[0].kernel
    folder = Path(wp.config.kernel_cache_dir) / "loops_ptx"
    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wp.compile_aot_module(kernel.module, arch=80, module_dir=str(folder), use_ptx=True)
    text = "".join(path.read_text() for path in folder.glob("*.ptx"))
    assert "recurrence_adjoint" in text
    assert "_cuda_kernel_backward" in text


def test_an_edit_is_seen(tmp_path):
    """Another body of a kernel of the same name has the gradient of that body."""
    path = tmp_path / "edited.py"
    lines = """
import warp as wp

@wp.kernel
def edited(x: wp.array[wp.float64], y: wp.array[wp.float64], turns: int):
    i = wp.tid()
    a = x[i]
    for _ in range(turns):
        a = a * a * wp.float64(FACTOR)
    y[i] = a
"""
    found = []
    for factor in (1.0, 3.0):
        path.write_text(lines.replace("FACTOR", str(factor)))
        scope: dict = {"__name__": "edited"}
        import linecache

        linecache.checkcache(str(path))
        exec(compile(path.read_text(), str(path), "exec"), scope)
        made = warp_op(scope["edited"], "x[n] -> y[n]", name="loops::edited")
        found.append(gradient(lambda x, made=made: made(x, 2), torch.tensor([0.5], dtype=torch.float64)).item())
    assert found == pytest.approx([4 * 0.5**3, 27 * 4 * 0.5**3])


def test_ints_are_untouched():
    op = warp_op(recurrence, "x[n, m] -> y[n]", dim="n", name="loops::ints")
    with pytest.raises(warpops.ArgumentError):
        op(ints(1, 2))
