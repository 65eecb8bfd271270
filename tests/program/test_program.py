"""``warp_program``: several launches as one op, with gradients through everything that the program does."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import warp as wp

from programs import (
    Pair,
    accumulate,
    advance,
    blur,
    blur_reference,
    blur_twice,
    combine,
    divide,
    gather,
    generic_square,
    ping_pong,
    ping_pong64,
    product,
    row_step,
    scale,
    shift,
    square_in_place,
)
from support import check_against, close, inductor, leaf
from warpops import GradientWarning, warp_program


def test_two_launches(mode, x):
    check_against(mode(blur_twice), blur_reference, [x])


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_overwritten_buffers(mode, x, steps):
    check_against(mode(lambda x: ping_pong(x, steps)), lambda x: blur_reference(x, steps), [x])


def test_gradcheck():
    x = torch.rand(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ping_pong64, (x,))


@pytest.mark.slow
def test_inductor(x):
    check_against(inductor(blur_twice), blur_reference, [x])


def test_layouts():
    wide = torch.rand(6, 2)
    check_against(lambda t: blur_twice(t[:, 0]), lambda t: blur_reference(t[:, 0]), [wide])
    check_against(lambda t: blur_twice(t.expand(6)), lambda t: blur_reference(t.expand(6)), [torch.rand(1)])
    assert blur_twice(torch.rand(0)).shape == (0,)
    close(blur_twice(torch._neg_view(wide[:, 0])), blur_reference(-wide[:, 0]))


def test_in_place_update(mode, x):
    @warp_program("x[n] -> y[n]")
    def powers(x: wp.array[float], y: wp.array[float]):
        wp.copy(y, x)
        for _ in range(3):
            wp.launch(square_in_place, dim=y.shape, inputs=[y])

    check_against(mode(powers), lambda x: x**8, [x])


def test_in_out(mode, x):
    @warp_program("y[n], w[n] -> y[n]", scratch="tmp[n]")
    def reweigh(y: wp.array[float], w: wp.array[float], tmp: wp.array[float]):
        wp.launch(product, dim=y.shape, inputs=[y, w], outputs=[tmp])
        wp.launch(product, dim=y.shape, inputs=[tmp, y], outputs=[y])

    before = x.clone()
    check_against(mode(reweigh), lambda y, w: y * w * y, [x, torch.rand(6)])
    assert torch.equal(x, before)


def test_atomics_and_a_result_per_step(mode, x):
    @warp_program("x[n] -> y[n], total[1]")
    def normalise(x: wp.array[float], y: wp.array[float], total: wp.array[float]):
        wp.launch(accumulate, dim=x.shape, inputs=[x], outputs=[total])
        wp.launch(divide, dim=x.shape, inputs=[x, total], outputs=[y])

    def reference(x):
        total = (x * x).sum().reshape(1)
        return x / total, total

    check_against(mode(normalise), reference, [x])


def test_branches_over_numbers(mode, x):
    @warp_program("x[n] -> y[n]", scratch="tmp[n]")
    def maybe(x: wp.array[float], y: wp.array[float], tmp: wp.array[float], s: float, twice: bool):
        wp.launch(scale, dim=x.shape, inputs=[x, s], outputs=[tmp])
        if twice:
            wp.launch(blur, dim=x.shape, inputs=[tmp], outputs=[y])
        else:
            wp.launch(scale, dim=x.shape, inputs=[tmp, 3.0], outputs=[y])

    for twice in (True, False):
        check_against(
            mode(lambda x, twice=twice: maybe(x, 0.5, twice)),
            lambda x, twice=twice: blur_reference(0.5 * x, 1) if twice else 1.5 * x,
            [x],
        )


def test_vectors_and_values(mode):
    @warp_program("p[n], v[n] -> q[n]")
    def drift(p: wp.array[wp.vec3], v: wp.array[wp.vec3], dt: float, pull: wp.vec3, q: wp.array[wp.vec3]):
        wp.launch(advance, dim=p.shape, inputs=[p, v, dt, pull], outputs=[q])
        wp.launch(advance, dim=p.shape, inputs=[q, v, dt, pull], outputs=[q])

    def step(p, v):
        return p + 0.1 * (v - (p * p).sum(-1, keepdim=True) * torch.tensor([1.0, 2.0, 3.0]))

    check_against(
        mode(lambda p, v: drift(p, v, 0.1, (1.0, 2.0, 3.0))),
        lambda p, v: step(step(p, v), v),
        [torch.rand(4, 3), torch.rand(4, 3)],
    )


def test_rows_of_one_array(mode):
    """Views of one output: each step reads one row and writes the next."""

    @warp_program("x[n] -> u[5, n]")
    def trajectory(x: wp.array[float], u: wp.array2d[float]):
        wp.copy(u[0], x)
        for t in range(4):
            wp.launch(row_step, dim=x.shape, inputs=[u[t]], outputs=[u[t + 1]])

    def reference(x):
        rows = [x]
        for _ in range(4):
            rows.append(rows[-1].sin() + rows[-1] ** 2)
        return torch.stack(rows)

    check_against(mode(trajectory), reference, [torch.rand(3)])


def test_columns_are_strided_views():
    @warp_program("x[n, 3] -> y[n]", scratch="tmp[n]")
    def columns(x: wp.array2d[float], y: wp.array[float], tmp: wp.array[float]):
        wp.launch(product, dim=y.shape, inputs=[x[:, 0], x[:, 1]], outputs=[tmp])
        wp.launch(product, dim=y.shape, inputs=[x[:, 2], tmp], outputs=[y])

    check_against(columns, lambda x: x.prod(1), [torch.rand(4, 3)])


def test_index_arrays_that_change(x):
    """An int array is overwritten between two launches that read it: each adjoint sees its own indices."""

    @warp_program("x[n], start[n] -> y[n]", scratch="index[n], tmp[n]")
    def walk(x: wp.array[float], start: wp.array[int], y: wp.array[float], index: wp.array[int], tmp: wp.array[float]):
        wp.copy(index, start)
        wp.launch(gather, dim=x.shape, inputs=[x, index], outputs=[tmp])
        wp.launch(shift, dim=x.shape, inputs=[index, 2])
        wp.launch(gather, dim=x.shape, inputs=[tmp, index], outputs=[y])

    start = torch.tensor([3, 0, 1, 5, 2, 4], dtype=torch.int32)

    def reference(x):
        tmp = x[start.long()] ** 2
        return tmp[((start + 2) % 6).long()] ** 2

    check_against(lambda x: walk(x, start), reference, [x])


def test_struct_arguments(mode, x):
    @warp_program("pair.a[n], pair.b[n] -> y[n]", scratch="tmp[n]")
    def through_struct(pair: Pair, y: wp.array[float], tmp: wp.array[float]):
        wp.launch(combine, dim=y.shape, inputs=[pair], outputs=[tmp])
        again = Pair()
        again.a, again.b, again.s = tmp, pair.b, 2.0
        wp.launch(combine, dim=y.shape, inputs=[again], outputs=[y])

    check_against(
        mode(lambda a, b: through_struct({"a": a, "b": b, "s": 0.5})),
        lambda a, b: a * b * 0.5 * b * 2.0,
        [x, torch.rand(6)],
    )


def test_generic_programs():
    @warp_program("x[n] -> y[n]", scratch="tmp[n]")
    def fourth(x: wp.array[Any], y: wp.array[Any], tmp: wp.array[Any]):
        wp.launch(generic_square, dim=x.shape, inputs=[x], outputs=[tmp])
        wp.launch(generic_square, dim=x.shape, inputs=[tmp], outputs=[y])

    for dtype in (torch.float32, torch.float64):
        check_against(fourth, lambda x: x**4, [torch.rand(4, dtype=dtype)])


def test_options(mode, x):
    @warp_program("x[n], w[n] -> y[n + extra]", sizes="extra", optional="w", nondiff="w", init=1.5)
    def padded(x: wp.array[float], w: wp.array[float] = None, y: wp.array[float] = None):
        if w is None:
            wp.launch(scale, dim=x.shape, inputs=[x, 2.0], outputs=[y])
        else:
            wp.launch(product, dim=x.shape, inputs=[x, w], outputs=[y])

    w = torch.rand(6)
    tail = torch.full((2,), 1.5)
    run = mode(lambda x, w: padded(x, w, extra=2))
    check_against(lambda x: run(x, None), lambda x: torch.cat([2.0 * x, tail]), [x])
    check_against(lambda x: run(x, w), lambda x: torch.cat([w * x, tail]), [x])


def test_mutated_arrays(x):
    @warp_program("x[n] -> y[n]", mutates="state")
    def step(x: wp.array[float], state: wp.array[float], y: wp.array[float]):
        wp.launch(product, dim=x.shape, inputs=[x, state], outputs=[y])
        wp.launch(product, dim=x.shape, inputs=[y, x], outputs=[state])

    state, x = torch.rand(6), leaf(x)
    before = state.clone()
    y = step(x, state)
    close(state, (before * x * x).detach())
    y.sum().backward()
    close(x.grad, before)

    columns = torch.rand(6, 2)
    with torch.no_grad():
        want = columns[:, 0] * x * x
        step(x, columns[:, 0])
    close(columns[:, 0], want.detach())


def test_two_inputs_over_one_memory(x):
    """The gradient of one input stays out of the other's, though both show the same memory."""
    got, want = leaf(x), leaf(x)

    @warp_program("x[n], w[n] -> y[n]")
    def times(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
        wp.launch(product, dim=x.shape, inputs=[x, w], outputs=[y])

    times(got, got.detach()).sum().backward()
    (want * want.detach()).sum().backward()
    close(got.grad, want.grad)
    check_against(lambda x: times(x, x), lambda x: x * x, [x])


@wp.kernel
def rotate_blur(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    n = x.shape[0]
    y[i] = 0.7 * x[(i + 1) % n] * w[i] - 0.1 * x[i]


@wp.kernel
def add_some(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    if i % 2 == 0:
        wp.atomic_add(y, i, 0.5 * x[i])
    if i % 3 == 1:
        y[i] = 0.3 * x[i]


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed):
    """Any order of launches, copies, fills and scans over four buffers is what PyTorch makes of it."""
    rng = random.Random(seed)
    steps = []
    for _ in range(rng.randint(3, 14)):
        source, weight, target = rng.choice("xabcd"), rng.choice("xabcd"), rng.choice("abcd")
        kind = rng.choice(["blur", "product", "add", "square", "copy", "part", "fill", "scan", "view"])
        if kind in ("blur", "product", "view") and target in (source, weight):
            kind = "square"
        steps.append((kind, source, weight, target))

    def body(x, y, a, b, c, d):
        arrays = {"x": x, "a": a, "b": b, "c": c, "d": d}
        for kind, source, weight, target in steps:
            s, w, t = arrays[source], arrays[weight], arrays[target]
            if kind == "blur":
                wp.launch(rotate_blur, dim=s.shape, inputs=[s, w], outputs=[t])
            elif kind == "product":
                wp.launch(product, dim=s.shape, inputs=[s, w], outputs=[t])
            elif kind == "view":
                wp.launch(product, dim=4, inputs=[s[:4], w[4:]], outputs=[t[2:6]])
            elif kind == "add" and source != target:
                wp.launch(add_some, dim=s.shape, inputs=[s], outputs=[t])
            elif kind == "square":
                wp.launch(square_in_place, dim=t.shape, inputs=[t])
            elif kind == "copy":
                wp.copy(t, s)
            elif kind == "part":
                wp.copy(t, s, dest_offset=1, src_offset=3, count=4)
            elif kind == "fill":
                t[3:].fill_(0.5)
            elif kind == "scan":
                wp.utils.array_scan(s, t, inclusive=False)
        for array in (a, b, c, d):
            wp.launch(add_up, dim=y.shape, inputs=[array], outputs=[y])

    def reference(x):
        even = torch.arange(8) % 2 == 0
        third = torch.arange(8) % 3 == 1
        arrays = {"x": x, **{name: torch.zeros(8) for name in "abcd"}}
        for kind, source, weight, target in steps:
            s, w, t = arrays[source], arrays[weight], arrays[target]
            if kind == "blur":
                t = 0.7 * s.roll(-1) * w - 0.1 * s
            elif kind == "product":
                t = s * w
            elif kind == "view":
                t = torch.cat([t[:2], s[:4] * w[4:], t[6:]])
            elif kind == "add" and source != target:
                t = torch.where(third, 0.3 * s, torch.where(even, t + 0.5 * s, t))
            elif kind == "square":
                t = t * t
            elif kind == "copy":
                t = s
            elif kind == "part":
                t = torch.cat([t[:1], s[3:7], t[5:]])
            elif kind == "fill":
                t = torch.cat([t[:3], torch.full((5,), 0.5)])
            elif kind == "scan":
                t = s.cumsum(0) - s
            arrays[target] = t
        return arrays["a"] + arrays["b"] + arrays["c"] + arrays["d"] + 0.0 * x

    body.__annotations__ = dict.fromkeys(["x", "y", "a", "b", "c", "d"], wp.array[float])
    op = warp_program("x[n] -> y[n]", scratch="a[n], b[n], c[n], d[n]", name=f"prog_test::random{seed}")(body)
    check_against(op, reference, [torch.rand(8)])


@wp.kernel
def add_up(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = y[i] + x[i]


@wp.kernel
def write_and_read_back(x: wp.array[float], y: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i]
    z[i] = y[i] * y[i]


def test_values_that_a_kernel_reads_back(x):
    """The adjoint needs what the launch itself wrote, though a later one overwrites it."""

    @warp_program("x[n] -> y[n]", scratch="tmp[n], z[n]")
    def read_back(x: wp.array[float], y: wp.array[float], tmp: wp.array[float], z: wp.array[float]):
        wp.launch(write_and_read_back, dim=x.shape, inputs=[x], outputs=[tmp, z])
        wp.launch(scale, dim=x.shape, inputs=[x, 5.0], outputs=[tmp])
        wp.launch(product, dim=x.shape, inputs=[z, tmp], outputs=[y])

    check_against(read_back, lambda x: x**4 * 5.0 * x, [x])


@wp.func_native("y[i] = y[i] * x[i] + 1.0f;", adj_snippet="adj_x[i] += adj_y[i] * y[i]; adj_y[i] = adj_y[i] * x[i];")
def native_step(x: wp.array[float], y: wp.array[float], i: int): ...


@wp.kernel
def native(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    native_step(x, y, i)


def test_native_code_runs_on_copies(x):
    """A native snippet is executed again by the adjoint, over a private copy of what it found."""

    @warp_program("x[n] -> y[n]")
    def twice(x: wp.array[float], y: wp.array[float]):
        wp.copy(y, x)
        wp.launch(native, dim=x.shape, inputs=[x, y])
        wp.launch(square_in_place, dim=x.shape, inputs=[y])

    with torch.no_grad():
        close(twice(x), (x * x + 1.0) ** 2)
    source = leaf(x)
    y = twice(source)
    first = torch.autograd.grad(y.sum(), source, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(y.sum(), source)[0])


@wp.kernel
def power(x: wp.array[float], n: int, y: wp.array[float]):
    i = wp.tid()
    p = float(1.0)
    for _k in range(n):
        p = p * x[i]
    y[i] = p


@wp.kernel
def one_of_all(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[0] = x[i] * x[i]


def test_doubtful_adjoints_warn_once(x):
    @warp_program("x[n] -> y[1]", name="prog_test::one")
    def one(x: wp.array[float], y: wp.array[float]):
        wp.launch(one_of_all, dim=x.shape, inputs=[x], outputs=[y])

    y = one(leaf(x))
    with pytest.warns(GradientWarning, match="adjoint of the kernel one_of_all may be wrong"):
        y.sum().backward()
    one(leaf(x)).sum().backward()


def test_loops_are_right(x):
    @warp_program("x[n] -> y[n]", name="prog_test::powers")
    def powers(x: wp.array[float], times: int, y: wp.array[float]):
        wp.launch(power, dim=x.shape, inputs=[x, times], outputs=[y])

    source = leaf(x)
    (got,) = torch.autograd.grad(powers(source, 3).sum(), source)
    torch.testing.assert_close(got, 3 * x * x)
