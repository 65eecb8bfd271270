"""Warp's builtins, a row for each: what it does to arrays and variables, and what of its arguments its derivatives need.

Names that end in ``*`` are families, for what has no row of its own. What has neither may change nothing that it is given,
and its adjoint may need all of it.

A tangent is a sum of terms, one for each parameter: ``d_x`` is the tangent of ``x``, ``r`` the result. Terms are made of
builtins that Warp differentiates, so that the tangent kernel has an adjoint of its own. At kinks and ties they choose what
Warp's adjoint chooses. Numbers take the scalar type of the result.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Needs = Literal["all", "nothing", "others", "divisor", "zero"]


@dataclass(frozen=True)
class Row:
    """What is known of a builtin."""

    form: str = ""
    """How its effects and result follow, by the names of ``builtins.HANDLERS``; empty where numbers are made of numbers."""
    array: tuple[str, int] | None = None
    """The array that it touches, by the argument's name and position."""
    writes: Literal["", "arguments", "results", "third", "state", "object"] = ""
    """What it changes: any variables given to it, those behind the first, the third, a random state (the first), or Warp's
    object."""
    sums: bool = False
    """An update of which the adjoint neither reads the array nor consumes its cotangent."""
    handle: str = ""
    """The class of Warp's object whose id it takes first."""
    needs: Needs = "all"
    """The arguments whose values its adjoint needs: for another's gradient, or the divisor. ``zero``: it has no gradient."""
    merges: bool = False
    """An operator that may well make one number of several coordinates."""
    shares: bool = False
    """It has no adjoint of its own: its result shares its adjoint with an argument."""
    rewritten: bool = False
    """It can be written so that Warp differentiates it."""
    left_out: int | None = None
    """The argument that has a derivative, and that Warp's adjoint leaves out."""
    tangent: Literal["", "linear", "product", "symmetric", "flat"] | Mapping[str, str] = ""
    """The same call of the tangents; a sum of calls with one argument replaced, which may change places; zero; or terms."""
    whole: str = "total"
    """What the tangent is, made of the ``total`` of the terms."""
    by_component: bool = False
    """The terms hold component by component where it is given vectors or matrices."""

    @property
    def terms(self) -> Mapping[str, str]:
        """The terms of the tangent, by parameter."""
        return {} if isinstance(self.tangent, str) else self.tangent


def _terms(**by_parameter: str) -> dict[str, str]:
    return by_parameter


_PLAIN = Row()
_LINEAR = Row(needs="nothing", tangent="linear")
_CONSTANT = Row(needs="nothing")
_PRODUCT = Row(needs="others", tangent="product")
_SYMMETRIC = Row(needs="others", tangent="symmetric")
_FLAT = Row(needs="zero", tangent="flat")
_ZERO = Row(needs="zero")
_CHANGES = Row(writes="arguments")
_RESULTS = Row(writes="results")
_RANDOM = Row(writes="state")
_LOCAL = Row("array")
_ATOMIC = Row("atomic", ("arr", 0))
_INTEGER = Row("integer")
_NARROW = Row("narrow")
_FLOAT = Row("float", tangent="linear")
_QUERY = Row(needs="zero")
_UNIT = "clamp((x - a) / (b - a), 0.0, 1.0)"

ROWS: dict[str, Row] = {
    # Threads, sizes, types
    "tid": Row("thread", needs="zero"),
    "block_dim": _ZERO,
    "len": Row("length", needs="zero", tangent="flat"),
    "int": Row("integer", tangent="flat"),
    "int32": _INTEGER,
    "int64": _INTEGER,
    "uint32": _INTEGER,
    "uint64": _INTEGER,
    "int8": _NARROW,
    "int16": _NARROW,
    "uint8": _NARROW,
    "uint16": _NARROW,
    "bool": Row("narrow", tangent="flat"),
    "float": _FLOAT,
    "float16": _FLOAT,
    "float32": _FLOAT,
    "float64": _FLOAT,
    "bfloat16": _FLOAT,
    "range": Row(tangent="flat"),
    "reversed": Row(tangent="flat"),
    "print": _FLAT,
    "printf": _FLAT,
    "expect_eq": _FLAT,
    "expect_neq": _FLAT,
    "expect_near": _FLAT,
    # Choices, bounds, operators
    "where": Row("choice", tangent="linear"),
    "select": Row("choice"),
    "min": Row(
        "bounds",
        tangent=_terms(a="where(a < b or isnan(b), d_a, 0.0)", b="where(a < b or isnan(b), 0.0, d_b)"),
        by_component=True,
    ),
    "max": Row(
        "bounds",
        tangent=_terms(a="where(a > b or isnan(b), d_a, 0.0)", b="where(a > b or isnan(b), 0.0, d_b)"),
        by_component=True,
    ),
    "clamp": Row(
        "bounds",
        tangent=_terms(
            x="where(max(low, x) < high and not low > x, d_x, 0.0)",
            low="where(max(low, x) < high and low > x, d_low, 0.0)",
            high="where(max(low, x) < high, 0.0, d_high)",
        ),
        by_component=True,
    ),
    "add": Row("operator", needs="nothing", tangent="linear"),
    "sub": Row("operator", needs="nothing", tangent="linear"),
    "mul": Row("operator", needs="others", tangent="symmetric"),
    "div": Row("operator", needs="divisor", merges=True, tangent=_terms(a="d_a", b="-(r * d_b)"), whole="total / b"),
    "div_approx": Row(tangent=_terms(a="d_a", b="-(r * d_b)"), whole="total / b"),
    "div_by_components": Row(tangent=_terms(a="d_a / b", b="-cw_div(cw_mul(r, d_b), b)")),
    "mod": Row(
        "operator",
        merges=True,
        rewritten=True,
        left_out=1,
        tangent=_terms(a="d_a", b="-trunc(a / b) * d_b"),
        by_component=True,
    ),
    "floordiv": Row("operator", needs="zero", merges=True, tangent="flat"),
    "rshift": Row(needs="zero", merges=True),
    "lshift": _ZERO,
    "bit_and": Row(needs="zero", merges=True),
    "bit_or": _ZERO,
    "bit_xor": _ZERO,
    "invert": _ZERO,
    "unot": _ZERO,
    "neg": _LINEAR,
    "pos": _LINEAR,
    "copy": _LINEAR,
    "assign_copy": Row(tangent="linear"),
    "extract": _CONSTANT,
    # Functions of numbers
    "sin": Row(tangent=_terms(x="cos(x) * d_x")),
    "cos": Row(tangent=_terms(x="-sin(x) * d_x")),
    "tan": Row(tangent=_terms(x="d_x / (cos(x) * cos(x))")),
    "asin": Row(
        tangent=_terms(x="where(1.0 - x * x > 0.0, d_x / sqrt(where(1.0 - x * x > 0.0, 1.0 - x * x, 1.0)), 0.0)")
    ),
    "acos": Row(
        tangent=_terms(x="where(1.0 - x * x > 0.0, -d_x / sqrt(where(1.0 - x * x > 0.0, 1.0 - x * x, 1.0)), 0.0)")
    ),
    "atan": Row(tangent=_terms(x="d_x / (1.0 + x * x)")),
    "atan2": Row(
        tangent=_terms(y="x * d_y", x="-y * d_x"),
        whole="total / where(x * x + y * y > 0.0, x * x + y * y, 1.0)",
    ),
    "sinh": Row(tangent=_terms(x="cosh(x) * d_x")),
    "cosh": Row(tangent=_terms(x="sinh(x) * d_x")),
    "tanh": Row(tangent=_terms(x="(1.0 - r * r) * d_x")),
    "exp": Row(tangent=_terms(x="r * d_x")),
    "log": Row(tangent=_terms(x="d_x / x")),
    "log2": Row(tangent=_terms(x="d_x / (x * 0.6931471805599453)")),
    "log10": Row(tangent=_terms(x="d_x / (x * 2.302585092994046)")),
    "sqrt": Row(tangent=_terms(x="0.5 * d_x / r")),
    "cbrt": Row(tangent=_terms(x="d_x / (3.0 * r * r)")),
    "pow": Row(tangent=_terms(x="y * pow(x, y - 1.0) * d_x", y="log(x) * r * d_y")),
    "erf": Row(tangent=_terms(x="1.1283791670955126 * exp(-x * x) * d_x")),
    "erfc": Row(tangent=_terms(x="-1.1283791670955126 * exp(-x * x) * d_x")),
    "erfinv": Row(tangent=_terms(x="0.886226925452758 * exp(r * r) * d_x")),
    "erfcinv": Row(tangent=_terms(x="-0.886226925452758 * exp(r * r) * d_x")),
    "degrees": Row(tangent=_terms(x="degrees(d_x)")),
    "radians": Row(tangent=_terms(x="radians(d_x)")),
    "copysign": Row(tangent=_terms(x="where(copysign(1.0, x) == copysign(1.0, y), d_x, -d_x)", y="")),
    "abs": Row(tangent=_terms(x="where(x < 0.0, -d_x, d_x)"), by_component=True),
    "lerp": Row(tangent=_terms(a="d_a * (1.0 - t)", b="d_b * t", t="(b - a) * d_t")),
    "smoothstep": Row(
        tangent=_terms(a=f"-d_a * (1.0 - {_UNIT})", b=f"-d_b * {_UNIT}", x="d_x"),
        whole=f"total * (6.0 * {_UNIT} * (1.0 - {_UNIT}) / (b - a))",
    ),
    "frac": Row(rewritten=True),
    "floor": _FLAT,
    "ceil": _FLAT,
    "round": _FLAT,
    "rint": _FLAT,
    "trunc": _FLAT,
    "sign": _FLAT,
    "step": _FLAT,
    "nonzero": _FLAT,
    "isnan": _FLAT,
    "isinf": _FLAT,
    "isfinite": _FLAT,
    # Random numbers
    "rand_init": _PLAIN,
    "rand*": _RANDOM,
    "sample_*": _RANDOM,
    "sample_cdf": Row("reads", ("cdf", 1), writes="state"),
    "poisson": _RANDOM,
    # Vectors, matrices, quaternions, transforms
    "vector": _LINEAR,
    "matrix": _LINEAR,
    "quaternion": _LINEAR,
    "transformation": _LINEAR,
    "spatial_vector": _LINEAR,
    "matrix_from_cols": _LINEAR,
    "matrix_from_rows": _LINEAR,
    "identity": _CONSTANT,
    "quat_identity": _CONSTANT,
    "transform_identity": _CONSTANT,
    "dot": _SYMMETRIC,
    "ddot": _SYMMETRIC,
    "cross": _PRODUCT,
    "outer": _PRODUCT,
    "cw_mul": _SYMMETRIC,
    "cw_div": Row(tangent=_terms(a="cw_div(d_a, b)", b="-cw_div(cw_mul(r, d_b), b)")),
    "spatial_dot": _SYMMETRIC,
    "spatial_cross": _PRODUCT,
    "spatial_cross_dual": _PRODUCT,
    "spatial_adjoint": Row(tangent="linear"),
    "spatial_top": _LINEAR,
    "spatial_bottom": _LINEAR,
    "skew": _LINEAR,
    "diag": _LINEAR,
    "get_diag": _LINEAR,
    "trace": _LINEAR,
    "transpose": _LINEAR,
    "length": Row(tangent=_terms(a="dot(a, d_a) / where(r > 0.0, r, 1.0)")),
    "length_sq": Row(tangent=_terms(a="2.0 * dot(a, d_a)")),
    "normalize": Row(
        tangent=_terms(
            a="(d_a - r * dot(r, d_a)) * where(length(a) > 0.0, 1.0 / where(length(a) > 0.0, length(a), 1.0), 0.0)"
        )
    ),
    "inverse": Row(tangent=_terms(a="-(r * d_a * r)")),
    "inverse_approx": Row(tangent=_terms(a="-(r * d_a * r)")),
    "argmin": _FLAT,
    "argmax": _FLAT,
    "svd*": _RESULTS,
    "qr3": _RESULTS,
    "eig3": _RESULTS,
    "quat_to_axis_angle": _RESULTS,
    "quat_inverse": Row(tangent="linear"),
    "transform_get_rotation": _LINEAR,
    "transform_get_translation": _LINEAR,
    "transform_set_rotation_copy": Row(tangent="linear"),
    "transform_set_translation_copy": Row(tangent="linear"),
    # Arrays
    "zeros": _LOCAL,
    "ones": _LOCAL,
    "empty": _LOCAL,
    "full": _LOCAL,
    "array_store": Row("store", ("arr", 0)),
    "view": Row("view", ("arr", 0)),
    "address": Row("view", ("arr", 0)),
    "atomic_*": _ATOMIC,
    "atomic_add": Row("atomic", ("arr", 0), sums=True),
    "atomic_sub": Row("atomic", ("arr", 0), sums=True),
    "lower_bound": Row("reads", ("arr", 0), needs="zero", tangent="flat"),
    # Warp's objects
    "mesh_*": Row(handle="Mesh"),
    "mesh_get": Row("mesh", handle="Mesh"),
    "mesh_get_point": Row("mesh", handle="Mesh"),
    "mesh_get_velocity": Row("mesh", handle="Mesh"),
    "mesh_eval_*": Row(writes="arguments", handle="Mesh"),
    "mesh_eval_face_normal": Row("mesh", writes="arguments", handle="Mesh"),
    "mesh_query_*": Row(writes="arguments", handle="Mesh"),
    "mesh_query_aabb*": Row(writes="arguments", handle="Mesh", needs="zero"),
    "tile_mesh_*": Row(handle="Mesh"),
    "tile_mesh_query_*": Row(handle="Mesh", needs="zero"),
    "bvh_*": Row(handle="Bvh"),
    "bvh_query_*": Row(writes="arguments", handle="Bvh", needs="zero"),
    "tile_bvh_*": Row(handle="Bvh"),
    "tile_bvh_query_*": Row(handle="Bvh", needs="zero"),
    "hash_grid_*": Row(handle="HashGrid"),
    "hash_grid_query": Row(handle="HashGrid", needs="zero", tangent="flat"),
    "hash_grid_query_*": Row(writes="arguments", handle="HashGrid", needs="zero"),
    "volume_*": Row(handle="Volume"),
    "volume_store*": Row(writes="object", handle="Volume"),
    "volume_sample_grad*": Row(writes="arguments", handle="Volume"),
    "volume_sample_index": Row("reads", ("voxel_data", 3), handle="Volume"),
    "volume_sample_grad_index": Row("reads", ("voxel_data", 3), writes="arguments", handle="Volume"),
    "volume_index_to_world": Row(handle="Volume", tangent=_terms(uvw="volume_index_to_world_dir(id, d_uvw)")),
    "volume_index_to_world_dir": Row(handle="Volume", tangent=_terms(uvw="volume_index_to_world_dir(id, d_uvw)")),
    "volume_world_to_index": Row(handle="Volume", tangent=_terms(xyz="volume_world_to_index_dir(id, d_xyz)")),
    "volume_world_to_index_dir": Row(handle="Volume", tangent=_terms(xyz="volume_world_to_index_dir(id, d_xyz)")),
    # Tiles
    "tile": _LINEAR,
    "untile": _LINEAR,
    "tile_zeros": _CONSTANT,
    "tile_ones": _CONSTANT,
    "tile_full": _CONSTANT,
    "tile_from_thread": _CONSTANT,
    "tile_load": Row("tile load", ("a", 0), tangent="linear"),
    "tile_load_indexed": Row("tile load", ("a", 0)),
    "tile_store": Row("tile store", ("a", 0)),
    "tile_store_indexed": Row("tile store", ("a", 0)),
    "tile_atomic_add": Row("tile atomic", ("a", 0), sums=True),
    "tile_atomic_add_indexed": Row("tile atomic", ("a", 0), sums=True),
    "tile_view": Row(needs="nothing", shares=True, tangent="linear"),
    "tile_assign": Row(shares=True),
    "tile_squeeze": _LINEAR,
    "tile_reshape": _LINEAR,
    "tile_transpose": _LINEAR,
    "tile_broadcast": _LINEAR,
    "tile_sum": _LINEAR,
    "tile_extract": _LINEAR,
    "tile_astype": _LINEAR,
    "tile_matmul": Row(writes="third", needs="others", tangent="product"),
    "tile_dot": Row(needs="others"),
    "tile_argmin": _ZERO,
    "tile_argmax": _ZERO,
    "tile_query_*": Row(writes="arguments", needs="zero"),
    "tile_stack*": _CHANGES,
    "tile_sort*": _CHANGES,
    "tile_cholesky_inplace": _CHANGES,
    "tile_cholesky_solve_inplace": _CHANGES,
    "tile_lower_solve_inplace": _CHANGES,
    "tile_upper_solve_inplace": _CHANGES,
}


@functools.cache
def row(name: str) -> Row:
    """What is known of a builtin: its own row, or that of the smallest family that it belongs to."""
    if name in ROWS:
        return ROWS[name]
    families = [start for start in ROWS if start.endswith("*") and name.startswith(start[:-1])]
    return ROWS[max(families, key=len)] if families else _PLAIN
