"""From a kernel, a declaration and the effects to the plan. Nothing later looks at the kernel again.

``roles.py`` says who is input and who is output, ``extents.py`` derives shapes and the launch size; this module puts
them together with what the gradient needs.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from ..effects import ArrayEffects, Effects
from ..errors import SignatureError
from ..kernel.signature import MISSING, KernelSignature, Leaf
from ..rewrite.loops import Choice, choose_adjoint
from .declaration import Declaration
from .extents import Extents, derive_extents, example_line
from .initial import check_inits, init_of
from .model import Init, OpPlan, Parameter, Slot
from .roles import Roles, assign_roles


def plan_op(kernel: KernelSignature, declaration: Declaration, effects: Effects) -> OpPlan:
    """Decide everything.

    Raises:
        SignatureError: the declaration says too little, or contradicts the kernel.
    """
    roles = assign_roles(kernel, declaration, effects, partial(example_line, kernel, declaration, effects))
    extents = derive_extents(kernel, declaration, effects, roles)
    choice = Choice(None, effects.hazards, effects) if kernel.program else choose_adjoint(kernel.kernel, effects)
    effects = choice.effects
    slots = tuple(_slot(leaf, declaration, effects, roles, extents) for leaf in kernel.leaves)
    slots += tuple(
        Slot(Leaf(size, size, (size,), "size", None), "size", why="declared in sizes") for size in declaration.sizes
    )
    check_inits(kernel, declaration, effects, slots)
    parameters = _parameters(kernel, declaration, slots)
    required = [s for p in parameters for s in p.slots if s.is_array and not s.optional]
    device_argument = not required
    if device_argument and any(parameter.name == "device" for parameter in parameters):
        raise SignatureError(
            f"{kernel.name}: the op has no required array and so gets an argument 'device' of its own; rename the "
            f"kernel's argument 'device' ({kernel.file}:{kernel.line})"
        )
    gradient, why = _gradient_policy(kernel, declaration, choice, slots)
    hazards = [h for h in choice.hazards if h.unless is None or not extents.holds(h.unless)]
    if gradient != "adjoint":
        hazards = []
    return OpPlan(
        kernel=kernel,
        declaration=declaration,
        effects=effects,
        slots=slots,
        parameters=parameters,
        results=roles.results,
        extents=extents,
        device_argument=device_argument,
        gradient=gradient,
        gradient_why=why,
        hazards=tuple(h for h in hazards if not h.late),
        adjoint=choice.plan if gradient == "adjoint" else None,
        suspects=tuple(h for h in hazards if h.late),
    )


def _slot(leaf: Leaf, declaration: Declaration, effects: Effects, roles: Roles, extents: Extents) -> Slot:
    role, why = roles.by_name[leaf.name], roles.why.get(leaf.name, "")
    given = role in ("input", "mutated")
    optional = leaf.is_array and given and (leaf.default is None or leaf.label in declaration.optional)
    nullable = role == "output" and leaf.label in declaration.optional
    other = effects.arrays.get(dict(declaration.null_with).get(leaf.label, ""))
    asked = other is not None and other.tested
    objects = effects.handles.get(leaf.label, frozenset())
    if not leaf.is_array:
        return Slot(leaf, role, objects=objects, why=why)
    known = effects.arrays.get(leaf.label) or ArrayEffects(
        leaf.label, leaf.ndim, filled_why="the kernel's body could not be followed", null_adjoint_safe=False
    )
    init: Init = "zeros"
    init_why = ""
    if role in ("output", "scratch"):
        init, init_why = init_of(leaf, declaration, known, extents)
    differentiable = leaf.differentiable and leaf.label not in declaration.nondiff and role != "mutated"
    return Slot(
        leaf=leaf,
        role=role,
        dims=extents.dims.get(leaf.name),
        shape=extents.shapes.get(leaf.name),
        optional=optional,
        nullable=nullable,
        unasked=()
        if asked or not (optional or nullable)
        else tuple(dict.fromkeys(flags for _, flags in known.unasked)),
        init=init,
        init_why=init_why,
        differentiable=differentiable,
        saved=role in ("output", "scratch")
        and (known.reads_back or known.replayed or bool(known.escapes) or bool(effects.opaque) or nullable),
        retained=role == "output" and known.stored_once and not known.view_stored and not known.escapes,
        null_adjoint_safe=known.null_adjoint_safe and not effects.opaque,
        explicit=len(leaf.path) == 1 and not known.attached_alone,
        replayed=known.replayed,
        state=known.adjoint_state,
        objects=objects,
        why=why,
    )


def _parameters(kernel: KernelSignature, declaration: Declaration, slots: tuple[Slot, ...]) -> tuple[Parameter, ...]:
    by_name = {slot.name: slot for slot in slots}
    parameters: list[Parameter] = []
    for argument in kernel.arguments:
        own = tuple(by_name[leaf.name] for leaf in argument.leaves if by_name[leaf.name].is_input)
        if not own:
            continue
        default = argument.default
        parameters.append(Parameter(argument.name, own, argument.struct, default))
    # A trailing optional array may be left out; one before a required argument is passed as None.
    for position in range(len(parameters) - 1, -1, -1):
        parameter = parameters[position]
        if parameter.default is not MISSING:
            continue
        if parameter.struct or not parameter.slots[0].optional:
            break
        parameters[position] = Parameter(parameter.name, parameter.slots, False, None)
    has_default = any(parameter.default is not MISSING for parameter in parameters)
    parameters += [Parameter(size, (by_name[size],), keyword_only=has_default) for size in declaration.sizes]
    return tuple(parameters)


def _gradient_policy(
    kernel: KernelSignature, declaration: Declaration, choice: Choice, slots: tuple[Slot, ...]
) -> tuple[Literal["adjoint", "custom", "none"], str]:
    if not any(s.differentiable and s.is_input for s in slots):
        return "none", "no input can have a gradient"
    if not any(s.differentiable and s.is_result for s in slots):
        return "none", "no output can have a cotangent"
    if declaration.backward is not None:
        return "custom", "the declared backward"
    if not kernel.enable_backward:
        return (
            "none",
            "the kernel is compiled without its backward (enable_backward=False); allow it in wp.kernel or in the "
            "module's options, or give the op a backward with register_backward",
        )
    refused = next((hazard for hazard in choice.hazards if hazard.refused), None)
    if refused is not None:
        return "none", f"{refused.message} ({refused.site}); give the op a backward with register_backward"
    for known in (
        choice.effects.arrays.get(slot.label) for slot in slots if slot.differentiable and len(slot.leaf.path) == 1
    ):
        if known is not None and known.misled:
            return "none", f"{known.misled}, or give the op a backward with register_backward"
    if choice.plan is not None:
        return "adjoint", "the adjoint of the kernel with its loops and locals made right"
    return "adjoint", "the kernel's own adjoint"


def check_nullable(plan: OpPlan) -> None:
    """Refuse an optional output that the kernel uses in any case.

    Raises:
        SignatureError: there is one.
    """
    for slot in plan.slots:
        if not slot.nullable:
            continue
        site = next((site for site, flags in plan.effects.arrays[slot.label].unasked if not flags), None)
        if site is not None:
            raise SignatureError(
                f"{plan.name}: optional names the output '{slot.label}', which is null where one of its sizes is 0, and the "
                f"kernel uses it at {site} without asking whether it is there (if {slot.label}:): `{site.code}`"
            )
