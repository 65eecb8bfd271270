"""Learn the forces between particles from their accelerations, by messages along the edges of graphs of any size.

Three kinds of particles pull and push one another by nine laws, of which only the sums are seen: the acceleration of
each particle. One operator is a layer of a graph network: along each edge it makes a message from the features of both
ends and their distance, and adds it to the receiver's. Nothing of the size edges times features is ever stored. Every
step of training has another graph, with another number of nodes and edges, and none is compiled anew::

    python examples/messages.py

compares the layer with ``index_add`` in PyTorch, prints the progress, checks the laws that were found and the forces in
a larger graph than any of training, and draws both.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import warp as wp
from torch import Tensor, nn
from torch._dynamo.utils import counters

from warpops import warp_op

FEATURES, KINDS, REACH, DENSITY = 16, 3, 1.0, 6.0  # the last in particles a unit of area
# How strongly the kind of the row is drawn to the kind of the column.
DRAWN = torch.tensor([[1.0, -0.6, 0.4], [0.7, 0.5, -0.9], [-0.5, 0.9, 0.8]])
Features = wp.types.vector(length=FEATURES, dtype=float)


@warp_op("x[n], a[n], b[n], w[1], v[1], edge[e] -> force[n]", dim="e")
@wp.kernel
def messages(
    x: wp.array[wp.vec2],
    a: wp.array[Features],
    b: wp.array[Features],
    w: wp.array[Features],
    v: wp.array[Features],
    edge: wp.array[wp.vec2i],
    force: wp.array[wp.vec2],
):
    """To the first end of each edge: along it, as strong as one hidden layer says of both ends and their distance."""
    i, j = edge[wp.tid()][0], edge[wp.tid()][1]
    r = wp.length(x[j] - x[i])
    h = a[i] + b[j] + r * w[0]
    strength = float(0.0)
    for k in range(wp.static(FEATURES)):
        strength += v[0][k] * wp.exp(-h[k] * h[k])
    wp.atomic_add(force, i, strength / r * (x[j] - x[i]))


def messages_torch(x: Tensor, a: Tensor, b: Tensor, w: Tensor, v: Tensor, edge: Tensor) -> Tensor:
    """The same in PyTorch."""
    i, j = edge.unbind(1)
    r = (x[j] - x[i]).norm(dim=1, keepdim=True)
    strength = torch.exp(-((a[i] + b[j] + r * w) ** 2)) @ v.T
    return torch.zeros_like(x).index_add(0, i, strength / r * (x[j] - x[i]))


class Forces(nn.Module):
    """Positions (n, 2), kinds (n,) and edges (e, 2) -> accelerations (n, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.receiver, self.sender = nn.Embedding(KINDS, FEATURES), nn.Embedding(KINDS, FEATURES)
        self.w = nn.Parameter(3.0 * torch.randn(1, FEATURES))
        self.v = nn.Parameter(0.1 * torch.randn(1, FEATURES))

    def forward(self, x: Tensor, kind: Tensor, edge: Tensor) -> Tensor:
        return messages(x, self.receiver(kind), self.sender(kind), self.w, self.v, edge)


def law(r: Tensor, drawn: Tensor) -> Tensor:
    """What is to be found: repulsion when close, then what the two kinds feel for each other."""
    far = (r - 0.3) / (REACH - 0.3)
    return torch.where(r < 0.3, 2.0 * (r / 0.3 - 1.0), drawn * torch.sin(math.pi * far) ** 2)


def system(n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Positions (n, 2), kinds (n,), edges (e, 2) of those within reach, accelerations (n, 2)."""
    x = math.sqrt(n / DENSITY) * torch.rand(n, 2)
    kind = torch.randint(KINDS, (n,))
    edge = (torch.cdist(x, x).fill_diagonal_(math.inf) < REACH).nonzero()
    i, j = edge.unbind(1)
    r = (x[j] - x[i]).norm(dim=1)
    force = (law(r, DRAWN[kind[i], kind[j]]) / r)[:, None] * (x[j] - x[i])
    return x, kind, edge.int(), torch.zeros(n, 2).index_add(0, i, force)


def compare(model: Forces, n: int) -> None:
    """Values, gradients and times of the layer and of PyTorch, in a graph of ``n`` nodes."""
    x, kind, edge, _ = system(n)
    inputs = x, model.receiver(kind), model.sender(kind), model.w, model.v
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]

    def evaluate(layer: Callable[..., Tensor]) -> list[Tensor]:
        force = layer(*leaves, edge)
        return [force.detach(), *torch.autograd.grad(force.square().sum(), leaves)]

    layers: list[Callable[..., Tensor]] = [messages, messages_torch, torch.compile(messages_torch, dynamic=True)]
    results = list(map(evaluate, layers))
    times = [1e3 * min(timeit.repeat(partial(evaluate, layer), number=1, repeat=5)) for layer in layers]
    off, *turned = [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(*results[:2], strict=True)]
    print(
        f"{n:,} nodes, {len(edge):,} edges: values differ by {off:.0e} of the largest, gradients by {max(turned):.0e}"
    )
    print("forward and backward: {:.1f} ms, in PyTorch {:.1f} ms, compiled {:.1f} ms".format(*times))
    assert off < 1e-5 and max(turned) < 1e-4, "the layer and PyTorch disagree"


def train(model: Forces, steps: int) -> tuple[list[float], int]:
    """The losses, and how many graphs were compiled."""
    compiled = torch.compile(model, fullgraph=True)
    adam = torch.optim.Adam(model.parameters(), lr=0.05)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    before = counters["stats"]["unique_graphs"]
    losses, sizes, graphs = [], set(), 0
    print("   step   nodes   edges       loss   graphs compiled")
    for step in range(1, steps + 1):
        x, kind, edge, acceleration = system(int(torch.randint(20, 500, ())))
        loss = nn.functional.mse_loss(compiled(x, kind, edge), acceleration)
        adam.zero_grad()
        loss.backward()
        adam.step()
        decay.step()
        losses.append(loss.item())
        sizes.add((len(x), len(edge)))
        graphs = counters["stats"]["unique_graphs"] - before
        if step == 1 or step % max(1, steps // 10) == 0:
            print(f"{step:7d} {len(x):7d} {len(edge):7d} {losses[-1]:10.2e} {graphs:17d}", flush=True)
    print(f"{graphs} graphs compiled for {len(sizes):,} pairs of sizes: one for the first, one for any")
    return losses, graphs


def draw(
    r: Tensor, found: Tensor, true: Tensor, forces: tuple[Tensor, Tensor], losses: list[float], file: Path
) -> None:
    """The laws by pair of kinds, the forces in the large graph, and the loss."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7), layout="constrained")
    halves: Any = figure.subfigures(1, 2, width_ratios=(1.6, 1))
    left, right = halves
    axes = left.subplots(KINDS, KINDS, sharex=True, sharey=True)
    for (i, j), panel in zip(torch.cartesian_prod(torch.arange(KINDS), torch.arange(KINDS)), axes.flat, strict=True):
        panel.plot(r, true[i, j], color="black", linestyle="--", label="true")
        panel.plot(r, found[i, j], color=f"C{j}", alpha=0.8, linewidth=2.5, label="found")
        panel.set_title(f"on kind {i + 1} by kind {j + 1}", fontsize=10)
        panel.grid(alpha=0.3)
    axes[0, 0].legend()
    left.supxlabel("distance")
    left.supylabel("attraction")
    left.suptitle(f"Laws: off by {(found - true).abs().mean():.3f} in the mean")

    top, bottom = right.subplots(2, 1)
    top.plot(*(f.flatten().numpy() for f in forces), ".", markersize=2, alpha=0.3)
    top.axline((0, 0), slope=1, color="black", linewidth=0.8)
    top.set(xlabel="true acceleration", ylabel="predicted", aspect="equal")
    top.set_title(f"A graph of {len(forces[0]):,} nodes, unseen: $R^2$ = {explained(*forces):.4f}")
    bottom.semilogy(losses, linewidth=0.5)
    bottom.set(xlabel="step", title="Mean squared error, another graph each step")
    bottom.grid(alpha=0.3)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def explained(true: Tensor, predicted: Tensor) -> float:
    """The explained part of the variance, R²."""
    return 1.0 - ((predicted - true).square().sum() / true.square().sum()).item()


@torch.no_grad()
def laws(model: Forces, r: Tensor) -> Tensor:
    """What the model says of lone pairs at distances (n,): (kinds, kinds, n)."""
    x = torch.stack([torch.zeros(2 * len(r)), torch.stack([torch.zeros_like(r), r], 1).flatten()], 1)
    edge = torch.arange(2 * len(r), dtype=torch.int32).view(-1, 2)
    pairs = torch.cartesian_prod(torch.arange(KINDS), torch.arange(KINDS))
    found = [model(x, pair.repeat(len(r)), edge)[::2, 1] for pair in pairs]
    return torch.stack(found).view(KINDS, KINDS, -1)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, help="steps of Adam (4000; 400 with --quick)")
    parser.add_argument("--quick", action="store_true", help="smaller graphs to compare in, and a coarser fit will do")
    parser.add_argument("--no-plot", action="store_true", help="draw nothing")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "out" / "messages.png", help="the picture"
    )
    options = parser.parse_args()
    steps = options.steps or (400 if options.quick else 4000)
    wp.config.log_level = wp.LOG_ERROR  # Warp's greeting would mix with the table
    torch.set_num_threads(1)  # as many as Warp has on a CPU, so that the times compare
    torch.manual_seed(0)

    model = Forces()
    compare(model, 2_000 if options.quick else 10_000)
    begin = time.perf_counter()
    losses, graphs = train(model, steps)
    print(f"took {time.perf_counter() - begin:.1f} s")

    x, kind, edge, acceleration = system(2_000 if options.quick else 10_000)
    with torch.no_grad():
        forces = acceleration, model(x, kind, edge)
    r = torch.linspace(0.1, REACH, 200)  # nearer pairs are rare
    found, true = laws(model, r), law(r, DRAWN[..., None])
    if not options.no_plot:
        try:
            draw(r, found, true, forces, losses, options.output)
        except ImportError:
            print("matplotlib is not installed: no picture")
        else:
            print(f"laws drawn in {options.output}")

    error, part = (found - true).abs().mean().item(), explained(*forces)
    good = part > (0.95 if options.quick else 0.995) and error < (0.1 if options.quick else 0.03) and graphs <= 2
    print(
        f"{'' if good else 'FAILED: '}the laws are off by {error:.3f} in the mean, and explain {part:.2%} of the forces"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
