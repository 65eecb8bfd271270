"""The kernels that ``features.py`` tries each way on, and what each computes, in PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import warp as wp

Op = Callable[..., Any]


# The kernels. Annotations are no strings here: jax_kernel reads them as they are.


@wp.kernel
def square(points: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = points[i] * points[i]


@wp.kernel
def leaky(points: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = points[i]
    if points[i] < 0.0:
        y[i] = 0.1 * points[i]


@wp.kernel
def positive(points: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    if points[i] > 0.0:
        y[i] = points[i] * points[i]


@wp.kernel
def smear(points: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(y, i, points[i] * points[i])
    wp.atomic_add(y, (i + 1) % points.shape[0], points[i])


@wp.kernel
def product(left: wp.array[float], right: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = left[i] * right[i]


@wp.kernel
def decay(y: wp.array[float], rate: wp.array[float]):
    i = wp.tid()
    y[i] = y[i] * rate[i]


@wp.kernel
def neighbours(points: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    row = points[i]
    y[i, 0] = row[0] * row[1]
    y[i, 1] = row[1] * row[2]
    y[i, 2] = row[2] * row[0]


@wp.kernel
def swirl(points: wp.array[wp.vec3], y: wp.array[wp.vec3]):
    i = wp.tid()
    p = points[i]
    y[i] = p * wp.dot(p, p)


@dataclass(frozen=True)
class Case:
    """A kernel whose output has the shape and the dtype of its first input, and what it computes, in PyTorch."""

    kernel: wp.Kernel
    reference: Op
    inputs: tuple[str, ...] = ("points",)
    signature: str | None = None
    dtype: Any = wp.float32
    in_out: bool = False
    columns: int = 0

    def given(self, n: int = 6, seed: int = 0) -> list[torch.Tensor]:
        dice = torch.Generator().manual_seed(seed)
        shape = (n, self.columns) if self.columns else (n,)
        return [torch.randn(shape, generator=dice) for _ in self.inputs]

    @property
    def is_vector(self) -> bool:
        return self.dtype is wp.vec3


SQUARE = Case(square, lambda x: x * x)
LEAKY = Case(leaky, lambda x: torch.where(x < 0, 0.1 * x, x))
POSITIVE = Case(positive, lambda x: torch.where(x > 0, x * x, 0.0 * x))
SMEAR = Case(smear, lambda x: x * x + x.roll(1, 0), signature="points[n] -> y[n]")
PRODUCT = Case(product, lambda a, b: a * b, ("left", "right"))
DECAY = Case(decay, lambda y, s: y * s, ("y", "rate"), signature="y[n], rate[n] -> y[n]", in_out=True)
ROWS = Case(neighbours, lambda x: x * x.roll(-1, 1), signature="points[n, 3] -> y[n, 3]", columns=3)
SWIRL = Case(swirl, lambda x: x * (x * x).sum(-1, keepdim=True), dtype=wp.vec3, columns=3)
