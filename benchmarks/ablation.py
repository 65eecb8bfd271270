"""Where each microsecond of a call goes: the parts of a remembered launch, timed one by one.

    python benchmarks/ablation.py

An op that adds one, four or sixteen arrays into another is called on 64 elements, on the CPU. Each part is run by itself
on the same arguments, interleaved with the whole; what no part accounts for is the Python between them. It uses private
attributes of an op, as nothing else outside the package does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from common import Call, Samples, clock_for, environment, interleave, microseconds, table, write_json
from overhead import compiled
from rivals import add_ops
from warpops.launch.packing import descriptor
from warpops.private import torch_guards

FORWARD = [
    ("the call", "whole"),
    ("  WarpOp.__call__ over the generated function", "method"),
    ("  the guard on all tensors", "guard"),
    ("  the output, past PyTorch's dispatcher", "empty"),
    ("  the native launch: pointers, packing, the kernel's own work", "launch"),
    ("  modes asked for, Python between", "rest"),
]
BACKWARD = [
    ("forward with gradient, and backward", "both"),
    ("  forward without gradient, as above", "whole"),
    ("  autograd.Function: apply, context, saved tensors", "function"),
    ("  the adjoint launch: guard, buffers, packing, entry point", "adjoint"),
    ("  PyTorch's engine, accumulation into .grad", "engine"),
]


def pieces(count: int, size: int) -> dict[str, Call]:
    op: Any = add_ops[count]
    sources = [torch.randn(size) for _ in range(count)]
    leaves = [source.clone().requires_grad_() for source in sources]
    cotangent = torch.ones(size)

    def both() -> None:
        for leaf in leaves:
            leaf.grad = None
        op(*leaves).backward(cotangent)

    for _ in range(300):  # until launches are native
        op(*sources)
        both()
    scope = op._call.__globals__
    op(*sources)
    forward, backward = scope["forwards"].memories[0], scope["backwards"].memories[0]
    launcher = op._instances.only.launcher
    array = descriptor((size,), (1,), 4)
    launch, start, _, _ = launcher.recall(torch.device("cpu"), (size,), (array,) * (count + 1))
    output = torch.empty(size)
    empty = torch_guards.empty_strided_cpu
    assert empty is not None
    layout = ((size,), (1,), torch.float32)
    return {
        "whole": lambda: op(*sources),
        "generated": lambda: op._call(*sources),
        "guard": lambda: forward.check(*sources),
        "empty": lambda: empty(*layout),
        "launch": lambda: launch((*sources, output), start),
        "forward": lambda: op(*leaves),
        "both": both,
        "adjoint": lambda: (backward.check(*leaves, cotangent), backward.run(*leaves, cotangent)),
        "nothing": lambda: None,
    }


def account(samples: Samples, prefix: str) -> dict[str, float]:
    """Microseconds of each part; a lambda's own time is taken off."""
    idle = samples.median(f"{prefix}nothing")
    found = {
        name.removeprefix(prefix): 1e6 * (samples.median(name) - idle)
        for name in samples.seconds
        if name.startswith(prefix)
    }
    found["method"] = found["whole"] - found["generated"]
    parts = ("method", "guard", "empty", "launch")
    found["rest"] = found["whole"] - sum(found[part] for part in parts)
    found["function"] = found["forward"] - found["whole"]
    found["engine"] = found["both"] - found["forward"] - found["adjoint"]
    return found


def graphs(size: int) -> dict[str, Call]:
    """The same graph around an op and around PyTorch's own addition: what remains is PyTorch's."""
    op = add_ops[4]
    leaves = [torch.randn(size, requires_grad=True) for _ in range(4)]
    cotangent = torch.ones(size)

    def run(function: Any) -> Call:
        def both() -> None:
            for leaf in leaves:
                leaf.grad = None
            function(*leaves).backward(cotangent)

        return both

    return {
        "compiled op": run(compiled(lambda *xs: op(*xs))),
        "compiled addition": run(compiled(lambda a, b, c, d: a + b + c + d)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=64, help="elements of each array")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    calls: dict[str, Call] = {}
    for count in add_ops:
        calls |= {f"{count} {name}": call for name, call in pieces(count, options.size).items()}
    calls |= graphs(options.size)
    samples = interleave(calls, rounds=options.rounds, clock=clock_for("cpu"))
    found = {count: account(samples, f"{count} ") for count in add_ops}
    print(", ".join(f"{key} {value}" for key, value in environment().items()))
    for title, rows in (("Forward without gradient, µs", FORWARD), ("With gradient, µs", BACKWARD)):
        cells = [[text, *(f"{found[count][key]:.2f}" for count in add_ops)] for text, key in rows]
        table(title, ["", *(f"{count} in, 1 out" for count in add_ops)], cells)
    cells = [[name, microseconds(samples.median(name))] for name in ("compiled op", "compiled addition")]
    table("Compiled, forward and backward, four arrays", ["", "µs"], cells)
    write_json(options.json, {"environment": environment(), "microseconds": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
