"""Arrays that a kernel reads and writes: the adjoint gets the state that its reads mean, before the launch or after it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import warp as wp

from support import close
from warpops import GradientWarning, SignatureError, warp_op, warp_program
from warpops.effects import analyse

F = wp.array[float]

# --- kernels, and what they compute -----------------------------------------------------------------------------------


@wp.kernel
def damp(x: F, y: F, z: F):
    i = wp.tid()
    y[i] -= y[i] * wp.sin(y[i])
    z[i] = x[i]


@wp.kernel
def step(x: F, y: F, z: F):
    i = wp.tid()
    y[i] += x[i]
    z[i] = y[i] * y[i]


@wp.kernel
def branch(x: F, y: F, z: F):
    i = wp.tid()
    if x[i] > 0.5:
        y[i] = x[i] * x[i]
    z[i] = wp.sin(y[i]) * x[i]


@wp.kernel
def looped(x: F, y: F, z: F):
    i = wp.tid()
    total = float(0.0)
    for _ in range(x.shape[0]):
        total += y[i] * x[i]
    y[i] = total
    z[i] = x[i]


@wp.kernel
def product(x: F, y: F, z: F):
    i = wp.tid()
    y[i] = y[i] * x[i]
    z[i] = 2.0 * y[i]


def damped(x, y):
    return y - y * y.sin(), x


def stepped(x, y):
    return y + x, (y + x) ** 2


def branched(x, y):
    new = torch.where(x > 0.5, x * x, y)
    return new, new.sin() * x


def looping(x, y):
    return x.numel() * y * x, x


def multiplied(x, y):
    return y * x, 2.0 * y * x


SAME = [(damp, damped), (step, stepped), (branch, branched), (looped, looping), (product, multiplied)]


def inputs():
    x = torch.tensor([0.2, 0.7, 0.4, 0.9]).requires_grad_()
    return x, torch.tensor([1.1, 0.3, 0.8, 0.6]).requires_grad_()


def gradients(function, *arguments):
    return torch.autograd.grad(sum((k + 1) * r.sum() for k, r in enumerate(function(*arguments))), arguments)


@functools.cache
def as_op(kernel):
    return warp_op(kernel, "x[n], y[n] -> y[n], z[n]", dim="n", name=f"read_and_written::{kernel.key}")


@functools.cache
def as_program(kernel):
    def run(x: F, y: F, z: F):
        wp.launch(kernel, dim=x.shape, inputs=[x, y, z])

    return warp_program("x[n], y[n] -> y[n], z[n]", name=f"read_and_written::{kernel.key}_program")(run)


@pytest.mark.parametrize(("kernel", "meaning"), SAME, ids=lambda f: f.key if hasattr(f, "key") else "")
@pytest.mark.parametrize("make", [as_op, as_program])
def test_in_out_arrays(mode, make, kernel, meaning):
    call = mode(make(kernel))
    for _ in range(3):  # the third call is a remembered one
        x, y = inputs()
        for found, want in zip(call(x, y), meaning(x, y), strict=True):
            close(found, want)
        for found, want in zip(gradients(call, x, y), gradients(meaning, x, y), strict=True):
            close(found, want)


@pytest.mark.parametrize(("kernel", "meaning"), SAME[:3], ids=lambda f: f.key if hasattr(f, "key") else "")
def test_in_out_arrays_under_transforms(kernel, meaning):
    op = as_op(kernel)
    x, y = (v.detach().repeat(3, 1) * torch.tensor([[1.0], [0.5], [1.2]]) for v in inputs())

    def loss(function, x, y):
        return sum((k + 1) * r.sum() for k, r in enumerate(function(x, y)))

    for argument in (0, 1):
        found = torch.func.vmap(torch.func.grad(functools.partial(loss, op), argument))(x, y)
        want = torch.func.vmap(torch.func.grad(functools.partial(loss, meaning), argument))(x, y)
        close(found, want)


def test_what_was_written_is_saved_and_guarded():
    """Where the adjoint needs what the launch left, that is what is saved: a change of it is seen."""
    x, y = inputs()
    new, z = as_op(step)(x, y)
    new.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    assert "y: saved as the launch leaves it" in as_op(step).explain()
    assert "saved as the launch leaves it" not in as_op(damp).explain()


def test_a_backward_of_the_users_own_gets_what_was_there_before(mode):
    @wp.kernel
    def backward(y: F, x: F, grad_y: F, grad_z: F, grad_x: F):
        i = wp.tid()
        grad_y[i] = grad_y[i] + 2.0 * (y[i] + x[i]) * grad_z[i]
        grad_x[i] = grad_y[i]

    op = warp_op(step, "x[n], y[n] -> y[n], z[n]", dim="n", backward=backward, name="read_and_written::step_by_hand")
    for found, want in zip(gradients(mode(op), *inputs()), gradients(stepped, *inputs()), strict=True):
        close(found, want)


@wp.kernel
def generic_step(x: wp.array[Any], y: wp.array[Any], z: wp.array[Any]):
    i = wp.tid()
    y[i] += x[i]
    z[i] = y[i] * y[i]


@wp.struct
class State:
    y: F
    z: F


@wp.kernel
def struct_step(x: F, state: State):
    i = wp.tid()
    state.y[i] += x[i]
    state.z[i] = state.y[i] * state.y[i]


def test_generic_and_struct_arrays(mode):
    op = warp_op(generic_step, "x[n], y[n] -> y[n], z[n]", dim="n", name="read_and_written::generic_step")
    for dtype in (torch.float32, torch.float64):
        given = [v.detach().to(dtype).requires_grad_() for v in inputs()]
        for found, want in zip(gradients(mode(op), *given), gradients(stepped, *given), strict=True):
            close(found, want)
    op = warp_op(
        struct_step, "x[n], state.y[n] -> state.y[n], state.z[n]", dim="n", name="read_and_written::struct_step"
    )
    call = mode(lambda x, y: op(x, {"y": y}))
    for found, want in zip(gradients(call, *inputs()), gradients(stepped, *inputs()), strict=True):
        close(found, want)


# --- other roles ------------------------------------------------------------------------------------------------------


@wp.kernel
def first_read(x: F, u: F, z: F):
    i = wp.tid()
    z[i] = u[i] * x[i]
    u[i] = u[i] + 1.0


@wp.kernel
def then_read(x: F, u: F, z: F):
    i = wp.tid()
    u[i] = u[i] + 1.0
    z[i] = u[i] * x[i]


@pytest.mark.parametrize("transform", [False, True])
@pytest.mark.parametrize(("kernel", "added"), [(first_read, 0.0), (then_read, 1.0)])
def test_mutated_arrays(mode, kernel, added, transform):
    op = warp_op(kernel, "x -> z", mutates="u", name=f"read_and_written::mutates_{kernel.key}")
    call, (x, _) = mode(op), inputs()
    u = torch.tensor([5.0, 6.0, 7.0, 8.0])
    want = u + added
    if transform and mode.__name__ == "eager":
        found = torch.func.grad(lambda x: op(x, u).sum())(x.detach())
    else:
        z = call(x, u)
        call(x.detach(), u)  # a step later the array is another one
        (found,) = torch.autograd.grad(z.sum(), x)
    close(found, want)


@wp.kernel
def scaled(x: F, y: F):
    i = wp.tid()
    y[i] = y[i] * x[i]


def test_an_outputs_number_is_what_the_adjoint_reads(mode):
    op = warp_op(scaled, "x[n] -> y[n]", init=3.0, name="read_and_written::scaled")
    x, _ = inputs()
    close(torch.autograd.grad(mode(op)(x).sum(), x)[0], torch.full((4,), 3.0))


@wp.kernel
def through_index(x: F, at: wp.array[wp.int32], z: F):
    i = wp.tid()
    at[i] = at[i] + 1
    z[i] = x[at[i]] * x[i]


@wp.kernel
def by_index(x: F, at: wp.array[wp.int32], z: F):
    i = wp.tid()
    z[i] = x[at[i]] * x[i]
    at[i] = at[i] + 1


@wp.kernel
def ends(flag: wp.array[wp.int32], x: F, y: F):
    i = wp.tid()
    y[i] = x[i] * 2.0
    if flag[i] > 0:
        y[i] = 0.0
    flag[i] = 1 - flag[i]


@pytest.mark.parametrize(("kernel", "added"), [(through_index, 1), (by_index, 0)])
def test_indices_that_change(mode, kernel, added):
    op = warp_op(kernel, "x[n], at[n] -> at[n], z[n]", dim="n", name=f"read_and_written::{kernel.key}")
    x, _ = inputs()
    at = torch.tensor([0, 2, 1, 0], dtype=torch.int32)
    _, z = mode(op)(x, at)
    want = x[at.long() + added] * x
    close(z, want)
    close(torch.autograd.grad(z.sum(), x)[0], torch.autograd.grad(want.sum(), x)[0])


def test_conditions_that_change(mode):
    op = warp_op(ends, "flag[n], x[n] -> flag[n], y[n]", dim="n", name="read_and_written::ends")
    x, _ = inputs()
    flag = torch.tensor([0, 1, 1, 0], dtype=torch.int32)
    _, y = mode(op)(flag, x)
    close(torch.autograd.grad(y.sum(), x)[0], 2.0 * (1 - flag))


@wp.kernel
def kick(p: F, v: F, dt: float):
    i = wp.tid()
    v[i] -= dt * wp.sin(p[i]) * v[i]


@wp.kernel
def drift(p: F, v: F, dt: float):
    i = wp.tid()
    p[i] += dt * v[i] * v[i]


@warp_program("p[n], v[n] -> p[n], v[n]")
def integrate(p: F, v: F, steps: int):
    for _ in range(steps):
        wp.launch(kick, dim=p.shape, inputs=[p, v, 0.1])
        wp.launch(drift, dim=p.shape, inputs=[p, v, 0.1])


def integrated(p, v, steps):
    for _ in range(steps):
        v = v - 0.1 * p.sin() * v
        p = p + 0.1 * v * v
    return p, v


def test_a_program_of_many_steps(mode):
    call = mode(functools.partial(integrate, steps=5))
    for found, want in zip(
        gradients(call, *inputs()), gradients(functools.partial(integrated, steps=5), *inputs()), strict=True
    ):
        close(found, want)


# --- both states ------------------------------------------------------------------------------------------------------


@wp.kernel
def both(x: F, y: F, z: F):
    i = wp.tid()
    y[i] += wp.sin(y[i])
    z[i] = wp.sin(y[i]) * x[i]


@wp.kernel
def twice(x: F, y: F, z: F):
    i = wp.tid()
    y[i] = x[i] * x[i]
    z[i] = wp.sin(y[i])
    y[i] += x[i]


@wp.kernel
def powers(x: F, y: F, z: F):
    i = wp.tid()
    for j in range(x.shape[0]):
        y[i] = y[i] * x[j]
    z[i] = x[i]


@wp.kernel
def in_some_threads(x: F, y: F, z: F):
    i = wp.tid()
    if x[i] > 0.5:
        y[i] = y[i] * y[i]
    if x[i] < 0.8:
        y[i] = wp.sin(y[i]) * x[i]
    z[i] = x[i]


@wp.kernel
def two_arrays(x: F, y: F, z: F):
    i = wp.tid()
    z[i] = wp.sin(x[i])
    if x[i] > 0.6:
        z[i] = y[i] * 0.5
    y[i] = wp.sin(z[i])
    z[i] -= wp.sin(y[i])


def to_powers(x, y):
    return y * x.prod(), x


def added_to(x, y):
    new = y + y.sin()
    return new, new.sin() * x


def crossed(x, y):
    first = torch.where(x > 0.6, y * 0.5, x.sin())
    return first.sin(), first - first.sin().sin()


def now_and_then(x, y):
    first = torch.where(x > 0.5, y * y, y)
    return torch.where(x < 0.8, first.sin() * x, first), x


def stored_twice(x, y):
    first = x * x + 0.0 * y
    return first + x, first.sin()


BOTH = [
    (twice, stored_twice),
    (both, added_to),
    (powers, to_powers),
    (two_arrays, crossed),
    (in_some_threads, now_and_then),
]


@pytest.mark.parametrize("make", [as_op, as_program])
@pytest.mark.parametrize(("kernel", "meaning"), BOTH, ids=lambda f: f.key if hasattr(f, "key") else "")
def test_an_element_that_is_stored_again_is_a_variable(make, kernel, meaning):
    call = make(kernel)
    for found, want in zip(call(*inputs()), meaning(*inputs()), strict=True):
        close(found, want)
    for found, want in zip(gradients(call, *inputs()), gradients(meaning, *inputs()), strict=True):
        close(found, want)


def test_an_element_of_another_thread_is_no_variable():
    @wp.kernel
    def neighbours(x: F, y: F, z: F):
        i = wp.tid()
        y[i] += wp.sin(y[i])
        z[i] = wp.sin(y[i]) * y[(i + 1) % x.shape[0]]

    text = "'y' is (read here, and written at .*, maybe by another thread|needed both as it was)"
    with pytest.warns(GradientWarning, match=text):
        warp_op(neighbours, "x[n], y[n] -> y[n], z[n]", dim="n", name="read_and_written::neighbours")


# --- outputs that are read back ---------------------------------------------------------------------------------------


@wp.kernel
def cube_by_square(x: F, y: F, z: F):
    i = wp.tid()
    y[i] = x[i] * x[i]
    z[i] = y[i] * x[i]


@wp.kernel
def guarded(x: F, y: F, z: F):
    i = wp.tid()
    if i >= x.shape[0]:
        return
    y[i] = x[i] * x[i]
    y[i] += 1.0
    z[i] = y[i] * x[i]


@wp.kernel
def rows(x: wp.array2d[float], y: wp.array2d[float], squares: F):
    i = wp.tid()
    for j in range(y.shape[1]):
        y[i, j] = x[i, j] * x[i, j]
    total = float(0.0)
    for j in range(y.shape[1]):
        total += y[i, j] * y[i, j]
    squares[i] = total


def test_a_bare_op_returns_what_its_threads_read_back(mode):
    x, _ = inputs()
    for kernel, added in ((cube_by_square, 0.0), (guarded, 1.0)):
        op = warp_op(kernel, name=f"read_and_written::bare_{kernel.key}")
        call = mode(op)
        assert op.schema.endswith("(Tensor x) -> (Tensor, Tensor)")
        assert "surely wrote before" in op.explain()
        for found, want in zip(call(x), (x * x + added, (x * x + added) * x), strict=True):
            close(found, want)
            grads = [torch.autograd.grad(r.sum(), x, retain_graph=True)[0] for r in (found, want)]
            close(*grads)


def test_a_row_that_its_thread_filled():
    assert analyse(rows).arrays["y"].reads_own
    op = warp_op(rows, "x[n, m] -> y[n, m], squares[n]", name="read_and_written::rows")
    x = torch.rand(3, 4, requires_grad=True)
    _, squares = op(x)
    close(squares, (x**4).sum(1))
    close(torch.autograd.grad(squares.sum(), x)[0], 4 * x.detach() ** 3)


@wp.kernel
def unsure(x: F, y: F, z: F):
    i = wp.tid()
    if x[i] > 0.0:
        y[i] = x[i]
    z[i] = y[i] * x[i]


@wp.kernel
def of_others(x: F, y: F, z: F):
    i = wp.tid()
    y[i] = x[i]
    z[i] = y[(i + 1) % x.shape[0]]


@pytest.mark.parametrize("kernel", [unsure, of_others])
def test_what_a_thread_may_not_have_written_is_no_output_for_sure(kernel):
    with pytest.raises(SignatureError, match="'y' is read at"):
        warp_op(kernel)


def test_the_declaration_that_was_suggested_is_right_too():
    op = warp_op(cube_by_square, "x[n], y[n] -> y[n], z[n]", name="read_and_written::suggested")
    x, y = inputs()
    found = torch.autograd.grad(op(x, y)[1].sum(), (x, y))
    close(found[0], 3 * x.detach() ** 2)
    close(found[1], torch.zeros(4))
