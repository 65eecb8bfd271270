"""What a gradient through run-time loops costs, as ratios in one process: forward and backward over the forward.

    python benchmarks/loops.py

Warp's own adjoints of both kernels are wrong, and the measure: they run the loop once forward and once back. The second
kernel's loop needs only the point after it; the last column is its backward over Warp's own.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import torch
import warp as wp

import warpops
from warpops import warp_op

THREADS = 2000


@wp.kernel
def carried(x: wp.array2d[wp.float64], y: wp.array[wp.float64]):
    i = wp.tid()
    p = wp.float64(1.0)
    for k in range(x.shape[1]):
        p = p * wp.sin(x[i, k]) + x[i, k]
    y[i] = p


@wp.kernel
def summed(x: wp.array2d[wp.float64], y: wp.array[wp.float64]):
    i = wp.tid()
    s = wp.float64(0.0)
    for k in range(x.shape[1]):
        s += x[i, k] * x[i, k]
    y[i] = s * s


def op_of(kernel: wp.Kernel, *, own: bool) -> warpops.WarpOp:
    """The op of a kernel; ``own``: with Warp's own adjoint, as if it were right."""
    op = warp_op(kernel, "x[n, m] -> y[n]", dim="n", name=f"loops::{kernel.key}_{'own' if own else 'right'}")
    if own:
        op._instances.only.launcher.reverse = None
    return op


def seconds(functions: list[Callable[[], object]], rounds: int = 9) -> list[float]:
    """The best of several rounds of each, one after the other in each round."""
    best = [float("inf")] * len(functions)
    for _ in range(rounds):
        for index, function in enumerate(functions):
            begun = time.thread_time()
            function()
            best[index] = min(best[index], time.thread_time() - begun)
    return best


def forward(op: warpops.WarpOp, x: torch.Tensor) -> Callable[[], object]:
    return lambda: op(x)


def both(op: warpops.WarpOp, x: torch.Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(op(x).sum(), x)


def main() -> None:
    wp.config.quiet = True
    wp.init()
    warnings.simplefilter("error", warpops.GradientWarning)
    (right, own), (sums, own_sums) = ((op_of(k, own=False), op_of(k, own=True)) for k in (carried, summed))
    head = (
        f"{'turns':>6} {'forward':>10} {'carried: f+b / f':>17} {'own / f':>8} {'summed: f+b / f':>17} {'own / f':>8}"
    )
    print(f"{head} {'b / own b':>12}")
    for turns in (16, 64, 250, 1000, 4000):
        x = torch.randn(THREADS, turns, dtype=torch.float64, requires_grad=True)
        ops = (right, own, sums, own_sums)
        first = seconds([forward(op, x.detach()) for op in ops])
        total = seconds([both(op, x) for op in ops])
        ratios = [t / f for t, f in zip(total, first, strict=True)]
        print(
            f"{turns:>6} {first[0] * 1e3:>7.2f} ms {ratios[0]:>17.1f} {ratios[1]:>8.1f} {ratios[2]:>17.1f} {ratios[3]:>8.1f} "
            f"{(total[2] - first[2]) / (total[3] - first[3]):>12.2f}"
        )


if __name__ == "__main__":
    main()
