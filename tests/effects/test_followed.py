"""Arrays are followed through functions, structs, closures, slices, tiles and references; pointers hide them."""

from __future__ import annotations

from typing import Any

import pytest
import warp as wp

from analysed import array, bounds
from test_coordinates import elementwise
from warpops.effects import Limit, analyse


@wp.struct
class Inner:
    vel: wp.array[wp.vec3]


@wp.struct
class Body:
    pos: wp.array[wp.vec3]
    inner: Inner
    count: int


@wp.func
def advance(body: Body, i: int, dt: float):
    body.pos[i] = body.pos[i] + body.inner.vel[i] * dt


@wp.kernel
def step(body: Body, dt: float):
    i = wp.tid()
    if i >= body.count:
        return
    advance(body, i, dt)


@wp.struct
class Node:
    here: wp.array[float]


@wp.kernel
def local_struct(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    node = Node()
    node.here = y
    node.here[i] = x[i]


@wp.func
def square(v: float):
    return v * v


@wp.func
def apply(f: wp.Function, y: wp.array[float], i: int, v: float):
    y[i] = f(v)


@wp.kernel
def function_argument(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    apply(square, y, i, x[i])


@wp.func
def put(y: wp.array[float], i: int, v: float):
    y[i] = v


@wp.func
def put(y: wp.array2d[float], i: int, v: float):  # noqa: F811
    y[i, 0] = v


@wp.kernel
def overloaded(x: wp.array[float], y: wp.array[float], z: wp.array2d[float]):
    i = wp.tid()
    put(y, i, x[i])
    put(z, i, x[i])


@wp.func
def pick(a: wp.array[float], b: wp.array[float], which: int):
    if which == 0:
        return a
    return b


@wp.kernel
def returned_array(a: wp.array[float], b: wp.array[float], y: wp.array[float], which: int):
    i = wp.tid()
    y[i] = pick(a, b, which)[i]


@wp.func
def bump(v: wp.ref[float]):
    v = v + 1.0


@wp.kernel(enable_backward=False)
def by_reference(y: wp.array[float]):
    i = wp.tid()
    bump(y[i])


@wp.func_native("y[i] = x[i];")
def native_copy(x: wp.array[float], y: wp.array[float], i: int): ...


@wp.kernel(enable_backward=False)
def native(x: wp.array[float], y: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    native_copy(x, y, i)
    z[i] = 1.0


@wp.func
def custom(x: wp.array[float], i: int):
    return x[i] * x[i]


@wp.func_grad(custom)
def adj_custom(x: wp.array[float], i: int, adj_ret: float):
    wp.adjoint[x][i] += 2.0 * x[i] * adj_ret


@wp.kernel
def with_custom_gradient(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = custom(x, i) * w[i]


@wp.kernel
def tiled(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    t = wp.tile_load(x, shape=4, offset=i * 4)
    wp.tile_store(y, t * 2.0, offset=i * 4)


@wp.kernel
def sliced(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    part = y[2:6]
    part[i] = x[i]


@wp.kernel(enable_backward=False)
def pointed(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    other = wp.array(ptr=y.ptr, shape=(2,), dtype=float)
    other[i] = x[i]


SCALES = (1.0, 2.0, 3.0)
WIDTH = 3
NEGATE = wp.constant(True)


@wp.kernel
def static_loop(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    s = float(0.0)
    for k in range(wp.static(WIDTH)):
        s += x[i, k] * wp.static(SCALES[k])
    if wp.static(WIDTH > 5):
        y[i + 1] = s
    y[i] = s


def make_kernel(operation: Any) -> wp.Kernel:
    @wp.kernel(module="unique")
    def made(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = operation(x[i])

    return made


from_closure = make_kernel(square)


def test_struct_fields_have_dotted_names() -> None:
    effects = analyse(step)
    assert set(effects.arrays) == {"body.pos", "body.inner.vel"}
    assert effects.arrays["body.pos"].stores
    assert effects.arrays["body.pos"].reads_before_write is not None
    assert not effects.arrays["body.inner.vel"].written
    assert bounds(step, "body.pos") == bounds(step, "body.inner.vel") == [(0, (Limit("body.count"),))]


@pytest.mark.parametrize("kernel", [local_struct, function_argument, from_closure])
def test_arrays_are_followed_through_structs_and_functions(kernel: wp.Kernel) -> None:
    found = array(kernel, "y")
    assert found.filled, found.filled_why
    assert not found.read
    assert not array(kernel, "x").written


def test_overloads_are_chosen_by_rank() -> None:
    assert array(overloaded, "y").filled
    assert array(overloaded, "z").axes[1].constants == (0,)
    assert not array(overloaded, "z").filled


def test_arrays_returned_by_functions_are_either() -> None:
    assert array(returned_array, "a").read
    assert array(returned_array, "b").read
    assert array(returned_array, "y").filled


def test_references_to_elements_are_read_and_written() -> None:
    found = array(by_reference, "y")
    assert found.read
    assert found.written
    assert not found.stored_once


def test_native_snippets_hide_their_arrays_only() -> None:
    effects = analyse(native)
    assert effects.arrays["x"].escapes
    assert effects.arrays["y"].escapes
    assert effects.arrays["y"].reads_back
    assert not effects.arrays["z"].escapes
    assert effects.arrays["z"].filled
    assert not effects.opaque


def test_pointers_hide_everything() -> None:
    effects = analyse(pointed)
    assert effects.opaque
    assert effects.arrays["y"].escapes
    assert not effects.arrays["y"].filled


def test_custom_gradients_need_a_buffer() -> None:
    assert not array(with_custom_gradient, "x").null_adjoint_safe
    assert array(with_custom_gradient, "w").null_adjoint_safe


def test_tiles_are_seen_whole() -> None:
    effects = analyse(tiled)
    assert effects.tiled
    assert effects.arrays["x"].read
    assert effects.arrays["y"].view_stored
    assert not effects.arrays["y"].stored_once
    assert not effects.arrays["y"].filled
    assert effects.arrays["x"].axes[0].uncovered
    assert not analyse(elementwise).tiled


def test_slices_are_views_of_unknown_offset() -> None:
    found = array(sliced, "y")
    assert found.view_stored
    assert found.axes[0].coordinate is None
    assert not found.filled


def test_static_expressions_are_evaluated() -> None:
    found = array(static_loop, "y")
    assert found.filled
    assert len(found.stores) == 1
    assert array(static_loop, "x").axes[1].constants == (0, 1, 2)
