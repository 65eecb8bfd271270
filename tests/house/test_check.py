"""``warpops.testing.check``: kernels and declarations that are broken on purpose are found and named, good pass."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import warp as wp

import kernels
from kinds import KINDS, rows
from warpops import ArgumentError, GradientWarning, WarpOp, warp_op, warp_program
from warpops.testing import CheckError, bounds_checked, check
from warpops.testing.run import CHECKS, run_checks

# --- broken kernels ---------------------------------------------------------------------------------------------------


@wp.func
def halved(x: float) -> float:
    return x * x


@wp.func_grad(halved)
def adj_halved(x: float, adj_ret: float):
    wp.adjoint[x] += x * adj_ret


@wp.kernel
def wrong_func_grad(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = halved(x[i])


@wp.kernel
def carried_view(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    row = x[0]
    a = float(1.0)
    for k in range(x.shape[0]):
        a = a * row[i]
        row = x[k]
    y[i] = a * row[i]


@wp.func
def both(a: wp.array[float]):
    return a[0] * a[1]


@wp.kernel
def handed_on(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    a = wp.zeros(shape=(2,), dtype=float)
    a[0] = x[i]
    a[1] = x[i] * x[i]
    y[i] = both(a) * a[0]


@wp.kernel
def accumulate(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = y[i] + x[i]


@wp.kernel
def no_atomic(x: wp.array[float], index: wp.array[wp.int32], y: wp.array[float]):
    i = wp.tid()
    y[index[i]] = y[index[i]] + x[i]


@wp.kernel
def last_wins(x: wp.array2d[float], y: wp.array[float]):
    i, j = wp.tid()
    y[i] = 2.0 * x[i, j]


@wp.kernel
def compact(x: wp.array[float], count: wp.array[wp.int32], y: wp.array[float]):
    i = wp.tid()
    k = wp.atomic_add(count, 0, 1)
    y[k] = x[i] * x[i]


@wp.kernel
def moved(x: wp.array[float], index: wp.array[wp.int32], y: wp.array[float]):
    i = wp.tid()
    y[index[i]] = x[i]


@wp.kernel
def floored(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[int(wp.floor(x[i]))] * x[i]


@wp.func_native(snippet="static int calls = 0; calls += 1; return x + calls;")
def counted(x: float) -> float: ...


@wp.kernel
def stateful(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = counted(x[i])


@wp.func_native(snippet="x.data[i] = 0.0f; y.data[i] = 1.0f;")
def raw_clear(x: wp.array[float], y: wp.array[float], i: int): ...


@wp.kernel
def clears_input(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    raw_clear(x, y, i)


def broken(kernel: Any, signature: str, **options: Any) -> WarpOp:
    """An op of a kernel that warpops may warn of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientWarning)
        return warp_op(kernel, signature, **options)


def report(op: WarpOp, *args: Any, only: str) -> str:
    """What some of the checks say, which must be something."""
    found = run_checks(op, args, {}, only.split())
    assert found.findings, f"nothing was found: passed {found.passed}, left out {found.left_out}"
    text = found.text()
    assert op.name in text.splitlines()[0]
    assert all(len(line) <= 80 or " " not in line.strip() for line in text.splitlines()), text
    return text


moved_op = broken(moved, "x[n], index[n]", mutates="y", dim="n")
floored_op = broken(floored, "x[n] -> y[n]")
X = torch.rand(6, generator=torch.Generator().manual_seed(1)) + 0.5


def test_wrong_func_grad():
    text = report(broken(wrong_func_grad, "x[n] -> y[n]"), X, only="gradients")
    assert "gradient of 'x'" in text
    assert "test_check.py:" in text
    assert "wp.func_grad" in text
    assert "'halved'" in text


@pytest.mark.parametrize(
    ("kernel", "signature", "x", "code"),
    [
        (carried_view, "x[n, m] -> y[m]", X.reshape(2, 3), "a = a * row[i]"),
        (handed_on, "x[n] -> y[n]", X, "y[i] = both(a) * a[0]"),
    ],
    ids=["a view that a loop carries", "an array of the thread's own"],
)
def test_warps_wrong_adjoints_are_found_with_their_line(kernel, signature, x, code):
    with pytest.warns(GradientWarning):
        op = warp_op(kernel, signature)
    text = report(op, x, only="gradients")
    assert "gradient of 'x'" in text
    assert "finite differences" in text
    assert f"`{code}`" in text


def test_unwritten_elements():
    op = warp_op(kernels.keep_some, "x[n], keep[n] -> y[n]", dim="n", init="empty")
    keep = torch.tensor([True, False, True, False, True, True])
    text = report(op, X, keep, only="memory")
    assert "'y'" in text
    assert "2 of its 6 elements unwritten" in " ".join(text.split())
    assert "[1]" in text
    assert "y[i] = x[i] * x[i]" in text


def test_previous_contents():
    op = warp_op(accumulate, "x[n] -> y[n]", dim="n", init="empty")
    text = report(op, X, only="memory")
    assert "depend on what was in memory" in " ".join(text.split())
    assert "y[i] = y[i] + x[i]" in text


def test_missing_atomic():
    op = broken(no_atomic, "x[n], index[n] -> y[k]", dim="n", sizes="k", init="zeros")
    text = report(op, X, torch.tensor([0, 1, 2, 1, 3, 0], dtype=torch.int32), 4, only="races")
    assert "race on 'y'" in text
    assert "y[index[i]] = y[index[i]] + x[i]" in text
    assert "1 and 3" in text
    fine = run_checks(op, (X, torch.arange(6, dtype=torch.int32), 6), {}, ["races"])
    assert not fine.findings, fine.text()


def test_store_by_many_threads():
    op = broken(last_wins, "x[n, m] -> y[n]", dim="n, m")
    assert "race on 'y'" in report(op, X.reshape(2, 3), only="races")


def test_counter_slots():
    op = broken(compact, "x[n] -> count[1], y[n]", dim="n")
    text = report(op, X, only="gradients")
    assert "wp.atomic_add(count, 0, 1)" in text or "k = wp.atomic_add" in text or "y[k] = x[i] * x[i]" in text


@pytest.mark.filterwarnings("ignore::warpops.GradientWarning")  # native, without adj_snippet
def test_state_between_calls():
    op = warp_op(stateful, "x[n] -> y[n]")
    assert "the same call gives another 'y'" in report(op, X, only="repeats")


def flat(ctx: Any, grad: torch.Tensor) -> Any:
    x = ctx.inputs["x"]
    return grad * (3 * x.view(-1) ** 2 + 1).view(grad.shape)


def taken_for_dense(ctx: Any, grad: torch.Tensor) -> Any:
    x = ctx.inputs["x"]
    return grad * (3 * x.as_strided(x.shape, (x.shape[1], 1)) ** 2 + 1)


@pytest.mark.parametrize(("backward", "told"), [(flat, "view size"), (taken_for_dense, "another gradient of 'x'")])
def test_dense_arrays_taken_for_granted(backward, told):
    op = warp_op(kernels.triple, "x[n, m] -> y[n, m]", dim="n, m")
    op.register_backward(backward)
    text = " ".join(report(op, X.reshape(2, 3), only="strides").split())
    assert "not contiguous" in text
    assert told in text
    assert not run_checks(op, (X.reshape(2, 3),), {}, ["gradients", "repeats"]).findings


@pytest.mark.filterwarnings("ignore::warpops.GradientWarning")  # native, without adj_snippet
def test_changed_input():
    op = warp_op(clears_input, "x[n] -> y[n]", dim="n")
    assert "change 'x', which is not in mutates" in " ".join(report(op, X, only="inputs").split())


def int_of_size(x: torch.Tensor) -> int:
    return int(x.shape[0])


def size_of_data(x: torch.Tensor) -> int:
    return int(x.sum().item()) * 0 + x.shape[0]


def test_a_callable_that_makes_sizes_constant():
    op = warp_op(kernels.square, shapes={"y": int_of_size}, dim=int_of_size)
    text = report(op, X, only="compiled")
    assert "dynamic sizes" in text
    assert "the callable for the shape of 'y'" in text
    assert "test_check.py" in text


def test_a_callable_that_reads_data():
    op = warp_op(kernels.square, shapes={"y": size_of_data}, dim=lambda x: x.shape[0])
    text = report(op, X, only="compiled")
    assert "fullgraph=True fails" in text
    assert "the callable for the shape of 'y'" in text


def half_as_much(ctx: Any, grad: torch.Tensor) -> Any:
    return grad * ctx.inputs["x"], None


def without_w(ctx: Any, grad: torch.Tensor) -> Any:
    return 2.0 * grad * ctx.inputs["x"] * ctx.inputs["w"], None


def spoils_cotangent(ctx: Any, grad: torch.Tensor) -> Any:
    grad.mul_(2.0)
    x, w = ctx.inputs["x"], ctx.inputs["w"]
    return grad * x * w, 0.5 * grad * x * x


@pytest.mark.parametrize(
    ("backward", "only", "told"),
    [
        (half_as_much, "gradients", ["gradient of 'x'", "gradient of 'w'"]),
        (without_w, "gradients", ["gradient of 'w'", "None", "nondiff='w'"]),
    ],
    ids=["wrong", "missing"],
)
def test_registered_backward(backward, only, told):
    op = warp_op(kernels.product, "x[n], w[n] -> y[n]", dim="n")
    op.register_backward(backward)
    text = " ".join(report(op, X, X + 1, only=only).split())
    for part in told:
        assert part in text


def test_a_registered_backward_may_change_its_cotangent():
    op = warp_op(kernels.product, "x[n], w[n] -> y[n]", dim="n")
    op.register_backward(spoils_cotangent)
    found = run_checks(op, (X, X + 1), {}, [c for c in CHECKS if c != "inductor"])
    assert not found.findings, found.text()


@wp.kernel
def wrong_backward(x: wp.array[float], grad_y: wp.array[float], grad_x: wp.array[float]):
    i = wp.tid()
    grad_x[i] = x[i] * grad_y[i]


def test_wrong_backward_kernel():
    op = warp_op(kernels.square, "x[n] -> y[n]", dim="n", backward=wrong_backward)
    assert "gradient of 'x'" in report(op, X, only="gradients")


def test_everything_wrong_is_in_one_report():
    op = broken(wrong_func_grad, "x[n] -> y[n]", shapes={}, dim=int_of_size)
    with pytest.raises(CheckError) as caught:
        check(op, X)
    text = str(caught.value)
    assert isinstance(caught.value, AssertionError)
    assert "2 things are wrong" in text
    assert "gradient of 'x'" in text
    assert "dynamic sizes" in text
    assert "passed: " in text


# --- good kernels -----------------------------------------------------------------------------------------------------


@wp.struct
class Springs:
    rest: wp.array[float]
    stiffness: float


@wp.kernel
def springs(p: wp.array[wp.vec3], s: Springs, scale: wp.array[float], energy: wp.array[float]):
    i = wp.tid()
    stretch = wp.length(p[i]) - s.rest[i]
    factor = float(1.0)
    if scale:
        factor = scale[i]
    energy[i] = factor * s.stiffness * stretch * stretch


@wp.kernel
def advance(x: wp.array[wp.float64], shift: wp.float64, tmp: wp.array[wp.float64], y: wp.array[wp.float64]):
    i = wp.tid()
    tmp[i] = x[i] * x[i]
    y[i] = wp.sin(tmp[i]) + shift


@wp.kernel
def kinks(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = wp.abs(x[i]) + wp.sign(x[i]) + wp.max(x[i], 1.0)


@pytest.mark.slow
def test_good_kernels_pass_everything():
    check(kernels.gauss_op, X, X[:4] - 0.3)


@pytest.mark.parametrize("optional", [True, False])
def test_structs_and_optional_arrays_pass(optional):
    op = warp_op(springs, "p[n], s.rest[n], scale[n] -> energy[n]", optional="scale", dim="n")
    s = {"rest": X[:4], "stiffness": 2.0}
    args = (torch.randn(4, 3), s, X[1:5] if optional else None)
    found = run_checks(op, args, {}, ["repeats", "gradients", "strides", "opcheck", "compiled"])
    assert not found.findings, found.text()


# ``torch.library.opcheck`` of the kinds is ``test_opcheck.py``'s.
ALONE = [c for c in CHECKS if c not in ("opcheck", "compiled", "inductor")]


@pytest.mark.parametrize(
    "checks", [ALONE, pytest.param(["compiled"], marks=pytest.mark.slow)], ids=["eager", "compiled"]
)
@pytest.mark.parametrize("name", rows("check"))
def test_good_kernels_pass(name, checks):
    kind = KINDS[name]
    found = run_checks(kind.op, kind.pack(*kind.draw()), {}, checks)
    assert not found.findings, found.text()


def test_nothing_is_changed():
    x, v = X.clone().requires_grad_(), X + 1
    kept = x.detach().clone()
    random = torch.get_rng_state()
    run_checks(kernels.step_op, (x, v, 0.1), {}, ["memory", "repeats", "gradients", "strides"])
    assert torch.equal(x.detach(), kept)
    assert x.grad is None
    assert x._version == 0
    assert torch.equal(torch.get_rng_state(), random)


@warp_op("x[n] -> y[n]")
@wp.kernel
def rooted_op(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = wp.sqrt(x[i])


def test_a_call_that_is_wrong_is_told_as_such():
    with pytest.raises(ArgumentError, match="'x'"):
        check(kernels.square_op, X.double())


def test_a_wrong_index_is_told_and_touches_nothing():
    index = torch.tensor([0, 9], dtype=torch.int32)
    whole = torch.zeros(12)
    with pytest.raises(CheckError) as caught:
        check(moved_op, torch.ones(2), index, whole[:2])
    text = " ".join(str(caught.value).split())
    assert "'y' is indexed at 9 on axis 0, and has size 2, by thread 1 at" in text
    assert "test_check.py:" in text
    assert whole.tolist() == [0.0] * 12


@warp_program("x[n] -> y[n]")
def too_wide(x: wp.array[float], y: wp.array[float]):
    wp.launch(kernels.square, dim=x.shape[0] + 3, inputs=[x], outputs=[y])


def test_a_launch_of_the_programs_that_is_too_wide():
    with pytest.raises(CheckError) as caught:
        check(too_wide, X)
    assert f"is indexed up to {len(X) + 2} on axis 0, and has size {len(X)}" in " ".join(str(caught.value).split())
    with pytest.raises(ArgumentError, match="argument 'x'"):
        check(too_wide, X.double())


def test_nan_is_no_difference():
    x = torch.tensor([0.2, 0.7, -0.5])
    found = run_checks(rooted_op, (x,), {}, ["opcheck", "compiled"])
    assert not found.findings, found.text()
    assert "not checked: test_aot_dispatch_dynamic (the op gives NaN" in found.text()
    found = run_checks(rooted_op, (x.abs(),), {}, ["opcheck"])
    assert not found.left_out


def test_a_wrong_index_of_other_values_is_a_finding():
    """The call itself is right; with an input changed a little, as finite differences do, an index is out of range."""
    with bounds_checked():
        text = report(floored_op, torch.tensor([1.0, 2.0 - 1e-7]), only="gradients")
    assert "'x' is indexed at 2 on axis 0, and has size 2, by thread 1" in " ".join(text.split())


def test_kernels_that_are_not_smooth_raise_no_alarm():
    x = torch.tensor([0.0, 1.0, -1.0, 1e-8, 0.0, 3.0, 0.5, 1e6], dtype=torch.float32)
    found = run_checks(warp_op(kinks), (x,), {}, ["gradients"])
    assert not found.findings, found.text()
