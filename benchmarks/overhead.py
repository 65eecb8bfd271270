"""What a call costs on small tensors, against the other ways to call the same kernel.

    python benchmarks/overhead.py                         # the table
    python benchmarks/overhead.py --bars --strict         # with the bounds that must hold; exit status 1 if one doesn't
    python benchmarks/overhead.py --json FILE --plot FILE

All variants are timed in one process, interleaved: each round times every one of them for some milliseconds, in an
order drawn anew. Times are medians over the rounds; ratios are medians of the ratio within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import warp as wp

from common import (
    Bar,
    Call,
    Samples,
    clock_for,
    environment,
    interleave,
    judge,
    microseconds,
    plot_bars,
    table,
    write_json,
)
from rivals import (
    Launches,
    add_ops,
    function_recipe,
    himmelblau,
    himmelblau_op,
    library_recipe,
    logistic,
    logistic_op,
    multiply_op,
)

OURS, LIBRARY, FUNCTION = "warpops", "custom_op recipe", "autograd.Function recipe"
LAUNCH, RECORDED = "wp.launch, arrays ready", "recorded launch"
VARIANTS = [OURS, LIBRARY, FUNCTION, LAUNCH, RECORDED]
MODES = {
    "no grad": "forward, no gradient",
    "forward": "forward, with gradient",
    "both": "forward + backward",
    "compiled no grad": "compiled: forward, no gradient",
    "compiled forward": "compiled: forward, with gradient",
    "compiled both": "compiled: forward + backward",
}
CHAIN = 40


def own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with a code object of its own: Dynamo keeps what it compiled by code object, and would look
    through the entries of every variant at each call otherwise."""
    code = function.__code__.replace(co_name=f"{function.__code__.co_name}_{next(_numbers)}")
    return types.FunctionType(code, function.__globals__, None, function.__defaults__, function.__closure__)


_numbers = iter(range(10**9))


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(own_code(function), fullgraph=True)


def without_gradient(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Call:
    x = x.detach()
    return lambda: function(x)


def with_gradient(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Call:
    return lambda: function(x)


def and_backward(
    function: Callable[..., torch.Tensor], *inputs: torch.Tensor, cotangent: torch.Tensor | None = None
) -> Call:
    ones = torch.ones_like(function(*inputs)) if cotangent is None else cotangent

    def run() -> None:
        function(*inputs).backward(ones)
        for x in inputs:
            x.grad = None

    return run


def single_calls(size: int, device: str) -> dict[str, Call]:
    """One op a call. Keys are "variant / mode"."""
    x = torch.randn(size, 2, device=device, requires_grad=True)
    by_library = library_recipe(himmelblau, wp.vec2)
    by_function = function_recipe(himmelblau, wp.vec2)
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        OURS: himmelblau_op,
        LIBRARY: lambda x: by_library(x, size),
        FUNCTION: lambda x: by_function(x, size),
    }
    calls: dict[str, Call] = {}
    for variant, function in functions.items():
        calls[f"{variant} / no grad"] = without_gradient(function, x)
        calls[f"{variant} / forward"] = with_gradient(function, x)
        calls[f"{variant} / both"] = and_backward(function, x)
    for variant in (OURS, LIBRARY):
        function = functions[variant]
        for mode, use in (("no grad", without_gradient), ("forward", with_gradient), ("both", and_backward)):
            calls[f"{variant} / compiled {mode}"] = use(compiled(lambda x, function=function: function(x)), x)
    launches = Launches(himmelblau, wp.vec2, x)
    calls[f"{LAUNCH} / no grad"] = launches.forward
    calls[f"{LAUNCH} / both"] = launches.forward_backward
    calls[f"{RECORDED} / no grad"] = launches.recorded_forward
    calls[f"{RECORDED} / both"] = launches.recorded_forward_backward
    return calls


def chain(op: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def model(x: torch.Tensor) -> torch.Tensor:
        for _ in range(CHAIN):
            x = op(x)
        return x

    return model


def chain_models(size: int) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    recipe = library_recipe(logistic, wp.float32)
    return {OURS: chain(logistic_op), LIBRARY: chain(lambda x: recipe(x, size))}


def further_calls(size: int, device: str) -> dict[str, Call]:
    """What only ``--strict`` asks for."""
    calls: dict[str, Call] = {}
    x = torch.rand(size, device=device, requires_grad=True)
    for variant, model in chain_models(size).items():
        calls[f"{variant} / chain both"] = and_backward(compiled(model), x)
    a, b = (torch.randn(size, device=device, requires_grad=True) for _ in range(2))
    calls["warpops multiply / both"] = and_backward(multiply_op, a, b)
    calls["torch.mul / both"] = and_backward(torch.mul, a, b)
    sources = [torch.randn(size, device=device) for _ in range(16)]
    for count, op in add_ops.items():
        calls[f"{count} arrays / no grad"] = lambda op=op, given=sources[:count]: op(*given)
        leaves = [source.clone().requires_grad_() for source in sources[:count]]
        calls[f"{count} arrays / both"] = and_backward(op, *leaves)
    return calls


def compile_once(variant: str, size: int) -> None:
    """In a process of its own: print the seconds that the cold compilation of the 40-op model takes."""
    model = chain_models(size)[variant]
    x = torch.rand(size, requires_grad=True)
    model(x).sum().backward()  # loads the kernel, whose own compilation is not what is measured
    # So is whatever Inductor does once a process.
    torch.compile(lambda x: (x * 2.0).sin(), fullgraph=True)(x).sum().backward()
    begin = time.perf_counter()
    torch.compile(model, fullgraph=True)(x).sum().backward()
    print(json.dumps(time.perf_counter() - begin))


def cold_compile(size: int, repeats: int) -> dict[str, list[float]]:
    """Each in a process of its own with empty caches of PyTorch, the variants in turn."""
    seconds: dict[str, list[float]] = {OURS: [], LIBRARY: []}
    for _ in range(repeats):
        for variant, found in seconds.items():
            with tempfile.TemporaryDirectory() as cache:
                command = [sys.executable, __file__, "--size", str(size), "--compile-once", variant]
                environ = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=cache)
                done = subprocess.run(command, env=environ, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"the compilation of {variant} failed:\n{done.stderr}")
            found.append(json.loads(done.stdout.splitlines()[-1]))
    return seconds


def print_modes(samples: Samples) -> None:
    for title, modes in (
        ("Eager, µs a call (ratio to the custom_op recipe)", ["no grad", "forward", "both"]),
        ("torch.compile(fullgraph=True), µs a call", ["compiled no grad", "compiled forward", "compiled both"]),
    ):
        rows = []
        for variant in VARIANTS:
            row = [variant]
            for mode in modes:
                key = f"{variant} / {mode}"
                if key not in samples.seconds:
                    row.append("—")
                    continue
                ratio = samples.ratio(key, f"{LIBRARY} / {mode}")
                row.append(f"{microseconds(samples.median(key))} ({ratio:.2f})")
            if set(row[1:]) != {"—"}:
                rows.append(row)
        table(title, ["", *(MODES[mode].removeprefix("compiled: ") for mode in modes)], rows)


def first_bars(samples: Samples) -> list[Bar]:
    limits = {"no grad": 0.25, "both": 0.35, "compiled both": 0.50}
    return [
        Bar(f"{MODES[mode]}, of the custom_op recipe", samples.ratio(f"{OURS} / {mode}", f"{LIBRARY} / {mode}"), limit)
        for mode, limit in limits.items()
    ]


def strict_bars(samples: Samples, compiles: dict[str, list[float]]) -> list[Bar]:
    ratio = samples.ratio
    recipe = f"of the {LIBRARY}"
    bars = [
        Bar(f"{MODES[mode]}, {recipe}", ratio(f"{OURS} / {mode}", f"{LIBRARY} / {mode}"), limit)
        for mode, limit in {"no grad": 0.12, "both": 0.20, "compiled both": 0.35}.items()
    ]
    bars += [
        Bar(f"compiled graph of {CHAIN} ops, {recipe}", ratio(f"{OURS} / chain both", f"{LIBRARY} / chain both"), 0.25),
        Bar(
            "forward, no gradient, of wp.launch with arrays ready",
            ratio(f"{OURS} / no grad", f"{LAUNCH} / no grad"),
            0.8,
        ),
        Bar("forward + backward, of torch.mul", ratio("warpops multiply / both", "torch.mul / both"), 2.0),
        Bar("forward, 16 arrays, of 1 array", ratio("16 arrays / no grad", "1 arrays / no grad"), 1.8),
    ]
    if compiles:
        seconds = {variant: statistics.median(found) for variant, found in compiles.items()}
        bars.append(Bar(f"cold compilation of {CHAIN} ops, {recipe}", seconds[OURS] / seconds[LIBRARY], 1.3))
    return bars


def print_strict(samples: Samples, compiles: dict[str, list[float]]) -> None:
    rows = []
    for variant in (OURS, LIBRARY):
        row = [variant, microseconds(samples.median(f"{variant} / chain both") / CHAIN)]
        row.append(f"{statistics.median(compiles[variant]):.2f} s" if compiles else "—")
        rows.append(row)
    head = ["", "forward + backward, µs an op", "cold compilation"]
    table(f"A compiled graph of {CHAIN} ops", head, rows)
    rows = [[name, microseconds(samples.median(f"{name} / both"))] for name in ("warpops multiply", "torch.mul")]
    table("A product of two arrays, both with gradients", ["", "forward + backward, µs"], rows)
    rows = [
        [f"{n} in, 1 out", *(microseconds(samples.median(f"{n} arrays / {mode}")) for mode in ("no grad", "both"))]
        for n in add_ops
    ]
    table("Growth with the number of arrays, µs", ["arrays", MODES["no grad"], MODES["both"]], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=64, help="elements of each array")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bars", action="store_true", help="compare with the bounds; exit status 1 if one is missed")
    parser.add_argument("--strict", action="store_true", help="measure more, and compare with the tighter bounds")
    parser.add_argument("--compiles", type=int, default=3, help="cold compilations of each variant with --strict")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--compile-once", choices=[OURS, LIBRARY], help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)  # nothing here is large enough for two
    if options.compile_once:
        compile_once(options.compile_once, options.size)
        return 0

    calls = single_calls(options.size, options.device)
    if options.strict:
        calls |= further_calls(options.size, options.device)
    samples = interleave(calls, rounds=options.rounds, device=options.device, clock=clock_for(options.device))
    compiles = cold_compile(options.size, options.compiles) if options.strict and options.compiles else {}

    about = environment(options.device)
    print(", ".join(f"{key} {value}" for key, value in about.items()) + f"; {options.size} elements")
    print_modes(samples)
    if options.strict:
        print_strict(samples, compiles)
    bars = [] if not options.bars else strict_bars(samples, compiles) if options.strict else first_bars(samples)

    result = {
        "benchmark": "overhead",
        "environment": about,
        "size": options.size,
        "rounds": options.rounds,
        "median_us": {key: round(samples.median(key) * 1e6, 3) for key in samples.seconds},
        "least_us": {key: round(samples.best(key) * 1e6, 3) for key in samples.seconds},
        "ratio_to_custom_op": {
            mode: {
                variant: round(samples.ratio(f"{variant} / {mode}", f"{LIBRARY} / {mode}"), 4)
                for variant in VARIANTS
                if f"{variant} / {mode}" in samples.seconds
            }
            for mode in MODES
        },
        "cold_compile_s": compiles,
        "bars": [{"what": bar.what, "value": round(bar.value, 4), "limit": bar.limit} for bar in bars],
    }
    write_json(options.json, result)
    groups = {
        title: {
            variant: samples.median(f"{variant} / {mode}") if f"{variant} / {mode}" in samples.seconds else None
            for variant in VARIANTS
        }
        for mode, title in MODES.items()
    }
    plot_bars(options.plot, f"A call on {options.size} elements ({options.device})", groups, "µs a call", 1e6)
    if bars:
        print()
        return judge(bars)
    return 0


if __name__ == "__main__":
    sys.exit(main())
