"""``warp_program``: several launches as one op, with gradients through everything that the program does."""

from __future__ import annotations

import functools
import pickle
import random
import threading
from typing import Any

import pytest
import torch
import warp as wp

import kernels
import warpops
from support import check_against, close, graph_count, inductor, leaf
from warpops import ArgumentError, GradientError, GradientWarning, SignatureError, WarpOp, warp_program
from warpops.private import warp_calls

# --- kernels ----------------------------------------------------------------------------------------------------------


@wp.kernel
def blur(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    n = x.shape[0]
    y[i] = 0.5 * x[i] * x[i] + 0.25 * (x[(i + 1) % n] + x[(i + n - 1) % n])


@wp.kernel
def blur64(x: wp.array[wp.float64], y: wp.array[wp.float64]):
    i = wp.tid()
    n = x.shape[0]
    y[i] = wp.sin(x[i]) + wp.float64(0.25) * (x[(i + 1) % n] * x[(i + n - 1) % n])


@wp.kernel
def scale(x: wp.array[float], s: float, y: wp.array[float]):
    i = wp.tid()
    y[i] = s * x[i]


@wp.kernel
def square_in_place(y: wp.array[float]):
    i = wp.tid()
    y[i] = y[i] * y[i]


@wp.kernel
def product(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * w[i]


@wp.kernel
def accumulate(x: wp.array[float], total: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(total, 0, x[i] * x[i])


@wp.kernel
def divide(x: wp.array[float], total: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] / total[0]


@wp.kernel
def advance(p: wp.array[wp.vec3], v: wp.array[wp.vec3], dt: float, pull: wp.vec3, q: wp.array[wp.vec3]):
    i = wp.tid()
    q[i] = p[i] + dt * (v[i] - wp.dot(p[i], p[i]) * pull)


@wp.kernel
def row_step(u: wp.array[float], w: wp.array[float]):
    i = wp.tid()
    w[i] = wp.sin(u[i]) + u[i] * u[i]


@wp.kernel
def gather(x: wp.array[float], index: wp.array[int], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[index[i]] * x[index[i]]


@wp.kernel
def shift(index: wp.array[int], by: int):
    i = wp.tid()
    index[i] = (index[i] + by) % index.shape[0]


@wp.kernel
def generic_square(x: wp.array[Any], y: wp.array[Any]):
    i = wp.tid()
    y[i] = x[i] * x[i]


@wp.kernel
def append(x: wp.array[float], count: wp.array[int], y: wp.array[float]):
    i = wp.tid()
    k = wp.atomic_add(count, 0, 1)
    y[k] = x[i]


@wp.kernel(enable_backward=False)
def no_backward(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = 2.0 * x[i]


@wp.struct
class Pair:
    a: wp.array[float]
    b: wp.array[float]
    s: float


@wp.kernel
def combine(pair: Pair, y: wp.array[float]):
    i = wp.tid()
    y[i] = pair.a[i] * pair.b[i] * pair.s


# --- programs ---------------------------------------------------------------------------------------------------------


@warp_program("x[n] -> y[n]", scratch="tmp[n]")
def blur_twice(x: wp.array[float], y: wp.array[float], tmp: wp.array[float]):
    """Two launches over one scratch array."""
    wp.launch(blur, dim=x.shape, inputs=[x], outputs=[tmp])
    wp.launch(blur, dim=x.shape, inputs=[tmp], outputs=[y])


@warp_program("x[n] -> y[n]", scratch="tmp[n]")
def ping_pong(x: wp.array[float], y: wp.array[float], tmp: wp.array[float], steps: int = 3):
    """The two buffers are overwritten in turns, so that the adjoints need values that are gone."""
    result = y
    wp.copy(y, x)
    for _ in range(steps):
        wp.launch(blur, dim=x.shape, inputs=[y], outputs=[tmp])
        y, tmp = tmp, y
    if y is not result:
        wp.copy(result, y)


@warp_program("x[n] -> y[n]", scratch="tmp[n], other[n]")
def ping_pong64(
    x: wp.array[wp.float64], y: wp.array[wp.float64], tmp: wp.array[wp.float64], other: wp.array[wp.float64]
):
    source = x
    for _ in range(3):
        wp.launch(blur64, dim=x.shape, inputs=[source], outputs=[tmp])
        source, tmp, other = tmp, other, tmp
    wp.launch(blur64, dim=x.shape, inputs=[source], outputs=[y])


def blur_reference(x, steps=2):
    for _ in range(steps):
        x = 0.5 * x * x + 0.25 * (x.roll(-1) + x.roll(1))
    return x


@pytest.fixture
def x():
    return torch.rand(6)


# --- values and gradients ---------------------------------------------------------------------------------------------


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


# --- library calls ----------------------------------------------------------------------------------------------------


def test_fills_end_gradients(x):
    """What an array held before a fill has no part in the result."""

    @warp_program("x[n] -> y[1], z[n]", scratch="total[1]")
    def sums(x: wp.array[float], y: wp.array[float], z: wp.array[float], total: wp.array[float]):
        wp.launch(accumulate, dim=x.shape, inputs=[x], outputs=[total])
        wp.launch(divide, dim=x.shape, inputs=[x, total], outputs=[z])
        total.zero_()
        wp.launch(accumulate, dim=x.shape, inputs=[z], outputs=[total])
        wp.copy(y, total)
        total.fill_(3.0)

    def reference(x):
        z = x / (x * x).sum()
        return (z * z).sum().reshape(1), z

    check_against(sums, reference, [x])


@pytest.mark.parametrize("inclusive", [True, False])
def test_float_scans(x, inclusive):
    @warp_program("x[n] -> y[n]", scratch="tmp[n]")
    def scanned(x: wp.array[float], y: wp.array[float], tmp: wp.array[float]):
        wp.launch(scale, dim=x.shape, inputs=[x, 2.0], outputs=[tmp])
        wp.utils.array_scan(tmp, tmp, inclusive)
        wp.launch(product, dim=x.shape, inputs=[tmp, x], outputs=[y])

    check_against(scanned, lambda x: x * ((2.0 * x).cumsum(0) - (0.0 if inclusive else 2.0 * x)), [x])


def test_copies_of_ranges():
    @warp_program("x[n] -> y[n]")
    def rotate(x: wp.array[float], y: wp.array[float]):
        n = x.shape[0]
        wp.copy(y, x, dest_offset=0, src_offset=2, count=n - 2)
        wp.copy(y, x, dest_offset=n - 2, src_offset=0, count=2)
        y[1:3].assign(x[0:2])

    def reference(x):
        y = x.roll(-2)
        return torch.cat([y[:1], x[:2], y[3:]])

    check_against(rotate, reference, [torch.rand(6)])


def test_arrays_of_the_programs_own(x):
    @warp_program("x[n] -> y[n]")
    def own(x: wp.array[float], y: wp.array[float]):
        tmp = wp.zeros(x.shape, dtype=float, device=x.device)
        for _ in range(2):
            wp.launch(blur, dim=x.shape, inputs=[x], outputs=[tmp])
            other = wp.clone(tmp)
            wp.launch(product, dim=x.shape, inputs=[tmp, other], outputs=[y])

    check_against(own, lambda x: blur_reference(x, 1) ** 2, [x])


def test_int_sorts_are_no_obstacle(x):
    @warp_program("x[n], keys[n] -> y[n]", scratch="pairs[2 * n], index[2 * n]")
    def sort_by(
        x: wp.array[float], keys: wp.array[int], y: wp.array[float], pairs: wp.array[int], index: wp.array[int]
    ):
        wp.copy(pairs, keys, count=keys.size)
        wp.launch(iota, dim=x.shape, outputs=[index])
        wp.utils.radix_sort_pairs(pairs, index, x.size)
        wp.launch(gather, dim=x.shape, inputs=[x, index], outputs=[y])

    keys = torch.tensor([5, 1, 4, 0, 2, 3], dtype=torch.int32)
    check_against(lambda x: sort_by(x, keys), lambda x: x[keys.argsort()] ** 2, [x])


@wp.kernel
def iota(index: wp.array[int]):
    i = wp.tid()
    index[i] = i


@warp_program("x[n] -> y[n]", scratch="keys[2 * n], index[2 * n]")
def float_sort(x: wp.array[float], y: wp.array[float], keys: wp.array[float], index: wp.array[int]):
    wp.copy(keys, x, count=x.size)
    wp.launch(iota, dim=x.shape, outputs=[index])
    wp.utils.radix_sort_pairs(keys, index, x.size)
    wp.copy(y, keys, count=x.size)


def test_sorted_floats_have_no_gradient(x):
    close(float_sort(x), x.sort().values)
    with pytest.raises(GradientError, match=r"gradient passes through wp\.utils\.radix_sort_pairs, which has none"):
        float_sort(leaf(x)).sum().backward()


def test_values_read_as_numbers(x):
    @warp_program("x[n] -> y[n]")
    def by_maximum(x: wp.array[float], y: wp.array[float]):
        wp.launch(scale, dim=x.shape, inputs=[x, float(x.numpy().max())], outputs=[y])

    @warp_program("x[n] -> y[n]", nondiff="x")
    def constant(x: wp.array[float], y: wp.array[float]):
        wp.launch(scale, dim=x.shape, inputs=[x, float(wp.utils.array_sum(x))], outputs=[y])

    @warp_program("x[n] -> y[n]")
    def by_sum(x: wp.array[float], y: wp.array[float]):
        wp.launch(scale, dim=x.shape, inputs=[x, float(wp.utils.array_sum(x))], outputs=[y])

    close(by_maximum(x), x * x.max())
    close(constant(leaf(x)), x * x.sum())
    for op in (by_maximum, by_sum):
        with pytest.raises(GradientError, match="reads 'x' as numbers"):
            op(leaf(x)).sum().backward()


# --- what holds of every op -------------------------------------------------------------------------------------------


def test_opcheck(x):
    torch.library.opcheck(blur_twice.overload, (leaf(x),))
    torch.library.opcheck(ping_pong.overload, (leaf(x), 4))


def test_retained_graphs_and_reused_cotangents(x):
    x = leaf(x)
    y = ping_pong(x, 3)
    cotangent = torch.ones(1).expand(6)
    first = torch.autograd.grad(y, x, cotangent, retain_graph=True)[0]
    second = torch.autograd.grad(y, x, cotangent)[0]
    assert torch.equal(first, second)
    assert torch.equal(cotangent, torch.ones(6))
    assert first.data_ptr() != second.data_ptr()


def test_sizes_do_not_recompile():
    run = torch.compile(blur_twice, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (4, 7, 9):
        x = leaf(torch.rand(n))
        y = run(x)
        close(y, blur_reference(x))
        y.sum().backward()
    assert graph_count() == 1


def test_functorch(x):
    close(torch.func.grad(lambda x: blur_twice(x).sum())(x), torch.func.grad(lambda x: blur_reference(x).sum())(x))
    batch = torch.rand(3, 6)
    close(torch.vmap(blur_twice)(batch), torch.vmap(blur_reference)(batch))


def test_no_gradient_no_recording(x, monkeypatch):
    def record(*args):
        raise AssertionError("recorded")

    monkeypatch.setattr("warpops.program.record.Run._record", record)
    with torch.no_grad():
        blur_twice(leaf(x))
    blur_twice(x)


def test_only_what_is_needed_runs(x):
    launches = []

    @warp_program("x[n], w[n] -> y[n], z[n]")
    def two(x: wp.array[float], w: wp.array[float], y: wp.array[float], z: wp.array[float]):
        wp.launch(blur, dim=x.shape, inputs=[x], outputs=[y])
        wp.launch(product, dim=x.shape, inputs=[x, w], outputs=[z])

    launch = wp.launch

    @functools.wraps(launch)
    def count(kernel, *args, **options):
        launches.append((kernel.key, bool(options.get("adjoint"))))
        return launch(kernel, *args, **options)

    w = leaf(torch.rand(6))
    _, z = two(x, w)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wp, "launch", count)
        torch.autograd.grad(z.sum(), w)
    assert [key for key, adjoint in launches if adjoint] == ["product"]


def test_a_users_tape_records_nothing(x):
    tape = wp.Tape()
    with tape:
        y = ping_pong(leaf(x), 2)
        y.sum().backward()
    assert tape.launches == []
    assert wp._src.context.runtime.tape is None


def test_warp_is_left_as_it_was(x):
    before = [owner.__dict__[name] for owner, name, _ in warp_calls._targets()]
    blur_twice(leaf(x)).sum().backward()

    @warp_program("x[n] -> y[n]", name="prog_test::failing")
    def failing(x: wp.array[float], y: wp.array[float]):
        raise ZeroDivisionError("in the program")

    with pytest.raises(ZeroDivisionError, match="in the program"):
        failing(x)
    assert [owner.__dict__[name] for owner, name, _ in warp_calls._targets()] == before
    assert getattr(warp_calls._local, "watcher", None) is None


def test_threads(x):
    """Programs in several threads, and a thread of plain Warp with a tape of its own, at once."""
    failures = []
    source = torch.rand(6)
    want = leaf(source)
    blur_reference(want, 5).sum().backward()

    def programs():
        try:
            for _ in range(20):
                mine = leaf(source)
                ping_pong(mine, 5).sum().backward()
                close(mine.grad, want.grad)
        except Exception as error:
            failures.append(error)

    def plain():
        try:
            for _ in range(20):
                a = wp.array([1.0, 2.0], dtype=float, requires_grad=True)
                b = wp.zeros(2, dtype=float, requires_grad=True)
                tape = wp.Tape()
                with tape:
                    wp.launch(scale, dim=2, inputs=[a, 3.0], outputs=[b])
                assert len(tape.launches) == 1
                tape.backward(grads={b: wp.ones(2, dtype=float)})
                assert a.grad.numpy().tolist() == [3.0, 3.0]
        except Exception as error:
            failures.append(error)

    blur_twice(x)
    threads = [threading.Thread(target=f) for f in (programs, programs, plain)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_what_the_op_says_of_itself(x):
    assert isinstance(blur_twice, WarpOp)
    assert blur_twice in warpops.list_ops()
    assert blur_twice.name.endswith("::blur_twice")
    assert blur_twice.__doc__ == "Two launches over one scratch array."
    assert list(blur_twice.__signature__.parameters) == ["x"]
    text = blur_twice.explain()
    assert "the program blur_twice" in text
    assert "its own launches" in text
    assert "the program run again" in " ".join(text.split())
    assert "def forward(x)" in blur_twice.source
    assert pickle.loads(pickle.dumps(blur_twice)) is blur_twice
    with pytest.raises(SignatureError, match="known only when it runs"):
        blur_twice.preload()


def test_double_backward_is_refused(x):
    x = leaf(x)
    (grad,) = torch.autograd.grad(blur_twice(x).sum(), x, create_graph=True)
    with pytest.raises(GradientError, match="double backward"):
        grad.sum().backward()


def test_registered_backward(x):
    @warp_program("x[n] -> y[n]")
    def halve(x: wp.array[float], y: wp.array[float]):
        wp.launch(scale, dim=x.shape, inputs=[x, 0.5], outputs=[y])

    halve.register_backward(lambda ctx, grad: 7.0 * grad)
    x = leaf(x)
    halve(x).sum().backward()
    close(x.grad, torch.full((6,), 7.0))


# --- wrong programs ---------------------------------------------------------------------------------------------------


def test_arguments_are_checked(x):
    with pytest.raises(ArgumentError, match=r"'x': expected dtype torch.float32 .* got torch.float64"):
        blur_twice(x.double())
    with pytest.raises(ArgumentError, match=r"'x': expected 1 dimension .* got shape torch.Size\(\[2, 3\]\)"):
        blur_twice(torch.rand(2, 3))
    with pytest.raises(ArgumentError, match=r"'steps': expected an int in .* got 2147483648"):
        ping_pong(x, 2**31)


def test_written_inputs_are_refused(x):
    @warp_program("x[n] -> y[n]", name="prog_test::writes_x")
    def writes_x(x: wp.array[float], y: wp.array[float], by_copy: bool):
        if by_copy:
            wp.copy(x, y)
        wp.launch(square_in_place, dim=x.shape, inputs=[x])

    before = x.clone()
    with pytest.raises(SignatureError, match=r"'x' is an input, .* writes it at .*test_program.py:\d+: `y\[i\] ="):
        writes_x(x, False)
    with pytest.raises(SignatureError, match=r"'x' is an input, and the program writes it, in wp\.copy"):
        writes_x(x, True)
    assert torch.equal(x, before)


def test_counters_have_no_gradient(x):
    @warp_program("x[n] -> y[n]", scratch="count[1]")
    def appended(x: wp.array[float], y: wp.array[float], count: wp.array[int]):
        wp.launch(append, dim=x.shape, inputs=[x, count], outputs=[y])

    close(appended(x), x)
    with pytest.raises(GradientError, match="passes through the kernel append"):
        appended(leaf(x)).sum().backward()


def test_kernels_without_backward(x):
    @warp_program("x[n] -> y[n]")
    def doubled(x: wp.array[float], y: wp.array[float]):
        wp.launch(no_backward, dim=x.shape, inputs=[x], outputs=[y])

    close(doubled(x), 2.0 * x)
    with pytest.raises(GradientError, match="no_backward, which is compiled without its backward"):
        doubled(leaf(x)).sum().backward()


launch_by_name = wp.launch


def test_calls_that_can_not_be_followed(x):
    def tape(x, y):
        with wp.Tape():
            pass

    def by_name(x, y):
        launch_by_name(scale, dim=x.shape, inputs=[x, 2.0], outputs=[y])

    def recorded(x, y):
        wp.launch(scale, dim=x.shape, inputs=[x, 2.0], outputs=[y], record_cmd=True)

    def returns(x, y):
        return y

    for number, (body, message) in enumerate(
        [
            (tape, "leave the tape out"),
            (by_name, "write wp.launch"),
            (recorded, "record_cmd"),
            (returns, "the program returns a array"),
        ]
    ):
        body.__annotations__ = {"x": wp.array[float], "y": wp.array[float]}
        op = warp_program("x[n] -> y[n]", name=f"prog_test::wrong{number}")(body)
        with pytest.raises(SignatureError, match=message):
            op(x)


def test_wrong_declarations():
    def program(x: wp.array[float], y: wp.array[float]):
        wp.launch(scale, dim=x.shape, inputs=[x, 2.0], outputs=[y])

    def bare(x, y: wp.array[float]):
        pass

    def starred(x: wp.array[float], *y):
        pass

    with pytest.raises(SignatureError, match=r"'y' can't be read from the program.*give it in brackets"):
        warp_program("x[n] -> y")(program)
    with pytest.raises(SignatureError, match="'z', which is no argument of the program"):
        warp_program("x[n] -> z[n]")(program)
    with pytest.raises(SignatureError, match="no output and mutates nothing"):
        warp_program("x[n]")(program)
    with pytest.raises(SignatureError, match="give the signature first"):
        warp_program(program)
    with pytest.raises(SignatureError, match="'x' has no annotation"):
        warp_program("x[n] -> y[n]")(bare)
    with pytest.raises(SignatureError, match="no \\*args"):
        warp_program("x[n] -> x[n]")(starred)
    with pytest.raises(SignatureError, match="for one kernel use warp_op"):
        warp_program("x[n] -> y[n]")(scale)
    with pytest.raises(TypeError, match="dim"):
        warp_program("x[n] -> y[n]", dim="n")


# --- sizes of the launches inside -------------------------------------------------------------------------------------


@wp.kernel
def filling(x: wp.array[float], n: int, t: wp.array[float]):
    i = wp.tid()
    if i >= n:
        return
    t[i] = x[i] * x[i]


@wp.kernel
def differences(x: wp.array[float], t: wp.array[float]):
    i = wp.tid()
    t[i] = x[i + 1] - x[i]


@wp.kernel
def by_the_third(x: wp.array[float], t: wp.array[float]):
    i = wp.tid()
    t[i] = x[i] * x[2]


@wp.kernel
def plane(x: wp.array[float], t: wp.array[float]):
    i, j = wp.tid()
    wp.atomic_add(t, i, x[j])


def launching(kernel, dim, *numbers):
    """A program of one launch."""

    @warp_program("x[n] -> y[n]", name="test_program::launching")
    def run(x: wp.array[float], y: wp.array[float]):
        wp.launch(kernel, dim(x), inputs=[x, *numbers], outputs=[y])

    return run


def count(x):
    return x.shape[0]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    ("kernel", "dim", "numbers", "text"),
    [
        (kernels.square, lambda x: count(x) + 3, (), "over 7: 'x' is indexed up to 6 on axis 0, and has size 4"),
        (kernels.square, lambda x: count(x) + 10**8, (), "has size 4"),
        (filling, lambda x: 100, (5,), "'x' is indexed up to 4 on axis 0, and has size 4"),
        (differences, count, (), "'x' is indexed up to 4 on axis 0, and has size 4"),
        (plane, count, (), "which is 1 size, and it takes 2 coordinates"),
        (kernels.square, lambda x: (count(x), 2), (), "which is 2 sizes, and it takes 1 coordinate from"),
    ],
    ids=["longer", "much longer", "guard", "neighbour", "too few", "too many"],
)
def test_a_launch_that_leaves_an_array(mode, grad, kernel, dim, numbers, text):
    x = torch.ones(4, requires_grad=grad)
    with pytest.raises(Exception, match=text.replace("(", "\\(")):
        mode(launching(kernel, dim, *numbers))(x)


def test_a_constant_index_of_a_launch():
    run = launching(by_the_third, count)
    assert run(torch.ones(3)).tolist() == [1.0] * 3
    with pytest.raises(ArgumentError, match="'x' is indexed at 2 on axis 0, and has size 2"):
        run(torch.ones(2))


def test_launches_that_fit(mode):
    x = torch.tensor([1.0, 2.0, 4.0])
    check_against(mode(launching(filling, lambda x: 100, 3)), lambda x: x * x, (x,))
    check_against(mode(launching(plane, lambda x: (count(x), count(x)))), lambda x: x.sum().expand(3), (x,))
    check_against(
        mode(launching(differences, lambda x: count(x) - 1)),
        lambda x: torch.cat([x[1:] - x[:-1], torch.zeros(1)]),
        (x,),
    )
    close(launching(differences, lambda x: 0)(x), torch.zeros(3))
