"""What Warp's adjoint launch does by itself, without warpops: the measurements that the design rests on.

*Explicit*: gradient buffers go in as ``adj_inputs`` and ``adj_outputs`` only. *Attached*: the forward arrays carry them
in ``grad`` too. A Warp that behaves differently fails here first, and says which row of the design to look at again.
"""

from __future__ import annotations

import numpy as np
import pytest
import warp as wp


@wp.kernel
def through_row(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    row = x[i]
    y[i] = row[0] * 5.0


@wp.kernel
def through_alias(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    same = x
    y[i] = same[i] * 5.0


@wp.kernel
def through_slice(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    part = x[i, 0:2]
    y[i] = part[0] * 5.0


@wp.kernel
def twice(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i]
    if x[i] > 0.0:
        y[i] = 2.0 * x[i]


@wp.kernel
def in_loop(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    for _ in range(4):
        y[i] = 3.0 * x[i]


@wp.kernel
def in_place(y: wp.array[float], s: wp.array[float]):
    i = wp.tid()
    y[i] = y[i] * s[i]


@wp.struct
class Body:
    x: wp.array[float]


@wp.kernel
def through_struct(body: Body, y: wp.array[float]):
    i = wp.tid()
    y[i] = body.x[i] * 5.0


@wp.kernel
def plain(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * 5.0


@wp.kernel
def grid(x: wp.array2d[float], y: wp.array2d[float]):
    i, j = wp.tid()
    wp.atomic_add(y, i, j, x[i, j])


@wp.kernel
def peak(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_max(y, 0, x[i])


@wp.kernel
def store_number(n: int, y: wp.array[wp.int64]):
    y[wp.tid()] = wp.int64(n)


@pytest.fixture(autouse=True, scope="module")
def initialised():
    wp.init()


def array(values):
    return wp.array(np.asarray(values, dtype=np.float32), dtype=float, device="cpu")


def gradient(kernel, x, attached, cotangent=(1.0, 1.0)):
    """The gradient of ``kernel``'s first array, and what is left of the cotangent."""
    x, y, grad_y = array(x), array([0.0] * len(cotangent)), array(cotangent)
    grad_x = wp.zeros_like(x)
    if attached:
        x.grad, y.grad = grad_x, grad_y
    wp.launch(kernel, dim=2, inputs=[x], outputs=[y], device="cpu")
    wp.launch(
        kernel, dim=2, inputs=[x], outputs=[y], adj_inputs=[grad_x], adj_outputs=[grad_y], adjoint=True, device="cpu"
    )
    return grad_x.numpy().tolist(), grad_y.numpy().tolist()


ROWS, COLUMN = [[1.0, 2.0], [3.0, 4.0]], [1.0, 2.0]


@pytest.mark.parametrize(
    ("kernel", "x", "explicit", "attached"),
    [
        (through_row, ROWS, [[0, 0], [0, 0]], [[5, 0], [5, 0]]),
        (through_slice, ROWS, [[0, 0], [0, 0]], [[5, 0], [5, 0]]),
        (twice, COLUMN, [3, 3], [2, 2]),
        (in_loop, COLUMN, [12, 12], [3, 3]),
        (plain, COLUMN, [5, 5], [5, 5]),
    ],
    ids=lambda v: getattr(v, "key", None),
)
def test_explicit_loses_what_attached_keeps(kernel, x, explicit, attached):
    assert gradient(kernel, x, attached=False)[0] == explicit
    assert gradient(kernel, x, attached=True)[0] == attached


def test_an_alias_needs_attached_buffers():
    assert gradient(through_alias, COLUMN, attached=True)[0] == [5, 5]


@pytest.mark.parametrize(("attached", "want"), [(False, [4.0, 6.0]), (True, [3.0, 5.0])])
def test_in_place_update(attached, want):
    y, s, grad = array([1.0, 2.0]), array([3.0, 5.0]), array([1.0, 1.0])
    if attached:
        y.grad = grad
    wp.launch(in_place, dim=2, inputs=[y, s], adj_inputs=[grad, wp.zeros_like(s)], adjoint=True, device="cpu")
    assert grad.numpy().tolist() == want


@pytest.mark.parametrize(("attached", "want"), [(False, [0.0, 0.0]), (True, [5.0, 5.0])])
def test_struct_of_arrays(attached, want):
    body, other, y, grad_y = Body(), Body(), array([0.0, 0.0]), array([1.0, 1.0])
    x, grad = array([1.0, 2.0]), array([0.0, 0.0])
    if attached:
        x.grad, y.grad = grad, grad_y
    body.x, other.x = x, grad
    wp.launch(
        through_struct,
        dim=2,
        inputs=[body],
        outputs=[y],
        adj_inputs=[other],
        adj_outputs=[grad_y],
        adjoint=True,
        device="cpu",
    )
    assert grad.numpy().tolist() == want


def test_an_attached_cotangent_is_consumed():
    assert gradient(plain, COLUMN, attached=False)[1] == [1, 1]
    assert gradient(plain, COLUMN, attached=True)[1] == [0, 0]


def test_input_adjoints_are_accumulated_into():
    x, y, grad_x, grad_y = array([1.0, 2.0]), array([0.0, 0.0]), array([10.0, 10.0]), array([1.0, 1.0])
    wp.launch(
        plain, dim=2, inputs=[x], outputs=[y], adj_inputs=[grad_x], adj_outputs=[grad_y], adjoint=True, device="cpu"
    )
    assert grad_x.numpy().tolist() == [15, 15]


def test_every_winner_of_a_tie_gets_the_whole_gradient():
    x, y, grad_x, grad_y = array([3.0, 3.0]), array([3.0]), array([0.0, 0.0]), array([1.0])
    x.grad, y.grad = grad_x, grad_y
    wp.launch(
        peak, dim=2, inputs=[x], outputs=[y], adj_inputs=[grad_x], adj_outputs=[grad_y], adjoint=True, device="cpu"
    )
    assert grad_x.numpy().tolist() == [1, 1]


def test_the_launch_rank_is_not_checked():
    x, y = array(ROWS), wp.zeros((2, 2), dtype=float, device="cpu")
    wp.launch(grid, dim=(2, 2, 3), inputs=[x, y], device="cpu")
    assert y.numpy().tolist() == [[3, 6], [9, 12]], "every thread ran three times"


def test_a_launch_goes_onto_an_active_tape_unless_told_otherwise():
    x, y = array(COLUMN), array([0.0, 0.0])
    with wp.Tape() as tape:
        wp.launch(plain, dim=2, inputs=[x, y], device="cpu", record_tape=False)
        assert not tape.launches
        wp.launch(plain, dim=2, inputs=[x, y], device="cpu")
        assert len(tape.launches) == 1


def test_a_large_number_wraps_without_a_word():
    y = wp.zeros(1, dtype=wp.int64, device="cpu")
    wp.launch(store_number, dim=1, inputs=[2**40 + 7, y], device="cpu")
    assert y.numpy().tolist() == [7]
