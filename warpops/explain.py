"""``op.explain()``: the plan in words, for people."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Iterator

from .effects import Site
from .plan.model import OpPlan, Slot
from .sharding.rows import Rows

WIDTH = 80
ROLES = {
    "inout": "in-out",
    "mutated": "changed in place",
    "tensor_scalar": "0-d tensor",
    "size": "extra int argument",
    "handle": "handle of a Warp object",
}


def explain(name: str, plan: OpPlan, rows: Rows, why_no_tangent: Callable[[OpPlan], str | None]) -> str:
    """The plan as text, 80 columns wide where the user's own names and lines allow."""
    kernel = plan.kernel
    writer = _Writer(kernel.file)
    what = "program" if kernel.program else "kernel"
    writer.line(f"{name}: the {what} {kernel.qualname}", 0)
    writer.line(f"{kernel.file}, line {kernel.line}", 1)
    writer.head("arguments")
    for slot in plan.slots:
        _argument(writer, plan, slot)
    writer.head("result")
    writer.line(", ".join(slot.label for slot in plan.result_slots) or "None", 1)
    writer.head("launch size")
    for line in _launch_lines(plan):
        writer.line(line, 1)
    if kernel.program:
        why = kernel.kernel.reads().why
        writer.head("its Python")
        once = "runs once per sizes, numbers and flags; then what it launched is launched again"
        writer.line(once if why is None else f"runs at every call: {why}", 1)
    writer.head("values before the launch")
    fresh = plan.fresh
    for slot in fresh:
        writer.line(f"{slot.label}: {slot.init} ({slot.init_why})", 1)
    if not fresh:
        writer.line("nothing is made", 1)
    writer.head("gradient")
    _gradient(writer, plan)
    writer.head("second derivatives and forward mode")
    for line in _derivatives(plan, why_no_tangent):
        writer.line(line, 1)
    writer.head("tensors sharded on their first axis (DTensor)")
    own = ", ".join(slot.label for slot in plan.arrays if slot.name in rows.arrays)
    writer.line(f"stay so: {own} ({rows.why})" if own else f"are gathered: {rows.why}", 1)
    if plan.extents.uncovered:
        writer.head("not checked at a call: indices that the analysis can't follow")
        for label, axis, reason in plan.extents.uncovered:
            writer.line(f"{label}, axis {axis}: {reason}", 1)
    if plan.effects.opaque:
        writer.head("not seen: what happens behind these lines")
        for site in plan.effects.opaque:
            writer.site("", site, 1)
    return writer.text()


def wrapped(text: str, indent: str, hanging: str = "") -> list[str]:
    """Text in lines of 80 columns; words that are longer stand alone."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + hanging,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]


class _Writer:
    """Lines of text, wrapped; places in the kernel's own file are told as lines."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._lines: list[str] = []

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def head(self, text: str) -> None:
        self._lines += ["", text]

    def line(self, text: str, level: int) -> None:
        """A line, in as many as it takes."""
        if self._lines:
            text = re.sub(re.escape(self._file) + r":(\d+)", r"line \1", text)
            text = text.replace("at line ", "in line ")
        self._lines += wrapped(text, "  " * level, "    ")

    def site(self, what: str, site: Site, level: int) -> None:
        """A line of the user's source, as it stands there."""
        where = f"line {site.line}" if site.file == self._file else f"{os.path.basename(site.file)}:{site.line}"
        text = f"{'  ' * level}{what}{' in ' if what else ''}{where}"
        code = f"{text}: {site.code}" if site.code else text
        self._lines += [code] if len(code) <= WIDTH else [f"{text}:", f"{'  ' * level}    {site.code}"]


def _argument(writer: _Writer, plan: OpPlan, slot: Slot) -> None:
    text = f"{slot.label}: {ROLES.get(slot.role, slot.role)}"
    if slot.is_array:
        text += f" {_shape(slot)}, {slot.leaf.type_name}"
        if slot.optional:
            text += ", may be None"
        if slot.nullable:
            text += ", null where a size is 0"
    elif slot.leaf.type_name and slot.leaf.type_name != slot.role:
        text += f", {slot.leaf.type_name}"
    reasons = [slot.why, _size_reason(plan, slot)] if slot.is_array else [slot.why]
    why = "; ".join(reason for reason in reasons if reason)
    writer.line(text + (f" ({why})" if why else ""), 1)
    for what, site in _uses(plan, slot):
        writer.site(what, site, 2)


def _size_reason(plan: OpPlan, slot: Slot) -> str:
    """Where the sizes of an array come from, if the declaration doesn't say."""
    declaration = plan.declaration
    terms = (*declaration.left, *(declaration.right or ()), *declaration.scratch)
    if any(term.name == slot.label and term.dims is not None for term in terms):
        return ""
    if slot.label in dict(declaration.shapes) or not (slot.shape or slot.dims):
        return ""
    return "sizes from its indices"


def _uses(plan: OpPlan, slot: Slot) -> Iterator[tuple[str, Site]]:
    """The first place of each kind of use, in the order of the source."""
    known = plan.effects.arrays.get(slot.label)
    if known is None:
        return
    found = [("read", site) for site in known.reads[:1]] + [("written", site) for site in known.stores[:1]]
    found += [(f"updated by {name}", site) for name, site in known.atomics[:1]]
    found += [("handed on, out of sight,", site) for site in known.escapes[:1]]
    yield from sorted(found, key=lambda use: (use[1].file, use[1].line))


def _shape(slot: Slot) -> str:
    shape = slot.shape if slot.fresh else slot.dims
    if callable(shape):
        return "[computed by a callable]"
    sizes = [None] * slot.leaf.ndim if shape is None else shape
    return f"[{', '.join('_' if size is None else str(size) for size in sizes)}]"


def _launch_lines(plan: OpPlan) -> list[str]:
    launch = plan.extents.launch
    if plan.kernel.program:
        return ["its own launches say"]
    if callable(launch):
        return ["computed by a callable (declared)"]
    why = plan.extents.why
    if not launch:
        return [f"one thread ({why.get('dim', 'declared')})"]
    if "dim" in why:
        return [f"{', '.join(map(str, launch))} ({why['dim']})"]
    return [f"{size} (coordinate {axis} of wp.tid(): {why.get(f'dim {axis}', '')})" for axis, size in enumerate(launch)]


def _derivatives(plan: OpPlan, why_no_tangent: Callable[[OpPlan], str | None]) -> list[str]:
    if not plan.gradients or not any(slot.differentiable for slot in plan.result_slots):
        return [f"none: {plan.gradient_why}"]
    why = why_no_tangent(plan)
    made = "from the program run on values and tangents, each launch that of the kernel's tangent, where it has one"
    if not plan.kernel.program:
        made = "from the tangent kernel, made of the kernel's source where one is asked for"
    own = f"second derivatives from {plan.gradient_why}; jvp "
    if plan.gradient == "custom":
        return [own + (made if why is None else f"none: {why}")]
    return [made if why is None else f"none: {why}"]


def _gradient(writer: _Writer, plan: OpPlan) -> None:
    if plan.gradient == "none":
        writer.line(f"none: {plan.gradient_why}", 1)
        return
    writer.line(f"{plan.gradient_why}, for {', '.join(slot.label for slot in plan.gradients)}", 1)
    if plan.gradient == "custom":
        return
    for reason in plan.adjoint.reasons if plan.adjoint is not None else ():
        writer.line(reason, 2)
    for slot in plan.result_slots:
        if not slot.differentiable:
            writer.line(f"{slot.label}: takes no cotangent ({slot.leaf.type_name})", 1)
        elif slot.role == "inout":
            writer.line(f"cotangent of {slot.label}: copied; the copy becomes the gradient of its input", 1)
        elif slot.retained:
            known = plan.effects.arrays.get(slot.label)
            why = "atomic sums don't consume it" if known and known.atomics else "each element is stored at most once"
            writer.line(f"cotangent of {slot.label}: used as it is ({why})", 1)
        else:
            writer.line(f"cotangent of {slot.label}: copied, since the adjoint consumes it", 1)
    saved = [slot.label for slot in plan.kept]
    writer.line(f"saved besides the inputs: {', '.join(saved) if saved else 'nothing'}", 1)
    for slot in plan.written_back:
        writer.line(f"{slot.label}: saved as the launch leaves it, since the adjoint needs what was written", 1)
    for slot in plan.gradients:
        if not slot.null_adjoint_safe:
            text = "gets a gradient buffer even where nobody needs it (custom or unseen adjoint)"
            writer.line(f"{slot.label}: {text}", 1)
    for hazard in (*plan.hazards, *plan.suspects):
        writer.site("warning: Warp's adjoint may be wrong", hazard.site, 1)
        writer.line(hazard.message, 2)
