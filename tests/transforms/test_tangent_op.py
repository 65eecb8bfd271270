"""``op.tangent``: what it computes, what it answers, and its own tangent."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
import warp as wp

import kernels
import test_options
import test_second_derivatives
from kinds import KINDS
from support import close, compiled, leaves
from warpops import ArgumentError, GradientError, list_ops, warp_op

OPCHECKED = (
    "numbers",
    "in-out",
    "vectors",
    "vectors by value",
    "scratch",
    "optional left out",
    "nondiff",
    "a number in a tensor",
)


@wp.struct
class Spring:
    stiff: wp.array[wp.float64]
    along: wp.array[wp.vec3d]
    rest: wp.float64


@wp.kernel
def pull(s: Spring, x: wp.array[wp.vec3d], y: wp.array[wp.float64]):
    i = wp.tid()
    d = wp.dot(s.along[i], x[i]) - s.rest
    y[i] = s.stiff[i] * d * d * d


pull_op = warp_op(pull, name="tangents::pull")


def rand(*shape, dtype=torch.float32):
    return torch.rand(*shape, dtype=dtype) + 0.25


def test_the_tangent_op():
    x, w, v = rand(4), rand(4), torch.randn(4)
    tangent = kernels.product_op.tangent
    assert tangent.name == "kernels::product_tangent"
    assert "Tensor? tangent_x=None, Tensor? tangent_w=None) -> (Tensor, Tensor)" in tangent.schema
    assert tangent is kernels.product_op.tangent
    assert all(op.name != tangent.name for op in list_ops())
    close(tangent(x, w, tangent_x=v), (x * x * w, 2 * x * w * v))
    close(tangent(x, w, tangent_w=v), (x * x * w, x * x * v))
    close(tangent(x, w), (x * x * w, torch.zeros(4)))
    close(torch.ops.kernels.product_tangent(x, w, v, v), (x * x * w, 2 * x * w * v + x * x * v))
    assert copy.deepcopy(tangent) is tangent
    assert pickle.loads(pickle.dumps(tangent)) is tangent


def test_the_tangent_op_is_differentiable_and_compiled():
    x, w, v = rand(4).requires_grad_(), rand(4), torch.randn(4).requires_grad_()
    for function in (kernels.product_op.tangent, compiled(lambda *a: kernels.product_op.tangent(*a))):
        slope = function(x, w, v)[1]
        gx, gv = torch.autograd.grad(slope.sum(), (x, v))
        close((gx, gv), ((2 * w * v).detach(), (2 * x * w).detach()))


@pytest.mark.parametrize("kind", OPCHECKED)
def test_opcheck_of_kinds(kind):
    op, given = KINDS[kind].op, KINDS[kind].draw()
    values = tuple(leaves(given, KINDS[kind].differentiable(given)))
    named = {f"tangent_{a.name}": v for a, v in zip(op.overload._schema.arguments, values, strict=False)}
    given = {a.name for a in op.tangent.overload._schema.arguments}
    floats = {n: torch.randn_like(v).requires_grad_() for n, v in named.items() if n in given and v is not None}
    results = torch.library.opcheck(op.tangent.overload, values, floats)
    assert set(results.values()) == {"SUCCESS"}, results


def test_arguments_by_keyword_and_numbers_by_value():
    x, v = rand(3), torch.randn(3)
    tangent = kernels.mixed_op.tangent
    want = torch.func.jvp(lambda x: kernels.mixed_op(x, 2.0, 3, True), (x,), (v,))
    close(tangent(x, 2, 3, True, v), want)
    close(tangent(tangent_x=v, flip=1, n=3, s=2.0, x=x), want)
    close(tangent(x=x, s=2.0, n=3, flip=True), (want[0], torch.zeros(3)))
    with pytest.raises(ArgumentError, match="argument 'n': .*float"):
        tangent(x, 2.0, 3.5, True)
    with pytest.raises(TypeError, match="mixed_tangent.*'flip'"):
        tangent(x, 2.0, 3, tangent_x=v)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (1.0, "expected a Tensor or None, got float"),
        (torch.ones(3), r"expected size 4 on axis 0 \('n', bound by 'x'\), got 3"),
        (torch.ones(4, dtype=torch.float64), "expected dtype torch.float32 .* got torch.float64"),
        (torch.ones(4, device="meta"), "expected device cpu"),
    ],
)
def test_a_wrong_tangent_is_told_by_name(wrong, said):
    with pytest.raises(ArgumentError, match=f"kernels::product: argument 'tangent_x': {said}"):
        kernels.product_op.tangent(rand(4), rand(4), tangent_x=wrong)


def test_under_autocast():
    x, w, v = (torch.rand(4).bfloat16() for _ in range(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = kernels.product_op.tangent(x, w, tangent_x=v)
    close(found, kernels.product_op.tangent(x.float(), w.float(), tangent_x=v.float()))


def test_what_it_says_of_itself():
    tangent = kernels.product_op.tangent
    assert tangent.kernel.key == "product_tangent" and isinstance(tangent.kernel, wp.Kernel)
    assert "def product_tangent(x, w, y, tangent_x, tangent_w, tangent_y):\n    i = wp.tid()" in tangent.source
    assert "def call(x, w, tangent_x=None, tangent_w=None):" in tangent.source
    assert "  tangent_w: input [n]" in tangent.explain() and "result\n  y, tangent_y\n" in tangent.explain()
    tangent.preload("cpu")
    with pytest.raises(ArgumentError, match="product_tangent: argument 'device': expected cpu or cuda"):
        tangent.preload("meta")


def test_one_that_has_no_rule_says_so_beforehand():
    tangent = warp_op(test_second_derivatives.largest, "x[n] -> y[1]", init="zeros").tangent
    assert "largest_tangent: none: 'atomic_max' has no tangent rule" in tangent.explain()
    with pytest.raises(GradientError, match="'atomic_max' has no tangent rule"):
        _ = tangent.source


def test_third_order():
    """The tangent's own tangent, and once more."""
    x, w, a, b, c = (rand(4) for _ in range(5))
    second = kernels.product_op.tangent.tangent
    assert second is kernels.product_op.tangent.tangent and second.name == "kernels::product_tangent_tangent"
    got = second(x, w, tangent_x=a, tangent_x_=b, tangent_tangent_x=c)
    close(got, (x * x * w, 2 * x * w * a, 2 * x * w * b, 2 * w * a * b + 2 * x * w * c))
    close(second(x, w, tangent_w=a, tangent_x_=b), (x * x * w, x * x * a, 2 * x * w * b, 2 * x * a * b))
    close(second(x, w, tangent_tangent_w=c), (x * x * w, torch.zeros(4), torch.zeros(4), x * x * c))
    x.requires_grad_()
    (slope,) = torch.autograd.grad(second(x, w, tangent_x=a, tangent_x_=b, tangent_w_=c)[3].sum(), x)
    close(slope, 2 * a * c)
    third = second.tangent
    close(third(x.detach(), w, tangent_x=a, tangent_x_=b, tangent_w__=c)[-1], 2 * a * b * c)
    assert pickle.loads(pickle.dumps(second)) is second


def test_third_order_in_opcheck():
    x, w, a, b = (rand(4).requires_grad_() for _ in range(4))
    second = kernels.product_op.tangent.tangent
    results = torch.library.opcheck(second.overload, (x, w, a), {"tangent_x_": b})
    assert set(results.values()) == {"SUCCESS"}, results


def test_third_order_of_a_struct_with_extra_sizes():
    op = warp_op(pull, "s.stiff[n], s.along[n], x[n] -> y[n]", sizes="n", name="tangents::pull_sized")
    s = {"stiff": rand(4, dtype=torch.float64), "along": rand(4, 3, dtype=torch.float64), "rest": 0.25}
    x, v = rand(4, 3, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    d = (s["along"] * x).sum(-1) - 0.25
    close(op.tangent(s, x, 4, tangent_s_stiff=v), (s["stiff"] * d**3, v * d**3))
    found = op.tangent.tangent(s, x, n=4, tangent_s_stiff=v, tangent_x_=x)
    close(found[3], 3 * v * d**2 * (s["along"] * x).sum(-1))


def test_third_order_needs_one_kernel_and_its_arrays():
    with pytest.raises(GradientError, match="maybe_tangent: tangent: .bias. may be None"):
        _ = test_options.maybe_op.tangent.tangent


def test_tangents_of_a_struct_and_of_an_in_out_array():
    s = {"stiff": rand(4, dtype=torch.float64), "along": rand(4, 3, dtype=torch.float64), "rest": 0.25}
    x, v = rand(4, 3, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    d = (s["along"] * x).sum(-1) - 0.25
    close(pull_op.tangent(s, x, tangent_s_stiff=v), (s["stiff"] * d**3, v * d**3))
    a, b = rand(4), rand(4)
    close(kernels.multiply_op.tangent(a, b, tangent_x=a), (a * b, a * b))
    close(kernels.multiply_op.tangent(a, b, tangent_y=b), (a * b, a * b))


def test_a_tangent_op_needs_floats():
    @wp.kernel
    def ints(x: wp.array[int], y: wp.array[int]):
        i = wp.tid()
        y[i] = x[i]

    with pytest.raises(GradientError, match="tangent: no input can have a gradient"):
        _ = warp_op(ints, name="tangents::ints").tangent


@pytest.mark.usefixtures("only_new")
def test_a_tangent_has_a_place_where_those_of_collected_ops_wait():
    """Operators of one schema can't all be taken out at once: an op's name may be free before its tangent's is."""

    @wp.kernel
    def square(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = x[i] * x[i]

    x, held = torch.ones(2), []
    for turn in range(24):
        held.append(warp_op(square, name="tangents::in_turn"))
        if turn % 3 != 1:
            assert held[-1].tangent(x, tangent_x=x)[1].tolist() == [2.0, 2.0]
        if turn % 4 == 3:
            del held[turn % 5 % len(held) :: 2]
            gc.collect()


@pytest.mark.usefixtures("only_new")
def test_an_op_goes_with_its_tangents():
    def made():
        @wp.kernel
        def cube(x: wp.array[float], y: wp.array[float]):
            i = wp.tid()
            y[i] = x[i] * x[i] * x[i]

        op = warp_op(cube, name="tangents::gone")
        x = rand(3)
        op.tangent.tangent(x, tangent_x=x, tangent_x_=x)
        return [weakref.ref(held) for held in (op, op.tangent, op.tangent.tangent)]

    held = made()
    gc.collect()
    gc.collect()
    assert [reference() for reference in held] == [None, None, None]
