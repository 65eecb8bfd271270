"""PyTorch's own checks, and the op under ``torch.compile``."""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from typing import Any

import torch

from ..private import torch_modes
from .repeats import compare
from .report import Finding, condensed
from .resize import resized
from .subject import Subject, Values, op_arguments

TESTS = {
    "test_schema": "the schema doesn't say what the op does",
    "test_autograd_registration": "autograd is not registered as it should be",
    "test_faketensor": "the op under fake tensors gives other sizes, strides or dtypes",
    "test_aot_dispatch_dynamic": "compiled code with dynamic sizes gives something else",
}


def check_opcheck(subject: Subject) -> list[Finding]:
    """``torch.library.opcheck``."""
    values = subject.copies(grad=subject.differentiable)
    if subject.device is not None:
        values["device"] = torch.device(subject.device)
    tests = list(TESTS)
    if _gives_nan(subject):
        why = "the op gives NaN, which is no equal of itself there; compiled code is compared on its own"
        subject.left_out.append((tests.pop(), why))
    with torch.set_grad_enabled(subject.differentiable):
        told: dict[str, Any] = torch.library.opcheck(
            subject.op.overload, (), values, test_utils=tests, raise_exception=False
        )
    return [
        Finding("opcheck", f"{test}: {TESTS.get(test, '')}\n{condensed(result)}")
        for test, result in told.items()
        if result != "SUCCESS"
    ]


def _gives_nan(subject: Subject) -> bool:
    outcome = subject.run(subject.cotangents(subject.forward()))
    given = (*outcome.results.values(), *outcome.gradients.values())
    return any(t is not None and bool(t.isnan().any()) for t in given)


def _as_function(subject: Subject) -> Callable[..., Any]:
    """A function of the schema's values with a code object of its own, since that is what compiled code is kept by."""
    op, plan, device, names = subject.op, subject.plan, subject.device, list(subject.values)

    def run(*values: Any) -> Any:
        return op(**op_arguments(plan, dict(zip(names, values, strict=True)), device))

    return types.FunctionType(run.__code__.replace(), run.__globals__, run.__name__, None, run.__closure__)


def check_compiled(subject: Subject) -> list[Finding]:
    """Compiled code gives what eager code gives, and sizes don't recompile."""
    larger = [values for factor in (2, 3, 4) if (values := resized(subject, factor)) is not None]
    if not larger:
        subject.left_out.append(("dynamic sizes", "no size of this call can be varied by itself"))
    sizes = [subject.values, *larger]
    function = _as_function(subject)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for number, values in enumerate(sizes):
        findings = _compare(subject, compiled, values, "torch.compile (aot_eager)")
        if findings:
            if number:
                findings = [Finding(f.check, f"{f.text}\n(with sizes {_sizes(subject, values)})") for f in findings]
            return findings
    count = torch_modes.cached_graphs(function)
    if count > 2:
        return [
            Finding(
                "dynamic sizes",
                f"{count} graphs for {len(sizes)} calls with other sizes, where one more than the first is "
                "enough: a size is made a number while tracing, by int(...), .item(), a comparison or an f-string",
                tuple(_callables(subject)),
            )
        ]
    return []


def check_inductor(subject: Subject) -> list[Finding]:
    """Once with PyTorch's own compiler."""
    compiled = torch.compile(_as_function(subject), fullgraph=True)
    return _compare(subject, compiled, subject.values, "torch.compile")


def _sizes(subject: Subject, values: Values) -> str:
    arrays = [(s.label, values[s.name]) for s in subject.plan.inputs if s.is_array and values[s.name] is not None]
    return ", ".join(f"'{label}' {tuple(value.shape)}" for label, value in arrays)


def _compare(subject: Subject, compiled: Callable[..., Any], values: Values, check: str) -> list[Finding]:
    grad = subject.differentiable
    with torch.set_grad_enabled(grad):
        cotangents = subject.cotangents(subject.forward(values))
        eager = subject.run(cotangents, subject.copies(values, grad))
        try:
            traced = subject.run(cotangents, subject.copies(values, grad), lambda given: compiled(*given.values()))
        except Exception as error:
            return [Finding(check, f"fullgraph=True fails:\n{condensed(error)}", tuple(_callables(subject)))]
    return compare(eager, traced, check, "compiled code gives another {what} than eager code")


def _callables(subject: Subject) -> list[str]:
    """The user's own callables, which run on symbolic sizes."""
    declaration = subject.plan.declaration
    found = [(f"the shape of '{name}'", shape) for name, shape in declaration.shapes if callable(shape)]
    if callable(declaration.dim):
        found.append(("dim", declaration.dim))
    lines = []
    for what, function in found:
        code = getattr(function, "__code__", None)
        where = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code is not None else repr(function)
        lines.append(f"{where} (the callable for {what})")
    return lines
