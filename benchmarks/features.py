"""What holds for each way of joining a Warp kernel to a framework: every cell is the outcome of a probe that runs here.

    python benchmarks/features.py                  # what is not installed is said to be so
    python benchmarks/features.py --markdown       # the table of the README

- **Cells.** ``yes``: right. ``wrong``: another result, without a word. ``error``: an exception, or a crash (what, is in the
  JSON). ``no``: right, but not in the way asked for. ``—``: the framework has nothing like it. In rows that ask that
  something be *refused* or *noticed*, an exception is the right answer, ``yes``; where it should name the argument and
  doesn't, ``error``. A row of several probes shows the worst of them. Right means equal to plain PyTorch.
- **custom_op**, **Function** and **Function+Tape** are the three recipes of Warp's manual, written for these kernels as the
  manual goes about it: a `torch.library.custom_op` with an adjoint launch, a `torch.autograd.Function` with one, and one
  that records a ``wp.Tape`` with gradient buffers of its own. Vectors are made contiguous before they are wrapped; a
  cotangent that a launch would overwrite is cloned. Like the manual's, the custom_op leaves tensors on the context; with
  ``save_for_backward``, which the manual asks for in the Function, it notices changed inputs too.
- **jax_kernel** is Warp's own, with ``enable_backward=True``, on JAX's CPU backend; outputs that must start at zero are
  in-out arguments, as its manual has it. **nvalchemi** is the ``warp_custom_op``
  of nvalchemi-toolkit-ops, used as its docstring shows.
- Each column runs in a process of its own. Probes whose launches may leave their arrays get one each.
- **Lines** are those that aren't blank or comments, beyond the kernel, for one kernel with one input.
"""

import argparse
import ast
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import torch
import warp as wp

from warpops import warp_op

Op = Callable[..., Any]
BACKEND = "inductor"
HERE = Path(__file__).resolve()


# The kernels. Annotations are no strings here: jax_kernel reads them as they are.


@wp.kernel
def square(points: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = points[i] * points[i]


@wp.kernel
def leaky(points: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = points[i]
    if points[i] < 0.0:
        y[i] = 0.1 * points[i]


@wp.kernel
def positive(points: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    if points[i] > 0.0:
        y[i] = points[i] * points[i]


@wp.kernel
def smear(points: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    wp.atomic_add(y, i, points[i] * points[i])
    wp.atomic_add(y, (i + 1) % points.shape[0], points[i])


@wp.kernel
def product(left: wp.array[float], right: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = left[i] * right[i]


@wp.kernel
def decay(y: wp.array[float], rate: wp.array[float]):
    i = wp.tid()
    y[i] = y[i] * rate[i]


@wp.kernel
def neighbours(points: wp.array2d[float], y: wp.array2d[float]):
    i = wp.tid()
    row = points[i]
    y[i, 0] = row[0] * row[1]
    y[i, 1] = row[1] * row[2]
    y[i, 2] = row[2] * row[0]


@wp.kernel
def swirl(points: wp.array[wp.vec3], y: wp.array[wp.vec3]):
    i = wp.tid()
    p = points[i]
    y[i] = p * wp.dot(p, p)


@dataclass(frozen=True)
class Case:
    """A kernel whose output has the shape and the dtype of its first input, and what it computes, in PyTorch."""

    kernel: wp.Kernel
    reference: Op
    inputs: tuple[str, ...] = ("points",)
    signature: str | None = None
    dtype: Any = wp.float32
    in_out: bool = False
    columns: int = 0

    def given(self, n: int = 6, seed: int = 0) -> list[torch.Tensor]:
        dice = torch.Generator().manual_seed(seed)
        shape = (n, self.columns) if self.columns else (n,)
        return [torch.randn(shape, generator=dice) for _ in self.inputs]

    @property
    def is_vector(self) -> bool:
        return self.dtype is wp.vec3


SQUARE = Case(square, lambda x: x * x)
LEAKY = Case(leaky, lambda x: torch.where(x < 0, 0.1 * x, x))
POSITIVE = Case(positive, lambda x: torch.where(x > 0, x * x, 0.0 * x))
SMEAR = Case(smear, lambda x: x * x + x.roll(1, 0), signature="points[n] -> y[n]")
PRODUCT = Case(product, lambda a, b: a * b, ("left", "right"))
DECAY = Case(decay, lambda y, s: y * s, ("y", "rate"), signature="y[n], rate[n] -> y[n]", in_out=True)
ROWS = Case(neighbours, lambda x: x * x.roll(-1, 1), signature="points[n, 3] -> y[n, 3]", columns=3)
SWIRL = Case(swirl, lambda x: x * (x * x).sum(-1, keepdim=True), dtype=wp.vec3, columns=3)


# The ways. Each makes a function of tensors out of a case.


def by_warpops(case: Case) -> Op:
    return warp_op(case.kernel, case.signature) if case.signature else warp_op(case.kernel)


def wrapped(case: Case, tensor: torch.Tensor) -> wp.array:
    """As the manual wraps: with the dtype of vectors, which have to be contiguous, and never with a gradient."""
    if case.is_vector:
        return wp.from_torch(tensor, dtype=case.dtype, requires_grad=False)
    return wp.from_torch(tensor, requires_grad=False)


def forward_launch(case: Case, inputs: tuple[torch.Tensor, ...], count: int) -> torch.Tensor:
    if case.in_out:
        result = inputs[0].clone()
        wp.launch(case.kernel, dim=count, inputs=[wrapped(case, t) for t in (result, *inputs[1:])])
        return result
    arrays = [wrapped(case, t.contiguous() if case.is_vector else t) for t in inputs]
    output = wp.zeros(arrays[0].shape, dtype=case.dtype, device=arrays[0].device, requires_grad=False)
    wp.launch(case.kernel, dim=count, inputs=arrays, outputs=[output], device=arrays[0].device)
    return wp.to_torch(output)


def adjoint_launch(
    case: Case, inputs: tuple[torch.Tensor, ...], count: int, result: torch.Tensor, cotangent: torch.Tensor
) -> list[torch.Tensor]:
    if case.is_vector:
        inputs, cotangent = tuple(t.contiguous() for t in inputs), cotangent.contiguous()
    gradients = [torch.zeros_like(t) for t in inputs]
    outputs, adj_outputs = [wrapped(case, result)], [wrapped(case, cotangent)]
    if case.in_out:  # one array, so one adjoint: the cotangent goes in, the gradient comes out
        gradients[0] = cotangent.clone()
        outputs, adj_outputs = [], []
    wp.launch(
        case.kernel,
        dim=count,
        inputs=[wrapped(case, t) for t in inputs],
        outputs=outputs,
        adj_inputs=[wrapped(case, t) for t in gradients],
        adj_outputs=adj_outputs,
        adjoint=True,
    )
    return gradients


def by_custom_op(case: Case) -> Op:
    name, arguments = f"features::{case.kernel.key}", ", ".join(f"Tensor {name}" for name in case.inputs)
    results = ", ".join("Tensor" for _ in case.inputs)

    def forward(*given: Any) -> torch.Tensor:
        return forward_launch(case, given[:-1], given[-1])

    def adjoint(result: torch.Tensor, cotangent: torch.Tensor, *given: Any) -> Any:
        gradients = adjoint_launch(case, given[:-1], given[-1], result, cotangent)
        return gradients[0] if len(gradients) == 1 else tuple(gradients)

    forward_op = torch.library.custom_op(
        name, forward, mutates_args=(), schema=f"({arguments}, SymInt count) -> Tensor"
    )
    adjoint_op = torch.library.custom_op(
        f"{name}_adjoint",
        adjoint,
        mutates_args=(),
        schema=f"(Tensor result, Tensor cotangent, {arguments}, SymInt count) -> ({results})",
    )
    forward_op.register_fake(lambda *given: torch.empty(given[0].shape, device=given[0].device))

    @adjoint_op.register_fake
    def _(result: torch.Tensor, cotangent: torch.Tensor, *given: Any) -> Any:
        gradients = tuple(torch.empty_like(t) for t in given[:-1])
        return gradients[0] if len(gradients) == 1 else gradients

    def keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.inputs, ctx.result = inputs, output  # as the manual's custom operator does

    def differentiate(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
        gradients = adjoint_op(ctx.result, cotangent, *ctx.inputs)
        return (*gradients, None) if isinstance(gradients, (tuple, list)) else (gradients, None)

    forward_op.register_autograd(differentiate, setup_context=keep)
    return lambda *given: forward_op(*given, given[0].shape[0])


def by_function(case: Case) -> Op:
    class Recipe(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, count: int, *inputs: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(*inputs)
            ctx.count = count
            ctx.result = forward_launch(case, tuple(t.detach() for t in inputs), count)
            return ctx.result.detach()  # what stays on the context must not be the result itself: a cycle

        @staticmethod
        def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
            return None, *adjoint_launch(case, ctx.saved_tensors, ctx.count, ctx.result, cotangent)

    return lambda *given: Recipe.apply(given[0].shape[0], *given)


def by_tape(case: Case) -> Op:
    class Recipe(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(*inputs)
            if case.is_vector:
                inputs = tuple(t.contiguous() for t in inputs)
            result = torch.zeros_like(inputs[0])
            tensors = [*inputs, result]
            if case.in_out:
                result = inputs[0].clone()
                tensors = [result, *inputs[1:]]
            ctx.buffers = [torch.zeros_like(t) for t in tensors]
            arrays = [
                wp.from_torch(t.detach(), dtype=case.dtype, requires_grad=True, grad=g)
                for t, g in zip(tensors, ctx.buffers, strict=True)
            ]
            ctx.output = arrays[0] if case.in_out else arrays[-1]
            with wp.Tape() as ctx.tape:
                wp.launch(case.kernel, dim=inputs[0].shape[0], inputs=arrays, device=arrays[0].device)
            ctx.arrays = arrays
            return result

        @staticmethod
        def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[torch.Tensor, ...]:
            inputs = ctx.saved_tensors
            if case.is_vector:
                cotangent = cotangent.contiguous()
            for buffer in ctx.buffers:
                buffer.zero_()
            ctx.tape.backward(grads={ctx.output: wp.from_torch(cotangent, dtype=case.dtype, requires_grad=False)})
            gradients = tuple(g.clone() for g in ctx.buffers[: len(inputs)])
            ctx.tape.zero()
            return gradients

    return Recipe.apply


def by_nvalchemi(case: Case) -> Op:
    from nvalchemiops.torch.autograd import (
        OutputSpec,
        WarpAutogradContextManager,
        attach_for_backward,
        needs_grad,
        warp_custom_op,
        warp_from_torch,
    )

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        recorded = needs_grad(*inputs)
        tensors = [t.contiguous() if case.is_vector else t for t in inputs]
        result = torch.zeros_like(tensors[0])
        tensors.append(result)
        if case.in_out:
            result = inputs[0].clone()
            tensors = [result, *inputs[1:]]
        arrays = [warp_from_torch(t, case.dtype, requires_grad=recorded) for t in tensors]
        with WarpAutogradContextManager(recorded) as tape:
            wp.launch(case.kernel, dim=inputs[0].shape[0], inputs=arrays)
        if recorded:
            output = arrays[0] if case.in_out else arrays[-1]
            attach_for_backward(result, tape=tape, result=output, **dict(zip(case.inputs, arrays, strict=False)))
        return result

    def one(points: torch.Tensor) -> torch.Tensor:
        return run(points)

    def two(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return run(left, right)

    def decayed(y: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
        return run(y, rate)

    function = {"points": one, "left": two, "y": decayed}[case.inputs[0]]
    return warp_custom_op(
        name=f"features_nvalchemi::{case.kernel.key}",
        outputs=[OutputSpec("result", case.dtype, lambda *given: tuple(given[0].shape))],
        grad_arrays=["result", *case.inputs],
    )(function)


def by_jax(case: Case, count: int | None = None) -> Op:
    names = ["y"] if case.in_out else None
    launch = count if case is ROWS else None
    function = wp.jax_kernel(case.kernel, in_out_argnames=names, launch_dims=launch, enable_backward=True)
    return lambda *given: function(*given)[0]


MAKERS: dict[str, Callable[[Case], Op]] = {
    "warpops": by_warpops,
    "custom_op": by_custom_op,
    "Function": by_function,
    "Function+Tape": by_tape,
    "jax_kernel": by_jax,
    "nvalchemi": by_nvalchemi,
}
PACKAGES = {"jax_kernel": "jax", "nvalchemi": "nvalchemiops"}


# Probes for PyTorch. Each takes a maker and returns a cell, or raises: WrongError, or whatever the way raises.


class WrongError(Exception):
    pass


class UnnamedError(Exception):
    """Refused, but not by name."""


def same(got: torch.Tensor | None, want: torch.Tensor | None, what: str) -> None:
    if got is None or want is None:
        if got is not want:
            raise WrongError(f"{what}: {got} instead of {want}")
        return
    if got.shape != want.shape or not torch.allclose(got, want, rtol=1e-4, atol=1e-5):
        short = ", ".join(f"{v:.3g}" for v in got.detach().flatten()[:4].tolist())
        right = ", ".join(f"{v:.3g}" for v in want.detach().flatten()[:4].tolist())
        raise WrongError(f"{what}: {short}, … instead of {right}, …")


def ramp(tensor: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1.0, 2.0, tensor.numel()).reshape(tensor.shape)


def leaves(given: list[torch.Tensor]) -> list[torch.Tensor]:
    """Leaves over the given storage, whatever its strides."""
    return [t.detach().requires_grad_() for t in given]


def right(op: Op, case: Case, given: list[torch.Tensor], expanded: bool = False, what: str = "") -> None:
    """Value and gradients are those of PyTorch; the arguments and the cotangent are left as they were."""
    what = f"{case.kernel.key} {what}".strip()
    before = [t.clone() for t in given]
    expected_leaves = leaves(before)
    expected = case.reference(*expected_leaves)
    cotangent = torch.ones(()).expand(expected.shape) if expanded else ramp(expected)
    wanted = torch.autograd.grad(expected, expected_leaves, cotangent)

    mine = leaves(given)
    result = op(*mine)
    same(result.detach(), expected.detach(), f"{what}: value")
    if expanded:
        found = torch.autograd.grad(result.sum(), mine)
    else:
        kept = cotangent.clone()
        found = torch.autograd.grad(result, mine, cotangent)
        same(cotangent, kept, f"{what}: the cotangent afterwards")
    for name, got, want in zip(case.inputs, found, wanted, strict=True):
        same(got, want, f"{what}: gradient of {name}")
    for name, tensor, kept in zip(case.inputs, given, before, strict=True):
        same(tensor, kept, f"{what}: argument {name} afterwards")


Probe = Callable[[Callable[[Case], Op]], str]


def gradients_of(*cases: Case, expanded: bool = False) -> tuple[Probe, ...]:
    def probe_of(case: Case) -> Probe:
        def probe(make: Callable[[Case], Op]) -> str:
            right(make(case), case, case.given(), expanded)
            return "yes"

        return probe

    return tuple(probe_of(case) for case in cases)


def cotangent_kept(case: Case) -> Probe:
    def probe(make: Callable[[Case], Op]) -> str:
        mine = leaves(case.given())
        result = make(case)(*mine)
        cotangent = ramp(result)
        kept = cotangent.clone()
        torch.autograd.grad(result, mine, cotangent)
        same(cotangent, kept, f"{case.kernel.key}: the cotangent afterwards")
        return "yes"

    return probe


def twice(case: Case) -> Probe:
    def probe(make: Callable[[Case], Op]) -> str:
        mine = leaves(case.given())
        result = make(case)(*mine)
        cotangent = ramp(result)
        first = torch.autograd.grad(result, mine, cotangent, retain_graph=True)
        copies = [g.clone() for g in first]
        second = torch.autograd.grad(result, mine, cotangent)
        for one, copy, other in zip(first, copies, second, strict=True):
            same(other, copy, f"{case.kernel.key}: the second gradient")
            same(one, copy, f"{case.kernel.key}: the first gradient, after the second backward")
        return "yes"

    return probe


def change_is_noticed(make: Callable[[Case], Op]) -> str:
    source = SQUARE.given()[0].requires_grad_()
    between = source * 1.0
    result = make(SQUARE)(between)
    wanted = torch.autograd.grad(SQUARE.reference(source).sum(), source)[0]
    with torch.no_grad():
        between.add_(1.0)
    try:
        (found,) = torch.autograd.grad(result.sum(), source)
    except RuntimeError as error:
        if "modified by an inplace operation" in str(error):
            return "yes"
        raise
    same(found, wanted, "gradient after the input was changed")
    return "yes"


def strides(make: Callable[[Case], Op]) -> str:
    for case in (SQUARE, SWIRL, PRODUCT):  # views of rows have a row of their own
        op = make(case)
        width = case.columns or 1
        base = torch.randn(12, 2 * width, generator=torch.Generator().manual_seed(1))
        sliced = base[::2, ::2]
        turned = torch.randn(width, 6, generator=torch.Generator().manual_seed(2)).T
        for what, tensor in (("sliced", sliced), ("transposed", turned)):
            tensor = tensor if case.columns else tensor[:, 0]
            right(op, case, [tensor, *[torch.randn(6) for _ in case.inputs[1:]]], what=what)
    return "yes"


def expanded_inputs(make: Callable[[Case], Op]) -> str:
    for case in (SQUARE, SWIRL, PRODUCT):  # views of rows have a row of their own
        shape = (6, case.columns) if case.columns else (6,)
        tensor = case.given(1)[0][:1].expand(shape)
        right(make(case), case, [tensor, *[torch.randn(6) for _ in case.inputs[1:]]], what="expanded")
    return "yes"


def starts_at_zero(case: Case) -> Probe:
    def probe(make: Callable[[Case], Op]) -> str:
        op = make(case)
        for n in (6, 64, 1000):
            for _ in range(5):
                junk = [torch.full((n,), float("nan")) for _ in range(16)]
                del junk
                right(op, case, case.given(n))
        return "yes"

    return probe


def some_require_grad(make: Callable[[Case], Op]) -> str:
    op = make(PRODUCT)
    for index in (0, 1):
        given = PRODUCT.given()
        given[index].requires_grad_()
        result = op(*given)
        result.backward(ramp(result))
        same(given[index].grad, ramp(result) * given[1 - index].detach(), PRODUCT.inputs[index])
        same(given[1 - index].grad, None, f".grad of {PRODUCT.inputs[1 - index]}, which requires none")
    if op(*PRODUCT.given()).requires_grad:
        raise WrongError("a result of plain inputs requires grad")
    return "yes"


def leaf_is_left_alone(make: Callable[[Case], Op]) -> str:
    op = make(SQUARE)
    (x,) = SQUARE.given()
    x.requires_grad_()
    result = op(x)
    same(x.grad, None, ".grad after the forward")
    (gradient,) = torch.autograd.grad(result.sum(), x)
    same(x.grad, None, ".grad after torch.autograd.grad")
    same(gradient, 2 * x.detach(), "gradient")
    op(x).sum().backward()
    same(x.grad, 2 * x.detach(), ".grad after backward")
    op(x).sum().backward()
    same(x.grad, 4 * x.detach(), ".grad after a second call and backward")
    held = x.grad
    assert held is not None
    copy = held.clone()
    x.grad = None
    op(x).sum().backward()
    same(held, copy, "a gradient taken before, after another backward")
    return "yes"


def compiles(make: Callable[[Case], Op]) -> str:
    for case in (SQUARE, PRODUCT, SWIRL):
        torch._dynamo.reset()
        op = make(case)
        right(
            torch.compile(lambda *given, op=op: op(*given) * 1.0, fullgraph=True, backend=BACKEND), case, case.given()
        )
    return "yes"


def sizes_change(make: Callable[[Case], Op]) -> str:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    op = make(PRODUCT)
    compiled = torch.compile(lambda *given: op(*given) * 1.0, fullgraph=True, backend=BACKEND)
    for n in (6, 7, 9, 14, 33):
        right(compiled, PRODUCT, PRODUCT.given(n))
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    # PyTorch itself makes the second, when a size first changes.
    return "yes" if graphs <= 2 else f"no: {graphs} graphs for 5 sizes"


def maps(make: Callable[[Case], Op]) -> str:
    for case in (SQUARE, SWIRL):
        op = make(case)
        given = torch.stack([case.given(seed=k)[0] for k in range(4)])
        same(torch.vmap(op)(given), torch.vmap(case.reference)(given), f"{case.kernel.key}: vmap")
        turned = given.movedim(0, 1)
        same(
            torch.vmap(op, in_dims=1)(turned), torch.vmap(case.reference)(given), f"{case.kernel.key}: vmap, in_dims=1"
        )
    left, right_ = (torch.stack([PRODUCT.given(seed=k)[i] for k in range(4)]) for i in (0, 1))
    found = torch.vmap(make(PRODUCT), in_dims=(0, None))(left, right_[0])
    same(found, left * right_[0], "product: vmap over the left factor")
    return "yes"


def maps_gradients(make: Callable[[Case], Op]) -> str:
    for case in (SQUARE, SWIRL):
        op = make(case)
        given = torch.stack([case.given(seed=k)[0] for k in range(4)])
        found = torch.vmap(torch.func.grad(lambda x, op=op: (op(x) * ramp(x)).sum()))(given)
        wanted = torch.vmap(torch.func.grad(lambda x, case=case: (case.reference(x) * ramp(x)).sum()))(given)
        same(found, wanted, f"{case.kernel.key}: vmap of grad")
    return "yes"


def double_backward(make: Callable[[Case], Op]) -> str:
    """A loss with a gradient penalty."""

    def penalised(op: Op) -> torch.Tensor:
        x = SQUARE.given()[0].requires_grad_()
        result = op(x)
        (gradient,) = torch.autograd.grad(result, x, torch.ones_like(result), create_graph=True)
        return torch.autograd.grad(result.sum() + (gradient**2).sum(), x)[0]

    op, wanted = make(SQUARE), penalised(SQUARE.reference)
    try:
        found = penalised(op)
    except WrongError:
        raise
    except Exception as error:
        return refused(error)
    same(found, wanted, "gradient of a loss with a gradient penalty")
    return "yes"


def forward_mode(make: Callable[[Case], Op]) -> str:
    import torch.autograd.forward_ad as forward

    op = make(SQUARE)
    (x,) = SQUARE.given()
    notes = []
    try:
        with forward.dual_level():
            tangent = forward.unpack_dual(op(forward.make_dual(x, torch.ones_like(x)))).tangent
            same(torch.zeros_like(x) if tangent is None else tangent, 2 * x, "tangent, by dual numbers")
    except WrongError:
        raise
    except Exception as error:
        notes.append(refused(error))
    try:
        same(torch.func.jvp(op, (x,), (torch.ones_like(x),))[1], 2 * x, "tangent, by torch.func.jvp")
    except WrongError:
        raise
    except Exception as error:
        notes.append(refused(error))
    return notes[0] if notes else "yes"


def refused(error: Exception) -> str:
    """Told apart from a plain yes in the JSON."""
    return f"yes: {type(error).__name__}: {error}"


def refuses(case: Case, arguments: Callable[[list[Any]], list[Any]], name: str) -> Probe:
    """Another argument than the kernel takes: refused in words that name it."""

    def probe(make: Callable[[Case], Op]) -> str:
        op = make(case)
        given = arguments(case.given())
        try:
            op(*given)
        except Exception as error:
            if re.search(rf"\b{name}\b", str(error)):
                return refused(error)
            raise UnnamedError(f"{type(error).__name__}: {error}") from None
        shapes = ", ".join(f"{t.dtype} {tuple(t.shape)}" for t in given)
        raise WrongError(f"{case.kernel.key} was launched with {shapes}")

    return probe


def double_dtype(given: list[torch.Tensor]) -> list[torch.Tensor]:
    return [given[0].double(), *given[1:]]


def another_rank(given: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.stack([given[0]] * 2, dim=1)]


def two_components(given: list[torch.Tensor]) -> list[torch.Tensor]:
    return [given[0][:, :2].contiguous()]


def shorter(given: list[torch.Tensor]) -> list[torch.Tensor]:
    return [given[0], given[1][:3].clone()]


# Probes for JAX. None of them takes part where arrays have neither ``.grad`` nor in-place changes.


def in_jax(given: list[torch.Tensor]) -> list[Any]:
    import jax

    return [jax.numpy.asarray(t.detach().numpy()) for t in given]


def in_torch(array: Any) -> torch.Tensor:
    import numpy

    return torch.from_numpy(numpy.array(array))


def jax_right(op: Op, case: Case, given: list[Any], expanded: bool = False, what: str = "") -> None:
    import jax

    plain = [in_torch(a).requires_grad_() for a in given]
    expected = case.reference(*plain)
    cotangent = torch.ones_like(expected) if expanded else ramp(expected)
    wanted = torch.autograd.grad(expected, plain, cotangent)
    result, pullback = jax.vjp(op, *given)
    what = f"{case.kernel.key} {what}".strip()
    same(in_torch(result), expected.detach(), f"{what}: value")
    factor = in_jax([cotangent])[0]
    if expanded:
        found = jax.grad(lambda *a: op(*a).sum(), argnums=tuple(range(len(given))))(*given)
    else:
        found = pullback(factor)
        same(in_torch(factor), cotangent, f"{what}: the cotangent afterwards")
    for name, got, want in zip(case.inputs, found, wanted, strict=True):
        same(in_torch(got), want, f"{what}: gradient of {name}")


def jax_gradients_of(*cases: Case, expanded: bool = False) -> tuple[Probe, ...]:
    def probe_of(case: Case) -> Probe:
        def probe(make: Any) -> str:
            jax_right(make(case, 6), case, in_jax(case.given()), expanded)
            return "yes"

        return probe

    return tuple(probe_of(case) for case in cases)


def jax_cotangent_kept(case: Case) -> Probe:
    def probe(make: Any) -> str:
        import jax

        result, pullback = jax.vjp(make(case, 6), *in_jax(case.given()))
        cotangent = jax.numpy.linspace(-1.0, 2.0, result.size).reshape(result.shape)
        kept = in_torch(cotangent)
        jax.block_until_ready(pullback(cotangent))
        same(in_torch(cotangent), kept, f"{case.kernel.key}: the cotangent afterwards")
        return "yes"

    return probe


def jax_twice(case: Case) -> Probe:
    def probe(make: Any) -> str:
        import jax

        result, pullback = jax.vjp(make(case, 6), *in_jax(case.given()))
        cotangent = jax.numpy.linspace(-1.0, 2.0, result.size).reshape(result.shape)
        first, second = in_torch(pullback(cotangent)[0]), in_torch(pullback(cotangent)[0])
        same(second, first, f"{case.kernel.key}: the second gradient")
        return "yes"

    return probe


def jax_strides(make: Any) -> str:
    import jax

    (x,) = in_jax([torch.randn(12, generator=torch.Generator().manual_seed(1))])
    jax_right(make(SQUARE), SQUARE, [x[::2]], what="sliced")
    (x,) = in_jax([torch.randn(3, 6, generator=torch.Generator().manual_seed(1))])
    jax_right(make(SWIRL), SWIRL, [x.T], what="transposed")
    op = make(SWIRL)
    same(in_torch(jax.jit(lambda x: op(x.T))(x)), SWIRL.reference(in_torch(x).T), "swirl transposed inside jit")
    return "yes"


def jax_expanded_inputs(make: Any) -> str:
    import jax

    (x,) = in_jax([torch.randn(1, 3, generator=torch.Generator().manual_seed(1))])
    jax_right(make(SWIRL), SWIRL, [jax.numpy.broadcast_to(x, (6, 3))], what="expanded")
    return "yes"


def jax_starts_at_zero(case: Case) -> Probe:
    """Warp's manual: such an output is an in-out argument, for which the caller brings the zeros."""

    def probe(make: Any) -> str:
        import jax

        function = wp.jax_kernel(case.kernel, in_out_argnames=["y"])
        for n in (6, 64, 1000):
            given = case.given(n)
            found = function(*in_jax([given[0], torch.zeros(n)]))[0]
            same(in_torch(found), case.reference(*given), f"{case.kernel.key}: value, as an in-out argument")

        def value(x: Any) -> Any:
            differentiable = wp.jax_kernel(case.kernel, in_out_argnames=["y"], enable_backward=True)
            return differentiable(x, jax.numpy.zeros_like(x))[0].sum()

        given = case.given()
        found = in_torch(jax.grad(value)(in_jax(given)[0]))
        (x,) = leaves(given)
        same(found, torch.autograd.grad(case.reference(x).sum(), x)[0], f"{case.kernel.key}: gradient")
        return "yes"

    return probe


def jax_some_require_grad(make: Any) -> str:
    import jax

    op, given = make(PRODUCT), in_jax(PRODUCT.given())
    for index in (0, 1):
        found = jax.grad(lambda *a: op(*a).sum(), argnums=index)(*given)
        same(in_torch(found), in_torch(given[1 - index]), PRODUCT.inputs[index])
    return "yes"


def jax_compiles(make: Any) -> str:
    import jax

    for case in (SQUARE, PRODUCT, SWIRL):
        jax_right(jax.jit(make(case)), case, in_jax(case.given()))
    return "yes"


def jax_sizes_change(make: Any) -> str:
    import jax

    op, traces = make(PRODUCT), itertools.count()

    @jax.jit
    def function(left: Any, right: Any) -> Any:
        next(traces)
        return op(left, right)

    for n in (6, 7, 9, 14, 33):
        given = PRODUCT.given(n)
        same(in_torch(function(*in_jax(given))), given[0] * given[1], "product")
    traced = next(traces)
    return "yes" if traced <= 2 else f"no: traced {traced} times for 5 sizes"


def jax_maps(make: Any) -> str:
    import jax

    for case in (SQUARE, SWIRL):
        given = torch.stack([case.given(seed=k)[0] for k in range(4)])
        wanted, array = torch.vmap(case.reference)(given), in_jax([given])[0]
        same(in_torch(jax.vmap(make(case))(array)), wanted, f"{case.kernel.key}: vmap")
        turned = jax.numpy.moveaxis(array, 0, 1)
        same(in_torch(jax.vmap(make(case), in_axes=1)(turned)), wanted, f"{case.kernel.key}: vmap, in_axes=1")
    left, right_ = (torch.stack([PRODUCT.given(seed=k)[i] for k in range(4)]) for i in (0, 1))
    found = jax.vmap(make(PRODUCT), in_axes=(0, None))(*in_jax([left, right_[0]]))
    same(in_torch(found), left * right_[0], "product: vmap over the left factor")
    return "yes"


def jax_maps_gradients(make: Any) -> str:
    import jax

    for case in (SQUARE, SWIRL):
        op = make(case)
        given = torch.stack([case.given(seed=k)[0] for k in range(4)])
        weights = in_jax([ramp(given[0])])[0]
        found = jax.vmap(jax.grad(lambda x, op=op, w=weights: (op(x) * w).sum()))(in_jax([given])[0])
        wanted = torch.vmap(torch.func.grad(lambda x, case=case: (case.reference(x) * ramp(x)).sum()))(given)
        same(in_torch(found), wanted, f"{case.kernel.key}: vmap of grad")
    return "yes"


def jax_double_backward(make: Any) -> str:
    import jax

    op = make(SQUARE)
    (x,) = in_jax(SQUARE.given())

    def loss(x: Any) -> Any:
        return op(x).sum() + (jax.grad(lambda x: op(x).sum())(x) ** 2).sum()

    try:
        found = in_torch(jax.grad(loss)(x))
    except Exception as error:
        return refused(error)
    same(found, 10 * in_torch(x), "gradient of a loss with a gradient penalty")
    return "yes"


def jax_forward_mode(make: Any) -> str:
    import jax

    (x,) = in_jax(SQUARE.given())
    try:
        found = in_torch(jax.jvp(make(SQUARE), (x,), (jax.numpy.ones_like(x),))[1])
    except Exception as error:
        return refused(error)
    same(found, 2 * in_torch(x), "tangent")
    return "yes"


def jax_refuses(case: Case, arguments: Callable[[list[Any]], list[Any]], name: str) -> Probe:
    def probe(make: Any) -> str:
        import jax

        jax.config.update("jax_enable_x64", True)
        op = make(case)
        return refuses(case, lambda given: in_jax(arguments(given)), name)(
            lambda _: lambda *given: jax.block_until_ready(op(*given))
        )

    return probe


# Lines


def lines_of(file: str, *path: str) -> int:
    """Lines of a function's body (with decorators, for one that is nested) that aren't blank, comments, docstring, or
    its last return."""
    text = (HERE.parent / file).read_text()
    node: Any = ast.parse(text)
    for name in path:
        node = next(n for n in ast.walk(node) if isinstance(n, ast.FunctionDef) and n.name == name)
    drop: set[int] = set()
    for part in ast.walk(node):
        if isinstance(part, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(part, clean=False) is not None:
            drop.update(range(part.body[0].lineno, (part.body[0].end_lineno or 0) + 1))
    if len(path) > 1:
        first, last = min(d.lineno for d in node.decorator_list), node.end_lineno
    else:
        first, last = node.body[0].lineno, node.end_lineno
        end = node.body[-1]
        if isinstance(end, ast.Return) and len(node.body) > 1:
            drop.update(range(end.lineno, end.end_lineno + 1))
    lines = text.splitlines()
    kept = (n for n in range(first, last + 1) if n not in drop)
    return sum(bool(lines[n - 1].strip()) and not lines[n - 1].strip().startswith("#") for n in kept)


def just_warpops(kernel: wp.Kernel) -> Op:
    return warp_op(kernel)


def just_jax(kernel: wp.Kernel) -> Op:
    return wp.jax_kernel(kernel, enable_backward=True)


def just_tape(kernel: wp.Kernel, dtype: Any) -> Op:
    class Recipe(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, source: torch.Tensor, count: int) -> torch.Tensor:
            ctx.save_for_backward(source)
            result = torch.zeros(count, device=source.device)
            ctx.source_grad = torch.zeros_like(source)
            ctx.result_grad = torch.zeros_like(result)
            ctx.source = wp.from_torch(source.detach(), dtype=dtype, requires_grad=True, grad=ctx.source_grad)
            ctx.result = wp.from_torch(result, requires_grad=True, grad=ctx.result_grad)
            with wp.Tape() as ctx.tape:
                wp.launch(kernel, dim=count, inputs=[ctx.source], outputs=[ctx.result], device=ctx.source.device)
            return result

        @staticmethod
        def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[torch.Tensor, None]:
            _ = ctx.saved_tensors
            ctx.source_grad.zero_()
            ctx.result_grad.zero_()
            ctx.tape.backward(grads={ctx.result: wp.from_torch(cotangent, requires_grad=False)})
            gradient = ctx.source_grad.clone()
            ctx.tape.zero()
            return gradient, None

    return Recipe.apply


SOURCES = {
    "warpops": ("features.py", "just_warpops"),
    "custom_op": ("rivals.py", "library_recipe"),
    "Function": ("rivals.py", "function_recipe"),
    "Function+Tape": ("features.py", "just_tape"),
    "jax_kernel": ("features.py", "just_jax"),
    "nvalchemi": ("peers.py", "by_nvalchemi", "op"),
}


# The table


@dataclass(frozen=True)
class Row:
    label: str
    probes: tuple[Probe, ...]
    jax: tuple[Probe, ...] = ()
    alone: bool = False
    """In a process of its own: its launches may leave their arrays."""


ROWS_OF_TABLE = [
    Row(
        "Cotangent expanded, `y.sum().backward()`",
        gradients_of(SQUARE, SWIRL, expanded=True),
        jax_gradients_of(SQUARE, SWIRL, expanded=True),
    ),
    Row(
        "The caller's cotangent is left unchanged",
        tuple(map(cotangent_kept, (SQUARE, LEAKY, DECAY, ROWS))),
        tuple(map(jax_cotangent_kept, (SQUARE, LEAKY, ROWS))),
    ),
    Row(
        "Backward twice (`retain_graph=True`)",
        tuple(map(twice, (SQUARE, LEAKY, SWIRL))),
        tuple(map(jax_twice, (SQUARE, LEAKY, SWIRL))),
    ),
    Row("An element stored twice: gradient", gradients_of(LEAKY), jax_gradients_of(LEAKY)),
    Row("A row taken as a view: gradient", gradients_of(ROWS), jax_gradients_of(ROWS)),
    Row("In-out argument: result and gradients", gradients_of(DECAY), jax_gradients_of(DECAY)),
    Row("Input changed before backward: noticed", (change_is_noticed,)),
    Row("Non-contiguous inputs", (strides,), (jax_strides,), alone=True),
    Row("Expanded inputs", (expanded_inputs,), (jax_expanded_inputs,), alone=True),
    Row(
        "Partly written, atomic outputs from zero",
        tuple(map(starts_at_zero, (POSITIVE, SMEAR))),
        tuple(map(jax_starts_at_zero, (POSITIVE, SMEAR))),
    ),
    Row("Only some inputs require grad", (some_require_grad,), (jax_some_require_grad,)),
    Row("A leaf's `.grad` only accumulated into", (leaf_is_left_alone,)),
    Row("`torch.compile(fullgraph=True)` / `jit`", (compiles,), (jax_compiles,)),
    Row("Compiled: sizes change, no new graph", (sizes_change,), (jax_sizes_change,)),
    Row("`vmap`", (maps,), (jax_maps,)),
    Row("`vmap` of `grad`", (maps_gradients,), (jax_maps_gradients,)),
    Row("Double backward: right or refused", (double_backward,), (jax_double_backward,)),
    Row("Forward mode: right or refused", (forward_mode,), (jax_forward_mode,)),
    Row(
        "Another dtype: refused by name",
        (refuses(SQUARE, double_dtype, "points"), refuses(SWIRL, double_dtype, "points")),
        (jax_refuses(SQUARE, double_dtype, "points"), jax_refuses(SWIRL, double_dtype, "points")),
        alone=True,
    ),
    Row(
        "Another rank or components: likewise",
        (refuses(SQUARE, another_rank, "points"), refuses(SWIRL, two_components, "points")),
        (jax_refuses(SQUARE, another_rank, "points"), jax_refuses(SWIRL, two_components, "points")),
        alone=True,
    ),
    Row(
        "Sizes that don't agree: likewise",
        (refuses(PRODUCT, shorter, "right"),),
        (jax_refuses(PRODUCT, shorter, "right"),),
        alone=True,
    ),
]
ORDER = ("wrong", "error", "no", "yes")


@dataclass
class Cell:
    outcome: str
    details: list[str]


def look(column: str, row: Row) -> Cell:
    """Run the probes of a cell here."""
    probes = row.jax if column == "jax_kernel" else row.probes
    if not probes:
        return Cell("—", [])
    outcomes, details = [], []
    for probe in probes:
        torch.manual_seed(0)
        try:
            outcome, _, detail = probe(MAKERS[column]).partition(": ")
        except WrongError as fault:
            outcome, detail = "wrong", str(fault)
        except UnnamedError as fault:
            outcome, detail = "error", f"refused without naming the argument: {fault}"
        except Exception as error:
            outcome, detail = "error", f"{type(error).__name__}: {error}"
        outcomes.append(outcome)
        if detail:
            details.append(f"{outcome}: {' '.join(detail.split())[:300]}")
    return Cell(min(outcomes, key=ORDER.index), details)


def serve(column: str, numbers: list[int], file: Path) -> None:
    """In a child: one line of JSON a row, as soon as it is known."""
    warnings.simplefilter("ignore")
    wp.config.log_level = wp.LOG_ERROR
    if column != "warpops":
        wp.init()
    with file.open("a") as out:
        for number in numbers:
            cell = look(column, ROWS_OF_TABLE[number])
            out.write(json.dumps({"row": number, "outcome": cell.outcome, "details": cell.details}) + "\n")
            out.flush()


def batches(numbers: list[int]) -> Iterator[list[int]]:
    yield [n for n in numbers if not ROWS_OF_TABLE[n].alone]
    for n in numbers:
        if ROWS_OF_TABLE[n].alone:
            yield [n]


def measure(column: str, timeout: float) -> list[Cell]:
    """All cells of a column, from child processes. One that dies loses a cell, and the next goes on behind it."""
    cells: dict[int, Cell] = {}
    package = PACKAGES.get(column)
    if package and importlib.util.find_spec(package) is None:
        return []
    for batch in batches(list(range(len(ROWS_OF_TABLE)))):
        left = batch
        while left:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "cells"
                file.touch()
                command = [sys.executable, str(HERE), "--serve", column, str(file), "--backend", BACKEND]
                command += ["--rows", *map(str, left)]
                path = os.pathsep.join(filter(None, (str(HERE.parent.parent), os.environ.get("PYTHONPATH"))))
                try:
                    done = subprocess.run(
                        command,
                        capture_output=True,
                        text=True,
                        timeout=timeout,
                        check=False,
                        env={**os.environ, "PYTHONPATH": path},
                    )
                    end = f"the process ended with {done.returncode}: {done.stderr.strip()[-200:]}"
                    failed = done.returncode != 0
                except subprocess.TimeoutExpired:
                    end, failed = f"nothing after {timeout:g} s", True
                for line in file.read_text().splitlines():
                    found = json.loads(line)
                    cells[found["row"]] = Cell(found["outcome"], found["details"])
            left = [n for n in left if n not in cells]
            if left:
                cells[left.pop(0)] = Cell("error", [f"error: {end}"])
            elif failed and len(batch) == 1:  # the heap was found broken at the end
                cells[batch[0]].outcome = min(cells[batch[0]].outcome, "error", key=ORDER.index)
                cells[batch[0]].details.append(f"error: {end}")
    return [cells[n] for n in range(len(ROWS_OF_TABLE))]


def main() -> int:
    global BACKEND
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="the cells, each with what was found")
    parser.add_argument("--markdown", action="store_true", help="print the table for GitHub")
    parser.add_argument("--only", nargs="+", choices=MAKERS, default=list(MAKERS), help="columns")
    parser.add_argument("--backend", default=BACKEND, help="of torch.compile")
    parser.add_argument("--timeout", type=float, default=400, help="seconds for a process")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--rows", nargs="+", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    BACKEND = options.backend
    if options.serve:
        serve(options.serve[0], options.rows, Path(options.serve[1]))
        return 0

    from common import environment, table, write_json

    columns = {column: measure(column, options.timeout) for column in options.only}
    head = ["", *columns]
    rows = [["Lines beyond the kernel", *(str(lines_of(*SOURCES[c])) if columns[c] else "—" for c in columns)]]
    for number, row in enumerate(ROWS_OF_TABLE):
        rows.append([row.label, *(cells[number].outcome if cells else "—" for cells in columns.values())])
    about = environment()
    if options.markdown:
        print("\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)))
    else:
        print(", ".join(f"{key} {value}" for key, value in about.items()))
        table("What holds (how each cell is found: --help, and the head of this file)", head, rows)
    print()
    for column, cells in columns.items():
        if not cells:
            print(f"{column}: not installed")
    if "custom_op" in columns:
        print(
            "custom_op keeps inputs on the context, as the manual prints it; with save_for_backward it notices changes."
        )
    result = {
        column: {
            row.label: {"outcome": cell.outcome, "details": cell.details}
            for row, cell in zip(ROWS_OF_TABLE, cells, strict=True)
        }
        if cells
        else "not installed"
        for column, cells in columns.items()
    }
    lines = {column: lines_of(*SOURCES[column]) for column in columns}
    write_json(options.json, {"benchmark": "features", "environment": about, "lines": lines, "cells": result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
