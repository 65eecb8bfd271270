"""What a cloth is made of, and the wind that blows, recovered from how it moved.

A square of cloth, a grid of masses and springs, hangs from two of its corners and swings in the wind. One Warp kernel,
one operator, advances it by a time step; hundreds of steps are chained by PyTorch, and a gradient goes back through all
of them to seven numbers: the stiffness against stretch, shear and bending, the damping, and the wind's three
components. L-BFGS finds them from noisy positions at a few instants::

    python examples/cloth.py

compares the operator with the same in PyTorch, recovers the numbers, checks that they are the true ones, and draws the
cloth as guessed, recovered and true, where matplotlib is installed.

The steps are a plain loop in eager code: a graph of hundreds of them would take minutes to compile, and compiled one by
one they are slower than the operator alone, as the comparison shows.
"""

from __future__ import annotations

import argparse
import time
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import warp as wp
from torch import Tensor

from warpops import warp_op

DT = 1 / 500  # s
GRAVITY = 9.8
Step = Callable[..., tuple[Tensor, Tensor]]
DRAG = 2.0  # of the air that blows onto a mass's share of the cloth, 1/s


@warp_op(
    "x[n], v[n], neighbour[n, 12], rest[3], stiffness[3], damping[1], wind[1], free[n] -> x_next[n], v_next[n]",
    tensor_scalars="dt",  # a compiled step then takes any time step; a plain number would be a constant of the graph
)
@wp.kernel
def advance(
    x: wp.array[wp.vec3],
    v: wp.array[wp.vec3],
    neighbour: wp.array2d[int],
    rest: wp.array[float],
    stiffness: wp.array[float],
    damping: wp.array[float],
    wind: wp.array[wp.vec3],
    free: wp.array[float],
    dt: float,
    x_next: wp.array[wp.vec3],
    v_next: wp.array[wp.vec3],
):
    """Semi-implicit Euler. Neighbours are read, so the new state is another array: in place would be a race."""
    i = wp.tid()
    a = wp.vec3(0.0, 0.0, -GRAVITY) - damping[0] * v[i]
    for k in range(12):
        j = neighbour[i, k]
        if j != i:  # a spring that would reach over the border leads back to its own mass
            edge = x[j] - x[i]
            a += stiffness[k // 4] * (1.0 - rest[k // 4] / wp.length(edge)) * edge
    along, across = x[neighbour[i, 1]] - x[neighbour[i, 0]], x[neighbour[i, 3]] - x[neighbour[i, 2]]
    normal = wp.normalize(wp.cross(along, across))
    a += DRAG * wp.dot(normal, wind[0] - v[i]) * normal
    v_new = v[i] + dt * free[i] * a
    v_next[i] = v_new
    x_next[i] = x[i] + dt * v_new


def advance_torch(x: Tensor, v: Tensor, neighbour: Tensor, rest: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
    """The same in PyTorch."""
    stiffness, damping, wind, free, dt = others
    near = x[neighbour]
    edge = near - x[:, None]
    squared = edge.square().sum(-1)
    length = torch.where(squared > 0, squared, 1.0).sqrt()  # no infinite slope at the missing springs
    pull = stiffness.repeat_interleave(4) * (1.0 - rest.repeat_interleave(4) / length)
    a = torch.tensor([0.0, 0.0, -GRAVITY]) - damping * v + (pull[..., None] * edge).sum(1)
    across = torch.linalg.cross(near[:, 1] - near[:, 0], near[:, 3] - near[:, 2])
    normal = torch.nn.functional.normalize(across, dim=-1)
    a = a + DRAG * ((wind - v) * normal).sum(-1, keepdim=True) * normal
    v = v + dt * free[:, None] * a
    return x + dt * v, v


class Material(NamedTuple):
    """What is sought."""

    stiffness: Tensor  # of stretch, shear and bending, (3,), 1/s² (forces are per mass)
    damping: Tensor  # (1,), 1/s
    wind: Tensor  # (1, 3), m/s

    def numbers(self) -> list[float]:
        return torch.cat([part.detach().flatten() for part in self]).tolist()


NAMES = ("stretch", "shear", "bending", "damping", "wind x", "wind y", "wind z")
TRUTH = Material(torch.tensor([20e3, 8e3, 3e3]), torch.tensor([1.0]), torch.tensor([[1.5, 6.0, 1.0]]))
GUESS = Material(torch.tensor([8e3, 20e3, 8e3]), torch.tensor([3.0]), torch.tensor([[-2.0, 2.0, 0.0]]))
NOISE = 0.003  # of the observed positions, m


class Cloth:
    """A metre square, level at first, with ``side`` masses along each edge."""

    def __init__(self, side: int):
        row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        spacing = 1.0 / (side - 1)
        self.side = side
        self.start = torch.stack([column * spacing, row * spacing, 0.0 * row], -1).reshape(-1, 3)
        self.free = ((row >= 2) | ((column >= 2) & (column < side - 2))).float().flatten()  # but for two corners
        self.rest = spacing * torch.tensor([1.0, 2**0.5, 2.0])
        ways = [(0, -1), (0, 1), (-1, 0), (1, 0), (-1, -1), (-1, 1), (1, -1), (1, 1), (0, -2), (0, 2), (-2, 0), (2, 0)]
        r, c = (place[..., None] + way for place, way in zip((row, column), torch.tensor(ways).T, strict=True))
        inside = (r >= 0) & (r < side) & (c >= 0) & (c < side)
        self.neighbour = torch.where(inside, r * side + c, (row * side + column)[..., None]).reshape(-1, 12).int()

    def simulate(self, step: Step, material: Material, steps: int, frames: int) -> Tensor:
        """The positions at ``frames`` instants, ``(frames, side * side, 3)``."""
        x, v, kept = self.start, torch.zeros_like(self.start), []
        dt = torch.tensor(DT)
        for n in range(1, steps + 1):
            x, v = step(x, v, self.neighbour, self.rest, *material, self.free, dt)
            if n % (steps // frames) == 0:
                kept.append(x)
        return torch.stack(kept)


def milliseconds(*runs: Callable[[], object]) -> list[float]:
    """The best of some times of each. They take turns, so that a busy machine treats all alike."""
    times = [[timeit.timeit(run, number=1) for run in runs] for _ in range(9)]
    return [1e3 * min(column) for column in zip(*times, strict=True)]


def compare(cloth: Cloth, steps: int, compiled: bool) -> None:
    """Some steps with the operator against PyTorch: positions, gradients, and times of both."""
    material = Material(*(part.clone().requires_grad_() for part in TRUTH))

    def differentiated(step: Step) -> list[Tensor]:
        x = cloth.simulate(step, material, steps, 1)
        return [x.detach(), *torch.autograd.grad(x.square().sum(), list(material))]

    both = zip(differentiated(advance), differentiated(advance_torch), strict=True)
    value, *gradients = (float((mine - theirs).abs().max() / theirs.abs().max()) for mine, theirs in both)
    print(f"positions differ from PyTorch's by {value:.1e}, gradients by {max(gradients):.1e}, relative to the largest")
    if not (value < 1e-5 and max(gradients) < 1e-3):  # float32, through all steps
        raise SystemExit("FAILED: the operator differs from PyTorch")
    for mode, wrap in (("eager", lambda step: step), ("compiled steps", torch.compile))[: 1 + compiled]:
        mine, theirs = milliseconds(*(partial(differentiated, wrap(f)) for f in (advance, advance_torch)))
        print(f"forward + backward through {steps} steps, {mode}: {mine:.0f} ms, in PyTorch {theirs:.0f} ms")


def recover(cloth: Cloth, seen: Tensor, steps: int, iterations: int) -> tuple[list[Material], list[float]]:
    """L-BFGS on the mean square of the misfit, in units of the noise; the material and the misfit at each iteration."""
    # Logarithms keep what must be positive so, and bring all unknowns to the same scale.
    logs, wind = torch.cat(GUESS[:2]).log().requires_grad_(), GUESS.wind.clone().requires_grad_()
    lbfgs = torch.optim.LBFGS([logs, wind], max_iter=1, max_eval=25, tolerance_change=0, line_search_fn="strong_wolfe")

    def material() -> Material:
        return Material(logs[:3].exp(), logs[3:].exp(), wind)

    def misfit() -> Tensor:
        lbfgs.zero_grad()
        loss = ((cloth.simulate(advance, material(), steps, len(seen)) - seen) / NOISE).square().mean()
        loss.backward()
        return loss

    path, losses = [], []
    print("iteration  misfit/noise" + "".join(f"{name:>9}" for name in NAMES))
    for iteration in range(iterations + 1):
        path.append(Material(*(part.detach().clone() for part in material())))
        losses.append(lbfgs.step(misfit).item() if iteration < iterations else misfit().item())  # before the step
        if iteration % max(1, iterations // 12) == 0 or iteration == iterations:
            print(f"{iteration:9d} {losses[-1] ** 0.5:13.2f}", *(f"{x:8.5g}" for x in path[-1].numbers()), flush=True)
    return path, losses


def draw(cloth: Cloth, path: list[Material], losses: list[float], steps: int, file: Path) -> None:
    """The cloth as guessed, recovered and true at four instants; the misfit and the numbers over the iterations."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("matplotlib is not installed: no picture")
        return
    figure = Figure(figsize=(15, 8.5), layout="constrained")
    cloths, curves = figure.subfigures(1, 2, squeeze=False, width_ratios=(2.6, 1))[0]
    for row, (name, material) in enumerate((("guess", path[0]), ("recovered", path[-1]), ("truth", TRUTH))):
        for column, x in enumerate(cloth.simulate(advance, material, steps, 4)):
            axes = cloths.add_subplot(3, 4, 4 * row + column + 1, projection="3d")
            x, y, z = x.reshape(cloth.side, cloth.side, 3).unbind(-1)
            axes.plot_surface(x.numpy(), y.numpy(), z.numpy(), cmap="viridis", vmin=-1, vmax=0.1, rcount=40, ccount=40)
            axes.scatter([0, 1], [0, 0], [0, 0], color="tab:red", s=25, depthshade=False)
            axes.set(xlim=(-0.1, 1.1), ylim=(-0.2, 1), zlim=(-1.1, 0.2), xticks=(0, 1), yticks=(0, 1), zticks=(-1, 0))
            axes.set(xlabel="x (m)", ylabel="y (m)", zlabel="z (m)")
            axes.xaxis.labelpad = axes.yaxis.labelpad = axes.zaxis.labelpad = -12
            axes.set_title(f"{name}, {(column + 1) * steps / 4 * DT:.2f} s", y=0.98)
            axes.view_init(15, -60)

    above, below = curves.subplots(2, 1)
    above.semilogy([loss**0.5 * NOISE * 1e3 for loss in losses], color="tab:purple", label="misfit")
    above.axhline(NOISE * 1e3, color="black", linewidth=0.8, linestyle="--", label="noise of the observation")
    above.set(xlabel="iteration of L-BFGS", ylabel="root mean square (mm)", title="Misfit of the positions")
    above.set_yticks((3, 10, 30, 100), ("3", "10", "30", "100"))
    above.minorticks_off()
    numbers = torch.tensor([material.numbers() for material in path]) / torch.tensor(TRUTH.numbers())
    for name, curve, found in zip(NAMES, numbers.T, path[-1].numbers(), strict=True):
        below.plot(curve, label=f"{name}, {found:.5g}")
    below.set(xlabel="iteration of L-BFGS", ylabel="value / true value", ylim=(-1.5, 5), title="The seven numbers")
    below.legend(fontsize="small", ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))  # under the curves
    above.legend(loc="upper right")

    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=100)
    print(f"cloths and curves drawn in {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, help="iterations of L-BFGS: 40, or 28 where --quick")
    parser.add_argument("--quick", action="store_true", help="a small cloth, few iterations: 10%% instead of 3%%")
    parser.add_argument("--no-plot", action="store_true", help="draw nothing")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "out/cloth.png", help="of the picture")
    options = parser.parse_args()
    wp.config.log_level = wp.LOG_ERROR  # Warp's greeting would mix with the table
    torch.set_num_threads(1)  # as Warp's launches on the CPU, so that the times compare
    torch.manual_seed(0)

    cloth = Cloth(12 if options.quick else 24)
    steps = 300 if options.quick else 600
    compare(cloth, 60, compiled=not options.quick)
    seen = cloth.simulate(advance, TRUTH, steps, 12)
    seen += NOISE * torch.randn_like(seen)
    begin = time.perf_counter()
    path, losses = recover(cloth, seen, steps, options.steps or (28 if options.quick else 40))
    print(f"took {time.perf_counter() - begin:.1f} s")

    if not options.no_plot:
        draw(cloth, path, losses, steps, options.output)
    errors = [abs(found / true - 1) for found, true in zip(path[-1].numbers(), TRUTH.numbers(), strict=True)]
    print("off the truth by " + ", ".join(f"{name} {error:.1%}" for name, error in zip(NAMES, errors, strict=True)))
    if not max(errors) < (0.1 if options.quick else 0.03):
        raise SystemExit("FAILED: that is too far off")


if __name__ == "__main__":
    main()
