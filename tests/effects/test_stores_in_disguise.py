"""Statements that store without looking like it: a transform's setters, and functions that write and return several results."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from warpops import GradientWarning, warp_op

D = wp.float64


@warp_op
@wp.kernel
def turned(x: wp.array[wp.transformd], angle: wp.array[wp.quatd], p: wp.array[wp.vec3d], y: wp.array[wp.vec3d]):
    i = wp.tid()
    t = x[i]
    first = wp.transform_point(t, p[i])
    wp.transform_set_rotation(t, angle[i])
    y[i] = wp.transform_point(t, first)


@warp_op
@wp.kernel
def moved(x: wp.array[wp.transformd], to: wp.array2d[wp.vec3d], p: wp.array[wp.vec3d], y: wp.array[wp.vec3d]):
    i = wp.tid()
    t = x[i]
    q = p[i]
    for k in range(to.shape[1]):
        q = wp.transform_point(t, q)
        wp.transform_set_translation(t, wp.cw_mul(to[i, k], q))
    y[i] = wp.transform_point(t, q)


@pytest.mark.parametrize(("op", "shape"), [(turned, (3, 4)), (moved, (3, 2, 3))])
def test_a_transforms_setter_is_a_store(op, shape):
    torch.manual_seed(1)
    given = [torch.rand(size, dtype=torch.float64, requires_grad=True) for size in ((3, 7), shape, (3, 3))]
    assert torch.autograd.gradcheck(op, given)


@wp.func
def transform_set_rotation(t: wp.transformd, q: wp.quatd):
    return wp.transform_get_translation(t)[0] * q[0]


@warp_op
@wp.kernel
def named_alike(x: wp.array[wp.transformd], angle: wp.array[wp.quatd], y: wp.array[D]):
    i = wp.tid()
    t = x[i]
    v = wp.vec2d(angle[i][0], D(1.0))
    transform_set_rotation(t, angle[i])
    v[0] = v[0] * v[0]
    y[i] = v[0] * wp.transform_get_rotation(t)[1]


def test_a_function_of_a_setters_name_is_none():
    torch.manual_seed(1)
    given = [torch.rand(size, dtype=torch.float64, requires_grad=True) for size in ((3, 7), (3, 4))]
    assert torch.autograd.gradcheck(named_alike, given)


@wp.func
def squared_and_raised(a: wp.array[D], i: int, v: D):
    a[i] = a[i] * a[i] + v
    return a[i], v


def test_a_function_of_several_results_doesnt_store_again():
    def twice(x: wp.array[D], z: wp.array[D]):
        i = wp.tid()
        p, q = squared_and_raised(z, i, x[i])
        z[i] = p * q

    with pytest.warns(GradientWarning, match="no replay of functions of several results"):
        op = warp_op(wp.kernel(twice), "x[n], z[n] -> z[n]")
    x, z = torch.rand(4, dtype=torch.float64, requires_grad=True), torch.rand(4, dtype=torch.float64)
    kept = z.clone()
    op(x, z).sum().backward()
    assert torch.equal(z, kept)
    assert "several results" in op.explain()
