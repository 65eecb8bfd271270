"""Second derivatives and forward mode over the tables of kinds, against PyTorch's own."""

from __future__ import annotations

import pytest
import torch

import test_compile
import test_gradient_table
from support import as_tuple, close, ramp

KINDS = {
    **{name: (op, reference, make) for name, (op, reference, make) in test_compile.KINDS.items()},
    **{
        f"view, {name}": (op, reference, test_gradient_table.LAYOUTS["strided"])
        for name, (op, reference) in test_gradient_table.VIEWS.items()
    },
}


def derivatives(function, inputs):
    """The tangents of all results along a ramp, and the second derivatives of a function of them that isn't linear."""
    tangents = torch.func.jvp(lambda *x: as_tuple(function(*x)), tuple(inputs), tuple(map(ramp, inputs)))[1]
    leaves = [x.clone().requires_grad_() for x in inputs]
    seeds = [ramp(y.detach()).requires_grad_() for y in as_tuple(function(*leaves))]
    results = [y.sin() + y for y in as_tuple(function(*leaves))]
    first = torch.autograd.grad(results, leaves, seeds, create_graph=True)
    second = torch.autograd.grad(sum((g * ramp(g)).sum() for g in first), [*leaves, *seeds])
    return tuple(tangents), second


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind):
    op, reference, make = KINDS[kind]
    made = make()
    inputs = made if isinstance(made, tuple) else (made,)
    for got, want in zip(derivatives(op, inputs), derivatives(reference, inputs), strict=True):
        close(got, want, rtol=1e-4, atol=1e-4)
