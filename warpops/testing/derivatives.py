"""Forward mode and second derivatives: against the gradients, and against finite differences of the tangent."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import GradientError
from .finite import departs
from .gradients import ACCURACY, STEPS, coarsest
from .report import Finding, LeftOutError
from .subject import Subject


def check_derivatives(subject: Subject) -> list[Finding]:
    """The tangent along a random direction, and the gradient of the tangent, which is what double backward gives."""
    if not subject.differentiable:
        raise LeftOutError("there is no gradient")
    # Copies: PyTorch makes no dual number of an expanded tensor.
    x = [subject.values[slot.name].detach().clone() for slot in subject.inputs]
    u, w = _drawn(subject, 1), _drawn(subject, 2)
    try:
        tangents = _tangent(subject, x, u)
    except GradientError as error:
        raise LeftOutError(str(error)) from None
    if not any(t.numel() for t in x):
        return []
    dtype = coarsest(subject)
    cotangents = subject.cotangents(subject.forward())
    findings = []
    forward = _total(cotangents, tangents)
    gradients = subject.run(cotangents).gradients
    backward = sum(_inner(gradients[s.label], d) for s, d in zip(subject.inputs, u, strict=True))
    size = sum(float((c.double() * tangents[n].double()).norm()) for n, c in cotangents.items() if n in tangents)
    if abs(forward - backward) > 10 * ACCURACY[dtype] * (size + abs(forward)) + torch.finfo(dtype).tiny:
        text = f"along a random direction jvp gives {forward:.6g}, and the gradient {backward:.6g}"
        findings.append(Finding("forward mode", text))

    leaves = [t.clone().requires_grad_() for t in x]
    again = _tangent(subject, leaves, u)
    live = [(n, t) for n, t in again.items() if t.requires_grad]
    grads: Sequence[torch.Tensor | None] = [None] * len(x)
    if live:
        grads = torch.autograd.grad([t for _, t in live], leaves, [cotangents[n] for n, _ in live], allow_unused=True)
    along = sum(_inner(g, d) for g, d in zip(grads, w, strict=True))
    noise = torch.finfo(dtype).eps / 2

    def departure(length: float) -> tuple[float, float]:
        moved = [(t.double() + length * d.double()).to(t.dtype) for t, d in zip(x, w, strict=True)]
        found = _tangent(subject, moved, u)
        scale = sum(float((cotangents[n].double() * t.double()).square().sum()) for n, t in found.items()) ** 0.5
        return _total(cotangents, found) - length * along, noise * scale

    own = 10 * ACCURACY[dtype] * (abs(along) + sum(float(g.double().norm()) for g in grads if g is not None))
    found = departs(departure, STEPS[dtype], own)
    if found is not None:
        text = f"the gradient of the tangent gives {along:.6g}, finite differences {along + found.value:.6g}"
        findings.append(Finding("second derivatives", text))
    return findings


def _drawn(subject: Subject, seed: int) -> list[torch.Tensor]:
    """A direction, in the units of the inputs."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for slot in subject.inputs:
        value = subject.values[slot.name].detach()
        unit = value.abs().double().mean().clamp(min=1e-3) if value.numel() else torch.ones((), dtype=torch.float64)
        made.append(
            (torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.device) * unit).to(value)
        )
    return made


def _tangent(subject: Subject, x: Sequence[torch.Tensor], u: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tangents of the float results, by label."""
    names = [slot.name for slot in subject.inputs]
    copies = subject.copies()

    def function(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = copies | dict(zip(names, given, strict=True))
        results = subject.call(values)
        return tuple(results[slot.label] for slot in subject.outputs)

    found = torch.func.jvp(function, tuple(x), tuple(u))[1]
    return {slot.label: t for slot, t in zip(subject.outputs, found, strict=True)}


def _inner(grad: torch.Tensor | None, direction: torch.Tensor) -> float:
    return 0.0 if grad is None else float((grad.double() * direction.double()).sum())


def _total(cotangents: dict[str, torch.Tensor], tangents: dict[str, torch.Tensor]) -> float:
    return float(sum((cotangents[n].double() * t.double()).sum() for n, t in tangents.items()))
