"""``torch.library.opcheck`` with inputs that require gradients, over all kinds of ops and layouts."""

from __future__ import annotations

import pytest
import torch

import kernels
from kinds import KINDS, rows
from support import leaves


@pytest.mark.parametrize("name", rows("opcheck"))
def test_kinds(name):
    kind = KINDS[name]
    given = kind.draw()
    results = torch.library.opcheck(kind.op.overload, tuple(leaves(given, kind.differentiable(given))))
    assert set(results.values()) == {"SUCCESS"}, results
    assert "test_aot_dispatch_dynamic" in results


def test_opcheck_with_other_sizes_is_no_accident():
    """A fake that is wrong about a size must not pass: the check itself works on our ops."""
    x = torch.randn(3, requires_grad=True)
    kind = {"test_utils": ("test_faketensor",)}
    assert torch.library.opcheck(kernels.square_op.overload, (x,), **kind) == {"test_faketensor": "SUCCESS"}
