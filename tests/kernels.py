"""Plain kernels that many tests share, and what they compute in PyTorch. One module: Warp compiles it once."""

from __future__ import annotations

import torch
import warp as wp

from warpops import warp_op


@wp.kernel
def square(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i]


@wp.kernel
def cube64(x: wp.array[wp.float64], y: wp.array[wp.float64]):
    i = wp.tid()
    y[i] = x[i] * x[i] * x[i]


@wp.kernel
def product(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i] * w[i]


@wp.kernel
def scale(x: wp.array[float], s: float, y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * s


@wp.kernel
def mixed(x: wp.array[float], s: float, n: int, flip: bool, y: wp.array[float]):
    i = wp.tid()
    v = x[i] * x[i] * s + float(n)
    if flip:
        v = -v
    y[i] = v


@wp.kernel
def gauss(x: wp.array[float], w: wp.array[float], y: wp.array2d[float]):
    i, j = wp.tid()
    d = x[i] - w[j]
    y[i, j] = wp.exp(-d * d)


@wp.kernel
def weigh(p: wp.array[wp.vec3], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = wp.dot(p[i], p[i]) * w[i]


@wp.kernel
def spring(p: wp.array[wp.vec3], k: wp.array[float], energy: wp.array[float], force: wp.array[wp.vec3]):
    i = wp.tid()
    energy[i] = 0.5 * k[i] * wp.dot(p[i], p[i])
    force[i] = -k[i] * p[i]


@wp.kernel
def triple(x: wp.array2d[float], y: wp.array2d[float]):
    i, j = wp.tid()
    y[i, j] = x[i, j] * x[i, j] * x[i, j] + x[i, j]


@wp.kernel
def scatter(x: wp.array[float], index: wp.array[wp.int32], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(y, index[i], x[i] * x[i])


@wp.kernel
def keep_some(x: wp.array[float], keep: wp.array[wp.bool], y: wp.array[float]):
    i = wp.tid()
    if keep[i]:
        y[i] = x[i] * x[i]


@wp.kernel
def step(x: wp.array[float], v: wp.array[float], dt: float):
    i = wp.tid()
    x[i] = x[i] + v[i] * dt


@wp.kernel
def multiply_into(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = y[i] * x[i]


def square_(x):
    return x * x


def product_(x, w):
    return x * x * w


def mixed_(x, s, n, flip):
    v = x * x * s + n
    return -v if flip else v


def gauss_(x, w):
    return torch.exp(-((x[:, None] - w) ** 2))


def weigh_(p, w):
    return (p * p).sum(-1) * w


def spring_(p, k):
    return 0.5 * k * (p * p).sum(-1), -k[:, None] * p


def triple_(x):
    return x**3 + x


square_op = warp_op(square, "x[n] -> y[n]", dim="n")
cube64_op = warp_op(cube64, "x[n] -> y[n]", dim="n")
product_op = warp_op(product, "x[n], w[n] -> y[n]", dim="n")
scale_op = warp_op(scale, "x[n] -> y[n]", dim="n")
mixed_op = warp_op(mixed, "x[m] -> y[m]", dim="m")
gauss_op = warp_op(gauss, "x[n], w[k] -> y[n, k]", dim="n, k")
weigh_op = warp_op(weigh, "p[n], w[n] -> y[n]", dim="n")
spring_op = warp_op(spring, "p[n], k[n] -> energy[n], force[n]", dim="n")
triple_op = warp_op(triple, "x[n, m] -> y[n, m]", dim="n, m")
scatter_op = warp_op(scatter, "x[n], index[n] -> y[k]", dim="n", sizes="k", init="zeros")
keep_op = warp_op(keep_some, "x[n], keep[n] -> y[n]", dim="n")
multiply_op = warp_op(multiply_into, "x[n], y[n] -> y[n]", dim="n")
step_op = warp_op(step, "v[n], x[n]", dim="n", mutates="x")
