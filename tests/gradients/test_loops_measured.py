"""Every kernel whose adjoint Warp was measured to have wrong: ours is right, or one warning says why not."""

from __future__ import annotations

import pytest
import torch

from test_effects_gradients import HAZARDS, KERNELS, POINTS, UNDEFINED, WEIGHTS, finite_differences
from warpops import GradientWarning, warp_op

LEFT = {"sum_store_then": "several threads may store to one element of 'y'"}
"""What isn't made right, though it may be right at these points."""


@pytest.mark.parametrize("name", sorted(HAZARDS.keys() - UNDEFINED - LEFT.keys()))
def test_it_is_right(name):
    kernel = KERNELS[name]
    op = warp_op(kernel, "x[m] -> y[4]", dim="1", init="zeros", name=f"measured::{name}")
    for point in POINTS:
        x = torch.tensor(point, requires_grad=True)
        (got,) = torch.autograd.grad((op(x, 4) * torch.tensor(WEIGHTS)).sum(), x)
        torch.testing.assert_close(got, torch.tensor(finite_differences(kernel, point)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", sorted(LEFT))
def test_it_is_warned_of(name):
    with pytest.warns(GradientWarning, match=LEFT[name]):
        warp_op(KERNELS[name], "x[m] -> y[4]", dim="1", init="zeros", name=f"measured::{name}")
