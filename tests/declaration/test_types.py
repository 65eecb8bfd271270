"""Every element type as input and output, with gradients where it has them; and every type by value."""

import warnings

import pytest
import torch
import warp as wp

from support import check_against, close, graph_count, values_and_grads
from warpops import ArgumentError, warp_op

FLOATS = {
    torch.float16: wp.float16,
    torch.float32: wp.float32,
    torch.float64: wp.float64,
}
if hasattr(wp, "bfloat16"):
    FLOATS[torch.bfloat16] = wp.bfloat16
INTS = {
    torch.int8: wp.int8,
    torch.int16: wp.int16,
    torch.int32: wp.int32,
    torch.int64: wp.int64,
    torch.uint8: wp.uint8,
    torch.uint16: wp.uint16,
    torch.uint32: wp.uint32,
    torch.uint64: wp.uint64,
}


MADE: list[str] = []


def square_of(scalar):
    def kernel(x: wp.array[scalar], y: wp.array[scalar]):
        i = wp.tid()
        y[i] = x[i] * x[i]

    kernel.__name__ = kernel.__qualname__ = f"square_{scalar.__name__}"
    return wp.Kernel(kernel, key=kernel.__name__, module=wp.get_module(__name__))


def scaled(element, scalar):
    """Elements times numbers, for vectors, matrices, quaternions and transforms alike."""

    def kernel(x: wp.array[element], s: wp.array[scalar], y: wp.array[element]):
        i = wp.tid()
        y[i] = x[i] * s[i]

    name = f"scaled_{len(MADE)}"
    MADE.append(name)
    kernel.__name__ = kernel.__qualname__ = name
    return wp.Kernel(kernel, key=name, module=wp.get_module(__name__))


vec5d = wp.types.vector(length=5, dtype=wp.float64)
mat23 = wp.types.matrix(shape=(2, 3), dtype=wp.float32)

ELEMENTS = {
    wp.vec2: (2,),
    wp.vec3: (3,),
    wp.vec4: (4,),
    wp.vec2d: (2,),
    wp.vec3d: (3,),
    wp.vec3h: (3,),
    vec5d: (5,),
    wp.mat22: (2, 2),
    wp.mat33: (3, 3),
    wp.mat44d: (4, 4),
    mat23: (2, 3),
    wp.quat: (4,),
    wp.quatd: (4,),
    wp.transform: (7,),
    wp.transformd: (7,),
    wp.spatial_vector: (6,),
    wp.spatial_matrix: (6, 6),
}
DTYPES = {scalar: dtype for dtype, scalar in FLOATS.items()}

SQUARES = {dtype: square_of(scalar) for dtype, scalar in (FLOATS | INTS).items()}
SCALED = {element: scaled(element, element._wp_scalar_type_) for element in ELEMENTS}


@wp.kernel
def invert(x: wp.array[wp.bool], y: wp.array[wp.bool]):
    i = wp.tid()
    y[i] = not x[i]


@wp.kernel
def rigid(
    t: wp.array[wp.transform],
    q: wp.array[wp.quat],
    m: wp.array[wp.mat22],
    p: wp.array[wp.vec3],
    moved: wp.array[wp.vec3],
    turned: wp.array[wp.quat],
    gram: wp.array[wp.mat22],
    outer: wp.array[wp.mat33],
):
    i = wp.tid()
    moved[i] = wp.transform_point(t[i], p[i])
    turned[i] = wp.transform_get_rotation(t[i]) * q[i]
    gram[i] = m[i] * wp.transpose(m[i])
    outer[i] = wp.outer(p[i], wp.transform_get_translation(t[i]))


@wp.kernel
def grid_of_vectors(x: wp.array2d[wp.vec2], y: wp.array3d[wp.vec2]):
    i, j, k = wp.tid()
    y[i, j, k] = x[i, j] * float(k + 1)


@wp.kernel
def four(x: wp.array4d[float], y: wp.array4d[float]):
    i, j, k, l = wp.tid()  # noqa: E741
    y[i, j, k, l] = x[i, j, k, l] * x[i, j, k, l]


@wp.kernel
def by_value(
    x: wp.array[float],
    v: wp.vec3,
    m: wp.mat22,
    q: wp.quat,
    t: wp.transform,
    d: wp.vec2d,
    k: wp.vec2i,
    y: wp.array[float],
):
    i = wp.tid()
    p = wp.transform_get_translation(t)
    y[i] = x[i] * (
        v[0] + 10.0 * v[1] + 100.0 * v[2] + m[0, 1] + 2.0 * m[1, 0] + q[3] + p[1] + float(d[1]) + float(k[0])
    )


invert_op = warp_op(invert, "x[n] -> y[n]", dim="n")
rigid_op = warp_op(rigid, "t[n], q[n], m[n], p[n] -> moved[n], turned[n], gram[n], outer[n]", dim="n")
grid_of_vectors_op = warp_op(grid_of_vectors, "x[n, m] -> y[n, m, 4]", dim="n, m, 4")
four_op = warp_op(four, "x[a, b, c, d] -> y[a, b, c, d]", dim="a, b, c, d")
by_value_op = warp_op(by_value, "x[n] -> y[n]", dim="n")
SQUARE_OPS = {dtype: warp_op(kernel, "x[n] -> y[n]", dim="n") for dtype, kernel in SQUARES.items()}
SCALED_OPS = {element: warp_op(kernel, "x[n], s[n] -> y[n]", dim="n") for element, kernel in SCALED.items()}


def tolerance(dtype):
    return {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats(mode, dtype):
    x = torch.tensor([0.5, -1.25, 3.0, 0.0], dtype=dtype)
    check_against(mode(SQUARE_OPS[dtype]), lambda x: x * x, (x,), rtol=tolerance(dtype), atol=tolerance(dtype))


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_ints_keep_their_dtype_and_have_no_gradient(mode, dtype):
    x = torch.tensor([0, 1, 7, 11], dtype=torch.int64).to(dtype)
    y = mode(SQUARE_OPS[dtype])(x)
    assert y.dtype == dtype
    assert not y.requires_grad
    assert y.tolist() == [0, 1, 49, 121]


@pytest.mark.parametrize(
    ("unsigned", "signed"),
    [(torch.uint16, torch.int16), (torch.uint32, torch.int32), (torch.uint64, torch.int64)],
    ids=str,
)
def test_unsigned_arrays_take_the_signed_dtype_too(unsigned, signed):
    y = SQUARE_OPS[unsigned](torch.tensor([2, 9], dtype=signed))
    assert [int(v) for v in y.tolist()] == [4, 81]


def test_signed_arrays_take_no_unsigned_dtype():
    with pytest.raises(ArgumentError, match=r"'x': expected dtype torch.int32 .* got torch.uint32"):
        SQUARE_OPS[torch.int32](torch.tensor([2], dtype=torch.uint32))


def test_bools(mode):
    x = torch.tensor([True, False, True])
    y = mode(invert_op)(x)
    assert y.dtype == torch.bool
    assert torch.equal(y, ~x)


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda e: f"{e.__name__}{list(e._shape_)}")
def test_elements_with_components(mode, element):
    component = ELEMENTS[element]
    dtype = DTYPES[element._wp_scalar_type_]
    x, s = torch.randn(3, *component).to(dtype), torch.randn(3).to(dtype)
    check_against(
        mode(SCALED_OPS[element]),
        lambda x, s: x * s.reshape(-1, *(1,) * len(component)),
        (x, s),
        rtol=4 * tolerance(dtype),
        atol=4 * tolerance(dtype),
    )


def quaternion_product(a, b):
    ax, ay, az, aw = a.unbind(-1)
    bx, by, bz, bw = b.unbind(-1)
    return torch.stack(
        [
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
            aw * bw - ax * bx - ay * by - az * bz,
        ],
        -1,
    )


def rotated(q, v):
    u, w = q[..., :3], q[..., 3:]
    return v * (2 * w * w - 1) + torch.linalg.cross(u, v) * w * 2 + u * (u * v).sum(-1, keepdim=True) * 2


def rigid_(t, q, m, p):
    return (
        rotated(t[:, 3:], p) + t[:, :3],
        quaternion_product(t[:, 3:], q),
        m @ m.mT,
        p[:, :, None] * t[:, None, :3],
    )


def test_the_order_of_components(mode):
    """Quaternions are (x, y, z, w), transforms (position, quaternion), matrices row by row."""
    unit = torch.nn.functional.normalize
    t = torch.cat([torch.randn(3, 3), unit(torch.randn(3, 4), dim=-1)], -1)
    arguments = (t, unit(torch.randn(3, 4), dim=-1), torch.randn(3, 2, 2), torch.randn(3, 3))
    check_against(mode(rigid_op), rigid_, arguments, rtol=1e-3, atol=1e-4)


def test_grids_of_vectors(mode):
    x = torch.randn(2, 3, 2)
    check_against(mode(grid_of_vectors_op), lambda x: x[:, :, None] * torch.arange(1.0, 5.0)[:, None], (x,))


def test_four_dimensions(mode):
    check_against(mode(four_op), lambda x: x * x, (torch.randn(2, 3, 1, 2),))


# --- by value ---------------------------------------------------------------------------------------------------------

V, M, Q, T = [1.0, 2.0, 3.0], [[0.0, 5.0], [7.0, 0.0]], [0.0, 0.0, 0.0, 1.5], [0.0, 4.0, 0.0, 0.0, 0.0, 0.0, 1.0]
WANT = 1.0 + 20.0 + 300.0 + 5.0 + 14.0 + 1.5 + 4.0 + 0.25 + 6.0
D, K = [9.0, 0.25], [6, -1]
SPELLINGS = {
    "lists": (V, M, Q, T, D, K),
    "tuples": (tuple(V), tuple(map(tuple, M)), tuple(Q), tuple(T), tuple(D), tuple(K)),
    "flat": (V, [0.0, 5.0, 7.0, 0.0], Q, T, D, K),
    "ints": ([1, 2, 3], [[0, 5], [7, 0]], Q, [0, 4, 0, 0, 0, 0, 1], D, K),
    "nested transform": (V, M, Q, ((0.0, 4.0, 0.0), (0.0, 0.0, 0.0, 1.0)), D, K),
}
WARP_SPELLING = (
    wp.vec3(*V),
    wp.mat22(0.0, 5.0, 7.0, 0.0),
    wp.quat(*Q),
    wp.transform((0.0, 4.0, 0.0), (0.0, 0.0, 0.0, 1.0)),
    wp.vec2d(*D),
    wp.vec2i(*K),
)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_vectors_by_value(mode, spelling):
    x = torch.tensor([1.0, -2.0])
    check_against(mode(lambda x: by_value_op(x, *SPELLINGS[spelling])), lambda x: x * WANT, (x,))


def test_warp_values_by_value(mode):
    x = torch.tensor([1.0, -2.0])
    check_against(mode(lambda x: by_value_op(x, *WARP_SPELLING)), lambda x: x * WANT, (x,))


@wp.kernel
def half_by_value(x: wp.array[float], v: wp.vec2h, y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * float(v[0]) + float(v[1])


half_op = warp_op(half_by_value, "x[n] -> y[n]")


def test_half_precision_by_value(mode):
    x = torch.randn(3)
    for v in (wp.vec2h(0.5, 0.25), [0.5, 0.25]):
        check_against(mode(lambda x, v=v: half_op(x, v)), lambda x: x * 0.5 + 0.25, (x,))


def test_numpy_by_value():
    import numpy as np

    x = torch.tensor([1.0, -2.0])
    close(by_value_op(x, np.array(V), np.array(M), Q, T, D, K), x * WANT)


def test_a_vector_that_changes_is_not_stale():
    function = torch.compile(lambda x, v: by_value_op(x, v, M, Q, T, D, K), fullgraph=True, backend="aot_eager")
    x = torch.ones(1)
    for first in (1.0, 2.0, 3.5):
        close(function(x, [first, 2.0, 3.0]), torch.tensor([WANT - 1.0 + first]))


class Push(torch.nn.Module):
    """A Warp value that lives where values of a model live."""

    def __init__(self):
        super().__init__()
        self.v = wp.vec3(*V)

    def forward(self, x, m):
        return by_value_op(x, self.v, m, Q, T, D, K)


def test_a_warp_value_that_changes_is_not_stale():
    """Another value, and the same one changed in place; equal values share a graph."""
    net, m = Push(), wp.mat22(0.0, 5.0, 7.0, 0.0)
    before = graph_count()
    function = torch.compile(net, fullgraph=True, backend="aot_eager")
    x = torch.ones(1)
    close(function(x, m), torch.tensor([WANT]))
    net.v[0] = 2.0
    close(function(x, m), torch.tensor([WANT + 1.0]))
    net.v = wp.vec3(3.0, 2.0, 3.0)
    close(function(x, m), torch.tensor([WANT + 2.0]))
    m[0, 1] = 6.0
    close(function(x, m), torch.tensor([WANT + 3.0]))
    made = graph_count() - before
    net.v = wp.vec3(3.0, 2.0, 3.0)
    close(function(x, wp.mat22(0.0, 6.0, 7.0, 0.0)), torch.tensor([WANT + 3.0]))
    assert (made, graph_count() - before) == (4, 4)


@pytest.mark.parametrize("strict", [False, True])
def test_a_warp_value_is_exported(strict):
    program = torch.export.export(Push(), (torch.ones(3), M), strict=strict)
    close(program.module()(torch.full((3,), 2.0), M), torch.full((3,), 2.0 * WANT))


def test_another_type_of_warp_value_is_refused(mode):
    with pytest.raises(Exception, match=r"argument 'v': expected 3 numbers"):
        mode(lambda x: by_value_op(x, wp_vec2, M, Q, T, D, K))(torch.ones(1))


wp_vec2 = wp.vec2(1.0, 2.0)


# --- annotations ------------------------------------------------------------------------------------------------------


@wp.kernel
def long_spelling(
    p: wp.array(dtype=wp.vec3),
    m: wp.array(dtype=wp.float32, ndim=2),
    s: wp.float32,
    n: wp.int32,
    y: wp.array(dtype=wp.vec3),
):
    i = wp.tid()
    y[i] = p[i] * m[i, 0] * s + wp.vec3(float(n), 0.0, 0.0)


def test_both_spellings_of_an_array_type(mode):
    op = warp_op(long_spelling, "p[k], m[k, _] -> y[k]", dim="k")
    p, m = torch.randn(3, 3), torch.randn(3, 2)
    check_against(
        mode(lambda p, m: op(p, m, 2.0, 5)),
        lambda p, m: p * m[:, :1] * 2.0 + torch.tensor([5.0, 0.0, 0.0]),
        (p, m),
    )


def test_a_plain_function_becomes_a_kernel(mode):
    def halves(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = x[i] * 0.5

    op = warp_op(halves, "x[n] -> y[n]", dim="n")
    assert isinstance(op.kernel, wp.Kernel)
    check_against(mode(op), lambda x: x * 0.5, (torch.randn(3),))


def test_gradients_have_the_input_s_dtype_and_shape():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, (g, _) = values_and_grads(SCALED_OPS[wp.vec3d], (torch.randn(5, 3).double(), torch.randn(5).double()))
    assert g.dtype == torch.float64
    assert g.shape == (5, 3)
