"""What Warp's adjoint loses: builtins without one, results of atomics, native functions, ``wp.grad``, views."""

# Warp takes `int(0)` for a variable, and `0` for a constant; a kernel may compute what it doesn't use.
# ruff: noqa: F841
from __future__ import annotations

import pytest
import warp as wp

from measured import Measured

# Warp's own word on wp.grad, when it builds the kernel.
pytestmark = pytest.mark.filterwarnings(r"ignore:(?s).*grad\(\) call:UserWarning")

measured = Measured()


@measured("remainder")
def frac(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = wp.frac(x[0] * x[1])


@measured()
def mod_a(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = (x[0] * x[1]) % wp.float64(0.4)


@measured("remainder")
def mod_b(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = wp.float64(5.0) % x[1] + wp.mod(x[0], x[1])


@measured("remainder")
def mod_vec(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.vec2d(x[0], x[1]) % wp.vec2d(x[2], wp.float64(0.3))
    y[i] = v[0] * v[1]


@measured("remainder")
def mod_vec2(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    v = wp.mod(wp.vec2d(x[0], x[1]), wp.vec2d(x[2], wp.float64(0.3)))
    y[i] = v[0] * v[1]


@measured()
def flat(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = (
        x[0]
        + wp.floor(x[1]) * x[2]
        + wp.sign(x[0])
        + wp.round(x[1])
        + wp.trunc(x[2])
        + wp.ceil(x[2])
        + wp.rint(x[1])
        + wp.step(x[1])
        + wp.nonzero(x[0])
        + x[1] // x[2]
    )


@wp.func
def sq(a: wp.float64):
    return a * a * a


@measured("no-adjoint")
def grad_call(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = wp.grad(sq)(x[0]) * x[0]


@wp.func
def slope(a: wp.float64, b: wp.float64):
    t = wp.grad(sq)(a)
    return b * b


@measured("no-adjoint")
def grad_func(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = slope(x[0], x[1])


@wp.func_native("return x * x;")
def nat(x: wp.float64) -> wp.float64: ...


@measured("no-adjoint")
def native(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = nat(x[0]) * x[0]


@measured("no-adjoint")
def exch(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    wp.atomic_exch(y, 1, x[0])


@measured("no-adjoint")
def cas(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    wp.atomic_cas(y, 1, wp.float64(0.0), x[0])


@measured("no-adjoint")
def rand_bounds(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    state = wp.rand_init(7)
    y[i] = wp.float64(wp.randf(state, float(x[0]), float(x[1])))


@measured("no-adjoint", "shared")
def atomic_old(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    t = wp.atomic_add(y, 3, x[0])
    u = wp.atomic_add(y, 3, x[1])
    y[i] = u * wp.float64(2.0)


@wp.func
def first(r: wp.array[wp.float64]):
    return r[0] * r[1]


@wp.func_grad(first)
def adj_first(r: wp.array[wp.float64], adj_ret: wp.float64):
    wp.adjoint[r][0] += r[1] * adj_ret
    wp.adjoint[r][1] += r[0] * adj_ret


@measured("view", undefined=True)
def view_slice(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = first(x[1:])


@measured("view", undefined=True)
def view_alias(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    a = x
    y[i] = first(a)


@measured()
def view_whole(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = first(x)


@measured("view", "shared", undefined=True)
def view_branch(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    a = x
    if n > 7:
        a = y
    y[i] = first(a)


@wp.func
def through(r: wp.array[wp.float64]):
    return first(r)


@measured()
def view_through(x: wp.array[wp.float64], y: wp.array[wp.float64], n: int):
    i = wp.tid()
    y[i] = through(x)


@pytest.mark.parametrize("name", sorted(measured))
def test_a_lost_gradient_is_a_hazard(name: str) -> None:
    measured.check(name)
