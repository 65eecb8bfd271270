"""Drawn kernels: what the analysis says of an output against how often a run really stores each element.

Each kernel comes twice: as drawn, and with every store turned into an atomic count. ``filled`` then means that no count
is 0, ``stored_once`` that none is above 1, and an array that the analysis says isn't written has no counts at all.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warp as wp

from warpops.effects import Premise, analyse

ROWS, COLUMNS = 5, 3
COUNT = 60

HEADER = """
import warp as wp


@wp.func
def put(a: wp.array2d[float], i: int, j: int, v: float):
    {put}


@wp.func
def put_some(a: wp.array2d[float], i: int, j: int, v: float):
    if i > 2:
        return
    {put}


@wp.func
def put_row(row: wp.array[float], v: float):
    for k in range(row.shape[0]):
        {put_row}

"""


class Drawn:
    """Draws one kernel's body, line by line."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rank = self.random.choice((1, 2, 2))
        self.rows = ["i"]
        self.columns = ["j"] if self.rank == 2 else []
        self.loops = 0
        self.count = 0

    def body(self) -> list[str]:
        lines = ["i = wp.tid()" if self.rank == 1 else "i, j = wp.tid()"]
        if self.random.random() < 0.3:
            lines.append("i = int(i)")
        for _ in range(self.random.choice((1, 1, 2, 3))):
            lines += self.statement(0)
        return lines

    def statement(self, depth: int) -> list[str]:
        kinds = ["store"] * 6
        if depth < 3:
            kinds += ["if", "if", "ifelse", "loop", "loop", "exit", "rebind", "view"]
        if self.loops:
            kinds += ["continue", "break"]
        return list(getattr(self, "_" + self.random.choice(kinds))(depth))

    def block(self, depth: int) -> list[str]:
        lines = [line for _ in range(self.random.choice((1, 1, 2))) for line in self.statement(depth + 1)]
        return ["    " + line for line in lines]

    def index(self, names: list[str], size: int) -> str:
        if names and self.random.random() < 0.8:
            return self.random.choice(names)
        return self.random.choice(["0", "1", "-1", f"x[i] % {size}", f"wp.max({size} - 1 - x[i], 0) % {size}"])

    def _store(self, depth: int) -> Iterator[str]:
        row, column = self.index(self.rows, ROWS), self.index(self.columns, COLUMNS)
        kind = self.random.random()
        if kind < 0.6:
            yield f"y[{row}, {column}] = 1.0"
        elif kind < 0.75:
            yield f"y[{row}][{column}] = 1.0"
        elif kind < 0.9:
            yield f"{self.random.choice(('put', 'put_some'))}(y, {row}, {column}, 1.0)"
        else:
            yield f"put_row(y[{row}], 1.0)"

    def _view(self, depth: int) -> Iterator[str]:
        self.count += 1
        yield f"row{self.count} = y[{self.index(self.rows, ROWS)}]"
        yield f"row{self.count}[{self.index(self.columns, COLUMNS)}] = 1.0"

    def condition(self) -> str:
        options = ["x[i] > 2", "i > 1", "i < n", "i < y.shape[0]", "i >= 0", "n > 2", "i < 5", "i < y.shape[0] - 1"]
        if self.rank == 2:
            options += [
                "j < y.shape[1]",
                "i < y.shape[0] and j < y.shape[1]",
                "i > 3 or j > 1",
                "not (j >= y.shape[1])",
            ]
        return self.random.choice(options)

    def _if(self, depth: int) -> Iterator[str]:
        yield f"if {self.condition()}:"
        yield from self.block(depth)

    def _ifelse(self, depth: int) -> Iterator[str]:
        yield from self._if(depth)
        yield "else:"
        yield from self.block(depth)

    def _exit(self, depth: int) -> Iterator[str]:
        condition = self.random.choice(
            [self.condition(), "i >= y.shape[0]", "i >= y.shape[0]", "i >= n", "i >= y.shape[0] or n < 1"]
        )
        yield f"if {condition}:"
        yield "    return"

    def _continue(self, depth: int) -> Iterator[str]:
        yield f"if {self.condition()}:"
        yield "    continue"

    def _break(self, depth: int) -> Iterator[str]:
        yield f"if {self.condition()}:"
        yield "    break"

    def _rebind(self, depth: int) -> Iterator[str]:
        self.count += 1
        name = f"r{self.count}"
        yield f"{name} = i"
        if self.random.random() < 0.5:
            yield f"if {self.condition()}:"
            yield f"    {name} = {self.random.choice(('0', 'x[i]', 'i'))}"
        yield f"y[{name}, {self.index(self.columns, COLUMNS)}] = 1.0"

    def _loop(self, depth: int) -> Iterator[str]:
        self.count += 1
        name = f"k{self.count}"
        over_rows = self.random.random() < 0.25
        size = ROWS if over_rows else COLUMNS
        axis = 0 if over_rows else 1
        ranges = [f"y.shape[{axis}]", f"y.shape[{axis}]", f"0, y.shape[{axis}]", str(size), f"1, y.shape[{axis}]"]
        ranges += ["n - 1 - 1", f"y.shape[{axis}] - 1, -1, -1", "-1, 1"]
        yield f"for {name} in range({self.random.choice(ranges)}):"
        names = self.rows if over_rows else self.columns
        names.append(name)
        self.loops += 1
        yield from self.block(depth)
        self.loops -= 1
        names.remove(name)


def source(seed: int, name: str) -> tuple[str, int]:
    drawn = Drawn(seed)
    lines = ["@wp.kernel(enable_backward=False)", f"def {name}(x: wp.array[int], y: wp.array2d[float], n: int):"]
    return "\n".join([*lines, *("    " + line for line in drawn.body())]) + "\n", drawn.rank


def load(path: Path, text: str) -> Any:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any, list[int]]]:
    """The drawn kernels, and those that count."""
    folder = tmp_path_factory.mktemp("drawn")
    drawn = [source(seed, f"kernel_{seed}") for seed in range(COUNT)]
    text = "\n\n".join(text for text, _ in drawn)
    plain = HEADER.format(put="a[i, j] = v", put_row="row[k] = v") + text
    counted = HEADER.format(put="a[i, j] += v", put_row="row[k] += v") + text.replace("] = 1.0", "] += 1.0")
    names = ("warpops_drawn_plain", "warpops_drawn_counted")
    yield load(folder / f"{names[0]}.py", plain), load(folder / f"{names[1]}.py", counted), [rank for _, rank in drawn]
    for name in names:
        sys.modules.pop(name, None)


def holds(premise: Premise, n: int) -> bool:
    """Whether two sizes agree in these runs."""
    sizes = {("y", 0): ROWS, ("y", 1): COLUMNS, "n": n, 0: ROWS, 1: COLUMNS}
    right = premise.right if isinstance(premise.right, int) else sizes[premise.right]
    return sizes[premise.left] == right


@pytest.mark.parametrize("seed", range(COUNT))
def test_stores_are_as_often_as_the_analysis_says(modules: tuple[Any, Any, list[int]], seed: int) -> None:
    plain, counted, ranks = modules
    effects = analyse(getattr(plain, f"kernel_{seed}"))
    found = effects.arrays["y"]
    assert effects.tid_rank == ranks[seed]
    assert not effects.arrays["x"].written
    for n in (0, 3, ROWS):
        for x in (np.arange(ROWS), np.zeros(ROWS), np.array([2, 2, 1, 4, 0])):
            y = wp.zeros((ROWS, COLUMNS), dtype=float, device="cpu")
            inputs = [wp.array(x, dtype=int, device="cpu"), y, n]
            wp.launch(getattr(counted, f"kernel_{seed}"), (ROWS, COLUMNS)[: ranks[seed]], inputs=inputs, device="cpu")
            counts = y.numpy()
            if found.filled or (found.filled_if and all(holds(premise, n) for premise in found.filled_if)):
                assert counts.min() >= 1, found.filled_why
            if found.stored_once:
                assert counts.max() <= 1
            assert found.written or not counts.any()


def test_the_family_draws_both_outcomes(modules: tuple[Any, Any, list[int]]) -> None:
    found = [analyse(getattr(modules[0], f"kernel_{seed}")).arrays["y"] for seed in range(COUNT)]
    assert sum(array.filled for array in found) >= 4
    assert sum(array.stored_once for array in found) >= 4
    assert any(array.filled and not array.stored_once for array in found)
