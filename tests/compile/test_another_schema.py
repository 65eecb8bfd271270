"""Exported programs, in memory and loaded, whose op has another schema now: none of them runs it."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import warp as wp

import kernels
from support import close, compiled
from warpops import ArgumentError, warp_op


@wp.kernel
def minus(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] - w[i]


@wp.kernel
def minus_swapped(w: wp.array[float], x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] - w[i]


@wp.kernel
def minus_and_clear(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] - w[i]
    x[i] = 0.0


@wp.kernel
def clear(x: wp.array[float]):
    i = wp.tid()
    x[i] = 0.0


@wp.kernel
def clear_renamed(v: wp.array[float]):
    i = wp.tid()
    v[i] = 0.0


@wp.kernel
def minus_renamed(x: wp.array[float], v: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] - v[i]


@wp.kernel
def minus_twice(x: wp.array[float], w: wp.array[float], y: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] - w[i]
    z[i] = y[i]


@wp.kernel
def choose(x: wp.array[float], want: bool, k: float, y: wp.array[float]):
    i = wp.tid()
    y[i] = k
    if want:
        y[i] = x[i]


@wp.kernel
def choose_int(x: wp.array[float], want: int, k: float, y: wp.array[float]):
    i = wp.tid()
    y[i] = k
    if want == 1:
        y[i] = x[i]


@wp.kernel
def choose_with_default(x: wp.array[float], want: bool, k: float = 2.0, y: wp.array[float] = None):
    i = wp.tid()
    y[i] = k
    if want:
        y[i] = x[i]


class Call(torch.nn.Module):
    def __init__(self, op, *rest):
        super().__init__()
        self.op, self.rest = op, rest

    def forward(self, *given):
        return self.op(*given, *self.rest)


X, W = torch.full((3,), 5.0), torch.ones(3)


def make(kernel, name, **options):
    return warp_op(kernel, name=f"another::{name}", **options)


def programs(call, given):
    """Functions that run one program: in memory, made a module before and after, and loaded."""
    program = torch.export.export(call, given)
    lowered, strict = program.run_decompositions(), torch.export.export(call, given, strict=True)

    def load(file):
        return torch.export.load(io.BytesIO(file.getvalue())).module()

    ways = {}
    for how, one in (("as it is", program), ("decomposed", lowered), ("strict", strict)):
        file = io.BytesIO()
        torch.export.save(one, file)
        ways[how] = one.module()
        ways[f"{how}, a module made later"] = lambda *given, one=one: one.module()(*given)
        ways[f"{how}, loaded"] = lambda *given, file=file: load(file)(*given)
        ways[f"{how}, interpreted"] = lambda *given, one=one: torch.fx.Interpreter(one.module()).run(*given)
    return ways


OTHERS = {
    "order": (minus_swapped, {"signature": "w[n], x[n] -> y[n]"}),
    "mutates": (minus_and_clear, {"signature": "w[n] -> y[n]", "mutates": "x"}),
    "renamed": (minus_renamed, {"signature": "x[n], v[n] -> y[n]"}),
    "optional": (minus, {"signature": "x[n], w[n] -> y[n]", "optional": "w"}),
    "one more result": (minus_twice, {"signature": "x[n], w[n] -> y[n], z[n]"}),
}


def test_no_program_runs_another_schema():
    first = make(minus, "minus", signature="x[n], w[n] -> y[n]")
    ways = programs(Call(first), (X, W))
    x, w = X.clone(), W.clone()
    for how, (kernel, options) in OTHERS.items():
        op = make(kernel, "minus", **options)
        for way, run in ways.items():
            with pytest.raises(ArgumentError, match="another::minus: .*export the program again"):
                pytest.fail(f"{how}, {way}: {run(x, w)}")
        close(x, X)
        del op
        again = make(minus, "minus", signature="x[n], w[n] -> y[n]")
        for run in ways.values():
            close(run(x, w), X - W)
        del again


def test_a_program_of_an_op_that_mutates_runs_no_functional_one():
    op = make(minus_and_clear, "clear", signature="w[n] -> y[n]", mutates="x")
    ways = programs(Call(op), (X.clone(), W))
    for run in ways.values():
        x = X.clone()
        close(run(x, W), X - W)
        close(x, torch.zeros(3))
    op = make(minus, "clear", signature="x[n], w[n] -> y[n]")
    for way, run in ways.items():
        with pytest.raises(ArgumentError, match="another::clear: .*export the program again"):
            pytest.fail(f"{way}: {run(X, W)}")
    del op


def test_an_op_without_results_is_not_dropped():
    op = make(clear, "nothing", mutates="x")
    ways = programs(Call(op), (X.clone(),))
    for run in ways.values():
        x = X.clone()
        run(x)
        close(x, torch.zeros(3))
    for kernel, options in ((kernels.square, {"signature": "x[n] -> y[n]"}), (clear_renamed, {"mutates": "v"})):
        op = make(kernel, "nothing", **options)
        for way, run in ways.items():
            with pytest.raises(ArgumentError, match="another::nothing: .*export the program again"):
                pytest.fail(f"{way}: {run(X)}")
    close(X, torch.full((3,), 5.0))


def test_types_of_numbers_count_and_defaults_dont():
    op = make(choose, "choose", signature="x[n] -> y[n]")
    ways = programs(Call(op, True, 3.0), (X,))
    op = make(choose_int, "choose", signature="x[n] -> y[n]")
    for way, run in ways.items():
        with pytest.raises(ArgumentError, match="another::choose: .*export the program again"):
            pytest.fail(f"{way}: {run(X)}")
    op = make(choose_with_default, "choose", signature="x[n] -> y[n]")
    for run in ways.values():
        close(run(X), X)
    del op


def test_compiled_programs_are_told_too():
    op = make(minus, "compiled", signature="x[n], w[n] -> y[n]")
    module = torch.export.export(Call(op), (X, W)).module()
    close(compiled(module)(X, W), X - W)
    op = make(minus_and_clear, "compiled", signature="w[n] -> y[n]", mutates="x")
    with pytest.raises(Exception, match="another::compiled: the op is"):
        torch.compile(module, backend="aot_eager")(X, W)
    close(X, torch.full((3,), 5.0))


def test_default_has_no_other_attributes():
    op = make(minus, "attributes", signature="x[n], w[n] -> y[n]")
    default = torch.ops.another.attributes.default
    assert getattr(default, default.form) is default
    assert not hasattr(default, "schema_")
    assert not hasattr(default, "anything")
    del op


@wp.kernel
def times(x: wp.array[wp.Float], k: wp.Float, y: wp.array[wp.Float]):
    i = wp.tid()
    y[i] = x[i] * k


@wp.kernel
def halve(x: wp.array[float], k: Any, y: wp.array[float]):
    i = wp.tid()
    two = k / k + k / k
    y[i] = x[i] * float(k / two)


@wp.kernel
def times_and_clear(x: wp.array[wp.Float], k: wp.Float, y: wp.array[wp.Float]):
    i = wp.tid()
    y[i] = x[i] * k
    x[i] = y[i] - y[i]


@pytest.mark.slow
def test_a_package_with_a_generic_number_runs_no_op_that_mutates(tmp_path):
    op, path = make(times, "packaged"), str(tmp_path / "packaged.pt2")
    torch._inductor.aoti_compile_and_package(torch.export.export(Call(op, 2.0), (X,)), package_path=path)
    package = torch._inductor.aoti_load_package(path)
    close(package(X), 2 * X)
    op = make(times_and_clear, "packaged", mutates="x")
    for run in (package, torch._inductor.aoti_load_package(path)):
        with pytest.raises(Exception, match="another::packaged: .*export the program again"):
            run(X)
    close(X, torch.full((3,), 5.0))
    del op


@pytest.mark.parametrize(("number", "want"), [(3, 1.0), (3.0, 1.5)])
def test_a_program_with_vmap_keeps_the_type_of_a_generic_number(number, want):
    op = make(halve, f"number_{type(number).__name__}")
    program = torch.export.export(Call(torch.vmap(op, in_dims=(0, None)), number), (torch.stack([X, W]),))
    program = program.run_decompositions()
    assert "warpops._mapped.default" in [str(node.target) for node in program.graph.nodes]
    close(program.module()(torch.stack([X, W])), torch.stack([X, W]) * want)
