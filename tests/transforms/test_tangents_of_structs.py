"""Tangents of kernels that use a struct of arrays as a whole, some of which have a tangent and some not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import warp as wp

from derivatives import check_twice
from warpops import warp_op, warp_program

f64 = wp.float64


@wp.struct
class Two:
    a: wp.array[f64]
    b: wp.array[f64]
    scale: f64


@wp.struct
class Pair:
    left: Two
    right: Two


@wp.func
def product(s: Two, i: int):
    r = s.a[i] * s.scale
    if s.b:
        r *= s.b[i]
    return r


@wp.func
def outer_product(s: Two, i: int):
    t = s
    return product(t, i)


@wp.func
def handed_back(s: Two):
    return s


@wp.kernel
def given(s: Two, y: wp.array[f64]):
    i = wp.tid()
    y[i] = outer_product(s, i)


@wp.kernel
def copied(s: Two, y: wp.array[f64]):
    i = wp.tid()
    t = s
    u = handed_back(t)
    y[i] = product(u, i)


@wp.kernel
def scaled(s: Two, x: wp.array[f64], y: wp.array[f64]):
    i = wp.tid()
    t = s
    t.scale = x[i] * x[i]
    y[i] = product(t, i)


@wp.kernel
def nested(p: Pair, y: wp.array[f64]):
    i = wp.tid()
    q = p.left
    y[i] = product(q, i) * product(p.right, i)


def rand(seed: int) -> torch.Tensor:
    return torch.rand(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.3


def two(a: torch.Tensor, b: torch.Tensor | None) -> dict[str, Any]:
    return {"a": a, "b": b, "scale": 1.5}


@pytest.mark.parametrize("kernel", [given, copied], ids=["given", "copied"])
def test_one_field_has_a_tangent(kernel: wp.Kernel) -> None:
    op = warp_op(kernel, "-> y", name=f"structs::{kernel.key}")
    a, b = rand(0), rand(1)
    check_twice(lambda a: op(two(a, b)), a)
    check_twice(lambda b: op(two(a, b)), b)
    check_twice(lambda a, b: op(two(a, b)), a, b)


def test_a_number_of_a_struct_has_a_tangent() -> None:
    op = warp_op(scaled, name="structs::scaled")
    a, b, x = rand(0), rand(1), rand(2)
    check_twice(lambda x: op(two(a, b), x), x)
    check_twice(lambda a, x: op(two(a, b), x), a, x)


def test_a_struct_in_a_struct() -> None:
    op = warp_op(nested, name="structs::nested")
    a, b = rand(0), rand(1)
    check_twice(lambda a: op({"left": two(a, b), "right": two(b, b)}), a)
    check_twice(lambda a: op({"left": two(b, b), "right": two(b, a)}), a)


def test_a_field_that_is_none() -> None:
    op = warp_op(given, "-> y", optional="s.b", name="structs::without")
    a, b = rand(0), rand(1)
    check_twice(lambda a: op(two(a, None)), a)
    check_twice(lambda a: op(two(a, b)), a)
    check_twice(lambda b: op(two(a, b)), b)


def test_a_field_without_a_gradient() -> None:
    op = warp_op(given, "-> y", nondiff="s.b", name="structs::nondiff")
    a, b = rand(0), rand(1)
    check_twice(lambda a: op(two(a, b)), a)
    second = op.tangent.tangent
    assert "tangent_s_b" not in second.schema
    ones = torch.ones_like(a)
    y, dy, dy2, ddy = second(two(a, b), tangent_s_a=ones, tangent_tangent_s_a=ones)
    torch.testing.assert_close((y, dy, ddy), (1.5 * a * b, 1.5 * b, 1.5 * b))
    torch.testing.assert_close(dy2, torch.zeros_like(dy2))


def test_in_a_program() -> None:
    @warp_program("a[n], b[n] -> y[n]", name="structs::program")
    def through_a_struct(a: wp.array[f64], b: wp.array[f64], y: wp.array[f64]) -> None:
        s = Two()
        s.a, s.scale = a, 1.5
        if b.shape[0] > 3:
            s.b = b
        wp.launch(given, dim=a.shape[0], inputs=[s], outputs=[y], device=a.device)

    for size in (3, 4):
        a, b = rand(0)[:size], rand(1)[:size]
        check_twice(lambda a, b=b: through_a_struct(a, b), a)
        check_twice(lambda b, a=a: through_a_struct(a, b), b)
