"""``torch.compile``: every backend, one graph, no recompilation when sizes change, and nothing stale."""

from __future__ import annotations

import pytest
import torch
import warp as wp
from torch.utils import _pytree

import kernels
from kinds import KINDS, rows
from support import INDUCTOR, check_against, close, compiled, graph_count, inductor, leaf
from warpops import warp_op


@wp.kernel
def mean_length(p: wp.array[wp.vec3], n: int, y: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(y, 0, wp.length(p[i]) / float(n))


mean_length_op = warp_op(mean_length, "p[m] -> y[1]", dim="m", init="zeros")


# --- kinds and backends -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", rows("compiled"))
def test_kinds(name):
    kind = KINDS[name]
    kind.agree(compiled(kind.call), kind.draw())


UNDER_INDUCTOR = (
    *("two inputs", "two outputs", "in-out", "grid", "numbers", "strided", "accumulating", "partly filled"),
    *("struct", "changed in place, and an output"),
)


@pytest.mark.slow
def test_kinds_under_inductor():
    """In one graph (it compiles once), between neighbours that Inductor fuses. The others differ by nothing that it sees."""
    chosen = [KINDS[name] for name in UNDER_INDUCTOR]
    draws = [kind.draw() for kind in chosen]

    def run(which, *tensors):
        tensors, results = list(tensors), []
        for kind, given in zip(chosen, draws, strict=True):
            function, own = kind.of(which(kind), given)
            results += [r.sin() for r in function(*(tensors.pop(0) * 1.5 for _ in own))]
        return tuple(results)

    tensors = [t for kind, given in zip(chosen, draws, strict=True) for t in kind.of(kind.call, given)[1]]
    check_against(
        inductor(lambda *t: run(lambda kind: kind.call, *t)), lambda *t: run(lambda kind: kind.reference, *t), tensors
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True, None])
def test_backends(backend, dynamic):
    function = torch.compile(kernels.product_op, fullgraph=True, backend=backend, dynamic=dynamic)
    check_against(function, kernels.product_, (torch.randn(5), torch.randn(5)))


@pytest.mark.slow
def test_inductor_with_dynamic_sizes():
    function = inductor(lambda x, w: kernels.gauss_op(x * 2.0, w).sum(0), dynamic=True)
    for n, k in ((4, 3), (5, 2), (9, 7)):
        check_against(function, lambda x, w: kernels.gauss_(x * 2.0, w).sum(0), (torch.randn(n), torch.randn(k)))
    assert graph_count() == 1


@pytest.mark.slow
def test_an_op_that_mutates_under_inductor():
    x, v = torch.zeros(4), torch.ones(4)

    def run(x, v):
        kernels.step_op(x, v * 2.0, 0.5)
        kernels.step_op(x, v, 1.0)
        return x * 10.0

    close(inductor(run)(x, v), torch.full((4,), 20.0))
    close(x, torch.full((4,), 2.0))


@pytest.mark.slow
def test_a_whole_training_step_under_inductor():
    x = torch.linspace(-1, 1, 8)
    target = torch.exp(-((x[:, None] - torch.tensor([0.3, -0.4])) ** 2))
    w = torch.nn.Parameter(torch.tensor([0.0, 0.0]))
    optimiser = torch.optim.SGD([w], lr=0.3)
    step = inductor(lambda w: (kernels.gauss_op(x, w) - target).square().mean())
    losses = []
    for _ in range(40):
        optimiser.zero_grad()
        loss = step(w)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 20
    assert graph_count() == 1


def test_compiled_autograd():
    x, w = leaf(torch.randn(4)), leaf(torch.randn(4))
    with torch._dynamo.config.patch(compiled_autograd=True):
        compiled(lambda x, w: kernels.product_op(x, w).sin())(x, w).sum().backward()
    want = [leaf(x), leaf(w)]
    kernels.product_(*want).sin().sum().backward()
    close(x.grad, want[0].grad)
    close(w.grad, want[1].grad)


@pytest.mark.slow
def test_cpp_wrapper():
    function = inductor(lambda x, w: kernels.gauss_op(x * 2.0, w) * 2.0, options={"cpp_wrapper": True})
    check_against(function, lambda x, w: kernels.gauss_(x * 2.0, w) * 2.0, (torch.randn(4), torch.randn(3)))


# --- around the op ----------------------------------------------------------------------------------------------------


def test_compiled_inside_compiled():
    inner = compiled(lambda x: kernels.square_op(x) + 1.0)
    outer = compiled(lambda x: inner(x) * kernels.square_op(x))
    check_against(outer, lambda x: (x * x + 1.0) * x * x, (torch.randn(4),))


def test_one_op_twice_and_two_ops():
    def net(square, product):
        return lambda x: product(square(square(x)), square(x))

    check_against(
        compiled(net(kernels.square_op, kernels.product_op)), net(kernels.square_, kernels.product_), (torch.randn(4),)
    )


def test_structures_and_methods():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.op = kernels.product_op
            self.ops = {"square": kernels.square_op}
            self.w = torch.nn.Parameter(torch.ones(4))

        def forward(self, batch):
            tensors, _ = _pytree.tree_flatten(batch)
            return {"y": [self.op(t, self.w) for t in tensors], "z": self.ops["square"](self.w)}

    net = Net()
    got = compiled(net)({"a": torch.ones(4), "b": (torch.full((4,), 2.0),)})
    close([t.detach() for t in got["y"]], [torch.ones(4), torch.full((4,), 4.0)])
    (got["y"][1].sum() + got["z"].sum()).backward()
    close(net.w.grad, torch.full((4,), 6.0))


def test_through_torch_ops():
    check_against(compiled(torch.ops.kernels.product), kernels.product_, (torch.randn(4), torch.randn(4)))
    check_against(compiled(kernels.product_op.overload), kernels.product_, (torch.randn(4), torch.randn(4)))


def test_no_grad_inside_compiled_code():
    def run(x):
        with torch.no_grad():
            a = kernels.square_op(x)
        return a * kernels.square_op(x)

    x = leaf(torch.tensor([2.0, 3.0]))
    compiled(run)(x).sum().backward()
    close(x.grad, (2 * x * x * x).detach())


def test_functional_call():
    module = torch.nn.Module()
    module.w = torch.nn.Parameter(torch.zeros(3))
    module.forward = lambda x: kernels.product_op(x, module.w)
    w = torch.randn(3)
    x = torch.randn(3)
    close(torch.func.functional_call(module, {"w": w}, (x,)), x * x * w)


# --- recompilation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dynamic", "limit"), [(None, 2), (True, 1)])
def test_sizes_do_not_recompile(dynamic, limit):
    function = compiled(lambda p: mean_length_op(p * 1.0, p.shape[0]), dynamic=dynamic)
    for n in (100, 101, 117, 64, 3):
        p = torch.randn(n, 3, requires_grad=True)
        y = function(p)
        (grad,) = torch.autograd.grad(y.sum(), p)
        length = p.detach().norm(dim=-1, keepdim=True)
        close(y.detach()[0], length.mean())
        close(grad, p.detach() / length / n)
    assert graph_count() <= limit


def test_sizes_under_the_manual_mark():
    x = torch.randn(6, 4)
    torch._dynamo.mark_dynamic(x, 0)
    function = compiled(kernels.triple_op)
    close(function(x), kernels.triple_(x))
    close(function(torch.ones(9, 4)), torch.full((9, 4), 2.0))
    assert graph_count() == 1


def test_ints_do_not_recompile():
    function = compiled(lambda x, n: kernels.mixed_op(x, 1.0, n, False))
    x = torch.randn(3)
    for n in range(3, 15):
        close(function(x, n), x * x + n)
    assert graph_count() <= 2


@pytest.mark.parametrize("run", [compiled, INDUCTOR])
def test_a_float_is_never_stale(run):
    """The value is used before the op as well, where PyTorch makes it symbolic."""
    function = run(lambda x, a: kernels.scale_op(x * a, a * 2.0 + 1.0))
    x = torch.randn(3)
    for a in (0.5, 0.25, 3.0):
        close(function(x, a), x * a * (a * 2.0 + 1.0))


def test_a_float_of_the_module_is_never_stale():
    class Net(torch.nn.Module):
        dt = 0.5

        def forward(self, x):
            return kernels.scale_op(x, self.dt)

    net = Net()
    function = compiled(net)
    x = torch.randn(3)
    for dt in (0.5, 0.25, 3.0):
        net.dt = dt
        close(function(x), x * dt)


def test_a_bool_is_never_stale():
    function = compiled(lambda x, flip: kernels.mixed_op(x, 1.0, 0, flip))
    x = torch.randn(3)
    for flip in (True, False, True):
        close(function(x, flip), kernels.mixed_(x, 1.0, 0, flip))


def test_sizes_known_only_at_run_time():
    """``x[mask]`` has an unbacked size: it must pass through without a guard."""
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        function = compiled(lambda x, m: kernels.product_op(x[m], (x[m] * 2.0)))
        x = torch.randn(8)
        for mask in (x > 0, x < 0, x > -10):
            kept = x[mask]
            close(function(x, mask), kept * kept * kept * 2.0)


def test_equal_kernels_of_one_name_do_not_mix():
    """Two ops of one kernel, with different contracts."""
    plain = warp_op(kernels.square, "x[n] -> y[n]", dim="n")
    longer = warp_op(kernels.square, "x[n] -> y[n + 1]", dim="n")
    x = torch.tensor([2.0, 3.0])
    a, b = compiled(lambda x: (plain(x), longer(x)))(x)
    assert a.tolist() == [4.0, 9.0]
    assert b.tolist() == [4.0, 9.0, 0.0]
