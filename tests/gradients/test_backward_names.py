"""The option ``backward`` with a dict: what the arguments of a kernel or an op that was written for something else stand for."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import check_against, close
from warpops import ArgumentError, GradientError, SignatureError, warp_op
from warpops.testing import bounds_checked

Array = wp.array[float]


@wp.kernel
def turn(x: wp.array[wp.vec2], angle: Array, sign: int, y: wp.array[wp.vec2]):
    i = wp.tid()
    s, c = wp.sin(angle[i]) * float(sign), wp.cos(angle[i])
    y[i] = wp.vec2(c * x[i][0] - s * x[i][1], s * x[i][0] + c * x[i][1])


@wp.kernel
def product(x: Array, w: Array, y: Array):
    i = wp.tid()
    y[i] = x[i] * w[i]


@wp.kernel
def two_products(left: Array, right: Array, cotangent: Array, scale: float, to_left: Array, to_right: Array):
    i = wp.tid()
    to_left[i] = scale * cotangent[i] * right[i]
    to_right[i] = scale * cotangent[i] * left[i]


@wp.kernel
def into_place(x: Array, y: Array):
    i = wp.tid()
    y[i] = 3.0 * y[i] + 2.0 * x[i]


@wp.kernel
def back_in_place(both: Array, to_x: Array):
    i = wp.tid()
    to_x[i] = 2.0 * both[i]
    both[i] = 3.0 * both[i]


@wp.struct
class Pair:
    x: wp.array[float]
    w: wp.array[float]


@wp.kernel
def product_of_fields(pair: Pair, y: Array):
    i = wp.tid()
    y[i] = pair.x[i] * pair.w[i]


TO_BOTH = {"left": "x", "right": "w", "cotangent": "grad_y", "scale": 1.0, "to_left": "grad_x", "to_right": "grad_w"}


def turned(x, angle):
    s, c = angle.sin(), angle.cos()
    return torch.stack([c * x[:, 0] - s * x[:, 1], s * x[:, 0] + c * x[:, 1]], 1)


def test_a_kernel_is_its_own_backward_with_a_flag_turned(mode):
    op = warp_op(
        turn, "x[n], angle[n] -> y[n]", nondiff="angle", backward=(turn, {"x": "grad_y", "y": "grad_x", "sign": -1})
    )
    angle = torch.randn(4)
    check_against(mode(lambda x: op(x, angle, 1)), lambda x: turned(x, angle), (torch.randn(4, 2),))


def test_a_kernel_with_names_of_its_own(mode):
    op = warp_op(product, "x[n], w[n] -> y[n]", backward=(two_products, TO_BOTH))
    arguments = (torch.randn(4), torch.randn(4))
    check_against(mode(op), torch.mul, arguments)
    double = warp_op(product, "x[n], w[n] -> y[n]", backward=(two_products, {**TO_BOTH, "scale": 2}))
    x, w = (a.requires_grad_() for a in arguments)
    close(torch.autograd.grad(double(x, w).sum(), x)[0], 2 * w.detach())


def test_an_op_with_names_of_its_own(mode):
    back = warp_op(two_products, "-> to_right[n], to_left[n]", dim="n", name="backward_names::back", sizes="n")
    op = warp_op(product, "x[n], w[n] -> y[n]", sizes="m", backward=(back, {**TO_BOTH, "n": "m"}))
    check_against(mode(lambda x, w: op(x, w, 4)), torch.mul, (torch.randn(4), torch.randn(4)))


def test_an_op_gives_double_backward():
    op = warp_op(product, "x[n], w[n] -> y[n]", backward=(two_products, TO_BOTH))
    inputs = [torch.randn(3, requires_grad=True) for _ in range(2)]
    (grad,) = torch.autograd.grad(op(*inputs).square().sum(), inputs[0], create_graph=True)
    close(torch.autograd.grad(grad.sum(), inputs[1])[0], 4 * (inputs[0] * inputs[1]).detach())


def test_an_in_out_array_s_gradient_under_another_name(mode):
    op = warp_op(into_place, "x[n], y[n] -> y[n]", backward=(back_in_place, {"both": "grad_y", "to_x": "grad_x"}))
    check_against(mode(op), lambda x, y: 3.0 * y + 2.0 * x, (torch.randn(3), torch.randn(3)))


def test_fields_of_a_struct_have_names(mode):
    names = {"left": "pair.x", "right": "pair.w", "to_left": "grad_pair.x", "to_right": "grad_pair.w"}
    op = warp_op(product_of_fields, "pair.x[n], pair.w[n] -> y[n]", backward=(two_products, {**TO_BOTH, **names}))
    check_against(mode(lambda x, w: op({"x": x, "w": w})), torch.mul, (torch.randn(3), torch.randn(3)))


def test_vmap_of_a_backward_with_names():
    op = warp_op(product, "x[n], w[n] -> y[n]", backward=(two_products, TO_BOTH))
    x, w = torch.randn(2, 3), torch.randn(3)
    got = torch.func.vmap(torch.func.grad(lambda x: op(x, w).sum()))(x)
    close(got, w.expand(2, 3))


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (
            {"letf": "x"},
            "'letf' is no argument of two_products; those are left, right, cotangent, scale, to_left, to_right",
        ),
        ({"left": "q"}, "takes 'left' for 'q', which is no input, output or gradient of the op"),
        ({"left": 1.0}, "'left' (wp.array[wp.float32]) stands for 1.0; expected the name of an input"),
        ({"scale": None}, "'scale' (float32) stands for None; expected"),
        (
            {"scale": "x"},
            "argument 'scale': expected wp.array[wp.float32], the type of 'x' in the forward, got float32",
        ),
        ({"to_right": "grad_x"}, "gives 'grad_x' twice, by 'to_left' and by 'to_right'"),
        ({"to_left": "x", "to_right": "w"}, "gives no gradient; name at least one of grad_w, grad_x"),
    ],
)
def test_a_dict_that_does_not_fit(names, text):
    with pytest.raises(SignatureError) as caught:
        warp_op(product, "x[n], w[n] -> y[n]", backward=(two_products, {**TO_BOTH, **names}))
    assert text in str(caught.value)


@pytest.mark.parametrize("sign", [1.5, 2**40, float("inf")])
def test_a_constant_that_its_type_does_not_hold(sign):
    with pytest.raises(SignatureError, match=f"'sign' .int32. can't be {sign!r}"):
        warp_op(turn, "x[n] -> y[n]", nondiff="angle", backward=(turn, {"x": "grad_y", "y": "grad_x", "sign": sign}))


@pytest.mark.parametrize("pair", [(two_products,), (two_products, "x"), (two_products, {}, {})])
def test_no_pair_of_a_kernel_and_a_dict(pair):
    with pytest.raises(SignatureError, match="backward takes a kernel or a WarpOp, or a pair of one and a dict"):
        warp_op(product, "x[n], w[n] -> y[n]", backward=pair)


def test_a_name_that_is_unknown_asks_for_a_dict():
    with pytest.raises(
        SignatureError, match="two_products takes 'left', which is no input.*or a dict says what they stand for"
    ):
        warp_op(product, "x[n], w[n] -> y[n]", backward=two_products)


# --- in messages ------------------------------------------------------------------------------------------------------


@wp.kernel
def taken(x: wp.array[float], at: wp.array[int], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[at[i]]


@wp.kernel(enable_backward=False)
def taken_back(at: wp.array[int], grad_y: wp.array[float], grad_x: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(grad_x, at[i] + 2, grad_y[i])


taken_op = warp_op(taken, "x[n], at[m] -> y[m]", dim="m", backward=taken_back, name="backward_names::taken")


def test_errors_of_its_launch_name_the_op(mode):
    x, at = torch.ones(3, requires_grad=True), torch.tensor([0, 1, 2], dtype=torch.int32)
    y = mode(taken_op)(x, at).sum()
    with bounds_checked(), pytest.raises(ArgumentError) as caught:
        y.backward()
    assert str(caught.value).startswith("backward_names::taken: backward taken_back: 'grad_x' is indexed at 3")


def test_what_it_has_no_derivative_for_names_the_op():
    x, at = torch.ones(3, requires_grad=True), torch.tensor([0, 0, 0], dtype=torch.int32)
    y = taken_op(x, at) * x
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(GradientError, match="^backward_names::taken: backward taken_back has no gradient"):
        grad.sum().backward()
