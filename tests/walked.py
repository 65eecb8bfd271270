"""Warp's builtins as kernels ``(x, y)`` of one call each: those that take numbers, made from Warp's own table of them; of the
others, those whose gradient can be asked for, by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import warp as wp
import warp._src.context as context
import warp._src.types as types

from support import WARP

CLASSES = ("Vector", "Matrix", "Quaternion", "Transformation")
HEADER = "\n".join(
    ["import warp as wp"]
    + [f"vector{n}{k} = wp.types.vector({n}, wp.float{b})" for n in (2, 3, 4, 6) for k, b in (("f", 32), ("d", 64))]
    + [
        f"matrix{n}{n}{k} = wp.types.matrix(({n}, {n}), wp.float{b})"
        for n in (2, 3, 4, 6)
        for k, b in (("f", 32), ("d", 64))
    ]
)
GENERIC = (types.Float, types.Scalar)


@dataclass(frozen=True)
class Case:
    """One call: the kernel's body, and how many numbers it takes from ``x``."""

    builtin: str
    call: str
    body: str
    numbers: int


def cases() -> Iterator[Case]:
    """A case for each builtin and kind of arguments; single precision where Warp has no other."""
    for name, function in context.builtin_functions.items():
        if name in LEFT_OUT:
            continue
        seen = set()
        overloads = getattr(function, "overloads", None) or [function]
        for overload in sorted(overloads, key=lambda o: wp.float32 in map(_scalar, o.input_types.values())):
            kinds = tuple(_kind(warp_type) for warp_type in overload.input_types.values())
            made = _case(name, overload) if kinds not in seen else None
            if made is not None:
                seen.add(kinds)
                yield made
    for name, (numbers, text) in BY_HAND.items():
        yield Case(name, f"wp.{name}", "\n".join(f"    {line}" for line in text.split("\n")), numbers)


def _kind(warp_type: Any) -> str:
    """What an argument is, whatever its size and precision."""
    return getattr(getattr(warp_type, "_wp_generic_type_hint_", None), "__name__", "number")


def _case(name: str, overload: Any) -> Case | None:
    scalars = {_scalar(t) for t in overload.input_types.values()}
    single = wp.float32 in scalars
    if scalars & {wp.float16, wp.bfloat16} or (single and wp.float64 in scalars):
        return None
    scalar = "wp.float32" if single else "wp.float64"
    texts: list[str] = []
    given: dict[str, Any] = {}
    numbers = 0
    for label, warp_type in overload.input_types.items():
        if label in overload.defaults:
            continue
        made = _argument(warp_type, scalar, numbers)
        if made is None:
            return None
        texts.append(made[0])
        given[label] = made[1]
        numbers += made[2]
    if not numbers:
        return None
    try:
        result = overload.value_func(given, {})
    except Exception:  # Warp's own, asked with less than Warp gives it
        return None
    parts = _parts(result)
    if parts is None:
        return None
    call = f"wp.{name}({', '.join(texts)})"
    lines = [f"r = {call}", "y[0] = " + " + ".join(f"wp.float64({n}.5) * wp.float64({p})" for n, p in enumerate(parts))]
    return Case(name, call, "\n".join(f"    {line}" for line in lines), numbers)


def _scalar(warp_type: Any) -> Any:
    found = getattr(warp_type, "_wp_scalar_type_", warp_type)
    return wp.float32 if found is float else found


def _argument(warp_type: Any, scalar: str, at: int) -> tuple[str, Any, int] | None:
    """The text of an argument that is made of numbers of ``x``, its type, and how many numbers."""
    made = wp.float32 if scalar == "wp.float32" else wp.float64
    hint = getattr(getattr(warp_type, "_wp_generic_type_hint_", None), "__name__", "")
    floating = _scalar(warp_type) in (made, *GENERIC)
    if hint in CLASSES and floating:
        shape = tuple(n or 3 for n in warp_type._shape_)
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        values = ", ".join(f"{scalar}(x[{at + n}])" for n in range(count))
        letter = "f" if made is wp.float32 else "d"
        if hint == "Vector":
            return f"vector{shape[0]}{letter}({values})", types.vector(shape[0], made), count
        if hint == "Matrix":
            return f"matrix{shape[0]}{shape[1]}{letter}({values})", types.matrix(shape, made), count
        kind = "quat" if hint == "Quaternion" else "transform"
        return f"wp.{kind}{letter}({values})", getattr(wp, kind + letter), count
    if floating:
        return f"{scalar}(x[{at}])", made, 1
    if warp_type in (wp.int32, int):
        return "1", wp.int32, 0
    if warp_type in (wp.bool, bool):
        return "True", wp.bool, 0
    return None


def _parts(result: Any) -> list[str] | None:
    """The numbers that a result is made of."""
    hint = getattr(getattr(result, "_wp_generic_type_hint_", None), "__name__", "")
    if hint in CLASSES:
        shape = result._shape_
        if len(shape) == 2:
            return [f"r[{i}, {j}]" for i in range(shape[0]) for j in range(shape[1])]
        return [f"r[{i}]" for i in range(shape[0])]
    known = isinstance(result, type) and (result in types.scalar_types or result in (float, int, bool, wp.bool))
    return ["r"] if known else None


LEFT_OUT = ("spatial_vector", "transform_set_translation_copy", "transform_set_rotation_copy", "float16", "bfloat16")
"""Warp doesn't build the first three, called as its own table says; the last two round too much for finite differences."""
if WARP < (1, 17):
    LEFT_OUT += ("transformation",)  # of one number, by the table

BY_HAND: dict[str, tuple[int, str]] = {
    "where": (2, "y[0] = wp.where(x[0] > x[1], x[0] * x[0], x[1])"),
    "copy": (1, "y[0] = wp.copy(x[0])"),
    "extract": (3, "y[0] = wp.vec3d(x[0], x[1], x[2])[1]"),
    "vector": (2, "v = wp.vector(x[0], x[1])\ny[0] = v[0] + wp.float64(2.0) * v[1]"),
    "matrix": (4, "m = wp.matrix(x[0], x[1], x[2], x[3], shape=(2, 2))\ny[0] = wp.determinant(m)"),
    "matrix_from_cols": (4, "m = wp.matrix_from_cols(wp.vec2d(x[0], x[1]), wp.vec2d(x[2], x[3]))\ny[0] = m[0, 1]"),
    "matrix_from_rows": (4, "m = wp.matrix_from_rows(wp.vec2d(x[0], x[1]), wp.vec2d(x[2], x[3]))\ny[0] = m[0, 1]"),
    "norm_l1": (3, "y[0] = wp.float64(wp.norm_l1(wp.vec3(float(x[0]), float(x[1]), float(x[2]))))"),
    "norm_l2": (3, "y[0] = wp.norm_l2(wp.vec3d(x[0], x[1], x[2]))"),
    "norm_huber": (3, "y[0] = wp.float64(wp.norm_huber(wp.vec3(float(x[0]), float(x[1]), float(x[2]))))"),
    "norm_pseudo_huber": (3, "y[0] = wp.float64(wp.norm_pseudo_huber(wp.vec3(float(x[0]), float(x[1]), float(x[2]))))"),
    "smooth_normalize": (
        3,
        "y[0] = wp.float64(wp.smooth_normalize(wp.vec3(float(x[0]), float(x[1]), float(x[2])))[1])",
    ),
    "quat_to_axis_angle": (
        4,
        "axis = wp.vec3d()\nangle = wp.float64(0.0)\n"
        "wp.quat_to_axis_angle(wp.normalize(wp.quatd(x[0], x[1], x[2], x[3])), axis, angle)\ny[0] = axis[0] * angle",
    ),
    "svd2": (
        4,
        "u = wp.mat22d()\ns = wp.vec2d()\nv = wp.mat22d()\n"
        "wp.svd2(wp.mat22d(x[0], x[1], x[2], x[3]), u, s, v)\ny[0] = s[0] * s[0] + s[1]",
    ),
    "svd3": (
        9,
        "u = wp.mat33d()\ns = wp.vec3d()\nv = wp.mat33d()\n"
        "wp.svd3(wp.mat33d(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8]), u, s, v)\ny[0] = s[0] * s[0] + s[1]",
    ),
    "qr3": (
        9,
        "q = wp.mat33d()\nr = wp.mat33d()\n"
        "wp.qr3(wp.mat33d(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8]), q, r)\ny[0] = r[0, 0] * r[1, 1]",
    ),
    "noise": (2, "y[0] = wp.float64(wp.noise(wp.uint32(7), wp.vec2(float(x[0]), float(x[1]))))"),
    "pnoise": (2, "y[0] = wp.float64(wp.pnoise(wp.uint32(7), wp.vec2(float(x[0]), float(x[1])), 3, 3))"),
    "curlnoise": (2, "y[0] = wp.float64(wp.curlnoise(wp.uint32(7), wp.vec2(float(x[0]), float(x[1])))[0])"),
    "randf": (2, "s = wp.rand_init(7)\ny[0] = wp.float64(wp.randf(s, float(x[0]), float(x[1])))"),
    "randn": (1, "s = wp.rand_init(7)\ny[0] = wp.float64(wp.randn(s)) * x[0]"),
    "int32": (1, "y[0] = wp.float64(wp.int32(x[0] * wp.float64(9.0))) * x[0]"),
    "atomic_add": (1, "wp.atomic_add(y, 0, x[0] * x[0])"),
    "atomic_sub": (1, "wp.atomic_sub(y, 0, x[0] * x[0])"),
    "atomic_exch": (1, "wp.atomic_exch(y, 0, x[0] * x[0])"),
    "atomic_cas": (1, "wp.atomic_cas(y, 0, wp.float64(0.0), x[0] * x[0])"),
    "array_store": (1, "wp.array_store(y, 0, x[0] * x[0])"),
    "transform_compose": (
        10,
        "m = wp.transform_compose(wp.vec3(float(x[0]), float(x[1]), float(x[2])), "
        "wp.quat(float(x[3]), float(x[4]), float(x[5]), float(x[6])), wp.vec3(float(x[7]), float(x[8]), float(x[9])))\n"
        "y[0] = wp.float64(m[0, 1] + m[1, 3])",
    ),
    "spatial_vector": (
        6,
        "s = wp.spatial_vectord(x[0], x[1], x[2], x[3], x[4], x[5])\ny[0] = wp.dot(s, s)",
    ),
}
"""By name: how many numbers of ``x`` it takes, and the kernel's body."""
