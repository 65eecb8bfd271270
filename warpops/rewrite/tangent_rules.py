"""Derivatives of Warp's builtins, as rows.

A row gives the tangent of a builtin's result as a sum of terms, one per parameter: ``d_x`` is the tangent of ``x``, ``r``
the result. Terms are made of builtins that Warp differentiates, so that the tangent kernel has an adjoint of its own. At
kinks and ties they choose what Warp's adjoint chooses. Numbers take the scalar type of the result.
"""

from __future__ import annotations

ROWS: dict[str, dict[str, str]] = {
    "sin": {"x": "cos(x) * d_x"},
    "cos": {"x": "-sin(x) * d_x"},
    "tan": {"x": "d_x / (cos(x) * cos(x))"},
    "asin": {"x": "where(1.0 - x * x > 0.0, d_x / sqrt(where(1.0 - x * x > 0.0, 1.0 - x * x, 1.0)), 0.0)"},
    "acos": {"x": "where(1.0 - x * x > 0.0, -d_x / sqrt(where(1.0 - x * x > 0.0, 1.0 - x * x, 1.0)), 0.0)"},
    "atan": {"x": "d_x / (1.0 + x * x)"},
    "atan2": {"y": "x * d_y", "x": "-y * d_x"},
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
    "smoothstep": {"a": "-d_a * (1.0 - {u})", "b": "-d_b * {u}", "x": "d_x"},
    "length": {"a": "dot(a, d_a) / where(r > 0.0, r, 1.0)"},
    "length_sq": {"a": "2.0 * dot(a, d_a)"},
    "normalize": {
        "a": "(d_a - r * dot(r, d_a)) * where(length(a) > 0.0, 1.0 / where(length(a) > 0.0, length(a), 1.0), 0.0)"
    },
    "inverse": {"a": "-(r * d_a * r)"},
    "inverse_approx": {"a": "-(r * d_a * r)"},
    "div": {"a": "d_a", "b": "-(r * d_b)"},
    "div_approx": {"a": "d_a", "b": "-(r * d_b)"},
    "div_by_components": {"a": "d_a / b", "b": "-cw_div(cw_mul(r, d_b), b)"},
    "volume_index_to_world": {"uvw": "volume_index_to_world_dir(id, d_uvw)"},
    "volume_index_to_world_dir": {"uvw": "volume_index_to_world_dir(id, d_uvw)"},
    "volume_world_to_index": {"xyz": "volume_world_to_index_dir(id, d_xyz)"},
    "volume_world_to_index_dir": {"xyz": "volume_world_to_index_dir(id, d_xyz)"},
    "cw_div": {"a": "cw_div(d_a, b)", "b": "-cw_div(cw_mul(r, d_b), b)"},
}

WHOLE: dict[str, str] = {
    "div": "total / b",
    "div_approx": "total / b",
    "atan2": "total / where(x * x + y * y > 0.0, x * x + y * y, 1.0)",
    "smoothstep": "total * (6.0 * {u} * (1.0 - {u}) / (b - a))",
}
"""What the tangent is where it isn't the sum of a row's terms, ``total``, but made of it."""

_UNIT = "clamp((x - a) / (b - a), 0.0, 1.0)"
ROWS["smoothstep"] = {name: term.replace("{u}", _UNIT) for name, term in ROWS["smoothstep"].items()}
WHOLE["smoothstep"] = WHOLE["smoothstep"].replace("{u}", _UNIT)

COMPONENTWISE = frozenset({"abs", "min", "max", "clamp", "mod"})
"""Rows that hold component by component where the builtin is given vectors or matrices."""

PRODUCTS = frozenset(
    {"mul", "dot", "ddot", "cross", "outer", "cw_mul", "spatial_dot", "spatial_cross", "spatial_cross_dual"}
)
"""Linear in each argument: the tangent is the sum over arguments of the same call with one of them replaced."""

SYMMETRIC = frozenset({"mul", "dot", "ddot", "cw_mul", "spatial_dot"})
"""Products whose arguments may change places; ``mul`` that of numbers."""

LINEAR = frozenset(
    {"add", "sub", "neg", "pos", "where", "skew", "trace", "transpose", "diag", "get_diag", "quat_inverse"}
    | {"spatial_top", "spatial_bottom", "spatial_vector", "transform_get_rotation", "transform_get_translation"}
    | {"transform_set_rotation_copy", "transform_set_translation_copy", "vector", "matrix", "quaternion"}
    | {"transformation", "matrix_from_cols", "matrix_from_rows", "float16", "float32", "float64", "bfloat16", "float"}
    | {"copy", "assign_copy", "spatial_adjoint"}
    | {"tile_load", "tile_sum", "tile_transpose", "tile_broadcast", "tile_reshape", "tile_squeeze", "tile_astype"}
    | {"tile", "untile", "tile_extract", "tile_view"}
)
"""Linear in all arguments together: the tangent is the same call of the tangents."""

FLAT = frozenset(
    {"ceil", "floor", "round", "rint", "trunc", "sign", "step", "floordiv", "nonzero", "isnan", "isinf", "isfinite"}
    | {"argmin", "argmax", "lower_bound", "len", "int", "bool", "print", "printf", "expect_eq", "expect_near"}
    | {"expect_neq", "hash_grid_query", "range", "reversed"}
)
"""Constant almost everywhere, and taken for that by Warp's adjoint too."""
