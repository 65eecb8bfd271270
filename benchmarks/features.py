"""What holds for each way of joining a Warp kernel to a framework: every cell is the outcome of a probe that runs here.

    python benchmarks/features.py                  # what is not installed is said to be so
    python benchmarks/features.py --markdown       # the table of the README

- **Cells.** ``yes``: right. ``wrong``: another result, without a word. ``error``: an exception, or a crash (what, is in the
  JSON). ``no``: right, but not in the way asked for. ``—``: the framework has nothing like it. In rows that ask that
  something be *refused* or *noticed*, an exception is the right answer, ``yes``; where it should name the argument and
  doesn't, ``error``. A row of several probes shows the worst of them. Right means equal to plain PyTorch.
- **custom_op**, **Function** and **Function+Tape** are the three recipes of Warp's manual, written for these kernels as the
  manual goes about it: a `torch.library.custom_op` with an adjoint launch, a `torch.autograd.Function` with one, and one
  that records a ``wp.Tape`` with gradient buffers of its own. Vectors are made contiguous before they are wrapped; a
  cotangent that a launch would overwrite is cloned. Like the manual's, the custom_op leaves tensors on the context; with
  ``save_for_backward``, which the manual asks for in the Function, it notices changed inputs too.
- **jax_kernel** is Warp's own, with ``enable_backward=True``, on JAX's CPU backend; outputs that must start at zero are
  in-out arguments, as its manual has it. **nvalchemi** is the ``warp_custom_op``
  of nvalchemi-toolkit-ops, used as its docstring shows.
- Each column runs in a process of its own. Probes whose launches may leave their arrays get one each.
- **Lines** are those that aren't blank or comments, beyond the kernel, for one kernel with one input.
"""

import argparse
import ast
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import warp as wp

import feature_probes
from feature_cases import DECAY, LEAKY, POSITIVE, PRODUCT, ROWS, SMEAR, SQUARE, SWIRL, Op
from feature_probes import (
    Probe,
    UnnamedError,
    WrongError,
    another_rank,
    change_is_noticed,
    compiles,
    cotangent_kept,
    double_backward,
    double_dtype,
    expanded_inputs,
    forward_mode,
    gradients_of,
    leaf_is_left_alone,
    maps,
    maps_gradients,
    refuses,
    shorter,
    sizes_change,
    some_require_grad,
    starts_at_zero,
    strides,
    twice,
    two_components,
)
from feature_probes_jax import (
    jax_compiles,
    jax_cotangent_kept,
    jax_double_backward,
    jax_expanded_inputs,
    jax_forward_mode,
    jax_gradients_of,
    jax_maps,
    jax_maps_gradients,
    jax_refuses,
    jax_sizes_change,
    jax_some_require_grad,
    jax_starts_at_zero,
    jax_strides,
    jax_twice,
)
from feature_ways import MAKERS, PACKAGES
from warpops import warp_op

HERE = Path(__file__).resolve()


# Lines


def lines_of(file: str, *path: str) -> int:
    """Lines of a function's body (with decorators, for one that is nested) that aren't blank, comments, docstring, or
    its last return."""
    text = (HERE.parent / file).read_text()
    node: Any = ast.parse(text)
    for name in path:
        node = next(n for n in ast.walk(node) if isinstance(n, ast.FunctionDef) and n.name == name)
    drop: set[int] = set()
    for part in ast.walk(node):
        if isinstance(part, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(part, clean=False) is not None:
            drop.update(range(part.body[0].lineno, (part.body[0].end_lineno or 0) + 1))
    if len(path) > 1:
        first, last = min(d.lineno for d in node.decorator_list), node.end_lineno
    else:
        first, last = node.body[0].lineno, node.end_lineno
        end = node.body[-1]
        if isinstance(end, ast.Return) and len(node.body) > 1:
            drop.update(range(end.lineno, end.end_lineno + 1))
    lines = text.splitlines()
    kept = (n for n in range(first, last + 1) if n not in drop)
    return sum(bool(lines[n - 1].strip()) and not lines[n - 1].strip().startswith("#") for n in kept)


def just_warpops(kernel: wp.Kernel) -> Op:
    return warp_op(kernel)


def just_jax(kernel: wp.Kernel) -> Op:
    return wp.jax_kernel(kernel, enable_backward=True)


def just_tape(kernel: wp.Kernel, dtype: Any) -> Op:
    class Recipe(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, source: torch.Tensor, count: int) -> torch.Tensor:
            ctx.save_for_backward(source)
            result = torch.zeros(count, device=source.device)
            ctx.source_grad = torch.zeros_like(source)
            ctx.result_grad = torch.zeros_like(result)
            ctx.source = wp.from_torch(source.detach(), dtype=dtype, requires_grad=True, grad=ctx.source_grad)
            ctx.result = wp.from_torch(result, requires_grad=True, grad=ctx.result_grad)
            with wp.Tape() as ctx.tape:
                wp.launch(kernel, dim=count, inputs=[ctx.source], outputs=[ctx.result], device=ctx.source.device)
            return result

        @staticmethod
        def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[torch.Tensor, None]:
            _ = ctx.saved_tensors
            ctx.source_grad.zero_()
            ctx.result_grad.zero_()
            ctx.tape.backward(grads={ctx.result: wp.from_torch(cotangent, requires_grad=False)})
            gradient = ctx.source_grad.clone()
            ctx.tape.zero()
            return gradient, None

    return Recipe.apply


SOURCES = {
    "warpops": ("features.py", "just_warpops"),
    "custom_op": ("rivals.py", "library_recipe"),
    "Function": ("rivals.py", "function_recipe"),
    "Function+Tape": ("features.py", "just_tape"),
    "jax_kernel": ("features.py", "just_jax"),
    "nvalchemi": ("peers.py", "by_nvalchemi", "op"),
}


# The table


@dataclass(frozen=True)
class Row:
    label: str
    probes: tuple[Probe, ...]
    jax: tuple[Probe, ...] = ()
    alone: bool = False
    """In a process of its own: its launches may leave their arrays."""


ROWS_OF_TABLE = [
    Row(
        "Cotangent expanded, `y.sum().backward()`",
        gradients_of(SQUARE, SWIRL, expanded=True),
        jax_gradients_of(SQUARE, SWIRL, expanded=True),
    ),
    Row(
        "The caller's cotangent is left unchanged",
        tuple(map(cotangent_kept, (SQUARE, LEAKY, DECAY, ROWS))),
        tuple(map(jax_cotangent_kept, (SQUARE, LEAKY, ROWS))),
    ),
    Row(
        "Backward twice (`retain_graph=True`)",
        tuple(map(twice, (SQUARE, LEAKY, SWIRL))),
        tuple(map(jax_twice, (SQUARE, LEAKY, SWIRL))),
    ),
    Row("An element stored twice: gradient", gradients_of(LEAKY), jax_gradients_of(LEAKY)),
    Row("A row taken as a view: gradient", gradients_of(ROWS), jax_gradients_of(ROWS)),
    Row("In-out argument: result and gradients", gradients_of(DECAY), jax_gradients_of(DECAY)),
    Row("Input changed before backward: noticed", (change_is_noticed,)),
    Row("Non-contiguous inputs", (strides,), (jax_strides,), alone=True),
    Row("Expanded inputs", (expanded_inputs,), (jax_expanded_inputs,), alone=True),
    Row(
        "Partly written, atomic outputs from zero",
        tuple(map(starts_at_zero, (POSITIVE, SMEAR))),
        tuple(map(jax_starts_at_zero, (POSITIVE, SMEAR))),
    ),
    Row("Only some inputs require grad", (some_require_grad,), (jax_some_require_grad,)),
    Row("A leaf's `.grad` only accumulated into", (leaf_is_left_alone,)),
    Row("`torch.compile(fullgraph=True)` / `jit`", (compiles,), (jax_compiles,)),
    Row("Compiled: sizes change, no new graph", (sizes_change,), (jax_sizes_change,)),
    Row("`vmap`", (maps,), (jax_maps,)),
    Row("`vmap` of `grad`", (maps_gradients,), (jax_maps_gradients,)),
    Row("Double backward: right or refused", (double_backward,), (jax_double_backward,)),
    Row("Forward mode: right or refused", (forward_mode,), (jax_forward_mode,)),
    Row(
        "Another dtype: refused by name",
        (refuses(SQUARE, double_dtype, "points"), refuses(SWIRL, double_dtype, "points")),
        (jax_refuses(SQUARE, double_dtype, "points"), jax_refuses(SWIRL, double_dtype, "points")),
        alone=True,
    ),
    Row(
        "Another rank or components: likewise",
        (refuses(SQUARE, another_rank, "points"), refuses(SWIRL, two_components, "points")),
        (jax_refuses(SQUARE, another_rank, "points"), jax_refuses(SWIRL, two_components, "points")),
        alone=True,
    ),
    Row(
        "Sizes that don't agree: likewise",
        (refuses(PRODUCT, shorter, "right"),),
        (jax_refuses(PRODUCT, shorter, "right"),),
        alone=True,
    ),
]
ORDER = ("wrong", "error", "no", "yes")


@dataclass
class Cell:
    outcome: str
    details: list[str]


def look(column: str, row: Row) -> Cell:
    """Run the probes of a cell here."""
    probes = row.jax if column == "jax_kernel" else row.probes
    if not probes:
        return Cell("—", [])
    outcomes, details = [], []
    for probe in probes:
        torch.manual_seed(0)
        try:
            outcome, _, detail = probe(MAKERS[column]).partition(": ")
        except WrongError as fault:
            outcome, detail = "wrong", str(fault)
        except UnnamedError as fault:
            outcome, detail = "error", f"refused without naming the argument: {fault}"
        except Exception as error:
            outcome, detail = "error", f"{type(error).__name__}: {error}"
        outcomes.append(outcome)
        if detail:
            details.append(f"{outcome}: {' '.join(detail.split())[:300]}")
    return Cell(min(outcomes, key=ORDER.index), details)


def serve(column: str, numbers: list[int], file: Path) -> None:
    """In a child: one line of JSON a row, as soon as it is known."""
    warnings.simplefilter("ignore")
    wp.config.log_level = wp.LOG_ERROR
    if column != "warpops":
        wp.init()
    with file.open("a") as out:
        for number in numbers:
            cell = look(column, ROWS_OF_TABLE[number])
            out.write(json.dumps({"row": number, "outcome": cell.outcome, "details": cell.details}) + "\n")
            out.flush()


def batches(numbers: list[int]) -> Iterator[list[int]]:
    yield [n for n in numbers if not ROWS_OF_TABLE[n].alone]
    for n in numbers:
        if ROWS_OF_TABLE[n].alone:
            yield [n]


def measure(column: str, timeout: float) -> list[Cell]:
    """All cells of a column, from child processes. One that dies loses a cell, and the next goes on behind it."""
    cells: dict[int, Cell] = {}
    package = PACKAGES.get(column)
    if package and importlib.util.find_spec(package) is None:
        return []
    for batch in batches(list(range(len(ROWS_OF_TABLE)))):
        left = batch
        while left:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "cells"
                file.touch()
                command = [sys.executable, str(HERE), "--serve", column, str(file), "--backend", feature_probes.BACKEND]
                command += ["--rows", *map(str, left)]
                path = os.pathsep.join(filter(None, (str(HERE.parent.parent), os.environ.get("PYTHONPATH"))))
                try:
                    done = subprocess.run(
                        command,
                        capture_output=True,
                        text=True,
                        timeout=timeout,
                        check=False,
                        env={**os.environ, "PYTHONPATH": path},
                    )
                    end = f"the process ended with {done.returncode}: {done.stderr.strip()[-200:]}"
                    failed = done.returncode != 0
                except subprocess.TimeoutExpired:
                    end, failed = f"nothing after {timeout:g} s", True
                for line in file.read_text().splitlines():
                    found = json.loads(line)
                    cells[found["row"]] = Cell(found["outcome"], found["details"])
            left = [n for n in left if n not in cells]
            if left:
                cells[left.pop(0)] = Cell("error", [f"error: {end}"])
            elif failed and len(batch) == 1:  # the heap was found broken at the end
                cells[batch[0]].outcome = min(cells[batch[0]].outcome, "error", key=ORDER.index)
                cells[batch[0]].details.append(f"error: {end}")
    return [cells[n] for n in range(len(ROWS_OF_TABLE))]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="the cells, each with what was found")
    parser.add_argument("--markdown", action="store_true", help="print the table for GitHub")
    parser.add_argument("--only", nargs="+", choices=MAKERS, default=list(MAKERS), help="columns")
    parser.add_argument("--backend", default=feature_probes.BACKEND, help="of torch.compile")
    parser.add_argument("--timeout", type=float, default=400, help="seconds for a process")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--rows", nargs="+", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    feature_probes.BACKEND = options.backend
    if options.serve:
        serve(options.serve[0], options.rows, Path(options.serve[1]))
        return 0

    from common import environment, table, write_json

    columns = {column: measure(column, options.timeout) for column in options.only}
    head = ["", *columns]
    rows = [["Lines beyond the kernel", *(str(lines_of(*SOURCES[c])) if columns[c] else "—" for c in columns)]]
    for number, row in enumerate(ROWS_OF_TABLE):
        rows.append([row.label, *(cells[number].outcome if cells else "—" for cells in columns.values())])
    about = environment()
    if options.markdown:
        print("\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)))
    else:
        print(", ".join(f"{key} {value}" for key, value in about.items()))
        table("What holds (how each cell is found: --help, and the head of this file)", head, rows)
    print()
    for column, cells in columns.items():
        if not cells:
            print(f"{column}: not installed")
    if "custom_op" in columns:
        print(
            "custom_op keeps inputs on the context, as the manual prints it; with save_for_backward it notices changes."
        )
    result = {
        column: {
            row.label: {"outcome": cell.outcome, "details": cell.details}
            for row, cell in zip(ROWS_OF_TABLE, cells, strict=True)
        }
        if cells
        else "not installed"
        for column, cells in columns.items()
    }
    lines = {column: lines_of(*SOURCES[column]) for column in columns}
    write_json(options.json, {"benchmark": "features", "environment": about, "lines": lines, "cells": result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
