"""What a gradient through run-time loops costs, as ratios in one process: forward and backward over the forward.

    python benchmarks/loops.py

Warp's own adjoint of the first kernel is wrong, and the measure: it runs the loop once forward and once back. The last
column is that of a loop that needs only the point after it.
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
        s += x[i, k] * wp.sin(x[i, k])
    y[i] = s * s


def op_of(kernel: wp.Kernel, *, own: bool) -> warpops.WarpOp:
    """The op of a kernel; ``own``: with Warp's own adjoint, as if it were right."""
    op = warp_op(kernel, "x[n, m] -> y[n]", dim="n", name=f"loops::{kernel.key}_{'own' if own else 'right'}")
    if own:
        op._instances.only.launcher.reverse = None
    return op


def seconds(function: Callable[[], object], repeats: int = 7) -> float:
    function()
    taken = []
    for _ in range(repeats):
        begun = time.thread_time()
        function()
        taken.append(time.thread_time() - begun)
    return min(taken)


def forward(op: warpops.WarpOp, x: torch.Tensor) -> Callable[[], object]:
    return lambda: op(x)


def both(op: warpops.WarpOp, x: torch.Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(op(x).sum(), x)


def main() -> None:
    wp.config.quiet = True
    wp.init()
    warnings.simplefilter("error", warpops.GradientWarning)
    (right, own), (sums, own_sums) = ((op_of(k, own=False), op_of(k, own=True)) for k in (carried, summed))
    print(
        f"{'turns':>6} {'forward':>10} {'carried: f+b / f':>18} {'own / f':>8} {'summed: f+b / f':>17} {'own / f':>8} b / own b"
    )
    for turns in (16, 64, 250, 1000, 4000):
        x = torch.randn(THREADS, turns, dtype=torch.float64, requires_grad=True)
        taken = {op: (seconds(forward(op, x.detach())), seconds(both(op, x))) for op in (right, own, sums, own_sums)}
        ratios = {op: total / first for op, (first, total) in taken.items()}
        (first, more), (_, less) = taken[sums], taken[own_sums]
        print(
            f"{turns:>6} {taken[right][0] * 1e3:>7.2f} ms {ratios[right]:>18.1f} {ratios[own]:>8.1f} {ratios[sums]:>17.1f} "
            f"{ratios[own_sums]:>8.1f} {(more - first) / (less - first):>7.2f}"
        )


if __name__ == "__main__":
    main()
