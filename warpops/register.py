"""Registering one op with PyTorch: schemas, kernels, fake kernels, autograd, autocast.

Five operators per op. The public one is functional and differentiable. Two raw ones, forward and backward, are functional
and serve eager mode. Two more write into given buffers and serve compiled code, where Inductor plans the buffers. The
overload's name of each is the hash of the contract.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from . import _torch, checks
from .contract import contract_hash
from .errors import ArgumentError, GradientError
from .front import Front, FrontEmitter, compile_front, emit_front
from .instance import Instance
from .plan import OpPlan, Slot

_lock = threading.RLock()
_live: dict[tuple[str, str], int] = {}
"""How many registrations of a contract this process has made, by (qualified name, hash), while any is alive."""
_pinned: set[Lease] = set()


class Lease:
    """Keeps an op's operators registered. Held by the ``WarpOp``, by pending backwards, and for good once compiled."""

    __slots__ = ("__weakref__", "key", "name")

    def __init__(self, name: str, key: str) -> None:
        self.name, self.key = name, key


def _destroy(library: Any, namespace: str, names: list[str], name: str, key: str, contract: str) -> None:
    with _lock:
        for own in names:
            _torch.forget_packet(namespace, own)
        library._destroy()
        remaining = _live.get((name, contract), 1) - 1
        if remaining:
            _live[name, contract] = remaining
        else:
            _live.pop((name, contract), None)


_taken: set[str] = set()


class Registration:
    """Everything that PyTorch holds of one op."""

    def __init__(self, name: str, plan: OpPlan, instances: Instances) -> None:
        self.name, self.plan, self.instances = name, plan, instances
        self.front = Front(plan)
        self.front_text, self.emitter = emit_front(name, plan)
        self.source = instances.source() + "\n\n" + self.front_text
        self.namespace, self.basename = name.split("::")
        self.contract = contract_hash(self._contract_parts(), self._callables())
        self._register()

    def _contract_parts(self) -> list[str]:
        front = self.front
        return [front.public(), front.forward_into(), front.backward_into(), self.front_text, self.instances.source()]

    def _callables(self) -> list[Any]:
        declaration = self.plan.declaration
        found: list[Any] = [shape for _, shape in declaration.shapes if callable(shape)]
        if callable(declaration.dim):
            found.append(declaration.dim)
        return found

    @property
    def differentiable(self) -> bool:
        return bool(self.plan.gradients) and bool(self.front.cotangents)

    def _register(self) -> None:
        with _lock:
            count = _live.get((self.name, self.contract), 0)
            self.key = self.contract
            suffix = 0
            while f"{self.name}.{self.key}" in _taken:
                suffix += 1
                self.key = f"{self.contract}_{suffix}"
            _live[self.name, self.contract] = count + 1
            _taken.add(f"{self.name}.{self.key}")
            self.lease = Lease(self.name, self.key)
            self.library = torch.library.Library(self.namespace, "FRAGMENT")
            front = self.front
            self._define("", front.public())
            self._define("_fwd", front.forward())
            self._define("_fwd_", front.forward_into())
            names = [self.basename, f"{self.basename}_fwd", f"{self.basename}_fwd_"]
            if self.differentiable and self.plan.gradient == "adjoint":
                self._define("_bwd", front.backward())
                self._define("_bwd_", front.backward_into())
                names += [f"{self.basename}_bwd", f"{self.basename}_bwd_"]
            weakref.finalize(self.lease, _release, self.library, self.namespace, names, self.name, self.key, self.contract)
            self.public_op = self._overload("")
            self.forward_op = self._overload("_fwd")
            self.forward_into_op = self._overload("_fwd_")
            self.backward_op = self.backward_into_op = None
            if f"{self.basename}_bwd" in names:
                self.backward_op = self._overload("_bwd")
                self.backward_into_op = self._overload("_bwd_")
            self._implement()
            _torch.pin_packet(self.namespace, self.basename, self.public_op)

    def _define(self, suffix: str, schema: str) -> None:
        self.library.define(f"{self.basename}{suffix}.{self.key}{schema}", tags=(torch.Tag.pt2_compliant_tag,))

    def _overload(self, suffix: str) -> Any:
        _torch.forget_packet(self.namespace, f"{self.basename}{suffix}")
        return getattr(getattr(getattr(torch.ops, self.namespace), f"{self.basename}{suffix}"), self.key)

    def _implement(self) -> None:
        library, instances = self.library, self.instances
        runtime = Runtime(self.name, self.plan, self.front, instances, self)
        scope = compile_front(self.name, self.front_text, self.emitter, runtime.helpers())
        own = self.emitter.helpers()
        self.call = scope[own["call"]]
        self.eager = scope[own["eager"]]
        self.function = scope.get(self.emitter.classname)
        if self.function is not None:
            self.function.lease = self.lease
        runtime.finish(self.eager, self.function)
        self.runtime = runtime

        def implement(suffix: str, function: Callable[..., Any], key: str) -> None:
            library.impl(f"{self.basename}{suffix}.{self.key}", function, key)

        implement("_fwd", instances.forward, "CompositeExplicitAutograd")
        implement("_fwd_", instances.forward_into, "CompositeExplicitAutograd")
        raw = ["_fwd", "_fwd_"]
        if self.backward_op is not None:
            implement("_bwd", instances.backward, "CompositeExplicitAutograd")
            implement("_bwd_", instances.backward_into, "CompositeExplicitAutograd")
            raw += ["_bwd", "_bwd_"]
        for suffix in raw:
            implement(suffix, torch.library.fallthrough_kernel, "Autograd")
            fake = {
                "_fwd": runtime.fake_forward,
                "_fwd_": runtime.fake_forward_into,
                "_bwd": runtime.fake_backward,
                "_bwd_": runtime.fake_backward_into,
            }[suffix]
            torch.library.register_fake(f"{self.name}{suffix}.{self.key}", fake, lib=library)
        public = runtime.public_kernel(weakref.ref(self.eager))
        implement("", public, "Autograd")
        implement("", public, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{self.name}.{self.key}", runtime.fake_public, lib=library)
        for key in _torch.DISPATCH_KEYS_OF_AUTOCAST:
            implement("", runtime.autocast_kernel(self.public_op, key), key)


def _release(library: Any, namespace: str, names: list[str], name: str, key: str, contract: str) -> None:
    _destroy(library, namespace, names, name, key, contract)
    _taken.discard(f"{name}.{key}")


class Instances:
    """The concrete kernels of an op, by the types of a call."""

    def __init__(self, op: str, plan: OpPlan, make: Callable[[dict[str, Any]], Instance], only: Instance | None) -> None:
        self.op, self.plan, self.only = op, plan, only
        self._make = make
        self._found: dict[tuple[Any, ...], Instance] = {}
        self._names = [slot.name for slot in plan.inputs]
        front = Front(plan)
        self._count = len(front.arguments)
        if only is not None:
            self.forward: Callable[..., Any] = only.forward
            self.forward_into: Callable[..., Any] = only.forward_into
            self.backward: Any = only.backward
            self.backward_into: Any = only.backward_into
        else:
            self.forward = lambda *values: self.select(values).forward(*values)
            self.forward_into = lambda *values: self.select(values).forward_into(*values)
            self.backward = lambda *values: self._backward_of(values)(*values)
            self.backward_into = lambda *values: self._backward_into_of(values)(*values)

    def _backward_of(self, values: tuple[Any, ...]) -> Callable[..., Any]:
        backward = self.select(values).backward
        assert backward is not None
        return backward

    def _backward_into_of(self, values: tuple[Any, ...]) -> Callable[..., Any]:
        backward = self.select(values).backward_into
        assert backward is not None
        return backward

    def select(self, values: tuple[Any, ...]) -> Instance:
        """The instance for a call's values (positional, as in the public schema; more may follow)."""
        if self.only is not None:
            return self.only
        named = dict(zip(self._names, values, strict=False))
        key = tuple(type_key(slot, named[slot.name]) for slot in self.plan.inputs if slot.leaf.generic)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._make(named)
        return found

    def source(self) -> str:
        if self.only is not None:
            return self.only.source
        return f'"""{self.op}: a generic kernel; its launches are generated for each set of dtypes on first use."""\n'


def type_key(slot: Slot, value: Any) -> Any:
    """What a generic argument's type depends on."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape[slot.leaf.ndim :]) if slot.leaf.component is None else value.ndim)
    if isinstance(value, (list, tuple)):
        return (len(value), *(type(item) for item in value))
    return type(value)


class Runtime:
    """What the generated front calls besides PyTorch's own functions. Nothing here is on the eager fast path."""

    def __init__(self, name: str, plan: OpPlan, front: Front, instances: Instances, registration: Registration) -> None:
        self.name, self.plan, self.front, self.instances = name, plan, front, instances
        self.public_op, self.forward_op = registration.public_op, registration.forward_op
        self.forward_into_op = registration.forward_into_op
        self.backward_op, self.backward_into_op = registration.backward_op, registration.backward_into_op
        self.key = f"{name}.{registration.key}"
        self.lease = weakref.ref(registration.lease)
        self.slots = {slot.name: slot for slot in plan.slots}
        self._eager: Any = None
        self._function: Any = None
        self._transforms: Any = None

    def finish(self, eager: Callable[..., Any], function: Any) -> None:
        self._eager = weakref.ref(eager)
        self._function = weakref.ref(function) if function is not None else None

    def helpers(self) -> dict[str, Any]:
        """The scope of the generated front."""
        return {
            "is_compiling": torch.compiler.is_compiling,
            "functorch_level": _torch.functorch_level,
            "autocast_active": _torch.autocast_active,
            "forward_ad": _torch.forward_ad,
            "grad_enabled": _torch.grad_enabled,
            "guard_scalar": guard_number,
            "increment_version": increment_version,
            "Tensor": torch.Tensor,
            "AutogradFunction": torch.autograd.Function,
            "public_op": self.public_op,
            "forward_op": self.forward_op,
            "backward_op": self.backward_op,
            "defaults": {p.name: default_value(p.default) for p in self.plan.parameters},
            "field": field_of,
            "handle": handle_of,
            "traced_vector": traced_vector,
            "traced_tensor": traced_tensor,
            "refuse_traced": self.traced_refusal(),
            "to_number": self.to_number,
            "to_vector": self.to_vector,
            "to_handle": self.to_handle,
            "to_tensor": self.to_tensor,
            "special": self.special,
            "explain_failure": self.explain_failure,
            "refuse_mutation": self.refuse_mutation,
            "refuse_gradient": self.refuse_gradient,
            "traced_forward": self.traced_forward,
            "traced_backward": self.traced_backward,
            "backward_once": self.backward_once,
        }

    # --- values -------------------------------------------------------------------------------------------------------

    def values(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self.front.arguments, arguments, strict=False))

    def device(self, arguments: tuple[Any, ...]) -> Any:
        return arguments[len(self.plan.inputs)] if self.plan.device_argument else None

    def to_number(self, name: str, value: Any) -> Any:
        slot = self.slots[name]
        scalar = slot.leaf.scalar
        if slot.role == "size":
            scalar = checks.SIZE
        checks.check_number(self.name, slot, scalar, value)
        plain = checks.plain_number(value)
        if plain is None:
            return value
        kind = "float" if scalar is None else scalar.kind
        return {"float": float, "int": int, "bool": bool}[kind](plain)

    def to_vector(self, name: str, value: Any) -> list[Any]:
        slot = self.slots[name]
        if slot.leaf.component is not None and slot.leaf.scalar is not None:
            checks.check_slot(self.name, slot, value)
        items = checks.flatten(value)
        if items is None:
            raise ArgumentError(
                f"{self.name}: argument '{slot.label}': expected numbers ({slot.leaf.type_name}), got "
                f"{type(value).__name__}"
            )
        kind = slot.leaf.scalar.kind if slot.leaf.scalar is not None else "float"
        convert = {"float": float, "int": int, "bool": bool}[kind]
        return [item if isinstance(item, (torch.SymInt, torch.SymFloat)) else convert(checks.plain_number(item)) for item in items]

    def to_handle(self, name: str, value: Any) -> Any:
        slot = self.slots[name]
        value = handle_of(value)
        checks.check_number(self.name, slot, slot.leaf.scalar, value)
        plain = checks.plain_number(value)
        if plain is None:
            return value
        return int(plain) - 2**64 if plain >= 2**63 else int(plain)

    def to_tensor(self, name: str, value: Any) -> torch.Tensor:
        slot = self.slots[name]
        if isinstance(value, torch.Tensor):
            return value
        plain = self.to_number(name, value)
        scalar = slot.leaf.scalar
        exact = torch.float64 if scalar is None or scalar.kind == "float" else torch.int64
        return torch.tensor(plain, dtype=exact, device="cpu")

    # --- refusals -----------------------------------------------------------------------------------------------------

    def traced_refusal(self) -> Callable[..., Any]:
        key, refuse = self.key, refusal_op()
        _runtimes[key] = self

        def refuse_traced(index: int, value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return refuse(key, index, value, "")
            return refuse(key, index, None, type(value).__name__)

        return refuse_traced

    def refuse_value(self, index: int, value: torch.Tensor | None, shown: str) -> None:
        """Raise for one argument whose type compiled code found wrong."""
        slot = self.plan.inputs[index]
        if value is not None:
            checks.check_slot(self.name, slot, value)
        what = {"array": "a tensor", "handle": "an int or a Warp object", "vector": "numbers"}.get(slot.leaf.kind)
        if what is None:
            kind = "int" if slot.role == "size" else (slot.leaf.scalar.kind if slot.leaf.scalar is not None else "float")
            what = {"float": "a number", "int": "an int", "bool": "a bool"}[kind]
        type_name = slot.leaf.type_name or "int"
        raise ArgumentError(f"{self.name}: argument '{slot.label}': expected {what} ({type_name}), got {shown}")

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
            checks.check_slot(self.name, slot, values[slot.name])
        instance = self.instances.select(arguments)
        try:
            checks.measure(self.name, instance.plan, values, self.device(arguments))
        except (AttributeError, TypeError, RuntimeError):
            return

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
        if _torch.autocast_active():
            arguments = self.cast(arguments)
        self.refuse_tangents(arguments)
        if _torch.functorch_level() is not None:
            return self.transforms().call(arguments)
        return self._eager()(*arguments)

    def transforms(self) -> Any:
        if self._transforms is None:
            from .transforms import Transforms

            self._transforms = Transforms(self)
        return self._transforms

    def refuse_tangents(self, arguments: tuple[Any, ...]) -> None:
        for slot, value in zip(self.plan.inputs, arguments, strict=False):
            if isinstance(value, torch.Tensor) and _torch.has_tangent(value):
                raise GradientError(
                    f"{self.name}: argument '{slot.label}' carries a forward-mode tangent (jvp), and Warp has no forward "
                    f"mode; use reverse mode (torch.func.vjp, grad, jacrev)"
                )

    def cast(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Autocast: bring float16, bfloat16 and float32 to the kernel's own dtype."""
        cast = list(arguments)
        for index, slot in enumerate(self.plan.inputs):
            value, scalar = arguments[index], slot.leaf.scalar
            if not slot.is_array or not isinstance(value, torch.Tensor) or scalar is None or slot.role == "mutated":
                continue
            if scalar.kind == "float" and value.dtype in AUTOCAST_DTYPES and torch.is_autocast_enabled(value.device.type):
                if value.dtype is not scalar.dtype and scalar.dtype in AUTOCAST_DTYPES:
                    cast[index] = value.to(scalar.dtype)
        return tuple(cast)

    # --- the public op ------------------------------------------------------------------------------------------------

    def public_kernel(self, eager: Any) -> Callable[..., Any]:
        names = self.front.arguments
        defaults = self._schema_defaults()

        def kernel(*arguments: Any, **named: Any) -> Any:
            if len(arguments) < len(names):
                arguments = (*arguments, *(named[n] if n in named else defaults[n] for n in names[len(arguments) :]))
            function = eager()
            if function is None:
                raise RuntimeError(f"{self.name} is gone: its WarpOp was collected")
            self.refuse_tangents(arguments)
            if torch.compiler.is_compiling():
                self.pin()
                return self.traced(arguments)
            return function(*arguments)

        return kernel

    def _schema_defaults(self) -> dict[str, Any]:
        defaults: dict[str, Any] = {"device": None}
        for parameter in self.plan.parameters:
            if parameter.default is not checks.MISSING and not parameter.struct:
                defaults[parameter.slots[0].name] = default_value(parameter.default)
        return defaults

    def autocast_kernel(self, public: Any, key: str) -> Callable[..., Any]:
        names = self.front.arguments
        defaults = self._schema_defaults()
        keyword_only = {p.name for p in self.plan.parameters if p.keyword_only} | {"device"}

        def kernel(*arguments: Any, **named: Any) -> Any:
            arguments = (*arguments, *(named[n] if n in named else defaults[n] for n in names[len(arguments) :]))
            with _torch.exclude_autocast():
                cast = self.cast(arguments)
                positional = [v for n, v in zip(names, cast, strict=True) if n not in keyword_only]
                rest = {n: v for n, v in zip(names, cast, strict=True) if n in keyword_only}
                return public(*positional, **rest)

        return kernel

    def pin(self) -> None:
        """A graph is being made with this op: keep its operators for as long as the process lives."""
        lease = self.lease()
        if lease is not None:
            _pinned.add(lease)

    def traced(self, arguments: tuple[Any, ...]) -> Any:
        """The public op while a graph is traced."""
        values = self.values(arguments)
        if self.plan.mutated and torch.is_grad_enabled():
            self.refuse_mutation(arguments)
        wants = torch.is_grad_enabled() and any(
            isinstance(values[slot.name], torch.Tensor) and values[slot.name].requires_grad for slot in self.plan.gradients
        )
        function = self._function() if self._function is not None else None
        if wants and function is not None:
            return function.apply(*arguments)
        results = self.traced_forward(*arguments)
        count = len(self.plan.results)
        if count == 0:
            return None
        return results if len(self.front.returned) == 1 else (results[0] if count == 1 else results[:count])

    def traced_forward(self, *arguments: Any) -> Any:
        """The forward in traced code: buffers that the graph sees, and one op that writes into them."""
        instance = self.instances.select(arguments)
        plan = instance.plan
        if torch.compiler.is_exporting():
            return self.forward_op(*arguments)
        values = self.values(arguments)
        found = checks.measure(self.name, plan, values, self.device(arguments))
        fresh = dict(zip([s.name for s in plan.slots if s.role in ("output", "scratch")], self.allocate(instance, found), strict=True))
        given = list(arguments)
        for index, slot in enumerate(plan.inputs):
            if slot.role == "inout":
                given[index] = fresh[slot.name] = given[index].clone(memory_format=torch.contiguous_format)
        self.forward_into_op(*given, *(fresh[s.name] for s in plan.slots if s.role in ("output", "scratch")))
        returned = tuple(fresh[slot.name] for slot in self.front.returned)
        return returned[0] if len(returned) == 1 else returned

    @staticmethod
    def allocate(instance: Instance, found: checks.Measure) -> tuple[Any, ...]:
        if instance.allocate is None:
            return ()
        plan = instance.plan
        sizes = [n for s in plan.slots if s.role in ("output", "scratch") for n in found.shapes[s.name]]
        return instance.allocate(found.device, *sizes)

    def traced_backward(self, *arguments: Any) -> list[Any]:
        """The backward in traced code."""
        instance = self.instances.select(arguments)
        plan, front = instance.plan, self.front
        assert instance.prepare is not None
        prepared = instance.prepare(*arguments)
        needs = arguments[-1]
        names = [s.name for s in plan.inputs if s.is_array] + [s.name for s in plan.kept]
        grads = [s.name for s in (*front.cotangents, *front.gradient_slots)]
        tensors = dict(zip(names, prepared, strict=False))
        buffers = dict(zip(grads, prepared[len(names) :], strict=True))
        values = self.values(arguments)
        given = [tensors.get(name, values[name]) for name in front.arguments]
        self.backward_into_op(*given, *(tensors[s.name] for s in plan.kept), *(buffers[name] for name in grads))
        return [buffers[slot.name] for slot, need in zip(plan.gradients, needs, strict=True) if need]

    # --- fakes --------------------------------------------------------------------------------------------------------

    def fake_forward(self, *arguments: Any, **named: Any) -> Any:
        self.pin_if_tracing()
        arguments = self._all(arguments, named)
        instance = self.instances.select(arguments)
        found = checks.measure(self.name, instance.plan, self.values(arguments), self.device(arguments))
        fresh = dict(
            zip(
                [s.name for s in instance.plan.slots if s.role in ("output", "scratch")],
                self.allocate(instance, found),
                strict=True,
            )
        )
        values = self.values(arguments)
        for slot in self.plan.slots:
            if slot.role == "inout":
                fresh[slot.name] = torch.empty_like(values[slot.name], memory_format=torch.contiguous_format)
        returned = tuple(fresh[slot.name] for slot in self.front.returned)
        if not returned:
            return None
        return returned[0] if len(returned) == 1 else returned

    def pin_if_tracing(self) -> None:
        if torch.compiler.is_compiling():
            self.pin()

    def _all(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        names = self.front.arguments
        if len(arguments) >= len(names):
            return arguments
        defaults = self._schema_defaults()
        return (*arguments, *(named[n] if n in named else defaults[n] for n in names[len(arguments) :]))

    def fake_public(self, *arguments: Any, **named: Any) -> Any:
        results = self.fake_forward(*arguments, **named)
        count = len(self.plan.results)
        if len(self.front.returned) == count:
            return results
        return None if count == 0 else (results[0] if count == 1 else results[:count])

    def fake_forward_into(self, *arguments: Any) -> None:
        self.pin_if_tracing()

    def fake_backward(self, *arguments: Any) -> list[Any]:
        self.pin_if_tracing()
        needs = arguments[-1]
        values = self.values(arguments)
        return [
            torch.empty_like(values[slot.name], memory_format=torch.contiguous_format)
            for slot, need in zip(self.plan.gradients, needs, strict=True)
            if need
        ]

    def fake_backward_into(self, *arguments: Any) -> None:
        self.pin_if_tracing()

    # --- double backward ----------------------------------------------------------------------------------------------

    def backward_once(self, function: Any, ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """A backward that is itself recorded: right as it is, an error where it is differentiated."""
        with torch.no_grad():
            grads = function.backward(ctx, *cotangents)
        if not isinstance(grads, tuple):
            grads = (grads,)
        tensors = [g for g in grads if g is not None]
        sources = [t for t in (*ctx.saved_tensors, *cotangents) if isinstance(t, torch.Tensor) and t.requires_grad]
        if not sources or not tensors:
            return grads
        linked = iter(_Once.apply(self.name, len(tensors), *tensors, *sources))
        return tuple(None if g is None else next(linked) for g in grads)


class _Once(torch.autograd.Function):
    """Passes gradients on, tied to what they depend on; its own backward raises."""

    @staticmethod
    def forward(ctx: Any, name: str, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.title = name
        return tuple(t.view_as(t) for t in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise GradientError(
            f"{ctx.title}: double backward: the gradient of this op comes from Warp's adjoint, which is differentiable once; "
            f"give the op a differentiable backward with register_backward, or with the option backward"
        )


AUTOCAST_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


_runtimes: weakref.WeakValueDictionary[str, Runtime] = weakref.WeakValueDictionary()
_refusal: list[Any] = []


def refusal_op() -> Any:
    """An operator that only ever raises: a wrong argument found while tracing, told while PyTorch runs the graph's fakes,
    where an exception keeps its text."""
    with _lock:
        if not _refusal:
            library = torch.library.Library("warpops", "FRAGMENT")
            library.define("_refuse(str op, int index, Tensor? value, str shown) -> Tensor")

            def refuse(op: str, index: int, value: torch.Tensor | None, shown: str) -> torch.Tensor:
                _runtimes[op].refuse_value(index, value, shown)
                raise AssertionError("unreachable")

            library.impl("_refuse", refuse, "CompositeExplicitAutograd")
            torch.library.register_fake("warpops::_refuse", refuse, lib=library)
            _refusal.extend([torch.ops.warpops._refuse.default, library])
    return _refusal[0]


def guard_number(value: Any) -> Any:
    """Make a number a constant of the graph, checked at each call."""
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    return guard_scalar(value)


def increment_version(tensor: torch.Tensor | None) -> None:
    """Tell autograd that a tensor changed, as an in-place op of PyTorch's own would."""
    if tensor is not None and not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def default_value(default: Any) -> Any:
    items = checks.flatten(default)
    return items if items is not None else default


def field_of(value: Any, label: str, *path: str) -> Any:
    """A field of a struct argument: of a dict, or of anything with attributes."""
    for part in path:
        if isinstance(value, dict):
            if part not in value:
                raise ArgumentError(f"argument '{label}': the struct has no field '{part}'")
            value = value[part]
        else:
            value = getattr(value, part)
    return value


def handle_of(value: Any) -> Any:
    """The id of a Warp object, or an id as it is."""
    return value if isinstance(value, int) else getattr(value, "id", value)


def traced_vector(value: Any) -> list[Any]:
    """A flat or nested sequence of numbers as a flat list, in traced code."""
    items: list[Any] = []
    for item in value:
        if isinstance(item, (list, tuple)):
            items += traced_vector(item)
        elif isinstance(item, float):
            items.append(guard_number(item))
        else:
            items.append(item)
    return items


def traced_tensor(value: Any) -> Any:
    """A number for a ``tensor_scalars`` argument, in traced code: a constant of the graph, guarded."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, float):
        return torch.full((), guard_number(value), dtype=torch.float64, device="cpu")
    return torch.full((), value, dtype=torch.int64, device="cpu")
