"""Kernels made in unusual ways: options, custom gradients and replays, native code, methods, ``exec``, notebooks."""

from __future__ import annotations

import linecache
import sys
import types
from types import SimpleNamespace

import pytest
import torch
import warp as wp

from support import check_against, close, compiled, run_main
from warpops import GradientError, warp_op


@wp.kernel(enable_backward=False)
def no_backward(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * 2.0


def later(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * 2.0


@wp.kernel(module="unique")
def in_own_module(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = wp.sin(x[i])


@wp.kernel(module="unique", module_options={"enable_backward": False})
def no_backward_module(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * 3.0


@wp.kernel(module="unique", module_options={"deterministic": wp.config.DeterministicMode.RUN_TO_RUN})
def deterministic(x: wp.array[float], index: wp.array[int], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(y, index[i], x[i] * x[i])


@pytest.mark.parametrize("kernel", [no_backward, no_backward_module], ids=["kernel", "module"])
def test_disabled_backward(kernel, mode):
    factor = 2.0 if kernel is no_backward else 3.0
    op = warp_op(kernel)
    close(mode(op)(torch.ones(2)), torch.full((2,), factor))
    assert "enable_backward=False" in op.explain()
    with pytest.raises(GradientError, match="enable_backward=False"):
        op(torch.ones(2, requires_grad=True)).sum().backward()


def test_backward_that_is_disabled_later():
    module = wp.get_module("test_kernel_options_later")
    op = warp_op(wp.kernel(later, module=module))
    x = torch.ones(2, requires_grad=True)
    for _ in range(3):
        close(torch.autograd.grad(op(x).sum(), x), (torch.full((2,), 2.0),))
    wp.set_module_options({"enable_backward": False}, module=SimpleNamespace(__name__=module.name))
    for _ in range(2):
        with pytest.raises(GradientError, match="later: the kernel is compiled without its backward"):
            op(x).sum().backward()


def test_unique_module(mode):
    check_against(mode(warp_op(in_own_module)), torch.sin, [torch.randn(4)])


def test_deterministic_mode(mode):
    index = torch.tensor([0, 1, 2, 1, 0], dtype=torch.int32)
    op = warp_op(deterministic, "x[n], index[n] -> y[3]", dim="n")
    check_against(mode(op), lambda x, i: torch.zeros(3).index_add(0, i.long(), x * x), [torch.randn(5), index])
    torch.library.opcheck(op.overload, (torch.randn(5, requires_grad=True), index))


# --- custom gradients


@wp.func
def cube(x: float):
    return x * x * x


@wp.func_grad(cube)
def cube_gradient(x: float, result: float):
    wp.adjoint[x] += 10.0 * result


@wp.kernel
def cubes(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = cube(x[i])


@wp.func
def store_root(x: wp.array[float], root: wp.array[float], i: int):
    root[i] = wp.sqrt(x[i])


@wp.func_grad(store_root)
def store_root_gradient(x: wp.array[float], root: wp.array[float], i: int):
    wp.adjoint[x][i] += wp.adjoint[root][i] / (2.0 * root[i])


@wp.kernel
def roots(x: wp.array[float], root: wp.array[float]):
    store_root(x, root, wp.tid())


@wp.func
def take(counter: wp.array[int], taken: wp.array[int], i: int):
    k = wp.atomic_add(counter, 0, 1)
    taken[i] = k
    return k


@wp.func_replay(take)
def take_again(counter: wp.array[int], taken: wp.array[int], i: int):
    return taken[i]


@wp.kernel
def append(x: wp.array[float], z: wp.array[float], taken: wp.array[int], counter: wp.array[int]):
    i = wp.tid()
    k = take(counter, taken, i)
    z[k] = x[i] * x[i]


@wp.func_native("y[i] = x[i] * x[i];", "adj_x[i] += 2.0f * x[i] * adj_y[i];")
def native_square(x: wp.array[float], y: wp.array[float], i: int): ...


@wp.kernel
def native(x: wp.array[float], y: wp.array[float]):
    native_square(x, y, wp.tid())


def test_custom_gradient_of_a_function(mode):
    x = torch.randn(3, requires_grad=True)
    result = mode(warp_op(cubes))(x)
    close(result, x**3)
    close(torch.autograd.grad(result.sum(), x)[0], torch.full((3,), 10.0))


def test_custom_gradient_that_reads_an_output(mode):
    call = mode(warp_op(roots, "x[n] -> root[n]", dim="n"))
    check_against(call, torch.sqrt, [torch.rand(4) + 0.5])


def test_custom_replay_reads_what_the_launch_wrote(mode):
    op = warp_op(append, "x[n] -> z[n], taken[n], counter[1]", dim="n", init="zeros")
    x = torch.randn(6, requires_grad=True)
    z, taken, counter = mode(op)(x)
    assert counter.item() == 6
    assert sorted(taken.tolist()) == list(range(6))
    close(z[taken.long()], x * x)
    weights = torch.linspace(-1.0, 2.0, 6)
    close(torch.autograd.grad((z * weights).sum(), x)[0], 2.0 * x * weights[taken.long()])
    torch.library.opcheck(op.overload, (torch.randn(1, requires_grad=True),))


def test_native_snippet_with_an_adjoint(mode):
    op = warp_op(native, "x[n] -> y[n]", dim="n")
    check_against(mode(op), lambda x: x * x, [torch.randn(4)])
    torch.library.opcheck(op.overload, (torch.randn(3, requires_grad=True),))


# --- where kernels are defined


class Physics:
    @wp.kernel
    def twice(x: wp.array[float], y: wp.array[float]):  # noqa: N805 - a kernel, not a method
        i = wp.tid()
        y[i] = x[i] * 2.0

    twice_op = warp_op(twice)

    def __init__(self):
        self.own = warp_op(Physics.twice, name="test_kernel_options::own")


def test_kernel_in_a_class(mode):
    for op in (Physics.twice_op, Physics().twice_op, Physics().own):
        check_against(mode(op), lambda x: x * 2.0, [torch.randn(3)])
    assert Physics.twice_op.name == "test_kernel_options::twice"


SOURCE = """
import warp as wp
from warpops import warp_op

@warp_op
@wp.kernel
def made(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * 5.0
"""


@pytest.mark.parametrize("header", ["", "from __future__ import annotations\n"], ids=["plain", "future"])
def test_kernel_in_a_notebook_cell(header, mode):
    """A cell is code under a made-up file name, whose text only ``linecache`` has."""
    text, name = header + SOURCE, f"<ipython-input-{len(header)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    module = types.ModuleType("__cell__")
    sys.modules["__cell__"] = module
    for _ in range(2):  # a cell run twice
        exec(compile(text, name, "exec"), module.__dict__)
        check_against(mode(module.made), lambda x: x * 5.0, [torch.randn(3)])
    del sys.modules["__cell__"], linecache.cache[name]


def test_kernel_of_a_script(tmp_path):
    made = run_main(SOURCE, tmp_path / "script.py")["made"]
    assert made.name == "warpops::made"
    check_against(made, lambda x: x * 5.0, [torch.randn(3)])


@warp_op
def plain_function(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * 7.0


def test_plain_function_is_made_a_kernel(mode):
    check_against(mode(plain_function), lambda x: x * 7.0, [torch.randn(3)])
    assert isinstance(plain_function.kernel, wp.Kernel)


def test_compiled_code_survives_another_kernel_of_the_module():
    call = compiled(Physics.twice_op)
    close(call(torch.ones(2)), torch.full((2,), 2.0))

    @warp_op
    @wp.kernel
    def late(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = x[i] * 11.0

    close(late(torch.ones(2)), torch.full((2,), 11.0))
    close(call(torch.ones(2)), torch.full((2,), 2.0))


def test_a_function_that_is_refused_leaves_its_module_alone(tmp_path):
    script = """
import torch, warp as wp
from warpops import SignatureError, warp_op

@warp_op
@wp.kernel
def good(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = 2.0 * x[i]

def bad(x: torch.Tensor, y: wp.array[float]):
    i = wp.tid()
    y[i] = 1.0

try:
    warp_op(bad, "x[n] -> y[n]")
except SignatureError:
    seen = good(torch.ones(2)).tolist()
"""
    assert run_main(script, tmp_path / "script.py")["seen"] == [2.0, 2.0]
