"""The tangent of every builtin that Warp differentiates: against finite differences, against Warp's own adjoint, and once
more for its own derivative. A builtin without a rule is refused by its name and line."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import warp._src.context as context

from warpops import GradientError, warp_op

SCALARS = {
    "abs": ["wp.abs(a)", "wp.abs(a - b)", "wp.abs(u - v)"],
    "acos": ["wp.acos(a)"],
    "asin": ["wp.asin(a)"],
    "atan": ["wp.atan(a)"],
    "atan2": ["wp.atan2(a, b)"],
    "cbrt": ["wp.cbrt(a)"],
    "clamp": ["wp.clamp(a, f64(0.3), f64(0.5))", "wp.clamp(a, b * f64(0.5), c)"],
    "copysign": ["wp.copysign(a, b - c)", "wp.copysign(a - b, f64(-1.0))"],
    "cos": ["wp.cos(a)"],
    "cosh": ["wp.cosh(a)"],
    "degrees": ["wp.degrees(a)"],
    "erf": ["wp.erf(a)"],
    "erfc": ["wp.erfc(a)"],
    "erfcinv": ["wp.erfcinv(a)"],
    "erfinv": ["wp.erfinv(a)"],
    "exp": ["wp.exp(a)"],
    "log": ["wp.log(a)"],
    "log10": ["wp.log10(a)"],
    "log2": ["wp.log2(a)"],
    "max": ["wp.max(a, b)", "wp.max(u)", "wp.max(u, v)"],
    "min": ["wp.min(a, b)", "wp.min(u)", "wp.min(u, v)"],
    "pow": ["wp.pow(a, b)", "a ** f64(3.0)"],
    "radians": ["wp.radians(a)"],
    "sin": ["wp.sin(a)"],
    "sinh": ["wp.sinh(a)"],
    "sqrt": ["wp.sqrt(a)"],
    "tan": ["wp.tan(a)"],
    "tanh": ["wp.tanh(a)"],
    "lerp": ["wp.lerp(a, b, c)", "wp.lerp(u, v, c)"],
    "smoothstep": ["wp.smoothstep(f64(0.1), f64(0.9), a)", "wp.smoothstep(a * f64(0.1), b + f64(1.0), c)"],
    "where": ["wp.where(a > b, a * c, b)", "wp.where(a > b, u, v * c)"],
    "float64": ["f64(a)", "f64(3)", "wp.float64(wp.floor(a) + a)"],
    "add": ["a + b", "u + v", "m + n", "q + p"],
    "sub": ["a - b", "u - v", "m - n", "q - p"],
    "mul": ["a * b", "a * u", "u * a", "m * u", "m * n", "m * a", "q * p", "q * a", "t * w", "g * g"],
    "div": ["a / b", "u / a", "m / a", "q / a", "a / u"],
    "mod": ["wp.mod(a, f64(0.25))"],
    "frac": ["wp.frac(a * b * f64(5.0))", "wp.frac(-a) * c"],
    "neg": ["-a", "-u", "-m", "-q"],
    "pos": ["+a", "+u"],
}

VECTORS = {
    "cross": ["wp.cross(u, v)"],
    "cw_div": ["wp.cw_div(u, v)", "wp.cw_div(m, n)"],
    "cw_mul": ["wp.cw_mul(u, v)", "wp.cw_mul(m, n)"],
    "ddot": ["wp.ddot(m, n)"],
    "determinant": ["wp.determinant(m)", "wp.determinant(g)"],
    "diag": ["wp.diag(u)"],
    "dot": ["wp.dot(u, v)", "wp.dot(q, p)"],
    "get_diag": ["wp.get_diag(m)"],
    "inverse": ["wp.inverse(m)", "wp.inverse(g)"],
    "length": ["wp.length(u)", "wp.length(q)"],
    "length_sq": ["wp.length_sq(u)", "wp.length_sq(q)"],
    "matrix": ["wp.mat22d(a, b, c, a * b)", "wp.matrix(a, b, c, a * c, shape=(2, 2))"],
    "matrix_from_cols": ["wp.matrix_from_cols(u, v, u * a)"],
    "matrix_from_rows": ["wp.matrix_from_rows(u, v, u * a)"],
    "normalize": ["wp.normalize(u)", "wp.normalize(q)"],
    "outer": ["wp.outer(u, v)"],
    "skew": ["wp.skew(u)"],
    "trace": ["wp.trace(m)"],
    "transpose": ["wp.transpose(m)"],
    "vector": ["wp.vec3d(a, f64(2.0), b)", "wp.vec3d(a)", "wp.vector(a, b, c, a)", "wp.vec3d(u)"],
    "extract": ["u[0] * v[2]", "m[0, 1] * n[2, 2]", "m[1]", "u.x * v.z", "q.w * p.x", "m[0:2, 1]", "t.p", "t.q"],
}

ROTATIONS = {
    "quat_from_axis_angle": ["wp.quat_from_axis_angle(u, a)"],
    "quat_from_matrix": ["wp.quat_from_matrix(m)", "wp.quat_from_matrix(wp.quat_to_matrix(wp.normalize(q)))"],
    "quat_inverse": ["wp.quat_inverse(q)"],
    "quat_rotate": ["wp.quat_rotate(q, u)"],
    "quat_rotate_inv": ["wp.quat_rotate_inv(q, u)"],
    "quat_rpy": ["wp.quat_rpy(a, b, c)"],
    "quat_slerp": ["wp.quat_slerp(wp.normalize(q), wp.normalize(p), a)"],
    "quat_to_matrix": ["wp.quat_to_matrix(q)"],
    "quaternion": ["wp.quatd(a, b, c, f64(1.0))", "wp.quaternion(u, a)"],
    "transform_get_rotation": ["wp.transform_get_rotation(t)"],
    "transform_get_translation": ["wp.transform_get_translation(t)"],
    "transform_inverse": ["wp.transform_inverse(t)"],
    "transform_multiply": ["wp.transform_multiply(t, w)"],
    "transform_point": ["wp.transform_point(t, u)", "wp.transform_point(g, u)"],
    "transform_vector": ["wp.transform_vector(t, u)", "wp.transform_vector(g, u)"],
    "transformation": ["wp.transformd(u, q)", "wp.transformation(u, q)"],
    "spatial_bottom": ["wp.spatial_bottom(s)"],
    "spatial_cross": ["wp.spatial_cross(s, z)"],
    "spatial_cross_dual": ["wp.spatial_cross_dual(s, z)"],
    "spatial_dot": ["wp.spatial_dot(s, z)"],
    "spatial_top": ["wp.spatial_top(s)"],
    "spatial_adjoint": ["wp.spatial_adjoint(m, n)[4, 1]"],
    "quat_to_axis_angle": ["axis(q)", "angle(q)"],
    "transform_to_matrix": ["wp.transform_to_matrix(t)"],
    "transform_from_matrix": ["wp.transform_from_matrix(g)"],
    "transform_decompose": ["decomposed(g)"],
    "transform_compose": ["wp.transform_compose(u, q, v)"],
}

DECOMPOSITIONS = {
    "svd2": ["svd2(m)"],
    "svd3": ["svd3(m)", "svd3(m * n)"],
    "eig3": ["eig3(wp.transpose(m) * m)"],
    "qr3": ["qr3(m)"],
}
"""Functions of all factors."""

SINGLE = {
    "norm_l1": ["wp.norm_l1(uf)"],
    "norm_l2": ["wp.norm_l2(uf)"],
    "norm_huber": ["wp.norm_huber(uf, 0.4)"],
    "norm_pseudo_huber": ["wp.norm_pseudo_huber(uf, 0.4)"],
    "smooth_normalize": ["wp.smooth_normalize(uf, 0.4)[0]"],
    "quat_from_euler": ["wp.quat_from_euler(uf, 0, 1, 2)[1]"],
    "quat_to_euler": ["wp.quat_to_euler(wp.normalize(qf), 0, 1, 2)[1]"],
    "quat_to_rpy": ["wp.quat_to_rpy(wp.normalize(qf))[2]"],
    "quat_twist": ["wp.quat_twist(wp.normalize(uf), wp.normalize(qf))[0]"],
    "quat_twist_angle": ["wp.quat_twist_angle(wp.normalize(uf), wp.normalize(qf))"],
    "quat_twist_angle_signed": ["wp.quat_twist_angle_signed(wp.normalize(uf), wp.normalize(qf))"],
    "velocity_at_point": ["wp.velocity_at_point(sf, uf)[1]"],
    "transform_twist": ["wp.transform_twist(tf, sf)[4]"],
    "spatial_vector": ["wp.spatial_vector(uf, uf * af)[4]", "wp.spatial_vector(af, af, 1.0, af, 2.0, af)[4]"],
    "transform_wrench": ["wp.transform_wrench(tf, sf)[2]"],
    "float32": ["wp.float32(a)"],
    "float": ["float(a)"],
    "inverse_approx": ["wp.inverse_approx(wp.mat33(m))[0, 1]"],
    "div_approx": ["wp.div_approx(af, float(b))"],
}
"""Those that Warp has in single precision."""

KINDS = {"float64": [""], "mat22d": [f"[{i}, {j}]" for i in range(2) for j in range(2)]}
KINDS |= {f"vec{n}d": [f"[{k}]" for k in range(n)] for n in (2, 3, 4)}
KINDS |= {f"mat{n}{n}d": [f"[{i}, {j}]" for i in range(n) for j in range(n)] for n in (3, 4)}
KINDS |= {
    "quatd": KINDS["vec4d"],
    "transformd": [f"[{k}]" for k in range(7)],
    "spatial_vectord": [f"[{k}]" for k in range(6)],
}
ARGUMENTS = {
    **dict.fromkeys("abc", "float64"),
    **dict.fromkeys("uv", "vec3d"),
    **dict.fromkeys("mn", "mat33d"),
    "g": "mat44d",
    **dict.fromkeys("qp", "quatd"),
    **dict.fromkeys("tw", "transformd"),
    **dict.fromkeys("sz", "spatial_vectord"),
}
WITHOUT_RULE = {
    "atomic_max": "before = wp.atomic_max(out, 0, i, a)",
    "atomic_min": "before = wp.atomic_min(out, 0, i, a)",
    "noise": "out[0, i] = f64(wp.noise(wp.uint32(7), float(a)))",
    "pnoise": "out[0, i] = f64(wp.pnoise(wp.uint32(7), float(a), 4))",
    "curlnoise": "out[0, i] = f64(wp.curlnoise(wp.uint32(7), wp.vec2(float(a), float(b)))[0])",
}


HELPERS = """
@wp.func
def decomposed(g: wp.mat44d):
    p, q, s = wp.transform_decompose(g)
    return p * q[1] + s

@wp.func
def axis(q: wp.quatd):
    v, a = wp.quat_to_axis_angle(q)
    return v

@wp.func
def angle(q: wp.quatd):
    v, a = wp.quat_to_axis_angle(q)
    return a

@wp.func
def svd2(m: wp.mat33d):
    u, s, v = wp.svd2(wp.mat22d(m[0, 0], m[0, 1], m[1, 0], m[1, 1]))
    return u[0, 1] * v[1, 0] + s[0] * u[1, 0] - s[1] * s[1] * v[0, 0]

@wp.func
def svd3(m: wp.mat33d):
    u, s, v = wp.svd3(m)
    return u * wp.transpose(v) + u * wp.diag(wp.cw_mul(s, s)) * wp.transpose(u) * s[1]

@wp.func
def eig3(m: wp.mat33d):
    q, d = wp.eig3(m)
    return q * wp.diag(wp.vec3d(wp.log(d[0]), wp.sqrt(d[1]), d[2] * d[2])) * wp.transpose(q)

@wp.func
def qr3(m: wp.mat33d):
    q, r = wp.qr3(m)
    return q * r[0, 1] + r * q[2, 1]
"""


REFUSED = {"closest_point_edge_edge", "mesh_eval_position", "mesh_eval_velocity", "texture_sample"}
REFUSED |= {"spatial_jacobian", "spatial_mass"}  # of Warp before 1.17
REFUSED |= {f"volume_sample{e}" for e in ("", "_f", "_v", "_grad", "_grad_f", "_index", "_grad_index")}
"""Refused as those above are, and in need of a mesh, a volume or a texture to be shown so."""

ELSEWHERE = {"print", "atomic_add", "atomic_sub", "volume_index_to_world", "volume_index_to_world_dir"}
ELSEWHERE |= {"volume_world_to_index", "volume_world_to_index_dir"}
"""No values of expressions, or in need of a volume: test_tangent_kernels.py and test_tangent_tiles.py have them."""


def module(path: Path, name: str, statements: list[str]) -> ModuleType:
    """A module with one kernel of these statements."""
    lines = ["import warp as wp", "f64 = wp.float64", ""]
    for kind, places in KINDS.items():
        lines += ["@wp.func", f"def total(x: wp.{kind}):"]
        terms = [f"f64({round(0.3 + 0.37 * k * (-1) ** k, 3)}) * x{place}" for k, place in enumerate(places)]
        lines += [f"    return {' + '.join(terms)}", ""]
    lines += HELPERS.splitlines()
    lines += ["@wp.kernel", "def every("]
    lines += [f"    {n}_: wp.array[wp.{kind}]," for n, kind in ARGUMENTS.items()]
    lines += ["    out: wp.array2d[f64],", "):", "    i = wp.tid()"]
    lines += [f"    {n} = {n}_[i]" for n in ARGUMENTS]
    lines += ["    af = float(a)", "    uf = wp.vec3(u)", "    qf = wp.quat(q)"]
    lines += ["    tf = wp.transform(uf, wp.normalize(qf))", "    sf = wp.spatial_vector(uf, uf * af)"]
    lines += [f"    {statement}" for statement in statements]
    file = path / f"{name}.py"
    file.write_text("\n".join(lines) + "\n")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


def inputs(points: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    made = []
    for kind in ARGUMENTS.values():
        shape = {"float64": (), "mat33d": (3, 3), "mat44d": (4, 4)}.get(kind, (len(KINDS[kind]),))
        value = torch.rand(points, *shape, generator=generator, dtype=torch.float64) * 0.6 + 0.2
        if len(shape) == 2:
            value = value * 0.5 + torch.eye(shape[0], dtype=torch.float64)
        made.append(value)
    return made


def disagreements(got: torch.Tensor, want: torch.Tensor, expressions: list[str], tolerance: float) -> list[str]:
    wrong = ((got - want).abs() > tolerance * (1 + want.abs())).any(dim=1) | ~torch.isfinite(got).all(dim=1)
    return [
        f"{e}: {g.tolist()}, expected {w.tolist()}"
        for e, g, w, bad in zip(expressions, got, want, wrong, strict=True)
        if bad
    ]


def slopes(op: Any, x: list[torch.Tensor], u: list[torch.Tensor], step: float) -> torch.Tensor:
    """The derivative along ``u``, by central differences."""
    above, below = ([t + sign * step * d for t, d in zip(x, u, strict=True)] for sign in (1.0, -1.0))
    return (op(*above) - op(*below)) / (2 * step)


def products(values: torch.Tensor, leaves: list[torch.Tensor], u: list[torch.Tensor]) -> list[float]:
    """By row of ``values``, the inner product of its gradient and ``u``."""
    made = []
    for row in values:
        grads = torch.autograd.grad(row.sum(), leaves, retain_graph=True)
        made.append(float(sum((g * d).sum() for g, d in zip(grads, u, strict=True))))
    return made


TABLES = {"scalars": SCALARS, "vectors": VECTORS, "rotations": ROTATIONS, "single": SINGLE}
TABLES["decompositions"] = DECOMPOSITIONS


@pytest.mark.parametrize(
    "name",
    [
        "scalars",
        "vectors",
        "decompositions",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("rotations", "single")),
    ],
)
def test_tangents_of_builtins(name: str, tmp_path: Path) -> None:
    expressions = [e for row in TABLES[name].values() for e in row]
    single = name == "single"
    wrap = "f64" if single else "total"
    made = module(tmp_path, f"tangent_{name}", [f"out[{k}, i] = {wrap}({e})" for k, e in enumerate(expressions)])
    given = ", ".join(f"{n}_[n]" for n in ARGUMENTS)
    op = warp_op(made.every, f"{given} -> out[{len(expressions)}, n]", name=f"tangents::{name}")
    x = inputs()
    generator = torch.Generator().manual_seed(6)
    u, w = ([torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in x] for _ in range(2))
    step, tolerance = (1e-2, 5e-3) if single else (1e-6, 1e-6)

    tangent = torch.func.jvp(op, tuple(x), tuple(u))[1]
    assert disagreements(tangent, slopes(op, x, u, step), expressions, tolerance) == []

    leaves = [t.clone().requires_grad_() for t in x]
    for expression, got, want in zip(
        expressions, products(op(*leaves), leaves, u), tangent.sum(1).tolist(), strict=True
    ):
        assert abs(got - want) < (1e-5 if single else 1e-9) * (1 + abs(want)), (expression, got, want)

    def along(*x: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(op, x, tuple(u))[1]

    numeric = slopes(along, x, w, step * 10 if not single else step).sum(1).tolist()
    for expression, got, want in zip(expressions, products(along(*leaves), leaves, w), numeric, strict=True):
        assert abs(got - want) < (2e-2 if single else 1e-5) * (1 + abs(want)), (expression, got, want)


@pytest.mark.slow
def test_third_order_of_decompositions(tmp_path: Path) -> None:
    """Tangents of functions that give values and tangents at once, and of compositions, whose names mustn't meet."""
    apart = "wp.diag(wp.vec3d(f64(1.0), f64(4.0), f64(9.0)))"
    expressions = ["total(svd3(m))", f"total(eig3(wp.transpose(n) * {apart} * n))"]
    expressions += ["total(qr3(n))", "total(axis(wp.quat_from_matrix(m)))"]
    made = module(tmp_path, "tangent_third", [f"out[{k}, i] = {e}" for k, e in enumerate(expressions)])
    given = ", ".join(f"{n}_[n]" for n in ARGUMENTS)
    op = warp_op(made.every, f"{given} -> out[{len(expressions)}, n]", name="tangents::third")
    values, generator = dict(zip(ARGUMENTS, inputs(2), strict=True)), torch.Generator().manual_seed(9)
    x = [values["m"], values["n"]]
    u, v, w = ([torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in x] for _ in range(3))

    def plain(m: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return op(*(values | {"m": m, "n": n}).values())

    def first(*x: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(plain, x, tuple(u))[1]

    def second(*x: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(first, x, tuple(v))[1]

    third = torch.func.jvp(second, tuple(x), tuple(w))[1]
    assert disagreements(third, slopes(second, x, w, 1e-6), expressions, 1e-4) == []


def test_no_builtin_is_missing() -> None:
    """Every builtin that Warp says is differentiable has a rule here, or is refused."""
    known = {n for table in TABLES.values() for n in table} | set(WITHOUT_RULE) | set(ELSEWHERE) | set(REFUSED)
    missing = []
    for name, function in context.builtin_functions.items():
        overloads = getattr(function, "overloads", None) or [function]
        tiles = function.group == "Tile Primitives"  # test_tangent_tiles.py
        if not tiles and any(o.is_differentiable for o in overloads) and not function.hidden and name not in known:
            missing.append(name)
    assert missing == []


@pytest.mark.parametrize("name", WITHOUT_RULE)
def test_refused_by_name_and_line(name: str, tmp_path: Path) -> None:
    made = module(tmp_path, f"tangent_refused_{name}", [WITHOUT_RULE[name]])
    op = warp_op(
        made.every,
        f"{', '.join(f'{n}_[n]' for n in ARGUMENTS)} -> out[1, n]",
        name=f"tangents::refused_{name}",
        init="zeros",
    )
    x = inputs()
    with pytest.raises(GradientError, match=rf"(?s)'{name}'.*tangent_refused_{name}.py:\d+"):
        torch.func.jvp(op, tuple(x), tuple(x))
