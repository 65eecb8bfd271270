"""``testing.check`` and forward mode: a tangent that disagrees with the gradient is found, one that can't be had is told."""

from __future__ import annotations

import torch
import warp as wp

import kernels
from warpops import warp_op
from warpops.testing.run import run_checks


@wp.kernel
def highest(x: wp.array[wp.vec3d], y: wp.array[wp.vec3d]):
    i = wp.tid()
    wp.atomic_max(y, 0, x[i])


def test_good_derivatives():
    x, w = torch.rand(4), torch.rand(4)
    found = run_checks(kernels.product_op, (x, w), {}, ["derivatives"])
    assert found.findings == []
    assert found.passed == ["derivatives"]


def test_a_gradient_and_a_tangent_that_disagree():
    op = warp_op(kernels.cube64, "x[n] -> y[n]", dim="n", name="tangents::disagreeing")
    op.register_backward(lambda ctx, g: 2.0 * ctx.inputs["x"] ** 2 * g)
    (found,) = run_checks(op, (torch.rand(4, dtype=torch.float64) + 0.5,), {}, ["derivatives"]).findings
    assert found.check == "forward mode"
    assert "jvp gives" in found.text


def test_what_has_none_is_left_out():
    op = warp_op(highest, "x[n] -> y[1]", init="zeros", name="tangents::highest")
    found = run_checks(op, (torch.rand(4, 3, dtype=torch.float64),), {}, ["derivatives"])
    assert found.findings == []
    assert "atomic_max" in dict(found.left_out)["derivatives"]
