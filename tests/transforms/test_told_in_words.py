"""Wrong results of a vmap rule, and wrong values in a program's launches: told in the package's own words."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from warpops import ArgumentError, warp_op, warp_program


@wp.kernel
def both(x: wp.array[wp.vec2], y: wp.array[wp.vec2], z: wp.array[float]):
    i = wp.tid()
    y[i] = 2.0 * x[i]
    z[i] = x[i][0]


@wp.kernel
def double(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = 2.0 * x[i]


@wp.kernel
def nearest(mesh: wp.uint64, x: wp.array[wp.vec3], y: wp.array[float]):
    i = wp.tid()
    found = wp.mesh_query_point(mesh, x[i], 10.0)
    if found.result:
        y[i] = found.u


def right(info, in_dims, x):
    x = x.movedim(in_dims[0], 0)
    return (2.0 * x, x[:, :, 0].contiguous()), (0, -2)


RULES = {
    "not a pair": (lambda info, in_dims, x: x, r"returned a Tensor; expected a tuple \(outputs, out_dims\)"),
    "too few": (lambda info, in_dims, x: ((x,), (0,)), r"returned 1 outputs; expected 2, one for each result \(y, z\)"),
    "too few axes": (lambda info, in_dims, x: ((x, x), (0,)), "returned 1 out_dims; expected 2"),
    "no tensor": (lambda info, in_dims, x: ((x, 3.0), (0, 0)), "for 'z' a float; expected a tensor"),
    "dtype": (
        lambda info, in_dims, x: ((x.double(), x[..., 0]), 0),
        "for 'y' a tensor of torch.float64; expected torch.fl",
    ),
    "axis": (
        lambda info, in_dims, x: ((x, x[..., 0]), (0, 5)),
        "for 'z' the batch axis 5; expected an axis of its shape",
    ),
    "size": (
        lambda info, in_dims, x: ((x, x[:2, :, 0]), 0),
        "for 'z' 2 elements on axis 0; expected 3, the size of the",
    ),
    "rank": (lambda info, in_dims, x: ((x, x), 0), r"for 'z' elements of shape \(4, 2\); expected \(\*\)"),
    "components": (
        lambda info, in_dims, x: ((x[..., :1], x[..., 0]), 0),
        r"for 'y' elements of shape \(4, 1\); expected \(\*, 2\)",
    ),
}


def with_rule(rule):
    op = warp_op(both, "x[n] -> y[n], z[n]", dim="n")
    op.register_vmap(rule)
    return op


@pytest.mark.parametrize("way", [lambda op: op, lambda op: op.overload], ids=["call", "overload"])
@pytest.mark.parametrize("title", RULES)
def test_a_vmap_rule_that_returns_something_else(way, title):
    rule, message = RULES[title]
    op = with_rule(rule)
    with pytest.raises(ArgumentError, match=f"test_told_in_words::both(_1)?: the registered vmap rule .*{message}"):
        torch.vmap(way(op))(torch.randn(3, 4, 2))


@pytest.mark.parametrize("way", [lambda op: op, lambda op: op.overload], ids=["call", "overload"])
def test_a_vmap_rule_that_is_right(way):
    x, op = torch.randn(3, 4, 2), with_rule(right)
    y, z = torch.vmap(way(op))(x)
    torch.testing.assert_close(y, 2.0 * x)
    torch.testing.assert_close(z, x[..., 0])


@pytest.mark.parametrize("dim", [None, 2.5, "3", [2, None]], ids=str)
def test_a_launch_of_a_program_without_a_size(dim):
    @warp_program("x[n] -> y[n]")
    def program(x: wp.array[float], y: wp.array[float]):
        wp.launch(double, dim, inputs=[x], outputs=[y])

    with pytest.raises(ArgumentError, match=r"program launches double: dim: expected an int or a tuple of ints, got"):
        program(torch.ones(3))


def test_a_launch_of_a_program_over_numpy_sizes():
    import numpy

    @warp_program("x[n] -> y[n]")
    def program(x: wp.array[float], y: wp.array[float]):
        wp.launch(double, [numpy.int64(3)], inputs=[x], outputs=[y])

    assert program(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]


def test_a_tensor_for_a_handle():
    op = warp_op(nearest, "x[n] -> y[n]", dim="n")
    with pytest.raises(
        ArgumentError, match=r"'mesh': expected a wp.Mesh, .* or its id \(an int\), got a tensor of shape"
    ):
        op(torch.ones(3), torch.ones(2, 3))


def test_an_array_for_a_handle_in_a_program():
    @warp_program("x[n] -> y[n]")
    def program(x: wp.array[wp.vec3], y: wp.array[float]):
        wp.launch(nearest, x.shape[0], inputs=[x, x], outputs=[y])

    with pytest.raises(ArgumentError, match="'mesh': expected the id of a Mesh, got a array"):
        program(torch.ones(2, 3))
