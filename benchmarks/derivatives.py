"""What forward mode and second derivatives cost, as ratios in one process.

    python benchmarks/derivatives.py [--size N]

``jvp``, its forward included, over the forward: at most 2.5. Double backward over the first backward: at most 5. For an
elementwise kernel with a transcendental, and for one over a list of neighbours. And pure PyTorch's own, of the same formula.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import torch
import warp as wp

import warpops
from warpops import warp_op

JVP, TWICE = 2.5, 5.0
"""The bars."""


@wp.kernel
def wave(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = wp.sin(x[i]) * wp.exp(-w[i] * w[i])


@wp.kernel
def pairs(x: wp.array[wp.vec3], first: wp.array[int], other: wp.array[int], k: wp.array[float], e: wp.array[float]):
    i = wp.tid()
    total = float(0.0)
    for n in range(first[i], first[i + 1]):
        j = other[n]
        r = wp.length(x[i] - x[j])
        s = k[j] / r
        s6 = s * s * s * s * s * s
        total += s6 * s6 - s6
    e[i] = total


wave_op = warp_op(wave, name="derivatives::wave")
pairs_op = warp_op(pairs, "x[n], first[n + 1], k[n] -> e[n]", name="derivatives::pairs")


def wave_torch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * torch.exp(-w * w)


def pairs_torch(x: torch.Tensor, first: torch.Tensor, other: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    i = torch.repeat_interleave(torch.arange(len(x)), (first[1:] - first[:-1]).long())
    j = other.long()
    s6 = (k[j] / (x[i] - x[j]).norm(dim=1)) ** 6
    return torch.zeros(len(x)).index_add(0, i, s6 * s6 - s6)


def cells(n: int) -> tuple[torch.Tensor, ...]:
    """Points on a jittered grid with 16 others each, and a number each."""
    side = max(2, round(n ** (1 / 3)))
    axis = torch.arange(side, dtype=torch.float32)
    x = torch.cartesian_prod(axis, axis, axis)
    x = x + 0.2 * torch.rand(x.shape, generator=torch.Generator().manual_seed(1))
    count = len(x)
    shifts = torch.tensor([1, 2, side, side + 1, side * side, side * side + 1, 3, 2 * side])
    other = (torch.arange(count)[:, None] + torch.cat([shifts, -shifts])) % count
    first = torch.arange(count + 1, dtype=torch.int32) * 16
    return x, first, other.int().reshape(-1), torch.full((count,), 0.9)


def best(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The least seconds of each, the rounds interleaved."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds + 1):
        for name, function in functions.items():
            begun = time.thread_time()
            function()
            taken[name].append(time.thread_time() - begun)
    return {name: min(times[1:]) for name, times in taken.items()}


def measured(function: Callable[..., torch.Tensor], values: Sequence[torch.Tensor], rounds: int) -> dict[str, float]:
    """Forward, forward mode, first and second backward of one function."""
    floats = [k for k, v in enumerate(values) if v.is_floating_point()]
    generator = torch.Generator().manual_seed(2)
    u = [torch.randn(values[k].shape, generator=generator) for k in floats]

    def call(*given: torch.Tensor) -> torch.Tensor:
        whole = list(values)
        for place, value in zip(floats, given, strict=True):
            whole[place] = value
        return function(*whole)

    plain = [values[k] for k in floats]
    leaves = [v.clone().requires_grad_() for v in plain]
    seed = torch.randn(call(*plain).shape, generator=generator)
    y = call(*leaves)
    grads = torch.autograd.grad(y, leaves, seed, create_graph=True)
    return best(
        {
            "forward": lambda: call(*plain),
            "jvp": lambda: torch.func.jvp(call, tuple(plain), tuple(u)),
            "backward": lambda: torch.autograd.grad(y, leaves, seed, retain_graph=True),
            "double backward": lambda: torch.autograd.grad(grads, leaves, u, retain_graph=True),
        },
        rounds,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=200_000, help="elements; a tenth as many points with neighbours")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    wp.config.log_level = wp.LOG_ERROR
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(3)
    x, w = (torch.rand(options.size, generator=generator) for _ in range(2))
    grid = cells(options.size // 10)
    worst = True
    print(f"warpops {warpops.__name__}, torch {torch.__version__}, Warp {wp.config.version}, one thread")
    print(f"{'':28s}{'forward':>12s}{'jvp':>8s}{'backward':>10s}{'double backward / backward':>28s}")
    for title, functions, values in (
        ("wave, elementwise", (wave_op, wave_torch), (x, w)),
        ("pairs, 16 neighbours", (pairs_op, pairs_torch), grid),
    ):
        for own, function in zip(("", ", pure torch"), functions, strict=True):
            found = measured(function, values, options.rounds)
            jvp, twice = found["jvp"] / found["forward"], found["double backward"] / found["backward"]
            print(
                f"{title + own:28s}{found['forward'] * 1e3:9.2f} ms{jvp:8.2f}"
                f"{found['backward'] / found['forward']:10.2f}{twice:28.2f}"
            )
            if not own:
                worst = worst and jvp <= JVP and twice <= TWICE
    print("within the bars" if worst else f"OVER a bar (jvp {JVP}, double backward {TWICE})")
    return int(not worst)


if __name__ == "__main__":
    raise SystemExit(main())
