"""Every kernel whose adjoint Warp was measured to have wrong: ours is right, or one warning says why not."""

from __future__ import annotations

import pytest
import torch

import test_hazards_loops
import test_hazards_stored_again
from measured import POINTS, WEIGHTS, finite_differences
from support import WARP
from warpops import GradientWarning, warp_op

LEFT = {"sum_store_then": "several threads may store to one element of 'y'"}
if WARP < (1, 17):
    LEFT["ifexp"] = "in a conditional expression"
"""What isn't made right, though it may be right at these points."""

MEASURED = test_hazards_loops.measured | test_hazards_stored_again.measured
WRONG = [name for name, (_, kinds, right) in MEASURED.items() if kinds and right is not None and name not in LEFT]

FIRST = {frozenset(MEASURED[name][1]): name for name in reversed(WRONG)}.values()
"""One for each set of hazards, which the quick tests run."""


def op_of(name):
    return warp_op(MEASURED[name][0], "x[m] -> y[4]", dim="1", init="zeros", name=f"measured::{name}")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FIRST else pytest.mark.slow) for n in WRONG])
def test_it_is_right(name):
    op = op_of(name)
    for point in POINTS:
        x = torch.tensor(point, requires_grad=True)
        (got,) = torch.autograd.grad((op(x, 4) * torch.tensor(WEIGHTS)).sum(), x)
        want = torch.tensor(finite_differences(MEASURED[name][0], point))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", LEFT)
def test_it_is_warned_of(name):
    with pytest.warns(GradientWarning, match=LEFT[name]):
        op_of(name)
