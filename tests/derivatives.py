"""What the tests of tangents share: forward mode and second derivatives against differences of the op itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from support import as_tuple


def floats(values: Sequence[Any]) -> list[int]:
    return [k for k, v in enumerate(values) if isinstance(v, torch.Tensor) and v.is_floating_point()]


def along(
    function: Callable[..., Any], x: Sequence[torch.Tensor], u: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The derivatives of all results along ``u``."""
    return as_tuple(torch.func.jvp(function, tuple(x), tuple(u))[1])


def differences(function: Callable[..., Any], x: Sequence[torch.Tensor], u: Sequence[torch.Tensor], step: float) -> Any:
    above, below = (function(*[t + s * step * d for t, d in zip(x, u, strict=True)]) for s in (1.0, -1.0))
    return tuple((a - b) / (2 * step) for a, b in zip(as_tuple(above), as_tuple(below), strict=True))


def check_twice(op: Callable[..., Any], *args: Any, tolerance: float = 1e-6) -> None:
    """Forward mode equals central differences; the gradient of the tangent, and the gradient of the gradient, equal
    differences of the tangent. In float64."""
    places = floats(args)

    def function(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(args)
        for place, value in zip(places, given, strict=True):
            values[place] = value
        return tuple(r for r in as_tuple(op(*values)) if r.is_floating_point())

    generator = torch.Generator().manual_seed(2)

    def drawn(like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, generator=generator, dtype=like.dtype)

    x = [args[p].detach() for p in places]
    u, w = [drawn(t) for t in x], [drawn(t) for t in x]
    tangents = along(function, x, u)
    for got, want in zip(tangents, differences(function, x, u, 1e-6), strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    v = [drawn(t) for t in tangents]

    leaves = [t.clone().requires_grad_() for t in x]
    slope = sum((a * b).sum() for a, b in zip(along(function, leaves, u), v, strict=True))
    grads = torch.autograd.grad(slope, leaves, allow_unused=True)
    moved = differences(lambda *x: along(function, x, u), x, w, 1e-5)
    want = float(sum((a * b).sum() for a, b in zip(moved, v, strict=True)))
    got = float(sum((g * d).sum() for g, d in zip(grads, w, strict=True) if g is not None))
    assert abs(got - want) <= 10 * tolerance * (1 + abs(want)), (got, want)

    leaves = [t.clone().requires_grad_() for t in x]
    seeds = [t.clone().requires_grad_() for t in v]
    first = torch.autograd.grad(function(*leaves), leaves, seeds, create_graph=True, allow_unused=True)
    total = sum((g * d).sum() for g, d in zip(first, u, strict=True) if g is not None)
    second = torch.autograd.grad(total, [*leaves, *seeds], allow_unused=True)
    for mine, other in zip(second, [*grads, *tangents], strict=True):
        if mine is None or other is None:
            assert not any(t.any() for t in (mine, other) if t is not None)
        else:
            torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)
