"""The slope of a noisy function along a line, with the uncertainty of that slope.

A central difference needs one step that is neither too long (curvature) nor too short (rounding), and says nothing of
its own error. Here the function is sampled at Chebyshev nodes over a short interval and fitted by a polynomial: what
the fit leaves over, be it rounding, curvature or a kink, is the uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch

from ..frozen import frozen

NODES = tuple(math.cos(math.pi * (k + 0.5) / 13) for k in range(13))
DEGREE = 4
_MATRIX = torch.tensor([[t**power for power in range(DEGREE + 1)] for t in NODES], dtype=torch.float64)
_INVERSE = torch.linalg.pinv(_MATRIX)
_SPREAD = math.sqrt(float(torch.linalg.inv(_MATRIX.T @ _MATRIX)[1, 1]))

SIGMAS = 18.0
"""How many standard errors count as agreement. A kink anywhere on the line (``abs``, ``max``) takes up to 17."""


@frozen
class Slope:
    """A slope and how far off it may be."""

    value: float
    error: float


def departs(function: Callable[[float], tuple[float, float]], steps: Iterable[float], allowed: float) -> Slope | None:
    """The surest slope at 0 of a function that should be flat there; None where it may be, or where nothing is finite.

    Every length of the line that is about as certain as the best has to disagree by more than is ``allowed``.
    """
    slopes = [found for step in steps if (found := slope(function, step)) is not None]
    best = min(slopes, key=lambda found: found.error, default=None)
    if best is None:
        return None
    certain = [found for found in slopes if found.error + allowed <= 3 * (best.error + allowed)]
    return None if any(abs(found.value) <= found.error + allowed for found in certain) else best


def slope(function: Callable[[float], tuple[float, float]], step: float) -> Slope | None:
    """The slope at 0 of ``function``, which returns a value and the least noise that it must have; None where a value
    isn't finite."""
    samples = [function(step * node) for node in NODES]
    values = torch.tensor([value for value, _ in samples], dtype=torch.float64)
    if not bool(torch.isfinite(values).all()):
        return None
    values = values - values.mean()
    fit = _INVERSE @ values
    residual = values - _MATRIX @ fit
    deviation = math.sqrt(float(residual @ residual) / (len(NODES) - DEGREE - 1))
    deviation = max(deviation, max(noise for _, noise in samples))
    return Slope(float(fit[1]) / step, SIGMAS * deviation * _SPREAD / step)
