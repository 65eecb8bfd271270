"""``torch.library.opcheck`` with inputs that require gradients, over kinds of ops and layouts."""

from __future__ import annotations

import pytest
import torch
import warp as wp

import kernels
import test_gradient_table
import test_options
import test_tensor_scalars
import test_types
from support import leaves

INDEX = torch.tensor([0, 2, 2], dtype=torch.int32)
KINDS = {
    "one input": (kernels.square_op, lambda: (torch.randn(4),)),
    "strided": (kernels.triple_op, lambda: (torch.randn(4, 6).t()[::2],)),
    "expanded": (kernels.triple_op, lambda: (torch.randn(1, 6).expand(3, 6),)),
    "empty": (kernels.triple_op, lambda: (torch.randn(0, 6),)),
    "two outputs": (kernels.spring_op, lambda: (torch.randn(4, 3), torch.rand(4))),
    "numbers": (kernels.mixed_op, lambda: (torch.randn(3), 2.0, 3, True)),
    "accumulating": (kernels.scatter_op, lambda: (torch.randn(3), INDEX, 3)),
    "in-out": (kernels.multiply_op, lambda: (torch.randn(3), torch.randn(3))),
    "read back": (test_gradient_table.running_sum_op, lambda: (torch.randn(3, 4),)),
    "view": (test_gradient_table.store_by_row_op, lambda: (torch.randn(3, 3),)),
    "extremes": (test_gradient_table.highest_op, lambda: (torch.randn(3), INDEX, 3)),
    "components": (test_types.SCALED_OPS[wp.mat33], lambda: (torch.randn(2, 3, 3), torch.randn(2))),
    "vectors by value": (test_types.by_value_op, lambda: (torch.randn(2), *test_types.SPELLINGS["flat"])),
    "ints": (test_types.SQUARE_OPS[torch.int32], lambda: (torch.tensor([1, 2], dtype=torch.int32),)),
    "scratch": (test_options.scratch_op, lambda: (torch.randn(3),)),
    "optional given": (test_options.maybe_op, lambda: (torch.randn(3), torch.randn(3))),
    "optional missing": (test_options.maybe_op, lambda: (torch.randn(3), None)),
    "nondiff": (test_options.nondiff_op, lambda: (torch.randn(3), torch.randn(3))),
    "tensor scalar": (test_tensor_scalars.one, lambda: (torch.randn(3), torch.tensor(2.0))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_with_gradients(kind):
    op, make = KINDS[kind]
    arguments = tuple(leaves(make()))
    if kind == "tensor scalar":
        arguments = (arguments[0], torch.tensor(2.0))
    results = torch.library.opcheck(op.overload, arguments)
    assert set(results.values()) == {"SUCCESS"}, results
    assert "test_aot_dispatch_dynamic" in results


def test_an_op_that_mutates():
    results = torch.library.opcheck(kernels.step_op.overload, (torch.randn(3), torch.randn(3), 0.5))
    assert set(results.values()) == {"SUCCESS"}, results


def test_an_op_without_tensors():
    from test_device_argument import ramp_op

    results = torch.library.opcheck(ramp_op.overload, (3, 2.0))
    assert set(results.values()) == {"SUCCESS"}, results


def test_opcheck_with_other_sizes_is_no_accident():
    """A fake that is wrong about a size must not pass: the check itself works on our ops."""
    x = torch.randn(3, requires_grad=True)
    kind = {"test_utils": ("test_faketensor",)}
    assert torch.library.opcheck(kernels.square_op.overload, (x,), **kind) == {"test_faketensor": "SUCCESS"}
