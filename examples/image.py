"""An image fitted by a multi-resolution hash grid and a small network, trained compiled.

``encode`` is a Warp kernel: at each level of a pyramid of grids, a point looks up the four corners of its cell in a hash
table of learned features, and blends them. Many points share an entry, so its gradient is a sum that the kernel's
adjoint makes with atomics. The image is drawn here, at 256 x 256: hard edges, a zone plate, a star, and small type::

    python examples/image.py

compares the operator with the same in PyTorch, trains, prints the signal-to-noise ratio (PSNR) as it rises, checks the
last one, and draws the target, the fit and the error, where matplotlib is installed.
"""

from __future__ import annotations

import argparse
import time
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import warp as wp
from torch import nn

from warpops import warp_op

SIZE = 256  # of the image
PRIME = 2654435761
HASH = wp.constant(wp.uint32(PRIME))


@wp.func
def slot(x: int, y: int, resolution: int, size: int) -> int:
    """The entry of a corner: one of its own where the level has room for all, a hashed one where it hasn't."""
    if (resolution + 1) * (resolution + 1) <= size:
        return y * (resolution + 1) + x
    return int((wp.uint32(x) ^ (wp.uint32(y) * HASH)) % wp.uint32(size))


@warp_op("xy[n], table[levels, size], resolution[levels] -> features[n, levels]")
@wp.kernel
def encode(xy: wp.array[wp.vec2], table: wp.array2d[wp.vec2], resolution: wp.array[int], features: wp.array2d[wp.vec2]):
    i, level = wp.tid()
    cells = resolution[level]
    size = table.shape[1]
    p = xy[i] * float(cells)
    x = wp.clamp(int(wp.floor(p[0])), 0, cells - 1)
    y = wp.clamp(int(wp.floor(p[1])), 0, cells - 1)
    u, v = p[0] - float(x), p[1] - float(y)
    features[i, level] = (
        (1.0 - u) * (1.0 - v) * table[level, slot(x, y, cells, size)]
        + u * (1.0 - v) * table[level, slot(x + 1, y, cells, size)]
        + (1.0 - u) * v * table[level, slot(x, y + 1, cells, size)]
        + u * v * table[level, slot(x + 1, y + 1, cells, size)]
    )


def encode_torch(xy: torch.Tensor, table: torch.Tensor, resolution: torch.Tensor) -> torch.Tensor:
    """The same in PyTorch, all levels and corners at once."""
    levels, size = table.shape[:2]
    p = xy[:, None] * resolution[:, None]
    cell = torch.minimum(p.detach().floor().long().clamp(min=0), resolution[:, None].long() - 1)
    (u, v) = (p - cell).unbind(-1)
    weights = torch.stack([(1 - u) * (1 - v), u * (1 - v), (1 - u) * v, u * v], -1)
    x = cell[..., 0, None] + torch.tensor([0, 1, 0, 1])
    y = cell[..., 1, None] + torch.tensor([0, 0, 1, 1])
    rows = resolution.long()[:, None] + 1
    slots = torch.where(rows * rows <= size, y * rows + x, (x ^ (y * PRIME % 2**32)) % size)
    corners = table[torch.arange(levels)[:, None], slots]
    return (weights[..., None] * corners).sum(2)


class Picture(nn.Module):
    """(N, 2) in the unit square -> (N, 3), colours."""

    resolution: torch.Tensor

    def __init__(self, levels: int = 10, size: int = 4096, coarsest: int = 8, finest: int = SIZE, width: int = 32):
        super().__init__()
        growth = (finest / coarsest) ** (1 / (levels - 1))
        resolution = torch.tensor([round(coarsest * growth**level) for level in range(levels)], dtype=torch.int32)
        self.register_buffer("resolution", resolution)
        self.table = nn.Parameter(0.02 * torch.rand(levels, size, 2) - 0.01)
        self.network = nn.Sequential(nn.Linear(2 * levels, width), nn.ReLU(), nn.Linear(width, 3), nn.Sigmoid())

    def forward(self, xy: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.network(encode(xy, self.table, self.resolution).flatten(1))
        return features


# --- what is to be learned --------------------------------------------------------------------------------------------

GLYPHS = {  # five columns by seven rows, a row a number
    "W": (17, 17, 17, 21, 21, 27, 17),
    "A": (14, 17, 17, 31, 17, 17, 17),
    "R": (30, 17, 17, 30, 20, 18, 17),
    "P": (30, 17, 17, 30, 16, 16, 16),
    "O": (14, 17, 17, 17, 17, 17, 14),
    "S": (15, 16, 16, 14, 1, 1, 30),
    " ": (0, 0, 0, 0, 0, 0, 0),
}


def lettering(text: str, scale: int) -> torch.Tensor:
    rows = torch.tensor([GLYPHS[letter] for letter in text]).T
    bits = (rows[..., None] >> torch.tensor([4, 3, 2, 1, 0])) & 1
    line = nn.functional.pad(bits, (0, 1)).flatten(1).bool()  # a free column after each letter
    return line.repeat_interleave(scale, 0).repeat_interleave(scale, 1)


def drawn() -> torch.Tensor:
    """The image, (SIZE, SIZE, 3): a zone plate, a star, a chessboard and lines of type."""
    y, x = torch.meshgrid(torch.arange(SIZE) + 0.5, torch.arange(SIZE) + 0.5, indexing="ij")
    image = torch.stack([0.15 + 0.5 * x / SIZE, 0.25 + 0.3 * y / SIZE, 0.75 - 0.4 * x / SIZE], -1)

    squared = (x - 64) ** 2 + (y - 64) ** 2
    plate = (0.5 + 0.5 * torch.cos(squared / 50))[..., None] * torch.tensor([1.0, 0.9, 0.4])
    image = torch.where((squared < 52**2)[..., None], plate, image)
    star = (torch.sin(18 * torch.atan2(y - 64, x - 192)) > 0).float()[..., None]
    image = torch.where(((x - 192) ** 2 + (y - 64) ** 2 < 52**2)[..., None], star, image)
    image[((x // 4 + y // 4) % 2).bool() & (y > 236)] = torch.tensor([0.95, 0.4, 0.25])

    top = 128
    for scale in (5, 3, 2, 1):
        line = lettering(("WARP OPS " * 5)[: (SIZE - 16) // (6 * scale)], scale)
        image[top : top + line.shape[0], 10 : 10 + line.shape[1]][line] = torch.tensor([1.0, 1.0, 0.9])
        top += 9 * scale + 2
    return image


def centres() -> torch.Tensor:
    """The pixels' middles in the unit square, (SIZE * SIZE, 2)."""
    y, x = torch.meshgrid((torch.arange(SIZE) + 0.5) / SIZE, (torch.arange(SIZE) + 0.5) / SIZE, indexing="ij")
    return torch.stack([x, y], -1).reshape(-1, 2)


# --- the work ---------------------------------------------------------------------------------------------------------


def milliseconds(*runs: Callable[[], object]) -> list[float]:
    """The best of some times of each. They take turns, so that a busy machine treats all alike."""
    times = [[timeit.timeit(run, number=1) for run in runs] for _ in range(9)]
    return [1e3 * min(column) for column in zip(*times, strict=True)]


def compare(picture: Picture, compiled: bool, count: int = 8192) -> None:
    """The operator against PyTorch: values, both gradients, and times of both, eager and maybe compiled."""
    xy = torch.rand(count, 2, requires_grad=True)
    weight = torch.randn(count, len(picture.resolution), 2)

    def differentiated(function: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        features = function(xy, picture.table, picture.resolution)
        return features.detach(), *torch.autograd.grad((features * weight).sum(), [xy, picture.table])

    both = zip(differentiated(encode), differentiated(encode_torch), strict=True)
    value, *gradients = (float((mine - theirs).abs().max() / theirs.abs().max()) for mine, theirs in both)
    print(f"values differ from PyTorch's by {value:.1e}, gradients by {max(gradients):.1e}, relative to the largest")
    if not max(value, *gradients) < 1e-5:
        raise SystemExit("FAILED: the operator differs from PyTorch")
    for mode, wrap in (("eager", lambda f: f), ("compiled", torch.compile))[: 1 + compiled]:
        mine, theirs = milliseconds(*(partial(differentiated, wrap(f)) for f in (encode, encode_torch)))
        print(f"forward + backward of {count} points, {mode}: {mine:.1f} ms, in PyTorch {theirs:.1f} ms")


@torch.no_grad()
def psnr(picture: Picture, image: torch.Tensor) -> float:
    """Of the whole image, in dB."""
    return float(-10 * (picture(centres()) - image.reshape(-1, 3)).square().mean().log10())


def train(picture: Picture, image: torch.Tensor, steps: int, batch: int = 8192) -> list[tuple[int, float]]:
    """Adam on random pixels; returns steps, and the PSNR that was reached."""
    compiled = torch.compile(picture, fullgraph=True)
    xy, colours = centres(), image.reshape(-1, 3)
    adam = torch.optim.Adam(picture.parameters(), lr=0.02, betas=(0.9, 0.99), eps=1e-12)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps, eta_min=1e-4)
    history = [(0, psnr(picture, image))]
    print("   step     PSNR")
    for step in range(1, steps + 1):
        some = torch.randint(len(xy), (batch,))
        loss = nn.functional.mse_loss(compiled(xy[some]), colours[some])
        adam.zero_grad()
        loss.backward()
        adam.step()
        decay.step()
        if step % max(1, steps // 20) == 0 or step == steps:
            history.append((step, psnr(picture, image)))
            print(f"{step:7d} {history[-1][1]:5.1f} dB  " + "█" * round(history[-1][1]), flush=True)
    return history


@torch.no_grad()
def draw(image: torch.Tensor, picture: Picture, history: list[tuple[int, float]], file: Path) -> None:
    """The target, the fit and their difference; the type enlarged; and the PSNR over the steps."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("matplotlib is not installed: no picture")
        return
    figure = Figure(figsize=(13, 8.6), layout="constrained")
    above, below = figure.subplots(2, 3)
    fit = picture(centres()).reshape(image.shape)
    titles = f"Target, {SIZE} × {SIZE}", f"Fit, {history[-1][1]:.1f} dB", "Error, mean over the three colours (of 1)"
    for axes, source, title in zip(above, (image, fit, (fit - image).abs().mean(-1)), titles, strict=True):
        axes.imshow(source, vmin=0, vmax=0.1, cmap="magma", interpolation="nearest")  # the shades are for the error
        axes.set(xlabel="x (pixels)", ylabel="y (pixels)", title=title)
    figure.colorbar(above[2].images[0], ax=above[2], shrink=0.85, extend="max")
    for axes, source, title in zip(below, (image, fit), ("Target, enlarged", "Fit, enlarged"), strict=False):
        axes.imshow(source[170:242, 8:80], extent=(8, 80, 242, 170), interpolation="nearest")
        axes.set(xlabel="x (pixels)", ylabel="y (pixels)", title=title)
    below[2].plot(*zip(*history, strict=True), color="tab:purple")
    below[2].set(xlabel="step of Adam", ylabel="PSNR (dB)", xlim=(0, history[-1][0]), title="PSNR of the whole image")
    below[2].grid(alpha=0.3)

    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
    print(f"target, fit and error drawn in {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, help="of Adam: 2500, or 150 where --quick")
    parser.add_argument("--quick", action="store_true", help="few steps, for a PSNR of 21 dB instead of 36")
    parser.add_argument("--no-plot", action="store_true", help="draw nothing")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "out/image.png", help="of the picture")
    options = parser.parse_args()
    wp.config.log_level = wp.LOG_ERROR  # Warp's greeting would mix with the table
    torch.set_num_threads(1)  # as Warp's launches on the CPU, so that the times compare
    steps = options.steps or (150 if options.quick else 2500)
    sought = 21.0 if options.quick else 36.0

    torch.manual_seed(0)
    picture, image = Picture(), drawn()
    compare(picture, compiled=not options.quick)
    print(f"{sum(p.numel() for p in picture.parameters()):,} parameters for {image.numel():,} values")
    begin = time.perf_counter()
    history = train(picture, image, steps)
    print(f"took {time.perf_counter() - begin:.1f} s")

    if not options.no_plot:
        draw(image, picture, history, options.output)
    if not history[-1][1] >= sought:
        raise SystemExit(f"FAILED: the PSNR is {history[-1][1]:.1f} dB, not {sought}")
    print(f"the image is fitted to {history[-1][1]:.1f} dB")


if __name__ == "__main__":
    main()
