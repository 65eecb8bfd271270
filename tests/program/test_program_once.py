"""A program's Python runs once per sizes, numbers and flags; then what it launched is launched again, never out of date."""

from __future__ import annotations

import gc
import math
import sys
import types
import weakref

import pytest
import torch
import warp as wp

import programs
from programs import accumulate, advance, blur, blur_reference, divide, generic_square, scale
from support import check_against, close, leaf
from warpops import ArgumentError, SignatureError, warp_program
from warpops.program.scripts import Scripts

F = wp.array[float]
Points = wp.array[wp.vec3]


def program(name, signature="x[n] -> y[n]", **options):
    return warp_program(signature, name=f"program_once::{name}", **options)


# --- once -------------------------------------------------------------------------------------------------------------


def test_once_for_the_forward_and_once_for_the_backward(runs, way):
    @program("twice", scratch="tmp[n]")
    def twice(x: F, y: F, tmp: F):
        wp.launch(blur, dim=x.shape, inputs=[x], outputs=[tmp])
        wp.launch(blur, dim=x.shape, inputs=[tmp], outputs=[y])

    for _ in range(3):
        check_against(twice, blur_reference, [torch.rand(6)])
    assert runs == [2]
    assert "runs once per sizes, numbers and flags" in " ".join(twice.explain().split())


def test_once_per_sizes_and_numbers(runs):
    @program("steps", scratch="tmp[n]")
    def steps(x: F, y: F, tmp: F, count: int, s: float, last: bool):
        wp.copy(y, x)
        for _ in range(count):
            wp.launch(blur, dim=x.shape, inputs=[y], outputs=[tmp])
            y, tmp = tmp, y
        if count % 2:
            wp.copy(tmp, y)
            y, tmp = tmp, y
        if last:
            wp.launch(scale, dim=x.shape, inputs=[y, s], outputs=[y])

    calls = [(n, k, s, b) for n in (4, 5) for k in (1, 2) for s in (2.0, -3.0) for b in (True, False)]
    for turn in range(3):
        for n, k, s, b in calls:
            x = torch.rand(n)
            close(steps(x, k, s, b), blur_reference(x, k) * (s if b else 1.0))
        assert runs == [len(calls)], turn


def test_numbers_are_told_apart_exactly(runs):
    @program("signs")
    def signs(x: F, y: F, s: float):
        wp.launch(scale, dim=x.shape, inputs=[x, math.copysign(1.0, s)], outputs=[y])

    x = torch.ones(3)
    for _ in range(2):
        assert signs(x, 0.0).tolist() == [1.0] * 3
        assert signs(x, -0.0).tolist() == [-1.0] * 3
        assert signs(x, math.nan).tolist() == [1.0] * 3
    assert runs == [3]


def test_every_flag_of_a_backward(runs):
    """Which gradients are wanted, and which came, is part of what a run depends on."""

    @program("both", "x[n], w[n] -> y[n], z[n]")
    def both(x: F, w: F, y: F, z: F):
        wp.launch(programs.product, dim=x.shape, inputs=[x, w], outputs=[y])
        wp.launch(blur, dim=x.shape, inputs=[w], outputs=[z])

    def reference(x, w):
        return x * w, blur_reference(w, 1)

    for _ in range(2):
        for needs in ((True, True), (True, False), (False, True)):
            for used in ((0, 1), (0,), (1,)):
                inputs = [torch.rand(4, requires_grad=need) for need in needs]
                got, want = (sum(f(*inputs)[k].sum() for k in used) for f in (both, reference))
                if want.requires_grad:
                    wanted = [t for t in inputs if t.requires_grad]
                    found, known = (torch.autograd.grad(v, wanted, allow_unused=True) for v in (got, want))
                    for a, b, t in zip(found, known, wanted, strict=True):
                        close(a if a is not None else torch.zeros_like(t), b if b is not None else torch.zeros_like(t))
                with torch.no_grad():
                    close(both(*inputs)[0], reference(*inputs)[0])
    assert runs[0] <= 1 + 9


def test_types_strides_and_devices(runs):
    @program("fourth", scratch="tmp[n]")
    def fourth(x: programs.wp.array[programs.Any], y: wp.array[programs.Any], tmp: wp.array[programs.Any]):
        wp.launch(generic_square, dim=x.shape, inputs=[x], outputs=[tmp])
        wp.launch(generic_square, dim=x.shape, inputs=[tmp], outputs=[y])

    for _ in range(3):
        for dtype in (torch.float32, torch.float64):
            check_against(fourth, lambda x: x**4, [torch.rand(4, dtype=dtype)])
            close(fourth(torch.rand(4, 2, dtype=dtype)[:, 0].fill_(2.0)), torch.full((4,), 16.0, dtype=dtype))
    assert runs == [4]


def test_a_structs_value(runs):
    @program("scaled", "pair.a[n], pair.b[n] -> y[n]")
    def scaled(pair: programs.Pair, y: F):
        wp.launch(programs.combine, dim=y.shape, inputs=[pair], outputs=[y])

    for s in (2.0, 3.0, 2.0, 3.0):
        check_against(
            lambda a, b, s=s: scaled({"a": a, "b": b, "s": s}),
            lambda a, b, s=s: a * b * s,
            [torch.rand(3), torch.rand(3)],
        )
    assert runs == [4]


def test_launches_that_no_gradient_needs_are_left_out():
    """The last launch forward writes what the adjoints don't read; what a mesh is made of may be read by any launch."""

    @program("thrice", scratch="a[n], b[n], unused[n]")
    def thrice(x: F, y: F, a: F, b: F, unused: F):
        wp.launch(blur, dim=x.shape, inputs=[x], outputs=[a])
        wp.launch(blur, dim=x.shape, inputs=[a], outputs=[unused])
        wp.launch(programs.square_in_place, dim=a.shape, inputs=[a])
        wp.launch(blur, dim=x.shape, inputs=[a], outputs=[b])
        wp.launch(blur, dim=x.shape, inputs=[b], outputs=[y])

    for _ in range(3):
        check_against(thrice, lambda x: blur_reference(blur_reference(x, 1) ** 2), [torch.rand(6)])
    scripts = thrice._instances.only.launcher.scripts._found
    kinds = [[type(step).__name__ for step in found.script.steps] for found in scripts.values()]
    assert [names.count("Launch") for names in kinds] == [5, 3 + 4]


# --- memory -----------------------------------------------------------------------------------------------------------


def test_arrays_that_share_memory_and_then_do_not(runs):
    @program("times", "x[n], w[n] -> y[n]")
    def times(x: F, w: F, y: F):
        wp.launch(programs.product, dim=x.shape, inputs=[x, w], outputs=[y])

    for _ in range(2):
        x, w = torch.rand(4), torch.rand(4)
        close(times(x, x), x * x)
        close(times(x, w), x * w)
        both = torch.rand(6)
        close(times(both[:4], both[2:]), both[:4] * both[2:])
        check_against(lambda x: times(x, x), lambda x: x * x, [x])
        check_against(times, lambda x, w: x * w, [x, w])


def test_arrays_of_the_programs_own_start_anew(runs, way):
    @program("total")
    def total(x: F, y: F):
        sums = wp.zeros(1, dtype=float, device=x.device)
        other = wp.full(x.shape, 2.0, dtype=float, device=x.device)
        wp.launch(accumulate, dim=x.shape, inputs=[x], outputs=[sums])
        wp.launch(programs.product, dim=x.shape, inputs=[x, wp.clone(other)], outputs=[other])
        wp.launch(divide, dim=x.shape, inputs=[other, sums], outputs=[y])

    for _ in range(3):
        check_against(total, lambda x: 2.0 * x / (x * x).sum(), [torch.rand(5)])
    assert runs == [2]


def test_in_place_changes_are_made_at_each_call(runs):
    @program("advanced", mutates="state")
    def advanced(x: F, state: F, y: F):
        wp.launch(programs.product, dim=x.shape, inputs=[x, state], outputs=[y])
        wp.launch(programs.product, dim=x.shape, inputs=[y, x], outputs=[state])

    x, state = torch.full((3,), 2.0), torch.ones(3)
    for turn in range(3):
        assert advanced(x, state).tolist() == [2.0 * 4.0**turn] * 3
        assert state.tolist() == [4.0 ** (turn + 1)] * 3
    assert runs == [1]


def test_nothing_remembered_holds_memory():
    @program("held", scratch="tmp[n]")
    def held(x: F, y: F, tmp: F):
        own = wp.zeros(x.shape, dtype=float, device=x.device)
        wp.launch(blur, dim=x.shape, inputs=[x], outputs=[own])
        copied = wp.empty_like(own)
        wp.copy(copied, own)
        wp.launch(blur, dim=x.shape, inputs=[copied], outputs=[tmp])
        wp.launch(blur, dim=x.shape, inputs=[tmp], outputs=[y])

    made, make = [], wp.array.__init__

    def noted(array, *args, **kwargs):
        made.append(weakref.ref(array))
        make(array, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wp.array, "__init__", noted)
        for _ in range(2):
            x = leaf(torch.rand(4))
            y = held(x)
            y.sum().backward()
            seen = [weakref.ref(tensor) for tensor in (x, y, x.grad)]
            del x, y
            gc.collect()
            assert not any(reference() is not None for reference in (*seen, *made))
    scripts = held._instances.only.launcher.scripts
    for n in range(200):
        held(torch.rand(n))
    assert len(scripts._found) <= 64


def test_sizes_that_always_change_are_not_all_written_down(monkeypatch):
    written, add = [], Scripts.add
    monkeypatch.setattr(
        Scripts, "add", lambda self, key, take, ran: (written.append(take is not None), add(self, key, take, ran))[1]
    )

    @program("changing")
    def changing(x: F, y: F, s: float):
        wp.launch(scale, dim=x.shape, inputs=[x, s], outputs=[y])

    x = torch.ones(2)
    for k in range(200):
        assert changing(x, float(k))[0] == k
    assert sum(written) < 100


# --- what it reads ----------------------------------------------------------------------------------------------------

STEPS = 2
PULL = wp.vec3(0.0, 1.0, 0.0)
settings = types.ModuleType("settings")
settings.factor = 2.0


def factor_of(times):
    return settings.factor * times


@program("by_globals")
def by_globals(x: F, y: F):
    wp.copy(y, x)
    for _ in range(STEPS):
        wp.launch(scale, dim=x.shape, inputs=[y, factor_of(1.0)], outputs=[y])


def test_globals_are_compared_at_each_call(runs, monkeypatch):
    x = torch.ones(3)
    for steps, factor in ((2, 2.0), (2, 2.0), (3, 2.0), (3, 5.0), (2, 2.0), (2, 2.0)):
        monkeypatch.setattr(sys.modules[__name__], "STEPS", steps)
        monkeypatch.setattr(settings, "factor", factor)
        assert by_globals(x).tolist() == [factor**steps] * 3
    monkeypatch.setattr(sys.modules[__name__], "factor_of", lambda times: 7.0)
    assert by_globals(x).tolist() == [49.0] * 3
    assert "its Python" in by_globals.explain()
    assert runs[0] <= 6


@program("by_vector", "p[n] -> q[n]")
def by_vector(p: Points, q: Points):
    wp.launch(advance, dim=p.shape, inputs=[p, p, 1.0, PULL], outputs=[q])


def test_a_vector_that_is_changed_in_place(runs):
    p = torch.ones(2, 3)
    for pull in (1.0, 1.0, 2.0, 2.0):
        PULL[1] = pull
        assert by_vector(p).tolist() == [[2.0, 2.0 - 3.0 * pull, 2.0]] * 2
    assert runs == [2]


def test_closure_cells_are_compared_at_each_call(runs):
    s, used = 2.0, scale

    @program("closed")
    def closed(x: F, y: F):
        wp.launch(used, dim=x.shape, inputs=[x, s], outputs=[y])

    @wp.kernel
    def added(x: F, s: float, y: F):
        i = wp.tid()
        y[i] = x[i] + s

    x = torch.full((3,), 3.0)
    assert [closed(x)[0].item() for _ in range(2)] == [6.0] * 2
    s = 4.0
    assert [closed(x)[0].item() for _ in range(2)] == [12.0] * 2
    used = added
    assert [closed(x)[0].item() for _ in range(2)] == [7.0] * 2
    assert runs == [3]


def test_a_kernels_code_that_is_replaced(runs):
    module = wp.get_module("test_program_once_replaced")

    @wp.kernel(module=module)
    def doubled(x: F, y: F):
        i = wp.tid()
        y[i] = 2.0 * x[i]

    @program("replaced")
    def replaced(x: F, y: F):
        wp.launch(doubled, dim=x.shape, inputs=[x], outputs=[y])

    for _ in range(2):
        assert replaced(torch.ones(2)).tolist() == [2.0] * 2

        @wp.kernel(module=module)
        def another(x: F):
            x[wp.tid()] = 1.0

        assert replaced(torch.ones(2)).tolist() == [2.0] * 2
    assert runs == [1]


@wp.kernel
def scale_by(x: F, s: F, y: F):
    i = wp.tid()
    y[i] = x[i] * s[0]


@wp.struct
class Weight:
    w: float


@wp.kernel
def weigh(x: F, weights: wp.array[Weight], y: F):
    i = wp.tid()
    y[i] = x[i] * weights[i].w


LOG: list[int] = []
TABLE = {"factor": 2.0}


class Config:
    factor = 2.0


def imports(x: F, y: F):
    import math as m

    wp.launch(scale, dim=x.shape, inputs=[x, m.sqrt(4.0)], outputs=[y])


def logs(x: F, y: F):
    LOG.append(1)
    wp.launch(scale, dim=x.shape, inputs=[x, 2.0], outputs=[y])


def prints(x: F, y: F):
    print(end="")
    wp.launch(scale, dim=x.shape, inputs=[x, 2.0], outputs=[y])


def looks_up(x: F, y: F):
    wp.launch(scale, dim=x.shape, inputs=[x, TABLE["factor"]], outputs=[y])


def configured(x: F, y: F):
    wp.launch(scale, dim=x.shape, inputs=[x, Config.factor], outputs=[y])


def by_address(x: F, y: F):
    wp.launch(scale, dim=x.shape, inputs=[x, 2.0 if x.ptr else 0.0], outputs=[y])


def by_helper(x: F, y: F):
    logs(x, y)


def by_comprehension(x: F, y: F):
    wp.launch(scale, dim=x.shape, inputs=[x, sum([TABLE[key] for key in ("factor",)])], outputs=[y])


def by_type(x: F, y: F):
    two = type(x)([2.0], dtype=float, device=x.device)
    wp.launch(scale_by, dim=x.shape, inputs=[x, two], outputs=[y])


def sets_a_global(x: F, y: F):
    global _unused
    _unused = 1
    wp.launch(scale, dim=x.shape, inputs=[x, 2.0], outputs=[y])


@pytest.mark.parametrize(
    ("function", "code", "what"),
    [
        (imports, "import math as m", "sets, imports or defines math"),
        (logs, "LOG.append(1)", "uses LOG"),
        (prints, 'print(end="")', "uses print"),
        (looks_up, "wp.launch(", "uses TABLE"),
        (configured, "wp.launch(", "uses Config"),
        (by_address, "wp.launch(", "reads .ptr"),
        (by_helper, "LOG.append(1)", "uses LOG"),
        (by_comprehension, "wp.launch(", "uses TABLE"),
        (by_type, "type(x)", "uses type"),
        (sets_a_global, "_unused = 1", "sets, imports or defines _unused"),
    ],
)
def test_what_may_change_unseen_runs_at_every_call(runs, function, code, what):
    op = program(function.__name__)(function)
    for _ in range(3):
        check_against(op, lambda x: 2.0 * x, [torch.rand(3)])
    assert runs == [6]
    text = " ".join(op.explain().split())
    assert "runs at every call: line " in text and code in text and what in text


def test_what_only_the_run_shows(runs):
    """The result of a sum goes into Python's hands; nothing in the code says so."""

    @program("by_sum", nondiff="x")
    def by_sum(x: F, y: F):
        wp.launch(scale, dim=x.shape, inputs=[x, float(wp.utils.array_sum(x))], outputs=[y])

    @program("by_text", nondiff="x")
    def by_text(x: F, y: F):
        wp.launch(scale, dim=x.shape, inputs=[x, 2.0 if f"{x}" == "[1. 1.]" else 3.0], outputs=[y])

    @program("by_struct", "x[n] -> y[n]")
    def by_struct(x: F, y: F):
        value = Weight()
        value.w = 2.0
        made = wp.zeros(x.shape, dtype=Weight, device=x.device)
        made.fill_(value)
        value.w = 3.0
        wp.launch(weigh, dim=x.shape, inputs=[x, made], outputs=[y])

    for k in (1.0, 2.0, 3.0):
        assert by_struct(torch.full((2,), k)).tolist() == [2.0 * k] * 2
        assert by_sum(torch.full((2,), k)).tolist() == [2.0 * k * k] * 2
        assert by_text(torch.full((2,), k)).tolist() == [(2.0 if k == 1.0 else 3.0) * k] * 2
    assert runs == [9]


# --- what is checked --------------------------------------------------------------------------------------------------


def test_launches_inside_are_checked_at_each_new_size():
    @program("reaching", "x[n], w[k] -> y[n]")
    def reaching(x: F, w: F, y: F):
        wp.launch(programs.product, dim=x.shape, inputs=[x, w], outputs=[y])

    for _ in range(2):
        close(reaching(torch.ones(3), torch.ones(3)), torch.ones(3))
        with pytest.raises(ArgumentError, match="'w' is indexed up to 2 on axis 0, and has size 2"):
            reaching(torch.ones(3), torch.ones(2))


def test_a_program_that_fails_fails_each_time(runs):
    @program("picky")
    def picky(x: F, y: F, k: int):
        if k > 2:
            raise ValueError("too many")
        wp.launch(programs.square_in_place, dim=x.shape, inputs=[x if k == 2 else y])

    for _ in range(2):
        with pytest.raises(ValueError, match="too many"):
            picky(torch.ones(2), 3)
        with pytest.raises(SignatureError, match="'x' is an input"):
            picky(torch.ones(2), 2)
        assert picky(torch.ones(2), 1).tolist() == [0.0] * 2
    assert runs == [5]
