"""DTensor, in two processes of one gloo group: values, gradients and placements, and what is refused."""

from __future__ import annotations

import contextlib

import pytest
import torch
import warp as wp

import kernels
import test_rows
import test_tensor_scalars
from kinds import KINDS, rows
from ranks import Ranks, mesh_of
from support import as_tuple, close, compiled, leaf, leaves, ramp, run_script
from warpops import ArgumentError, warp_op

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks():
    pair = Ranks()
    yield pair
    pair.stop()


def placement(letter):
    from torch.distributed.tensor import Partial, Replicate, Shard

    return {"R": Replicate(), "P": Partial("sum")}.get(letter) or Shard(int(letter))


def spread(tensor, letters, mesh):
    """A DTensor leaf with a placement per letter: R replicated, P partial sums, 0 or 1 sharded on that axis."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    placements = [placement(letter) for letter in letters]
    if "P" in letters:
        made = DTensor.from_local(tensor / 2, mesh, placements, run_check=False)
    else:
        made = distribute_tensor(tensor, mesh, placements)
    return made.detach().requires_grad_(tensor.is_floating_point())


def letters_of(tensor):
    return "".join("R" if p.is_replicate() else "P" if p.is_partial() else str(p.dim) for p in tensor.placements)


def compare(function, reference, arguments, given, want, grads=None, moves=None, mesh=None):
    """Values, gradients and placements of a call with DTensors.

    Args:
        given: the placements of the tensors, as words of letters.
        want: those of the results.
        grads: those of the gradients.
        moves: how many collectives forward and backward may use (each result's cotangent is placed as the result is).
    """
    from torch.distributed.tensor import distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    mesh = mesh or mesh_of()
    words = iter(given.split())
    parts = [spread(a, next(words), mesh) if isinstance(a, torch.Tensor) and a.ndim else a for a in arguments]
    whole = leaves(arguments)
    counting = (lambda: contextlib.nullcontext()) if moves is None else CommDebugMode
    counts = []
    with counting() as forward:
        results = function(*parts)
    counts.append(forward)
    results = results if isinstance(results, tuple) else (results,)
    expected = reference(*whole)
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert " ".join(map(letters_of, results)) == want
    for mine, theirs in zip(results, expected, strict=True):
        assert mine.shape == theirs.shape
        close(mine.full_tensor().detach(), theirs.detach())
    if grads is None:
        return
    sources = [a for a in parts if isinstance(a, torch.Tensor) and a.requires_grad]
    seeds = [ramp(r) for r in expected]
    cotangents = [distribute_tensor(s, mesh, r.placements) for s, r in zip(seeds, results, strict=True)]
    with counting() as backward:
        mine = torch.autograd.grad(results, sources, cotangents)
    counts.append(backward)
    theirs = torch.autograd.grad(expected, [a for a in whole if isinstance(a, torch.Tensor) and a.requires_grad], seeds)
    assert " ".join(map(letters_of, mine)) == grads
    for one, other in zip(mine, theirs, strict=True):
        assert one.shape == other.shape
        close(one.full_tensor(), other)
    if moves is not None:
        assert [c.get_total_counts() for c in counts] == moves


def message(function, *arguments):
    try:
        function(*arguments)
    except ArgumentError as error:
        return str(error)
    raise AssertionError("not refused")


# --- which placements come out ----------------------------------------------------------------------------------------

neighbours_op = warp_op(test_rows.neighbours, "x[n] -> y[n]")
numbered_op = warp_op(test_rows.numbered, "x[n] -> y[n]")
counted_op = warp_op(test_rows.counted, "x[n] -> y[n]", dim="n")
rows_op = warp_op(test_rows.rows, "x[n, m] -> y[n], z[n]", dim="n")
generic_op = warp_op(test_rows.generic, "x[n] -> y[n]")
computed_op = warp_op(kernels.square, "x[n] -> y", shapes={"y": lambda x: x.shape[0]}, dim="n")
bodies_op = warp_op(test_rows.bodies, "s.pos[n], s.mass[n] -> y[n]")
INDEX = torch.tensor([0, 2, 2, 1, 0], dtype=torch.int32)


def scattered(x):
    return torch.zeros(3).index_add(0, INDEX.long(), x * x)


def rows_(x):
    y = x.sum(1) + x[:, 0] + x.shape[1]
    return y, y


def neighbours_(x):
    return x + torch.cat([x[:1], x[:-1]])


def numbered_(x):
    return x * torch.arange(x.shape[0])


V, W, M = (5,), (3,), (5, 4)
CASES = {
    # what: op, reference, shapes of the tensors, their placements, the results', the gradients', collectives
    "replicated": (kernels.product_op, kernels.product_, (V, V), "R R", "R", "R R", [0, 0]),
    "sharded": (kernels.product_op, kernels.product_, (V, V), "0 0", "0", "0 0", [0, 0]),
    "one of them sharded": (kernels.product_op, kernels.product_, (V, V), "R 0", "0", "0 0", [0, 0]),
    "one of them partial": (kernels.product_op, kernels.product_, (V, V), "0 P", "0", "0 0", [1, 1]),
    "partial": (kernels.square_op, kernels.square_, (V,), "P", "R", "R", [1, 1]),
    "a whole input": (kernels.gauss_op, kernels.gauss_, (V, W), "0 R", "0", "0 P", [0, 0]),
    "a whole input, sharded": (kernels.gauss_op, kernels.gauss_, (V, W), "0 0", "0", "0 P", [1, 1]),
    "only a whole input sharded": (kernels.gauss_op, kernels.gauss_, (V, W), "R 0", "R", "R R", [1, 1]),
    "the second axis": (kernels.triple_op, kernels.triple_, (M,), "1", "R", "R", [1, 1]),
    "views of rows": (rows_op, rows_, (M,), "0", "0 0", "0", [0, 0]),
    "two outputs": (kernels.spring_op, kernels.spring_, ((5, 3), V), "0 0", "0 0", "0 0", [0, 0]),
    "in-out": (kernels.multiply_op, lambda x, y: x * y, (V, V), "0 0", "0", "0 0", [0, 0]),
    "generic": (generic_op, lambda x: x + x, (V,), "0", "0", "0", [0, 0]),
    "neighbours": (neighbours_op, neighbours_, (V,), "0", "R", "R", [1, 1]),
    "the coordinate as a number": (numbered_op, numbered_, (V,), "0", "R", "R", [1, 1]),
    "a computed shape": (computed_op, kernels.square_, (V,), "0", "R", "R", [1, 1]),
    "no row on one rank": (kernels.square_op, kernels.square_, ((1,),), "0", "0", "0", [0, 0]),
}


def check_case(rank, what):
    function, reference, shapes, given, want, grads, moves = CASES[what]
    compare(function, reference, [torch.randn(s) for s in shapes], given, want, grads, moves)


@pytest.mark.parametrize("what", CASES)
def test_placements(ranks, what):
    ranks.run(check_case, what)


def check_kind(rank, name):
    """Every tensor sharded on its first axis: results stay so where the op goes by rows, and are gathered elsewhere."""
    from torch.distributed.tensor import DTensor

    kind, mesh = KINDS[name], mesh_of()
    placed = []

    def sharded(value):
        if not isinstance(value, torch.Tensor) or not value.ndim:
            return value
        return DTensor.from_local(value, mesh, [placement("R")], run_check=False).redistribute(mesh, [placement("0")])

    def over_both(*given):
        results = as_tuple(kind.call(*map(sharded, given)))
        placed[:] = map(letters_of, results)
        return tuple(result.full_tensor() for result in results)

    kind.agree(over_both, kind.draw())
    by_rows = kind.op._registration.rows.arrays
    own = ["0" if slot.name in by_rows else "R" for slot in kind.op._plan.result_slots]
    assert placed == own + ["0"] * (kind.changed is not None)


@pytest.mark.parametrize("name", rows("dtensor"))
def test_kinds(ranks, name):
    ranks.run(check_kind, name)


def check_more(rank):
    def scatter(x, index):
        return kernels.scatter_op(x, index, 3)

    def counted(x):
        return counted_op(x, 5)

    x = torch.randn(5)
    compare(scatter, lambda x, index: scattered(x), (x, INDEX), "0 0", "R", "R", [2, 2])
    compare(counted, lambda x: x * 5.0, (x,), "0", "R", "R", [1, 1])
    compare(
        lambda x, s: test_tensor_scalars.one(x, s),
        lambda x, s: x * s,
        (x, torch.tensor(2.0)),
        "0",
        "0",
    )
    compare(
        lambda pos, mass: bodies_op({"pos": pos, "mass": mass, "gravity": 3.0}),
        lambda pos, mass: pos * mass[:, None] * 3.0,
        (torch.randn(5, 3), torch.randn(5)),
        "0 0",
        "0",
        "0 0",
        [0, 0],
    )


def test_with_numbers_sizes_and_structs(ranks):
    ranks.run(check_more)


def check_cotangents(rank):
    """A cotangent comes in any placement, and from what follows in the graph."""
    from torch.distributed.tensor import distribute_tensor

    mesh = mesh_of()
    for given in ("R R", "0 R", "0 0"):
        for how in ("R", "0", "1"):
            x, w = spread(torch.randn(5), given[0], mesh), spread(torch.randn(3), given[2], mesh)
            y = kernels.gauss_op(x, w)
            seed = torch.randn(5, 3)
            mine = torch.autograd.grad(y, (x, w), distribute_tensor(seed, mesh, [placement(how)]))
            whole = [leaf(x.full_tensor().detach()), leaf(w.full_tensor().detach())]
            theirs = torch.autograd.grad(kernels.gauss_(*whole), whole, seed)
            for one, other in zip(mine, theirs, strict=True):
                close(one.full_tensor(), other)
    x = spread(torch.randn(5), "0", mesh)
    (kernels.square_op(kernels.square_op(x.sin())) * 2.0).sum().backward()
    whole = leaf(x.full_tensor().detach())
    (whole.sin() ** 4 * 2.0).sum().backward()
    close(x.grad.full_tensor(), whole.grad)


def test_cotangents_of_any_placement(ranks):
    ranks.run(check_cotangents)


def check_second(rank):
    """Where rows stay sharded, so do those of second derivatives and of tangents."""
    mesh = mesh_of()
    for given, placed in (("0 0", "0"), ("R R", "R")):
        x, w = (spread(torch.rand(5), letter, mesh) for letter in given.split())
        (first,) = torch.autograd.grad(kernels.product_op(x, w).sum(), x, create_graph=True)
        second = torch.autograd.grad(first.square().sum(), (x, w))
        a, b = x.full_tensor().detach(), w.full_tensor().detach()
        for got, want in zip(second, (8 * a * b * b, 8 * a * a * b), strict=True):
            assert letters_of(got) == placed
            close(got.full_tensor(), want)
        tangent = kernels.product_op.tangent(x, w, tangent_x=w)[1]
        assert letters_of(tangent) == placed
        close(tangent.full_tensor().detach(), 2 * a * b * b)


def test_second_derivatives(ranks):
    ranks.run(check_second)


def check_meshes(rank):
    for shape in ((2, 1), (1, 2)):
        for given, want, grads in (
            ("0R 0R", "0R", "0R PR"),
            ("R0 RR", "R0", "R0 RP"),
            ("00 RR", "00", "00 PP"),
            ("RR 00", "RR", "RR RR"),
        ):
            x, w = torch.randn(5), torch.randn(3)
            compare(kernels.gauss_op, kernels.gauss_, (x, w), given, want, grads, mesh=mesh_of(*shape))


def test_meshes_of_two_dimensions(ranks):
    ranks.run(check_meshes)


# --- other ways to call -----------------------------------------------------------------------------------------------


def check_ways(rank):
    mesh = mesh_of()
    x, w = torch.randn(5), torch.randn(5)
    for function in (torch.ops.kernels.product, kernels.product_op.overload):
        compare(function, kernels.product_, (x, w), "0 0", "0", "0 0", [0, 0])
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            for function in (torch.ops.kernels.product, kernels.product_op):
                y = function(spread(x, "0", mesh), spread(w, "R", mesh))
                assert letters_of(y) == "0"
                close(y.full_tensor(), x * x * w)


def test_through_torch_ops_and_without_grad(ranks):
    ranks.run(check_ways)


def check_compiled(rank):
    for what in ("sharded", "a whole input", "the second axis", "two outputs", "neighbours"):
        function, reference, shapes, given, want, grads, _ = CASES[what]
        inputs = [torch.randn(s) for s in shapes]
        compare(compiled(function), reference, inputs, given, want, grads)
    dynamic = compiled(kernels.gauss_op, dynamic=True)
    for n in (5, 7, 8):
        compare(dynamic, kernels.gauss_, (torch.randn(n), torch.randn(3)), "0 R", "0", "0 P")


def test_compiled(ranks):
    ranks.run(check_compiled)


def check_inductor(rank):
    # As many rows on each rank: PyTorch's disk cache takes the graph of one number of local rows for another's.
    function = torch.compile(lambda x, w: kernels.gauss_op(x * 2.0, w) * 3.0, fullgraph=True)
    arguments = (torch.randn(6), torch.randn(3))
    compare(function, lambda x, w: kernels.gauss_(x * 2.0, w) * 3.0, arguments, "0 R", "0", "0 P")


def test_under_inductor(ranks):
    ranks.run(check_inductor)


# --- ops that change --------------------------------------------------------------------------------------------------


@wp.kernel
def cube(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i] * x[i]


@wp.kernel
def cube_backward(x: wp.array[float], grad_y: wp.array[float], grad_x: wp.array[float]):
    i = wp.tid()
    grad_x[i] = 30.0 * x[i] * x[i] * grad_y[i]


def check_renewed(rank):
    op = warp_op(cube, "x[n] -> y[n]", name="test_dtensor::renewed")
    x = torch.randn(5)
    compare(op, lambda x: x**3, (x,), "0", "0", "0", [0, 0])
    op.register_backward(lambda ctx, grad_y: 3.0 * ctx.inputs["x"] ** 2 * grad_y)
    compare(op, lambda x: x**3, (x,), "0", "0", "0", [0, 0])
    again = warp_op(cube, "x[n] -> y[n]", name="test_dtensor::renewed")
    compare(again, lambda x: x**3, (x,), "0", "0", "0", [0, 0])
    declared = warp_op(cube, "x[n] -> y[n]", name="test_dtensor::declared", backward=cube_backward)
    y = declared(d := spread(x, "0", mesh_of()))
    y.sum().backward()
    close(d.grad.full_tensor(), 30.0 * x * x)


def test_after_register_backward(ranks):
    ranks.run(check_renewed)


def check_mutation(rank):
    mesh = mesh_of()
    x, v = spread(torch.zeros(5), "0", mesh).detach(), spread(torch.ones(5), "R", mesh).detach()
    version = x._version
    kernels.step_op(x, v, 2.0)
    assert x._version > version
    close(x.full_tensor(), torch.full((5,), 2.0))
    replicated = spread(torch.zeros(5), "R", mesh).detach()
    kernels.step_op(replicated, v, 2.0)
    close(replicated.full_tensor(), torch.full((5,), 2.0))
    text = message(kernels.step_op, replicated, spread(torch.ones(5), "0", mesh).detach(), 2.0)
    assert "argument 'x': is changed in place, and would have to be moved from (R) to (S(0))" in text
    close(replicated.full_tensor(), torch.full((5,), 2.0))


def test_changed_in_place(ranks):
    ranks.run(check_mutation)


# --- what is refused --------------------------------------------------------------------------------------------------


def check_refusals(rank):
    from torch.distributed.tensor.experimental import implicit_replication

    mesh, other = mesh_of(), mesh_of(2, 1)
    x, w = torch.randn(5), torch.randn(3)
    text = message(kernels.gauss_op, spread(x, "0", mesh), w)
    assert "kernels::gauss: argument 'w': expected a DTensor" in text and "distribute_tensor" in text
    with implicit_replication():
        close(kernels.gauss_op(spread(x, "0", mesh), w).full_tensor().detach(), kernels.gauss_(x, w))
        product = kernels.product_op(spread(x, "0", mesh), x)
        close(product.full_tensor().detach(), x * x * x)
    text = message(kernels.gauss_op, spread(x, "0", mesh), spread(w, "RR", other))
    assert "kernels::gauss: argument 'w': expected a DTensor on" in text
    # Both ranks see that 5 and 6 differ, though they have three rows of each on the first.
    text = message(kernels.product_op, spread(x, "0", mesh), spread(torch.randn(6), "0", mesh))
    assert "kernels::product: argument 'w': expected size 5 on axis 0" in text
    text = message(kernels.product_op, spread(x.double(), "0", mesh), spread(x, "0", mesh))
    assert "kernels::product: argument 'x': expected dtype torch.float32" in text


def test_refusals(ranks):
    ranks.run(check_refusals)


def check_compiled_mutation(rank):
    mesh = mesh_of()
    x, v = (spread(torch.ones(5), "0", mesh).detach() for _ in range(2))
    try:
        compiled(lambda x, v: kernels.step_op(x, v, 2.0))(x, v)
    except Exception as error:
        return str(error)
    raise AssertionError("not refused")


def test_changed_in_place_in_compiled_code_is_refused(ranks):
    assert "kernels::step: a DTensor in compiled code is not possible" in ranks.run(check_compiled_mutation)[0]


SCRIPT = """
import sys
import torch, warp as wp
from warpops import warp_op

@warp_op("x[n] -> y[n]")
@wp.kernel
def twice(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = 2.0 * x[i]

x = torch.ones(3, requires_grad=True)
twice(x).sum().backward()
print("torch.distributed.tensor" in sys.modules)
"""


def test_ordinary_tensors_do_not_import_dtensor(tmp_path):
    assert run_script(SCRIPT, tmp_path / "script.py").strip().splitlines()[-1] == "False"
