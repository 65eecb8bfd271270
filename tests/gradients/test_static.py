"""``wp.static`` is what it came to when the kernel was defined, in all that is written of the kernel."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import check_against, close
from warpops import warp_op


@wp.func
def squared(v: float):
    return v * v


@wp.func
def tripled(v: float):
    return 3.0 * v


made = []
for factor, axis, inner in ((-0.5, wp.vec2(1.0, 2.0), squared), (0.25, wp.vec2(0.5, -1.0), tripled)):

    @wp.kernel
    def recurrence(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        s = x[i]
        for _ in range(x.shape[0]):
            s = wp.static(inner)(s) * wp.static(factor) - wp.dot(wp.static(axis), wp.vec2(s, 1.0)) ** 2.0
            s = wp.sin(s) + x[i] * wp.static(factor) ** 2.0
        y[i] = s

    made.append((recurrence, factor, (axis[0], axis[1]), inner))


def reference(x, factor, axis, inner):
    s = x
    for _ in range(len(x)):
        s = (s * s if inner is squared else 3.0 * s) * factor - (axis[0] * s + axis[1]) ** 2
        s = torch.sin(s) + x * factor**2
    return s


@pytest.mark.parametrize("which", [0, 1])
def test_kernels_made_in_a_loop_have_each_their_own(which, mode):
    kernel, *given = made[which]
    op = warp_op(kernel)
    x = torch.linspace(-0.8, 0.9, 4)
    check_against(mode(op), lambda x: reference(x, *given), [x])
    close(torch.vmap(op)(torch.stack([x, -x])), torch.stack([reference(x, *given), reference(-x, *given)]))
    expected = torch.func.jvp(lambda x: reference(x, *given), (x,), (torch.ones(4),))
    for found, wanted in zip(torch.func.jvp(op, (x,), (torch.ones(4),)), expected, strict=True):
        close(found, wanted)
