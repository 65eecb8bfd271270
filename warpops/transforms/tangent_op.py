"""``op.tangent``: values and tangents of an op in one, as an operator of its own."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..calls.helpers import helpers, to_export
from ..calls.special import cast, special
from ..calls.ways import Plain, many
from ..emit.call import CallWriter
from ..emit.text import tuple_of
from ..errors import GradientError
from ..plan.model import OpPlan
from ..private import torch_registry
from ..private.compiled import compile_text
from ..register.unregister import Registered, Shim, register
from ..rewrite.source import Names

if TYPE_CHECKING:
    from ..register.registration import Registration


class _Emitter(CallWriter):
    """The front of the tangent op: the op's own, with tangents after its arguments."""

    def __init__(self, op: str, plan: OpPlan, tangents: list[str]) -> None:
        super().__init__(op, plan)
        self.tangents = tangents
        self.text.reserve(tangents)

    def parameters(self) -> str:
        return ", ".join([*filter(None, [super().parameters()]), *(f"{name}=None" for name in self.tangents)])

    def _emit_call(self) -> None:
        with self.text.indented(f"def {self.use('call')}({self.parameters()}):"):
            self._open_structs(False)
            self.text.add(f"if {self.use('is_compiling')}():")
            with self.text.deeper():
                self._emit_traced()
            self._emit_numbers()
            self._emit_device()
            given = f"{tuple_of(self.plan.arguments)}, {tuple_of(self.tangents)}"
            self.text.add(f"return {self.use('derive')}({given})")

    def _public_arguments(self) -> str:
        return ", ".join([super()._public_arguments(), *(f"{name}={name}" for name in self.tangents)])


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

    def __init__(self, op: Any, registration: Registration) -> None:
        plan, ways = registration.plan, registration.ways
        self.of = op
        self.name = f"{registration.name}_tangent"
        self._plan, self._ways = plan, ways
        self._slots = [slot for slot in plan.inputs if slot.differentiable]
        self._results = plan.cotangents
        if not self._slots or not self._results:
            raise GradientError(f"{registration.name}: tangent: {plan.gradient_why}")
        taken = Names({slot.name for slot in plan.slots} | {parameter.name for parameter in plan.parameters})
        names = [taken.fresh(f"tangent_{slot.name}") for slot in self._slots]
        self._register(registration, names)
        emitter = _Emitter(self.name, plan, names)
        found = helpers(ways) | {"public_op": self.overload, "derive": self._derive}
        found |= to_export(ways, Plain(self.name, overload=self.overload))
        text = emitter.emit()
        scope = {own: found[name] for name, own in emitter.helpers().items() if name in found}
        compile_text(text, scope, f"{self.name}.call")
        self._call: Callable[..., Any] = scope[emitter.helpers()["call"]]
        self.__name__ = self.__qualname__ = f"{plan.name}_tangent"
        parameters = list(op.__signature__.parameters.values())
        kind = parameters[-1].kind if parameters else inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters += [inspect.Parameter(n, kind, default=None, annotation=torch.Tensor | None) for n in names]
        self.__signature__ = inspect.Signature(parameters)

    def _register(self, registration: Registration, names: list[str]) -> None:
        results = ["Tensor"] * (len(self._plan.results) + len(self._results))
        schema = ", ".join([*registration.schemas.arguments_schema(True), *(f"Tensor? {name}=None" for name in names)])
        namespace, base, key = registration.namespace, f"{registration.basename}_tangent", registration.key
        text = f"({schema}) -> ({', '.join(results)})"

        def fill(operators: Registered) -> tuple[dict[str, Any], TangentOp]:
            torch_registry.forget(namespace, base)
            operators.library.define(f"{base}.{key}{text}", tags=(torch.Tag.pt2_compliant_tag,))
            shim = Shim(_dispatched(weakref.ref(self)))
            operators.shims.append(shim)
            operators.library.impl(f"{base}.{key}", shim, "CompositeImplicitAutograd")
            self.overload = getattr(getattr(getattr(torch.ops, namespace), base), key)
            return {base: self.overload}, self

        register(namespace, {base: text}, fill)

    @property
    def schema(self) -> str:
        """The operator's schema, as PyTorch prints it."""
        return str(self.overload._schema)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tangent of {self.of!r}>"

    def __reduce__(self) -> Any:
        return getattr, (self.of, "tangent")

    def __deepcopy__(self, memo: dict[int, Any]) -> TangentOp:
        return self

    def _derive(self, values: tuple[Any, ...], tangents: tuple[Any, ...], dispatched: bool = False) -> tuple[Any, ...]:
        """Results and tangents, by operations that are differentiable."""
        ways, plan = self._ways, self._plan
        values = cast(ways, values) if torch.is_autocast_enabled() else values
        given = {s.name: t for s, t in zip(self._slots, tangents, strict=True) if t is not None}
        named = dict(zip(plan.arguments, values, strict=False))
        for slot in plan.mutated:
            if isinstance(named[slot.name], torch.Tensor):
                named[slot.name] = named[slot.name].clone()
        transforms = ways.transforms()
        before = tuple(named[name] for name in plan.arguments)
        found: dict[str, Any] = {}
        if given and transforms.fused:
            returned, found = transforms.tangent(before, frozenset(given), "tangent", results=True).both(named, given)
            values_of = tuple(returned[s.name] for s in plan.result_slots)
        else:
            values_of = many(ways.call_public(values) if dispatched else special(ways, values))
            if given:
                found = transforms.tangent(before, frozenset(given), "tangent").call(named, given)
        made = [
            found[s.name] if s.name in found else torch.zeros_like(value)
            for s, value in zip(plan.result_slots, values_of, strict=True)
            if s.differentiable
        ]
        return (*values_of, *made)


def _dispatched(reference: Any) -> Callable[..., Any]:
    """What PyTorch's dispatcher calls; its registry must not keep the op alive."""

    def run(*arguments: Any, **named: Any) -> Any:
        op = reference()
        if op is None:
            raise RuntimeError("the tangent op is gone: its WarpOp was collected")
        count = len(op._slots)
        schema = [argument.name for argument in op.overload._schema.arguments]
        given = dict(zip(schema, arguments, strict=False)) | named
        tangents = tuple(given.get(name) for name in schema[-count:])
        values = op._ways.complete(arguments[: len(op._plan.arguments)], named)
        return op._derive(values, tangents, dispatched=True)

    return run
