"""``bounds_checked``: a wrong index is an error that says which, and touches nothing, whoever launches the kernel."""

from __future__ import annotations

import threading
import types
import warnings
import weakref
from typing import Any

import pytest
import torch
import warp as wp

import kernels
from cuda_stand_in import StandIn
from support import compiled, eager, inductor, leaf
from warpops import ArgumentError, warp_op, warp_program
from warpops.launch import checked, switch
from warpops.launch.launcher import Launcher
from warpops.private import warp_code
from warpops.program.checked import launch_checked
from warpops.rewrite.bounds import make_bounds_kernel
from warpops.rewrite.tangent import tangent_kernel
from warpops.testing import bounds_checked
from warpops.transforms.batched import batched_plan


@wp.struct
class Part:
    position: wp.vec3
    frame: wp.mat33


@wp.struct
class Table:
    rows: wp.array2d[float]
    last: int


@wp.func
def summed(values: wp.array[float], count: int) -> float:
    total = float(0.0)
    for k in range(count):
        total += values[k]
    return total


@wp.func
def followed(links: wp.array[int], k: int) -> int:
    while k > 0:
        k = links[k]
    return k


@wp.kernel
def accesses(
    which: int,
    k: int,
    x: wp.array[float],
    parts: wp.array[Part],
    links: wp.array[int],
    table: Table,
    y: wp.array[float],
):
    i = wp.tid()
    vector = wp.vec3(1.0, 2.0, 3.0)
    matrix = wp.mat33(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    local = wp.zeros(shape=(4,), dtype=float)
    if which == 0:
        y[i] = x[k] * 2.0
    elif which == 1:
        y[k] = x[i]
    elif which == 2:
        y[k] += x[i]
    elif which == 3:
        wp.atomic_max(y, k, x[i])
    elif which == 4:
        row = table.rows[k]
        y[i] = row[0]
    elif which == 5:
        y[i] = table.rows[0][k]
    elif which == 6:
        table.rows[1, k] = x[i]
    elif which == 7:
        vector[k] = x[i]
        y[i] = vector[0]
    elif which == 8:
        y[i] = matrix[1, k]
    elif which == 9:
        local[k] = x[i]
        y[i] = local[0]
    elif which == 10:
        parts[0].position[k] += x[i]
    elif which == 11:
        y[i] = parts[k].frame[0, 0]
    elif which == 12:
        y[i] = summed(x, k + 1)
    elif which == 13:
        y[i] = float(followed(links, k))
    elif which == 14:
        wp.atomic_add(local, k, x[i])
        y[i] = local[0]
    elif which == 15:
        y[i] = x[k] if k < x.shape[0] + 1 and x[k] > -1.0 else 0.0


EACH = [
    ("x", 4, 4, "y[i] = x[k] * 2.0"),
    ("y", 4, 4, "y[k] = x[i]"),
    ("y", 4, 4, "y[k] += x[i]"),
    ("y", 4, 4, "wp.atomic_max(y, k, x[i])"),
    ("table.rows", 4, 4, "row = table.rows[k]"),
    ("table.rows", 4, 4, "y[i] = table.rows[0][k]"),
    ("table.rows", 4, 4, "table.rows[1, k] = x[i]"),
    ("vector", 3, 3, "vector[k] = x[i]"),
    ("matrix", 3, 3, "y[i] = matrix[1, k]"),
    ("local", 4, 4, "local[k] = x[i]"),
    ("parts[0].position", 3, 3, "parts[0].position[k] += x[i]"),
    ("parts", 4, 4, "y[i] = parts[k].frame[0, 0]"),
    ("values", 4, 4, "total += values[k]"),
    ("links", 3, 4, "k = links[k]"),
    ("local", 4, 4, "wp.atomic_add(local, k, x[i])"),
    ("x", 4, 4, "y[i] = x[k] if k < x.shape[0] + 1 and x[k] > -1.0 else 0.0"),
]
"""By number: what is indexed, the ``k`` that makes the index wrong, the index (its size too), the line."""


class Launch:
    """A launch of ``accesses`` by four threads, on arrays in the middle of larger ones."""

    def __init__(self, which: int, k: int) -> None:
        self.wholes = [torch.arange(12.0), torch.arange(12.0), torch.arange(48.0), torch.arange(144.0)]
        x, y, rows, parts = self.wholes
        links = torch.tensor([0, 0, 1, 4], dtype=torch.int32)
        table = Table()
        table.rows = wp.from_torch(rows[16:32].view(4, 4))
        middle = parts[48:96]
        given = wp.array(ptr=middle.data_ptr(), dtype=Part, shape=(4,), device="cpu")
        arrays = [wp.from_torch(x[4:8]), given, wp.from_torch(links), table, wp.from_torch(y[4:8])]
        self.call = {"kernel": accesses, "dim": 4, "inputs": [which, k, *arrays], "outputs": []}
        self.call |= {"device": "cpu", "stream": None, "block_dim": 256}

    def around(self) -> list[torch.Tensor]:
        """The memory outside of the arrays."""
        x, y, rows, parts = self.wholes
        return [x[:4], x[8:], y[:4], y[8:], rows[:16], rows[32:], parts[:48], parts[96:]]

    def run(self, checked: bool) -> list[torch.Tensor]:
        if checked:
            launch_checked("test", wp.launch, self.call, None)
        else:
            wp.launch(**self.call)
        return self.wholes


@pytest.mark.parametrize("which", range(len(EACH)), ids=[line for *_, line in EACH])
def test_each_access(which):
    array, k, wrong, line = EACH[which]
    for bad, index in ((k, wrong), (k + 1000000, k + 1000000), (-wrong - 1, -wrong - 1)):
        if (which in (12, 15) and bad > k) or (which in (12, 13) and bad < 0):
            continue
        made = Launch(which, bad)
        before = [t.clone() for t in made.around()]
        with pytest.raises(ArgumentError) as caught:
            made.run(checked=True)
        text = str(caught.value)
        assert f"'{array}' is indexed at {index} on axis {1 if which in (5, 6, 8) else 0}, and has size {wrong}" in text
        assert f"{__file__}:" in text and f"`{line}`" in text
        assert text.startswith("test: the program launches accesses: ")
        assert all(map(torch.equal, before, made.around()))
    for good in (0, wrong - 2, *((-1, -wrong) if which not in (12, 13) else ())):
        assert all(map(torch.equal, Launch(which, good).run(True), Launch(which, good).run(False)))


# --- ops --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scatter() -> Any:
    return warp_op(kernels.scatter, "x[n], index[n] -> y[m]", sizes="m", dim="n", name="test_bounds::scatter")


def indices(*items: int) -> torch.Tensor:
    return torch.tensor(items, dtype=torch.int32)


WRONG = r"scatter: 'y' is indexed at 3 on axis 0, and has size 3, by thread 1 at .*kernels.py:\d+: `wp.atomic_add"


def test_launches_that_are_remembered_are_compared_too(scatter):
    x = torch.rand(2)
    for _ in range(3):
        want = scatter(x, indices(0, 2), m=3)
    with pytest.raises(ArgumentError, match=WRONG), bounds_checked():
        scatter(x, indices(0, 3), m=3)
    with bounds_checked():
        assert torch.equal(scatter(x, indices(0, 2), m=3), want)
    assert torch.equal(scatter(x, indices(0, -1), m=3), want)


@pytest.mark.parametrize("mode", [eager, compiled, inductor])
def test_what_was_compiled_before(mode, scatter):
    call = mode(lambda x, index: scatter(x, index, m=3))
    x = leaf(torch.rand(2))
    for _ in range(3):  # remembered
        want = call(x, indices(0, 2))
        torch.autograd.grad(want.sum(), x)
    with bounds_checked():
        got = call(x, indices(0, 2))
        assert torch.equal(got, want)
        (grad,) = torch.autograd.grad(got.sum(), x)
        assert torch.equal(grad, 2 * x.detach())
        with pytest.raises(ArgumentError, match=WRONG):
            call(x, indices(0, 3))


def test_a_backward_runs_the_checked_forward_first(scatter):
    x, index = leaf(torch.rand(2)), indices(0, 2)
    for _ in range(3):  # remembered
        torch.autograd.grad(scatter(x, index, m=3).sum(), x)
    y = scatter(x, index, m=3)
    index.numpy()[1] = 3  # PyTorch doesn't see it
    with bounds_checked(), pytest.raises(ArgumentError, match=WRONG):
        y.sum().backward()


def test_vmap(scatter):
    x, index = torch.rand(2, 2), torch.stack([indices(0, 2), indices(1, -1)])
    mapped = torch.vmap(lambda x, i: scatter(x, i, m=3))
    want = mapped(x, index)
    with bounds_checked():
        assert torch.equal(mapped(x, index), want)
        with pytest.raises(ArgumentError, match=WRONG):
            mapped(x, torch.stack([indices(0, 2), indices(0, 3)]))


def test_the_users_line_is_named_behind_rewritten_kernels(scatter):
    batched = batched_plan(scatter._plan, frozenset(["x", "index"])).kernel.kernel
    tangent = tangent_kernel(kernels.scatter, {"x": "dx", "y": "dy"}, (), ("y",))
    for kernel, rank in ((batched, 2), (tangent, 1)):
        made = make_bounds_kernel(kernel, ())
        assert made is not None and made.rank == rank and made.indices
        for index in made.indices:
            assert index.site.file == kernels.__file__
            assert index.site.code == "wp.atomic_add(y, index[i], x[i] * x[i])"


def test_generic_kernels():
    @warp_op("x[n], index[k] -> y[k]", dim="k", name="test_bounds::generic")
    @wp.kernel(module="unique")
    def pick(x: wp.array[Any], index: wp.array[int], y: wp.array[Any]):
        i = wp.tid()
        y[i] = x[index[i]]

    with bounds_checked():
        assert pick(torch.ones(2, dtype=torch.float64), indices(1)).dtype == torch.float64
        with pytest.raises(ArgumentError, match="'x' is indexed at 2 on axis 0, and has size 2"):
            pick(torch.ones(2, dtype=torch.float64), indices(2))
        with pytest.raises(ArgumentError, match="'x' is indexed at 0 on axis 0, and has size 0"):
            pick(torch.ones(0, dtype=torch.float64), indices(0))


def test_programs(scatter):
    @warp_program("x[n], index[n] -> y[3]", name="test_bounds::program")
    def twice(x: wp.array[float], index: wp.array[int], y: wp.array[float]):
        for _ in range(2):
            wp.launch(kernels.scatter, x.shape, inputs=[x, index], outputs=[y])

    x, index = leaf(torch.rand(2)), indices(0, 2)
    with bounds_checked():
        y = twice(x, index)
        (grad,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        assert torch.allclose(grad, 4 * x.detach())
        index.numpy()[1] = 3
        with pytest.raises(ArgumentError, match="program launches scatter: 'y' is indexed at 3 .* by thread 1"):
            twice(x, index)
        with pytest.raises(ArgumentError, match="program launches scatter: 'y' is indexed at 3 .* by thread 1"):
            y.sum().backward()


def test_arrays_changed_in_place():
    @warp_op(mutates="y", dim="n", sizes="n", name="test_bounds::in_place")
    @wp.kernel(module="unique")
    def add_at(x: wp.array[float], index: wp.array[int], y: wp.array[float]):
        i = wp.tid()
        y[index[i]] = y[index[i]] + x[i]

    whole = torch.zeros(5)
    with bounds_checked():
        add_at(torch.ones(1), indices(1), whole[1:4], n=1)
        assert whole.tolist() == [0, 0, 1, 0, 0]
        for wrong in (3, -4):
            with pytest.raises(ArgumentError, match=f"'y' is indexed at {wrong} on axis 0, and has size 3"):
                add_at(torch.ones(1), indices(wrong), whole[1:4], n=1)
        assert whole[0] == whole[4] == 0


# --- the switch -------------------------------------------------------------------------------------------------------


def test_other_threads_launch_checked_kernels(scatter):
    caught = []

    def call() -> None:
        try:
            scatter(torch.rand(2), indices(0, 3), m=3)
        except ArgumentError as error:
            caught.append(error)

    with bounds_checked():
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert len(caught) == 1


def test_contexts_nest(scatter):
    with bounds_checked():
        with bounds_checked(every=True):
            assert any(switch.scopes)
        assert switch.scopes == [False]
        with pytest.raises(ArgumentError, match=WRONG):
            scatter(torch.rand(2), indices(0, 3), m=3)
    assert not switch.scopes


def test_what_is_proven_is_not_compared(monkeypatch):
    made = []
    original = Launcher.like
    monkeypatch.setattr(Launcher, "like", lambda *given: made.append(given) or original(*given))
    op = warp_op(kernels.square, name="test_bounds::proven")
    with bounds_checked():
        op(torch.rand(3))
        assert not made
        with bounds_checked(every=True):
            op(torch.rand(3))
    assert made


@wp.kernel
def refused(which: int, n: int, x: wp.array[float], w: wp.array[float], y: wp.array2d[float]):
    i, j = wp.tid()
    if which == 0:
        y[i, j] = x[j + 1]
    elif which == 1:
        if i <= n:
            y[i, j] = w[i]
    elif which == 2:
        for k in range(x.shape[0]):
            y[i, j] += w[k]
    elif which == 3:
        y[j, i] = 1.0
    elif which == 4:
        y[i, j] = x[2]
    elif which == 5:
        y[y.shape[0] - i, j] = 1.0
    elif which == 6:
        y[i, j] = w[wp.min(i, n)]
    elif which == 7:
        k = int(0)
        while k <= n:
            y[i, k] = x[k]
            k += 1
    elif which == 8:
        y[i, j] = x[j] if j >= 0 else x[j - 1]


@pytest.mark.parametrize(
    ("which", "n", "x", "w", "y", "told"),
    [
        (0, 0, 3, 1, (2, 3), "'x' is indexed at 3 on axis 0, and has size 3, by thread (0, 2)"),
        (1, 1, 1, 1, (2, 1), "'w' is indexed at 1 on axis 0, and has size 1, by thread (1, 0)"),
        (2, 0, 3, 2, (1, 1), "'w' is indexed at 2 on axis 0, and has size 2, by thread (0, 0)"),
        (3, 0, 1, 1, (2, 3), "'y' is indexed at 2 on axis 0, and has size 2, by thread (0, 2)"),
        (4, 0, 2, 1, (1, 1), "'x' is indexed at 2 on axis 0, and has size 2, by thread (0, 0)"),
        (5, 0, 1, 1, (2, 1), "'y' is indexed at 2 on axis 0, and has size 2, by thread (0, 0)"),
        (6, 2, 1, 2, (3, 1), "'w' is indexed at 2 on axis 0, and has size 2, by thread (2, 0)"),
        (7, 2, 3, 1, (1, 2), "'y' is indexed at 2 on axis 1, and has size 2, by thread (0, 0)"),
        (8, 0, 0, 1, (1, 1), "'x' is indexed at 0 on axis 0, and has size 0, by thread (0, 0)"),
    ],
)
def test_no_proof_is_needed(which, n, x, w, y, told):
    """Launches that an op refuses before they are made: without that each is found."""
    arrays = [wp.zeros(x, dtype=float), wp.zeros(w, dtype=float), wp.zeros(y, dtype=float)]
    call = {"kernel": refused, "dim": y, "inputs": [which, n, *arrays], "outputs": []}
    with pytest.raises(ArgumentError) as caught:
        launch_checked("test", wp.launch, call | {"device": "cpu", "stream": None, "block_dim": 256}, None)
    assert told in str(caught.value)


# --- what can't be rewritten ------------------------------------------------------------------------------------------


@wp.func_native(snippet="return x.data[i];")
def raw(x: wp.array[float], i: int) -> float: ...


@pytest.mark.filterwarnings("ignore::warpops.GradientWarning")  # native, without adj_snippet
def test_native_code_runs_unchecked_with_one_warning():
    @warp_op("x[n], index[n] -> y[n]", dim="n", name="test_bounds::native")
    @wp.kernel(module="unique")
    def native(x: wp.array[float], index: wp.array[int], y: wp.array[float]):
        i = wp.tid()
        y[i] = raw(x, index[i]) + x[index[i]]

    x = torch.rand(2)
    with bounds_checked():
        with pytest.warns(
            RuntimeWarning, match=r"test_bounds::native: .* the function 'raw': it is native code .*py:\d+"
        ):
            assert torch.equal(native(x, indices(1, 0)), 2 * x.flip(0))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            native(x, indices(1, 0))
        with pytest.raises(ArgumentError, match="'index' is indexed at 1"):
            launch_checked(
                "test",
                wp.launch,
                {
                    "kernel": native.kernel,
                    "dim": 2,
                    "inputs": [wp.zeros(2, dtype=float), wp.zeros(1, dtype=int), wp.zeros(2, dtype=float)],
                    "outputs": [],
                    "device": "cpu",
                    "stream": None,
                    "block_dim": 256,
                },
                None,
            )


def test_what_warp_does_not_build_runs_unchecked(monkeypatch, scatter):
    op = warp_op(kernels.scatter, "x[n], index[n] -> y[m]", sizes="m", dim="n", name="test_bounds::unbuilt")
    load = warp_code.Compiled.load

    def fail(compiled: Any) -> Any:
        if compiled.kernel.key.startswith("scatter_checked"):
            raise RuntimeError("no such builtin")
        return load(compiled)

    monkeypatch.setattr(warp_code.Compiled, "load", fail)
    monkeypatch.setattr(checked, "_made", weakref.WeakKeyDictionary())
    monkeypatch.setattr(checked, "_warned", weakref.WeakKeyDictionary())
    with bounds_checked(), pytest.warns(RuntimeWarning, match="can.t be built: no such builtin"):
        assert op(torch.ones(2), indices(0, 2), m=3).tolist() == [1, 0, 1]


def test_threads_that_wait_for_each_other_do_not_end(monkeypatch):
    """A thread that ended would keep the others of its block waiting for ever; on the CPU a block is one thread."""

    @wp.kernel(module="unique")
    def tiles(x: wp.array[float], index: wp.array[int], y: wp.array[float]):
        i = wp.tid()
        value = x[index[i]]
        total = wp.tile_sum(wp.tile(value))
        wp.tile_store(y, total, offset=i)

    monkeypatch.setattr(checked.devices, "is_capturing", lambda: False)
    gpu = types.SimpleNamespace(is_cuda=True)
    assert "wait for each other" in str(checked.bounds_kernel(tiles, frozenset(), gpu, 64))
    arrays = [wp.zeros(2, dtype=float), wp.array([0, 2], dtype=int), wp.zeros(2, dtype=float)]
    call = {"kernel": tiles, "dim": 2, "inputs": arrays, "outputs": [], "device": "cpu", "stream": None}
    with pytest.raises(ArgumentError, match="'x' is indexed at 2 on axis 0, and has size 2, by thread 1"):
        launch_checked("test", wp.launch, call | {"block_dim": 1}, None)


def test_on_cuda_and_in_a_capture(monkeypatch):
    with StandIn() as cuda:
        op = warp_op(kernels.scatter, "x[n], index[n] -> y[m]", sizes="m", dim="n", name="test_bounds::cuda")
        with bounds_checked():
            assert op(torch.ones(2), indices(0, 2), m=3).tolist() == [1, 0, 1]
            with pytest.raises(ArgumentError, match="'y' is indexed at 3 on axis 0, and has size 3, by thread 1"):
                op(torch.ones(2), indices(0, 3), m=3)
            assert {launched.kernel for launched in cuda.launched} == {"scatter_checked"}
            op.preload()
            cuda.capturing = True
            with pytest.warns(RuntimeWarning, match="captured into a CUDA graph"):
                op(torch.ones(2), indices(0, 2), m=3)
            assert cuda.launched[-1].kernel == "scatter"
