"""Numbers that arrive as 0-d tensors, so that a value that changes every call costs no recompilation."""

from __future__ import annotations

import math

import pytest
import torch
import warp as wp

import kernels
from support import INDUCTOR, check_against, close, compiled, graph_count, inductor
from warpops import ArgumentError, testing, warp_op


@wp.kernel
def advance(x: wp.array[float], dt: float, n: int, d: wp.float64, y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i] * dt + float(n) + float(d)


op = warp_op(advance, "x[m] -> y[m]", dim="m", tensor_scalars="dt, n, d")
one = warp_op(kernels.scale, "x[n] -> y[n]", dim="n", tensor_scalars="s")


def advance_(x, dt, n, d):
    return x * x * dt + n + d


def test_tensors_and_plain_numbers(mode):
    x = torch.randn(4)
    function = mode(op)
    for dt, n, d in [
        (0.5, 3, 1.0),
        (torch.tensor(0.5), torch.tensor(3), torch.tensor(1.0)),
        (torch.tensor(0.5, dtype=torch.float64), 3, torch.tensor(1.0, dtype=torch.float64)),
        (torch.tensor(2), torch.tensor(3, dtype=torch.int32), 1),
    ]:
        check_against(
            lambda x, dt=dt, n=n, d=d: function(x, dt, n, d),
            lambda x, dt=dt, n=n, d=d: advance_(x, float(dt), int(n), float(d)),
            (x,),
        )


def test_the_schema_has_a_tensor():
    assert "Tensor s" in one.schema


def test_a_value_that_changes_costs_one_graph_and_is_never_stale():
    function = compiled(lambda x, s: one(x * s, s))
    x = torch.randn(3)
    for value in (0.1, 0.2, 0.5, -1.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0):
        close(function(x, torch.tensor(value)), x * value * value)
    assert graph_count() == 1


@pytest.mark.slow
def test_a_value_that_changes_under_inductor():
    function = inductor(lambda x, s: one(x, s) + 1.0)
    x = torch.randn(3)
    for value in (0.1, 0.2, 0.5):
        close(function(x, torch.tensor(value)), x * value + 1.0)
    assert graph_count() == 1


@pytest.mark.parametrize("run", [compiled, INDUCTOR])
def test_a_simulation_of_a_thousand_time_steps_compiles_once(run):
    """The step differs each time; every state is compared."""
    step = run(lambda x, dt: one(x, dt) - 0.5 * x)
    x = want = torch.linspace(0.5, 1.0, 8)
    for turn in range(1000):
        dt = 1.5 + 0.01 * math.sin(0.1 * turn)
        x, want = step(x, torch.tensor(dt)), want * dt - 0.5 * want
        close(x, want, f"step {turn}")
    assert graph_count() == 1
    assert not torch.equal(x, torch.linspace(0.5, 1.0, 8))


def test_a_plain_number_in_compiled_code_is_never_stale():
    function = compiled(lambda x, s: one(x, s))
    x = torch.randn(3)
    for value in (0.1, 0.2, 0.5):
        close(function(x, value), x * value)


def test_the_value_is_kept_for_backward():
    x = torch.randn(3, requires_grad=True)
    s = torch.tensor(2.0)
    y = one(x, s)
    s.fill_(5.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.tensor([1.0]), "expected a 0-d tensor (tensor_scalars), got shape torch.Size([1])"),
        (torch.tensor(1.0, device="meta"), "expected a 0-d tensor on cpu (tensor_scalars), got one on meta"),
        (torch.tensor(1j), "expected a real 0-d tensor, got torch.complex64"),
        (torch.tensor(1.0, requires_grad=True), "requires grad"),
        ("a", "expected a number (float32), got str"),
        (None, "expected a number (float32), got NoneType"),
    ],
)
def test_what_is_refused(value, text):
    with pytest.raises(ArgumentError) as caught:
        one(torch.ones(2), value)
    assert "kernels::scale" in str(caught.value)
    assert "argument 's'" in str(caught.value)
    assert text in str(caught.value)


def test_a_learned_number_is_refused_in_compiled_code():
    with pytest.raises(Exception, match="argument 's'.*requires grad"):
        compiled(one)(torch.ones(2), torch.tensor(1.0, requires_grad=True))


@pytest.mark.parametrize("value", [torch.tensor(2**31), torch.tensor(-(2**40))])
def test_an_int_out_of_range(mode, value):
    with pytest.raises(ArgumentError, match=r"argument 'n': expected an int in \[-2147483648, 2147483647\]"):
        mode(op)(torch.ones(2), 1.0, value, 1.0)


def test_a_float_for_an_int_is_refused():
    with pytest.raises(ArgumentError, match="argument 'n': expected an int"):
        op(torch.ones(2), 1.0, torch.tensor(1.5), 1.0)


def test_a_float_out_of_range():
    with pytest.raises(ArgumentError, match="argument 'dt': expected a float that float32 can hold, got 1e"):
        op(torch.ones(2), torch.tensor(1e300, dtype=torch.float64), 1, 1.0)


# --- defaults ---------------------------------------------------------------------------------------------------------


@wp.kernel
def step(x: wp.array[float], y: wp.array[float], dt: float = 0.5, n: int = 3):
    i = wp.tid()
    y[i] = x[i] * x[i] * dt + float(n)


stepping = warp_op(step, "x[m] -> y[m]", tensor_scalars="dt, n")
CALLS = {
    "none": ((), {}),
    "a number": ((2.0,), {}),
    "a tensor": ((torch.tensor(2.0),), {}),
    "the last by keyword": ((), {"n": torch.tensor(7)}),
    "both": ((torch.tensor(0.25), 4), {}),
}


def step_(x, dt=0.5, n=3):
    return x * x * float(dt) + int(n)


@pytest.mark.parametrize("call", CALLS)
def test_defaults(mode, call):
    args, kwargs = CALLS[call]
    check_against(mode(lambda x: stepping(x, *args, **kwargs)), lambda x: step_(x, *args, **kwargs), (torch.randn(3),))


@pytest.mark.parametrize("call", ["none", "a tensor", "the last by keyword"])
def test_defaults_of_the_operator(mode, call):
    args, kwargs = CALLS[call]
    for function in (torch.ops.test_tensor_scalars.step, torch.ops.test_tensor_scalars.step.default):
        mine = mode(lambda x, function=function: function(x, *args, **kwargs))
        check_against(mine, lambda x: step_(x, *args, **kwargs), (torch.randn(3),))


def test_none_stands_for_the_default_in_the_operator_alone():
    assert stepping.schema.endswith("(Tensor x, Tensor? dt=None, Tensor? n=None) -> Tensor")
    x = torch.randn(3)
    close(torch.ops.test_tensor_scalars.step(x, None, torch.tensor(4)), step_(x, n=4))
    with pytest.raises(ArgumentError, match="argument 'dt': expected a number"):
        stepping(x, None)


def test_another_default_is_another_contract():
    """The schema doesn't say it, and a graph on the disk holds it."""

    def made(value):
        def twice(x: wp.array[float], y: wp.array[float], dt: float = value):
            i = wp.tid()
            y[i] = x[i] * dt

        return warp_op(twice, "x[n] -> y[n]", tensor_scalars="dt", name="tensor_scalars::twice")

    one, same, other = made(0.5), made(0.5), made(0.75)
    contracts = [op.overload._overloadname.split("_")[0] for op in (one, same, other)]
    assert contracts[0] == contracts[1] != contracts[2]


def test_transforms_with_a_default():
    x, v = torch.randn(3), torch.randn(3)
    close(torch.func.jvp(stepping, (x,), (v,)), (step_(x), x * v))
    close(torch.vmap(stepping)(x.expand(2, 3)), step_(x).expand(2, 3))
    close(torch.func.vmap(torch.func.grad(lambda x: stepping(x).sum()))(x.expand(2, 3)), x.expand(2, 3))
    close(torch.func.hessian(lambda x: stepping(x).sum())(x), torch.eye(3))
    close(torch.vmap(torch.ops.test_tensor_scalars.step)(x.expand(2, 3)), step_(x).expand(2, 3))
    for tangent in (stepping.tangent, stepping.tangent.overload):
        close(tangent(x, tangent_x=v), (step_(x), x * v))


def test_an_exported_program_with_a_default():
    class Stepping(torch.nn.Module):
        def forward(self, x):
            return stepping(x) + torch.ops.test_tensor_scalars.step.default(x)

    x = torch.randn(3)
    program = torch.export.export(Stepping(), (x,))
    close(program.module()(x), 2 * step_(x))
    close(program.run_decompositions().module()(x), 2 * step_(x))


def test_all_that_a_custom_op_must_satisfy_with_a_default():
    testing.check(stepping, torch.rand(3))
    torch.library.opcheck(stepping.overload, (torch.rand(3, requires_grad=True),))
    close(stepping.custom_op(torch.ones(2)), step_(torch.ones(2)))


@pytest.mark.slow
def test_a_default_under_inductor():
    x = torch.randn(3)
    close(inductor(lambda x: stepping(x) + 1.0)(x), step_(x) + 1.0)
    close(inductor(lambda x: torch.ops.test_tensor_scalars.step(x) + 1.0)(x), step_(x) + 1.0)
