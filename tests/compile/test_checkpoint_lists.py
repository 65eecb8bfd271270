"""Selective checkpointing by lists and sets of ``op.overload``: what they name is saved, and not launched again."""

from __future__ import annotations

import functools
import gc

import pytest
import torch
import warp as wp
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import kernels
from support import close, leaf
from warpops import warp_op
from warpops.launch.launcher import Launcher


@wp.kernel
def through_scratch(x: wp.array[float], tmp: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    tmp[i] = x[i] * x[i]
    y[i] = tmp[i] * x[i]


scratch_op = warp_op(through_scratch, "x[n] -> y[n]", dim="n", scratch="tmp[n]")

OPS = {"square": (kernels.square_op, lambda x: x**2), "scratch": (scratch_op, lambda x: x**3)}


def policy_of(chosen):
    def policy(ctx, func, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if func in chosen else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


@pytest.fixture
def launches(monkeypatch):
    """How often a kernel was launched forward."""
    counted = []
    original = Launcher.forward
    monkeypatch.setattr(Launcher, "forward", lambda *given: (counted.append(1), original(*given))[1])
    return counted


@pytest.mark.parametrize("title", OPS)
@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (lambda op: [op.overload], 1),
        (lambda op: policy_of({op.overload, torch.ops.aten.mm.default}), 1),
        (lambda op: policy_of([op.overload]), 1),
        (lambda op: [kernels.product_op.overload], 2),
        (lambda op: policy_of({kernels.product_op.overload}), 2),
    ],
    ids=["list", "policy over a set", "policy over a list", "another op", "a set of another op"],
)
def test_eager(title, listed, expected, launches):
    op, reference = OPS[title]
    contexts = functools.partial(create_selective_checkpoint_contexts, listed(op))
    x = leaf(torch.linspace(0.5, 2.0, 4))
    y = checkpoint(lambda x: op(x.sin()).cos(), x, use_reentrant=False, context_fn=contexts)
    y.sum().backward()
    assert len(launches) == expected
    want = leaf(x)
    reference(want.sin()).cos().sum().backward()
    close(x.grad, want.grad)


@pytest.mark.parametrize("title", OPS)
@pytest.mark.parametrize("saved", [True, False])
def test_compiled(title, saved):
    """The graph of backward holds the op where it is made again."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    op, reference = OPS[title]
    graphs = {"forward": [], "backward": []}

    def keep(name):
        def compiler(module, inputs):
            graphs[name] += [
                node for node in module.graph.nodes if str(node.target).startswith(op.name.replace("::", "."))
            ]
            return make_boxed_func(module)

        return compiler

    backend = aot_autograd(
        fw_compiler=keep("forward"), bw_compiler=keep("backward"), partition_fn=min_cut_rematerialization_partition
    )
    listed = [op.overload if saved else kernels.product_op.overload]
    contexts = functools.partial(create_selective_checkpoint_contexts, listed)

    def run(x):
        return checkpoint(lambda x: op(x.sin()).cos(), x, use_reentrant=False, context_fn=contexts)

    x = leaf(torch.linspace(0.5, 2.0, 4))
    torch.compile(run, fullgraph=True, backend=backend)(x).sum().backward()
    forwards = [node for node in graphs["backward"] if "_bwd" not in str(node.target)]
    assert len(graphs["forward"]) == 1
    assert bool(forwards) is not saved, graphs["backward"]
    want = leaf(x)
    reference(want.sin()).cos().sum().backward()
    close(x.grad, want.grad)


def test_the_raw_op_is_the_public_one_for_lists_alone():
    op = kernels.square_op
    raw = op._registration.ways.ops.forward
    assert raw in [op.overload]
    assert op.overload in {raw}
    assert raw is not op.overload
    assert raw not in [kernels.product_op.overload]
    assert str(raw) != str(op.overload)
    assert raw != kernels.product_op._registration.ways.ops.forward


def test_a_list_names_the_op_after_others_of_its_name_came_and_went(launches):
    """PyTorch looks raw operators up by name when a mode meets them first."""
    older = warp_op(kernels.square, "x[n] -> y[n]", dim="n", name="lists::square")
    newer = warp_op(kernels.square, "x[n] -> y[n]", dim="n", name="lists::square")
    gone = warp_op(kernels.square, "x[n] -> y[n]", dim="n", name="lists::square")
    del gone
    gc.collect()
    for op in (older, newer):
        contexts = functools.partial(create_selective_checkpoint_contexts, [op.overload])
        x = leaf(torch.linspace(0.5, 2.0, 4))
        launches.clear()
        checkpoint(lambda x, op=op: op(x).cos(), x, use_reentrant=False, context_fn=contexts).sum().backward()
        assert len(launches) == 1
