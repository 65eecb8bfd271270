"""What a call costs on the other ways: the public one, CUDA's remembered one, arrays changed in place.

    python benchmarks/paths.py                      # the table, with its bounds
    python benchmarks/paths.py --strict             # exit status 1 if a bound doesn't hold
    python benchmarks/paths.py --device cuda        # on a device, both ways, without the stand-in

Without a CUDA device, its remembered way is measured on the host: a stand-in (``tests/cuda_stand_in.py``) takes the driver's
place, and both ``wp.launch`` and the op end at the driver's call. Timing is that of ``overhead.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import ctypes.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import warp as wp

from common import Bar, Call, Samples, clock_for, environment, interleave, judge, microseconds, table, write_json
from overhead import and_backward
from rivals import Launches, himmelblau, multiply
from warpops import warp_op
from warpops.launch import native
from warpops.launch.launcher import FAST

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

Array = wp.array[float]


@wp.kernel
def sums(
    a: Array,
    b: Array,
    c: Array,
    d: Array,
    e: Array,
    f: Array,
    g: Array,
    h: Array,
    w: Array,
    x: Array,
    y: Array,
    z: Array,
):
    i = wp.tid()
    w[i] = a[i] + b[i]
    x[i] = c[i] + d[i]
    y[i] = e[i] + f[i]
    z[i] = g[i] + h[i]


@wp.kernel
def sums_in_place(a: Array, b: Array, c: Array, d: Array, w: Array, x: Array, y: Array, z: Array):
    i = wp.tid()
    w[i] = a[i] + b[i]
    x[i] = c[i] + d[i]
    y[i] = a[i] + b[i]
    z[i] = c[i] + d[i]


def launches(size: int, device: str) -> dict[str, Call]:
    """One kernel by an op and by ``wp.launch``, a product by an op and by PyTorch. Ops are made here, each time anew."""
    himmelblau_op, multiply_op = (
        warp_op(himmelblau, name="paths::himmelblau"),
        warp_op(multiply, name="paths::multiply"),
    )
    points = torch.randn(size, 2, device=device)
    a, b = (torch.randn(size, device=device, requires_grad=True) for _ in range(2))
    return {
        "op": lambda: himmelblau_op(points),
        "wp.launch": Launches(himmelblau, wp.vec2, points).forward,
        "op, both": and_backward(multiply_op, a, b),
        "torch.mul, both": and_backward(torch.mul, a, b),
    }


def in_place(size: int, device: str) -> dict[str, Call]:
    fresh = warp_op(sums, name="paths::sums")
    changed = warp_op(
        sums_in_place,
        ", ".join(f"{name}[n]" for name in "abcdwxyz"),
        dim="n",
        mutates=["w", "x", "y", "z"],
        name="paths::sums_in_place",
    )
    given = [torch.randn(size, device=device) for _ in range(8)]
    return {"fresh outputs": lambda: fresh(*given), "in place": lambda: changed(*given)}


@contextlib.contextmanager
def driver_stand_in() -> Iterator[Any]:
    """CUDA devices whose driver does nothing: a C function that takes anything and returns 0."""
    from cuda_stand_in import StandIn

    library = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
    nothing = ctypes.cast(library.fegetround, ctypes.c_void_p).value or 0
    with StandIn(count=1, driver=nothing) as found:
        yield found


def stand_in_calls(size: int, cuda: Any) -> dict[str, Call]:
    """As ``launches``, with tensors on the CPU that are taken for the device's."""
    calls = launches(size, "cpu")
    arrays = [wp.zeros(size, dtype=kind, device="cpu") for kind in (wp.vec2, float)]
    device, stream = cuda.devices[0], wp.Stream(cuda.devices[0], cuda_stream=0)
    calls["wp.launch"] = lambda: wp.launch(
        himmelblau, dim=size, inputs=arrays[:1], outputs=arrays[1:], device=device, stream=stream
    )
    return calls


def measure(options: argparse.Namespace, part: str) -> dict[str, Samples]:
    """In this process: the ways that ``WARPOPS_FAST`` allows."""
    timing = {"rounds": options.rounds, "device": options.device, "clock": clock_for(options.device)}
    if FAST:
        native.make()
    if part == "stand-in":
        with driver_stand_in() as cuda:
            return {part: interleave(stand_in_calls(options.size, cuda), **timing)}
    if part == "in place":
        return {part: interleave(in_place(options.size, options.device), **timing)}
    return {part: interleave(launches(options.size, options.device), **timing)}


PARTS = {"public": "0", "in place": "1", "stand-in": "1", "remembered": "1"}
"""What is measured, and the ``WARPOPS_FAST`` that it is measured with, each in a process of its own."""


def measured(options: argparse.Namespace, part: str) -> Samples:
    command = [sys.executable, __file__, "--part", part, "--device", options.device]
    command += ["--size", str(options.size), "--rounds", str(options.rounds)]
    environ = dict(os.environ, WARPOPS_FAST=PARTS[part])
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"measuring {part} failed:\n{done.stderr}")
    return Samples(json.loads(done.stdout.splitlines()[-1]))


def bars(found: dict[str, Samples]) -> list[Bar]:
    limits = {"public": (1.5, 4.0), "stand-in": (0.5, 2.5), "remembered": (0.8, 2.5)}
    titles = {
        "public": "public way",
        "stand-in": "CUDA's remembered way up to the driver",
        "remembered": "remembered way",
    }
    result = []
    for part, (forward, both) in limits.items():
        if part in found:
            ratio = found[part].ratio
            result.append(Bar(f"{titles[part]}: forward, of wp.launch", ratio("op", "wp.launch"), forward))
            result.append(
                Bar(f"{titles[part]}: forward + backward, of torch.mul", ratio("op, both", "torch.mul, both"), both)
            )
    ratio = found["in place"].ratio
    result.append(Bar("8 arrays, 4 changed in place, of fresh outputs", ratio("in place", "fresh outputs"), 1.5))
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=64, help="elements of each array")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--strict", action="store_true", help="exit status 1 if a bound is missed")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part:
        print(json.dumps(measure(options, options.part)[options.part].seconds))
        return 0
    on_cpu = torch.device(options.device).type == "cpu"
    parts = ["public", "stand-in" if on_cpu else "remembered", "in place"]
    found = {part: measured(options, part) for part in parts}

    about = environment(options.device)
    print(", ".join(f"{key} {value}" for key, value in about.items()) + f"; {options.size} elements")
    for part, samples in found.items():
        table(part, ["", "µs a call"], [[name, microseconds(samples.median(name))] for name in samples.seconds])
    print()
    result = bars(found)
    missed = judge(result)
    write_json(
        options.json,
        {
            "benchmark": "paths",
            "environment": about,
            "size": options.size,
            "rounds": options.rounds,
            "median_us": {
                f"{part} / {name}": round(samples.median(name) * 1e6, 3)
                for part, samples in found.items()
                for name in samples.seconds
            },
            "bars": [{"what": bar.what, "value": round(bar.value, 4), "limit": bar.limit} for bar in result],
        },
    )
    return missed if options.strict else 0


if __name__ == "__main__":
    sys.exit(main())
