"""What ops are called, who holds them, and what happens when a name is given twice."""

from __future__ import annotations

import gc
import linecache
import weakref

import pytest
import torch
import warp as wp

import kernels
import warpops
from support import close, compiled, run_main
from warpops import SignatureError, warp_op
from warpops.calls import ways
from warpops.register import unregister

pytestmark = pytest.mark.usefixtures("frozen")


@wp.kernel
def named(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = 2.0 * x[i]


@wp.kernel
def other(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = 3.0 * x[i]


def make(kernel=named, **options):
    return warp_op(kernel, "x[n] -> y[n]", dim="n", **options)


X = torch.tensor([1.0, 2.0])


def factory(factor):
    @wp.kernel
    def produced(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = wp.static(factor) * x[i]

    return make(produced)


def test_a_default_name_is_numbered_and_free_again():
    first, second, third = factory(2.0), factory(3.0), factory(4.0)
    assert [op.name for op in (first, second, third)] == [
        "test_names::produced",
        "test_names::produced_1",
        "test_names::produced_2",
    ]
    held = make(), make()
    assert [op.name for op in held] == ["test_names::named", "test_names::named_1"], "two ops of one kernel in one run"
    del second
    gc.collect()
    again = factory(5.0)
    assert again.name == "test_names::produced_1"
    for op, factor in ((first, 2.0), (third, 4.0), (again, 5.0)):
        close(op(X), factor * X)
        close(getattr(torch.ops.test_names, op.name.split("::")[1]).default(X), factor * X)


def test_a_second_op_of_one_kernel_is_numbered():
    first, second = make(), make()
    assert (first.name, second.name) == ("test_names::named", "test_names::named_1")
    close(second(X), first(X))


def test_the_namespace_of_the_main_module(tmp_path):
    script = """
import warp as wp
from warpops import warp_op

@wp.kernel
def double(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = 2.0 * x[i]

op = warp_op(double, "x[n] -> y[n]", dim="n")
"""
    assert run_main(script, tmp_path / "script.py")["op"].name == "warpops::double"


def test_an_explicit_name():
    op = make(name="mine::doubled")
    assert op.name == "mine::doubled"
    close(torch.ops.mine.doubled(X), 2 * X)
    close(compiled(torch.ops.mine.doubled)(X), 2 * X)


def test_an_explicit_name_given_again_replaces():
    """A notebook cell that is run twice, with an edit in between."""
    first = make(name="mine::edited")
    close(torch.ops.mine.edited(X), 2 * X)
    second = make(other, name="mine::edited")
    close(torch.ops.mine.edited(X), 3 * X)
    close(second(X), 3 * X)
    close(first(X), 2 * X)
    assert [op for op in warpops.list_ops() if op.name == "mine::edited"] == [second]
    del first
    gc.collect()
    close(torch.ops.mine.edited(X), 3 * X)
    x = X.clone().requires_grad_()
    torch.ops.mine.edited(x).sum().backward()
    close(x.grad, torch.full((2,), 3.0))


def registered():
    """What is kept of ops outside of them: operators, their fakes and rules, and generated text."""
    gc.collect()
    return {
        "operators": len(torch._C._dispatch_get_all_op_names()),
        "fakes": len(torch._library.simple_registry.singleton._data),
        "texts": sum(name.startswith("<warpops") for name in linecache.cache),
        "registered": len(unregister._known),
        "ops": len(warpops.list_ops()),
        "ways": len(ways.by_key),
    }


@pytest.mark.parametrize("name", ["mine::cell", None], ids=["explicit", "dropped"])
def test_a_cell_that_is_run_fifty_times_leaves_nothing(name, capfd, request):
    """Warnings are errors in this suite; a new kernel each time, as in a notebook."""
    op, before = None, None
    request.addfinalizer(gc.unfreeze)
    gc.freeze()  # what is there already needn't be looked through a hundred times
    for turn in range(60):
        if name is None:
            op = None
            gc.collect()

        @wp.kernel
        def cell(x: wp.array[float], y: wp.array[float]):
            i = wp.tid()
            y[i] = x[i] * x[i]

        op = make(cell, **({} if name is None else {"name": name}))
        x = X.clone().requires_grad_()
        op(x).sum().backward()
        close(x.grad, 2 * X)
        torch.ops.mine.cell(X) if name is not None else None
        gc.collect()
        if turn == 9:
            before = registered()
    assert registered() == before
    assert op.name == (name or "test_names::cell")
    assert "arning" not in capfd.readouterr().err


def test_a_replacement_with_another_schema():
    make(name="mine::reshaped")
    op = warp_op(kernels.product, "x[n], w[n] -> y[n]", dim="n", name="mine::reshaped")
    close(torch.ops.mine.reshaped(X, X), X * X * X)
    assert op.schema.count("Tensor") == 3


def test_a_replaced_op_in_compiled_code_is_the_new_one():
    op = make(name="mine::recompiled")
    function = compiled(lambda x: op(x) + 1.0)
    close(function(X), 2 * X + 1)
    op = make(other, name="mine::recompiled")
    close(function(X), 3 * X + 1)


def test_list_ops_holds_nothing():
    gc.collect()
    before = len(warpops.list_ops())
    op = make()
    assert op in warpops.list_ops()
    assert len(warpops.list_ops()) == before + 1
    assert kernels.square_op in warpops.list_ops()
    del op
    gc.collect()
    assert len(warpops.list_ops()) == before


def test_an_op_that_is_dropped_is_collected():
    op = make()
    op(X)
    gone = weakref.ref(op)
    del op
    gc.collect()
    assert gone() is None


def test_a_pending_graph_outlives_its_op():
    x = X.clone().requires_grad_()
    op = make()
    y = op(x)
    del op
    gc.collect()
    y.sum().backward()
    close(x.grad, torch.full((2,), 2.0))


def test_compiled_code_outlives_its_op():
    op = make()
    function = compiled(lambda x, f=op: f(x) + 1.0)
    overload = op.overload
    graph = compiled(lambda x: overload(x) * 2.0)
    close(graph(X), 4 * X)
    close(function(X), 2 * X + 1)
    del op
    gc.collect()
    close(graph(X), 4 * X)
    close(function(X), 2 * X + 1)


def test_many_ops_come_and_go():
    """Collected in the middle of other registrations, by the garbage collector or by hand."""
    threshold = gc.get_threshold()
    gc.set_threshold(50, 2, 2)
    try:
        for index in range(40):
            op = warp_op(kernels.square, f"x[n] -> y[n + {index % 7}]", dim="n")
            if index % 10 == 0:
                assert op(X).shape == (2 + index % 7,)
    finally:
        gc.set_threshold(*threshold)


@pytest.mark.parametrize("name", ["plain", "a::b::c", "::x", "x::", "a-b::c", "a::1", "", 3])
def test_a_name_that_is_none(name):
    with pytest.raises(warpops.SignatureError, match="name"):
        make(name=name)


def test_two_modules_of_one_package_share_a_namespace():
    assert kernels.square_op.name == "kernels::square"
    assert str(kernels.square_op.overload).startswith("kernels.square")


@pytest.mark.parametrize("given", [True, False], ids=["explicit", "default"])
def test_a_name_that_another_library_s_operator_has(given):
    @torch.library.custom_op(f"{__name__}::someone_else_s" if not given else "names::theirs", mutates_args=())
    def theirs(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @wp.kernel
    def someone_else_s(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = 2.0 * x[i]

    name = theirs._qualname
    with pytest.raises(SignatureError, match=f"{name}: the name is taken by an operator of another library"):
        warp_op(someone_else_s, name=name if given else None)
    space, base = name.split("::")
    x = torch.ones(2)
    assert torch.equal(getattr(getattr(torch.ops, space), base)(x), x)
    assert torch.equal(theirs(x), x)
    free = warp_op(someone_else_s, name="names::ours")
    assert torch.equal(torch.ops.names.ours(x), free(x))
