"""Ten million elements: time and peak memory, against raw launches whose buffers are ready.

    python benchmarks/large.py
    python benchmarks/large.py --bars            # exit status 1 if a bound is missed
    python benchmarks/large.py --json FILE

Raw is ``wp.launch`` on arrays made beforehand: the forward launch, and for the backward the zero-fill of the gradient
that Warp accumulates into and the adjoint launch. Both are timed interleaved, in one process.

The op makes its results anew at each call, as every PyTorch operator does. On the CPU a fresh block of 40 MB comes
from the operating system page by page, which costs as much as a small kernel and says nothing of warpops; so the script
tells the C library to keep freed blocks, and ``--fresh-pages`` leaves that out. Peak memory is counted in a process of
its own, twice: what PyTorch's allocator reported to its profiler, and the peak of the resident set, which sees every
allocator.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import warp as wp

from common import Bar, clock_for, environment, interleave, judge, table, write_json
from rivals import Launches, himmelblau, himmelblau_op, logistic, logistic_op
from warpops import WarpOp

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Subject:
    kernel: wp.Kernel
    op: WarpOp
    dtype: Any
    components: int

    def source(self, size: int, device: str) -> torch.Tensor:
        shape = (size, self.components) if self.components > 1 else (size,)
        return torch.rand(shape, device=device)

    def floor(self, size: int) -> int:
        """Bytes of input, output, cotangent and gradient."""
        return 4 * size * (2 * self.components + 2)


SUBJECTS = {
    "himmelblau (vec2 -> float)": Subject(himmelblau, himmelblau_op, wp.vec2, 2),
    "logistic (float -> float)": Subject(logistic, logistic_op, wp.float32, 1),
}


def keep_freed_blocks(size: int) -> bool:
    """Ask glibc never to give memory back, nor to map large blocks one by one. False where there is no glibc."""
    trim_threshold, mmap_max = -1, -4
    try:
        libc = ctypes.CDLL(None)
        kept = bool(libc.mallopt(mmap_max, 0)) and bool(libc.mallopt(trim_threshold, 2**31 - 1))
    except (OSError, AttributeError):
        return False
    # Room for all that follows, touched once and freed: an aligned block doesn't fit where one of its size was.
    torch.ones(20 * size)
    return kept


def measure_time(subject: Subject, size: int, rounds: int, device: str) -> dict[str, float]:
    source = subject.source(size, device)
    leaf = source.clone().requires_grad_()
    cotangent = torch.ones(size, device=device)
    launches = Launches(subject.kernel, subject.dtype, source)

    def both() -> None:
        torch.autograd.grad(subject.op(leaf), leaf, cotangent)

    samples = interleave(
        {
            "op forward": lambda: subject.op(source),
            "raw forward": launches.forward,
            "op both": both,
            "raw both": launches.forward_backward,
        },
        rounds=rounds,
        chunk=1e-3,
        device=device,
        clock=clock_for(device),
    )
    found = {name: samples.median(name) for name in samples.seconds}
    for what in ("forward", "both"):
        op, raw = f"op {what}", f"raw {what}"
        found[f"{what} ratio"] = samples.ratio(op, raw)
        found[f"{what} ratio of the best"] = samples.best(op) / samples.best(raw)
    return found


def peak_of(call: Callable[[], Any], device: str) -> dict[str, int]:
    """Bytes above those held before the call, at the worst moment of it."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return {"allocator": torch.cuda.max_memory_allocated(device) - before}

    found = {"resident": resident_peak(call)}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    held = peak = 0
    results = profiler.profiler.kineto_results
    changes = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    for _, change in sorted(changes, key=lambda item: item[0]):
        held += change
        peak = max(peak, held)
    found["allocator"] = peak
    return found


def resident_peak(call: Callable[[], Any]) -> int:
    """Growth of the resident set at its peak, in bytes (Linux); 0 where it can't be read."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # start the peak anew
        before = resident("VmRSS")
        call()
        return resident("VmHWM") - before
    except OSError:
        return 0


def resident(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def measure_memory(subject: Subject, size: int, device: str) -> dict[str, int]:
    """Peaks of forward + backward, with the input and the cotangent, which the caller holds, counted in."""
    source = subject.source(size, device)
    leaf = source.requires_grad_()
    cotangent = torch.ones(size, device=device)

    def both() -> None:
        result = subject.op(leaf)
        # The caller holds the result and the gradient, as a training loop does.
        (gradient,) = torch.autograd.grad(result, leaf, cotangent)
        del gradient, result

    for _ in range(3):  # code that is paged in, and thread pools that start, are no memory of the op's
        small = subject.source(1000, device).requires_grad_()
        peak_of(lambda small=small: subject.op(small).sum().backward(), device)
        torch.ones(1 << 17, device=device).zero_()
    given = leaf.nbytes + cotangent.nbytes
    return {name: peak + given for name, peak in peak_of(both, device).items()}


def memory_elsewhere(name: str, size: int, device: str) -> dict[str, int]:
    command = [sys.executable, __file__, "--memory-of", name, "--size", str(size), "--device", device]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"measuring the memory of {name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="PyTorch's; Warp launches on one when on the CPU")
    parser.add_argument("--fresh-pages", action="store_true", help="let the C library return freed blocks, as it does")
    parser.add_argument("--bars", action="store_true", help="compare with the bounds; exit status 1 if one is missed")
    parser.add_argument("--strict", action="store_true", help="the tighter bounds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--memory-of", choices=SUBJECTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    size, device = options.size, options.device
    torch.set_num_threads(options.threads)
    if options.memory_of:
        print(json.dumps(measure_memory(SUBJECTS[options.memory_of], size, device)))
        return 0

    memory = {name: memory_elsewhere(name, size, device) for name in SUBJECTS}
    kept = torch.device(device).type == "cpu" and not options.fresh_pages and keep_freed_blocks(size)
    times = {name: measure_time(subject, size, options.rounds, device) for name, subject in SUBJECTS.items()}

    about = environment(device)
    print(", ".join(f"{key} {value}" for key, value in about.items()) + f"; {size:,} elements")
    print("freed blocks are kept by the C library" if kept else "freed blocks are returned")
    rows = []
    for name, found in times.items():
        for what, label in (("forward", "forward"), ("both", "forward + backward")):
            op, raw = found[f"op {what}"] * 1e3, found[f"raw {what}"] * 1e3
            ratios = [f"{found[f'{what} ratio{which}']:.3f}" for which in ("", " of the best")]
            rows.append([name, label, f"{op:.2f}", f"{raw:.2f}", *ratios])
    table("Time, ms (medians)", ["kernel", "", "warpops", "raw launches", "ratio", "of the best"], rows)

    rows = []
    for name, peaks in memory.items():
        floor = SUBJECTS[name].floor(size)
        for source, peak in peaks.items():
            rows.append([name, source, f"{peak / MEGABYTE:.1f}", f"{floor / MEGABYTE:.1f}", f"{peak / floor:.3f}"])
    head = ["kernel", "counted by", "peak", "inputs + outputs + gradients", "ratio"]
    table("Peak memory of forward + backward, MiB", head, rows)

    print("\nWhat the analysis decided")
    for subject in SUBJECTS.values():
        print("\n  " + subject.op.explain().strip().replace("\n", "\n  "))

    forward, both, peak = (1.02, 1.10, 1.01) if options.strict else (1.05, 1.10, 1.01)
    bars = []
    for name, found in times.items():
        bars.append(Bar(f"{name}: forward, of the raw launch", found["forward ratio"], forward))
        bars.append(Bar(f"{name}: forward + backward, of the raw launches", found["both ratio"], both))
        floor = SUBJECTS[name].floor(size)
        bars.append(Bar(f"{name}: peak memory, of what must be held", memory[name]["allocator"] / floor, peak))
    write_json(
        options.json,
        {
            "benchmark": "large",
            "environment": about,
            "size": size,
            "kept_blocks": kept,
            "seconds": times,
            "peak_bytes": memory,
            "floor_bytes": {name: subject.floor(size) for name, subject in SUBJECTS.items()},
            "bars": [{"what": bar.what, "value": round(bar.value, 4), "limit": bar.limit} for bar in bars],
        },
    )
    if options.bars or options.strict:
        print()
        return judge(bars)
    return 0


if __name__ == "__main__":
    sys.exit(main())
