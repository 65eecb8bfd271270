"""Kernels drawn at random: forward mode and second derivatives against differences of the op.

A kernel is a few statements over locals, vectors, branches, loops (unrolled and not), a function, stores and atomic sums. All
are smooth where they are evaluated, so that differences tell. They are written to one module, which Warp builds once.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from typing import Any

import pytest
import torch

from derivatives import check_twice
from warpops import warp_op

COUNT = 5
HEAD = """
import warp as wp

D = wp.float64
V = wp.vec3d


@wp.func
def bend(a: D, b: D):
    return a * b + wp.cos(a), wp.sqrt(a * a + D(1.0))


@wp.func
def turned(v: V, angle: D):
    return wp.quat_rotate(wp.quat_from_axis_angle(wp.normalize(v + V(D(2.0), D(0.5), D(0.1))), angle), v)
"""


class Drawn:
    """Draws the body of one kernel."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.numbers, self.vectors = ["a"], ["p"]
        self.count, self.depth = 0, 0
        self.lines: list[str] = []

    def name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def number(self, depth: int = 2) -> str:
        if depth == 0 or self.dice.random() < 0.2:
            return self.dice.choice([*self.numbers, *self.numbers, "x[i]", "w[i]", f"{self.vector(0)}[1]", "D(0.5)"])
        one, other = self.number(depth - 1), self.number(depth - 1)
        return self.dice.choice(
            [
                f"({one} + {other})",
                f"({one} - {other})",
                f"({one} * {other})",
                f"({one} * {one})",
                f"({one} / (D(1.5) + {other} * {other}))",
                f"wp.sin({one})",
                f"wp.tanh({one} + {other})",
                f"wp.exp(wp.cos({one}))",
                f"wp.pow(D(1.0) + {one} * {one}, D(1.5))",
                f"wp.dot({self.vector(depth - 1)}, {self.vector(depth - 1)})",
                f"wp.length({self.vector(depth - 1)} + V(D(3.0), D(2.0), D(1.0)))",
                f"wp.where(i % 2 == 0, {one}, {other})",
                f"wp.lerp({one}, {other}, D(0.3))",
            ]
        )

    def vector(self, depth: int = 1) -> str:
        if depth <= 0 or self.dice.random() < 0.3:
            return self.dice.choice([*self.vectors, "q[i]"])
        one, other = self.vector(depth - 1), self.vector(depth - 1)
        return self.dice.choice(
            [
                f"({one} - {other})",
                f"({one} * wp.tanh({self.number(depth - 1)}))",
                f"wp.cross({one}, {other})",
                f"wp.cw_mul({one}, wp.normalize({other} + V(D(2.0), D(2.0), D(3.0))))",
                f"turned({one}, {self.number(0)})",
                f"V({self.number(0)}, {self.number(0)}, D(1.0))",
            ]
        )

    def add(self, line: str) -> None:
        self.lines.append("    " * (self.depth + 1) + line)

    def inside(self, head: str, statements: int) -> None:
        """A block; what it makes is its own."""
        self.add(head)
        self.depth += 1
        numbers, vectors = list(self.numbers), list(self.vectors)
        for _ in range(statements):
            self.statement(new=False)
        self.numbers, self.vectors = numbers, vectors
        self.depth -= 1

    def statement(self, new: bool = True) -> None:
        kind = self.dice.choice(["number", "number", "vector", "part", "update", "call", "if", "unrolled", "loop"])
        if kind in ("if", "unrolled", "loop") and self.depth > 1:
            kind = "update"
        if kind in ("number", "vector", "call") and not new:
            kind = self.dice.choice(["update", "again", "part"])
        if kind == "number":
            value, name = self.number(), self.name()
            self.add(f"{name} = {value}")
            self.numbers.append(name)
        elif kind == "vector":
            value, name = self.vector(2), self.name()
            self.add(f"{name} = {value}")
            self.vectors.append(name)
        elif kind == "call":
            one, other, value = self.name(), self.name(), self.number(1)
            self.add(f"{one}, {other} = bend({value}, {self.number(0)})")
            self.numbers += [one, other]
        elif kind == "again":
            self.add(f"{self.dice.choice(self.numbers)} = wp.tanh({self.number()})")
        elif kind == "part":
            self.add(f"{self.dice.choice(self.vectors)}[{self.dice.randrange(3)}] = wp.sin({self.number(1)})")
        elif kind == "update":
            symbol, value = self.dice.choice(["+=", "-=", "*="]), f"wp.tanh({self.number()})"
            self.add(f"{self.dice.choice(self.numbers)} {symbol} {value}")
        elif kind == "if":
            self.inside(f"if n[i] {self.dice.choice(['>', '<', '=='])} {self.dice.randrange(3)}:", 2)
            if self.dice.random() < 0.5:
                self.inside("else:", 1)
        else:
            self.inside(f"for _{self.count} in range({'2' if kind == 'unrolled' else 'n[i]'}):", 2)

    def text(self, name: str) -> str:
        self.lines = []
        self.add("i = wp.tid()")
        self.add("a = x[i] * D(1.0)")
        self.add("p = q[i] * D(1.0)")
        for _ in range(5):
            self.statement()
        self.add(f"y[i] = {self.number()} + {self.numbers[-1]}")
        self.add(f"z[i] = {self.vectors[-1]} * {self.numbers[-1]}")
        self.add(f"wp.atomic_add(s, n[i], {self.number()})")
        arrays = "x: wp.array[D], w: wp.array[D], q: wp.array[V], n: wp.array[int]"
        head = f"@wp.kernel\ndef {name}({arrays}, y: wp.array[D], z: wp.array[V], s: wp.array[D]):"
        return "\n".join([head, *self.lines])


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("drawn") / "drawn_tangents.py"
    path.write_text("\n\n\n".join([HEAD, *(Drawn(seed).text(f"drawn_{seed}") for seed in range(COUNT))]) + "\n")
    spec = importlib.util.spec_from_file_location("drawn_tangents", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["drawn_tangents"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, COUNT))])
def test_drawn(drawn: Any, seed: int) -> None:
    op = warp_op(getattr(drawn, f"drawn_{seed}"), "x[m], w[m], q[m], n[m] -> y[m], z[m], s[4]", dim="m")
    generator = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(4, generator=generator, dtype=torch.float64) for _ in range(2))
    q = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    check_twice(op, x, w, q, torch.tensor([2, 0, 3, 1], dtype=torch.int32))
