"""The plan of one op: every decision, with its reason, and every list that later rooms ask for."""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import cached_property
from typing import Any, Literal

from ..effects import Effects, Hazard
from ..frozen import frozen
from ..kernel.signature import MISSING, KernelSignature, Leaf
from ..private.short import FAST
from ..rewrite.model import AdjointPlan
from .declaration import Callback, Declaration
from .extents import Extents
from .roles import Role
from .sizes import Expr
from .solving import Axis, Solved, solve

Init = Literal["zeros", "empty"] | float


@frozen
class Slot:
    """One leaf of the kernel (or one extra size) with everything that was decided about it."""

    leaf: Leaf
    role: Role
    dims: tuple[Expr | None, ...] | None = None
    """What its Warp shape must be; None where nothing is demanded."""
    shape: tuple[Expr, ...] | Callback | None = None
    """The Warp shape of a fresh output or of scratch."""
    optional: bool = False
    """Inputs: may be None."""
    nullable: bool = False
    """Outputs: null in the kernel where one of its sizes is 0."""
    unasked: tuple[frozenset[str], ...] = ()
    """Where it may be null: the kernel touches it all the same where none of the ints in one of these is 0."""
    init: Init = "zeros"
    init_why: str = ""
    differentiable: bool = False
    """Inputs: gets a gradient. Outputs: takes a cotangent."""
    saved: bool = False
    """Outputs and scratch: backward needs the data that the launch left, or to know whether there is any."""
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
    objects: frozenset[str] = frozenset()
    """Ids of Warp's objects: the classes that the kernel takes these for; empty where that isn't known."""
    why: str = ""
    """Where the role comes from."""

    @property
    def name(self) -> str:
        return self.leaf.name

    @property
    def label(self) -> str:
        return self.leaf.label

    @property
    def fresh(self) -> bool:
        """The op makes it."""
        return self.role in ("output", "scratch")

    @property
    def changes(self) -> bool:
        """A given array that the launch writes to: in place, or in a copy that the op returns."""
        return self.role in ("mutated", "inout")

    @property
    def is_input(self) -> bool:
        """It is a value of the op's schema."""
        return not self.fresh

    @property
    def fill(self) -> float | None:
        """What a fresh array is filled with before the launch; None where nothing is."""
        return None if self.init == "empty" else 0 if self.init == "zeros" else self.init

    @property
    def severed(self) -> bool:
        """An in-out array that gets no gradient, though its type could have one."""
        return self.role == "inout" and self.leaf.differentiable and not self.differentiable

    @property
    def is_array(self) -> bool:
        return self.leaf.is_array

    @property
    def is_result(self) -> bool:
        return self.role in ("output", "inout")


@frozen
class Parameter:
    """One argument of ``op(...)``: a tensor, a number, or a struct with several slots."""

    name: str
    slots: tuple[Slot, ...]
    struct: bool = False
    default: Any = MISSING
    keyword_only: bool = False


@frozen
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
    suspects: tuple[Hazard, ...] = ()
    """Hazards of launches of some sizes, which are told of when there is one."""

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
    def arguments(self) -> tuple[str, ...]:
        """The names of the public schema's values, in order."""
        return (*(slot.name for slot in self.inputs), *(("device",) if self.device_argument else ()))

    @cached_property
    def given_arrays(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.inputs if slot.is_array)

    @cached_property
    def handles(self) -> tuple[str, ...]:
        """The values that stand for objects of Warp, which have to outlive a pending backward."""
        return tuple(s.name for s in self.inputs if s.leaf.kind == "handle" and s.role != "tensor_scalar")

    @cached_property
    def id_arrays(self) -> tuple[Slot, ...]:
        """Arrays of ids of Warp's objects, for which eager code takes a list of the objects, too."""
        return tuple(
            slot
            for slot in self.given_arrays
            if slot.leaf.scalar is not None and slot.leaf.scalar.name == "uint64"
            if slot.role == "input" and slot.leaf.ndim == 1 and slot.leaf.component == ()
        )

    @cached_property
    def holding(self) -> tuple[str, ...]:
        """What may stand for objects in eager code: the handles, then the arrays of ids."""
        return (*self.handles, *(slot.name for slot in self.id_arrays))

    @cached_property
    def runs_again(self) -> bool:
        """The backward runs Python of the user's again, a program or what computes ``dim``: it has to come to the same."""
        return self.gradient == "adjoint" and (self.kernel.program or callable(self.extents.launch))

    @cached_property
    def token(self) -> bool:
        """Compiled code hands a token on to the backward: of objects that it needs, or of what the forward came to."""
        return bool(self.handles) or self.runs_again

    @cached_property
    def fresh(self) -> tuple[Slot, ...]:
        """What the op makes: outputs and scratch."""
        return tuple(slot for slot in self.slots if slot.fresh)

    @cached_property
    def returned(self) -> tuple[Slot, ...]:
        """What the raw forward returns: the results, then scratch."""
        return (*self.result_slots, *self.scratch)

    @cached_property
    def cotangents(self) -> tuple[Slot, ...]:
        """The results that take a cotangent."""
        return tuple(slot for slot in self.result_slots if slot.differentiable)

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
    def extremes(self) -> tuple[Slot, ...]:
        """Outputs that hold the largest, or the smallest, of what threads give: the tangent is the winner's, which is known
        once they hold it."""
        known = self.effects.arrays
        found = (s for s in self.result_slots if s.role == "output" and s.saved and s.differentiable)
        return tuple(s for s in found if not s.leaf.component and known[s.label].is_extreme)

    @cached_property
    def temporaries(self) -> tuple[Slot, ...]:
        """Arrays that gradients pass through without being inputs or results."""
        return tuple(s for s in self.slots if s.role in ("scratch", "mutated") and s.leaf.differentiable)

    @cached_property
    def numbers(self) -> tuple[Slot, ...]:
        """The kernel's arguments that aren't arrays."""
        return tuple(slot for slot in self.slots if not slot.is_array and slot.role != "size")

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
        return tuple(s for s in self.inputs if s.changes and s.state == "after" and self.gradient == "adjoint")

    def adjoint_data(self, slot: Slot) -> Literal["as it is", "copied", "made again"]:
        """What the adjoint launch gets for an array's data, of what was saved: what runs again in it may write there.

        A function repeats what it did from the state before the launch: a fresh array is made again, and of a given one
        that state is what was saved. What native code does nobody knows, so a fresh array is as the launch left it.
        """
        if not slot.fresh and not slot.changes:
            return "as it is"
        if slot.state == "before" and slot.fresh:
            return "made again"
        return "copied" if slot.replayed or self.effects.opaque else "as it is"

    @cached_property
    def ints(self) -> tuple[Slot, ...]:
        """The arguments that sizes may be written with."""
        return tuple(s for s in self.inputs if s.role == "size" or (s.role == "number" and s.leaf.is_integral))

    @cached_property
    def scalar_defaults(self) -> dict[str, Any]:
        """What None stands for in a call of the operator: the defaults of numbers that 0-d tensors are given for."""
        scalars = {p.name: p.default for p in self.parameters if p.slots[0].role == "tensor_scalar"}
        return {name: default for name, default in scalars.items() if default is not MISSING and default is not None}

    def solved(self, given: Container[str]) -> tuple[Solved, ...]:
        """How sizes follow from the arrays ``given`` (by schema name), in the signature's order."""
        order = {term.name: place for place, term in enumerate(self.declaration.left)}
        arrays = sorted(self.given_arrays, key=lambda slot: order.get(slot.label, len(order)))
        axes = (
            Axis(slot.name, axis, dim, slot.optional)
            for slot in arrays
            if slot.name in given
            for axis, dim in enumerate(slot.dims or ())
            if dim is not None
        )
        return solve(axes, (slot.label for slot in self.ints))

    @cached_property
    def found_sizes(self) -> tuple[str, ...]:
        """The sizes that follow from the arrays, where all are given."""
        return tuple(solved.name for solved in self.solved({slot.name for slot in self.given_arrays}))

    @cached_property
    def sizes_follow(self) -> tuple[Solved, ...] | None:
        """How they follow at every call; None where that depends on which optional arrays are given."""
        found = self.solved({slot.name for slot in self.given_arrays})
        return None if any(solved.of.optional for solved in found) else found

    @cached_property
    def proven(self) -> frozenset[tuple[str, int]]:
        """The axes of arrays, by label, whose indices are known to be inside at each launch."""
        listed = {(label, axis) for label, axis, _ in self.extents.uncovered}
        known = {label: array.axes for label, array in self.effects.arrays.items()}
        axes = [
            (s, axis) for s in self.arrays for axis in range(s.leaf.ndim) if len(known.get(s.label, ())) == s.leaf.ndim
        ]
        return frozenset((slot.label, axis) for slot, axis in axes if (slot.label, axis) not in listed)

    @cached_property
    def sizing(self) -> tuple[Slot, ...]:
        """The ints that sizes depend on."""
        limits = [limit for cover in self.extents.covers for limit in cover.bounds]
        limits += [limit for reach in self.extents.reaches for limit in (reach.needed, *reach.limits)]
        names = {limit.base for limit in limits if isinstance(limit.base, str)}
        names |= self.size_names
        return tuple(s for s in self.inputs if s.role in ("number", "size") and s.label in names)

    @cached_property
    def sizing_places(self) -> tuple[int, ...]:
        """Where those ints are among the inputs, in the order of ``sizing``."""
        return tuple(self.inputs.index(slot) for slot in self.sizing)

    @cached_property
    def computed(self) -> tuple[Expr, ...]:
        """The sizes of the launch and of fresh arrays, but for those that callables compute."""
        found = [self.extents.launch, *(slot.shape for slot in self.fresh)]
        return tuple(expr for sizes in found if sizes is not None and not callable(sizes) for expr in sizes)

    @cached_property
    def demanded(self) -> tuple[Expr, ...]:
        """What the sizes of given arrays have to be."""
        return tuple(dim for slot in self.given_arrays for dim in slot.dims or () if dim is not None)

    @cached_property
    def size_names(self) -> frozenset[str]:
        """The names in dims, shapes and the launch size."""
        return frozenset(name for expr in (*self.computed, *self.demanded) for name in expr.names())

    @cached_property
    def zeroed_at_once(self) -> bool:
        """One call fills all gradients: from three on it is faster, and one kernel on a GPU."""
        return len(self.gradient_buffers) > 2

    @cached_property
    def gradients(self) -> tuple[Slot, ...]:
        """The inputs that get gradients, in the schema's order."""
        return tuple(slot for slot in self.inputs if slot.differentiable)

    @cached_property
    def gradient_places(self) -> tuple[int, ...]:
        """Where those are among the schema's values."""
        return tuple(k for k, slot in enumerate(self.inputs) if slot.differentiable)

    def spread(self, grads: Iterable[Any]) -> list[Any]:
        """One gradient per value of the schema."""
        found = dict(zip(self.gradient_places, grads, strict=True))
        return [found.get(k) for k in range(len(self.arguments))]

    @cached_property
    def tensor_places(self) -> tuple[int, ...]:
        """Where tensors are among the schema's values."""
        return tuple(k for k, slot in enumerate(self.inputs) if slot.is_array or slot.role == "tensor_scalar")

    @cached_property
    def other_places(self) -> tuple[int, ...]:
        """Where the rest is: numbers, ids, the device."""
        return tuple(k for k in range(len(self.arguments)) if k not in self.tensor_places)

    def join(self, tensors: Iterable[Any], others: Iterable[Any]) -> list[Any]:
        """The schema's values, of both."""
        found = dict(zip(self.tensor_places, tensors, strict=True)) | dict(zip(self.other_places, others, strict=True))
        return [found[k] for k in range(len(self.arguments))]

    @cached_property
    def gradient_buffers(self) -> tuple[Slot, ...]:
        """Those that backward makes buffers for: an in-out array's gradient is made in its cotangent."""
        return tuple(slot for slot in self.gradients if slot.role != "inout")

    @cached_property
    def differentiable(self) -> bool:
        """A gradient can be asked for, whoever computes it."""
        return bool(self.gradients) and bool(self.cotangents)
