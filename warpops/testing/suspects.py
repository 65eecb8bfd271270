"""The lines that may be to blame for a wrong gradient."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from ..op import WarpOp
from ..rewrite.source import read
from .report import place, suspicion

OWN_ADJOINT = "the kernel's own adjoint"


def suspects_of(op: WarpOp, label: str) -> tuple[str, ...]:
    """Where to look when the gradient of one input is wrong: hazards first, then gradients that the user wrote."""
    plan = op._plan
    if plan.gradient == "custom":
        assert op._backward is not None
        if callable(op._backward.meaning):
            return (f"{_line_of(op._backward.meaning)} (the registered backward)",)
        given = plan.declaration.backward
        given = given[0] if isinstance(given, tuple) else given
        given = given.kernel if isinstance(given, WarpOp) else given
        return (f"{_line_of(getattr(given, 'func', given))} (the option backward)",)
    if plan.gradient_why != OWN_ADJOINT:
        return (plan.gradient_why,)
    hazards = [h for h in plan.hazards if not h.arrays or label in h.arrays] or list(plan.hazards)
    written = tuple(_custom_gradients(plan.kernel.kernel, set()))
    if hazards or written:
        return (*(suspicion(h) for h in hazards[:3]), *written[:3])
    if plan.effects.opaque:
        return tuple(f"{place(site)} (native code)" for site in plan.effects.opaque[:2])
    return ("nothing in particular: no line of the kernel is known to have a wrong adjoint",)


def _custom_gradients(owner: Any, seen: set[int]) -> Iterator[str]:
    """Gradients given by hand (``wp.func_grad``, ``adj_snippet``) for the functions that a kernel calls."""
    for called in read(owner).functions():
        if id(called) in seen:
            continue
        seen.add(id(called))
        if called.custom_grad_func is not None:
            yield f"{_line_of(called.custom_grad_func.func)} (the gradient given for '{called.key}' by wp.func_grad)"
        elif called.adj_native_snippet is not None:
            yield f"{_line_of(called.func)} (the adj_snippet of '{called.key}')"
        if called.native_snippet is None:
            yield from _custom_gradients(called, seen)


def _line_of(function: Any) -> str:
    code = getattr(function, "__code__", None)
    if code is None:
        return "?"
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}: `def {function.__name__}`"
