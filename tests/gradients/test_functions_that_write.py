"""Functions that write: Warp's adjoint calls a kernel's functions again, stores and all; those of the kernel it leaves out."""

from __future__ import annotations

import warnings

import pytest
import torch
import warp as wp

from support import check_against, close, inductor
from warpops import warp_op, warp_program


@wp.func
def put(y: wp.array[float], i: int, v: float):
    y[i] = v


@wp.func
def put_if_positive(y: wp.array[float], i: int, v: float):
    if v <= 0.0:
        return v
    put(y, i, v * v)
    return 2.0 * v


@wp.func
def put_row(row: wp.array[float], v: float):
    row[1] = v
    row[0] = v * v


@wp.func
def add(y: wp.array[float], i: int, v: float):
    wp.atomic_add(y, i, v)


@wp.func
def multiply(y: wp.array[float], i: int, v: float):
    y[i] = y[i] * v


@wp.struct
class Target:
    y: wp.array[float]
    gain: float


@wp.func
def put_field(target: Target, i: int, v: float):
    target.y[i] = v * target.gain


@wp.kernel
def square_by_function(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    put(y, i, x[i] * x[i])


@wp.kernel
def positive_by_function(x: wp.array[float], y: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    z[i] = put_if_positive(y, i, x[i]) * x[i]


@wp.kernel
def rows_by_function(x: wp.array[float], y: wp.array2d[float]):
    i = wp.tid()
    put_row(y[i], x[i])


@wp.kernel
def field_by_function(x: wp.array[float], target: Target):
    i = wp.tid()
    put_field(target, i, x[i] * x[i])


@wp.kernel
def sum_read_back(x: wp.array[float], m: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    add(m, i, x[i] * x[i])
    y[i] = m[i] * x[i]


@wp.kernel
def in_out_by_function(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    before = y[i]
    put(y, i, before * x[i])


@wp.kernel
def scale_by_function(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    multiply(y, i, x[i])


@wp.kernel
def both_ways(x: wp.array[float], m: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    m[i] = x[i]
    add(m, i, x[i] * x[i])
    y[i] = m[i] * x[i]


def positive(x):
    return torch.where(x > 0, x * x, 7.0), torch.where(x > 0, 2 * x * x, x * x)


WRITERS = {
    "store": (square_by_function, "x[n] -> y[n]", {}, lambda x: x * x, 1),
    "store, zeros": (square_by_function, "x[n] -> y[n]", {"init": "zeros"}, lambda x: x * x, 1),
    "store behind a return": (positive_by_function, "x[n] -> y[n], z[n]", {"init": {"y": 7.0}}, positive, 1),
    "row": (rows_by_function, "x[n] -> y[n, 2]", {}, lambda x: torch.stack([x * x, x], 1), 1),
    "sum": (sum_read_back, "x[n] -> m[n], y[n]", {}, lambda x: (x**2, x**3), 1),
    "sum in scratch": (sum_read_back, "x[n] -> y[n]", {"scratch": "m[n]"}, lambda x: x**3, 1),
    "sum, in-out": (sum_read_back, "x[n], m[n] -> m[n], y[n]", {}, lambda x, m: (m + x**2, (m + x**2) * x), 2),
    "in-out": (in_out_by_function, "x[n], y[n] -> y[n]", {}, lambda x, y: x * y, 2),
}


@pytest.mark.parametrize("what", WRITERS)
def test_functions_that_write(mode, what):
    kernel, signature, options, reference, count = WRITERS[what]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op = warp_op(kernel, signature, name="test_functions_that_write::writer", **options)
    call = mode(op)
    given = [torch.tensor([1.0, -2.0, 3.0, 0.5])[: 4 - turn] * (turn + 1.0) for turn in range(2) for _ in range(count)]
    for turn in range(2):
        check_against(call, reference, given[turn * count : (turn + 1) * count])


@pytest.mark.parametrize("what", WRITERS)
def test_functions_that_write_leave_what_backward_runs_on(what):
    kernel, signature, options, reference, count = WRITERS[what]
    op = warp_op(kernel, signature, name="test_functions_that_write::writer", **options)
    given = [torch.tensor([1.0, -2.0, 3.0, 0.5]) for _ in range(count)]
    inputs = [value.clone().requires_grad_() for value in given]
    results, wanted = op(*inputs), reference(*inputs)
    for _ in range(2):
        total, want = (sum(r.sum() for r in (one if isinstance(one, tuple) else (one,))) for one in (results, wanted))
        close(
            torch.autograd.grad(total, inputs, retain_graph=True), torch.autograd.grad(want, inputs, retain_graph=True)
        )
        close(results, wanted)
        close(tuple(i.detach() for i in inputs), tuple(given))


def test_a_function_that_writes_a_field(mode):
    op = warp_op(field_by_function, "x[n] -> target.y[n]")
    check_against(mode(lambda x: op(x, {"gain": 3.0})), lambda x: 3.0 * x * x, (torch.randn(4),))


@pytest.mark.slow
def test_inductor_and_functions_that_write():
    op = warp_op(sum_read_back, "x[n] -> m[n], y[n]")
    check_against(inductor(op), lambda x: (x**2, x**3), (torch.randn(5),))


def test_what_functions_overwrite(mode):
    """The adjoint launch runs them again without what they store."""
    scale = warp_op(scale_by_function, "x[n], y[n] -> y[n]")
    check_against(mode(scale), lambda x, y: x * y, (torch.randn(4), torch.randn(4)))
    both = warp_op(both_ways, "x[n] -> m[n], y[n]")
    check_against(mode(both), lambda x: (x + x * x, (x + x * x) * x), (torch.randn(4),))


def test_a_program_s_kernels_whose_functions_write(mode):
    @warp_program("x[n] -> y[n]")
    def run(x: wp.array[float], y: wp.array[float]):
        m = wp.zeros_like(x)
        wp.launch(sum_read_back, x.shape[0], inputs=[x, m], outputs=[y])
        wp.launch(in_out_by_function, x.shape[0], inputs=[x, y])

    check_against(mode(run), lambda x: x**4, (torch.randn(4),))
