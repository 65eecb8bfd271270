"""Builtins whose tangents are made from source: compositions of others, derived as the user's functions are, and
decompositions of matrices, whose values and tangents one function gives."""

# mypy: disable-error-code="no-untyped-def,operator,call-overload,arg-type,index"
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import warp as wp


def quat_rotate(quat: Any, vec: Any):
    v = type(vec)(quat[0], quat[1], quat[2])
    w = quat[3]
    d = wp.dot(v, vec)
    return vec * (w * w + w * w - type(w)(1.0)) + v * (d + d) + wp.cross(v, vec) * (w + w)


def quat_rotate_inv(quat: Any, vec: Any):
    return wp.quat_rotate(wp.quat_inverse(quat), vec)


def quat_from_axis_angle(axis: Any, angle: Any):
    half = angle * type(angle)(0.5)
    return wp.quaternion(axis * wp.sin(half), wp.cos(half))


def quat_to_axis_angle(quat: Any):
    w = quat[3]
    zero = type(w)(0.0)
    v = wp.vector(quat[0], quat[1], quat[2])
    axis = wp.normalize(v)
    if w < zero:
        axis = -axis
    half = wp.atan2(wp.length(v), wp.abs(w))
    return axis, half + half


def quat_rpy(roll: Any, pitch: Any, yaw: Any):
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


def quat_slerp(a: Any, b: Any, t: Any):
    axis, angle = wp.quat_to_axis_angle(wp.quat_inverse(a) * b)
    return a * wp.quat_from_axis_angle(axis, t * angle)


def quat_to_matrix(quat: Any):
    one = type(quat[3])(1.0)
    zero = type(quat[3])(0.0)
    return wp.matrix_from_cols(
        wp.quat_rotate(quat, wp.vector(one, zero, zero)),
        wp.quat_rotate(quat, wp.vector(zero, one, zero)),
        wp.quat_rotate(quat, wp.vector(zero, zero, one)),
    )


def quat_from_matrix(mat: Any):
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


def transform_point(xform: Any, point: Any):
    return wp.transform_get_translation(xform) + wp.quat_rotate(wp.transform_get_rotation(xform), point)


def transform_vector(xform: Any, vec: Any):
    return wp.quat_rotate(wp.transform_get_rotation(xform), vec)


def transform_multiply(a: Any, b: Any):
    q = wp.transform_get_rotation(a)
    p = wp.quat_rotate(q, wp.transform_get_translation(b)) + wp.transform_get_translation(a)
    return wp.transformation(p, q * wp.transform_get_rotation(b))


def transform_inverse(xform: Any):
    q = wp.quat_inverse(wp.transform_get_rotation(xform))
    return wp.transformation(-wp.quat_rotate(q, wp.transform_get_translation(xform)), q)


def matrix_point(mat: Any, point: Any):
    return wp.transform_vector(mat, point) + type(point)(mat[0, 3], mat[1, 3], mat[2, 3])


def matrix_vector(mat: Any, vec: Any):
    return type(vec)(
        mat[0, 0] * vec[0] + mat[0, 1] * vec[1] + mat[0, 2] * vec[2],
        mat[1, 0] * vec[0] + mat[1, 1] * vec[1] + mat[1, 2] * vec[2],
        mat[2, 0] * vec[0] + mat[2, 1] * vec[1] + mat[2, 2] * vec[2],
    )


def least(a: Any):
    return a[wp.argmin(a)]


def greatest(a: Any):
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


def svd2(a: Any, d_a: Any, least: Any):
    u, s, v = wp.svd2(a)
    p = wp.transpose(u) * d_a * v
    zero = least - least
    one = type(least)(1.0)
    f = one / wp.min(s[1] * s[1] - s[0] * s[0], -least)
    between = type(a)(zero, f, -f, zero)
    ps = p * wp.diag(s)
    sp = wp.diag(s) * p
    d_u = u * wp.cw_mul(between, ps + wp.transpose(ps))
    d_v = v * wp.cw_mul(between, sp + wp.transpose(sp))
    return u, s, v, d_u, wp.get_diag(p), d_v


def svd3(a: Any, d_a: Any, least: Any):
    u, s, v = wp.svd3(a)
    p = wp.transpose(u) * d_a * v
    zero = least - least
    one = type(least)(1.0)
    f = one / wp.min(s[1] * s[1] - s[0] * s[0], -least)
    g = one / wp.min(s[2] * s[2] - s[0] * s[0], -least)
    h = one / wp.min(s[2] * s[2] - s[1] * s[1], -least)
    between = type(a)(zero, f, g, -f, zero, h, -g, -h, zero)
    ps = p * wp.diag(s)
    sp = wp.diag(s) * p
    d_u = u * wp.cw_mul(between, ps + wp.transpose(ps))
    d_v = v * wp.cw_mul(between, sp + wp.transpose(sp))
    return u, s, v, d_u, wp.get_diag(p), d_v


def eig3(a: Any, d_a: Any, least: Any):
    q, d = wp.eig3(a)
    p = wp.transpose(q) * d_a * q
    zero = least - least
    one = type(least)(1.0)
    x = d[1] - d[0]
    y = d[2] - d[0]
    z = d[2] - d[1]
    f = one / wp.copysign(wp.max(wp.abs(x), least), x)
    g = one / wp.copysign(wp.max(wp.abs(y), least), y)
    h = one / wp.copysign(wp.max(wp.abs(z), least), z)
    between = type(a)(zero, f, g, -f, zero, h, -g, -h, zero)
    return q, d, q * wp.cw_mul(between, p), wp.get_diag(p)


def qr3(a: Any, d_a: Any, least: Any):
    q, r = wp.qr3(a)
    p = wp.transpose(q) * d_a * wp.inverse(r)
    zero = least - least
    upper = type(a)(
        p[0, 0],
        p[1, 0] + p[0, 1],
        p[2, 0] + p[0, 2],
        zero,
        p[1, 1],
        p[2, 1] + p[1, 2],
        zero,
        zero,
        p[2, 2],
    )
    return q, r, q * (p - upper), upper * r


DECOMPOSED: dict[str, tuple[Callable[..., Any], float]] = {
    "svd2": (svd2, 1e-12),
    "svd3": (svd3, 1e-12),
    "eig3": (eig3, 1e-6),
    "qr3": (qr3, 0.0),
}
"""By the builtin's name: of a matrix, its tangent and the least distance between values that are told apart, the results
and their tangents; and that distance in double precision, as Warp's adjoints have it. In others it is 1e-6."""


@functools.cache
def composed(function: Callable[..., Any]) -> Any:
    """A composition as a ``wp.func``, made when it is first wanted."""
    return wp.func(function, module="unique")
