"""Canaries: what ``warpops._torch``, ``_dynamo`` and ``_inductor`` take for granted about PyTorch's private side."""

from __future__ import annotations

import pytest
import torch
import warp as wp
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from warpops import _dynamo, _torch


class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_a_guard_accepts_tensors_that_look_the_same():
    check = _torch.guard([torch.zeros(3, 2), torch.zeros(4)])
    assert check(torch.ones(3, 2), torch.ones(4))


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(4, 2),
        torch.zeros(3, 2, dtype=torch.float64),
        torch.zeros(2, 3).t(),
        torch.zeros(3, 2).requires_grad_(),
        torch.nn.Parameter(torch.zeros(3, 2)),
        torch._neg_view(torch.zeros(3, 2)),
        torch.zeros(3, 2, device="meta"),
        None,
        1.0,
    ],
    ids=["size", "dtype", "strides", "requires_grad", "class", "negated", "device", "none", "number"],
)
def test_a_guard_refuses_tensors_that_differ(other):
    assert not _torch.guard([torch.zeros(3, 2)])(other)


def test_a_guard_refuses_under_another_dispatch_state():
    x = torch.zeros(3)
    check = _torch.guard([x])
    assert check(x)
    with Watch():
        assert not check(x)
        assert _torch.dispatch_modes() == 1
    with torch.inference_mode():
        assert not check(x)
    with torch.autocast("cpu"):
        assert not check(x)
        assert _torch.autocast_active()
    torch.func.grad(lambda t: (t.sum(), _assert(not check(t)))[0])(x)
    with FakeTensorMode():
        assert _torch.dispatch_modes() == 1
    assert _torch.dispatch_modes() == 0 and not _torch.autocast_active()


def _assert(condition):
    assert condition


def test_levels_and_modes_are_seen():
    assert _torch.functorch_level() is None
    torch.func.vmap(lambda t: (t, _assert(_torch.functorch_level() is not None))[0])(torch.zeros(2))
    assert not _torch.function_mode()
    with torch.device("cpu"):
        assert _torch.function_mode()
    assert not _torch.profiling()
    with torch.autograd.profiler.profile():
        assert _torch.profiling()


def test_tangents_are_seen():
    x = torch.zeros(2)
    assert not _torch.has_tangent(x)
    with forward_ad.dual_level():
        assert forward_ad._current_level >= 0
        assert _torch.has_tangent(forward_ad.make_dual(x, torch.ones(2)))
        assert not _torch.has_tangent(x)
    assert forward_ad._current_level < 0


def test_quick_apply_is_apply():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            assert ctx.saved_tensors[0].shape == grad.shape
            return grad * 2

    apply = _torch.quick_apply(Double)
    x = torch.ones(2, requires_grad=True)
    y = apply(x)
    assert y.tolist() == [2.0, 2.0] and type(y.grad_fn).__name__ == "DoubleBackward"
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_a_published_overload_is_what_torch_ops_finds():
    library = torch.library.Library("warpops_canary", "FRAGMENT")
    library.define("twice.cabc(Tensor x) -> Tensor")
    library.impl("twice.cabc", lambda x: x * 2, "CompositeExplicitAutograd")
    overload = torch.ops.warpops_canary.twice.cabc
    _torch.publish("warpops_canary", "twice", overload)
    assert torch.ops.warpops_canary.twice is overload is torch.ops.warpops_canary.twice.cabc
    assert "twice" not in list(torch.ops.warpops_canary)
    _torch.forget("warpops_canary", "twice", "other")
    assert torch.ops.warpops_canary.twice is overload
    _torch.forget("warpops_canary", "twice", "cabc")
    assert torch.ops.warpops_canary.twice is not overload
    _torch.destroy(library)


def test_aliases_are_seen_on_fakes_too():
    with FakeTensorMode():
        x = torch.zeros(4)
        assert _torch.is_alias(x, x[1:])
        assert not _torch.is_alias(x, torch.zeros(4))


def test_inductor_has_the_table_of_lowerings():
    from torch._inductor import lowering

    assert isinstance(lowering.user_lowerings, dict)
    assert callable(lowering.empty_strided) and callable(lowering.clone)


def test_dynamo_is_taught_to_read_a_warp_value():
    """The handler is found, its tuple is one of constants, and its guard sees a change in place."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    @torch.compile(fullgraph=True, backend=backend)
    def scale(x, v):
        _dynamo.teach()
        return x * _dynamo.numbers_of(v)[1]

    v = wp.vec3(1.0, 2.0, 3.0)
    assert scale(torch.ones(1), v).item() == 2.0
    assert scale(torch.ones(1), v).item() == 2.0
    assert len(graphs) == 1
    v[1] = 5.0
    assert scale(torch.ones(1), v).item() == 5.0
    assert len(graphs) == 2
    assert _dynamo.numbers_of(v) == (1.0, 5.0, 3.0)
    assert _dynamo.numbers_of("else") == "else"
