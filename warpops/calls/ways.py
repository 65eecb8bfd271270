"""What the generated front calls besides PyTorch's own functions. Nothing here is on the eager fast path."""

from __future__ import annotations

import ast
import functools
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy
import torch

from ..arguments.call import measure
from ..arguments.conversions import Conversions
from ..arguments.dynamo import traced_value
from ..arguments.handle import alive, check_unchanged, held_by, id_of, keep_op
from ..arguments.kinds import check_slot
from ..arguments.number import SYMBOLIC_NUMBERS, check_number, guard_number, traced_int
from ..arguments.refusal import refusal_op, runtimes
from ..arguments.struct import Missing, field_reader, missing
from ..arguments.tensor_scalar import traced_tensor
from ..arguments.vector import default_value, traced_nesting, traced_vector, wrong_item
from ..errors import ArgumentError, GradientError
from ..launch.packing import NOT_RECALLED
from ..plan.model import OpPlan
from ..private import torch_modes
from ..private.torch_modes import FAST
from .direct import direct
from .dispatched import Dispatched
from .helper_ops import copy_of
from .instances import Instance, Instances
from .remember import Store
from .traced import Traced

if TYPE_CHECKING:
    from .parts import Parts

AUTOCAST_DTYPES = (torch.float16, torch.bfloat16, torch.float32)

SAMPLES: tuple[Any, ...] = (list, tuple, dict, numpy.ndarray)
SAMPLE_NAMES: dict[str, Any] = {"list": [], "tuple": (), "dict": {}, "ndarray": numpy.empty(0)}
"""What stands for a wrong argument in a message, where compiled code can't show it."""


class Ways(Conversions, Traced, Dispatched):
    """The helpers of one op's front, and its slower ways: traced, under transforms, refused."""

    def __init__(self, name: str, plan: OpPlan, instances: Instances, registration: Any) -> None:
        self.name, self.plan, self.instances = name, plan, instances
        self.public_op, self.forward_op = registration.public_op, registration.forward_op
        self.forward_into_op = registration.forward_into_op
        self.backward_op: Any = registration.backward_op
        self.backward_into_op: Any = registration.backward_into_op
        self.key = f"{name}.{registration.key}"
        self.lease = weakref.ref(registration.lease)
        self.slots = {slot.name: slot for slot in plan.slots}
        self.custom = registration.backward
        self.vmap = registration.vmap
        self.rows = registration.rows
        self._make_transforms = registration.transforms
        self.forwards, self.backwards = Store(instances, "forward"), Store(instances, "backward")
        self.functional = not plan.mutated and not plan.handles
        """Graphs hold the functional raw ops, and Inductor is taught to lower them over buffers that it plans."""
        self._lowered = False
        self.numbered = False

    def finish(self, parts: Parts) -> None:
        """Take the front, which is made with these helpers. PyTorch's registry holds this object, so weakly."""
        self._parts = weakref.ref(parts)
        self.instances.when_made(self._use_launches)

    def _use_launches(self, instance: Instance) -> None:
        parts = self._parts()
        if parts is not None:
            parts.use_launches(instance)

    def eager(self) -> Any:
        """The front's ``eager``; None where the op was collected."""
        parts = self._parts()
        return None if parts is None else parts.eager

    def function(self) -> Any:
        """The op's autograd function; None where nothing is differentiable."""
        parts = self._parts()
        return None if parts is None else parts.function()

    def helpers(self) -> dict[str, Any]:
        """The scope of the generated front."""
        refuse_traced = self.traced_refusal()
        fields = {}
        if any(parameter.struct for parameter in self.plan.parameters):
            optional = frozenset(slot.label for slot in self.plan.inputs if slot.optional)
            fields["field"] = field_reader(self.name, optional, refuse_traced)
        return fields | {
            "is_compiling": torch.compiler.is_compiling,
            "functorch_level": torch_modes.functorch_level,
            "autocast_active": torch_modes.autocast_active,
            "forward_ad": torch_modes.forward_ad,
            "grad_enabled": torch_modes.grad_enabled,
            "get_default_device": torch.get_default_device,
            "dispatch_modes": torch_modes.dispatch_modes if FAST else (lambda: 1),
            "function_mode": torch_modes.function_mode,
            "profiling": torch_modes.profiling,
            "launch_forward": self.instances.forward,
            "launch_backward": self.instances.backward,
            "forwards": self.forwards,
            "backwards": self.backwards,
            "direct": direct,
            "NotRecalled": NOT_RECALLED,
            "guard_scalar": guard_number,
            "increment_version": increment_version,
            "Tensor": torch.Tensor,
            "AutogradFunction": torch.autograd.Function,
            "public_op": self.public_op,
            "forward_op": self.forward_below,
            "backward_op": self.backward_op,
            "defaults": {p.name: default_value(p.default) for p in self.plan.parameters},
            "copy_of": copy_of,
            "handle": id_of,
            "alive": alive,
            "check_alive": self.check_alive,
            "keep_alive": self.keep_alive,
            "INTS": (int, torch.SymInt),
            "NUMBERS": SYMBOLIC_NUMBERS,
            "traced_int": traced_int,
            "traced_value": traced_value,
            "traced_nesting": traced_nesting,
            "traced_vector": traced_vector,
            "wrong_item": wrong_item,
            "traced_tensor": traced_tensor,
            "refuse_traced": refuse_traced,
            "to_number": self.to_number,
            "to_vector": self.to_vector,
            "to_handle": self.to_handle,
            "to_tensor": self.to_tensor,
            "special": self.special,
            "explain_failure": self.explain_failure,
            "refuse_mutation": self.refuse_mutation,
            "resolve_negated": self.resolve_negated,
            "refuse_gradient": self.refuse_gradient,
            "traced_forward": self.traced_forward,
            "traced_backward": self.traced_backward,
            "partial": functools.partial,
            "backward_again": self.backward_again,
            "custom_backward": self.custom_backward,
        }

    # --- values -------------------------------------------------------------------------------------------------------

    def values(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self.plan.arguments, arguments, strict=False))

    def device(self, arguments: tuple[Any, ...]) -> Any:
        return arguments[len(self.plan.inputs)] if self.plan.device_argument else None

    @staticmethod
    def keep_alive(*ids: Any) -> torch.Tensor | None:
        """In traced code: what keeps Warp objects alive until backward."""
        return None if torch.compiler.is_exporting() else keep_op()(list(ids))

    def check_alive(self, held: tuple[Any, ...]) -> None:
        """Before a backward: the objects are as they were."""
        check_unchanged(self.name, [self.slots[name].label for name in self.plan.handles], held)

    def with_token(self, into: Callable[..., None]) -> Callable[..., None]:
        """The raw backward over given buffers, whose last argument is the token of the objects."""
        name, labels = self.name, [self.slots[name].label for name in self.plan.handles]

        def run(*values: Any) -> None:
            if values[-1] is not None:
                check_unchanged(name, labels, held_by(values[-1]))
            into(*values[:-1])

        return run

    # --- refusals -----------------------------------------------------------------------------------------------------

    def traced_refusal(self) -> Callable[..., Any]:
        key, refuse = self.key, refusal_op()
        runtimes[key] = self

        def refuse_traced(index: int, value: Any, item: bool = False, nesting: tuple[int, ...] | None = None) -> Any:
            if nesting is not None:
                return refuse(key, index, None, "nesting " + " ".join([str(length) for length in nesting]))
            if isinstance(value, torch.Tensor):
                return refuse(key, index, value, "item" if item else "")
            if isinstance(value, Missing):
                return refuse(key, index, None, f"={missing(value.owner, value.part)}")
            if value is None or isinstance(value, (bool, int, float, str)):
                return refuse(key, index, None, f"{'item' if item else 'literal'} {value!r}")
            for kind in SAMPLES:
                if isinstance(value, kind):
                    return refuse(key, index, None, f"{'item' if item else 'sample'} {kind.__name__}")
            return refuse(key, index, None, type(value).__name__)

        return refuse_traced

    def refuse_value(self, index: int, value: torch.Tensor | None, shown: str) -> None:
        """Raise for one argument whose type compiled code found wrong, in the words of eager code."""
        slot = self.plan.inputs[index]
        if shown.startswith("="):
            raise ArgumentError(f"{self.name}: argument '{slot.label}': {shown[1:]}")
        how, _, rest = shown.partition(" ")
        found: Any = value
        if how == "nesting":
            found = [[0] * int(length) if length != "0" else 0 for length in rest.split()]
        elif how == "sample" or (how == "item" and rest in SAMPLE_NAMES):
            found = SAMPLE_NAMES[rest]
        elif how in ("literal", "item") and value is None:
            found = ast.literal_eval(rest)
        elif value is None:
            found = types.new_class(shown)()
        if how == "sample" and rest == "ndarray" and slot.leaf.kind == "vector":
            raise ArgumentError(
                f"{self.name}: argument '{slot.label}': expected numbers ({slot.leaf.type_name}), got a numpy array, which "
                f"compiled code doesn't take by value; pass them with .tolist()"
            )
        if how == "item":
            check_number(self.name, slot, slot.leaf.scalar, found)
        elif slot.leaf.kind == "vector" and value is None and how not in ("literal", "sample", "nesting"):
            raise ArgumentError(
                f"{self.name}: argument '{slot.label}': expected numbers ({slot.leaf.type_name}), got {shown}; a Warp "
                f"value that is made in compiled code has to be a tuple of its numbers"
            )
        else:
            check_slot(self.name, slot, found)
        raise ArgumentError(f"{self.name}: argument '{slot.label}': can't be used in compiled code: {shown}")

    def explain_failure(self, arguments: tuple[Any, ...]) -> None:
        """Raise what is wrong with a call's arguments; returns where nothing is."""
        values = self.values(arguments)
        for slot in self.plan.inputs:
            if slot.leaf.generic:
                if slot.is_array and not isinstance(values[slot.name], torch.Tensor) and values[slot.name] is not None:
                    raise ArgumentError(
                        f"{self.name}: argument '{slot.label}': expected a tensor ({slot.leaf.type_name}), got "
                        f"{type(values[slot.name]).__name__}"
                    )
                continue
            check_slot(self.name, slot, values[slot.name])
        tensors = [values[slot.name] for slot in self.plan.inputs if slot.is_array and values[slot.name] is not None]
        for slot in self.plan.inputs:
            absent = slot.role == "tensor_scalar" and getattr(values[slot.name], "is_meta", False)
            if absent and not all(tensor.is_meta for tensor in tensors):
                raise ArgumentError(
                    f"{self.name}: argument '{slot.label}': expected a 0-d tensor on cpu (tensor_scalars), got one on meta, "
                    f"which has no value"
                )
        instance = self.instances.select(arguments)
        try:
            measure(self.name, instance.plan, values, self.device(arguments))
        except (AttributeError, TypeError, RuntimeError):
            return

    def resolve_negated(self, arguments: tuple[Any, ...]) -> Any:
        """Call with mutated tensors that carry PyTorch's lazy negation: on plain numbers, which then go back."""
        plain = list(arguments)
        changed = []
        for index, slot in enumerate(self.plan.inputs):
            value = arguments[index]
            if slot.role == "mutated" and value is not None and value.is_neg():
                plain[index] = value.resolve_neg()
                changed.append(index)
        results = self.traced(tuple(plain)) if torch.compiler.is_compiling() else self.eager()(*plain)
        with torch.no_grad():
            for index in changed:
                arguments[index].copy_(plain[index])
        return results

    def refuse_mutation(self, arguments: tuple[Any, ...]) -> None:
        values = self.values(arguments)
        for slot in self.plan.inputs:
            value = values[slot.name]
            if isinstance(value, torch.Tensor) and value.requires_grad and slot.is_array:
                if slot.role == "mutated":
                    raise GradientError(
                        f"{self.name}: argument '{slot.label}' is changed in place and requires grad; call under "
                        f"torch.no_grad(), pass {slot.name}.detach(), or make it in-out in the signature"
                    )
                if not self.plan.results:
                    raise GradientError(
                        f"{self.name}: argument '{slot.label}' requires grad, and an op that only changes arrays in place "
                        f"has no output to carry it; call under torch.no_grad(), or pass {slot.name}.detach()"
                    )

    def refuse_gradient(self) -> None:
        raise GradientError(f"{self.name} has no gradient: {self.plan.gradient_why} [backward]")

    # --- special modes ------------------------------------------------------------------------------------------------

    def special(self, arguments: tuple[Any, ...]) -> Any:
        """A call under autocast, forward-mode AD or a torch.func transform."""
        if torch_modes.autocast_active():
            arguments = self.cast(arguments)
        if torch_modes.functorch_level() is not None or self.has_tangents(arguments):
            return self.transforms().call(arguments)
        return self.eager()(*arguments)

    def transforms(self) -> Any:
        """The op's functions for transforms.

        They hold the lease and the lease them, so that they live as long as the op and as any graph that they are part
        of. The runtime, which PyTorch's registry holds, must hold neither.
        """
        lease = self.lease()
        if lease is None:
            return self._make_transforms(self)
        if lease.transforms is None:
            lease.transforms = self._make_transforms(self)
        return lease.transforms

    def has_tangents(self, arguments: tuple[Any, ...]) -> bool:
        """Whether a tensor carries a forward-mode tangent."""
        return any(isinstance(value, torch.Tensor) and torch_modes.has_tangent(value) for value in arguments)

    def cast(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Autocast: bring float16, bfloat16 and float32 to the kernel's own dtype."""
        cast = list(arguments)
        for index, slot in enumerate(self.plan.inputs):
            value, scalar = arguments[index], slot.leaf.scalar
            if not slot.is_array or not isinstance(value, torch.Tensor) or scalar is None or slot.role == "mutated":
                continue
            if (
                (
                    scalar.kind == "float"
                    and value.dtype in AUTOCAST_DTYPES
                    and torch.is_autocast_enabled(value.device.type)
                )
                and value.dtype is not scalar.dtype
                and scalar.dtype in AUTOCAST_DTYPES
            ):
                cast[index] = value.to(scalar.dtype)
        return tuple(cast)

    # --- a backward of the user's own ---------------------------------------------------------------------------------

    def custom_backward(
        self, arguments: tuple[Any, ...], results: tuple[Any, ...], grads: tuple[Any, ...], needed: tuple[bool, ...]
    ) -> tuple[Any, ...]:
        """Call the registered backward; returns one gradient per value of the schema."""
        found: tuple[Any, ...] = self.custom(self, arguments, results, grads, needed)
        return found

    # --- double backward ----------------------------------------------------------------------------------------------

    def backward_again(self, ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """The backward where it is itself recorded: an operation that is differentiable again."""
        plan, arguments = self.plan, self.plan.arguments
        tensors = [i for i, s in enumerate(plan.inputs) if s.is_array or s.role == "tensor_scalar"]
        rest = [i for i in range(len(arguments)) if i not in tensors]
        saved = ctx.saved_tensors
        values: list[Any] = [None] * len(arguments)
        for position, value in zip(
            [*tensors, *rest], [*saved[: len(tensors)], *(ctx.numbers if rest else ())], strict=True
        ):
            values[position] = value
        kept = saved[len(tensors) : len(tensors) + len(plan.kept)]
        # Saved are what the launch left in such arrays and, last of all, what they held before.
        written = [arguments.index(slot.name) for slot in plan.written_back]
        left = [values[position] for position in written]
        for position, value in zip(written, saved[len(saved) - len(written) :], strict=True):
            values[position] = value
        live = [c for c, slot in zip(cotangents, plan.result_slots, strict=True) if slot.differentiable]
        positions = [arguments.index(slot.name) for slot in plan.gradients]
        needs = [bool(ctx.needs_input_grad[position]) for position in positions]
        found = self.transforms().backward_function.apply(*values, *kept, *left, *live, needs)
        grads: list[Any] = [None] * len(arguments)
        for position, grad in zip(positions, found, strict=True):
            grads[position] = grad
        return tuple(grads)


def increment_version(tensor: torch.Tensor | None) -> None:
    """Tell autograd that a tensor changed, as an in-place op of PyTorch's own would."""
    if tensor is not None and not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)
