"""Several launches as one op: a two-pass solver step, and a neighbour list that is counted, scanned and filled.

    python examples/programs.py

The first program advances the linear advection equation by MacCormack's predictor and corrector, any number of steps
in one call. Its initial state is recovered from the last one by gradients through the solver. The second finds all
pairs of particles closer than a radius, within a given capacity, and sums a pair energy over them; its gradient moves
the particles apart. Both are compared with the same in plain PyTorch.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch
import warp as wp

from warpops import warp_program

# --- a two-pass stencil -----------------------------------------------------------------------------------------------


@wp.kernel
def predict(u: wp.array[float], courant: float, p: wp.array[float]):
    i = wp.tid()
    p[i] = u[i] - courant * (u[(i + 1) % u.shape[0]] - u[i])


@wp.kernel
def correct(u: wp.array[float], p: wp.array[float], courant: float, v: wp.array[float]):
    i = wp.tid()
    left = (i + u.shape[0] - 1) % u.shape[0]
    v[i] = 0.5 * (u[i] + p[i] - courant * (p[i] - p[left]))


@warp_program("u[n] -> v[n]", scratch="p[n], other[n]")
def advect(
    u: wp.array[float],
    v: wp.array[float],
    p: wp.array[float],
    other: wp.array[float],
    courant: float = 0.5,
    steps: int = 1,
):
    """``steps`` steps of MacCormack's scheme on a ring: ``(n,)`` to ``(n,)``, float32."""
    target, spare = (v, other) if steps % 2 else (other, v)  # so that the last step writes v
    source = u
    for _ in range(steps):
        wp.launch(predict, dim=u.shape, inputs=[source, courant], outputs=[p])
        wp.launch(correct, dim=u.shape, inputs=[source, p, courant], outputs=[target])
        source = target
        target, spare = spare, target
    if steps == 0:
        wp.copy(v, u)


def advect_torch(u: torch.Tensor, courant: float = 0.5, steps: int = 1) -> torch.Tensor:
    """The same in PyTorch."""
    for _ in range(steps):
        p = u - courant * (u.roll(-1) - u)
        u = 0.5 * (u + p - courant * (p - p.roll(1)))
    return u


# --- a neighbour list with a capacity ---------------------------------------------------------------------------------


@wp.kernel
def count_pairs(x: wp.array[wp.vec3], radius: float, count: wp.array[int]):
    i = wp.tid()
    found = int(0)
    for j in range(i + 1, x.shape[0]):
        if wp.length_sq(x[i] - x[j]) < radius * radius:
            found += 1
    count[i] = found


@wp.kernel
def fill_pairs(x: wp.array[wp.vec3], radius: float, ends: wp.array[int], left: wp.array[int], right: wp.array[int]):
    i = wp.tid()
    slot = int(0)
    if i > 0:
        slot = ends[i - 1]
    for j in range(i + 1, x.shape[0]):
        if wp.length_sq(x[i] - x[j]) < radius * radius:
            if slot < left.shape[0]:
                left[slot] = i
                right[slot] = j
            slot += 1


@wp.kernel
def pair_energy(
    x: wp.array[wp.vec3],
    radius: float,
    ends: wp.array[int],
    left: wp.array[int],
    right: wp.array[int],
    energy: wp.array[float],
):
    k = wp.tid()
    if k < ends[x.shape[0] - 1]:
        gap = 1.0 - wp.length(x[left[k]] - x[right[k]]) / radius
        wp.atomic_add(energy, left[k], gap * gap)


@warp_program("x[n] -> energy[n], left[capacity], right[capacity], ends[n]", sizes="capacity", scratch="count[n]")
def repulsion(
    x: wp.array[wp.vec3],
    radius: float,
    energy: wp.array[float],
    left: wp.array[int],
    right: wp.array[int],
    ends: wp.array[int],
    count: wp.array[int],
):
    """Pairs closer than ``radius`` and their energies.

    ``x`` is ``(n, 3)``; ``energy`` ``(n,)`` holds the sum over each particle's pairs with later ones; ``left`` and
    ``right`` ``(capacity,)`` the pairs; ``ends`` ``(n,)`` the running number of pairs. Where ``ends[-1]`` is greater
    than ``capacity``, the rest were left out.
    """
    wp.launch(count_pairs, dim=x.shape, inputs=[x, radius], outputs=[count])
    wp.utils.array_scan(count, ends, inclusive=True)
    wp.launch(fill_pairs, dim=x.shape, inputs=[x, radius, ends], outputs=[left, right])
    wp.launch(pair_energy, dim=left.shape, inputs=[x, radius, ends, left, right], outputs=[energy])


def repulsion_torch(x: torch.Tensor, radius: float) -> torch.Tensor:
    """The same energies in PyTorch, over all pairs at once."""
    left, right = torch.triu_indices(len(x), len(x), offset=1)
    gap = (1.0 - (x[left] - x[right]).norm(dim=-1) / radius).clamp(min=0.0)
    return torch.zeros(len(x)).index_add(0, left, gap * gap)


# --- the two at work --------------------------------------------------------------------------------------------------


def seconds(run: Callable[[], object], repeats: int = 5) -> float:
    """The best of a few times."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best


def compare(
    name: str, mine: Callable[[], torch.Tensor], theirs: Callable[[], torch.Tensor], source: torch.Tensor
) -> bool:
    """Values, gradients and times of both; whether they agree."""

    def with_gradient(run: Callable[[], torch.Tensor]) -> torch.Tensor:
        return torch.autograd.grad(run().square().sum(), source)[0]

    value = (mine() - theirs()).abs().max().item()
    gradient = (with_gradient(mine) - with_gradient(theirs)).abs().max().item()
    times = [seconds(lambda run=run: with_gradient(run)) * 1e3 for run in (mine, theirs)]  # type: ignore[misc]
    print(
        f"{name}: values differ by {value:.1e}, gradients by {gradient:.1e}; forward and backward take "
        f"{times[0]:.1f} ms, in PyTorch {times[1]:.1f} ms"
    )
    return value < 1e-3 and gradient < 1e-2


def recover(cells: int, steps: int) -> float:
    """Find the state that a pulse came from; returns the largest error."""
    place = torch.linspace(0.0, 1.0, cells)
    truth = torch.exp(-((place - 0.3) ** 2) / 0.005)
    seen = advect(truth, steps=steps)
    guess = torch.zeros(cells, requires_grad=True)
    optimiser = torch.optim.LBFGS([guess], lr=0.5, max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        misfit = (advect(guess, steps=steps) - seen).square().sum()
        misfit.backward()
        return misfit

    optimiser.step(loss)  # type: ignore[arg-type]
    return float((guess.detach() - truth).abs().max())


def spread(count: int, radius: float, steps: int) -> tuple[int, int]:
    """Move particles apart; the number of close pairs before and after."""
    x = torch.rand(count, 3, requires_grad=True)
    optimiser = torch.optim.Adam([x], lr=0.01)
    close = []
    for _ in range(steps):
        energy, _, _, ends = repulsion(x, radius, capacity=16 * count)
        close.append(int(ends[-1]))
        assert close[-1] <= 16 * count, "the capacity is too small"
        optimiser.zero_grad()
        energy.sum().backward()
        optimiser.step()
    return close[0], close[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, help="cells of the ring: 2000, or 200 where --quick")
    parser.add_argument("--steps", type=int, help="steps of the solver in one call: 40, or 20 where --quick")
    parser.add_argument("--particles", type=int, help="600, or 200 where --quick")
    parser.add_argument("--quick", action="store_true", help="everything smaller")
    options = parser.parse_args()
    cells, steps, particles = (200, 20, 200) if options.quick else (2000, 40, 600)
    cells, steps, particles = options.cells or cells, options.steps or steps, options.particles or particles
    wp.config.log_level = wp.LOG_ERROR  # Warp's greeting would mix with the report
    torch.manual_seed(0)

    u = torch.rand(cells, requires_grad=True)
    fine = compare("solver", lambda: advect(u, steps=steps), lambda: advect_torch(u, steps=steps), u)
    x = torch.rand(particles, 3, requires_grad=True)
    fine &= compare(
        "neighbour list",
        lambda: repulsion(x, 0.1, capacity=16 * particles)[0],
        lambda: repulsion_torch(x, 0.1),
        x,
    )
    error = recover(200, steps)
    before, after = spread(particles, 0.1, 60)
    print(f"the pulse's first state is recovered to {error:.1e}")
    print(f"{particles} particles: {before} close pairs before, {after} after")
    if not fine or error > 0.05 or after >= before / 2:
        print("FAILED")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
