"""Gradients against finite differences, at the accuracy of the kernel's own dtype."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from ..frozen import frozen
from ..plan.model import Slot
from .finite import departs
from .report import Finding, LeftOutError, suspicion
from .subject import Outcome, Subject, Values
from .suspects import suspects_of

STEPS = {
    torch.float64: (1e-2, 1e-3, 1e-4, 1e-5),
    torch.float32: (1e-2, 2e-3, 4e-4),
    torch.float16: (1e-1, 3e-2),
    torch.bfloat16: (3e-1, 1e-1),
}
"""Lengths of the line, relative to the sizes of the elements."""
ACCURACY = {torch.float64: 1e-5, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""What a gradient of that dtype may be off, relative to its own size."""
DENSE, SINGLE = 3, 12
SECONDS = 10.0
"""How long one input may take; the directions are cut to fit."""


@frozen
class Direction:
    name: str
    vector: torch.Tensor
    """float64, in the units of the input."""
    dense: bool = False


def check_gradients(subject: Subject) -> list[Finding]:
    """Every input's gradient along random directions and along single elements."""
    if not subject.inputs:
        raise LeftOutError("no input can have one")
    if not subject.outputs:
        raise LeftOutError("no output can have a cotangent")
    if subject.gradient_error is not None:
        if not subject.plan.kernel.enable_backward:
            raise LeftOutError("the kernel is compiled without its backward")
        return [Finding("gradient", f"there is none: {subject.gradient_error}", _refused(subject))]
    cotangents = subject.cotangents(subject.forward())
    outcome = subject.run(cotangents)
    found = (_check_input(subject, slot, outcome, cotangents) for slot in subject.inputs)
    return [finding for finding in found if finding is not None]


def _refused(subject: Subject) -> tuple[str, ...]:
    refused = [h for h in subject.plan.effects.hazards if h.refused]
    advice = "give the op a backward with register_backward, or declare its inputs nondiff"
    return tuple(suspicion(h) for h in refused) + ((advice,) if not refused else ())


def coarsest(subject: Subject) -> torch.dtype:
    """The least accurate dtype among the floating tensors of the call."""
    dtypes = [subject.values[slot.name].dtype for slot in subject.inputs]
    dtypes += [s.leaf.scalar.dtype for s in subject.concrete.result_slots if s.differentiable and s.leaf.scalar]
    known = [dtype for dtype in dtypes if dtype in ACCURACY]
    return max(known, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def _check_input(subject: Subject, slot: Slot, outcome: Outcome, cotangents: dict[str, torch.Tensor]) -> Finding | None:
    gradient = outcome.gradients[slot.label]
    source = subject.values[slot.name]
    title = f"gradient of '{slot.label}'"
    if gradient is not None and (gradient.shape != source.shape or gradient.dtype != source.dtype):
        return Finding(
            title,
            f"expected shape {tuple(source.shape)} and {source.dtype}, got {tuple(gradient.shape)} and "
            f"{gradient.dtype}",
            suspects_of(subject.op, slot.label),
        )
    if source.numel() == 0:
        return None
    if gradient is not None and bool(gradient.isnan().any()) and _finite(subject):
        text = f"NaN at {gradient.isnan().nonzero()[0].tolist()}, and the results are finite"
        return Finding(title, text, suspects_of(subject.op, slot.label))
    failures: list[str] = []
    dtype = coarsest(subject)
    for direction in _directions(subject, slot, gradient, cotangents, dtype):
        if direction.dense and failures:
            continue  # one is enough, single elements say more
        told = _compare(subject, slot, gradient, direction, cotangents, dtype)
        if told is not None:
            failures.append(told)
            if len(failures) == 4:
                break
    if not failures:
        return None
    lines = failures[:3] + (["and more"] if len(failures) > 3 else [])
    if gradient is None:
        lines.insert(0, "backward gives no gradient (None), and the results depend on it:")
        lines.append(f"if that is meant, declare nondiff='{slot.label}'")
    return Finding(title, "\n".join(lines), suspects_of(subject.op, slot.label))


def _directions(
    subject: Subject, slot: Slot, gradient: torch.Tensor | None, cotangents: dict[str, torch.Tensor], dtype: torch.dtype
) -> Iterator[Direction]:
    source = subject.values[slot.name].detach().double()
    size = source.abs()
    typical = float(size[size > 0].median()) if bool((size > 0).any()) else 1.0
    unit = size.clamp(min=0.1 * typical)
    generator = torch.Generator().manual_seed(1)

    begin = time.perf_counter()
    subject.forward()
    each = 13 * len(STEPS[dtype]) * (time.perf_counter() - begin)
    allowed = max(2, int(SECONDS / max(each, 1e-9)))
    dense = min(DENSE, max(1, allowed // 2))
    single = min(SINGLE, allowed - dense)
    for _ in range(dense):
        signs = torch.randint(0, 2, source.shape, generator=generator).to(unit) * 2 - 1
        yield Direction("along a random direction", unit * signs, dense=True)

    count = source.numel()
    chosen = [0, count - 1]
    if gradient is not None:
        chosen.append(int(gradient.detach().double().abs().nan_to_num().argmax()))
    chosen += torch.randperm(count, generator=generator)[:SINGLE].tolist()
    for index in list(dict.fromkeys(chosen))[:single]:
        vector = torch.zeros_like(unit).reshape(-1)
        vector[index] = unit.reshape(-1)[index]
        where = [int(n) for n in torch.unravel_index(torch.tensor(index), source.shape)] if source.ndim else []
        yield Direction(f"for the element {where}", vector.reshape(source.shape))


def _compare(
    subject: Subject,
    slot: Slot,
    gradient: torch.Tensor | None,
    direction: Direction,
    cotangents: dict[str, torch.Tensor],
    dtype: torch.dtype,
) -> str | None:
    """What disagrees along one direction; None where nothing does."""
    source = subject.values[slot.name].detach()
    exact = source.double()
    weight = torch.zeros_like(exact) if gradient is None else gradient.detach().double()
    if not bool(torch.isfinite(weight).all()):
        return None  # an infinite slope
    vector = direction.vector.to(exact.device)
    noise_unit = torch.finfo(dtype).eps / 2

    def departure(length: float) -> tuple[float, float]:
        """How far the results leave the gradient's tangent: with a right gradient it is flat at 0."""
        moved = (exact + length * vector).to(source.dtype)
        values: Values = {**subject.values, slot.name: moved}
        results = subject.forward(values)
        total, noise = 0.0, 0.0
        for label, cotangent in cotangents.items():
            terms = results[label].double() * cotangent.double()
            total += float(terms.sum())
            noise += float(terms.square().sum())
        along = float((weight * (moved.double() - exact)).sum())
        return total - along, noise_unit * noise**0.5

    given = float((weight * vector).sum())
    own = ACCURACY[dtype] * float((weight * vector).norm())
    found = departs(departure, STEPS[dtype], own)
    if found is None:
        return None
    return (
        f"{direction.name}: the gradient gives {given:.5g}, finite differences {given + found.value:.5g} "
        f"(± {found.error + own:.1g})"
    )


def _finite(subject: Subject) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in subject.forward().values() if t.is_floating_point())
