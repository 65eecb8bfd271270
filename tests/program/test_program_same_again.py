"""A gradient runs the program again: where that isn't what the forward did, there is an error, never a wrong number."""

from __future__ import annotations

import functools
import math
import random
import types

import pytest
import torch
import warp as wp

from programs import blur, product, scale
from support import close, compiled, eager, leaf
from warpops import GradientError, warp_program

F = wp.array[float]
SPEED = 3.0
STATE = types.SimpleNamespace(s=3.0, count=0, steps=1, host=(1.0, 2.0, 3.0, 4.0), several=())
MODES = pytest.mark.parametrize("mode", [eager, compiled])


@wp.kernel
def times_square(x: F, s: float, y: F):
    i = wp.tid()
    y[i] = s * x[i] * x[i]


@pytest.fixture(autouse=True)
def state():
    global SPEED
    SPEED = 3.0
    STATE.s, STATE.count, STATE.steps = 3.0, 0, 1
    STATE.host = (1.0, 2.0, 3.0, 4.0)
    for made in (table, buffer, triangle):
        made()


@warp_program("x[n] -> y[n]", name="program_again::by_global")
def by_global(x: F, y: F):
    wp.launch(times_square, dim=x.shape, inputs=[x, SPEED], outputs=[y])


@warp_program("x[n] -> y[n]", name="program_again::by_attribute")
def by_attribute(x: F, y: F):
    wp.launch(times_square, dim=x.shape, inputs=[x, STATE.s], outputs=[y])


@warp_program("x[n] -> y[n]", name="program_again::counted")
def counted(x: F, y: F):
    STATE.count += 1
    wp.launch(times_square, dim=x.shape, inputs=[x, float(STATE.count)], outputs=[y])


@warp_program("x[n] -> y[n]", name="program_again::by_chance")
def by_chance(x: F, y: F):
    wp.launch(times_square, dim=x.shape, inputs=[x, random.random()], outputs=[y])


@warp_program("x[n] -> y[n]", name="program_again::by_steps", scratch="tmp[n]")
def by_steps(x: F, y: F, tmp: F):
    wp.copy(y, x)
    for _ in range(STATE.steps):
        wp.copy(tmp, y)
        wp.launch(blur, dim=x.shape, inputs=[tmp], outputs=[y])


@warp_program("x[n], w[n] -> y[n]", name="program_again::by_order")
def by_order(x: F, w: F, y: F):
    chosen = x if STATE.steps % 2 else w
    wp.launch(scale, dim=x.shape, inputs=[chosen, 2.0], outputs=[y])


def set_speed(value):
    global SPEED
    SPEED = value
    STATE.s = value


@wp.kernel
def distances(x: wp.array[wp.vec3], mesh: wp.uint64, y: F):
    i = wp.tid()
    q = wp.mesh_query_point(mesh, x[i], 1.0e6)
    y[i] = wp.length(x[i] - wp.mesh_eval_position(mesh, q.face, q.u, q.v))


@wp.kernel
def counted_up(x: F, last: F, y: F):
    i = wp.tid()
    last[i] = 2.0 * x[i]
    y[i] = last[i] * x[i]


@functools.cache
def table():
    return wp.array([1.0, 2.0, 3.0, 4.0], dtype=float)


@functools.cache
def buffer():
    return wp.zeros(4, dtype=float)


@functools.cache
def triangle():
    return wp.Mesh(wp.array([[0, 0, 0], [4, 0, 0], [0, 4, 0]], dtype=wp.vec3), wp.array([0, 1, 2], dtype=int))


@warp_program("x[n] -> y[n]", name="program_again::by_table")
def by_table(x: F, y: F):
    wp.launch(product, dim=x.shape, inputs=[x, table()], outputs=[y])


@warp_program("x[n] -> y[n]", name="program_again::by_host")
def by_host(x: F, y: F):
    wp.launch(product, dim=x.shape, inputs=[x, wp.array(STATE.host, dtype=float, device=x.device)], outputs=[y])


@warp_program("x[n] -> y[n]", name="program_again::by_mesh")
def by_mesh(x: wp.array[wp.vec3], y: F):
    wp.launch(distances, dim=x.shape, inputs=[x, triangle().id], outputs=[y])


@warp_program("x[n] -> y[n]", name="program_again::by_buffer")
def by_buffer(x: F, y: F):
    """What arrays hold that nobody reads before it is written doesn't matter."""
    between = wp.empty(x.shape, dtype=float, device=x.device)
    wp.launch(times_square, dim=x.shape, inputs=[x, 1.0], outputs=[between])
    wp.launch(counted_up, dim=x.shape, inputs=[between, buffer()], outputs=[y])


@warp_program("x[n] -> y[n]", name="program_again::by_turn")
def by_turn(x: F, y: F):
    STATE.count += 1
    wp.launch(times_square, dim=x.shape, inputs=[x, STATE.several[STATE.count - 1]], outputs=[y])


# --- another state ----------------------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("op", [by_global, by_attribute])
def test_a_state_of_each_forward(mode, op):
    run = mode(lambda x: op(x).sum())
    x = leaf(torch.ones(4))
    run(x).backward()  # the latest run is of this state, too
    for _ in range(2):
        losses = []
        for value in (1.0, 2.0, 3.0):
            set_speed(value)
            losses.append(run(x))
        close(torch.autograd.grad(losses[2], x)[0], torch.full((4,), 6.0))
        with pytest.raises(GradientError, match=r"launch of times_square, had s = 1.0, and now 3.0"):
            torch.autograd.grad(losses[0], x)
        set_speed(2.0)
        close(torch.autograd.grad(losses[1], x)[0], torch.full((4,), 4.0))


@pytest.mark.parametrize("op", [by_global, by_attribute])
def test_vjp_and_grad(op):
    x = torch.ones(4)
    _, pull = torch.func.vjp(op, x)
    set_speed(100.0)
    with pytest.raises(GradientError, match=r"had s = 3.0, and now 100.0"):
        pull(torch.ones(4))
    set_speed(3.0)
    close(pull(torch.ones(4))[0], torch.full((4,), 6.0))
    close(torch.func.grad(lambda x: op(x).sum())(x), torch.full((4,), 6.0))


@pytest.mark.parametrize("op", [by_global, by_attribute])
def test_second_derivatives(op):
    x = leaf(torch.ones(4))
    y = op(x).sum()
    set_speed(5.0)
    with pytest.raises(GradientError, match=r"had s = 3.0, and now 5.0"):
        torch.autograd.grad(y, x, create_graph=True)
    set_speed(3.0)
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    set_speed(5.0)
    with pytest.raises(GradientError, match=r"had s = 3.0, and now 5.0"):
        torch.autograd.grad(first.sum(), x, retain_graph=True)
    set_speed(3.0)
    close(torch.autograd.grad(first.sum(), x)[0], torch.full((4,), 6.0))


@MODES
@pytest.mark.parametrize("op", [counted, by_chance])
def test_a_program_that_is_never_the_same(mode, op):
    x = leaf(torch.ones(4))
    y = mode(lambda x: op(x).sum())(x)
    with pytest.raises(GradientError, match="had s = "):
        y.backward()
    with pytest.raises(GradientError, match="had s = "):
        torch.autograd.grad(op(x).sum(), x, create_graph=True)


@pytest.mark.skipif(
    not hasattr(torch._dynamo.config, "trace_autograd_ops"), reason="this torch can't trace autograd.grad"
)
@pytest.mark.parametrize("op", [counted, by_attribute])
def test_a_gradient_that_is_recorded_in_compiled_code_cannot_compare(op):
    def slope(x, create_graph):
        return torch.autograd.grad(op(x).sum(), x, create_graph=create_graph)[0]

    x = leaf(torch.ones(4))
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        with pytest.raises(Exception, match=r"can't tell whether that comes to the same: line \d+: .*STATE"):
            compiled(slope)(x, True)
        if op is counted:
            with pytest.raises(GradientError, match="had s = "):
                compiled(slope)(x, False)
        else:
            close(compiled(slope)(x, False), torch.full((4,), 6.0))


def test_other_steps_and_other_arrays():
    x, w = leaf(torch.rand(4)), leaf(torch.rand(4))
    y, z = by_steps(x).sum(), by_order(x, w).sum()
    STATE.steps = 2
    with pytest.raises(GradientError, match="it made 3 launches and calls, and now 5"):
        y.backward()
    with pytest.raises(GradientError, match=r"the launch of scale, had x = \('x', .*, and now \('w', "):
        z.backward()


def assign(value):
    table().assign([value] * 4)
    buffer().assign([value] * 4)
    STATE.host = (value,) * 4


@MODES
@pytest.mark.parametrize("op", [by_table, by_host])
def test_other_contents(mode, op):
    run = mode(lambda x: op(x).sum())
    x = leaf(torch.ones(4))
    assign(2.0)
    first, second = run(x), run(x)
    assign(3.0)
    close(torch.autograd.grad(run(x), x)[0], torch.full((4,), 3.0))
    with pytest.raises(GradientError, match=r"had the contents of \w+ = <checksum \w+>, and now <checksum"):
        torch.autograd.grad(first, x)
    assign(2.0)
    close(torch.autograd.grad(second, x)[0], torch.full((4,), 2.0))


@MODES
def test_a_mesh_that_was_refit(mode):
    x = leaf(torch.ones(1, 3))
    run = mode(lambda x: by_mesh(x).sum())
    close(torch.autograd.grad(run(x), x)[0], torch.tensor([[0.0, 0.0, 1.0]]))
    y = run(x)
    triangle().refit()
    with pytest.raises(GradientError, match=r"launch of distances, had the state of mesh = <stamp"):
        y.backward()


@MODES
def test_contents_that_are_written_first(mode):
    x = leaf(torch.ones(4))
    y = mode(lambda x: by_buffer(x).sum())(x)
    assign(7.0)
    close(torch.autograd.grad(y, x)[0], torch.full((4,), 8.0))


def test_each_slice_of_a_batch():
    x = torch.ones(3, 4)
    slope = torch.vmap(torch.func.grad(lambda x: by_turn(x).sum()))
    STATE.several = (1.0, 2.0, 3.0) * 2
    close(slope(x), 2 * torch.tensor([1.0, 2.0, 3.0])[:, None].expand(3, 4))
    STATE.count, STATE.several = 0, (1.0, 2.0, 3.0, 1.0, 9.0, 3.0)
    with pytest.raises(GradientError, match="its step 2, the launch of times_square, had s = 2.0, and now 9.0"):
        slope(x)
    STATE.count, STATE.several = 0, (2.0,) * 5
    close(torch.func.jacrev(by_turn)(x[0]), 4 * torch.eye(4))


# --- the same state ---------------------------------------------------------------------------------------------------


@warp_program("x[n] -> y[n], z[n]", name="program_again::own_memory", scratch="tmp[n]")
def own_memory(x: F, y: F, z: F, tmp: F, count: int, s: float):
    """Memory that is freed while it runs, objects of its own, views, and state that is read."""
    STATE.count += 1
    for _ in range(count):
        mine = wp.full(x.shape[0], s, dtype=float, device=x.device)
        wp.launch(product, dim=x.shape, inputs=[x, mine], outputs=[tmp])
        del mine
        wp.HashGrid(4, 4, 4, device=x.device)
    wp.copy(y[1:], tmp[1:])
    wp.launch(times_square, dim=x.shape, inputs=[x, STATE.s], outputs=[z])


@MODES
def test_the_same_is_never_refused(mode):
    def both(x, s):
        y, z = own_memory(x, count=3, s=s)
        return y.sum() + (own_memory(x * 2.0, count=2, s=2.0 * s)[1] * z).sum() + by_global(by_attribute(x)).sum()

    run = mode(both)
    for n, s in ((4, 1.0), (5, float("nan")), (4, -0.0), (4, 1.0)):
        x = leaf(torch.rand(n))
        run(x, s).backward()
        if math.isnan(s):
            continue
        want = leaf(x.detach())
        squares = 3.0 * want * want
        ((want[1:] * s).sum() + (4.0 * squares * squares).sum() + (3.0 * squares * squares).sum()).backward()
        close(x.grad, want.grad)


def test_one_tensor_given_twice_and_others_in_between():
    x = leaf(torch.rand(4))
    losses = [by_order(x, x).sum() for _ in range(3)]
    own_memory(torch.rand(7), count=1, s=1.0)
    for loss in reversed(losses):
        close(torch.autograd.grad(loss, x)[0], torch.full((4,), 2.0))


def test_vmap_and_forward_mode_of_the_same():
    x = torch.rand(3, 4)
    close(torch.vmap(torch.func.grad(lambda x: by_attribute(x).sum()))(x), 6 * x)
    close(torch.func.jacrev(lambda x: by_attribute(x).sum())(x[0]), 6 * x[0])
    close(torch.func.hessian(lambda x: by_attribute(x).sum())(x[0]), 6 * torch.eye(4))
    close(torch.func.jvp(by_global, (x[0],), (torch.ones(4),))[1], 6 * x[0])
