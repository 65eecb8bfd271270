"""A model that registers operators of its own, trained compiled, saved and loaded.

Each ``RadialLayer`` makes a Warp kernel around the falloff that it is given, and an operator of that kernel. Centres
and widths are ordinary parameters: their gradients come from the kernel's adjoint, so the layer learns where to put its
bumps. Two such layers and a linear one are fitted to a function of the plane::

    python examples/model.py

The script ends with a check of the fit, and of the model that is loaded from the saved state.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import warp as wp
from torch import nn

from warpops import warp_op


@wp.func
def gaussian(r2: float) -> float:
    return wp.exp(-r2)


@wp.func
def cauchy(r2: float) -> float:
    return 1.0 / (1.0 + r2)


def radial_kernel(falloff: Any) -> Any:
    """The kernel of one layer: value i, k is the falloff of point i's distance to centre k, in widths of k.

    ``falloff`` is a ``wp.func``, which type checkers take for the plain function that it was made of.
    """

    @wp.kernel
    def radial(
        x: wp.array[wp.vec2],
        centre: wp.array[wp.vec2],
        width: wp.array[float],
        value: wp.array2d[float],
    ):
        i, k = wp.tid()
        r2 = wp.length_sq(x[i] - centre[k]) / (width[k] * width[k])
        value[i, k] = falloff(r2)

    return radial


class RadialLayer(nn.Module):
    """(N, 2) -> (N, features): how near each point is to each of a set of learned centres."""

    def __init__(self, features: int, falloff: Any):
        super().__init__()
        self.centre = nn.Parameter(2 * torch.rand(features, 2) - 1)
        self.width = nn.Parameter(torch.full((features,), 0.5))
        # A name of its own, so that a second model of this kind replaces the operator by the same one.
        self.radial = warp_op(
            radial_kernel(falloff),
            "x[n], centre[k], width[k] -> value[n, k]",
            name=f"radial_model::{falloff.key}",
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.radial(x, self.centre, self.width)


class RadialModel(nn.Module):
    """(N, 2) -> (N,)"""

    def __init__(self, features: int):
        super().__init__()
        self.near = RadialLayer(features, gaussian)
        self.far = RadialLayer(features, cauchy)
        self.mix = nn.Linear(2 * features, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bumps = torch.cat([self.near(x), self.far(x)], dim=-1)
        return self.mix(bumps).squeeze(-1)


def target(x: torch.Tensor) -> torch.Tensor:
    """What is to be learned, for x of shape (N, 2) in the square from -1 to 1."""
    return torch.sin(4 * x[:, 0]) * torch.cos(3 * x[:, 1]) + 0.5 * x[:, 0] * x[:, 1]


def points(n: int) -> torch.Tensor:
    return 2 * torch.rand(n, 2) - 1


@torch.no_grad()
def error_of(model: nn.Module, x: torch.Tensor) -> float:
    return (model(x) - target(x)).square().mean().sqrt().item()


def train(model: nn.Module, steps: int) -> None:
    compiled = torch.compile(model, fullgraph=True)
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    print("   step       loss")
    for step in range(1, steps + 1):
        x = points(512)
        loss = nn.functional.mse_loss(compiled(x), target(x))
        adam.zero_grad()
        loss.backward()
        adam.step()
        decay.step()
        if step == 1 or step % max(1, steps // 10) == 0:
            print(f"{step:7d} {loss.item():10.2e}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--features", type=int, default=24, help="centres a layer")
    parser.add_argument("--steps", type=int, help="of Adam: 1000, or 300 where --quick")
    parser.add_argument("--quick", action="store_true", help="fewer steps, and a coarser fit will do")
    options = parser.parse_args()
    wp.config.log_level = wp.LOG_ERROR  # Warp's greeting would mix with the table
    torch.set_num_threads(1)  # for arrays this small, a second thread is only waited for

    torch.manual_seed(0)
    model = RadialModel(options.features)
    start = copy.deepcopy(model.state_dict())
    print(f"root mean square error before training: {error_of(model, points(2000)):.4f}")
    begin = time.perf_counter()
    train(model, options.steps or (300 if options.quick else 1000))
    print(f"took {time.perf_counter() - begin:.1f} s")

    x = points(2000)
    error = error_of(model, x)
    print(f"root mean square error on new points: {error:.4f}")

    # The state holds parameters only; the operators are made anew by the code of the model.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.pt"
        torch.save(model.state_dict(), file)
        loaded = RadialModel(options.features)
        loaded.load_state_dict(torch.load(file, weights_only=True))
    with torch.no_grad():
        found, again = model(x), loaded(x)
        compiled = torch.compile(loaded, fullgraph=True)(x)
        copied = copy.deepcopy(loaded)(x)

    sought = 0.05 if options.quick else 0.02
    checks = {
        f"the fit is within {sought}": error < sought,
        "every parameter was trained": all(not torch.equal(start[k], v) for k, v in model.state_dict().items()),
        "the loaded model agrees": torch.equal(again, found),
        "so does a copy of it": torch.equal(copied, found),
        "and its compiled form": torch.allclose(compiled, found, atol=1e-5),
    }
    for what, holds in checks.items():
        print(f"{'ok    ' if holds else 'FAILED'}  {what}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
