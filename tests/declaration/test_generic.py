"""Generic kernels: the overload follows the tensors, one kernel serves many dtypes, and a bad one spoils no other."""

from __future__ import annotations

import re
import types
from typing import Any

import pytest
import torch
import warp as wp

from support import check_against, close, compiled, graph_count
from warpops import ArgumentError, SignatureError, warp_op

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32, torch.float64)


@wp.kernel
def multiply(x: wp.array[Any], y: wp.array[Any], z: wp.array[Any]):
    i = wp.tid()
    z[i] = x[i] * y[i]


@wp.kernel
def scale(x: wp.array[Any], s: Any, y: wp.array[Any]):
    i = wp.tid()
    y[i] = x[i] * s


@wp.kernel
def dot(x: wp.array[Any], z: wp.array[float]):
    i = wp.tid()
    z[i] = float(wp.dot(x[i], x[i]))


@wp.kernel
def stretch(
    x: wp.array[wp.types.vector(length=Any, dtype=wp.Float)],
    s: wp.Float,
    z: wp.array[wp.types.vector(length=Any, dtype=wp.Float)],
):
    i = wp.tid()
    z[i] = x[i] * s


@wp.kernel
def transform(
    m: wp.types.matrix(shape=(Any, Any), dtype=wp.Float),
    x: wp.array[wp.types.vector(length=Any, dtype=wp.Float)],
    y: wp.array[wp.types.vector(length=Any, dtype=wp.Float)],
):
    i = wp.tid()
    y[i] = m * x[i]


@wp.kernel
def weigh(x: wp.array[float], k: wp.array[Any], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * float(k[i]) * w[i]


@wp.kernel
def double_both(x: wp.array[float], k: wp.array[Any], y: wp.array[float], c: wp.array[Any]):
    i = wp.tid()
    y[i] = x[i] * x[i]
    c[i] = k[i] + k[i]


@wp.kernel
def masked(x: wp.array[Any], w: wp.array[Any], y: wp.array[Any]):
    i = wp.tid()
    v = x[i]
    if w:
        v = v * w[i]
    y[i] = v


multiply_op = warp_op(multiply)
scale_op = warp_op(scale, "x[n] -> y[n]")
dot_op = warp_op(dot)
stretch_op = warp_op(stretch)
transform_op = warp_op(transform)
weigh_op = warp_op(weigh)
double_op = warp_op(double_both, "x[n], k[n] -> y[n], c[n]")


def tolerance(dtype):
    return {"rtol": 2e-2, "atol": 2e-2} if dtype in HALVES else {}


def test_dtypes_side_by_side(mode):
    call = mode(multiply_op)
    for dtype in (*FLOATS, torch.float16):
        pair = [torch.randn(5).to(dtype), torch.randn(5).to(dtype)]
        check_against(call, lambda x, y: x * y, pair, **tolerance(dtype))


def test_integer_dtypes(mode):
    call = mode(multiply_op)
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64):
        result = call(torch.tensor([1, 2, 3], dtype=dtype), torch.tensor([4, 5, 6], dtype=dtype))
        assert result.dtype == dtype
        assert result.tolist() == [4, 10, 18]


def test_sizes_do_not_recompile():
    call = compiled(multiply_op)
    for n in (3, 4, 5, 6):
        close(call(torch.ones(n), torch.full((n,), 2.0)), torch.full((n,), 2.0))
    assert graph_count() <= 2


def test_vectors_of_any_length(mode):
    call = mode(dot_op)
    for n in (2, 3, 5):
        check_against(call, lambda x: (x * x).sum(-1), [torch.randn(4, n)])
    check_against(call, lambda x: (x * x).sum(-1).float(), [torch.randn(4, 3, dtype=torch.float64)])


def test_vector_annotation_with_generic_length_and_dtype(mode):
    call = mode(stretch_op)
    for dtype, n in ((torch.float32, 2), (torch.float32, 3), (torch.float64, 3), (torch.float16, 2)):
        given = [torch.randn(4, n).to(dtype)]
        check_against(lambda x: call(x, 0.5), lambda x: x * 0.5, given, **tolerance(dtype))


def test_matrix_by_value_is_square(mode):
    matrix = [[1.0, 2.0], [3.0, 4.0]]
    call = mode(transform_op)
    for dtype in (torch.float32, torch.float64):
        check_against(
            lambda x: call(matrix, x),
            lambda x: x @ torch.tensor(matrix, dtype=x.dtype).T,
            [torch.randn(4, 2).to(dtype)],
        )
    with pytest.raises(ArgumentError, match="'m': .*got 3; a matrix whose size is generic is taken for square"):
        transform_op([1.0, 2.0, 3.0], torch.randn(4, 2))


def test_scalar_follows_the_tensors(mode):
    call = mode(scale_op)
    for dtype in FLOATS:
        check_against(lambda x: call(x, 0.1), lambda x: x * 0.1, [torch.randn(5).to(dtype)], **tolerance(dtype))
    # In double precision, 0.1 is that of Python, not that of float32.
    assert call(torch.ones(1, dtype=torch.float64), 0.1).item() == 0.1
    assert call(torch.ones(2), 3).tolist() == [3.0, 3.0]
    large = 2**60 + 1
    assert call(torch.ones(1, dtype=torch.int64), large).item() == large
    assert call(torch.ones(1, dtype=torch.int32), 3).dtype == torch.int32


def test_scalar_is_not_stale_in_compiled_code():
    call = compiled(scale_op)
    for s in (2.0, 3.0, 4.0, 5, 6):
        assert call(torch.ones(1), s).item() == s


def test_an_array_that_has_a_gradient_for_some_dtypes_only(mode):
    call = mode(weigh_op)
    for k in (torch.arange(4), torch.randn(4), torch.randn(4, dtype=torch.float64)):
        check_against(call, lambda x, k, w: x * k.float() * w, [torch.randn(4), k, torch.randn(4)])


def test_an_output_that_has_a_gradient_for_some_dtypes_only(mode):
    x = torch.randn(4, requires_grad=True)
    y, c = mode(double_op)(x, torch.arange(4))
    assert c.tolist() == [0, 2, 4, 6]
    assert not c.requires_grad
    close(torch.autograd.grad(y.sum(), x)[0], 2.0 * x)


def test_optional_generic_array(mode):
    call = mode(warp_op(masked, "x[n] -> y[n]", optional="w"))
    check_against(lambda x: call(x, None), lambda x: x, [torch.randn(3).double()])
    check_against(call, lambda x, w: x * w, [torch.randn(3).double(), torch.randn(3).double()])


def absent(x, w, y):
    i = wp.tid()
    v = x[i] * x[i]
    if w:
        v = v * w[i]
    y[i] = v


def absent_vector(x, w, y):
    i = wp.tid()
    v = x[i] * x[i]
    if w:
        v = v * w[i][0]
    y[i] = v


OF_FLOATS = {
    "Any": (absent, Any),
    "Float": (absent, wp.Float),
    "Scalar": (absent, wp.Scalar),
    "vector": (absent_vector, wp.types.vector(length=Any, dtype=wp.Float)),
}


@pytest.mark.parametrize("element", OF_FLOATS)
def test_an_optional_array_that_is_absent_goes_with_the_others(element):
    function, dtype = OF_FLOATS[element]
    kernel = types.FunctionType(function.__code__, globals(), f"{function.__name__}_{element}")
    kernel.__annotations__ = {"x": wp.array[wp.Float], "w": wp.array(dtype=dtype), "y": wp.array[wp.Float]}
    op = warp_op(wp.kernel(kernel, module="unique"), "x[n], w[n] -> y[n]", optional="w", dim="n")
    check_against(lambda x: op(x, None), torch.square, [torch.randn(3).double()])
    close(op(torch.ones(2).half(), None), torch.ones(2).half())


def test_zero_size_and_empty_launch(mode):
    assert mode(multiply_op)(torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)).shape == (0,)


def test_types_that_cannot_be_built_leave_the_others_alone():
    close(multiply_op(torch.ones(2), torch.ones(2)), torch.ones(2))
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"test_generic::multiply: .*can't be built .*'x': wp.array\[wp.bool\]"):
            multiply_op(torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.bool))
    with pytest.raises(ArgumentError, match="can't be built"):
        multiply_op(torch.ones(2, 3), torch.ones(2, 3))
    close(multiply_op(torch.ones(2), torch.ones(2)), torch.ones(2))
    close(multiply_op(torch.ones(2).half(), torch.ones(2).half()), torch.ones(2).half())
    close(scale_op(torch.ones(2), 2.0), torch.full((2,), 2.0))


def test_dtypes_that_differ():
    message = r"'y': expected dtype torch.float32, as 'x' has, got torch.float64; the dtype of 'z' follows"
    with pytest.raises(ArgumentError, match=message):
        multiply_op(torch.ones(2), torch.ones(2).double())
    with pytest.raises(Exception, match=message):
        compiled(multiply_op)(torch.ones(2), torch.ones(2).double())
    with pytest.raises(ArgumentError, match=r"'y': expected elements of shape \(3,\), as 'x' has, got \(\)"):
        multiply_op(torch.ones(2, 3), torch.ones(2))


def test_wrong_ranks_and_dtypes():
    with pytest.raises(ArgumentError, match="'x': expected 1 or 2 or 3 dimensions .* use torch.vmap"):
        multiply_op(torch.ones(2, 2, 2, 2), torch.ones(2))
    with pytest.raises(ArgumentError, match="'x': expected a dtype that .* takes, got torch.complex64"):
        multiply_op(torch.ones(2, dtype=torch.complex64), torch.ones(2))
    with pytest.raises(ArgumentError, match="'x': expected a dtype that .* takes, got torch.int64"):
        stretch_op(torch.ones(2, 3, dtype=torch.int64), 1.0)
    with pytest.raises(ArgumentError, match="'x': expected a tensor"):
        multiply_op(None, torch.ones(2))


@wp.kernel
def count_up(y: wp.array[Any]):
    i = wp.tid()
    y[i] = y.dtype(i)


def test_nothing_says_the_dtype_of_the_output():
    with pytest.raises(SignatureError, match="the dtype of 'y' is generic, and no input array is.*wp.overload"):
        warp_op(count_up, "-> y[n]", sizes="n")


@wp.kernel
def widen(x: wp.array[Any], s: Any, y: wp.array[Any]):
    i = wp.tid()
    y[i] = y.dtype(x[i]) * s


@wp.kernel
def ramp(y: wp.array[Any]):
    i = wp.tid()
    y[i] = y.dtype(i)


wp.overload(widen, {"x": wp.array[wp.float16], "s": wp.float32, "y": wp.array[wp.float32]})
wp.overload(ramp, [wp.array[wp.float64]])


def test_declared_overloads_are_honoured(mode):
    call = mode(warp_op(widen, "x[n] -> y[n]"))
    check_against(lambda x: call(x, 3.0), lambda x: x.float() * 3.0, [torch.randn(4).half()], rtol=1e-2, atol=1e-2)
    assert call(torch.ones(2).double(), 2.0).dtype == torch.float64
    result = mode(warp_op(ramp, "-> y[n]", sizes="n"))(n=3)
    assert result.dtype == torch.float64
    assert result.tolist() == [0.0, 1.0, 2.0]


def make_scaled(c, unique):
    @wp.kernel(module="unique" if unique else None)
    def scaled(x: wp.array[Any], y: wp.array[Any]):
        i = wp.tid()
        y[i] = x[i] * x.dtype(wp.static(c))

    return warp_op(scaled)


@pytest.mark.parametrize("unique", [False, True])
def test_factories_of_generic_kernels_keep_their_constants(unique):
    two, three = make_scaled(2.0, unique), make_scaled(3.0, unique)
    assert two.name != three.name
    for dtype in (torch.float32, torch.float64):
        check_against(two, lambda x: x * 2.0, [torch.randn(3).to(dtype)])
        check_against(three, lambda x: x * 3.0, [torch.randn(3).to(dtype)])


def make_activated(c, function):
    @wp.func
    def activation(v: float):
        return function(v)

    @warp_op
    @wp.kernel
    def activated(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = activation(x[i]) * wp.static(c) + c

    return activated


def test_factories_keep_functions_and_constants(mode):
    sine, cosine = make_activated(2.0, wp.sin), make_activated(3.0, wp.cos)
    assert re.fullmatch(re.escape(sine.name) + r"_\d+", cosine.name)
    for _ in range(2):
        check_against(mode(sine), lambda x: torch.sin(x) * 2.0 + 2.0, [torch.randn(3)])
        check_against(mode(cosine), lambda x: torch.cos(x) * 3.0 + 3.0, [torch.randn(3)])


def test_autocast_casts_nothing():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            assert multiply_op(torch.ones(2).to(dtype), torch.ones(2).to(dtype)).dtype == dtype


def test_vmap_and_grad():
    x = torch.randn(3, 4, dtype=torch.float64)
    close(torch.vmap(lambda row: scale_op(row, 2.0))(x), x * 2.0)
    close(torch.func.grad(lambda v: multiply_op(v, v).sum())(x[0]), 2.0 * x[0])


def test_opcheck_and_gradcheck():
    for dtype in (torch.float32, torch.float64, torch.float16):
        x = torch.randn(3).to(dtype).requires_grad_()
        torch.library.opcheck(multiply_op.overload, (x, torch.randn(3).to(dtype)))
    torch.library.opcheck(scale_op.overload, (torch.randn(3, requires_grad=True), 2.0))
    torch.library.opcheck(scale_op.overload, (torch.arange(3), 2))
    torch.library.opcheck(weigh_op.overload, (torch.randn(3, requires_grad=True), torch.arange(3), torch.randn(3)))
    torch.library.opcheck(double_op.overload, (torch.randn(3, requires_grad=True), torch.arange(3)))
    pair = tuple(torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(multiply_op, pair)
    assert torch.autograd.gradcheck(
        lambda x: stretch_op(x, 0.5), torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    )
