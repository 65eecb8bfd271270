"""Kernels and programs of them that the tests of ``warp_program`` share. One module: Warp compiles it once."""

from __future__ import annotations

from typing import Any

import warp as wp

from warpops import warp_program


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


@wp.kernel
def spread(grid: wp.uint64, p: wp.array[wp.vec3], y: wp.array[float]):
    i = wp.tid()
    total = float(0.0)
    for j in wp.hash_grid_query(grid, p[i], 2.0):
        d = p[i] - p[j]
        total += wp.dot(d, d)
    y[i] = total


@wp.kernel
def height(mesh: wp.uint64, p: wp.array[wp.vec3], y: wp.array[float]):
    i = wp.tid()
    query = wp.mesh_query_point(mesh, p[i], 1.0e6)
    if query.result:
        y[i] = wp.length(p[i] - wp.mesh_eval_position(mesh, query.face, query.u, query.v))


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
