"""Warp's adjoint of a kernel ``(x, y, n)``, one thread, against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import warp as wp

from warpops.effects import analyse

POINTS = (np.array([1.1, 1.4, 0.9, 1.7]), np.array([1.6, 0.7, 1.9, 1.25]))
WEIGHTS = np.array([1.0, 0.7, 0.3, 0.2])
SIZE = 4
MARGIN = 64
"""Numbers on either side of an array, which an adjoint with a wrong index may write to."""


def value(kernel: wp.Kernel, point: np.ndarray) -> float:
    x = wp.array(point, dtype=wp.float64, device="cpu")
    y = wp.zeros(SIZE, dtype=wp.float64, device="cpu")
    wp.launch(kernel, dim=1, inputs=[x, y, SIZE], device="cpu")
    return float((y.numpy() * WEIGHTS).sum())


def finite_differences(kernel: wp.Kernel, point: np.ndarray) -> np.ndarray:
    step = 1e-6
    return np.array(
        [(value(kernel, point + step * e) - value(kernel, point - step * e)) / (2 * step) for e in np.eye(SIZE)]
    )


def with_margins(memory: np.ndarray, gradient: np.ndarray) -> wp.array:
    """An array that lies in the middle of a larger block of memory, and its gradient in another."""

    def inside(block: np.ndarray, grad: wp.array | None) -> wp.array:
        start = block.ctypes.data + MARGIN * block.itemsize
        return wp.array(ptr=start, dtype=wp.float64, shape=SIZE, device="cpu", grad=grad)

    return inside(memory, inside(gradient, None))


def adjoint(kernel: wp.Kernel, point: np.ndarray) -> np.ndarray:
    blocks = [np.zeros(SIZE + 2 * MARGIN) for _ in range(4)]
    inner = slice(MARGIN, MARGIN + SIZE)
    x, y = with_margins(blocks[0], blocks[1]), with_margins(blocks[2], blocks[3])
    blocks[0][inner] = point
    tape = wp.Tape()
    with tape:
        wp.launch(kernel, dim=1, inputs=[x, y, SIZE], device="cpu")
    blocks[3][inner] = WEIGHTS
    tape.backward()
    return blocks[1][inner].copy()


def is_right(kernel: wp.Kernel, points: Sequence[np.ndarray] = POINTS) -> bool:
    return all(
        np.allclose(adjoint(kernel, point), finite_differences(kernel, point), rtol=1e-4, atol=1e-6) for point in points
    )


class Measured(dict[str, tuple[wp.Kernel, set[str], bool | None]]):
    """Kernels, the kinds of hazards that the analysis finds in them, and whether their adjoint is right."""

    def __call__(
        self, *kinds: str, right: bool | None = None, undefined: bool = False
    ) -> Callable[[Callable[..., None]], wp.Kernel]:
        """Declare a kernel: right if there is no hazard, unless said otherwise. An adjoint that reads what it never set is
        undefined, and isn't run."""

        def declare(function: Callable[..., None]) -> wp.Kernel:
            kernel = wp.kernel(function)
            self[function.__name__] = (kernel, set(kinds), None if undefined else not kinds if right is None else right)
            return kernel

        return declare

    def check(self, name: str) -> None:
        kernel, kinds, right = self[name]
        assert {hazard.kind for hazard in analyse(kernel).hazards} == kinds
        if right is not None:
            assert is_right(kernel) == right
