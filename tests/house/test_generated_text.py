"""The generated text reads like a person's: no idle line, none too long, nothing named that isn't used."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch
import warp as wp

import kernels
from support import close
from warpops import warp_op, warp_program


@wp.kernel
def rosenbrock(xy: wp.array[wp.vec2], z: wp.array[float]):
    i = wp.tid()
    p = xy[i]
    z[i] = (1.0 - p[0]) ** 2.0 + 100.0 * (p[1] - p[0] ** 2.0) ** 2.0


@wp.kernel
def blend_in_place(
    x: wp.array[wp.vec3], y: wp.array2d[wp.vec3], kept: wp.array[float], unused: wp.array[float], k: int
):
    i = wp.tid()
    kept[i] = wp.length(x[i])
    y[i, 0] = y[i, 0] * kept[i] * kept[i] * float(k)


@wp.kernel
def any_scaled(x: wp.array[Any], factor: wp.array[Any], y: wp.array[Any]):
    i = wp.tid()
    y[i] = x[i] * factor[0] * x[i]


@wp.kernel
def shifted(
    the_first_of_many_long_names: wp.array[float],
    the_second_of_many_long_names: wp.array[float],
    the_third_of_many_long_names: wp.array[float],
    out: wp.array[float],
    another_result: wp.array[float],
):
    i = wp.tid()
    out[i] = the_first_of_many_long_names[i] * the_second_of_many_long_names[i]
    another_result[i] = out[i] + the_third_of_many_long_names[i] * the_first_of_many_long_names[i]


@wp.kernel
def adds_in_place(x: wp.array[wp.vec3], total: wp.array[wp.vec3]):
    i = wp.tid()
    total[i] = total[i] + x[i]


@warp_program("x[n], w[m] -> y[n]", scratch="t[n]")
def twice(x: wp.array[float], w: wp.array[float], s: float, t: wp.array[float], y: wp.array[float]):
    wp.launch(kernels.square, dim=x.shape, inputs=[x], outputs=[t])
    wp.launch(kernels.scale, dim=x.shape, inputs=[t, s], outputs=[y])


OPS = {
    "simple": warp_op(rosenbrock),
    "in-out": warp_op(blend_in_place, "x[n], y[n, m], unused[k] -> y[n, m]", scratch="kept[n]", dim="n"),
    "generic": warp_op(any_scaled, "x[n], factor[m] -> y[n]", dim="n"),
    "long": warp_op(shifted),
    "mutated": warp_op(adds_in_place, mutates="total"),
    "filled": warp_op(kernels.square, "x[n] -> y[m]", dim="n", sizes="m", init={"y": 1.5}, name="text::filled"),
    "program": twice,
}


@pytest.fixture(scope="module", params=OPS)
def op(request):
    found = OPS[request.param]
    if request.param == "generic":
        for dtype in (torch.float32, torch.float64):
            close(
                found(torch.full((3,), 2.0, dtype=dtype), torch.full((1,), 3.0, dtype=dtype)),
                torch.full((3,), 12.0, dtype=dtype),
            )
    return found


def test_lines_are_short_and_none_is_blank_with_spaces(op):
    for line in op.source.splitlines():
        assert len(line) <= 120, line
        assert line == line.rstrip(), repr(line)


def test_every_name_that_is_assigned_is_read(op):
    for function in ast.walk(ast.parse(op.source)):
        if isinstance(function, ast.FunctionDef):
            names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
            read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
            assigned = {
                target.id
                for node in ast.walk(function)
                if isinstance(node, ast.Assign)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            assert assigned <= read, function.name


def test_nothing_is_assigned_twice_before_it_is_read(op):
    """In a row of statements: ``a = f(b)`` with another ``a = ...`` after it, and no ``a`` read between."""
    for block in ast.walk(ast.parse(op.source)):
        waiting: set[str] = set()
        for statement in getattr(block, "body", []) if not isinstance(getattr(block, "body", []), ast.expr) else []:
            names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
            waiting -= {node.id for node in names if isinstance(node.ctx, ast.Load)}
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                name = statement.targets[0].id
                assert name not in waiting, f"{name} in line {statement.lineno}"
                waiting.add(name)


def test_the_manuals_example_takes_at_most_200_lines():
    assert len(OPS["simple"].source.splitlines()) <= 200


def test_a_generic_op_shows_its_launches_once_they_are_made():
    op = warp_op(any_scaled, "x[n], factor[m] -> y[n]", dim="n", name="text::shown")
    assert "def forward(" not in op.source.split("what is called")[0]
    op(torch.ones(2), torch.ones(1))
    assert "torch.float32" in op.source
    assert "torch.float64" not in op.source
    op(torch.ones(2, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    assert "torch.float64" in op.source
