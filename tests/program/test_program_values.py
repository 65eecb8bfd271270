"""What a program hands to its launches: by value as it is then, and nothing that gradients can't follow."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
import warp as wp
from warp import copy as copy_imported
from warp.utils import array_scan as scan_imported

from support import close
from warpops import GradientError, SignatureError, warp_program

F = wp.array[float]


@wp.struct
class Factors:
    first: float
    rest: wp.vec3


@wp.kernel
def add_scaled(x: F, c: wp.vec3, y: F):
    i = wp.tid()
    y[i] += x[i] * c[0]


@wp.kernel
def add_by_struct(x: F, by: Factors, y: F):
    i = wp.tid()
    y[i] += x[i] * by.first * by.rest[1]


@warp_program("x[n] -> y[n]")
def a_vector_that_changes(x: F, y: F):
    c = wp.vec3(15.0, 0.0, 0.0)
    wp.launch(add_scaled, dim=x.shape, inputs=[x, c, y])
    c[0] = 10.0
    wp.launch(add_scaled, dim=x.shape, inputs=[x, c, y])


@warp_program("x[n] -> y[n]")
def a_list_that_changes(x: F, y: F):
    c = [15.0, 0.0, 0.0]
    wp.launch(add_scaled, dim=x.shape, inputs=[x, c, y])
    c[0] = 10.0
    wp.launch(add_scaled, dim=x.shape, inputs=[x, c, y])


@warp_program("x[n] -> y[n]")
def an_array_of_numpys_that_changes(x: F, y: F):
    c = np.array([15.0, 0.0, 0.0], dtype=np.float32)
    wp.launch(add_scaled, dim=x.shape, inputs=[x, c, y])
    c[0] = 10.0
    wp.launch(add_scaled, dim=x.shape, inputs=[x, c, y])


@warp_program("x[n] -> y[n]")
def a_struct_that_changes(x: F, y: F):
    by = Factors()
    by.first, by.rest = 3.0, wp.vec3(0.0, 5.0, 0.0)
    wp.launch(add_by_struct, dim=x.shape, inputs=[x, by, y])
    by.first = 1.0
    by.rest[1] = 10.0
    wp.launch(add_by_struct, dim=x.shape, inputs=[x, by, y])


@pytest.mark.parametrize(
    "program", [a_vector_that_changes, a_list_that_changes, an_array_of_numpys_that_changes, a_struct_that_changes]
)
def test_values_are_recorded_as_they_are(mode, program):
    x = torch.rand(3, requires_grad=True)
    y = mode(program)(x)
    close(y, 25.0 * x)
    close(torch.autograd.grad(y.sum(), x)[0], torch.full((3,), 25.0))


# --- arrays of structs ------------------------------------------------------------------------------------------------


@wp.struct
class Mixed:
    first: wp.float64
    number: int
    second: float


@wp.kernel
def pack(x: F, s: wp.array[Factors]):
    i = wp.tid()
    made = Factors()
    made.first = x[i] * x[i]
    made.rest = wp.vec3(x[i], 2.0 * x[i], 0.0)
    s[i] = made


@wp.kernel
def unpack(s: wp.array[Factors], y: F):
    i = wp.tid()
    y[i] = s[i].first * s[i].rest[1]


@wp.kernel
def pack_mixed(x: F, s: wp.array[Mixed]):
    i = wp.tid()
    made = Mixed()
    made.first = wp.float64(x[i])
    made.number = i
    made.second = x[i] * x[i]
    s[i] = made


@wp.kernel
def unpack_mixed(s: wp.array[Mixed], y: F):
    i = wp.tid()
    y[i] = float(s[i].first) * s[i].second


@warp_program("x[n] -> y[n]")
def through_structs(x: F, y: F):
    s = wp.zeros(x.shape, dtype=Factors, device=x.device)
    t = wp.zeros(x.shape, dtype=Factors, device=x.device)
    wp.launch(pack, dim=x.shape, inputs=[x, s])
    wp.copy(t, s)
    s.zero_()
    wp.launch(unpack, dim=x.shape, inputs=[t, y])


@warp_program("x[n] -> y[n]")
def through_mixed_structs(x: F, y: F, copied: bool):
    s = wp.zeros(x.shape, dtype=Mixed, device=x.device)
    wp.launch(pack_mixed, dim=x.shape, inputs=[x, s])
    if copied:
        t = wp.zeros(x.shape, dtype=Mixed, device=x.device)
        wp.copy(t, s)
        s = t
    wp.launch(unpack_mixed, dim=x.shape, inputs=[s, y])


def test_arrays_of_structs(mode):
    x = torch.rand(4, requires_grad=True)
    y = mode(through_structs)(x)
    close(y, 2.0 * x**3)
    close(torch.autograd.grad(y.sum(), x)[0], 6.0 * x.detach() ** 2)
    y = mode(through_mixed_structs)(x, False)
    close(torch.autograd.grad(y.sum(), x)[0], 3.0 * x.detach() ** 2)


def test_copies_of_structs_of_several_floats_have_no_gradient():
    x = torch.rand(4, requires_grad=True)
    y = through_mixed_structs(x, True)
    close(y, x**3)
    with pytest.raises(GradientError, match=r"passes through wp\.copy, which has none"):
        y.sum().backward()


# --- what can't be followed -------------------------------------------------------------------------------------------


@wp.kernel
def square_at(x: F, address: wp.uint64, n: int):
    i = wp.tid()
    y = wp.array(ptr=address, shape=(n,), dtype=float)
    y[i] = x[i] * x[i]


@wp.struct
class Holder:
    inner: F


@wp.kernel
def from_holder(holders: wp.array[Holder], y: F):
    i = wp.tid()
    y[i] = 2.0 * holders[0].inner[i]


@wp.kernel
def double(x: F, y: F):
    i = wp.tid()
    y[i] = 2.0 * x[i]


@warp_program("x[n] -> y[n]")
def as_numpy(x: F, y: F):
    wp.copy(y, wp.array(np.asarray(x) * 2.0, dtype=float))


@warp_program("x[n] -> y[n]")
def as_dlpack(x: F, y: F):
    wp.copy(y, wp.from_torch(torch.from_dlpack(x) * 2.0))


@warp_program("x[n] -> y[n]")
def by_address(x: F, y: F):
    wp.launch(square_at, dim=x.shape, inputs=[x, y.ptr, x.size])


@warp_program("x[n] -> y[n]")
def by_address_of_its_own(x: F, y: F):
    t = wp.zeros(x.shape, dtype=float)
    wp.launch(square_at, dim=x.shape, inputs=[x, t.ptr, x.size])
    wp.copy(y, t)


@warp_program("x[n] -> y[n]")
def held(x: F, y: F):
    holder = Holder()
    holder.inner = x
    wp.launch(from_holder, dim=x.shape, inputs=[wp.array([holder], dtype=Holder), y])


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (as_numpy, "reads 'x' as numbers"),
        (as_dlpack, "reads 'x' as numbers"),
        (by_address, "gives square_at an address for 'address'"),
        (by_address_of_its_own, "gives square_at an address for 'address'"),
        (held, "an array of structs that hold arrays for 'holders'"),
    ],
)
def test_gradients_that_would_be_lost(program, text):
    x = torch.rand(3)
    assert program(x).abs().sum() > 0  # without a gradient there is nothing to follow
    with pytest.raises(GradientError, match=text):
        program(x.requires_grad_()).sum().backward()


@warp_program("x[n] -> y[n]")
def copies_by_an_imported_name(x: F, y: F):
    copy_imported(y, x)


@warp_program("x[n] -> y[n]")
def scans_by_an_imported_name(x: F, y: F):
    scan_imported(x, y, True)


@warp_program("x[n] -> y[n]")
def launches_in_a_thread(x: F, y: F):
    thread = threading.Thread(target=lambda: wp.launch(double, dim=x.shape, inputs=[x, y]))
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (copies_by_an_imported_name, r"copy by a name imported from warp.*write wp\.copy"),
        (scans_by_an_imported_name, r"array_scan by a name imported from warp.*write wp\.utils\.array_scan"),
        (launches_in_a_thread, r"Thread\.start, which a program can't"),
    ],
)
def test_calls_that_no_run_would_see(program, text):
    with pytest.raises(SignatureError, match=text):
        program(torch.rand(3))


# --- layouts ----------------------------------------------------------------------------------------------------------


@wp.kernel
def times(x: F, w: F, y: F):
    i = wp.tid()
    y[i] = x[i] * w[i]


@warp_program("x[n], w[n] -> y[n]")
def product(x: F, w: F, y: F):
    wp.launch(times, dim=x.shape, inputs=[x, w, y])


@pytest.mark.parametrize("rows", [1, 3])
def test_columns_of_a_matrix(mode, rows):
    m = torch.rand(rows, 3).requires_grad_()
    y = mode(lambda m: product(m[:, 0], m[:, 1]))(m)
    close(torch.autograd.grad(y.sum(), m)[0], torch.autograd.grad((m[:, 0] * m[:, 1]).sum(), m)[0])


@pytest.mark.parametrize(("shape", "dim"), [((1, 3), 0), ((3, 1), 1), ((3, 2), 1), ((1, 1), 1)])
def test_batches_of_any_stride(shape, dim):
    m = torch.rand(shape)
    found = torch.func.grad(lambda m: torch.func.vmap(product, in_dims=(dim, dim))(m, m).sum())(m)
    close(found, 2.0 * m)
