"""What an op says of a gradient that Warp's adjoint has wrong: a warning at decoration, or an error at the backward."""

from __future__ import annotations

import warnings

import pytest
import torch
import warp as wp

from warpops import GradientError, GradientWarning, WarpOp, warp_op, warp_program


@wp.kernel
def strided(x: wp.array[wp.float64], y: wp.array[wp.float64], stride: int):
    i = wp.tid()
    while i < y.shape[0]:
        y[i] = x[i] * x[i]
        i += stride


@wp.kernel
def gathered(x: wp.array[wp.float64], y: wp.array[wp.float64]):
    i = wp.tid()
    v = wp.vec4d()
    c = int(0)
    for k in range(x.shape[0]):
        v[c] = x[k]
        c += 1
    y[i] = v[0] * v[1]


@wp.kernel
def strided_unseen(x: wp.array[wp.float64], y: wp.array[wp.float64], stride: int):
    i = wp.tid()
    address = x.ptr  # noqa: F841
    while i < y.shape[0]:
        y[i] = x[i] * x[i]
        i += stride


def silently(kernel: wp.Kernel, *args: str, **options: str) -> WarpOp:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return warp_op(kernel, *args, **options)


def test_an_index_that_a_loop_carries_is_made_right() -> None:
    op = silently(strided, "x[n] -> y[n]", dim="stride")
    x = torch.arange(5, dtype=torch.float64, requires_grad=True)
    y = op(x, 2)
    assert y.tolist() == [0.0, 1.0, 4.0, 9.0, 16.0]
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_an_index_into_a_local_vector_is_made_right() -> None:
    op = silently(gathered, "x[n] -> y[m]", sizes="m", dim="m")
    x = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(op(x, 1).sum(), x)
    assert gradient.tolist() == [3.0, 2.0]


def test_where_it_can_not_be_the_gradient_is_refused_at_the_backward_alone() -> None:
    op = silently(strided_unseen, "x[n] -> y[n]", dim="stride")
    x = torch.arange(5, dtype=torch.float64, requires_grad=True)
    y = op(x, 2)
    assert y.tolist() == [0.0, 1.0, 4.0, 9.0, 16.0]
    with pytest.raises(GradientError, match="'i' is an index here") as caught:
        y.sum().backward()
    assert f"{__file__}:{strided_unseen.adj.fun_lineno + 4}" in str(caught.value)
    assert x.grad is None


def test_a_program_refuses_the_gradient_too() -> None:
    @warp_program("x[n] -> y[n]")
    def both(x: wp.array[wp.float64], y: wp.array[wp.float64]):
        wp.launch(strided_unseen, dim=2, inputs=[x, y, 2])

    x = torch.arange(5, dtype=torch.float64, requires_grad=True)
    y = both(x)
    with pytest.raises(GradientError, match="'i' is an index here"):
        y.sum().backward()


def test_a_lost_gradient_is_warned_of_by_its_line() -> None:
    def exchanged(x: wp.array[wp.float64], y: wp.array[wp.float64]):
        i = wp.tid()
        t = x[i] * x[i]
        wp.atomic_exch(y, i, t)

    kernel = wp.kernel(exchanged)
    with pytest.warns(GradientWarning, match="no adjoint for wp.atomic_exch") as caught:
        warp_op(kernel, "x[n] -> y[n]")
    assert len(caught) == 1
    assert f"{__file__}:{kernel.adj.fun_lineno + 3}:" in str(caught[0].message)


@wp.kernel
def heights(mesh: wp.uint64, x: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    m = wp.mesh_get(mesh)
    z[i] = m.points[i][2] * x[i]


@wp.kernel
def corner(mesh: wp.uint64, x: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    z[i] = wp.mesh_get_point(mesh, i)[2] * x[i]


@wp.kernel
def third(mesh: wp.uint64, x: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    z[i] = float(wp.mesh_get(mesh).indices[2]) * x[i]


@wp.kernel
def closest(mesh: wp.uint64, p: wp.array[wp.vec3], z: wp.array[float]):
    i = wp.tid()
    query = wp.mesh_query_point(mesh, p[i], 10.0)
    if query.result:
        q = wp.mesh_eval_position(mesh, query.face, query.u, query.v)
        z[i] = wp.length(q - p[i])


@pytest.mark.parametrize("kernel", [heights, corner], ids=["points", "corner"])
def test_a_value_of_a_mesh_is_warned_of(kernel: wp.Kernel) -> None:
    with pytest.warns(GradientWarning, match="a mesh's vertices"):
        warp_op(kernel)


@pytest.mark.parametrize("kernel", [third, closest], ids=["index", "closest"])
def test_a_mesh_that_is_only_asked_is_not(kernel: wp.Kernel) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warp_op(kernel)


@wp.struct
class Rows:
    data: wp.array2d[wp.float64]


@wp.func
def first(row: wp.array[wp.float64]):
    return row[0] * row[0]


@wp.func_grad(first)
def adj_first(row: wp.array[wp.float64], adj_ret: wp.float64):
    wp.adjoint[row][0] += wp.float64(2.0) * row[0] * adj_ret


@wp.kernel
def of_rows(x: wp.array2d[wp.float64], y: wp.array[wp.float64]):
    i = wp.tid()
    y[i] = first(x[i])


@wp.kernel
def of_rows_of_a_struct(rows: Rows, y: wp.array[wp.float64]):
    i = wp.tid()
    y[i] = first(rows.data[i])


def test_a_row_given_to_a_function_with_a_gradient_of_its_own() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op, of_struct = warp_op(of_rows), warp_op(of_rows_of_a_struct)
    x = torch.tensor([[3.0, 1.0]], dtype=torch.float64, requires_grad=True)
    y = op(x)
    assert y.item() == 9.0
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[6.0, 0.0]]
    with pytest.raises(GradientError, match="'first' has a gradient of its own") as caught:
        of_struct({"data": x}).sum().backward()
    assert f"{__file__}:{of_rows_of_a_struct.adj.fun_lineno + 3}" in str(caught.value)
