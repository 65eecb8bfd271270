"""``op.tangent``: values and tangents of an op in one, as an operator of its own."""

from __future__ import annotations

import inspect
import textwrap
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import warp as wp

from ..arguments.tensor_scalar import traced_tensor
from ..calls.helpers import helpers, to_export
from ..calls.special import AUTOCAST_DTYPES, cast, refuse_numbers, special
from ..calls.ways import Plain, Ways, many
from ..emit.call import called
from ..emit.schema import Schemas
from ..emit.text import tuple_of
from ..emit.writer import OpWriter
from ..errors import ArgumentError, GradientError
from ..explain import explain
from ..plan.model import OpPlan
from ..private import locks, torch_modes, torch_registry, warp_source
from ..private.compiled import compile_text
from ..register.unregister import Registered, Shim, free_key, register
from ..rewrite.source import Names
from .tangents import Tangent, why_none

_lock = locks.reentrant()


def _write_call(w: OpWriter) -> None:
    """What is called: as the op, with tangents after its arguments."""
    with called(w):
        w.text.add(f"return {w.use('derive')}({tuple_of(w.plan.arguments)}, {tuple_of(w.more)})")


class TangentOp:
    """The tangent of an op: its results, then one tangent for each float result.

    Call it with the op's arguments, and ``tangent_<name>`` for each float array or struct field whose tangent isn't
    zero. It is differentiable, and works under transforms and in compiled code.

    Example:
        >>> import torch, warp as wp
        >>> from warpops import warp_op
        >>> @warp_op
        ... @wp.kernel
        ... def third_power(x: wp.array[float], y: wp.array[float]):
        ...     i = wp.tid()
        ...     y[i] = x[i] * x[i] * x[i]
        >>> third_power.tangent(torch.tensor([2.0]), tangent_x=torch.tensor([1.0]))
        (tensor([8.]), tensor([12.]))
    """

    def __init__(
        self, of: Any, ways: Ways, transforms: Callable[[], Any], plan: OpPlan, before: Mapping[str, str] | None = None
    ) -> None:
        """Of an op. Of a tangent op, ``ways`` and ``transforms`` are those of the hidden op for all its inputs, ``plan``
        shows the tangents among its arguments as what may be left out, and ``before`` says what they are tangents of."""
        self.of, self._ways, self._transforms = of, ways, transforms
        self.name = f"{of.name}_tangent"
        self._plan, self._before = plan, before or {}
        self._slots = [slot for slot in self._plan.inputs if slot.differentiable]
        self._results = self._plan.cotangents
        if not self._slots or not self._results:
            raise GradientError(f"{of.name}: tangent: {plan.gradient_why}")
        taken = Names({s.name for s in plan.slots} | {p.name for p in plan.parameters})
        self._tangents = [taken.fresh(f"tangent_{slot.name}") for slot in self._slots]
        self._register(of.overload)
        self._writer = OpWriter(self.name, plan, tuple(self._tangents))
        found = helpers(ways, ways.ops.forward) | {"public_op": self.overload, "derive": self._derive}
        found |= to_export(ways, Plain(self.name, overload=self.overload))
        text = self._writer.once(_write_call)
        scope = {own: found[name] for name, own in self._writer.helpers().items() if name in found}
        compile_text(text, scope, f"{self.name}.call")
        self._call: Callable[..., Any] = scope[self._writer.helpers()["call"]]
        self._call.__qualname__ = self.name  # Python's own messages name it
        self.__name__ = self.__qualname__ = self.name.split("::")[1]
        parameters = list(of.__signature__.parameters.values())
        kind = parameters[-1].kind
        parameters += [inspect.Parameter(n, kind, default=None, annotation=torch.Tensor | None) for n in self._tangents]
        self.__signature__ = inspect.Signature(parameters)
        self._tangent: TangentOp | None = None

    def _register(self, of: Any) -> None:
        results = ["Tensor"] * (len(self._plan.results) + len(self._results))
        given = [*Schemas(self._plan).arguments_schema(True), *(f"Tensor? {n}=None" for n in self._tangents)]
        namespace, base = self.name.split("::")
        text = f"({', '.join(given)}) -> ({', '.join(results)})"

        def fill(operators: Registered) -> tuple[dict[str, Any], TangentOp]:
            torch_registry.forget(namespace, base)
            key = free_key(
                operators, of._overloadname
            )  # the name of one that is gone may be taken before its tangent is
            operators.library.define(f"{base}.{key}{text}", tags=(torch.Tag.pt2_compliant_tag,))
            shim = Shim(_dispatched(weakref.ref(self)))
            operators.shims.append(shim)
            operators.library.impl(f"{base}.{key}", shim, "CompositeImplicitAutograd")
            self.overload = getattr(getattr(getattr(torch.ops, namespace), base), key)
            return {base: self.overload}, self

        register(namespace, {base: text}, fill)

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def schema(self) -> str:
        """The operator's schema, as PyTorch prints it."""
        return str(self.overload._schema)

    @property
    def kernel(self) -> wp.Kernel:
        """The tangent kernel, for all inputs."""
        kernel: wp.Kernel = self._whole("kernel").transforms.plan.kernel.kernel
        return kernel

    @property
    def source(self) -> str:
        """The Python text that was generated: what is called, the tangent kernel for all inputs, its launches."""
        registration = self._whole("source").transforms.registration
        kernel = textwrap.dedent(warp_source.source_text(registration.plan.kernel.kernel))
        return "\n\n".join([self._writer.once(_write_call), kernel, registration.source])

    def explain(self) -> str:
        """The plan of the tangent kernel for all inputs, as ``WarpOp.explain()``; or why there is none."""
        why = why_none(self._ways.plan)
        if why is not None:
            return f"{self.name}: none: {why}\n"
        registration = self._whole("explain").transforms.registration
        return explain(self.name, registration.plan, registration.rows, why_none)

    def preload(self, device: torch.device | str | None = None) -> None:
        """Build and load the tangent kernel for all inputs now, as ``WarpOp.preload()``."""
        self._whole("preload").transforms.registration.instances.preload(self.name, device)

    @property
    def tangent(self) -> TangentOp:
        """The tangent of this op: its results, then their tangents along the tangents of its arguments.

        Raises:
            GradientError: the kernel is generic, or has float arrays that may be None.
        """
        self._make_tangent()
        assert self._tangent is not None
        return self._tangent

    @torch_modes.constant_while_tracing
    def _make_tangent(self) -> None:
        with _lock:
            if self._tangent is not None:
                return
            for slot in self._slots:
                if slot.optional and slot.name not in self._before:
                    raise GradientError(f"{self.name}: tangent: '{slot.label}' may be None")
            for slot in self._ways.plan.extremes:
                raise GradientError(
                    f"{self.name}: tangent: '{slot.label}' is a maximum or minimum, which it would take"
                )
            whole = self._whole("tangent")
            plan = whole.transforms.plan
            twins = {twin: slot for slot, twin in whole.twins.items() if twin in plan.arguments}
            before = {**self._before, **twins}
            transforms = whole.transforms
            self._tangent = TangentOp(
                self, transforms.ways, lambda: transforms, _shown(self._plan, plan, before), before
            )

    def _whole(self, what: str) -> Tangent:
        """The tangent for all inputs, results included."""
        if self._ways.instances.only is None:
            raise GradientError(
                f"{self.name}: {what}: the kernel is generic, and its tangent kernel is made for the types of a call; make "
                f"an op of wp.overload(...)"
            )
        everything = frozenset(slot.name for slot in self._ways.plan.gradients)
        found: Tangent = self._transforms().tangent(self._ways.plan.arguments, everything, what, results=True)
        return found

    # --- a call -------------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tangent of {self.of!r}>"

    def __reduce__(self) -> Any:
        return getattr, (self.of, "tangent")

    def __copy__(self) -> TangentOp:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TangentOp:
        return self

    def _derive(self, values: tuple[Any, ...], tangents: tuple[Any, ...], dispatched: bool = False) -> tuple[Any, ...]:
        """Results and tangents, by operations that are differentiable."""
        ways, plan = self._ways, self._ways.plan
        given = {s.name: t for s, t in zip(self._slots, tangents, strict=True) if t is not None}
        named = dict(zip(self._plan.arguments, values, strict=False))
        for name, array in self._before.items():
            named[name] = torch.zeros_like(named[array]) if named.get(name) is None else named[name]
        for name, tangent in zip(self._tangents, tangents, strict=True):
            if not isinstance(tangent, (torch.Tensor, type(None))):
                raise ArgumentError(
                    f"{self.of.name}: argument '{name}': expected a Tensor or None, got {type(tangent).__name__}"
                )
        if torch_modes.autocast_active():
            named |= dict(zip(plan.arguments, cast(ways, tuple(named[n] for n in plan.arguments)), strict=False))
            given = {name: t.to(named[name].dtype) if _is_cast(t) else t for name, t in given.items()}
        values = tuple(named[name] for name in plan.arguments)
        refuse_numbers(ways, values)
        for slot in plan.mutated:
            if isinstance(named[slot.name], torch.Tensor):
                named[slot.name] = named[slot.name].clone()
        transforms = self._transforms()
        before = tuple(named[name] for name in plan.arguments)
        found: dict[str, Any] = {}
        if given and transforms.fused:
            returned, found = transforms.tangent(before, frozenset(given), "tangent", results=True).both(named, given)
            values_of = tuple(returned[s.name] for s in plan.result_slots)
        else:
            if self._before:
                values_of = many(transforms.call(values))
            else:
                values_of = many(ways.call_public(values) if dispatched else special(ways, values))
            if given:
                left = {s.name: value for s, value in zip(plan.result_slots, values_of, strict=True)}
                found = transforms.tangent(before, frozenset(given), "tangent").call(left | named, given)
        made = [
            found[s.name] if s.name in found else torch.zeros_like(value)
            for s, value in zip(plan.result_slots, values_of, strict=True)
            if s.differentiable
        ]
        return (*values_of, *made)


def _is_cast(tangent: torch.Tensor) -> bool:
    """Whether autocast brings it to the dtype of its array."""
    return tangent.dtype in AUTOCAST_DTYPES and torch.is_autocast_enabled(tangent.device.type)


def _shown(first: OpPlan, plan: OpPlan, before: Mapping[str, str]) -> OpPlan:
    """A tangent kernel's plan with the parameters of the op's tangent: the op's own in its order, then tangents that may
    be anything but zero."""
    own = {parameter.name: parameter for parameter in plan.parameters}
    order = [parameter.name for parameter in first.parameters]
    order += [name for name in own if name not in order and any(s.differentiable for s in own[name].slots)]
    last = first.parameters[-1].keyword_only
    found = []
    for parameter in map(own.__getitem__, order):
        if parameter.name in before:
            slots = (replace(parameter.slots[0], optional=True),)
            parameter = replace(parameter, slots=slots, default=None, keyword_only=last)
        found.append(parameter)
    return replace(plan, parameters=tuple(found))


def _dispatched(reference: Any) -> Callable[..., Any]:
    """What PyTorch's dispatcher calls; its registry must not keep the op alive."""

    def run(*arguments: Any, **named: Any) -> Any:
        op = reference()
        if op is None:
            raise RuntimeError("the tangent op is gone: its WarpOp was collected")
        if torch_modes.functorch_level() is not None and torch_modes.is_wrapped((*arguments, *named.values())):
            raise GradientError(
                f"{op.name}: torch.func.grad, vjp, jvp and jacrev work on op.tangent(...) in eager code, not on "
                f"op.tangent.overload"
            )
        schema = op.overload._schema.arguments
        given = {a.name: a.default_value for a in schema if a.has_default_value()}
        given |= dict(zip([a.name for a in schema], arguments, strict=False)) | named
        scalars = op._plan.scalar_defaults.items()
        given |= {name: traced_tensor(number) for name, number in scalars if given[name] is None}
        values = tuple(given[name] for name in op._plan.arguments)
        return op._derive(values, tuple(given[name] for name in op._tangents), dispatched=True)

    return run
