"""A program is an op as every other: opcheck, graphs, threads, transforms, other people's state left alone."""

from __future__ import annotations

import functools
import pickle
import threading

import pytest
import torch
import warp as wp

import warpops
from programs import blur, blur_reference, blur_twice, ping_pong, product, scale
from support import close, graph_count, leaf
from warpops import SignatureError, WarpOp, warp_program
from warpops.private import warp_calls


def test_opcheck(x):
    torch.library.opcheck(blur_twice.overload, (leaf(x),))
    torch.library.opcheck(ping_pong.overload, (leaf(x), 4))


def test_retained_graphs_and_reused_cotangents(x):
    x = leaf(x)
    y = ping_pong(x, 3)
    cotangent = torch.ones(1).expand(6)
    first = torch.autograd.grad(y, x, cotangent, retain_graph=True)[0]
    second = torch.autograd.grad(y, x, cotangent)[0]
    assert torch.equal(first, second)
    assert torch.equal(cotangent, torch.ones(6))
    assert first.data_ptr() != second.data_ptr()


def test_sizes_do_not_recompile():
    run = torch.compile(blur_twice, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (4, 7, 9):
        x = leaf(torch.rand(n))
        y = run(x)
        close(y, blur_reference(x))
        y.sum().backward()
    assert graph_count() == 1


def test_functorch(x):
    close(torch.func.grad(lambda x: blur_twice(x).sum())(x), torch.func.grad(lambda x: blur_reference(x).sum())(x))
    batch = torch.rand(3, 6)
    close(torch.vmap(blur_twice)(batch), torch.vmap(blur_reference)(batch))


def test_no_gradient_no_recording(x, monkeypatch):
    def record(*args):
        raise AssertionError("recorded")

    monkeypatch.setattr("warpops.program.record.Run._record", record)
    with torch.no_grad():
        blur_twice(leaf(x))
    blur_twice(x)


def test_only_what_is_needed_runs(x):
    launches = []

    @warp_program("x[n], w[n] -> y[n], z[n]")
    def two(x: wp.array[float], w: wp.array[float], y: wp.array[float], z: wp.array[float]):
        wp.launch(blur, dim=x.shape, inputs=[x], outputs=[y])
        wp.launch(product, dim=x.shape, inputs=[x, w], outputs=[z])

    launch = wp.launch

    @functools.wraps(launch)
    def count(kernel, *args, **options):
        launches.append((kernel.key, bool(options.get("adjoint"))))
        return launch(kernel, *args, **options)

    w = leaf(torch.rand(6))
    _, z = two(x, w)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wp, "launch", count)
        torch.autograd.grad(z.sum(), w)
    assert [key for key, adjoint in launches if adjoint] == ["product"]


def test_a_users_tape_records_nothing(x):
    tape = wp.Tape()
    with tape:
        y = ping_pong(leaf(x), 2)
        y.sum().backward()
    assert tape.launches == []
    assert wp._src.context.runtime.tape is None


def test_warp_is_left_as_it_was(x):
    before = [owner.__dict__[name] for owner, name, _ in warp_calls._targets()]
    blur_twice(leaf(x)).sum().backward()

    @warp_program("x[n] -> y[n]", name="prog_test::failing")
    def failing(x: wp.array[float], y: wp.array[float]):
        raise ZeroDivisionError("in the program")

    with pytest.raises(ZeroDivisionError, match="in the program"):
        failing(x)
    assert [owner.__dict__[name] for owner, name, _ in warp_calls._targets()] == before
    assert getattr(warp_calls._local, "watcher", None) is None


def test_threads(x):
    """Programs in several threads, and a thread of plain Warp with a tape of its own, at once."""
    failures = []
    source = torch.rand(6)
    want = leaf(source)
    blur_reference(want, 5).sum().backward()

    def programs():
        try:
            for _ in range(20):
                mine = leaf(source)
                ping_pong(mine, 5).sum().backward()
                close(mine.grad, want.grad)
        except Exception as error:
            failures.append(error)

    def plain():
        try:
            for _ in range(20):
                a = wp.array([1.0, 2.0], dtype=float, requires_grad=True)
                b = wp.zeros(2, dtype=float, requires_grad=True)
                tape = wp.Tape()
                with tape:
                    wp.launch(scale, dim=2, inputs=[a, 3.0], outputs=[b])
                assert len(tape.launches) == 1
                tape.backward(grads={b: wp.ones(2, dtype=float)})
                assert a.grad.numpy().tolist() == [3.0, 3.0]
        except Exception as error:
            failures.append(error)

    blur_twice(x)
    threads = [threading.Thread(target=f) for f in (programs, programs, plain)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_what_the_op_says_of_itself(x):
    assert isinstance(blur_twice, WarpOp)
    assert blur_twice in warpops.list_ops()
    assert blur_twice.name.endswith("::blur_twice")
    assert blur_twice.__doc__ == "Two launches over one scratch array."
    assert list(blur_twice.__signature__.parameters) == ["x"]
    text = blur_twice.explain()
    assert "the program blur_twice" in text
    assert "its own launches" in text
    assert "the program run again" in " ".join(text.split())
    assert "def forward(x)" in blur_twice.source
    assert pickle.loads(pickle.dumps(blur_twice)) is blur_twice
    with pytest.raises(SignatureError, match="known only when it runs"):
        blur_twice.preload()


def test_registered_backward(x):
    @warp_program("x[n] -> y[n]")
    def halve(x: wp.array[float], y: wp.array[float]):
        wp.launch(scale, dim=x.shape, inputs=[x, 0.5], outputs=[y])

    halve.register_backward(lambda ctx, grad: 7.0 * grad)
    x = leaf(x)
    halve(x).sum().backward()
    close(x.grad, torch.full((6,), 7.0))
