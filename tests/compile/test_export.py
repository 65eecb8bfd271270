"""``torch.export``: one node, sizes stay symbolic, programs are saved and loaded."""

from __future__ import annotations

import io

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import warp as wp

import kernels
from kinds import KINDS, rows
from support import close
from warpops import warp_op


@wp.kernel
def bond(x: wp.array[wp.vec3], k: wp.array[float], r0: float, y: wp.array[float]):
    i = wp.tid()
    d = wp.length(x[i]) - r0
    y[i] = k[i] * d * d


bond_op = warp_op(bond, "x[n], k[n] -> y[n]", dim="n")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, x, k):
        return bond_op(x * self.scale, k, 0.3).sum()


def expected(x, k):
    return (k * ((x * 1.5).norm(dim=-1) - 0.3) ** 2).sum()


def inputs(n):
    return torch.randn(n, 3), torch.rand(n)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    n = torch.export.Dim("n", min=1)
    program = torch.export.export(Net(), inputs(5), dynamic_shapes={"x": {0: n}, "k": {0: n}}, strict=strict)
    nodes = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert len([name for name in nodes if "bond" in name]) == 1, nodes
    for m in (5, 9, 1):
        x, k = inputs(m)
        close(program.module()(x, k).detach(), expected(x, k))
    lowered = program.run_decompositions()
    assert any("bond" in str(node.target) for node in lowered.graph.nodes)


class Calling(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given):
        return self.function(*given)


@pytest.mark.parametrize("name", rows("exported"))
def test_kinds(name):
    """One node each; saved and loaded, it computes on other numbers what the op does, gradients too."""
    kind = KINDS[name]
    program = torch.export.export(Calling(kind.call), kind.draw())
    assert kind.op.name.replace("::", ".") in str(program.graph)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    kind.agree(torch.export.load(buffer).module(), kind.draw())


def test_save_and_load_with_sizes_that_change():
    n = torch.export.Dim("n", min=2)
    program = torch.export.export(Net(), inputs(5), dynamic_shapes={"x": {0: n}, "k": {0: n}})
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    x, k = inputs(7)
    close(torch.export.load(buffer).module()(x, k).detach(), expected(x, k))


def test_an_exported_program_has_gradients():
    program = torch.export.export(Net(), inputs(4))
    x, k = inputs(4)
    x.requires_grad_()
    program.module()(x, k).backward()
    want = x.detach().clone().requires_grad_()
    expected(want, k).backward()
    close(x.grad, want.grad)


@pytest.mark.parametrize("lowered", [False, True], ids=["as exported", "decomposed"])
def test_an_exported_program_has_second_derivatives(lowered):
    program = torch.export.export(Net(), inputs(4))
    module = (program.run_decompositions() if lowered else program).module()
    x, k = inputs(4)
    found = []
    for function in (module, expected):
        given = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(given, k), given, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), given)[0])
    close(*found)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(module(forward_ad.make_dual(x, x), k)).tangent
    close(tangent.detach(), torch.func.jvp(lambda x: expected(x, k), (x,), (x,))[1])


def test_the_tangent_op_is_exported():
    class Along(torch.nn.Module):
        def forward(self, x, k):
            return bond_op.tangent(x, k, 0.3, tangent_x=x)[1]

    program = torch.export.export(Along(), inputs(4))
    x, k = inputs(4)
    close(program.module()(x, k), bond_op.tangent(x, k, 0.3, tangent_x=x)[1])
    assert any("bond_tangent" in str(node.target) for node in program.graph.nodes)


def test_an_op_that_mutates_is_exported():
    class Step(torch.nn.Module):
        def forward(self, x, v):
            x = x.clone()
            kernels.step_op(x, v, 0.5)
            return x * 2.0

    program = torch.export.export(Step(), (torch.zeros(3), torch.ones(3)))
    close(program.module()(torch.ones(3), torch.ones(3)), torch.full((3,), 3.0))


def make_numbered():
    @wp.kernel
    def numbered(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = x[i] * x[i]

    return warp_op(numbered, "x[n] -> y[n]", dim="n")


FIRST, SECOND = make_numbered(), make_numbered()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("how", [lambda op: op, lambda op: op.overload, torch.vmap, lambda op: op.tangent])
def test_a_numbered_default_name_is_refused(how, strict):
    assert (FIRST.name, SECOND.name) == ("test_export::numbered", "test_export::numbered_1")
    with pytest.raises(Exception, match="name=") as caught:
        torch.export.export(
            Calling(how(SECOND)), (torch.ones(2, 3) if how is torch.vmap else torch.ones(3),), strict=strict
        )
    assert SECOND.name in str(caught.value)


@pytest.mark.parametrize("strict", [False, True])
def test_a_program_calls_the_plain_name(strict):
    program = torch.export.export(Calling(bond_op), (*inputs(3), 0.3), strict=strict)
    for one in (program, program.run_decompositions()):
        (node,) = [node for node in one.graph.nodes if "bond" in str(node.target)]
        assert node.target is torch.ops.test_export.bond.default
    (node,) = [
        node
        for node in torch.export.export(Calling(bond_op.overload), (*inputs(3), 0.3)).graph.nodes
        if "bond" in str(node.target)
    ]
    assert node.target is bond_op.overload
