"""The heat equation solved by a network on a grid of splines: a loss that needs second derivatives of a Warp kernel.

Physics-informed training asks that a network's u(x, t) obeys u_t = a u_xx: the loss holds derivatives by the inputs,
and training derives once more, by the parameters. The kernel here samples the cubic B-splines of a learned grid, and
that is all: what its second and third derivatives are, follows from its source::

    python examples/heat.py

compares the operator with the same in PyTorch, trains (in eager code: PyTorch refuses double backward of compiled
functions), checks the error against the analytic solution, and draws both where matplotlib is installed.
"""

from __future__ import annotations

import argparse
import math
import time
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import warp as wp
from torch import Tensor, nn

from warpops import warp_op


@wp.func
def cell(place: float, nodes: int) -> int:
    return wp.clamp(int(wp.floor(place * float(nodes - 3))), 0, nodes - 4)


@wp.func
def basis(place: float, nodes: int) -> wp.vec4:
    """The four cubic B-splines that are not zero at a place between 0 and 1."""
    t = place * float(nodes - 3) - float(cell(place, nodes))
    s = 1.0 - t
    return wp.vec4(s * s * s, 4.0 - 3.0 * t * t * (1.0 + s), 4.0 - 3.0 * s * s * (1.0 + t), t * t * t) / 6.0


CONDUCTIVITY = 0.05
MODES = {math.pi: 1.0, 3 * math.pi: 0.6, 4 * math.pi: -0.4}  # of the initial temperature: wave numbers, amplitudes
Sample = Callable[..., Tensor]
CHANNELS = 8
Channels = wp.types.vector(length=CHANNELS, dtype=float)


@warp_op("xt[n], grid[nx, nt] -> value[n]")
@wp.kernel
def interpolate(xt: wp.array[wp.vec2], grid: wp.array2d[Channels], value: wp.array[Channels]):
    i = wp.tid()
    x, t = cell(xt[i][0], grid.shape[0]), cell(xt[i][1], grid.shape[1])
    wx, wt = basis(xt[i][0], grid.shape[0]), basis(xt[i][1], grid.shape[1])
    total = Channels()
    for a in range(4):
        for b in range(4):
            total += wx[a] * wt[b] * grid[x + a, t + b]
    value[i] = total


def interpolate_torch(xt: Tensor, grid: Tensor) -> Tensor:
    """The same in PyTorch."""
    nodes = torch.tensor(grid.shape[:2])
    place = xt * (nodes - 3)
    first = torch.minimum(place.detach().floor().long().clamp(min=0), nodes - 4)
    t, s = place - first, 1.0 + first - place
    parts = (s**3, 4.0 - 3.0 * t**2 * (1.0 + s), 4.0 - 3.0 * s**2 * (1.0 + t), t**3)
    wx, wt = (torch.stack(parts, -1) / 6.0).unbind(1)
    x, t = (first[..., None] + torch.arange(4)).unbind(1)
    return torch.einsum("nabc,na,nb->nc", grid[x[:, :, None], t[:, None, :]], wx, wt)


def solution(xt: Tensor) -> Tensor:
    x, t = xt.unbind(-1)
    return sum((a * torch.sin(k * x) * torch.exp(-CONDUCTIVITY * k * k * t) for k, a in MODES.items()), 0.0 * x)


class Field(nn.Module):
    """u(x, t), (N, 2) in the unit square -> (N,). It has the initial and the boundary values, whatever the network."""

    def __init__(self, nodes: int = 12, width: int = 32):
        super().__init__()
        self.grid = nn.Parameter(0.1 * torch.randn(nodes, nodes, CHANNELS))
        self.network = nn.Sequential(nn.Linear(CHANNELS, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, xt: Tensor, sample: Sample = interpolate) -> Tensor:
        x, t = xt.unbind(-1)
        start = solution(torch.stack([x, 0.0 * t], -1))
        return start + t * x * (1.0 - x) * self.network(sample(xt, self.grid)).squeeze(-1)


def residual(field: Field, xt: Tensor, sample: Sample = interpolate) -> Tensor:
    """How far u is from obeying the equation."""
    xt = xt.detach().requires_grad_()
    (slope,) = torch.autograd.grad(field(xt, sample).sum(), xt, create_graph=True)
    (curvature,) = torch.autograd.grad(slope[:, 0].sum(), xt, create_graph=True)
    return slope[:, 1] - CONDUCTIVITY * curvature[:, 0]


def lattice(points: int) -> Tensor:
    """The middles of ``points`` by ``points`` squares, (points * points, 2); t varies fastest."""
    return torch.cartesian_prod(*2 * [(torch.arange(points) + 0.5) / points])


def compare(field: Field, xt: Tensor) -> None:
    """The loss with the operator against PyTorch: residuals, gradients by all parameters, and times of both."""

    def differentiated(sample: Sample) -> list[Tensor]:
        off = residual(field, xt, sample)
        return [off.detach(), *torch.autograd.grad(off.square().mean(), list(field.parameters()))]

    both = zip(differentiated(interpolate), differentiated(interpolate_torch), strict=True)
    value, *gradients = (float((mine - theirs).abs().max() / theirs.abs().max()) for mine, theirs in both)
    print(f"residuals differ from PyTorch's by {value:.1e}, gradients by {max(gradients):.1e}, relative to the largest")
    if not max(value, *gradients) < 1e-4:
        raise SystemExit("FAILED: the operator differs from PyTorch")
    runs = partial(differentiated, interpolate), partial(differentiated, interpolate_torch)
    times = [[timeit.timeit(run, number=1) for run in runs] for _ in range(15)]  # turns: fair on a busy machine
    mine, theirs = (1e3 * min(column) for column in zip(*times, strict=True))
    print(f"residuals at {len(xt)} points, forward + backward: {mine:.1f} ms, in PyTorch {theirs:.1f} ms")


def train(field: Field, xt: Tensor, steps: int) -> list[tuple[int, float, float]]:
    """L-BFGS on the mean square of the residual; returns iterations, losses and the greatest errors."""
    chunk = max(1, steps // 20)
    lbfgs = torch.optim.LBFGS(field.parameters(), max_iter=chunk, tolerance_change=0, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        lbfgs.zero_grad()
        value = residual(field, xt).square().mean()
        value.backward()
        return value

    history = []
    print("iteration   loss      greatest error")
    for step in range(0, steps + 1, chunk):
        error = (field(lattice(101)) - solution(lattice(101))).abs().max().item()
        history.append((step, loss().item(), error))
        print(f"{step:9d}   {history[-1][1]:.1e}   {error:.1e}", flush=True)
        if step + chunk <= steps:
            lbfgs.step(loss)  # type: ignore[arg-type]
    return history


@torch.no_grad()
def draw(field: Field, history: list[tuple[int, float, float]], file: Path) -> None:
    """The temperature, its error, some profiles, and how loss and error fell."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("matplotlib is not installed: no picture")
        return
    figure = Figure(figsize=(12, 9), layout="constrained")
    (heat, error), (profiles, curves) = figure.subplots(2, 2)
    u, exact = (f(lattice(150)).reshape(150, 150) for f in (field, solution))
    off = f"Distance from the analytic solution, at most {history[-1][2]:.1e}"
    for axes, values, title in ((heat, u, "The network's u(x, t)"), (error, (u - exact).abs(), off)):
        shades = axes.imshow(values.T, origin="lower", extent=(0, 1, 0, 1), aspect="auto", cmap="inferno")
        axes.set(xlabel="x", ylabel="t", title=title)
        figure.colorbar(shades, ax=axes)
    for n, t in enumerate((0.0, 0.05, 0.15, 0.4, 1.0)):
        xt = torch.stack([torch.linspace(0, 1, 41), torch.full((41,), t)], -1)
        profiles.plot(xt[:, 0], field(xt), color=f"C{n}", label=f"t = {t:g}")
        profiles.plot(xt[:, 0], solution(xt), ".", color=f"C{n}")
    profiles.set(xlabel="x", ylabel="u", ylim=(-0.1, 2), title="Profiles: the network's (lines), analytic (dots)")
    profiles.legend(loc="upper center", ncols=3)
    names = "loss: mean square of u_t - a u_xx", "greatest error of u"
    curves.semilogy([row[0] for row in history], [row[1:] for row in history], label=names)
    curves.set(xlabel="iteration of L-BFGS", title="Loss and error")
    curves.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
    print(f"solution and error drawn in {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, help="iterations of L-BFGS: 1000, or 100 where --quick")
    parser.add_argument("--quick", action="store_true", help="few iterations, for an error of 0.06 instead of 0.005")
    parser.add_argument("--no-plot", action="store_true", help="draw nothing")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "out/heat.png", help="of the picture")
    options = parser.parse_args()
    wp.config.log_level = wp.LOG_ERROR  # Warp's greeting would mix with the table
    torch.set_num_threads(1)  # as Warp's launches on the CPU, so that the times compare
    torch.manual_seed(0)

    field, xt = Field(), lattice(32)
    compare(field, xt)
    begin = time.perf_counter()
    history = train(field, xt, options.steps or (100 if options.quick else 1000))
    print(f"took {time.perf_counter() - begin:.1f} s")

    if not options.no_plot:
        draw(field, history, options.output)
    print(f"u is within {history[-1][2]:.1e} of the analytic solution")
    if not history[-1][2] < (0.06 if options.quick else 0.005):
        raise SystemExit("FAILED: that is too far off")


if __name__ == "__main__":
    main()
