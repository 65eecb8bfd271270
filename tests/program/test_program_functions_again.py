"""A function that a program's kernels call is defined again: what was written of those kernels before is another one's."""

from __future__ import annotations

import random
import sys

import pytest
import torch
import warp as wp

from support import close
from warpops import ArgumentError, GradientError, warp_program
from warpops.testing import bounds_checked

F = wp.array[float]
X = torch.tensor([0.3, 0.5])


@wp.func
def bent(x: F, i: int):
    return wp.sin(x[i])


def defined_again(monkeypatch, function):
    monkeypatch.setattr(sys.modules[__name__], "bent", function)
    wp.get_module(__name__).mark_modified()


def square():
    @wp.func
    def bent(x: F, i: int):
        return x[i] * x[i]

    return bent


def neighbour():
    @wp.func
    def bent(x: F, i: int):
        return x[i + 1]

    return bent


def make(unsteady: bool):
    """A program that is recorded, or whose Python runs at each call."""

    @wp.kernel
    def product(x: F, n: int, y: F):
        i = wp.tid()
        p = float(1.0)
        for _ in range(n):
            p = p * bent(x, i)
        y[i] = p

    if unsteady:

        @warp_program("x[n] -> y[n]")
        def powers(x: F, y: F):
            random.random()
            wp.launch(product, dim=x.shape, inputs=[x, 2], outputs=[y])
    else:

        @warp_program("x[n] -> y[n]")
        def powers(x: F, y: F):
            wp.launch(product, dim=x.shape, inputs=[x, 2], outputs=[y])

    assert ("runs at every call" in powers.explain()) is unsteady
    return powers


def gradient(program):
    x = X.clone().requires_grad_()
    program(x).sum().backward()
    return x.grad


def checked(program):
    with bounds_checked():
        return program(X)


WAYS = {
    "grad": gradient,
    "jvp": lambda program: torch.func.jvp(program, (X,), (torch.ones(2),)),
    "hessian": lambda program: torch.func.hessian(lambda x: program(x).sum())(X),
    "checked": checked,
}
RUNS = pytest.mark.parametrize("unsteady", [False, True], ids=["recorded", "run"])


@RUNS
@pytest.mark.parametrize("way", [pytest.param(way, id=name) for name, way in WAYS.items()])
def test_what_was_written_of_a_kernel_is_refused(way, unsteady, monkeypatch):
    program = make(unsteady)
    way(program)
    defined_again(monkeypatch, square())
    close(program(X), X**4)  # Warp builds it again
    with pytest.raises(GradientError, match="the name 'bent' in 'product' stands for something else"):
        way(program)


@RUNS
def test_another_that_leaves_the_arrays_is_refused(unsteady, monkeypatch):
    program = make(unsteady)
    for _ in range(3):
        close(program(X), torch.sin(X) ** 2)
    defined_again(monkeypatch, neighbour())
    with pytest.raises(ArgumentError, match="the name 'bent' in 'product' stands for something else"):
        program(X)
