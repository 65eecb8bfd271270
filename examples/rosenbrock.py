"""Drive 1,500 random points down Rosenbrock's valley to its minimum at (1, 1).

The function is a Warp kernel. One decorator makes it a PyTorch operator, whose gradient is the kernel's own adjoint, so
``torch.compile`` and Adam treat it as any other::

    python examples/rosenbrock.py

prints the progress, checks that every point arrived, and draws the paths that they took, where matplotlib is
installed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
import warp as wp

from warpops import warp_op


@warp_op
@wp.kernel
def rosenbrock(xy: wp.array[wp.vec2], z: wp.array[float]):
    i = wp.tid()
    p = xy[i]
    z[i] = (1.0 - p[0]) ** 2.0 + 100.0 * (p[1] - p[0] ** 2.0) ** 2.0


@torch.compile(fullgraph=True)
def loss_of(xy: torch.Tensor) -> torch.Tensor:
    return rosenbrock(xy).sum()


MINIMUM = torch.tensor([1.0, 1.0])
TOLERANCE = 1e-3
LOWER, UPPER = torch.tensor([-2.0, -1.0]), torch.tensor([2.0, 3.0])  # where the points start


def optimise(xy: torch.Tensor, steps: int) -> torch.Tensor:
    """Adam, in place on ``xy`` of shape (N, 2). Returns where the points were after each step: (steps + 1, N, 2)."""
    adam = torch.optim.Adam([xy], lr=0.1, betas=(0.95, 0.99))
    # Long steps for the way down the valley, then ever shorter ones to settle.
    decay = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: (1 - step / steps) ** 2)
    path = xy.new_empty((steps + 1, *xy.shape))
    path[0] = xy.detach()

    print("   step    mean loss   median distance   arrived")
    for step in range(1, steps + 1):
        adam.zero_grad()
        loss = loss_of(xy)
        loss.backward()
        adam.step()
        decay.step()
        path[step] = xy.detach()
        if step == 1 or step % max(1, steps // 15) == 0:
            report(step, loss.item() / len(xy), distance(xy))
    return path


def distance(xy: torch.Tensor) -> torch.Tensor:
    return (xy.detach() - MINIMUM).norm(dim=-1)


def report(step: int, loss: float, far: torch.Tensor) -> None:
    arrived = (far < TOLERANCE).float().mean().item()
    bar = "█" * round(20 * arrived)
    print(f"{step:7d} {loss:12.3e} {far.median().item():17.2e}   {bar:░<20} {arrived:4.0%}", flush=True)


def draw(path: torch.Tensor, file: Path, shown: int = 60) -> None:
    """The paths of some of the points over the function's contours, and how far from the minimum all of them were."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LogNorm

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5.6), width_ratios=(1.5, 1), layout="constrained")

    # The contours come from the operator too.
    x, y = torch.meshgrid(torch.linspace(-2.6, 2.6, 400), torch.linspace(-1.8, 3.6, 400), indexing="xy")
    z = rosenbrock(torch.stack([x, y], -1).reshape(-1, 2)).reshape(x.shape)
    levels = np.logspace(-1.5, 4, 23)
    left.contourf(x, y, z.clamp(min=levels[0]), levels, norm=LogNorm(), cmap="bone", alpha=0.85, extend="both")
    left.contour(x, y, z, levels[::2], norm=LogNorm(), colors="white", linewidths=0.4, alpha=0.5)

    some = path[:, : min(shown, path.shape[1])].numpy()
    when = np.unique(np.geomspace(1, len(some), 300).astype(int)) - 1  # most happens early
    when = np.union1d(when, np.arange(min(300, len(some))))
    drawn = []
    for points in some.transpose(1, 0, 2):
        corners = points[when]
        pieces = np.stack([corners[:-1], corners[1:]], 1)
        lines = LineCollection(list(pieces), cmap="plasma", norm=LogNorm(1, len(some)), linewidths=0.9, alpha=0.8)
        lines.set_array(when[1:])
        left.add_collection(lines)
        drawn.append(lines)
    left.scatter(*some[0].T, s=9, color="white", edgecolor="black", linewidth=0.5, zorder=3, label="start")
    left.scatter(1, 1, s=190, marker="*", color="gold", edgecolor="black", linewidth=0.8, zorder=4, label="minimum")
    left.set(xlim=(-2.6, 2.6), ylim=(-1.8, 3.6), xlabel="x", ylabel="y", title=f"Paths of {some.shape[1]} points")
    left.legend(loc="lower left", framealpha=0.9)
    figure.colorbar(drawn[0], ax=left, label="step", pad=0.01)

    far = (path - MINIMUM).norm(dim=-1).clamp(min=1e-7)
    quantiles = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    least, lower, median, upper, most = torch.quantile(far, quantiles, dim=1).numpy()
    steps = range(len(path))
    right.fill_between(steps, least, most, color="tab:purple", alpha=0.15, linewidth=0, label="all points")
    right.fill_between(steps, lower, upper, color="tab:purple", alpha=0.35, linewidth=0, label="the middle half")
    right.plot(steps, median, color="tab:purple", label="median")
    right.axhline(TOLERANCE, color="black", linewidth=0.8, linestyle="--", label="tolerance")
    right.set(yscale="log", xlim=(0, len(path) - 1), xlabel="step", title="Distance of all points to (1, 1)")
    right.legend(loc="lower left")
    right.grid(alpha=0.3)

    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, help="1500, or 50 where --quick")
    parser.add_argument("--steps", type=int, help="steps of Adam: 3000, or 2000 where --quick")
    parser.add_argument("--quick", action="store_true", help="few points")
    parser.add_argument("--no-plot", action="store_true", help="draw nothing")
    default = Path(__file__).parent / "out" / "rosenbrock.png"
    parser.add_argument("--output", type=Path, default=default, help="where the picture goes")
    options = parser.parse_args()
    points, steps = (
        options.points or (50 if options.quick else 1500),
        options.steps or (2000 if options.quick else 3000),
    )
    wp.config.log_level = wp.LOG_ERROR  # Warp's greeting would mix with the table
    torch.set_num_threads(1)  # for arrays this small, a second thread is only waited for

    torch.manual_seed(0)
    xy = (LOWER + (UPPER - LOWER) * torch.rand(points, 2)).requires_grad_()
    rosenbrock.preload()  # build the kernel before the table begins; the first call would do it otherwise
    print(f"{points:,} points, {steps:,} steps of Adam; the first compiles the graph")
    begin = time.perf_counter()
    path = optimise(xy, steps)
    print(f"took {time.perf_counter() - begin:.1f} s")

    if not options.no_plot:
        try:
            draw(path, options.output)
        except ImportError:
            print("matplotlib is not installed: no picture")
        else:
            print(f"paths drawn in {options.output}")

    farthest = distance(xy).max().item()
    if farthest > TOLERANCE:
        print(f"FAILED: a point is still {farthest:.1e} away from (1, 1)")
        return 1
    print(f"all {points:,} points are within {farthest:.1e} of (1, 1)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
