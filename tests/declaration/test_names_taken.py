"""Redefinition takes a name over: which op has it then, and what becomes of the one before."""

from __future__ import annotations

import gc
import importlib
import sys

import pytest
import torch
import warp as wp

import kernels
import warpops
from support import close, compiled, run_main
from warpops import ArgumentError, warp_op

pytestmark = pytest.mark.usefixtures("frozen")
X = torch.tensor([1.0, 2.0])


class Call(torch.nn.Module):
    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, *given):
        return self.op(*given)


def scale(factor, name):
    """An op of an explicit name."""

    @wp.kernel
    def body(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = wp.static(factor) * x[i]

    return warp_op(body, "x[n] -> y[n]", dim="n", name=name)


MODULE = """
import warp as wp
from warpops import warp_op
{above}
@warp_op
@wp.kernel
def f(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = {factor} * x[i]

first = f

@warp_op
@wp.kernel
def f(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = 10.0 * {factor} * x[i]
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes and imports, or reloads, a module with two ops of one name."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(factor, above=""):
        (tmp_path / "names_module.py").write_text(MODULE.format(factor=factor, above=above))
        importlib.invalidate_caches()
        found = sys.modules.get("names_module")
        return importlib.reload(found) if found else importlib.import_module("names_module")

    yield load
    sys.modules.pop("names_module", None)


@pytest.mark.parametrize("above", ["", "# lines that weren't there\n\n"], ids=["same lines", "other lines"])
def test_a_reload_takes_names_over_and_numbers_in_one_run_stay(module, above):
    loaded = module(2.0)
    old_first, old_second = loaded.first, loaded.f
    assert (old_first.name, old_second.name) == ("names_module::f", "names_module::f_1")
    module(3.0, above)
    assert (loaded.first.name, loaded.f.name) == ("names_module::f", "names_module::f_1")
    close(torch.ops.names_module.f(X), 3 * X)
    close(torch.ops.names_module.f_1(X), 30 * X)
    close(torch.ops.names_module.f.default(X), 3 * X)
    close(old_first(X), 2 * X)
    close(old_second(X), 20 * X)
    assert [op for op in warpops.list_ops() if op.name.startswith("names_module")] == [loaded.first, loaded.f]


CELLS = """
import linecache, torch, warp as wp, warpops

CELL = '''
@warpops.warp_op
@wp.kernel
def cellop(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = {factor} * x[i]
'''

def run(number, factor, lines):
    text, name = lines * chr(10) + CELL.format(factor=factor), f"<ipython-input-{number}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), globals())

kept = []
for number, factor in enumerate((2.0, 3.0, 4.0)):
    run(number, factor, number)
    kept.append(cellop)
    assert cellop.name == "warpops::cellop", cellop.name
    assert torch.ops.warpops.cellop(torch.ones(1)).item() == factor
    assert torch.ops.warpops.cellop.default(torch.ones(1)).item() == factor
assert [op(torch.ones(1)).item() for op in kept] == [2.0, 3.0, 4.0]
assert [op for op in warpops.list_ops() if op.name == "warpops::cellop"] == [cellop]
"""


def test_a_notebook_cell_that_is_run_again_keeps_its_name(tmp_path):
    run_main(CELLS, tmp_path / "cells.py")


def test_the_newest_has_the_name_and_the_one_before_it_afterwards():
    first = scale(2.0, "taken::newest")
    second = scale(3.0, "taken::newest")
    for call in (torch.ops.taken.newest, torch.ops.taken.newest.default):
        close(call(X), 3 * X)
    del second
    gc.collect()
    for call in (torch.ops.taken.newest, torch.ops.taken.newest.default):
        close(call(X), 2 * X)
    assert [op for op in warpops.list_ops() if op.name == "taken::newest"] == [first]


def test_a_new_backward_of_the_earlier_op_does_not_take_the_name_back():
    first = scale(2.0, "taken::backward")
    second = scale(3.0, "taken::backward")
    first.register_backward(lambda ctx, grad: 7.0 * grad)
    x = X.clone().requires_grad_()
    for call, factor in ((first, 7.0), (second, 3.0), (torch.ops.taken.backward, 3.0)):
        close(torch.autograd.grad(call(x).sum(), x)[0], torch.full((2,), factor))
    close(torch.ops.taken.backward.default(X), 3 * X)


def test_an_op_whose_name_was_taken_can_not_be_exported():
    first = scale(2.0, "taken::exported")
    second = scale(3.0, "taken::exported")
    for strict in (False, True):
        with pytest.raises(Exception, match="has taken the name") as caught:
            torch.export.export(Call(first), (X,), strict=strict)
        assert f"{__name__}.scale" in str(caught.value) and __file__ in str(caught.value)
        assert "name='namespace::op'" in str(caught.value)
    close(torch.export.export(Call(second), (X,)).module()(X), 3 * X)
    with pytest.raises(ArgumentError, match="has taken the name"):
        first.custom_op  # noqa: B018


def test_a_compiled_graph_keeps_its_op_and_a_program_calls_the_newest():
    op = scale(2.0, "taken::graphs")
    graph = compiled(lambda x, op=op: op(x) + 1.0)
    program = torch.export.export(Call(op), (X,))
    module = program.module()
    close(graph(X), 2 * X + 1)
    op = scale(3.0, "taken::graphs")
    close(graph(X), 2 * X + 1)
    close(module(X), 3 * X)
    close(program.module()(X), 3 * X)
    x = X.clone().requires_grad_()
    close(torch.autograd.grad(module(x).sum(), x)[0], torch.full((2,), 3.0))


def test_a_program_in_memory_whose_schema_is_another_now():
    op = scale(2.0, "taken::schema")
    program = torch.export.export(Call(op), (X,))
    graph = torch.fx.Interpreter(program.module())
    other = warp_op(kernels.product, "x[n], w[n] -> y[n]", dim="n", name="taken::schema")
    close(torch.ops.taken.schema.default(X, X), X**3)
    for call in (program.module(), graph.run):
        with pytest.raises(ArgumentError, match="taken::schema.*export"):
            call(X)
    del other
    gc.collect()
    close(torch.ops.taken.schema.default(X), 2 * X)
    for call in (program.module(), graph.run):
        close(call(X), 2 * X)


def test_schemas_that_alternate_leave_nothing(capfd):
    """Each turn takes an operator out that shares an entry of PyTorch's table with others of its name."""
    held, counts = [], []
    for turn in range(12):
        kernel, signature = ((kernels.square, "x[n] -> y[n]"), (kernels.product, "x[n], w[n] -> y[n]"))[turn % 2]
        op = warp_op(kernel, signature, dim="n", name="taken::alternate")
        held.append(torch.ops.taken.alternate.default)
        given = [X] * (1 + turn % 2)
        for call in (op, torch.ops.taken.alternate, torch.ops.taken.alternate.default):
            close(call(*given), X ** (2 + turn % 2))
        if turn % 3 == 0:
            del op
        gc.collect()
        counts.append(sum("taken::alternate" in name for name in torch._C._dispatch_get_all_op_names()))
    assert counts[5] == counts[-1]
    assert not capfd.readouterr().err


def test_an_overload_that_is_held_longer_than_its_op():
    """PyTorch crashes where an operator that was taken out is called."""
    op = scale(2.0, "taken::held")
    overload, plain = op.overload, torch.ops.taken.held.default
    del op
    gc.collect()
    with pytest.raises(RuntimeError, match="taken::held.* is gone: its WarpOp was collected"):
        overload(X)
    with pytest.raises(ArgumentError, match="taken::held isn't there"):
        plain(X)
