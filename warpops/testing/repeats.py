"""The same call again: in another layout, with another kind of cotangent, or just once more."""

from __future__ import annotations

import torch

from .report import Finding, LeftOutError, condensed
from .subject import Outcome, Subject, Values, same_bits

RUNS = 3


def check_repeats(subject: Subject) -> list[Finding]:
    """Calls with the same values give the same, forward and backward."""
    cotangents = subject.cotangents(subject.forward())
    first = subject.run(cotangents)
    findings: list[Finding] = []
    for _ in range(RUNS - 1):
        again = subject.run(cotangents)
        findings = compare(first, again, "repeated call", "the same call gives another {what}")
        if findings:
            text = "\nThe kernel holds state between calls, or depends on the order of its threads"
            return [Finding(f.check, f.text + text, f.suspects) for f in findings]
    twice = subject.run(cotangents, retain=True)
    return compare(
        first,
        twice,
        "repeated backward",
        "with retain_graph=True, the second backward gives another {what}",
        "\nThe backward changes what it needs, or holds state",
    )


def check_inputs_kept(subject: Subject) -> list[Finding]:
    """A call and its backward leave its tensors as they were, those in ``mutates`` apart."""
    given = subject.copies(grad=subject.differentiable)
    before = {name: v.detach().clone() for name, v in given.items() if isinstance(v, torch.Tensor)}
    subject.run(subject.cotangents(subject.forward()), given)
    return [
        Finding(f"input '{slot.label}'", f"a call and its backward change '{slot.label}', which is not in mutates")
        for slot in subject.plan.inputs
        if slot.name in before and slot.role != "mutated" and not same_bits(before[slot.name], given[slot.name])
    ]


def check_cotangents(subject: Subject) -> list[Finding]:
    """Cotangents that PyTorch expands or uses again stay as they are, and give what dense ones give."""
    if not subject.differentiable:
        raise LeftOutError("there is no gradient")
    results = subject.forward()
    expanded = {
        slot.label: torch.full((), 0.75, dtype=results[slot.label].dtype, device=results[slot.label].device).expand(
            results[slot.label].shape
        )
        for slot in subject.outputs
    }
    dense = {label: cotangent.contiguous() for label, cotangent in expanded.items()}
    kept = {label: cotangent.clone() for label, cotangent in dense.items()}
    outcome = subject.run(dense)
    findings = [
        Finding(f"cotangent of '{label}'", "backward changes the cotangent that it is given, which others may use")
        for label in dense
        if not same_bits(dense[label], kept[label])
    ]
    try:
        findings += compare(
            outcome,
            subject.run(expanded),
            "expanded cotangent",
            "a cotangent of stride 0, such as .sum().backward() gives, leads to another {what}",
        )
    except RuntimeError as error:
        text = f"backward fails for a cotangent of stride 0:\n{condensed(error)}"
        findings.append(Finding("expanded cotangent", text))
    grads = [(label, g) for label, g in outcome.gradients.items() if g is not None and g.numel()]
    for k, (label, gradient) in enumerate(grads):
        for other, second in grads[:k]:
            if gradient.untyped_storage().data_ptr() == second.untyped_storage().data_ptr():
                findings.append(Finding("gradients", f"those of '{other}' and '{label}' share their memory"))
        if any(gradient.untyped_storage().data_ptr() == c.untyped_storage().data_ptr() for c in dense.values()):
            findings.append(Finding("gradients", f"that of '{label}' is the memory of a cotangent"))
    return findings


def check_strides(subject: Subject) -> list[Finding]:
    """Inputs that are not contiguous give what contiguous ones give."""
    cotangents = subject.cotangents(subject.forward())
    dense = {name: v.contiguous() if isinstance(v, torch.Tensor) else v for name, v in subject.values.items()}
    first = subject.run(cotangents, subject.copies(dense, grad=subject.differentiable))
    spread: Values = {}
    for name, value in dense.items():
        if isinstance(value, torch.Tensor) and value.ndim:
            wide = value.new_zeros((*value.shape[:-1], 2 * value.shape[-1]))
            wide = wide.transpose(0, -1).contiguous().transpose(0, -1)
            view = wide[..., ::2]
            view.copy_(value.detach())
            wanted = subject.differentiable and name in [slot.name for slot in subject.inputs]
            value = view.detach().requires_grad_(wanted)
        spread[name] = value
    advice = "\nNative code, or a backward, takes its arrays for contiguous"
    try:
        second = subject.run(cotangents, spread)
    except RuntimeError as error:
        return [Finding("strides", f"inputs that are not contiguous fail:\n{condensed(error)}{advice}")]
    return compare(first, second, "strides", "inputs that are not contiguous give another {what}", advice)


def compare(first: Outcome, second: Outcome, check: str, text: str, advice: str = "") -> list[Finding]:
    """Findings for results and gradients that differ."""
    findings = []
    pairs: list[tuple[str, torch.Tensor | None, torch.Tensor | None]] = [
        (f"'{label}'", tensor, second.results.get(label)) for label, tensor in first.results.items()
    ]
    pairs += [(f"gradient of '{label}'", t, second.gradients.get(label)) for label, t in first.gradients.items()]
    for what, left, right in pairs:
        told = difference(left, right)
        if told is not None:
            findings.append(Finding(check, f"{text.format(what=what)}: {told}{advice}"))
    return findings


def difference(left: torch.Tensor | None, right: torch.Tensor | None) -> str | None:
    """How two tensors differ; None where they agree: in every bit on the CPU, to rounding elsewhere, where atomic sums
    have no order."""
    if left is None or right is None:
        return None if left is right else "one of them is None"
    if left.shape != right.shape or left.dtype != right.dtype:
        return f"{tuple(left.shape)} {left.dtype} and {tuple(right.shape)} {right.dtype}"
    if same_bits(left, right):
        return None
    try:
        torch.testing.assert_close(right, left, equal_nan=True)
    except AssertionError:
        wide = (left.detach().double(), right.detach().double())
        differs = ~torch.isclose(*wide, rtol=1e-5, atol=1e-8, equal_nan=True)
        if not bool(differs.any()):
            differs = wide[0] != wide[1]
        index = tuple(differs.nonzero()[0].tolist())
        return (
            f"{int(differs.sum())} of {differs.numel()} elements differ, the first at {list(index)}: "
            f"{left[index].item():.6g} and {right[index].item():.6g}"
        )
    return None
