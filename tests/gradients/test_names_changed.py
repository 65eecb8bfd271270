"""Names of a kernel that come to stand for something else: what is written of the kernel later would be another one's."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import warp as wp

from support import close
from warpops import ArgumentError, GradientError, warp_op

FACTOR = 3.0
TURNS = 0
AHEAD = 0
SCALES = wp.vec3(1.0, 2.0, 3.0)
TABLE = [1.0, 2.0]


def make():
    """An op that reads a number and a function from outside, and whose adjoint is written anew."""

    @wp.kernel
    def scaled(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        s = x[i]
        for _ in range(x.shape[0]):
            s = bent(s) * FACTOR
        y[i] = s

    return warp_op(scaled)


@wp.func
def bent(v: float):
    return wp.sin(v)


def bend_otherwise():
    @wp.func
    def bent(v: float):
        return v * v

    return bent


X = torch.tensor([0.3, 0.5])


def gradient(op):
    x = X.clone().requires_grad_()
    op(x).sum().backward()
    return x.grad


WAYS = {
    "grad": gradient,
    "jvp": lambda op: torch.func.jvp(op, (X,), (torch.ones(2),))[1],
    "vmap": lambda op: torch.vmap(op)(X[None])[0],
}
BY_NAME = [pytest.param(way, id=name) for name, way in WAYS.items()]


@pytest.mark.parametrize("way", BY_NAME)
def test_a_number_changed_after_the_kernel_was_built(way, monkeypatch):
    op = make()
    before = op(X)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 5.0)
    close(op(X), before)  # Warp doesn't build it again
    with pytest.raises(GradientError, match=r"the name 'FACTOR' in 'scaled' .* it was 3\.0, and is 5\.0"):
        way(op)


@pytest.mark.parametrize("way", BY_NAME)
def test_a_number_changed_before_the_kernel_was_built_counts(way, monkeypatch):
    op = make()
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 5.0)
    found = way(op)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 5.0 + 0.0)  # another object, the same number
    close(way(op), found)
    s, slope = X, torch.ones(2)
    for _ in range(2):
        s, slope = torch.sin(s) * 5.0, slope * torch.cos(s) * 5.0
    close(found, s if way is WAYS["vmap"] else slope)


@pytest.mark.parametrize("way", BY_NAME)
def test_a_function_defined_again_after_the_kernel_was_written_anew(way, monkeypatch):
    op = make()
    way(op)
    monkeypatch.setattr(sys.modules[__name__], "bent", bend_otherwise())
    wp.get_module(__name__).mark_modified()
    close(op(X), ((X**2 * FACTOR) ** 2) * FACTOR)  # Warp builds it again
    with pytest.raises(GradientError, match="the name 'bent' in 'scaled' stands for something else"):
        way(op)


def test_the_kernels_own_adjoint_follows(monkeypatch):
    @wp.kernel
    def plain(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = bent(x[i]) * FACTOR

    op = warp_op(plain)
    close(gradient(op), torch.cos(X) * FACTOR)
    monkeypatch.setattr(sys.modules[__name__], "bent", bend_otherwise())
    wp.get_module(__name__).mark_modified()
    close(gradient(op), 2.0 * FACTOR * X)


def in_a_closure(factor):
    @wp.kernel(module="unique")
    def scaled(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        s = x[i]
        for _ in range(x.shape[0]):
            s = s * x[i] * factor
        y[i] = s

    def change():
        nonlocal factor
        factor = 5.0

    return warp_op(scaled), change, lambda x: x**3 * 9.0


def in_a_vector(factor):
    @wp.kernel(module="unique")
    def scaled(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        s = x[i]
        for _ in range(x.shape[0]):
            s = s * x[i] * SCALES[1]
        y[i] = s

    def change():
        SCALES[1] = 5.0

    return warp_op(scaled), change, lambda x: x**3 * 4.0


def in_a_list(factor):
    @wp.kernel(module="unique")
    def scaled(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        s = x[i]
        for _ in range(x.shape[0]):
            for k in range(2):
                s = s * x[i] * wp.static(TABLE[k])
        y[i] = s

    def change():
        TABLE[0] = 5.0

    return warp_op(scaled), change, lambda x: x**5 * 4.0


@pytest.mark.parametrize("holding", [in_a_closure, in_a_vector, in_a_list])
def test_what_changes_and_isnt_a_global(holding, monkeypatch):
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "SCALES", wp.vec3(1.0, 2.0, 3.0))
    monkeypatch.setattr(module, "TABLE", [1.0, 2.0])
    op, change, expected = holding(3.0)
    close(op(X), expected(X))
    change()
    close(op(X), expected(X))
    for way in WAYS.values():
        with pytest.raises(GradientError, match="in 'scaled' stands for something else than when the kernel was built"):
            way(op)


def branched():
    @wp.kernel(module="unique")
    def raised(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        s = x[i]
        if TURNS:
            for _ in range(TURNS * x.shape[0]):
                s = s * x[i]
        y[i] = s

    return warp_op(raised)


def branched_of_any():
    @wp.kernel(module="unique")
    def raised(x: wp.array[Any], y: wp.array[Any]):
        i = wp.tid()
        s = x[i]
        if TURNS:
            for _ in range(TURNS * x.shape[0]):
                s = s * x[i]
        y[i] = s

    return warp_op(raised)


def moved():
    @wp.kernel(module="unique")
    def moved(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i + AHEAD] = x[i]

    return warp_op(moved)


@pytest.mark.parametrize("make", [branched, branched_of_any, moved])
def test_another_kernel_than_was_decorated(make, monkeypatch):
    """A gradient that was decided without the loop, and a store past the end of what was allocated."""
    op = make()
    monkeypatch.setattr(sys.modules[__name__], "TURNS", 1)
    monkeypatch.setattr(sys.modules[__name__], "AHEAD", 1)
    with pytest.raises(ArgumentError, match=r"than when the kernel was decorated: it was 0, and is 1; define"):
        op(X)
    monkeypatch.setattr(sys.modules[__name__], "TURNS", 0)
    monkeypatch.setattr(sys.modules[__name__], "AHEAD", 0)
    close(op(X), X)


def test_a_function_defined_again_at_another_line_before_the_kernel_was_built(monkeypatch):
    op = make()
    monkeypatch.setattr(sys.modules[__name__], "bent", bend_otherwise())
    close(op(X), ((X**2 * FACTOR) ** 2) * FACTOR)
    close(gradient(op), 4.0 * X**3 * FACTOR**3)


def test_a_loop_that_isnt_unrolled_any_more():
    @wp.kernel(module="unique")
    def powers(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        s = float(1.0)
        for _ in range(3):
            s = s * x[i]
        y[i] = s

    op = warp_op(powers)
    powers.module.options["max_unroll"] = 0
    with pytest.raises(ArgumentError, match=r"'max_unroll' in 'powers' .*: it was 16, and is 0"):
        op(X)
