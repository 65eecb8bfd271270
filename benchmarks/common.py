"""What the benchmarks share: interleaved timing, tables, bars, JSON and plots."""

from __future__ import annotations

import gc
import json
import math
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import warp as wp

Call = Callable[[], Any]


def environment(device: str = "cpu") -> dict[str, Any]:
    """What a reader must know of the machine to read the numbers."""
    info: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "warp": wp.config.version,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "device": device,
    }
    if torch.device(device).type == "cuda":
        info["gpu"] = torch.cuda.get_device_name(device)
    return info


def synchronize(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


@dataclass
class Samples:
    """Seconds a call, one sample a round, for every variant. Rounds line up across variants."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def best(self, name: str) -> float:
        return min(self.seconds[name])

    def ratio(self, name: str, other: str) -> float:
        """The median over rounds of the ratio within a round: what drifts during the run cancels."""
        pairs = zip(self.seconds[name], self.seconds[other], strict=True)
        return statistics.median(a / b for a, b in pairs)


def clock_for(device: str) -> Callable[[], float]:
    """The thread's own time where one thread does all the work, which other work on the machine hardly changes; else
    the time that has passed."""
    alone = torch.device(device).type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time if alone else time.perf_counter


def interleave(
    variants: dict[str, Call],
    *,
    rounds: int = 60,
    chunk: float = 2e-3,
    device: str = "cpu",
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Samples:
    """Time every variant once a round, in an order drawn anew, for ``chunk`` seconds each.

    A slow phase of the machine so falls on all of them alike. The garbage collector rests inside a chunk and runs
    between rounds.
    """
    order = list(variants)
    dice = random.Random(seed)
    times: dict[str, int] = {}
    for name, call in variants.items():
        for _ in range(5):
            call()
        synchronize(device)
        begin = time.perf_counter()
        call()
        synchronize(device)
        once = max(time.perf_counter() - begin, 1e-7)
        times[name] = max(1, min(2000, math.ceil(chunk / once)))

    samples = Samples({name: [] for name in variants})
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for number in range(rounds):
            dice.shuffle(order)
            for name in order:
                call, n = variants[name], times[name]
                synchronize(device)
                begin = clock()
                for _ in range(n):
                    call()
                synchronize(device)
                samples.seconds[name].append((clock() - begin) / n)
            if number % 10 == 9:
                gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    return samples


@dataclass(frozen=True)
class Bar:
    """A bound that a number must stay under."""

    what: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.value <= self.limit

    def __str__(self) -> str:
        return f"{'ok    ' if self.holds else 'MISSED'}  {self.what}: {self.value:.3g} (at most {self.limit:g})"


def judge(bars: Sequence[Bar]) -> int:
    """Print each bar; 1 when one is missed, as an exit status."""
    for bar in bars:
        print(bar)
    return 0 if all(bar.holds for bar in bars) else 1


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    rows = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
    print(f"\n{title}")
    for number, row in enumerate(rows):
        cells = [cell.ljust(widths[0]) if k == 0 else cell.rjust(widths[k]) for k, cell in enumerate(row)]
        print("  " + "  ".join(cells).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))


def microseconds(seconds: float) -> str:
    us = seconds * 1e6
    return f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 100 else f"{us:,.0f}"


def write_json(file: Path | None, result: dict[str, Any]) -> None:
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\nwritten: {file}")


def plot_bars(
    file: Path | None,
    title: str,
    groups: dict[str, dict[str, float | None]],
    unit: str,
    scale: float = 1.0,
) -> None:
    """One panel a group, one horizontal bar a variant; None is a variant that can't be run so."""
    if file is None:
        return
    try:
        import matplotlib
    except ImportError:
        print("matplotlib is not installed: no plot", file=sys.stderr)
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(3, len(groups))
    rows = math.ceil(len(groups) / columns)
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    colours = {name: "#76b900" if name.startswith("warpops") else "#8a94a6" for name in names}
    figure, panels = plt.subplots(
        rows,
        columns,
        figsize=(4.6 * columns, 0.9 + (0.6 + 0.34 * len(names)) * rows),
        layout="constrained",
        squeeze=False,
    )
    for panel in panels.flat[len(groups) :]:
        panel.set_visible(False)
    for k, (panel, (heading, group)) in enumerate(zip(panels.flat, groups.items(), strict=False)):
        for y, name in enumerate(names):
            value = group.get(name)
            if value is None:
                panel.text(0.02, y, "—", va="center", color="grey", transform=panel.get_yaxis_transform())
                continue
            panel.barh(y, value * scale, color=colours[name], height=0.7)
            panel.annotate(
                f"{value * scale:.3g}",
                (value * scale, y),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        panel.set_yticks(range(len(names)), names if k % columns == 0 else [""] * len(names))
        panel.set_ylim(len(names) - 0.5, -0.5)
        panel.margins(x=0.16)
        panel.set_title(heading, fontsize=10)
        panel.set_xlabel(unit, fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)
    plt.close(figure)
    print(f"drawn: {file}")
