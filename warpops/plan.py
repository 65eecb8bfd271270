"""The plan of one op: every decision, with its reason. Nothing later looks at the kernel again.

``roles.py`` says who is input and who is output, ``extents.py`` derives shapes and the launch size; this module puts
them together with what the gradient needs.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

from .bounds import Cover
from .coverage import covers_exactly, holds
from .declaration import Callback, Declaration
from .effects import ArrayEffects, Effects, Hazard
from .errors import SignatureError
from .extents import Extents, derive_extents
from .kernel import MISSING, KernelSignature, Leaf
from .launch import FAST
from .rewrite.loops import AdjointPlan, Choice, choose_adjoint
from .roles import Role, assign_roles
from .rows import Rows, find_rows
from .sizes import Expr

Init = Literal["zeros", "empty"] | float


@dataclass(frozen=True)
class Slot:
    """One leaf of the kernel (or one extra size) with everything that was decided about it."""

    leaf: Leaf
    role: Role
    dims: tuple[Expr | None, ...] | None = None
    """What its Warp shape must be; None where nothing is demanded."""
    shape: tuple[Expr, ...] | Callback | None = None
    """The Warp shape of a fresh output or of scratch."""
    optional: bool = False
    init: Init = "zeros"
    init_why: str = ""
    differentiable: bool = False
    """Inputs: gets a gradient. Outputs: takes a cotangent."""
    saved: bool = False
    """Outputs and scratch: backward needs the data that the launch left."""
    retained: bool = False
    """Outputs: the cotangent can be used without a private copy."""
    null_adjoint_safe: bool = False
    """A null adjoint is safe for it: nothing that the adjoint runs writes to it untested."""
    explicit: bool = True
    """The adjoint launch gets its gradient buffer as an argument too (``ArrayEffects.attached_alone``)."""
    replayed: bool = False
    """The adjoint launch writes to it: it gets a private array, in the state from before the launch."""
    state: Literal["before", "after"] | None = None
    """What the adjoint launch needs of an array that the kernel writes; None where either state will do."""
    why: str = ""
    """Where the role comes from."""

    @property
    def name(self) -> str:
        return self.leaf.name

    @property
    def label(self) -> str:
        return self.leaf.label

    @property
    def is_input(self) -> bool:
        """It is a value of the op's schema."""
        return self.role not in ("output", "scratch")

    @property
    def is_array(self) -> bool:
        return self.leaf.is_array

    @property
    def is_result(self) -> bool:
        return self.role in ("output", "inout")


@dataclass(frozen=True)
class Parameter:
    """One argument of ``op(...)``: a tensor, a number, or a struct with several slots."""

    name: str
    slots: tuple[Slot, ...]
    struct: bool = False
    default: Any = MISSING
    keyword_only: bool = False


@dataclass(frozen=True)
class OpPlan:
    """Everything that the generated code is written from."""

    kernel: KernelSignature
    declaration: Declaration
    effects: Effects
    slots: tuple[Slot, ...]
    """In the kernel's order, then the extra sizes."""
    parameters: tuple[Parameter, ...]
    results: tuple[str, ...]
    """Names of outputs and in-out arrays, in the order of the op's result."""
    extents: Extents
    device_argument: bool
    gradient: Literal["adjoint", "custom", "none"]
    gradient_why: str
    hazards: tuple[Hazard, ...]
    adjoint: AdjointPlan | None = None
    """How the kernel is rewritten for the adjoint launch; None where it runs the user's own."""

    @cached_property
    def name(self) -> str:
        return self.kernel.name

    def slot(self, name: str) -> Slot:
        return next(slot for slot in self.slots if slot.name == name)

    @cached_property
    def inputs(self) -> tuple[Slot, ...]:
        """The values of the schema, in order."""
        return tuple(slot for parameter in self.parameters for slot in parameter.slots)

    @cached_property
    def arrays(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.is_array)

    @cached_property
    def result_slots(self) -> tuple[Slot, ...]:
        return tuple(self.slot(name) for name in self.results)

    @cached_property
    def scratch(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.role == "scratch")

    @cached_property
    def kept(self) -> tuple[Slot, ...]:
        """Fresh arrays whose data backward needs: what the raw op returns besides the results is the scratch of these."""
        return tuple(slot for slot in self.slots if slot.saved)

    @cached_property
    def mutated(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.role == "mutated")

    @property
    def block(self) -> int:
        """How many threads a block of a tiled launch has, which its last coordinate may count; on the CPU it has one."""
        return self.declaration.block_dim or 64

    @cached_property
    def recalls_forward(self) -> bool:
        """A launch can be recalled for tensors of sizes that were seen before: its sizes follow from those and from
        ints, and nothing but tensors and numbers comes in."""
        computed = callable(self.extents.launch) or any(callable(shape) for shape in self.extents.shapes.values())
        plain = FAST and not self.kernel.program and not any(s.role == "tensor_scalar" for s in self.slots)
        return plain and not computed and not self.device_argument and not any(s.optional for s in self.slots)

    @cached_property
    def recalls_backward(self) -> bool:
        private = self.scratch or self.mutated or self.private_data
        return self.recalls_forward and self.gradient == "adjoint" and not private

    @cached_property
    def private_data(self) -> bool:
        """The adjoint launch gets arrays of its own for some that were saved."""
        return any(self.adjoint_data(slot) != "as it is" for slot in self.slots)

    @cached_property
    def written_back(self) -> tuple[Slot, ...]:
        """The given arrays whose adjoint needs what the launch left in them. What they held before is saved too: the
        derivatives of the gradient start from that."""
        wanted = ("inout", "mutated") if self.gradient == "adjoint" else ()
        return tuple(s for s in self.inputs if s.role in wanted and s.state == "after")

    def adjoint_data(self, slot: Slot) -> Literal["as it is", "copied", "made again"]:
        """What the adjoint launch gets for an array's data, of what was saved: what runs again in it may write there.

        A function repeats what it did from the state before the launch: a fresh array is made again, and of a given one
        that state is what was saved. What native code does nobody knows, so a fresh array is as the launch left it.
        """
        if slot.role not in ("output", "scratch", "inout", "mutated"):
            return "as it is"
        if slot.state == "before" and slot.role in ("output", "scratch"):
            return "made again"
        return "copied" if slot.replayed or self.effects.opaque else "as it is"

    @cached_property
    def rows(self) -> Rows:
        """The arrays that are treated row by row, so that a DTensor sharded on its first axis can stay so."""
        return find_rows(self)

    @cached_property
    def sizing(self) -> tuple[Slot, ...]:
        """The ints that sizes depend on."""
        names = {count.number for count in self.extents.counts}
        limits = (limit for cover in self.extents.covers for limit in cover.bounds)
        more = (limit for reach in self.extents.reaches for limit in reach.limits)
        names |= {limit.base for limit in (*limits, *more) if isinstance(limit.base, str)}
        launch = () if callable(self.extents.launch) else self.extents.launch
        shapes = [shape for shape in self.extents.shapes.values() if not callable(shape)]
        for dims in (launch, *shapes, *self.extents.dims.values()):
            names |= {name for dim in dims if dim is not None for name in dim.names()}
        return tuple(s for s in self.inputs if s.role in ("number", "size") and s.label in names)

    @cached_property
    def sizing_places(self) -> tuple[int, ...]:
        """Where those ints are among the inputs, in the order of ``sizing``."""
        return tuple(self.inputs.index(slot) for slot in self.sizing)

    @cached_property
    def zeroed_at_once(self) -> bool:
        """One call fills all gradients: from three on it is faster, and one kernel on a GPU."""
        return sum(slot.role != "inout" for slot in self.gradients) > 2

    @cached_property
    def gradients(self) -> tuple[Slot, ...]:
        """The inputs that get gradients, in the schema's order."""
        return tuple(slot for slot in self.inputs if slot.differentiable)


def plan_op(kernel: KernelSignature, declaration: Declaration, effects: Effects) -> OpPlan:
    """Decide everything.

    Raises:
        SignatureError: the declaration says too little, or contradicts the kernel.
    """
    roles = assign_roles(kernel, declaration, effects)
    extents = derive_extents(kernel, declaration, effects, roles)
    names = {leaf.label: leaf.name for leaf in kernel.leaves}
    choice = Choice(None, effects.hazards, effects) if kernel.program else choose_adjoint(kernel.kernel, effects)
    effects = choice.effects
    slots = tuple(_slot(leaf, declaration, effects, roles.by_name, roles.why, extents, names) for leaf in kernel.leaves)
    slots += tuple(
        Slot(Leaf(size, (size,), "size", None), "size", why="declared in sizes") for size in declaration.sizes
    )
    _check_inits(kernel, declaration, effects, slots)
    parameters = _parameters(kernel, declaration, slots)
    required = [s for p in parameters for s in p.slots if s.is_array and not s.optional]
    device_argument = not required
    if device_argument and any(parameter.name == "device" for parameter in parameters):
        raise SignatureError(
            f"{kernel.name}: the op has no required array and so gets an argument 'device' of its own; rename the "
            f"kernel's argument 'device' ({kernel.file}:{kernel.line})"
        )
    gradient, why = _gradient_policy(kernel, declaration, choice, slots)
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
        hazards=tuple(
            h
            for h in choice.hazards
            if gradient == "adjoint" and not (h.unless is not None and holds(h.unless, extents, names))
        ),
        adjoint=choice.plan if gradient == "adjoint" else None,
    )


def _slot(
    leaf: Leaf,
    declaration: Declaration,
    effects: Effects,
    roles: dict[str, Role],
    why: dict[str, str],
    extents: Extents,
    names: dict[str, str],
) -> Slot:
    role = roles[leaf.name]
    given = role in ("input", "mutated")
    optional = leaf.is_array and given and (leaf.default is None or leaf.label in declaration.optional)
    if not leaf.is_array:
        return Slot(leaf, role, why=why.get(leaf.name, ""))
    known = effects.arrays.get(leaf.label) or ArrayEffects(
        leaf.label, leaf.ndim, filled_why="the kernel's body could not be followed", null_adjoint_safe=False
    )
    shape = extents.shapes.get(leaf.name)
    init: Init = "zeros"
    init_why = ""
    if role in ("output", "scratch"):
        init, init_why = _init_of(leaf, declaration, known, shape, extents, names)
    differentiable = leaf.differentiable and leaf.label not in declaration.nondiff and role != "mutated"
    return Slot(
        leaf=leaf,
        role=role,
        dims=extents.dims.get(leaf.name),
        shape=shape,
        optional=optional,
        init=init,
        init_why=init_why,
        differentiable=differentiable,
        saved=role in ("output", "scratch")
        and (known.reads_back or known.replayed or bool(known.escapes) or bool(effects.opaque)),
        retained=role == "output" and known.stored_once and not known.view_stored and not known.escapes,
        null_adjoint_safe=known.null_adjoint_safe and not effects.opaque,
        explicit=len(leaf.path) == 1 and not known.attached_alone,
        replayed=known.replayed,
        state=known.adjoint_state,
        why=why.get(leaf.name, ""),
    )


def _init_of(
    leaf: Leaf,
    declaration: Declaration,
    known: ArrayEffects,
    shape: tuple[Expr, ...] | Callback | None,
    extents: Extents,
    names: dict[str, str],
) -> tuple[Init, str]:
    declared = dict(declaration.inits).get(leaf.label, declaration.init)
    if declared == "zeros" or declared == "empty":
        return cast(Init, declared), "declared"
    if declared is not None and declared != "auto":
        return cast(Init, float(declared) if leaf.differentiable else declared), "declared"
    missing = covers_exactly(shape, known, extents, names)
    if missing is None:
        return (
            "empty",
            f"every element is written: {known.filled_why}" if known.filled_why else "every element is written",
        )
    return "zeros", missing


def _check_inits(kernel: KernelSignature, declaration: Declaration, effects: Effects, slots: tuple[Slot, ...]) -> None:
    by_label = {slot.label: slot for slot in slots}
    for label, value in declaration.inits:
        slot = by_label.get(label)
        if slot is None or slot.role != "output":
            close = difflib.get_close_matches(label, [s.label for s in slots if s.role == "output"], 1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise SignatureError(f"{kernel.name}: init names '{label}', which is no fresh output{hint}")
        _check_number(kernel, slot, value)
    for slot in slots:
        if slot.role != "output":
            continue
        if declaration.init is not None and slot.label not in dict(declaration.inits):
            _check_number(kernel, slot, declaration.init)
        known = effects.arrays.get(slot.label)
        if known is None:
            continue
        if slot.init == "empty" and known.atomics:
            op, site = known.atomics[0]
            raise SignatureError(
                f"{kernel.name}: output '{slot.label}' is declared init='empty', and the kernel updates it with "
                f"{op} at {site}, which reads what is there; leave init out (zeros), or give a number"
            )
        if slot.init_why != "declared" and known.reads_before_write is not None:
            raise SignatureError(
                f"{kernel.name}: output '{slot.label}' is read before the kernel writes it, at "
                f"{known.reads_before_write}: `{known.reads_before_write.code}`; if its values before the launch matter, "
                f"name it on both sides of the signature (in-out: '{slot.label} -> {slot.label}'), else declare what it "
                f"holds with init={{'{slot.label}': 'zeros'}}"
            )


def _check_number(kernel: KernelSignature, slot: Slot, value: str | float) -> None:
    scalar = slot.leaf.scalar
    if not isinstance(value, str) and scalar is not None and not scalar.holds(value):
        raise SignatureError(f"{kernel.name}: init of '{slot.label}' is {value!r}, which {scalar.name} can't hold")


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


__all__ = ["Cover", "OpPlan", "Parameter", "Slot", "plan_op"]
