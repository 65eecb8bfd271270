"""``wp.frac``, ``wp.mod`` and ``%``: the adjoint launch runs them written so that Warp differentiates them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import warp as wp

from support import close
from warpops import WarpOp, warp_op

Tensors = tuple[torch.Tensor, torch.Tensor]


@wp.func
def wrapped(a: wp.float64, period: wp.float64):
    return a - period * wp.float64(0.5) + wp.mod(a, period)


@wp.kernel
def of_fraction(x: wp.array[wp.float64], p: wp.array[wp.float64], y: wp.array[wp.float64]):
    i = wp.tid()
    y[i] = wp.frac(x[i] * p[i]) * x[i]


@wp.kernel
def of_operator(x: wp.array[wp.float64], p: wp.array[wp.float64], y: wp.array[wp.float64]):
    i = wp.tid()
    if i % 2 == 0:
        y[i] = (x[i] * x[i]) % p[i] + x[(i + 1) % x.shape[0]]
    else:
        t = x[i]
        t %= p[i]
        y[i] = t * t


@wp.kernel
def of_function(x: wp.array[wp.float64], p: wp.array[wp.float64], y: wp.array[wp.float64]):
    i = wp.tid()
    y[i] = wrapped(x[i] * x[i], p[i])


@wp.kernel
def of_vectors(x: wp.array[wp.float64], p: wp.array[wp.float64], y: wp.array[wp.float64]):
    i = wp.tid()
    v = wp.vec2d(x[i], x[i] * x[i]) % wp.vec2d(p[i], wp.float64(0.7))
    y[i] = v[0] * v[1]


@wp.kernel
def of_loop(x: wp.array[wp.float64], p: wp.array[wp.float64], y: wp.array[wp.float64]):
    i = wp.tid()
    s = x[i]
    for k in range(x.shape[0]):
        s = (s * x[k]) % p[i]
    y[i] = s * s


def fraction(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return (x * p - (x * p).trunc()) * x


def mod(a: torch.Tensor, b: torch.Tensor | float) -> torch.Tensor:
    return torch.fmod(a, b)


def operator(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    even = torch.arange(len(x)) % 2 == 0
    return torch.where(even, mod(x * x, p) + x.roll(-1), mod(x, p) ** 2)


def loop(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    s = x
    for k in range(len(x)):
        s = mod(s * x[k], p)
    return s * s


CASES: dict[str, tuple[wp.Kernel, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "fraction": (of_fraction, fraction),
    "operator": (of_operator, operator),
    "function": (of_function, lambda x, p: x * x - p * 0.5 + mod(x * x, p)),
    "vectors": (of_vectors, lambda x, p: mod(x, p) * mod(x * x, 0.7)),
    "loop": (of_loop, loop),
}


def inputs() -> Tensors:
    x = torch.tensor([2.3, -1.9, 1.7, 3.1, -2.6], dtype=torch.float64, requires_grad=True)
    p = torch.tensor([0.9, 0.8, 1.3, -0.7, 1.1], dtype=torch.float64, requires_grad=True)
    return x, p


def silent(kernel: wp.Kernel) -> WarpOp:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return warp_op(kernel, "x[n], p[n] -> y[n]", dim="n")


@pytest.mark.parametrize("name", CASES)
def test_a_remainder_has_its_gradient(name: str) -> None:
    kernel, reference = CASES[name]
    op = silent(kernel)
    x, p = inputs()
    weights = torch.linspace(0.5, 1.5, 5, dtype=torch.float64)
    got = op(x, p)
    want = reference(x, p)
    close(got, want)
    for ours, theirs in zip(
        torch.autograd.grad((got * weights).sum(), (x, p)),
        torch.autograd.grad((want * weights).sum(), (x, p)),
        strict=True,
    ):
        close(ours, theirs)


def test_the_reason_is_told() -> None:
    text = silent(of_fraction).explain()
    assert "fractions and remainders are written with wp.trunc" in " ".join(text.split())
