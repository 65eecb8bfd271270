"""Rows that a thread alone reads and stores again: what each store overwrites is put back. Finite differences, and PyTorch."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from loop_kernels import D, check, uniform
from support import WARP, close, compiled
from warpops import GradientWarning, warp_op, warp_program

pytestmark = pytest.mark.filterwarnings("error::warpops.GradientWarning")


def twice(op, *arguments):
    """The gradients, and theirs, are those of finite differences."""
    check(op, *arguments)
    torch.autograd.gradgradcheck(op, arguments)


@wp.kernel
def substituted(L: wp.array3d[D], b: wp.array2d[D], y: wp.array2d[D]):
    i = wp.tid()
    for r in range(b.shape[1]):
        s = b[i, r]
        for c in range(r):
            s = s - L[i, r, c] * y[i, c]
        y[i, r] = s / L[i, r, r]


@wp.kernel
def substituted_back(L: wp.array3d[D], b: wp.array2d[D], y: wp.array2d[D]):
    i = wp.tid()
    m = b.shape[1]
    for k in range(m):
        r = m - 1 - k
        s = b[i, r]
        for c in range(r + 1, m):
            s = s - L[i, r, c] * y[i, c]
        y[i, r] = s / L[i, r, r]


@wp.kernel
def cholesky(A: wp.array3d[D], L: wp.array3d[D]):
    i = wp.tid()
    for r in range(A.shape[1]):
        for c in range(r + 1):
            s = A[i, r, c]
            for k in range(c):
                s = s - L[i, r, k] * L[i, c, k]
            if r == c:
                L[i, r, c] = wp.sqrt(s)
            else:
                L[i, r, c] = s / L[i, c, c]


@wp.kernel
def table(c: wp.array3d[D], t: wp.array3d[D]):
    i = wp.tid()
    for a in range(c.shape[1]):
        for b in range(c.shape[2]):
            v = c[i, a, b]
            if a > 0:
                v = v + wp.sin(t[i, a - 1, b])
            if b > 0:
                v = v * wp.exp(-t[i, a, b - 1])
            t[i, a, b] = v


@wp.kernel
def scan(x: wp.array2d[D]):
    i = wp.tid()
    for j in range(1, x.shape[1]):
        x[i, j] = x[i, j - 1] * wp.cos(x[i, j])


@wp.kernel
def swept(x: wp.array2d[D], k: wp.array[D], steps: int):
    i = wp.tid()
    for _ in range(steps):
        for j in range(1, x.shape[1] - 1):
            x[i, j] = x[i, j] + k[0] * (x[i, j - 1] - D(2.0) * x[i, j] + x[i, j + 1]) * x[i, j]


@wp.kernel
def sorted_rows(x: wp.array2d[D]):
    i = wp.tid()
    for a in range(1, x.shape[1]):
        v = x[i, a]
        j = int(a)
        while j > 0 and x[i, j - 1] > v:
            x[i, j] = x[i, j - 1]
            j = j - 1
        x[i, j] = v


@wp.kernel
def by_a_stack(x: wp.array2d[D], stack: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    top = int(0)
    for j in range(x.shape[1]):
        stack[i, top] = x[i, j]
        top = top + 1
        if top > 1 and j % 2 == 1:
            stack[i, top - 2] = stack[i, top - 2] * wp.sin(stack[i, top - 1])
            top = top - 1
    s = D(1.0)
    while top > 0:
        top = top - 1
        s = s * (stack[i, top] + D(1.0))
    y[i] = s


@wp.kernel
def in_other_words(x: wp.array2d[wp.vec3d]):
    i = wp.tid()
    for j in range(1, x.shape[1]):
        x[i, j] = wp.cross(x[i, j - 1], x[i, j])
        x[i][j][1] = x[i, j][0] * x[i, j - 1][2]
        x[i, j - 1] += x[i, j] * x[i, j][1]
        wp.atomic_sub(x, i, -1, x[i, j] * x[i, j - 1][0])


@wp.func
def product(x: wp.array2d[D], i: int):
    s = D(1.0)
    for j in range(x.shape[1]):
        s = s * (x[i, j] + D(0.5))
    return s


@wp.func
def squares(row: wp.array[D]):
    s = D(0.0)
    for j in range(row.shape[0]):
        s = s + row[j] * row[j]
    return s


@wp.kernel
def read_by_functions(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    for j in range(1, x.shape[1]):
        x[i, j] = x[i, j] * product(x, i) + squares(x[i])
    y[i] = product(x, i)


@wp.kernel
def left_early(x: wp.array2d[D]):
    i = wp.tid()
    for _ in range(3):
        for j in range(1, x.shape[1]):
            if x[i, j] > D(0.9):
                continue
            if x[i, j] < D(0.05):
                break
            x[i, j] = x[i, j] * x[i, j - 1] + D(0.1)
        if x[i, 1] < D(0.2):
            return
        x[i, 0] = x[i, 1] * x[i, 0]


@wp.kernel
def two_rows(x: wp.array3d[D], v: wp.array3d[D], steps: int):
    i, k = wp.tid()
    for _ in range(steps):
        for j in range(x.shape[2]):
            v[i, k, j] = v[i, k, j] - D(0.1) * wp.sin(x[i, k, j]) * x[i, k, (j + 1) % x.shape[2]]
        for j in range(x.shape[2]):
            x[i, k, j] = x[i, k, j] + D(0.1) * v[i, k, j] * x[i, k, j]


@wp.kernel
def named(
    value: wp.array2d[D], last: wp.array2d[D], at: wp.array2d[D], index_0: wp.array2d[D], adj_result: wp.array2d[D]
):
    i = wp.tid()
    for j in range(1, value.shape[1]):
        value[i, j] = value[i, j - 1] * wp.cos(value[i, j])
        last[i, j] = last[i, j - 1] * value[i, j]
        at[i, j] = at[i, j - 1] * last[i, j]
        index_0[i, j] = index_0[i, j - 1] * at[i, j]
        adj_result[i, j] = adj_result[i, j - 1] * index_0[i, j]


@wp.kernel
def drawn(x: wp.array2d[D], seed: int):
    i = wp.tid()
    m = x.shape[1]
    state = wp.rand_init(seed, i)
    for j in range(m):
        x[i, wp.randi(state, 0, m)] = wp.sin(x[i, j]) * D(wp.randf(state))  # Warp takes the value first
        x[i, wp.randi(state, 0, m)] += wp.sin(x[i, j]) * D(wp.randf(state))  # and here the index
        wp.atomic_sub(x, i, wp.randi(state, 0, m), wp.sin(x[i, j]) * D(wp.randf(state)))


@wp.kernel
def beside_a_variable(x: wp.array2d[D], y: wp.array[D]):
    i = wp.tid()
    for j in range(1, x.shape[1]):
        x[i, j] = x[i, j] * x[i, j - 1]
        y[i] = y[i] * D(0.5) + x[i, j] * x[i, j]
        if y[i] > D(0.3):
            return
    y[i] = y[i] * y[i] * x[i, 1]


def triangles(*shape: int) -> torch.Tensor:
    return (uniform(*shape).detach() + 2.0 * torch.eye(shape[-1], dtype=torch.float64)).requires_grad_()


def test_triangular_systems():
    forward = warp_op(substituted, "L[n, m, m], b[n, m] -> y[n, m]", dim="n")
    back = warp_op(substituted_back, "L[n, m, m], b[n, m] -> y[n, m]", dim="n")
    L, b = triangles(2, 4, 4), uniform(2, 4, seed=1)
    for op, upper in ((forward, False), (back, True)):
        want = torch.linalg.solve_triangular(L.triu() if upper else L.tril(), b[..., None], upper=upper)[..., 0]
        weight = torch.rand_like(want)
        gradients = torch.autograd.grad((op(L, b) * weight).sum(), (L, b))
        for found, one in zip(gradients, torch.autograd.grad((want * weight).sum(), (L, b)), strict=True):
            close(found, one)
    check(forward, L, b)


def test_cholesky():
    op = warp_op(cholesky, "A[n, m, m] -> L[n, m, m]", dim="n")
    matrix = triangles(2, 4, 4).detach()
    A = (matrix @ matrix.mT + torch.eye(4, dtype=torch.float64)).requires_grad_()
    (found,) = torch.autograd.grad(op(A).sin().sum(), A)
    (want,) = torch.autograd.grad(torch.linalg.cholesky(A).sin().sum(), A)
    close(found + found.mT, want + want.mT)


def test_tables():
    twice(warp_op(table, "c[n, a, b] -> t[n, a, b]", dim="n"), uniform(2, 3, 3))


def test_scans_in_place():
    op = warp_op(scan, "x[n, m] -> x[n, m]", dim="n")
    twice(op, uniform(2, 4))
    check(op, uniform(1, 40))  # more turns than states that are held
    check(lambda x: op(x.t()), uniform(4, 2))
    for shape in ((0, 3), (2, 0), (2, 1)):
        x = uniform(*shape)
        (found,) = torch.autograd.grad(op(x).sum(), x)
        close(found, torch.ones_like(x))


def test_sweeps_in_place():
    op = warp_op(swept, "x[n, m], k[1] -> x[n, m]", dim="n")
    check(lambda x, k: op(x, k, 3), uniform(2, 5), uniform(1, seed=1))
    check(lambda x, k: op(x, k, 70), uniform(1, 5, low=0.0), uniform(1, low=0.0, high=0.1))


def test_sorted_in_place():
    check(warp_op(sorted_rows, "x[n, m] -> x[n, m]", dim="n"), uniform(3, 6))


def test_stacks():
    op = warp_op(by_a_stack, "x[n, m] -> y[n]", scratch="stack[n, m]", dim="n")
    check(op, uniform(2, 6))


@pytest.mark.slow  # as those of tables and scans
def test_second_derivatives():
    twice(warp_op(substituted, "L[n, m, m], b[n, m] -> y[n, m]", dim="n"), triangles(2, 4, 4), uniform(2, 4, seed=1))
    op = warp_op(swept, "x[n, m], k[1] -> x[n, m]", dim="n")
    twice(lambda x, k: op(x, k, 3), uniform(2, 5), uniform(1, seed=1))
    twice(warp_op(by_a_stack, "x[n, m] -> y[n]", scratch="stack[n, m]", dim="n"), uniform(2, 6))


COMPONENTS = pytest.mark.skipif(
    WARP < (1, 18), reason="has no gradient: test_own_elements.py::test_a_component_of_an_element"
)


@COMPONENTS
def test_components_and_sums():
    check(warp_op(in_other_words, "x[n, m] -> x[n, m]", dim="n"), uniform(2, 4, 3))


def test_functions_that_read():
    check(warp_op(read_by_functions, "x[n, m] -> x[n, m], y[n]", dim="n"), uniform(2, 4))


def test_left_early():
    check(warp_op(left_early, "x[n, m] -> x[n, m]", dim="n"), uniform(6, 5, low=0.0))


def test_two_arrays_of_a_launch_of_two_dimensions():
    op = warp_op(two_rows, "x[n, k, m], v[n, k, m] -> x[n, k, m], v[n, k, m]", dim="n, k")
    check(lambda x, v: op(x, v, 3), uniform(2, 2, 3), uniform(2, 2, 3, seed=1))


def test_beside_an_array_whose_elements_can_be_variables():
    check(warp_op(beside_a_variable, "x[n, m] -> x[n, m], y[n]", dim="n", init="zeros"), uniform(4, 4))


@pytest.mark.skipif(WARP < (1, 18), reason="draws in another order where a statement stores (README, Limits)")
def test_drawn_values_and_places():
    op = warp_op(drawn, "x[n, m] -> x[n, m]", dim="n")
    for seed in range(3):
        twice(lambda x, seed=seed: op(x, seed), uniform(2, 4))


def test_arrays_of_any_name():
    names = ("value", "last", "at", "index_0", "adj_result")
    arrays = ", ".join(f"{n}[n, m]" for n in names)
    check(warp_op(named, f"{arrays} -> {arrays}", dim="n"), *(uniform(1, 3, seed=k) for k in range(len(names))))


def scanned(x: torch.Tensor) -> torch.Tensor:
    columns = [x[..., 0]]
    for j in range(1, x.shape[-1]):
        columns.append(columns[-1] * torch.cos(x[..., j]))
    return torch.stack(columns, -1)


def test_in_compiled_code_under_vmap_and_in_a_hessian():
    op = warp_op(scan, "x[n, m] -> x[n, m]", dim="n")
    x = uniform(2, 3, 4)
    weight = torch.rand_like(x[0])
    y = uniform(3, 4)
    (want,) = torch.autograd.grad((scanned(y) * weight).sum(), y)
    (found,) = torch.autograd.grad((compiled(op)(y) * weight).sum(), y)
    close(found, want)
    (found,) = torch.autograd.grad((torch.vmap(op)(x) * weight).sum(), x)
    (want,) = torch.autograd.grad((scanned(x) * weight).sum(), x)
    close(found, want)
    y = y.detach()
    found = torch.func.hessian(lambda y: (op(y) * weight).sum())(y)
    close(found, torch.func.hessian(lambda y: (scanned(y) * weight).sum())(y))


def test_in_programs():
    @warp_program("x[n, m] -> y[n, m]")
    def scanned_twice(x: wp.array2d[D], y: wp.array2d[D]):
        wp.copy(y, x)
        wp.launch(scan, dim=x.shape[0], inputs=[y])
        wp.launch(scan, dim=x.shape[0], inputs=[y])

    twice(scanned_twice, uniform(2, 3))
    check(scanned_twice, uniform(2, 3, seed=1))  # again, as what was launched before


def test_what_the_caller_gave_stays():
    op = warp_op(scan, "x[n, m] -> x[n, m]", dim="n")
    x = uniform(2, 4)
    before = x.detach().clone()
    op(x).sum().backward()
    assert torch.equal(x, before)


def test_what_is_kept_is_told():
    op = warp_op(scan, "x[n, m] -> x[n, m]", dim="n")
    assert "what stores to 'x' overwrite is kept, and put back" in op.explain()


@wp.kernel
def of_the_neighbour(x: wp.array2d[D]):
    i = wp.tid()
    for j in range(1, x.shape[1]):
        x[i, j] = x[(i + 1) % x.shape[0], j - 1] * wp.cos(x[i, j])


@wp.func
def put(x: wp.array2d[D], i: int, j: int, value: D):
    x[i, j] = value


@wp.kernel
def stored_by_a_function(x: wp.array2d[D]):
    i = wp.tid()
    for j in range(1, x.shape[1]):
        put(x, i, j, x[i, j - 1] * wp.cos(x[i, j]))


@wp.struct
class Rows:
    x: wp.array2d[D]


@wp.kernel
def of_a_struct(rows: Rows):
    i = wp.tid()
    for j in range(1, rows.x.shape[1]):
        rows.x[i, j] = rows.x[i, j - 1] * wp.cos(rows.x[i, j])


@wp.kernel
def drawn_component(x: wp.array2d[wp.vec3d]):
    i = wp.tid()
    state = wp.rand_init(3, i)
    for j in range(1, x.shape[1]):
        x[i, wp.randi(state, 0, j)][1] = x[i, j][0] * D(wp.randf(state))


@pytest.mark.parametrize(
    ("kernel", "way"),
    [
        (of_the_neighbour, "give each thread elements of its own"),
        (stored_by_a_function, "index it in the kernel itself"),
        pytest.param(drawn_component, "one store a statement", marks=COMPONENTS),
        (of_a_struct, "as an argument of its own"),
    ],
)
def test_what_is_not_the_threads_own_is_warned_of_with_a_way_out(kernel, way):
    array = "rows.x" if kernel is of_a_struct else "x"
    with pytest.warns(GradientWarning, match=way):
        warp_op(kernel, f"{array}[n, m] -> {array}[n, m]", dim="n")
