"""A space of kernels that hypothesis draws from: element types, ranks, layouts, forms, inputs that need gradients.

Every drawn kernel is one elementwise formula, in as many forms as Warp has ways to write it. The kernels of the whole
space are written to one module, which Warp compiles once. Hypothesis draws from it, and draws the sizes, the layouts
and the subsets of inputs that require gradients.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import sys
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import as_tuple, compiled, ramp
from warpops import warp_op

ELEMENTS = {
    "float64": (),
    "vec2d": (2,),
    "vec3d": (3,),
    "mat22d": (2, 2),
    "quatd": (4,),
    "transformd": (7,),
}
FORMS = ("store", "double store", "read back", "view", "accumulate", "in-out", "two outputs", "partly filled")


@dataclass(frozen=True)
class Kind:
    element: str
    rank: int
    form: str

    @property
    def name(self) -> str:
        return f"{self.form.replace(' ', '_').replace('-', '_')}_{self.element}_{self.rank}"

    @property
    def component(self) -> tuple[int, ...]:
        return ELEMENTS[self.element]


def kinds() -> list[Kind]:
    """A third of the product, chosen so that every pair of values appears."""
    every = [Kind(e, r, f) for e, r, f in itertools.product(ELEMENTS, (1, 2, 3, 4), FORMS)]
    chosen = []
    for index, kind in enumerate(every):
        if kind.form == "view" and kind.rank == 1:
            continue
        if (index + index // 8 + index // 32) % 3 == 0:
            chosen.append(kind)
    return chosen


def source(kind: Kind) -> str:
    """The kernel's text. ``x`` and ``y`` are arrays of elements, ``s`` of numbers."""
    suffix = "" if kind.rank == 1 else f"{kind.rank}d"
    array = f"wp.array{suffix}[wp.{kind.element}]"
    number = f"wp.array{suffix}[wp.float64]"
    names = ["i", "j", "k", "l"][: kind.rank]
    at = ", ".join(names)
    two = "wp.float64(2.0)"
    extra = {"two outputs": f", z: {number}", "read back": f", z: {array}"}.get(kind.form, "")
    lines = [
        "@wp.kernel",
        f"def {kind.name}(x: {array}, s: {number}, w: {array}, y: {array}{extra}):",
        f"    {at} = wp.tid()",
    ]
    value = f"x[{at}] * (s[{at}] * s[{at}]) + w[{at}] * s[{at}]"
    if kind.form == "store":
        lines += [f"    y[{at}] = {value}"]
    elif kind.form == "double store":
        lines += [f"    y[{at}] = x[{at}] * {two}", f"    if s[{at}] > wp.float64(0.0):", f"        y[{at}] = {value}"]
    elif kind.form == "read back":
        lines += [f"    y[{at}] = {value}", f"    z[{at}] = y[{at}] * s[{at}] + x[{at}]"]
    elif kind.form == "view":
        rest = ", ".join(names[1:])
        lines += ["    row = x[i]", "    out = y[i]", f"    out[{rest}] = {value.replace(f'x[{at}]', f'row[{rest}]')}"]
    elif kind.form == "accumulate":
        lines += [
            f"    wp.atomic_add(y, {at}, x[{at}] * (s[{at}] * s[{at}]))",
            f"    wp.atomic_add(y, {at}, w[{at}] * s[{at}])",
        ]
    elif kind.form == "in-out":
        lines += [f"    y[{at}] = y[{at}] * s[{at}] + {value}"]
    elif kind.form == "two outputs":
        lines += [f"    y[{at}] = {value}", f"    z[{at}] = s[{at}] * s[{at}] * s[{at}]"]
    else:
        lines += [f"    if s[{at}] > wp.float64(0.0):", f"        y[{at}] = {value}"]
    return "\n".join(lines)


def reference(kind: Kind, x, s, w, y=None):
    t = s.reshape(*s.shape, *(1,) * len(kind.component))
    value = x * (t * t) + w * t
    if kind.form == "double store":
        return torch.where(t > 0, value, 2.0 * x)
    if kind.form == "in-out":
        return y * t + value
    if kind.form == "two outputs":
        return value, s**3
    if kind.form == "read back":
        return value, value * t + x
    if kind.form == "partly filled":
        return torch.where(t > 0, value, torch.zeros(()).to(value))
    return value


@pytest.fixture(scope="module")
def ops(tmp_path_factory):
    path = tmp_path_factory.mktemp("drawn") / "drawn_kernels.py"
    path.write_text("import warp as wp\n\n\n" + "\n\n\n".join(source(kind) for kind in kinds()) + "\n")
    spec = importlib.util.spec_from_file_location("drawn_kernels", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["drawn_kernels"] = module
    spec.loader.exec_module(module)
    made = {}
    for kind in kinds():
        dims = ", ".join("abcd"[: kind.rank])
        left = f"x[{dims}], s[{dims}], w[{dims}]"
        right = f"y[{dims}]" + (f", z[{dims}]" if kind.form in ("two outputs", "read back") else "")
        if kind.form == "in-out":
            left += f", y[{dims}]"
        made[kind] = warp_op(getattr(module, kind.name), f"{left} -> {right}", dim=dims)
    return made


LAYOUTS = ("dense", "reversed", "strided", "expanded", "offset")


def tensor(draw, shape, layout, generator):
    """A float64 tensor of a shape, laid out in memory as asked. ``s`` keeps clear of 0, where a branch jumps."""
    if layout == "reversed":
        base = torch.empty(shape[::-1]).permute(*range(len(shape) - 1, -1, -1))
    elif layout == "strided":
        base = torch.empty(*(2 * n for n in shape))[tuple(slice(None, None, 2) for _ in shape)]
    elif layout == "expanded":
        base = torch.empty(1, *shape[1:]).expand(shape) if shape[0] else torch.empty(shape)
    elif layout == "offset":
        base = torch.empty(shape[0] + 2, *shape[1:])[2:]
    else:
        base = torch.empty(shape)
    values = torch.rand(base.shape, generator=generator, dtype=torch.float64) + 0.25
    if layout == "expanded" and shape[0]:
        return values[:1].expand(shape)
    signs = torch.where(torch.rand(base.shape, generator=generator) > 0.4, 1.0, -1.0)
    out = base.double()
    if layout != "dense":
        out = torch.empty_strided(base.shape, base.stride(), dtype=torch.float64) if 0 not in shape else out
    out.copy_(values * signs)
    return out


@st.composite
def cases(draw):
    kind = draw(st.sampled_from(kinds()))
    sizes = tuple(draw(st.integers(0 if kind.rank < 3 else 1, 3)) for _ in range(kind.rank))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    count = 4 if kind.form == "in-out" else 3
    arguments = []
    for index in range(count):
        shape = sizes if index == 1 else (*sizes, *kind.component)
        arguments.append(tensor(draw, shape, draw(st.sampled_from(LAYOUTS)), generator))
    wanted = draw(st.sets(st.integers(0, count - 1)))
    return kind, arguments, wanted


def prepared(arguments, wanted):
    return [a.detach().requires_grad_(i in wanted) for i, a in enumerate(arguments)]


def gradients(function, arguments, wanted):
    inputs = prepared(arguments, wanted)
    results = as_tuple(function(*inputs))
    sources = [a for a in inputs if a.requires_grad]
    used = [r for r in results if r.requires_grad]
    grads = torch.autograd.grad(used, sources, [ramp(r) for r in used], allow_unused=True) if used else []
    return [r.detach() for r in results], list(grads)


def agree(got, want, arguments, wanted):
    for mine, theirs in zip(got[0], want[0], strict=True):
        torch.testing.assert_close(mine, theirs.contiguous(), rtol=1e-10, atol=1e-12)
    sources = [arguments[i] for i in sorted(wanted)]
    assert len(got[1]) in (0, len(sources))
    for mine, theirs, source in zip(got[1], want[1], sources, strict=True):
        assert mine.shape == source.shape
        want_grad = torch.zeros_like(mine) if theirs is None else theirs
        torch.testing.assert_close(mine, want_grad, rtol=1e-10, atol=1e-12, check_stride=False)


quiet = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)


@settings(quiet, max_examples=200)
@given(cases())
def test_eager_values_and_gradients(ops, case):
    kind, arguments, wanted = case
    keep = [a.clone() for a in arguments]
    got = gradients(ops[kind], arguments, wanted)
    want = gradients(lambda *a: reference(kind, *a), arguments, wanted)
    agree(got, want, arguments, wanted)
    assert all(torch.equal(a, k) for a, k in zip(arguments, keep, strict=True))


@settings(quiet, max_examples=25)
@given(cases())
def test_compiled_values_and_gradients(ops, case):
    kind, arguments, wanted = case
    torch._dynamo.reset()
    got = gradients(compiled(ops[kind]), arguments, wanted)
    want = gradients(lambda *a: reference(kind, *a), arguments, wanted)
    agree(got, want, arguments, wanted)


@settings(quiet, max_examples=25)
@given(cases())
def test_gradcheck(ops, case):
    kind, arguments, wanted = case
    inputs = [a.contiguous().requires_grad_(i in wanted) for i, a in enumerate(map(torch.clone, arguments))]
    if not wanted or math.prod(arguments[1].shape) == 0:
        return
    assert torch.autograd.gradcheck(ops[kind], inputs, fast_mode=True)


@pytest.mark.slow
@settings(quiet, max_examples=12)
@given(cases())
def test_second_derivatives(ops, case):
    kind, arguments, wanted = case
    inputs = [a.contiguous().requires_grad_(i in wanted) for i, a in enumerate(map(torch.clone, arguments))]
    if not wanted or math.prod(arguments[1].shape) == 0:
        return
    assert torch.autograd.gradgradcheck(ops[kind], inputs, fast_mode=True, check_fwd_over_rev=True)


@pytest.mark.slow
@settings(quiet, max_examples=12)
@given(cases())
def test_opcheck(ops, case):
    kind, arguments, wanted = case
    torch._dynamo.reset()
    results = torch.library.opcheck(ops[kind].overload, tuple(prepared(arguments, wanted)))
    assert set(results.values()) == {"SUCCESS"}, results
