"""What people read: the nodes of graphs, Inductor's code, and graphs that are differentiated after they were traced."""

from __future__ import annotations

import re

import pytest
import torch
import warp as wp
from torch.fx.experimental.proxy_tensor import make_fx

import kernels
from support import check_against, close, leaf, run_script
from warpops import ArgumentError, GradientError, warp_op


@wp.kernel
def smooth(x: wp.array[float], tmp: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    tmp[i] = x[i] * x[i]
    y[i] = tmp[i] * x[i]


smooth_op = warp_op(smooth, "x[n] -> y[n]", scratch="tmp[n]")


def captured(function, *arguments):
    """The graph that Dynamo hands to a backend."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compile(function, fullgraph=True, backend=backend)(*arguments)
    assert len(graphs) == 1
    return graphs[0]


def test_dynamo_s_graph_is_readable():
    graph = captured(lambda x, w: kernels.product_op(x, w) * 2.0, torch.ones(3), torch.ones(3))
    [node] = [n for n in graph.graph.nodes if n.op == "call_function" and "product" in str(n.target)]
    assert node.name.startswith("product")
    assert [str(a) for a in node.args] == ["l_x_", "l_w_"]
    assert f"torch.ops.{kernels.product_op.overload}(l_x_, l_w_)" in graph.code
    assert "product.call" in graph.print_readable(print_output=False), "where it came from"


def test_an_exported_graph_is_readable():
    class Net(torch.nn.Module):
        def forward(self, x, w):
            return kernels.product_op(x, w)

    program = torch.export.export(Net(), (torch.ones(3), torch.ones(3)))
    for one in (program, program.run_decompositions()):
        [node] = [n for n in one.graph.nodes if n.op == "call_function"]
        assert node.name == "product"
        assert re.search(r"torch\.ops\.kernels\.product\.default\.schema_\w+\(x, w\)", one.graph_module.code)


def test_a_symbolically_traced_graph_is_readable():
    graph = torch.fx.symbolic_trace(lambda x: torch.ops.kernels.square(x) + 1.0)
    assert re.search(rf"square\w* = torch\.ops\.{re.escape(str(kernels.square_op.overload))}\(x\)", graph.code)
    check_against(graph, lambda x: x * x + 1.0, (torch.randn(3),))


def test_an_op_called_by_python_is_refused_by_symbolic_trace():
    """Its checks look at the arguments; ``torch.ops`` or ``torch.fx.wrap`` is the way."""
    with pytest.raises((torch.fx.proxy.TraceError, ArgumentError)):
        torch.fx.symbolic_trace(lambda x: kernels.square_op(x))


SCRIPT = """
import torch, warp as wp
from warpops import warp_op

wp.config.log_level = wp.LOG_ERROR

@warp_op("x[n], w[n] -> y[n]", name="shown::layer")
@wp.kernel
def layer(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * w[i]

x, w = (torch.ones(4, requires_grad=True) for _ in range(2))
torch.compile(lambda x, w: layer(x * 2.0, w) * 3.0, fullgraph=True)(x, w).sum().backward()
print(x.grad.tolist(), w.grad.tolist())
"""


@pytest.mark.slow
def test_the_output_code_has_a_bare_call(tmp_path):
    """``TORCH_LOGS=output_code``: one line forward and one backward, between buffers that Inductor planned."""
    log = tmp_path / "log.txt"
    out = run_script(
        SCRIPT,
        tmp_path / "script.py",
        TORCH_LOGS="output_code",
        TORCH_LOGS_OUT=str(log),
        TORCHINDUCTOR_FORCE_DISABLE_CACHES="1",
    )
    assert out.strip().splitlines()[-1] == str([6.0] * 4) + " " + str([6.0] * 4)
    lines = [line.rpartition("[__output_code] ")[2].strip() for line in log.read_text().splitlines()]
    calls = [line for line in lines if "torch.ops.shown" in line]
    assert len(calls) == 2, calls
    for call, name in zip(calls, ("layer_fwd_", "layer_bwd_"), strict=True):
        assert re.fullmatch(rf"torch\.ops\.shown\.{name}\.c\w+\((\w+, )+\w+\)", call), call
    assert not any(word in line for line in lines for word in ("auto_functionalized", "aten.clone", "aten.copy_"))


# --- graphs that are differentiated later -----------------------------------------------------------------------------


def test_a_graph_traced_without_gradients_has_them_all_the_same():
    graph = make_fx(lambda x, w: kernels.product_op(x, w) + x)(torch.ones(3), torch.ones(3))
    assert "product" in graph.code
    check_against(graph, lambda x, w: kernels.product_(x, w) + x, (torch.randn(3), torch.randn(3)))


def test_a_graph_that_drops_what_backward_needs_is_refused():
    graph = make_fx(lambda x: smooth_op(x))(torch.ones(3))
    x = torch.randn(3)
    close(graph(x), x**3)
    with torch.no_grad():
        close(graph(leaf(x)), x**3)
    with pytest.raises(GradientError, match="test_graphs::smooth: a graph that was traced without gradients"):
        graph(leaf(x))


def test_an_exported_program_is_differentiated_after_decomposition():
    class Net(torch.nn.Module):
        def forward(self, x, w):
            return kernels.product_op(x, w) + smooth_op(x) + x

    program = torch.export.export(Net(), (torch.ones(3), torch.ones(3))).run_decompositions()
    check_against(program.module(), lambda x, w: kernels.product_(x, w) + x**3 + x, (torch.randn(3), torch.randn(3)))


def test_an_exported_program_with_sizes_known_only_at_run_time():
    class Net(torch.nn.Module):
        def forward(self, x, mask):
            return kernels.square_op(x[mask])

    program = torch.export.export(Net(), (torch.randn(6), torch.tensor([True, False] * 3)))
    for one in (program, program.run_decompositions()):
        x = torch.randn(6)
        for mask in (x > 0, x < 0, x > -10):
            close(one.module()(x, mask), x[mask] ** 2)


def test_a_program_exported_with_vmap_over_an_op_that_is_not_there():
    op = torch.ops.warpops._mapped
    with pytest.raises(ArgumentError, match="nowhere::op isn't there: a saved program needs"):
        op("nowhere::op x (Tensor x) -> Tensor", [torch.ones(2, 3)], [], [])


def test_an_input_without_a_gradient_that_requires_one(mode):
    """It isn't differentiable, whatever PyTorch asks of it: the raw operator takes it as it is."""
    op = warp_op(kernels.product, "x[n], w[n] -> y[n]", name="test_graphs::fixed", nondiff="x, w")
    y = mode(op)(leaf(torch.ones(3)), leaf(torch.ones(3)))
    assert not y.requires_grad
