"""Where PyTorch goes wrong without a word, as far as no other file has it: each of these was once a silent fault."""

from __future__ import annotations

import functools
import re

import pytest
import torch
import warp as wp
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import kernels
from support import check_against, close, compiled, eager, graph_count, leaf
from warpops import warp_op
from warpops.private.short import FAST

# --- the contract's hash ----------------------------------------------------------------------------------------------

OFFSET = 1


def overload_of(**options):
    """The name under which compiled graphs hold the op, less the number that tells living namesakes apart."""
    op = warp_op(kernels.square, "x[n] -> y", **{"dim": "n", "name": "test_traps::hashed", **options})
    return re.sub(r"_\d+$", "", str(op.overload))


def uses_global(x):
    return x.shape[0] + OFFSET


def with_default(x, extra=0):
    return x.shape[0] + extra


def closing_over(extra):
    return lambda x: x.shape[0] + extra


def calls_another(x):
    return uses_global(x)


def test_the_same_contract_has_the_same_name():
    for make in (
        lambda: "n",
        lambda: closing_over(1),
        lambda: uses_global,
        lambda: functools.partial(with_default, extra=1),
    ):
        assert overload_of(shapes={"y": make()}) == overload_of(shapes={"y": make()})


def test_whatever_changes_a_shape_changes_the_name(monkeypatch):
    names = [
        overload_of(shapes={"y": "n"}),
        overload_of(shapes={"y": "n + 1"}),
        overload_of(shapes={"y": closing_over(1)}),
        overload_of(shapes={"y": closing_over(2)}),
        overload_of(shapes={"y": functools.partial(with_default, extra=1)}),
        overload_of(shapes={"y": functools.partial(with_default, extra=2)}),
        overload_of(shapes={"y": uses_global}),
        overload_of(shapes={"y": calls_another}),
    ]
    monkeypatch.setitem(globals(), "OFFSET", 2)
    names += [overload_of(shapes={"y": uses_global}), overload_of(shapes={"y": calls_another})]
    assert len(set(names)) == len(names)


def test_whatever_changes_a_gradient_changes_the_name():
    def name(**options):
        op = warp_op(kernels.product, "x[n], w[n] -> y[n]", **{"dim": "n", "name": "test_traps::grads", **options})
        return str(op.overload)

    names = [name(), name(nondiff="w"), name(nondiff="x"), name(nondiff="x, w"), name(init="zeros")]
    assert len(set(names[:4])) == 4


# --- what watches the dispatcher --------------------------------------------------------------------------------------


class Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_functional_ops_only():
    """A mutating op under a mode that saves results gave wrong gradients."""
    x, w = leaf(torch.randn(4)), leaf(torch.randn(4))
    with Watch() as watch:
        kernels.product_op(x, w).sum().backward()
    mine = [f for f in watch.seen if "product" in str(f)]
    assert len(mine) == 2, "one forward, one backward"
    assert not any(f._schema.is_mutable for f in mine)
    close(x.grad, (2 * x * w).detach())


@pytest.mark.parametrize("policy", list(CheckpointPolicy), ids=lambda policy: policy.name.lower())
def test_selective_checkpointing(mode, policy):
    def choose(ctx, func, *args, **kwargs):
        return policy if "product" in str(func) else CheckpointPolicy.PREFER_RECOMPUTE

    def block(x, w):
        return kernels.product_op(x.sin(), w).cos() * w

    def run(x, w):
        contexts = functools.partial(create_selective_checkpoint_contexts, choose)
        return checkpoint(block, x, w, use_reentrant=False, context_fn=contexts)

    check_against(mode(run), lambda x, w: kernels.product_(x.sin(), w).cos() * w, (torch.randn(4), torch.randn(4)))


def test_the_profiler_names_the_kernel(mode):
    x, function = leaf(torch.randn(4)), mode(kernels.square_op)
    function(x).sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function(x).sum().backward()
    names = [event.key for event in profile.key_averages()]
    assert f"kernels::square_{'fwd' if FAST or mode is compiled else 'run'}" in names, names
    assert "kernels::square_bwd" in names, names
    if mode is eager:
        assert any("square" in name and "Backward" in name for name in names), names


def test_the_graph_names_the_kernel():
    assert "square" in kernels.square_op(leaf(torch.randn(3))).grad_fn.name()


# --- gradients that nobody asked for ----------------------------------------------------------------------------------


class Fills(TorchDispatchMode):
    """Counts tensors made of zeros, or filled."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += any(word in str(func) for word in ("zeros", "fill_", "zero_"))
        return func(*args, **(kwargs or {}))


def test_an_unused_output_s_cotangent_is_not_made():
    p, k = leaf(torch.randn(4, 3)), torch.rand(4)
    energy, _ = kernels.spring_op(p, k)
    seed = torch.ones(4)
    with Fills() as fills:
        torch.autograd.grad(energy, p, seed)
    assert fills.count == 0, "the second output's cotangent was filled with zeros"


# --- subclasses, modes and odd tensors --------------------------------------------------------------------------------


class Plain(torch.Tensor):
    """The least of subclasses."""


def test_a_tensor_subclass(mode):
    x = torch.randn(4).as_subclass(Plain)
    close(torch.Tensor(kernels.square_op(x)), torch.Tensor(x) ** 2)
    close(kernels.square_op(torch.nn.Parameter(x)).detach().as_subclass(torch.Tensor), x.as_subclass(torch.Tensor) ** 2)


class Wrapper(torch.Tensor):
    """A subclass that holds a tensor and intercepts every operator, as DTensor and quantised tensors do."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )
        made.inner = inner
        return made

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Wrapper(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        unwrap = lambda t: t.inner if isinstance(t, Wrapper) else t  # noqa: E731
        results = function(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))
        SEEN.append(function)
        wrapped = tree_map(lambda t: Wrapper(t) if isinstance(t, torch.Tensor) else t, results)
        return return_and_correct_aliasing(function, args, kwargs or {}, wrapped)

    def __repr__(self):
        return f"Wrapper({self.inner})"


SEEN = []


@pytest.mark.filterwarnings("ignore:.*_stable_hash_for_caching.*:UserWarning")
@pytest.mark.parametrize("second", [False, True], ids=["one", "both"])
def test_a_wrapper_subclass(mode, second):
    """Its ``__torch_dispatch__`` meets functional operators, forward and backward, and its results are wrapped."""
    a, b = torch.randn(4), torch.randn(4)
    SEEN.clear()
    x = Wrapper(a).requires_grad_()
    w = Wrapper(b).requires_grad_() if second else leaf(b)
    y = mode(lambda x, w: kernels.product_op(x, w) * 2.0)(x, w)
    assert type(y) is Wrapper
    gx, gw = torch.autograd.grad(y.sum(), (x, w))
    assert type(gx) is Wrapper
    close(y.inner.detach(), a * a * b * 2.0)
    close(gx.inner, 4.0 * a * b)
    close(gw.inner if isinstance(gw, Wrapper) else gw, 2.0 * a * a)
    if mode is eager:
        mine = [function for function in SEEN if "product" in str(function)]
        assert len(mine) == 2 and not any(function._schema.is_mutable for function in mine)


def test_a_wrapper_subclass_that_is_changed_in_place():
    x = Wrapper(torch.zeros(4))
    kernels.step_op(x, Wrapper(torch.ones(4)), 2.0)
    close(x.inner, torch.full((4,), 2.0))


def test_a_parameter_and_a_buffer(mode):
    w = torch.nn.Parameter(torch.randn(4))
    b = torch.nn.Buffer(torch.randn(4))
    y = mode(kernels.product_op)(b, w)
    y.sum().backward()
    close(w.grad, b * b)


def test_sizes_of_zero_and_one_specialise_and_stay_right():
    function = compiled(kernels.gauss_op, dynamic=True)
    for n, k in ((4, 3), (1, 3), (4, 1), (1, 1), (0, 3), (5, 2)):
        check_against(function, kernels.gauss_, (torch.randn(n), torch.randn(k)))


def test_sizes_of_zero_and_one_cost_two_graphs_at_most():
    function = compiled(kernels.product_op, dynamic=True)
    for n in (5, 1, 0, 9, 2, 1, 0, 17, 3):
        check_against(function, kernels.product_, (torch.randn(n), torch.randn(n)))
    assert graph_count() <= 3


def test_module_state_under_deterministic_fill():
    """PyTorch fills fresh memory with nan in this mode; nothing of it may be seen."""
    x = leaf(torch.randn(4))
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        y = kernels.keep_op(x, torch.tensor([True, False, True, False]))
        y.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = before
    assert not bool(y.isnan().any())
    assert not bool(x.grad.isnan().any())


def test_a_large_index_type_is_not_read_as_a_small_one():
    """An int64 index array for an int32 argument would be read as pairs of halves."""
    with pytest.raises(ValueError, match="'index': expected dtype torch.int32 .* got torch.int64"):
        kernels.scatter_op(torch.ones(2), torch.tensor([0, 1]), 2)


@wp.kernel
def far_apart(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i, 0]


def test_a_stride_that_warp_can_not_hold():
    """Warp's strides are 31-bit bytes: a tensor beyond that must be copied or refused, never wrapped around."""
    op = warp_op(far_apart, "x[n, 1] -> y[n]", dim="n")
    far = torch.empty_strided((2, 1), (2**29, 1))
    far[0, 0], far[1, 0] = 3.0, 4.0
    try:
        got = op(far)
    except ValueError as error:
        assert "argument 'x'" in str(error)  # noqa: PT017
    else:
        assert got.tolist() == [3.0, 4.0]
    close(op(torch.ones(1).expand(2, 1)), torch.ones(2))
