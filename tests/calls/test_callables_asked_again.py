"""Callables for ``dim`` and ``shapes``, which the backward asks again, where what they read besides their arguments changed."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import INDUCTOR, close, compiled, eager
from warpops import ArgumentError, GradientError, warp_op

Array = wp.array[float]
now = {"threads": 3, "size": 4}


@warp_op("x[n] -> y[n]", dim=lambda x: now["threads"])
@wp.kernel
def doubled(x: Array, y: Array):
    i = wp.tid()
    y[i] = 2.0 * x[i]


@warp_op(shapes={"y": lambda x: now["size"]}, dim=4)
@wp.kernel
def squares_of_first(x: Array, y: Array):
    i = wp.tid()
    y[i] = x[0] * x[0]


@warp_op("x[n] -> y[n], extra[n * want]", sizes="want", optional="extra", dim=lambda **given: (now["threads"],))
@wp.kernel
def doubled_and_more(x: Array, y: Array, extra: Array):
    i = wp.tid()
    y[i] = 2.0 * x[i]
    if extra:
        extra[i] = 3.0 * x[i]


@pytest.fixture(autouse=True)
def restored():
    before = dict(now)
    yield
    now.update(before)


def mapped(op):
    return lambda x: torch.vmap(op)(x[None])[0]


WAYS = [eager, compiled, INDUCTOR, mapped]


@pytest.mark.parametrize("way", WAYS)
def test_another_launch_size_is_refused(way):
    x = torch.arange(5.0).requires_grad_()
    y = way(doubled)(x)
    now["threads"] = 2
    with pytest.raises(
        GradientError, match=r"the callable for dim again, which gave .*3.* in the forward, and gives .*2.* now"
    ):
        torch.autograd.grad(y.sum(), x, retain_graph=True)
    now["threads"] = 1_000_000  # nothing is launched that leaves the arrays
    with pytest.raises(ArgumentError, match="1000000 threads"):
        torch.autograd.grad(y.sum(), x, retain_graph=True)
    now["threads"] = 3
    close(torch.autograd.grad(y.sum(), x)[0], torch.tensor([2.0, 2.0, 2.0, 0.0, 0.0]))


@pytest.mark.parametrize("way", WAYS)
def test_another_shape_is_refused(way):
    x = torch.arange(1.0, 5.0).requires_grad_()
    y = way(squares_of_first)(x)
    now["size"] = 1_000_000
    with pytest.raises(ArgumentError, match="the shape of 'y': its callable gives"):
        torch.autograd.grad(y.sum(), x, retain_graph=True)
    now["size"] = 4
    close(torch.autograd.grad(y.sum(), x)[0], torch.tensor([8.0, 0.0, 0.0, 0.0]))


@pytest.mark.parametrize("want", [0, 1])
def test_of_an_output_that_may_be_left_out(want):
    x = torch.arange(5.0).requires_grad_()
    results = doubled_and_more(x, want)
    loss = sum(y.sum() for y in results)
    now["threads"] = 6
    with pytest.raises(ArgumentError, match="6 threads"):
        torch.autograd.grad(loss, x, retain_graph=True)
    now["threads"] = 3
    close(torch.autograd.grad(loss, x)[0], (2.0 + 3.0 * want) * torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0]))


def test_a_second_derivative_compares_too():
    x = torch.arange(1.0, 6.0).requires_grad_()
    (g,) = torch.autograd.grad((doubled(x) ** 2).sum(), x, create_graph=True)
    close(torch.autograd.grad(g.sum(), x, retain_graph=True)[0], torch.tensor([8.0, 8.0, 8.0, 0.0, 0.0]))
    now["threads"] = 2
    with pytest.raises(GradientError, match="the callable for dim"):
        torch.autograd.grad(g.sum(), x)


def test_between_two_forwards_it_may_change():
    for threads in (1, 4):
        now["threads"] = threads
        x = torch.ones(5, requires_grad=True)
        doubled(x).sum().backward()
        close(x.grad, torch.tensor([2.0] * threads + [0.0] * (5 - threads)))


@pytest.mark.parametrize("transform", [torch.func.jacrev, torch.func.jacfwd], ids=["jacrev", "jacfwd"])
def test_a_batched_gradient_asks_of_one_element(transform):
    x = torch.arange(5.0)
    close(transform(doubled)(x), torch.diag(torch.tensor([2.0, 2.0, 2.0, 0.0, 0.0])))
    close(torch.func.vmap(transform(doubled))(x.expand(3, 5))[1], torch.diag(torch.tensor([2.0, 2.0, 2.0, 0.0, 0.0])))


@warp_op("x[n] -> y[n], extra", shapes={"extra": lambda x: x.shape[0] if now["size"] else 0}, dim="n", optional="extra")
@wp.kernel
def squares_and_cubes(x: Array, y: Array, extra: Array):
    i = wp.tid()
    y[i] = x[i] * x[i]
    if extra:
        extra[i] = x[i] * x[i] * x[i]


@pytest.mark.parametrize("late", [False, True])
def test_a_second_derivative_of_what_came_to_be_left_out(late):
    x = torch.arange(1.0, 5.0).requires_grad_()
    loss = sum(y.sum() for y in squares_and_cubes(x))
    now["size"] = 4 if late else 0
    (g,) = torch.autograd.grad(loss, x, create_graph=True)
    close(g, 2.0 * x + 3.0 * x**2)
    now["size"] = 0
    with pytest.raises(ArgumentError, match="its callable gives"):
        torch.autograd.grad(g.sum(), x, retain_graph=True)
    now["size"] = 4
    close(torch.autograd.grad(g.sum(), x)[0], 2.0 + 6.0 * x)


sizes: list[int] = []


@warp_op("x[n] -> z", shapes={"z": lambda x: sizes.pop(0)}, dim="n")
@wp.kernel
def squares_in_turn(x: Array, z: Array):
    i = wp.tid()
    for k in range(z.shape[0]):
        if k % x.shape[0] == i:
            z[k] = x[i] * x[i]


@pytest.mark.parametrize("first", [3, 7])
def test_a_result_and_its_tangent_are_asked_for_once(first):
    """Else the launch would store past the end of the smaller."""
    x = torch.arange(1.0, 6.0)
    want = x.repeat(2)[:first]
    sizes[:] = [first, 5, 5]
    z, tangent_z = squares_in_turn.tangent(x, tangent_x=torch.ones(5))
    close(z, want**2)
    close(tangent_z, 2.0 * want)
    sizes[:] = [first, 5, 5]
    z, tangent_z = torch.func.jvp(squares_in_turn, (x,), (torch.ones(5),))
    close(z, want**2)
    close(tangent_z, 2.0 * want)


@warp_op("x[n] -> y", shapes={"y": lambda x: now["size"]}, dim="n", init=-1e30)
@wp.kernel
def largest(x: Array, y: Array):
    i = wp.tid()
    wp.atomic_max(y, i % 2, x[i])


def test_the_tangent_of_a_maximum_has_the_size_that_it_has():
    x = torch.tensor([3.0, 1.0, 2.0, 5.0], requires_grad=True)
    now["size"] = 2
    (g,) = torch.autograd.grad((largest(x) ** 2).sum(), x, create_graph=True)
    now["size"] = 1
    close(torch.autograd.grad(g.sum(), x)[0], torch.tensor([2.0, 0.0, 0.0, 2.0]))
