"""Generic kernels whose arrays are of different families: an output follows those that its annotation admits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import warp as wp

from support import check_against, close, compiled, eager, leaf
from warpops import ArgumentError, SignatureError, warp_op


@wp.kernel
def gather(x: wp.array[wp.Float], k: wp.array[wp.Int], y: wp.array[wp.Float]):
    i = wp.tid()
    y[i] = x[int(k[i])] * x[int(k[i])]


@wp.kernel
def count(x: wp.array[wp.Float], k: wp.array[wp.Int], c: wp.array[wp.Int]):
    i = wp.tid()
    if x[i] > type(x[i])(0.0):
        c[i] = k[i] + k[i]


@wp.kernel
def any_of(x: wp.array[Any], k: wp.array[wp.Int], y: wp.array[Any]):
    i = wp.tid()
    y[i] = x[int(k[i])]


@wp.kernel
def from_ints(k: wp.array[wp.Int], y: wp.array[wp.Float]):
    i = wp.tid()
    y[i] = y.dtype(k[i])


@wp.kernel
def two(x: wp.array[wp.Float], w: wp.array[wp.Float], k: wp.array[wp.Int], y: wp.array[wp.Float]):
    i = wp.tid()
    y[i] = x[i] + type(x[i])(w[i]) + type(x[i])(k[i])


gather_op = warp_op(gather, "x[n], k[m] -> y[m]", dim="m")
count_op = warp_op(count, "x[n], k[n] -> c[n]", dim="n")


@pytest.mark.parametrize("mode", [eager, compiled], ids=["eager", "compiled"])
@pytest.mark.parametrize("real", [torch.float32, torch.float64])
@pytest.mark.parametrize("whole", [torch.int32, torch.int64])
def test_floats_gathered_by_ints(mode, real, whole):
    x, k = leaf(torch.linspace(1.0, 3.0, 5, dtype=real)), torch.tensor([4, 0, 4], dtype=whole)
    y = mode(lambda x, k: gather_op(x, k))(x, k)
    assert y.dtype is real
    close(y, (x**2)[k.long()])
    (gradient,) = torch.autograd.grad(y.sum(), x)
    close(gradient, torch.autograd.grad((x**2)[k.long()].sum(), x)[0])


def test_ints_beside_floats():
    c = count_op(torch.tensor([1.0, -1.0], dtype=torch.float64), torch.tensor([3, 4]))
    assert c.dtype is torch.int64
    assert c.tolist() == [6, 0]


def test_an_output_of_any_type_follows_all():
    op = warp_op(any_of, "x[n], k[m] -> y[m]", dim="m")
    k = torch.tensor([1, 0], dtype=torch.int32)
    assert op(torch.tensor([5, 6], dtype=torch.int32), k).tolist() == [6, 5]
    with pytest.raises(ArgumentError, match="'k': expected dtype torch.float32, as 'x' has, got torch.int32"):
        op(torch.ones(2), k)


def test_those_that_it_admits_must_be_one():
    op = warp_op(two, "x[n], w[n], k[n] -> y[n]", dim="n")
    k = torch.tensor([1, 2])
    close(op(torch.ones(2), torch.ones(2), k), torch.tensor([3.0, 4.0]))
    with pytest.raises(ArgumentError, match="'w': expected dtype torch.float32, as 'x' has, got torch.float64"):
        op(torch.ones(2), torch.ones(2, dtype=torch.float64), k)


def test_none_that_it_admits():
    with pytest.raises(SignatureError, match=r"'y' is generic.*wp\.overload"):
        warp_op(from_ints, "k[n] -> y[n]", dim="n")


# --- matrices beside vectors --------------------------------------------------------------------------------------------

MATRIX = wp.types.matrix(shape=(Any, Any), dtype=wp.Float)
VECTOR = wp.types.vector(length=Any, dtype=wp.Float)


@wp.kernel
def turned(m: wp.array[MATRIX], x: wp.array[VECTOR], y: wp.array[VECTOR]):
    i = wp.tid()
    y[i] = m[i] * x[i]


@wp.kernel
def turned_any(m: wp.array[Any], x: wp.array[Any], y: wp.array[Any]):
    i = wp.tid()
    y[i] = m[i] * x[i]


@wp.kernel
def turned_declared(m: wp.array[Any], x: wp.array[Any], y: wp.array[Any]):
    i = wp.tid()
    y[i] = m[i] * x[i]


wp.overload(turned_declared, [wp.array[wp.mat33], wp.array[wp.vec3], wp.array[wp.vec3]])
wp.overload(turned_declared, [wp.array[wp.types.matrix((2, 3), wp.float32)], wp.array[wp.vec3], wp.array[wp.vec2]])


@wp.kernel
def first_row(m: wp.array[MATRIX], y: wp.array[VECTOR]):
    i = wp.tid()
    y[i] = m[i][0]


@wp.kernel
def stretched(m: wp.array[MATRIX], x: wp.array[VECTOR], s: wp.Float, y: wp.array[VECTOR]):
    i = wp.tid()
    y[i] = m[i] * x[i] * s


def apply(m, x):
    return (m @ x[..., None])[..., 0]


@pytest.mark.parametrize("mode", [eager, compiled], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_generic_lengths_say_which_array_is_a_vector(mode, dtype):
    check_against(mode(warp_op(turned)), apply, (torch.randn(4, 3, 3, dtype=dtype), torch.randn(4, 3, dtype=dtype)))
    check_against(mode(warp_op(turned)), apply, (torch.randn(4, 2, 2, dtype=dtype), torch.randn(4, 2, dtype=dtype)))


def test_any_of_a_matrix_and_a_vector_names_overloads_and_generic_lengths():
    op = warp_op(turned_any)
    with pytest.raises(ArgumentError, match=r"elements of shape \(3, 3\).*wp\.types\.vector\(length=Any.*wp\.overload"):
        op(torch.randn(4, 3, 3), torch.randn(4, 3))
    with pytest.raises(ArgumentError, match=r"expected dtype torch.float32, as 'm' has, got torch.float64"):
        op(torch.randn(4, 3, 3), torch.randn(4, 3).double())


def test_declared_overloads_say_the_output_s_type():
    op = warp_op(turned_declared)
    for rows in (3, 2):
        check_against(op, apply, (torch.randn(4, rows, 3), torch.randn(4, 3)))


def test_a_length_that_no_tensor_says():
    with pytest.raises(SignatureError, match=r"the size of the elements of 'y' is generic.*length=Any.*wp\.overload"):
        warp_op(first_row)(torch.randn(4, 3, 3))
    with pytest.raises(ArgumentError, match=r"'y': wp.array.wp.vec3f.; wp.overload declares others"):
        warp_op(turned)(torch.randn(4, 2, 3), torch.randn(4, 3))


@pytest.mark.parametrize("mode", [eager, compiled], ids=["eager", "compiled"])
def test_a_tensor_scalar_follows_them(mode):
    op = warp_op(stretched, tensor_scalars="s")
    m, x = torch.randn(4, 3, 3), torch.randn(4, 3)
    call = mode(op)
    for s in (2.0, 3.0):
        close(call(m, x, torch.tensor(s)), s * apply(m, x))


# --- vectors by value -------------------------------------------------------------------------------------------------


@wp.kernel
def moved(v: wp.types.vector(length=Any, dtype=wp.Scalar), x: wp.array[wp.Scalar], y: wp.array[wp.Scalar]):
    i = wp.tid()
    y[i] = x[i] * x[i] + v[0] + v[2]


@pytest.mark.parametrize("mode", [eager, compiled], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float64])
def test_numbers_of_a_vector_by_value_stay_what_they_are(mode, dtype):
    op = warp_op(moved, "x[n] -> y[n]", dim="n")
    x, numbers = torch.arange(4, dtype=dtype), (2, 3, 2**30 + 1)
    assert mode(lambda x: op(numbers, x))(x).tolist() == (x * x + 2**30 + 3).tolist()
    close(torch.func.vmap(lambda x: op(numbers, x))(torch.stack([x, x]))[1], x * x + 2**30 + 3)
    with pytest.raises(Exception, match=r"argument 'v': expected an int \(int32\), got the float 1.5"):
        mode(lambda x: op((1.5, 3, 4), x))(torch.arange(4, dtype=torch.int32))
