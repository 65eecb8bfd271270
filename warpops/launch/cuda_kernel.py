"""The kernel that ``cuda_check.py`` launches, with every kind of argument that a launch packs."""

# mypy: ignore-errors

import warp as wp


@wp.struct
class Options:
    shift: wp.float64
    weight: wp.array[float]


@wp.kernel
def mixed(
    small: wp.int8, x: wp.array2d[wp.vec2], options: Options, turn: wp.vec3, count: int, y: wp.array[float]
) -> None:
    i = wp.tid()
    if i < count:
        y[i] = x[i, 1][0] * options.weight[i] * turn[1] + float(small) + float(options.shift)
