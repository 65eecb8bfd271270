"""Derivatives of Warp's builtins, as rows.

A row gives the tangent of a builtin's result as a sum of terms, one per parameter: ``d_x`` is the tangent of ``x``, ``r``
the result. Terms are made of builtins that Warp differentiates, so that the tangent kernel has an adjoint of its own. At
kinks and ties they choose what Warp's adjoint chooses. Numbers take the scalar type of the result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import warp as wp

ROWS: dict[str, dict[str, str]] = {
    "sin": {"x": "cos(x) * d_x"},
    "cos": {"x": "-sin(x) * d_x"},
    "tan": {"x": "d_x / (cos(x) * cos(x))"},
    "asin": {"x": "where(1.0 - x * x > 0.0, d_x / sqrt(where(1.0 - x * x > 0.0, 1.0 - x * x, 1.0)), 0.0)"},
    "acos": {"x": "where(1.0 - x * x > 0.0, -d_x / sqrt(where(1.0 - x * x > 0.0, 1.0 - x * x, 1.0)), 0.0)"},
    "atan": {"x": "d_x / (1.0 + x * x)"},
    "atan2": {
        "y": "x * d_y / where(x * x + y * y > 0.0, x * x + y * y, 1.0)",
        "x": "-y * d_x / where(x * x + y * y > 0.0, x * x + y * y, 1.0)",
    },
    "sinh": {"x": "cosh(x) * d_x"},
    "cosh": {"x": "sinh(x) * d_x"},
    "tanh": {"x": "(1.0 - r * r) * d_x"},
    "exp": {"x": "r * d_x"},
    "log": {"x": "d_x / x"},
    "log2": {"x": "d_x / (x * 0.6931471805599453)"},
    "log10": {"x": "d_x / (x * 2.302585092994046)"},
    "sqrt": {"x": "0.5 * d_x / r"},
    "cbrt": {"x": "d_x / (3.0 * r * r)"},
    "pow": {"x": "y * pow(x, y - 1.0) * d_x", "y": "log(x) * r * d_y"},
    "erf": {"x": "1.1283791670955126 * exp(-x * x) * d_x"},
    "erfc": {"x": "-1.1283791670955126 * exp(-x * x) * d_x"},
    "erfinv": {"x": "0.886226925452758 * exp(r * r) * d_x"},
    "erfcinv": {"x": "-0.886226925452758 * exp(r * r) * d_x"},
    "degrees": {"x": "degrees(d_x)"},
    "radians": {"x": "radians(d_x)"},
    "copysign": {"x": "where(copysign(1.0, x) == copysign(1.0, y), d_x, -d_x)", "y": ""},
    "mod": {"a": "d_a", "b": "-trunc(a / b) * d_b"},
    "abs": {"x": "where(x < 0.0, -d_x, d_x)"},
    "min": {"a": "where(a < b or isnan(b), d_a, 0.0)", "b": "where(a < b or isnan(b), 0.0, d_b)"},
    "max": {"a": "where(a > b or isnan(b), d_a, 0.0)", "b": "where(a > b or isnan(b), 0.0, d_b)"},
    "clamp": {
        "x": "where(max(low, x) < high and not low > x, d_x, 0.0)",
        "low": "where(max(low, x) < high and low > x, d_low, 0.0)",
        "high": "where(max(low, x) < high, 0.0, d_high)",
    },
    "lerp": {"a": "d_a * (1.0 - t)", "b": "d_b * t", "t": "(b - a) * d_t"},
    "smoothstep": {
        "a": "6.0 * {u} * (1.0 - {u}) * (-d_a * (1.0 - {u}) / (b - a))",
        "b": "6.0 * {u} * (1.0 - {u}) * (-d_b * {u} / (b - a))",
        "x": "6.0 * {u} * (1.0 - {u}) * (d_x / (b - a))",
    },
    "length": {"a": "dot(a, d_a) / where(r > 0.0, r, 1.0)"},
    "length_sq": {"a": "2.0 * dot(a, d_a)"},
    "normalize": {
        "a": "(d_a - r * dot(r, d_a)) * where(length(a) > 0.0, 1.0 / where(length(a) > 0.0, length(a), 1.0), 0.0)"
    },
    "inverse": {"a": "-(r * d_a * r)"},
    "inverse_approx": {"a": "-(r * d_a * r)"},
    "div": {"a": "d_a / b", "b": "-(r * d_b) / b"},
    "div_approx": {"a": "d_a / b", "b": "-(r * d_b) / b"},
    "cw_div": {"a": "cw_div(d_a, b)", "b": "-cw_div(cw_mul(r, d_b), b)"},
}
ROWS["smoothstep"] = {
    name: term.replace("{u}", "clamp((x - a) / (b - a), 0.0, 1.0)") for name, term in ROWS["smoothstep"].items()
}

COMPONENTWISE = frozenset({"abs", "min", "max", "clamp", "mod"})
"""Rows that hold component by component where the builtin is given vectors or matrices."""

PRODUCTS = frozenset(
    {"mul", "dot", "ddot", "cross", "outer", "cw_mul", "spatial_dot", "spatial_cross", "spatial_cross_dual"}
)
"""Linear in each argument: the tangent is the sum over arguments of the same call with one of them replaced."""

LINEAR = frozenset(
    {"add", "sub", "neg", "pos", "where", "skew", "trace", "transpose", "diag", "get_diag", "quat_inverse"}
    | {"spatial_top", "spatial_bottom", "spatial_vector", "transform_get_rotation", "transform_get_translation"}
    | {"transform_set_rotation_copy", "transform_set_translation_copy", "vector", "matrix", "quaternion"}
    | {"transformation", "matrix_from_cols", "matrix_from_rows", "float16", "float32", "float64", "bfloat16", "float"}
    | {"copy", "assign_copy"}
)
"""Linear in all arguments together: the tangent is the same call of the tangents."""

FLAT = frozenset(
    {"ceil", "floor", "round", "rint", "trunc", "sign", "step", "floordiv", "nonzero", "isnan", "isinf", "isfinite"}
    | {"argmin", "argmax", "lower_bound", "len", "int", "bool", "print", "printf", "expect_eq", "expect_near"}
    | {"expect_neq", "hash_grid_query", "range", "reversed"}
)
"""Constant almost everywhere, and taken for that by Warp's adjoint too."""


# --- builtins as compositions: their tangent is made from this source, as a user's function's is ----------------------


def quat_rotate(quat: Any, vec: Any):  # type: ignore[no-untyped-def]
    v = type(vec)(quat[0], quat[1], quat[2])
    w = quat[3]
    d = wp.dot(v, vec)
    return vec * (w * w + w * w - type(w)(1.0)) + v * (d + d) + wp.cross(v, vec) * (w + w)


def quat_rotate_inv(quat: Any, vec: Any):  # type: ignore[no-untyped-def]
    return wp.quat_rotate(wp.quat_inverse(quat), vec)


def quat_from_axis_angle(axis: Any, angle: Any):  # type: ignore[no-untyped-def]
    half = angle * type(angle)(0.5)
    return wp.quaternion(axis * wp.sin(half), wp.cos(half))


def quat_to_axis_angle(quat: Any):  # type: ignore[no-untyped-def]
    w = quat[3]
    zero = type(w)(0.0)
    v = wp.vector(quat[0], quat[1], quat[2])
    axis = wp.normalize(v)
    if w < zero:
        axis = -axis
    half = wp.atan2(wp.length(v), wp.abs(w))
    return axis, half + half


def quat_rpy(roll: Any, pitch: Any, yaw: Any):  # type: ignore[no-untyped-def]
    half = type(roll)(0.5)
    cy = wp.cos(yaw * half)
    sy = wp.sin(yaw * half)
    cr = wp.cos(roll * half)
    sr = wp.sin(roll * half)
    cp = wp.cos(pitch * half)
    sp = wp.sin(pitch * half)
    return wp.quaternion(
        cy * sr * cp - sy * cr * sp,
        cy * cr * sp + sy * sr * cp,
        sy * cr * cp - cy * sr * sp,
        cy * cr * cp + sy * sr * sp,
    )


def quat_slerp(a: Any, b: Any, t: Any):  # type: ignore[no-untyped-def]
    axis, angle = wp.quat_to_axis_angle(wp.quat_inverse(a) * b)
    return a * wp.quat_from_axis_angle(axis, t * angle)


def quat_to_matrix(quat: Any):  # type: ignore[no-untyped-def]
    one = type(quat[3])(1.0)
    zero = type(quat[3])(0.0)
    return wp.matrix_from_cols(
        wp.quat_rotate(quat, wp.vector(one, zero, zero)),
        wp.quat_rotate(quat, wp.vector(zero, one, zero)),
        wp.quat_rotate(quat, wp.vector(zero, zero, one)),
    )


def quat_from_matrix(mat: Any):  # type: ignore[no-untyped-def]
    one = type(mat[0, 0])(1.0)
    a = mat[0, 0]
    b = mat[1, 1]
    c = mat[2, 2]
    x = mat[2, 1] - mat[1, 2]
    y = mat[0, 2] - mat[2, 0]
    z = mat[1, 0] - mat[0, 1]
    w = one + a + b + c
    if a + b + c < one - one:
        if b > a:
            if c > b:
                w = z
                x = mat[2, 0] + mat[0, 2]
                y = mat[1, 2] + mat[2, 1]
                z = one + c - a - b
            else:
                w = y
                x = mat[0, 1] + mat[1, 0]
                z = mat[1, 2] + mat[2, 1]
                y = one + b - c - a
        else:
            if c > a:
                w = z
                x = mat[2, 0] + mat[0, 2]
                y = mat[1, 2] + mat[2, 1]
                z = one + c - a - b
            else:
                w = x
                y = mat[0, 1] + mat[1, 0]
                z = mat[2, 0] + mat[0, 2]
                x = one + a - b - c
    return wp.normalize(wp.quaternion(x, y, z, w))


def transform_point(xform: Any, point: Any):  # type: ignore[no-untyped-def]
    return wp.transform_get_translation(xform) + wp.quat_rotate(wp.transform_get_rotation(xform), point)


def transform_vector(xform: Any, vec: Any):  # type: ignore[no-untyped-def]
    return wp.quat_rotate(wp.transform_get_rotation(xform), vec)


def transform_multiply(a: Any, b: Any):  # type: ignore[no-untyped-def]
    q = wp.transform_get_rotation(a)
    p = wp.quat_rotate(q, wp.transform_get_translation(b)) + wp.transform_get_translation(a)
    return wp.transformation(p, q * wp.transform_get_rotation(b))


def transform_inverse(xform: Any):  # type: ignore[no-untyped-def]
    q = wp.quat_inverse(wp.transform_get_rotation(xform))
    return wp.transformation(-wp.quat_rotate(q, wp.transform_get_translation(xform)), q)


def matrix_point(mat: Any, point: Any):  # type: ignore[no-untyped-def]
    return wp.transform_vector(mat, point) + type(point)(mat[0, 3], mat[1, 3], mat[2, 3])


def matrix_vector(mat: Any, vec: Any):  # type: ignore[no-untyped-def]
    return type(vec)(
        mat[0, 0] * vec[0] + mat[0, 1] * vec[1] + mat[0, 2] * vec[2],
        mat[1, 0] * vec[0] + mat[1, 1] * vec[1] + mat[1, 2] * vec[2],
        mat[2, 0] * vec[0] + mat[2, 1] * vec[1] + mat[2, 2] * vec[2],
    )


def least(a: Any):  # type: ignore[no-untyped-def]
    return a[wp.argmin(a)]


def greatest(a: Any):  # type: ignore[no-untyped-def]
    return a[wp.argmax(a)]


COMPOSED: dict[tuple[str, str], Callable[..., Any]] = {
    ("quat_rotate", "quat"): quat_rotate,
    ("quat_rotate_inv", "quat"): quat_rotate_inv,
    ("quat_from_axis_angle", "axis"): quat_from_axis_angle,
    ("quat_to_axis_angle", "quat"): quat_to_axis_angle,
    ("quat_rpy", "roll"): quat_rpy,
    ("quat_slerp", "a"): quat_slerp,
    ("quat_to_matrix", "quat"): quat_to_matrix,
    ("quat_from_matrix", "mat"): quat_from_matrix,
    ("transform_point", "xform"): transform_point,
    ("transform_vector", "xform"): transform_vector,
    ("transform_point", "mat"): matrix_point,
    ("transform_vector", "mat"): matrix_vector,
    ("transform_multiply", "a"): transform_multiply,
    ("transform_inverse", "xform"): transform_inverse,
    ("min", "a"): least,
    ("max", "a"): greatest,
}
"""By the builtin's name and its first parameter; ``min`` and ``max`` of one vector."""


@functools.cache
def composed(function: Callable[..., Any]) -> Any:
    """A composition as a ``wp.func``, made when it is first wanted."""
    return wp.func(function, module="unique")
