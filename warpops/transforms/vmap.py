"""torch.func: one op under transforms, and its vmap rules. Made at the first such call.

vmap is one launch of a kernel made for it (``transforms/batched.py``) where ranks allow, and a loop elsewhere. The batched kernel
is an op with ``Transforms`` of its own, so that transforms nest in any order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from ..arguments.ran import check_ran, latest_ran, note_all
from ..calls.special import refuse_mutation, refuse_numbers
from ..calls.traced import fake_forward
from ..calls.ways import OwnBackward, Ways, many, one_or_many
from ..errors import ArgumentError, GradientError, GradientWarning, SignatureError
from ..plan.model import OpPlan
from ..private import locks, torch_modes
from ..private.warp_code import unless_built
from ..register.registration import hidden_registration
from ..rewrite.batch import UnbatchableError
from ..rewrite.tangent_scope import TangentError
from .batched import batched_plan, element
from .carried import BATCHED, carry
from .dims import batch_dims, empty_like, stacked, to_front, without
from .exported import record
from .functions import make_backward, make_forward
from .own_rules import mapped_backward, mapped_results
from .tangents import Tangent, refused, tangent_plan, unbuilt

_lock = locks.reentrant()


class Transforms:
    """One op's functions for use under transforms: its forward, and its backward as a function of its own."""

    def __init__(
        self,
        ways: Ways,
        registration: Any = None,
        root: Ways | None = None,
        levels: tuple[str, ...] = (),
    ) -> None:
        """Of an op; of a hidden one, with the ``registration`` that it holds. ``root`` is the op that a user made, ``levels`` the
        way from it to this one: ``v:`` and the arrays with a batch axis, ``d:`` and the inputs with a tangent (``f:`` where
        the results come too)."""
        self.ways, self.plan, self.name = ways, ways.plan, ways.name
        self.path: str = ways.key if registration is None else registration.name
        self.root, self.levels = root or ways, levels
        self.lease = ways.lease()
        """Graphs that hold the functions below keep the op's operators."""
        self.backward_function = make_backward(self)
        self.forward_function = make_forward(self)
        self._batched: dict[tuple[int, frozenset[str]], Transforms | None] = {}
        self.registration = registration
        self._tangents: dict[tuple[int, str], Tangent] = {}

    def call(self, arguments: tuple[Any, ...]) -> Any:
        """The op under the active transforms."""
        if self.plan.mutated:
            if torch_modes.is_vmapped(arguments):
                self.refuse_mutation()
            refuse_mutation(self.ways, arguments)
        refuse_numbers(self.ways, arguments)
        if self.fused and (found := self._call_dual(arguments)) is not None:
            return found
        return one_or_many(many(self.forward(arguments))[: len(self.plan.results)])

    @property
    def fused(self) -> bool:
        """Results and tangents may come of one launch: nothing of the op is the user's own, or changes in place."""
        plain = self.plan.gradient == "adjoint" and self.ways.vmap is None
        return plain and not self.plan.mutated and not self.plan.extremes

    def _call_dual(self, arguments: tuple[Any, ...]) -> Any:
        """The op of dual numbers at the current level of forward mode: one launch gives values and tangents. None where there
        are none; under vmap, where they can't be seen; where a gradient may be taken at the same level: it has a tangent
        too, so that autograd has to see the dual numbers."""
        if torch_modes.forward_ad._current_level < 0 or torch_modes.is_vmapped(arguments):
            return None
        if torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in arguments):
            return None
        unpack: Any = forward_ad.unpack_dual
        make: Any = forward_ad.make_dual
        unpacked = [unpack(v) if isinstance(v, torch.Tensor) else (v, None) for v in arguments]
        given = zip(self.plan.inputs, unpacked, strict=False)
        active = {slot.name: t for slot, (_, t) in given if slot.differentiable and t is not None}
        if not active:
            return None
        plain = tuple(value for value, _ in unpacked)
        tangent = self.tangent(plain, frozenset(active), "jvp", results=True)
        values, found = tangent.both(dict(zip(self.plan.arguments, plain, strict=True)), active, below=True)
        values |= {name: make(values[name], t) for name, t in found.items()}
        return one_or_many(tuple(values[slot.name] for slot in self.plan.result_slots))

    def check_again(self, ctx: Any) -> None:
        """Compare what a program did for a derivative, just now, with what it did for the values that a node is of."""
        if self.plan.runs_again:
            check_ran(self.name, ctx.ran)

    def forward(self, arguments: tuple[Any, ...]) -> Any:
        """The raw forward, differentiable; what mutated arrays hold before goes with it."""
        inputs = zip(arguments, self.plan.inputs, strict=False)
        before = [None if v is None else v.clone() for v, slot in inputs if slot.role == "mutated"]
        return self.forward_function.apply(*arguments, *before)

    def refuse_mutation(self) -> None:
        raise GradientError(
            f"{self.name}: vmap over an op that changes arrays in place (mutates) is not possible; make the arrays "
            f"in-out in the signature"
        )

    # --- derivatives of derivatives -----------------------------------------------------------------------------------

    def tangent(self, values: tuple[Any, ...], active: frozenset[str], what: str, *, results: bool = False) -> Tangent:
        """The tangent op for the inputs that have a tangent, made when it is first wanted.

        Args:
            values: the op's arguments.
            active: the inputs, by schema name.
            what: the derivative that is asked for, for messages.
            results: it gives the op's results, too.

        Raises:
            GradientError: the op has none.
        """
        instance = self.ways.instances.select(values)
        level = f"{'f' if results else 'd'}:{','.join(sorted(active))}"
        key = (id(instance), level)
        with _lock:
            found = self._tangents.get(key)
            if found is None:
                try:
                    made, twins = tangent_plan(instance.plan, active, values=results)
                    unless_built(made.kernel.kernel, partial(unbuilt, self.name, what, instance.plan.kernel))
                    types = [slot.leaf.type_name for slot in instance.plan.slots]
                    transforms = self._hidden(made, level, (self.path, level, types))
                except (TangentError, SignatureError) as error:
                    raise refused(self.name, what, error) from error
                found = self._tangents[key] = Tangent(transforms, instance.plan, twins)
                for hazard in made.hazards[:1] if not instance.plan.hazards else ():
                    warnings.warn(
                        f"{self.name}: second derivatives may be wrong: {hazard.advised} ({hazard.site} of the tangent kernel)",
                        GradientWarning,
                        stacklevel=2,
                    )
        return found

    def _hidden(
        self, plan: OpPlan, level: str, identity: tuple[Any, ...], backward: OwnBackward | None = None
    ) -> Transforms:
        """The op of a plan that was made of this one's, one level further on."""
        registration = hidden_registration(plan, self.name, identity, Transforms, backward)
        made = Transforms(registration.ways, registration, self.root, (*self.levels, level))
        registration.lease.transforms = made  # for transforms that it meets by itself: it knows where it is from
        return made

    def at(self, level: str, values: tuple[Any, ...]) -> Transforms:
        """The hidden op one level further on."""
        kind, _, listed = level.partition(":")
        names = frozenset(listed.split(","))
        if kind in "df":
            tangent: Transforms = self.tangent(values, names, "a compiled derivative", results=kind == "f").transforms
            return tangent
        found = self.batched(values, [None] * len(values), set(names))
        if found is None:
            raise ArgumentError(
                f"{self.root.name}: a program was exported with vmap as one launch, which the kernel as it is now has no "
                f"room for (Warp's arrays have four axes at most); export the program again"
            )
        return found

    def run_forward(self, values: tuple[Any, ...]) -> Any:
        """The raw forward; of a hidden op in compiled code, by the operator that is always there."""
        if not self.levels or not torch.compiler.is_compiling() or self.plan.mutated:
            return self.ways.ops.forward(*values)
        found = carry(self, "forward", values)
        return found[0] if len(self.plan.returned) == 1 else tuple(found)

    def run_backward(self, values: tuple[Any, ...]) -> list[torch.Tensor]:
        """The raw backward."""
        if not self.levels or not torch.compiler.is_compiling():
            found: list[torch.Tensor] = self.ways.ops.backward(*values)
            return found
        return carry(self, "backward", values)

    # --- vmap ---------------------------------------------------------------------------------------------------------

    def map_forward(
        self, info: Any, in_dims: Sequence[Any], values: tuple[Any, ...], *, public: bool = False
    ) -> tuple[Any, Any]:
        """The vmap rule of the forward. ``public``: of the op itself, by operators alone, so that it can be traced."""
        if self.plan.mutated:
            self.refuse_mutation()
        if public:
            refuse_numbers(self.ways, values)
        if self.ways.vmap is None:
            return self._map_kernel(info, in_dims, values, public)
        found = self.ways.vmap(info, tuple(in_dims), *values)
        outputs, out_dims = mapped_results(self.name, self.plan, info.batch_size, found)
        count, scratch = len(self.plan.results), self.plan.scratch
        if public or not scratch:
            return outputs, out_dims
        if count == 1:
            outputs, out_dims = (outputs,), (out_dims,)
        rest: tuple[Any, ...] = (None,) * len(scratch)
        if any(slot.saved for slot in scratch) and self.plan.gradient == "adjoint":
            again, _ = self._map_kernel(info, in_dims, values, public)  # for the scratch that backward needs
            rest = tuple(again[count:])
        return (*outputs, *rest), (*out_dims, *(None if r is None else 0 for r in rest))

    def _map_kernel(self, info: Any, in_dims: Sequence[Any], values: tuple[Any, ...], public: bool) -> tuple[Any, Any]:
        dims = batch_dims(in_dims, values)
        names = self._names(values, dims)
        batched = self.batched(values, dims, names)
        if batched is not None:
            try:
                moved = self._lead(values, dims, names, info.batch_size)
                return stacked(batched._raw_or_public(moved, public))
            except (ArgumentError, UnbatchableError):
                # A wrong argument is told by the loop, in the sizes of one element.
                pass
        if info.batch_size == 0:
            return self._empty_forward(dims, values)
        return self._loop(lambda *one: self._raw_or_public(one, public), info.batch_size, dims, values)

    def _raw_or_public(self, arguments: tuple[Any, ...], public: bool) -> Any:
        """The forward function, or the public op."""
        if not public:
            return self.forward_function.apply(*arguments)
        if self.levels and torch_modes.lowering_export() and not torch_modes.is_vmapped(arguments):
            return record(self, arguments)
        return self.ways.call_public(arguments)

    def map_backward(self, info: Any, in_dims: Sequence[Any], values: tuple[Any, ...]) -> tuple[Any, Any]:
        """The vmap rule of the backward: every gradient has the batch axis, those of inputs without one too."""
        dims = batch_dims(in_dims, values)
        needs = values[-1]
        count = len(self.plan.arguments)
        given = dict(zip(self.plan.arguments, zip(values, dims, strict=True), strict=False))
        wanted = {s.name for s, need in zip(self.plan.gradients, needs, strict=True) if need}
        wanted = {name for name in wanted if given[name][0] is not None and given[name][0].is_floating_point()}
        names = self._names(values, dims) | wanted
        batched = self.batched(values, dims, names)
        if batched is not None:
            size = info.batch_size
            moved = self._lead(values[:count], dims[:count], names, size)
            rest = [to_front(v, d, size) for v, d in zip(values[count:-1], dims[count:-1], strict=True)]
            saved = len(self.plan.kept) + len(self.plan.written_back)
            kept, cotangents = rest[:saved], rest[saved:]
            # A generic op has a place for each array that may have a gradient; the batched one is concrete.
            live = {s.name for s in batched.plan.cotangents}
            cotangents = [c for c, s in zip(cotangents, self.plan.cotangents, strict=True) if s.name in live]
            own = [s.name in wanted for s in batched.plan.gradients]
            try:
                found = batched.backward_function.apply(*moved, *kept, *cotangents, own)
            except (ArgumentError, UnbatchableError):
                pass
            else:
                by_name = {s.name: grad for s, grad in zip(batched.plan.gradients, found, strict=True)}
                return stacked(tuple(by_name.get(s.name) for s in self.plan.gradients))
        if info.batch_size == 0:
            gradients = self.plan.gradients
            return stacked(tuple(empty_like(*given[s.name]) if s.name in wanted else None for s in gradients))
        return self._loop(self.backward_function.apply, info.batch_size, dims, values)

    def _names(self, values: tuple[Any, ...], dims: Sequence[Any]) -> set[str]:
        """The arrays that get the batch axis: those that have it, and in-out ones, which return it."""
        given = zip(self.plan.inputs, values, dims, strict=False)
        return {slot.name for slot, v, d in given if d is not None or (slot.role == "inout" and v is not None)}

    def _lead(self, values: tuple[Any, ...], dims: Sequence[Any], names: set[str], size: int) -> tuple[Any, ...]:
        """The arguments of the batched op."""
        given = zip(self.plan.arguments, values, dims, strict=True)
        return tuple(to_front(value, dim, size) if name in names else value for name, value, dim in given)

    def batched(self, values: tuple[Any, ...], dims: Sequence[Any], names: set[str]) -> Transforms | None:
        """The op of one launch for these batched arrays; None where a loop has to do."""
        slots = self.plan.inputs
        if any(dim is not None and not slot.is_array for slot, dim in zip(slots, dims, strict=False)):
            return None
        instances = self.ways.instances
        instance = instances.only or instances.select(
            tuple(element(v, d) if d is not None else v for v, d in zip(values, dims, strict=True))
        )
        key = (id(instance), frozenset(names))
        with _lock:
            if key not in self._batched:
                self._batched[key] = self._make_batched(instance.plan, key[1], values)
            return self._batched[key]

    def _make_batched(self, plan: OpPlan, names: frozenset[str], values: tuple[Any, ...]) -> Transforms | None:
        try:
            made = batched_plan(plan, names)
            backward = mapped_backward(self.ways, names) if plan.gradient == "custom" else None
            identity = (self.path, sorted(names), [slot.leaf.type_name for slot in made.slots])
            batched = self._hidden(made, f"{BATCHED}{','.join(sorted(names))}", identity, backward)
        except UnbatchableError:
            return None
        device = next(v.device for v in values if isinstance(v, torch.Tensor))
        if device.type in ("cpu", "cuda"):
            try:
                batched.ways.instances.only.launcher.preload(device)  # type: ignore[union-attr]
            except Exception as error:  # whatever Warp's code generation and compilers raise
                warnings.warn(
                    f"{self.name}: Warp can't compile the kernel that vmap would launch once, so vmap loops: {error}",
                    stacklevel=2,
                )
                return None
        return batched

    def _loop(
        self, function: Callable[..., Any], size: int, dims: Sequence[Any], values: tuple[Any, ...]
    ) -> tuple[Any, Any]:
        """The vmap rule that always holds: call once per element, stack the results."""
        results, ran = [], []
        for index in range(size):
            results.append(
                function(*[v if d is None else v.select(d, index) for v, d in zip(values, dims, strict=True)])
            )
            ran.append(latest_ran())
        if self.plan.runs_again:
            note_all(ran)
        if isinstance(results[0], torch.Tensor):
            return torch.stack(results), 0
        each = zip(*results, strict=True)
        return stacked(tuple(None if items[0] is None else torch.stack(items) for items in each))

    def _empty_forward(self, dims: Sequence[Any], values: tuple[Any, ...]) -> tuple[Any, Any]:
        """The results for a batch of size 0, by the shapes that an element would have."""
        try:
            found = fake_forward(
                self.ways,
                *(without(v, d) if isinstance(v, torch.Tensor) else v for v, d in zip(values, dims, strict=True)),
            )
        except RuntimeError as error:
            raise GradientError(
                f"{self.name}: vmap over a batch of size 0 is not possible: the results' shapes depend on data"
            ) from error
        device = next(v.device for v in values if isinstance(v, torch.Tensor))
        named = dict(zip(self.plan.arguments, values, strict=True))
        sources = [named[s.name] for s in self.plan.gradients if named[s.name] is not None]
        made = []
        for slot, r in zip(self.plan.returned, many(found), strict=True):
            made.append(torch.empty((0, *r.shape), dtype=r.dtype, device=device))
            if slot.differentiable:  # no element, so no value; but a graph behind it, as behind any result
                made[-1] = sum((0.0 * v.sum().to(r.dtype) for v in sources), made[-1])
        return stacked(one_or_many(tuple(made)))
