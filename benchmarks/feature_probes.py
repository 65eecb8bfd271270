"""Probes for PyTorch. Each takes a maker and returns a cell, or raises: ``WrongError``, or whatever the way raises."""

import re
from collections.abc import Callable
from typing import Any

import torch

from feature_cases import PRODUCT, SQUARE, SWIRL, Case, Op

BACKEND = "inductor"
"""Of ``torch.compile``."""


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
