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
    "mod": ["wp.mod(a, f64(0.25))", "wp.mod(a, b)"],
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
    "norm_l1": ["wp.norm_l1(u)"],
    "norm_l2": ["wp.norm_l2(u)"],
    "norm_huber": ["wp.norm_huber(u, f64(0.4))"],
    "norm_pseudo_huber": ["wp.norm_pseudo_huber(u, f64(0.4))"],
    "smooth_normalize": ["wp.smooth_normalize(u, f64(0.4))"],
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
    "spatial_vector": ["wp.spatial_vectord(u, v)", "wp.spatial_vector(a, b, c, a, b, c)"],
    "quat_to_axis_angle": ["axis(q)", "angle(q)"],
    "quat_from_euler": ["wp.quat_from_euler(u, 0, 1, 2)"],
    "quat_to_euler": ["wp.quat_to_euler(wp.normalize(q), 0, 1, 2)"],
    "quat_to_rpy": ["wp.quat_to_rpy(wp.normalize(q))"],
    "quat_twist": ["wp.quat_twist(wp.normalize(u), wp.normalize(q))"],
    "quat_twist_angle": ["wp.quat_twist_angle(wp.normalize(u), wp.normalize(q))"],
    "quat_twist_angle_signed": ["wp.quat_twist_angle_signed(wp.normalize(u), wp.normalize(q))"],
    "velocity_at_point": ["wp.velocity_at_point(s, u)"],
    "transform_twist": ["wp.transform_twist(t, s)"],
    "transform_wrench": ["wp.transform_wrench(t, s)"],
    "transform_set_rotation": ["turned(t, q)"],
    "transform_set_translation": ["shifted(t, u)"],
    "transform_to_matrix": ["wp.transform_to_matrix(t)"],
    "transform_from_matrix": ["wp.transform_from_matrix(g)"],
    "transform_compose": ["wp.transform_compose(u, q, v)"],
}

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
    "atomic_max": "wp.atomic_max(out, 0, i, a)",
    "atomic_min": "wp.atomic_min(out, 0, i, a)",
    "noise": "out[0, i] = f64(wp.noise(wp.uint32(7), float(a)))",
    "pnoise": "out[0, i] = f64(wp.pnoise(wp.uint32(7), float(a), 4))",
    "curlnoise": "out[0, i] = f64(wp.curlnoise(wp.uint32(7), wp.vec2(float(a), float(b)))[0])",
    "svd3": "l, o, r = wp.svd3(m)\n    out[0, i] = o[0]",
    "qr3": "l, r = wp.qr3(m)\n    out[0, i] = r[0, 0]",
    "eig3": "l, o = wp.eig3(m)\n    out[0, i] = o[0]",
}


HELPERS = """
@wp.func
def axis(q: wp.quatd):
    v, a = wp.quat_to_axis_angle(q)
    return v

@wp.func
def angle(q: wp.quatd):
    v, a = wp.quat_to_axis_angle(q)
    return a

@wp.func
def turned(t: wp.transformd, q: wp.quatd):
    r = t
    wp.transform_set_rotation(r, q * q)
    return r

@wp.func
def shifted(t: wp.transformd, u: wp.vec3d):
    r = t
    wp.transform_set_translation(r, u * u[0])
    return r
"""


WARPS_OWN_IS_WRONG = {"wp.mod(a, b)"}
"""Warp's adjoint leaves out the derivative with respect to the divisor; the tangent has it."""


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
    return [f"{e}: {g.tolist()}, expected {w.tolist()}" for e, g, w, bad in zip(expressions, got, want, wrong) if bad]


@pytest.mark.parametrize("table", [SCALARS, VECTORS, ROTATIONS], ids=["scalars", "vectors", "rotations"])
def test_tangents_of_builtins(table: dict[str, list[str]], tmp_path: Path) -> None:
    expressions = [e for row in table.values() for e in row]
    statements = [f"out[{k}, i] = total({e})" for k, e in enumerate(expressions)]
    name = f"tangent_builtins_{next(iter(table))}"
    made = module(tmp_path, name, statements)
    given = ", ".join(f"{n}_[n]" for n in ARGUMENTS)
    op = warp_op(made.every, f"{given} -> out[{len(expressions)}, n]", name=f"tangents::{name}")
    x = inputs()
    generator = torch.Generator().manual_seed(6)
    u = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in x]
    step = 1e-6

    def moved(sign: float) -> list[torch.Tensor]:
        return [t + sign * step * d for t, d in zip(x, u, strict=True)]

    _, tangent = torch.func.jvp(op, tuple(x), tuple(u))
    numeric = (op(*moved(1.0)) - op(*moved(-1.0))) / (2 * step)
    assert disagreements(tangent, numeric, expressions, 1e-6) == []

    leaves = [t.clone().requires_grad_() for t in x]
    values = op(*leaves)
    for k, expression in enumerate(expressions):
        v = torch.zeros_like(values)
        v[k] = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
        grads = torch.autograd.grad(values, leaves, v, retain_graph=True)
        product = sum((g * d).sum() for g, d in zip(grads, u, strict=True))
        off = abs(float(product - (v * tangent).sum()))
        assert off < 1e-8 * (1 + float((v * tangent).abs().sum())) or expression in WARPS_OWN_IS_WRONG, (expression, off)

    along = op_tangent(op, u)
    w = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in x]
    second = torch.func.jvp(lambda *t: along(*t), tuple(x), tuple(w))[1]
    both = [[t + sign * 1e-5 * d for t, d in zip(x, w, strict=True)] for sign in (1.0, -1.0)]
    numeric = (along(*both[0]) - along(*both[1])) / 2e-5
    assert disagreements(second, numeric, expressions, 1e-5) == []

    slope = along(*leaves)
    for k, expression in enumerate(expressions):
        v = torch.zeros_like(slope)
        v[k] = 1.0
        grads = torch.autograd.grad(slope, leaves, v, retain_graph=True)
        product = sum((g * d).sum() for g, d in zip(grads, w, strict=True))
        off = abs(float(product - second[k].sum()))
        assert off < 1e-7 * (1 + float(second[k].abs().sum())), (expression, off)


def op_tangent(op: Any, u: list[torch.Tensor]) -> Any:
    """The op's derivative along ``u``, as a function."""
    return lambda *x: torch.func.jvp(op, x, tuple(u))[1]


def test_no_builtin_is_missing() -> None:
    """Every builtin that Warp says is differentiable has a rule here, or is refused."""
    known = set(SCALARS) | set(VECTORS) | set(ROTATIONS) | set(WITHOUT_RULE) | set(ELSEWHERE) | set(REFUSED)
    missing = []
    for name, function in context.builtin_functions.items():
        overloads = getattr(function, "overloads", None) or [function]
        if any(o.is_differentiable for o in overloads) and not function.hidden and name not in known:
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
