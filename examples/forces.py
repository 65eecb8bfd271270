"""An interatomic potential trained on energies and forces, with a Warp kernel for the energy.

Forces are the energy's gradient, and so a loss on forces is differentiated twice. The kernel below walks a list of
neighbours and sums a learned function of each distance; it is all that there is: the forces come from its adjoint, and
their derivative by the weights from the tangent kernel that warpops makes of its source::

    python examples/forces.py

compares energies, forces and the gradients of the loss with the same in PyTorch, and the times of a training step; then
trains on samples of a Morse potential, and draws what was learned where matplotlib is installed.
"""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import warp as wp
from torch import Tensor, nn

from warpops import warp_op

TERMS, NEAREST, REACH, WIDTH = 14, 0.6, 2.4, 0.16
BEGIN = wp.constant(NEAREST)
STEP = wp.constant((REACH - NEAREST) / (TERMS - 1))
COUNT, CUTOFF, SPREAD = wp.constant(TERMS), wp.constant(REACH), wp.constant(WIDTH)
Energy = Callable[..., Tensor]


@wp.func
def fade(r: float) -> float:
    """1 at no distance, 0 at the cutoff, with two derivatives that are 0 there."""
    u = 1.0 - r / CUTOFF
    return u * u * u


@warp_op("x[n], first[n + 1], weights[k] -> e[n]")
@wp.kernel
def pair_energy(
    x: wp.array[wp.vec3], first: wp.array[int], other: wp.array[int], weights: wp.array[float], e: wp.array[float]
):
    """Half the energy of every pair that an atom is part of: Gaussians of the distance, each with its weight."""
    i = wp.tid()
    total = float(0.0)
    for n in range(first[i], first[i + 1]):
        r = wp.length(x[other[n]] - x[i])
        if r < CUTOFF:
            pair = float(0.0)
            for k in range(COUNT):
                d = (r - BEGIN - STEP * float(k)) / SPREAD
                pair += weights[k] * wp.exp(-d * d)
            total += 0.5 * fade(r) * pair
    e[i] = total


def pair_energy_torch(x: Tensor, first: Tensor, other: Tensor, weights: Tensor) -> Tensor:
    """The same in PyTorch."""
    i = torch.repeat_interleave(torch.arange(len(x)), (first[1:] - first[:-1]).long())
    r = (x[other.long()] - x[i]).norm(dim=1)
    centres = NEAREST + (REACH - NEAREST) / (TERMS - 1) * torch.arange(TERMS)
    pair = torch.exp(-(((r[:, None] - centres) / WIDTH) ** 2)) @ weights
    pair = torch.where(r < REACH, 0.5 * (1.0 - r / REACH) ** 3 * pair, 0.0)
    return torch.zeros(len(x)).index_add(0, i, pair)


def morse(r: Tensor) -> Tensor:
    """The truth: a Morse potential, faded."""
    return (1.0 - r / REACH) ** 3 * 8.0 * ((1.0 - torch.exp(-2.2 * (r - 1.1))) ** 2 - 1.0)


def truth(x: Tensor, first: Tensor, other: Tensor, weights: Tensor | None = None) -> Tensor:
    """The energies that are learned, with the arguments of ``pair_energy``."""
    i = torch.repeat_interleave(torch.arange(len(x)), (first[1:] - first[:-1]).long())
    r = (x[other.long()] - x[i]).norm(dim=1)
    return torch.zeros(len(x)).index_add(0, i, torch.where(r < REACH, 0.5 * morse(r), 0.0))


def crystal(side: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Atoms around the places of a grid, and who is near whom: where each one's neighbours begin, and their numbers."""
    axis = torch.arange(side) * 1.15
    x = torch.cartesian_prod(axis, axis, axis)
    x = x + 0.08 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    near = torch.cdist(x, x) < REACH + 0.3
    near.fill_diagonal_(False)
    first = torch.cat([torch.zeros(1, dtype=torch.int64), near.sum(1).cumsum(0)])
    return x, first.int(), near.nonzero()[:, 1].int()


class Potential(nn.Module):
    """Energies and forces; ``energy`` is the kernel's op, or what stands in for it."""

    def __init__(self, energy: Energy = pair_energy):
        super().__init__()
        self.energy = energy
        self.weights = nn.Parameter(torch.zeros(TERMS))

    def forward(self, x: Tensor, first: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        energies = self.energy(x, first, other, self.weights)
        (slope,) = torch.autograd.grad(energies.sum(), x, create_graph=self.training)
        return energies, -slope


def loss_of(model: nn.Module, atoms: tuple[Tensor, ...], energies: Tensor, forces: Tensor) -> Tensor:
    """The mean squares of what the forces, and the energy per atom, are off."""
    mine, pull = model(*atoms)
    off: Tensor = (pull - forces).square().mean() + (mine.mean() - energies.mean()).square()
    return off


def compare(atoms: tuple[Tensor, ...], energies: Tensor, forces: Tensor) -> None:
    """The op against PyTorch: energies, forces, the gradient of the loss, and the time of all three."""
    models = [Potential(energy) for energy in (pair_energy, pair_energy_torch)]
    for model in models:
        with torch.no_grad():
            model.weights.copy_(torch.linspace(1.0, -1.0, TERMS))

    def step(model: Potential) -> list[Tensor]:
        (slope,) = torch.autograd.grad(loss_of(model, atoms, energies, forces), [model.weights])
        return [*(t.detach() for t in model(*atoms)), slope]

    both = zip(*(step(model) for model in models), strict=True)
    off = [float((mine - theirs).abs().max() / theirs.abs().max()) for mine, theirs in both]
    print(
        f"relative to PyTorch, energies are off by {off[0]:.1e}, forces by {off[1]:.1e}, the loss's gradient by {off[2]:.1e}"
    )
    if not max(off) < 1e-4:
        raise SystemExit("FAILED: the op differs from PyTorch")
    runs = [partial(step, model) for model in models]
    times = [[timeit.timeit(run, number=1) for run in runs] for _ in range(15)]  # turns: fair on a busy machine
    mine, theirs = (1e3 * min(column) for column in zip(*times, strict=True))
    pairs = len(atoms[2])
    print(f"a step on {len(atoms[0])} atoms, {pairs} pairs: {mine:.1f} ms, in PyTorch {theirs:.1f} ms")


def train(model: Potential, atoms: tuple[Tensor, ...], energies: Tensor, forces: Tensor, steps: int) -> float:
    """L-BFGS on the loss; returns the force error that is left, relative to the forces."""
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=10, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        lbfgs.zero_grad()
        value = loss_of(model, atoms, energies, forces)
        value.backward()
        return value

    error = 1.0
    print("iteration   loss      force error")
    for step in range(0, steps + 1, 10):
        value = loss().item()
        error = float((model(*atoms)[1].detach() - forces).norm() / forces.norm())
        print(f"{step:9d}   {value:.1e}   {error:.1e}", flush=True)
        if step < steps:
            lbfgs.step(loss)  # type: ignore[arg-type]
    return error


@torch.no_grad()
def draw(model: Potential, atoms: tuple[Tensor, ...], forces: Tensor, pull: Tensor, file: Path) -> None:
    """The pair energy that was learned beside the truth, and the forces on atoms that were not trained on."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("matplotlib is not installed: no picture")
        return
    r = torch.linspace(0.8, REACH, 200)
    x = torch.stack([torch.stack([torch.zeros_like(r), r], 1).reshape(-1), *2 * [torch.zeros(400)]], 1)
    first, other = torch.arange(401, dtype=torch.int32), (torch.arange(400, dtype=torch.int32) ^ 1)
    learned = pair_energy(x, first, other, model.weights).reshape(-1, 2).sum(1)
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(r, morse(r), label="Morse")
    left.plot(r, learned, "--", label="learned from energies and forces")
    left.set(xlabel="distance", ylabel="energy of a pair", ylim=(-7, 8), title="The potential")
    left.legend()
    right.plot(forces.reshape(-1), pull.reshape(-1), ".", markersize=3)
    right.set(xlabel="true force", ylabel="predicted force", title="Atoms that were not trained on")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
    print(f"potential and forces drawn in {file}")


def labelled(side: int, seed: int) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """Atoms with their true energies and forces."""
    atoms = crystal(side, seed)
    energies, forces = Potential(truth).eval()(*atoms)
    return atoms, energies.detach(), forces


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, help="iterations of L-BFGS: 200, or 60 where --quick")
    parser.add_argument("--quick", action="store_true", help="fewer atoms and iterations")
    parser.add_argument("--no-plot", action="store_true", help="draw nothing")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "out/forces.png", help="of the picture")
    options = parser.parse_args()
    wp.config.log_level = wp.LOG_ERROR  # Warp's greeting would mix with the table
    torch.set_num_threads(1)  # as Warp's launches on the CPU, so that the times compare
    torch.manual_seed(0)

    data = labelled(5 if options.quick else 9, 1)
    compare(*data)
    model = Potential()
    train(model, *data, options.steps or (60 if options.quick else 200))
    atoms, _, forces = labelled(6, 2)
    pull = model.eval()(*atoms)[1]
    error = float((pull - forces).norm() / forces.norm())
    if not options.no_plot:
        draw(model, atoms, forces, pull, options.output)
    print(f"forces on other atoms are within {error:.1%} of the true ones")
    if not error < 0.1:
        raise SystemExit("FAILED: that is too far off")


if __name__ == "__main__":
    main()
