"""``op.explain()``: the plan in words, for people."""

from __future__ import annotations

from .plan import OpPlan, Slot


def explain(name: str, plan: OpPlan) -> str:
    """The plan as text, 80 columns wide where the user's own names allow."""
    kernel = plan.kernel
    what = "program" if kernel.program else "kernel"
    lines = [f"{name}: the {what} {kernel.qualname} ({kernel.file}:{kernel.line})", ""]
    lines.append("arguments")
    lines += [_slot_line(slot, plan) for slot in plan.slots]
    lines += ["", "launch size"]
    lines += _launch_lines(plan)
    lines += ["", "initial values"]
    fresh = [slot for slot in plan.slots if slot.role in ("output", "scratch")]
    lines += [f"  {slot.label}: {slot.init} ({slot.init_why})" for slot in fresh] or ["  nothing is made"]
    lines += ["", "gradient"]
    lines += _gradient_lines(plan)
    if plan.extents.uncovered:
        lines += ["", "not checked at a call: indices that can't be followed"]
        lines += [f"  {label}, axis {axis}: {reason}" for label, axis, reason in plan.extents.uncovered]
    return "\n".join(lines) + "\n"


def _slot_line(slot: Slot, plan: OpPlan) -> str:
    role = {"inout": "in-out", "tensor_scalar": "0-d tensor"}.get(slot.role, slot.role)
    text = f"  {slot.label}: {role}"
    if slot.is_array:
        shape = slot.shape if slot.role in ("output", "scratch") else slot.dims
        if callable(shape):
            dims = "[computed by a callable]"
        elif shape is None:
            dims = f"[{', '.join('_' * 1 for _ in range(slot.leaf.ndim))}]"
        else:
            dims = f"[{', '.join('_' if d is None else str(d) for d in shape)}]"
        text += f" {dims} of {slot.leaf.type_name}"
        if slot.optional:
            text += ", may be None"
    elif slot.leaf.type_name:
        text += f", {slot.leaf.type_name}"
    return text + (f" ({slot.why})" if slot.why else "")


def _launch_lines(plan: OpPlan) -> list[str]:
    launch = plan.extents.launch
    if plan.kernel.program:
        return ["  as the program launches its kernels"]
    if callable(launch):
        return ["  computed by a callable (declared)"]
    if not launch:
        return [f"  one thread ({plan.extents.why.get('dim', 'declared')})"]
    if "dim" in plan.extents.why:
        return [f"  {', '.join(map(str, launch))} ({plan.extents.why['dim']})"]
    return [f"  {size}: {plan.extents.why.get(f'dim {axis}', '')}" for axis, size in enumerate(launch)]


def _gradient_lines(plan: OpPlan) -> list[str]:
    if plan.gradient == "none":
        return [f"  none: {plan.gradient_why}"]
    lines = [f"  {plan.gradient_why}, for {', '.join(slot.label for slot in plan.gradients)}"]
    for slot in plan.result_slots:
        if not slot.differentiable:
            continue
        if slot.role == "inout":
            lines.append(f"  cotangent of {slot.label}: copied; the copy becomes the gradient of its input")
        elif slot.retained:
            lines.append(f"  cotangent of {slot.label}: used as it is (each element is stored at most once)")
        else:
            lines.append(f"  cotangent of {slot.label}: copied, since the adjoint consumes it")
    saved = [slot.label for slot in plan.kept]
    lines.append(f"  saved besides the inputs: {', '.join(saved) if saved else 'nothing'}")
    for slot in plan.gradients:
        if not slot.null_adjoint_safe:
            lines.append(f"  {slot.label}: gets a gradient buffer even where nobody needs it (custom or unseen adjoint)")
    for hazard in plan.hazards:
        lines.append(f"  warning, {hazard.site}: {hazard.message}")
    return lines
