"""Warp's builtins: what each does to arrays and variables, and what of its arguments its derivatives need.

Names that end in ``*`` are families, for what has no row of its own. What has neither may change nothing that it is given,
and its adjoint may need all of it; it has no gradient where Warp says that it returns no floats.

A tangent is a sum of terms, one for each parameter: ``d_x`` is the tangent of ``x``, ``r`` the result. Terms are made of
builtins that Warp differentiates, so that the tangent kernel has an adjoint of its own. At kinks and ties they choose what
Warp's adjoint chooses. Numbers take the scalar type of the result.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Literal

from ..frozen import frozen

Needs = Literal["all", "nothing", "others", "divisor", "zero"]


@frozen
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


def _chosen(test: str) -> dict[str, str]:
    return _terms(a=f"where({test}, d_a, 0.0)", b=f"where({test}, 0.0, d_b)")


_PLAIN = Row()
_LINEAR = Row(needs="nothing", tangent="linear")
_UNIT = "clamp((x - a) / (b - a), 0.0, 1.0)"


def _alike(names: str, row: Row) -> dict[str, Row]:
    return dict.fromkeys(names.split(), row)


ROWS: dict[str, Row] = {
    # Threads, sizes, types
    "tid": Row("thread", needs="zero"),
    "len": Row("length", needs="zero"),
    **_alike("int int32 int64 uint32 uint64", Row("integer")),
    **_alike("bool int8 int16 uint8 uint16", Row("narrow")),
    **_alike("float float16 float32 float64 bfloat16", Row("float", tangent="linear")),
    "print": Row(needs="zero", tangent="flat"),
    # Choices, bounds, operators
    "where": Row("choice", tangent="linear"),
    "select": Row("choice"),
    "min": Row("bounds", tangent=_chosen("a < b or isnan(b)"), by_component=True),
    "max": Row("bounds", tangent=_chosen("a > b or isnan(b)"), by_component=True),
    "clamp": Row(
        "bounds",
        tangent=_terms(
            x="where(max(low, x) < high and not low > x, d_x, 0.0)",
            low="where(max(low, x) < high and low > x, d_low, 0.0)",
            high="where(max(low, x) < high, 0.0, d_high)",
        ),
        by_component=True,
    ),
    **_alike("add sub", Row("operator", needs="nothing", tangent="linear")),
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
    **_alike("rshift bit_and", Row(needs="zero", merges=True)),
    **_alike("lshift bit_or bit_xor invert", Row(needs="zero")),
    **_alike("neg pos copy", _LINEAR),
    "assign_copy": Row(tangent="linear"),
    "extract": Row(needs="nothing"),
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
    "frac": Row(rewritten=True, tangent=_terms(x="d_x")),
    **_alike("floor ceil round rint trunc sign step nonzero", Row(needs="zero", tangent="flat")),
    # Random numbers
    "rand_init": _PLAIN,
    **_alike("rand* sample_* poisson", Row(writes="state")),
    "sample_cdf": Row("reads", ("cdf", 1), writes="state"),
    # Vectors, matrices, quaternions, transforms
    **_alike("vector matrix quaternion transformation spatial_vector", _LINEAR),
    **_alike("matrix_from_cols matrix_from_rows transpose trace", _LINEAR),
    **_alike("skew diag get_diag spatial_top spatial_bottom", _LINEAR),
    **_alike("transform_get_rotation transform_get_translation", _LINEAR),
    **_alike("transform_set_rotation_copy transform_set_translation_copy", Row(tangent="linear")),
    **_alike("quat_inverse spatial_adjoint", Row(tangent="linear")),
    **_alike("identity quat_identity transform_identity", Row(needs="nothing")),
    **_alike("dot ddot cw_mul spatial_dot", Row(needs="others", tangent="symmetric")),
    **_alike("cross outer spatial_cross spatial_cross_dual", Row(needs="others", tangent="product")),
    "cw_div": Row(tangent=_terms(a="cw_div(d_a, b)", b="-cw_div(cw_mul(r, d_b), b)")),
    "length": Row(tangent=_terms(a="dot(a, d_a) / where(r > 0.0, r, 1.0)")),
    "length_sq": Row(tangent=_terms(a="2.0 * dot(a, d_a)")),
    "normalize": Row(
        tangent=_terms(
            a="(d_a - r * dot(r, d_a)) * where(length(a) > 0.0, 1.0 / where(length(a) > 0.0, length(a), 1.0), 0.0)"
        )
    ),
    **_alike("inverse inverse_approx", Row(tangent=_terms(a="-(r * d_a * r)"))),
    **_alike("argmin argmax", Row(needs="zero")),
    **_alike("svd* qr3 eig3 quat_to_axis_angle", Row(writes="results")),
    # Arrays
    **_alike("zeros ones empty full", Row("array")),
    "array_store": Row("store", ("arr", 0)),
    **_alike("view address", Row("view", ("arr", 0))),
    "atomic_*": Row("atomic", ("arr", 0)),
    **_alike("atomic_add atomic_sub", Row("atomic", ("arr", 0), sums=True)),
    "lower_bound": Row("reads", ("arr", 0)),
    # Warp's objects
    **_alike("mesh_* tile_mesh_*", Row(handle="Mesh")),
    **_alike("mesh_get mesh_get_point mesh_get_velocity", Row("mesh", handle="Mesh")),
    **_alike("mesh_eval_* mesh_query_*", Row(writes="arguments", handle="Mesh")),
    "mesh_eval_face_normal": Row("mesh", writes="arguments", handle="Mesh"),
    "mesh_query_aabb*": Row(writes="arguments", handle="Mesh", needs="zero"),
    "tile_mesh_query_*": Row(handle="Mesh", needs="zero"),
    **_alike("bvh_* tile_bvh_*", Row(handle="Bvh")),
    "bvh_query_*": Row(writes="arguments", handle="Bvh", needs="zero"),
    "tile_bvh_query_*": Row(handle="Bvh", needs="zero"),
    "hash_grid_*": Row(handle="HashGrid"),
    "hash_grid_query": Row(handle="HashGrid", needs="zero"),
    "hash_grid_query_*": Row(writes="arguments", handle="HashGrid", needs="zero"),
    "volume_*": Row(handle="Volume"),
    "volume_store*": Row(writes="object", handle="Volume"),
    "volume_sample_grad*": Row(writes="arguments", handle="Volume"),
    "volume_sample_index": Row("reads", ("voxel_data", 3), handle="Volume"),
    "volume_sample_grad_index": Row("reads", ("voxel_data", 3), writes="arguments", handle="Volume"),
    **_alike(
        "volume_index_to_world volume_index_to_world_dir",
        Row(handle="Volume", tangent=_terms(uvw="volume_index_to_world_dir(id, d_uvw)")),
    ),
    **_alike(
        "volume_world_to_index volume_world_to_index_dir",
        Row(handle="Volume", tangent=_terms(xyz="volume_world_to_index_dir(id, d_xyz)")),
    ),
    # Tiles
    **_alike("tile untile tile_squeeze tile_reshape tile_transpose", _LINEAR),
    **_alike("tile_broadcast tile_sum tile_extract tile_astype", _LINEAR),
    **_alike("tile_zeros tile_ones tile_full tile_from_thread", Row(needs="nothing")),
    **_alike("tile_argmin tile_argmax", Row(needs="zero")),
    "tile_load": Row("tile load", ("a", 0), tangent="linear"),
    "tile_load_indexed": Row("tile load", ("a", 0)),
    **_alike("tile_store tile_store_indexed", Row("tile store", ("a", 0))),
    **_alike("tile_atomic_add tile_atomic_add_indexed", Row("tile atomic", ("a", 0), sums=True)),
    "tile_view": Row(needs="nothing", shares=True, tangent="linear"),
    "tile_assign": Row(shares=True),
    "tile_matmul": Row(writes="third", needs="others", tangent="product"),
    "tile_dot": Row(needs="others"),
    "tile_query_*": Row(writes="arguments", needs="zero"),
    **_alike("tile_stack* tile_sort* tile_cholesky_inplace tile_cholesky_solve_inplace", Row(writes="arguments")),
    **_alike("tile_lower_solve_inplace tile_upper_solve_inplace", Row(writes="arguments")),
}


@functools.cache
def row(name: str) -> Row:
    """What is known of a builtin: its own row, or that of the smallest family that it belongs to."""
    if name in ROWS:
        return ROWS[name]
    families = [start for start in ROWS if start.endswith("*") and name.startswith(start[:-1])]
    return ROWS[max(families, key=len)] if families else _PLAIN
