"""What the tests of vmap share: an op against PyTorch, mapped in each order."""

from __future__ import annotations

import torch
from torch.func import grad, vmap

from support import as_tuple, close, leaves, ramp


def float_positions(arguments):
    return tuple(i for i, a in enumerate(arguments) if isinstance(a, torch.Tensor) and a.is_floating_point())


def scalar(function):
    """The sum of the products of all results with ramps: every element's cotangent differs."""

    def loss(*arguments):
        return sum((r * ramp(r)).sum() for r in as_tuple(function(*arguments)) if r.is_floating_point())

    return loss


def check(op, reference, arguments, in_dims, wanted=None, accuracy=1e-4):
    """Values, the gradient of a vmap and the vmap of a gradient are those of PyTorch; values alone where nothing is wanted."""
    wanted = float_positions(arguments) if wanted is None else wanted
    got, want = vmap(op, in_dims)(*arguments), vmap(reference, in_dims)(*arguments)
    for index, (mine, theirs) in enumerate(zip(as_tuple(got), as_tuple(want), strict=True)):
        close(mine, theirs, f"result {index}", accuracy, accuracy)
    if not wanted:
        return

    found = []
    for function in (op, reference):
        given = leaves(arguments, wanted)
        loss = scalar(vmap(function, in_dims))(*given)
        found.append(torch.autograd.grad(loss, [given[i] for i in wanted]))
    for index, mine, theirs in zip(wanted, *found, strict=True):
        close(mine, theirs, f"gradient {index} of a vmap", accuracy, accuracy)

    mine, theirs = (vmap(grad(scalar(f), wanted), in_dims)(*arguments) for f in (op, reference))
    for index, one, other in zip(wanted, mine, theirs, strict=True):
        close(one, other, f"vmap of gradient {index}", accuracy, accuracy)
