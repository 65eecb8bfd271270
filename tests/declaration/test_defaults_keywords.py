"""Python's own ways to call: positions, keywords, defaults."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
import warp as wp

import kernels
from support import check_against, close
from warpops import warp_op


@wp.kernel
def poly(x: wp.array[float], a: float = 2.0, n: int = 3, flip: bool = False, y: wp.array[float] = None):
    i = wp.tid()
    v = a * x[i] * x[i] + float(n)
    if flip:
        v = -v
    y[i] = v


@wp.kernel
def vector_default(x: wp.array[float], g: wp.vec3 = wp.vec3(1.0, 2.0, 3.0), y: wp.array[float] = None):  # noqa: B008
    i = wp.tid()
    y[i] = x[i] * g[1]


@wp.kernel
def infinite_default(x: wp.array[float], top: float = math.inf, y: wp.array[float] = None):
    i = wp.tid()
    y[i] = wp.min(x[i], top)


poly_op = warp_op(poly, "x[m] -> y[m]", dim="m")
vector_op = warp_op(vector_default, "x[n] -> y[n]", dim="n")
infinite_op = warp_op(infinite_default, "x[n] -> y[n]", dim="n")

CALLS = {
    "none": ((), {}),
    "first": ((5.0,), {}),
    "two": ((5.0, 7), {}),
    "all": ((5.0, 7, True), {}),
    "last by keyword": ((), {"flip": True}),
    "middle by keyword": ((5.0,), {"n": 1}),
    "out of order": ((), {"flip": True, "n": 1, "a": -1.0}),
    "equal to the defaults": ((2.0, 3, False), {}),
    "equal by keyword": ((), {"a": 2.0, "n": 3, "flip": False}),
    "int for float": ((4,), {}),
    "bool for int": ((4.0, True), {}),
}


def poly_(x, a=2.0, n=3, flip=False):
    v = a * x * x + n
    return -v if flip else v


@pytest.mark.parametrize("call", CALLS)
def test_defaults(mode, call):
    args, kwargs = CALLS[call]
    check_against(mode(lambda x: poly_op(x, *args, **kwargs)), lambda x: poly_(x, *args, **kwargs), (torch.randn(3),))


@pytest.mark.parametrize("call", CALLS)
def test_defaults_through_torch_ops(call):
    """Arguments that equal their default are dropped before the op's kernel sees them."""
    args, kwargs = CALLS[call]
    function = torch.ops.test_defaults_keywords.poly
    check_against(lambda x: function(x, *args, **kwargs), lambda x: poly_(x, *args, **kwargs), (torch.randn(3),))


def test_everything_by_keyword(mode):
    x, w = torch.randn(3), torch.randn(3)
    close(mode(lambda x, w: kernels.product_op(w=w, x=x))(x, w), x * x * w)


def test_a_vector_as_default(mode):
    x = torch.randn(3)
    close(mode(lambda x: vector_op(x))(x), 2 * x)
    close(mode(lambda x: vector_op(x, g=(0.0, 5.0, 0.0)))(x), 5 * x)


def test_infinity_as_default(mode):
    x = torch.randn(3)
    close(mode(lambda x: infinite_op(x))(x), x)
    close(mode(lambda x: infinite_op(x, 0.0))(x), x.clamp(max=0.0))


def test_a_default_on_an_output_is_no_argument():
    assert list(inspect.signature(poly_op).parameters) == ["x", "a", "n", "flip"]
    assert inspect.signature(poly_op).parameters["a"].default == 2.0


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), (("x", 1.0, 2, True, 9), {}), (("x",), {"q": 1}), (("x",), {"y": 1})]
)
def test_what_python_refuses(args, kwargs):
    args = tuple(torch.ones(2) if a == "x" else a for a in args)
    with pytest.raises(TypeError, match="poly"):
        poly_op(*args, **kwargs)
