"""Derivatives of derivatives: the op of an op's tangent kernel.

The tangent of ``y = f(x)`` is an op ``(x, dx) -> dy``, of a kernel that ``rewrite/tangent.py`` makes from the user's. It is an op
like any other, but hidden: it is checked, differentiable (by its adjoint), mapped, and has a tangent of its own. From it
follow forward mode (``dy``), double backward (``dy`` for the cotangent's part; its adjoint for the inputs') and forward
over reverse (its adjoint).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ..arguments.callbacks import ask
from ..calls.special import refuse_gradient
from ..calls.ways import many
from ..effects import Effects, analyse
from ..errors import GradientError, SignatureError
from ..kernel.signature import KernelSignature, inspect_kernel
from ..plan.declaration import Declaration, Term
from ..plan.model import OpPlan, Slot
from ..plan.planner import plan_op
from ..plan.sizes import Expr, name
from ..private import torch_modes, warp_code, warp_source
from ..rewrite.source import Names
from ..rewrite.tangent import tangent_kernel
from ..rewrite.tangent_scope import MixedArraysError, TangentError
from ..rewrite.trees import targets


class Tangent:
    """The tangent op of one op, for the inputs that have a tangent."""

    def __init__(self, transforms: Any, plan: OpPlan, twins: Mapping[str, str]) -> None:
        """``twins``: by a slot of the op, the slot of the tangent op that is its tangent."""
        self.transforms, self.twins = transforms, twins
        self.results = [slot.name for slot in plan.cotangents]

    def call(self, values: Mapping[str, Any], tangents: Mapping[str, Any]) -> dict[str, Any]:
        """The tangents of the results, by the results' names.

        Args:
            values: the op's arguments by schema name, and the results that the tangent follows from (``OpPlan.extremes``).
            tangents: those of its inputs.
        """
        returned = self._by_name(self.transforms.forward(self._arguments(values, tangents)))
        return {slot: returned[self.twins[slot]] for slot in self.results}

    def both(
        self, values: Mapping[str, Any], tangents: Mapping[str, Any], *, below: bool = False
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The results, and the tangents of those that have one, of one launch; as ``call``.

        Args:
            values: the op's arguments by schema name.
            tangents: those of its inputs.
            below: values and tangents are of dual numbers, so that the innermost transform doesn't follow them.
        """
        arguments = self._arguments(values, tangents)
        past = below and not torch_modes.followed_further_out(arguments)  # what torch.func does for autograd functions
        run = self.transforms.run_forward if past else self.transforms.forward
        returned = self._by_name(run(arguments))
        return returned, {slot: returned[self.twins[slot]] for slot in self.results}

    def gradient(
        self,
        values: Mapping[str, Any],
        tangents: Mapping[str, Any],
        cotangents: Mapping[str, Any],
        wanted: frozenset[str],
    ) -> dict[str, Any]:
        """The gradients of the inner product of cotangents and the results' tangents, by the inputs' names.

        Args:
            values: the op's arguments by schema name.
            tangents: those of its inputs.
            cotangents: by the results' names.
            wanted: the inputs whose gradient is asked for.
        """
        transforms, plan = self.transforms, self.transforms.plan
        if plan.gradient != "adjoint":
            refuse_gradient(transforms.ways)
        arguments = self._arguments(values, tangents)
        left: list[Any] = []
        if plan.kept or plan.written_back:
            launched = self._arguments(values, tangents)
            returned = dict(zip(plan.arguments, launched, strict=True)) | self._by_name(transforms.forward(launched))
            left = [returned[slot.name] for slot in (*plan.kept, *plan.written_back)]
        own = {self.twins[slot]: value for slot, value in cotangents.items()}
        needs = [slot.name in wanted for slot in plan.gradients]
        cotangents_of = (own.get(slot.name) for slot in plan.cotangents)
        found = transforms.backward_function.apply(*arguments, *left, *cotangents_of, needs)
        return {slot.name: grad for slot, grad in zip(plan.gradients, found, strict=True) if slot.name in wanted}

    def _by_name(self, returned: Any) -> dict[str, Any]:
        return {s.name: value for s, value in zip(self.transforms.plan.returned, many(returned), strict=False)}

    def _arguments(self, values: Mapping[str, Any], tangents: Mapping[str, Any]) -> tuple[Any, ...]:
        given = dict(values)
        for slot, twin in self.twins.items():
            if twin in self.transforms.plan.arguments:
                tangent, value = tangents.get(slot), values[slot]
                given[twin] = torch.zeros_like(value) if tangent is None and value is not None else tangent
        for changed in self.transforms.plan.mutated:  # the op itself has changed the caller's
            given[changed.name] = given[changed.name].clone()
        return tuple(given[name] for name in self.transforms.plan.arguments)


def tangent_plan(plan: OpPlan, active: frozenset[str], *, values: bool = False) -> tuple[OpPlan, Mapping[str, str]]:
    """The plan of the tangent op of a concrete op, and the slot of it that is a slot's tangent.

    Args:
        plan: the op's.
        active: the inputs that have a tangent, by schema name. All float arrays get one, of zeros, where the kernel makes
            one array of several, or uses a struct as a whole.
        values: it returns the results, too.

    Raises:
        TangentError: it has none.
    """
    _check(plan)
    try:
        return _plan(plan, active, values)
    except MixedArraysError:
        return _plan(plan, None, values)


def _plan(plan: OpPlan, active: frozenset[str] | None, values: bool) -> tuple[OpPlan, Mapping[str, str]]:
    """``active``: None for all float arrays."""
    names = Names({*(s.name for s in plan.slots), *(s.label for s in plan.slots)})
    twins = {s.name: names.fresh(f"tangent_{s.name}") for s in plan.arrays if _has_twin(s, active)}
    by_label = {s.label: twins.get(s.name) for s in plan.arrays if s.leaf.differentiable}
    if plan.kernel.program:
        tangents = {label: twin for label, twin in by_label.items() if twin is not None}
        zero = frozenset(s.label for s in plan.fresh if s.init != "empty")
        program = plan.kernel.kernel.tangent(tangents, zero)
        return program.plan(_declaration(plan, twins, frozenset(), frozenset())), twins
    dropped = frozenset[str]() if values else _dropped(plan)
    written = frozenset(s.label for s in plan.arrays if s.role == "output")
    extremes = frozenset(s.label for s in plan.extremes)
    kernel = tangent_kernel(plan.kernel.kernel, by_label, dropped, written, extremes)
    declaration = _declaration(plan, twins, dropped, extremes)
    try:
        made = plan_op(inspect_kernel(kernel), declaration, analyse(kernel))
    except SignatureError as error:
        raise TangentError(str(error)) from error
    # A twin is null where its array is, which the kernel asks.
    slots = tuple(replace(s, unasked=()) if s.label in twins.values() else s for s in made.slots)
    return replace(made, slots=slots), twins


def why_none(plan: OpPlan) -> str | None:
    """Why an op has no tangent; None where it has one (of a generic op, where the types of a call allow)."""
    try:
        _check(plan)
        if not plan.kernel.generic:
            tangent_plan(plan, frozenset(slot.name for slot in plan.gradients))
    except TangentError as error:
        return str(error)
    return None


def check_kernel(kernel: Any, effects: Effects) -> None:
    """Refuse a kernel that has no tangent whatever its statements are."""
    if not warp_code.backward_enabled(kernel):
        raise TangentError("the kernel is compiled without its backward (enable_backward=False)")
    if not warp_code.is_rewritable(kernel):
        raise TangentError("the kernel was made in a way of its own")
    for hazard in effects.hazards:
        if hazard.kind == "counter":
            raise TangentError(f"{hazard.message} ({hazard.site})")


def _check(plan: OpPlan) -> None:
    if not plan.kernel.program:  # a program's launches are known when it runs
        check_kernel(plan.kernel.kernel, plan.effects)
    for slot in plan.mutated:
        if slot.optional and slot.leaf.differentiable:
            raise TangentError(f"'{slot.label}' is changed in place, and may be None")


def _has_twin(slot: Slot, active: frozenset[str] | None) -> bool:
    """Inputs by what is asked; what the kernel writes may hold anything, and so always."""
    if slot.role == "input" and active is not None:
        return slot.differentiable and slot.name in active
    return slot.leaf.differentiable


def _is_constant(slot: Slot) -> bool:
    """Whether the tangent of a float array is zero at every call."""
    return slot.role == "input" and slot.leaf.differentiable and not slot.differentiable


def _dropped(plan: OpPlan) -> frozenset[str]:
    """Outputs that the kernel only stores to: nobody asks the tangent kernel for them."""
    nodes = list(ast.walk(warp_source.tree_of(plan.kernel.kernel)))
    names = [n for n in nodes if isinstance(n, ast.Name)]
    arrays = {id(array) for node in nodes for array in _stored_to(node)}
    stored = {n.id for n in names if id(n) in arrays} - {n.id for n in names if id(n) not in arrays}
    return frozenset(s.label for s in plan.arrays if s.role == "output" and not s.saved and s.label in stored)


def _stored_to(node: ast.AST) -> list[ast.expr]:
    """The array that a statement stores to or adds to."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        adds = getattr(called, "attr", getattr(called, "id", "")) in ("atomic_add", "atomic_sub")
        return node.value.args[:1] if adds else []
    if isinstance(node, ast.Assign) or (isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub))):
        return [target.value for target in targets(node) if isinstance(target, ast.Subscript)]
    return []


# --- the declaration --------------------------------------------------------------------------------------------------


def _declaration(
    plan: OpPlan, twins: Mapping[str, str], dropped: frozenset[str], extremes: frozenset[str]
) -> Declaration:
    """What a user would have declared for the tangent kernel. ``extremes`` are given as the op left them."""
    taken = Names(
        {n for s in plan.slots for n in (s.name, s.label)}
        | {*twins.values(), *plan.size_names, *plan.declaration.sizes}
    )
    dims = {s.name: _dims(s, taken, s.name in twins) for s in plan.arrays}
    shape_of = {s.name: s.shape for s in plan.arrays}
    for slot in plan.extremes:
        if callable(slot.shape):  # it is given, so that it has sizes, which nobody asks for
            shape_of[slot.name] = tuple(name(taken.fresh(f"{slot.name}_{k}")) for k in range(slot.leaf.ndim))
    mutated = frozenset(s.label for s in plan.mutated)

    def labels(slot: Slot, left_out: frozenset[str] = frozenset()) -> list[str]:
        """An array and its tangent."""
        return [n for n in (slot.label, twins.get(slot.name)) if n is not None and n not in left_out]

    left: list[Term] = []
    right: list[Term] = []
    scratch: list[Term] = []
    shapes: list[tuple[str, Any]] = []
    inits: list[tuple[str, str | float]] = []
    for slot in plan.arrays:
        shape = shape_of[slot.name]
        shape = None if callable(shape) else shape
        if slot.label in extremes:
            left.append(Term(slot.label, shape))
        elif slot.is_input:
            left += [Term(label, dims[slot.name]) for label in labels(slot, mutated)]
        elif slot.role == "scratch":
            if shape is None:
                raise TangentError("the shape of scratch is computed")
            scratch += [Term(label, shape) for label in labels(slot)]
    for slot in (*plan.result_slots, *plan.mutated):
        shape = shape_of[slot.name]
        asked = _own_arguments(shape, plan) if callable(shape) else None
        for label in labels(slot, dropped | extremes | mutated):
            if slot.changes:
                right.append(Term(label, dims[slot.name]))
                continue
            if asked is not None:
                shapes.append((label, asked))
            right.append(Term(label, None if callable(shape) else shape or ()))
            inits.append((label, slot.init if label == slot.label or slot.init == "empty" else "zeros"))
    given = [label for slot in plan.inputs if slot.optional for label in labels(slot)]
    made = [label for slot in plan.arrays if slot.nullable for label in labels(slot)]
    constant = [twins[s.name] for s in plan.inputs if _is_constant(s) and s.name in twins]
    own, launch = plan.declaration, plan.extents.launch
    return own.derive(
        "(tangent)",
        left=tuple(left),
        right=tuple(right),
        dim=_own_arguments(launch, plan) if callable(launch) else launch,
        shapes=tuple(shapes),
        inits=tuple(inits),
        mutates=own.mutates or tuple(s.label for s in plan.mutated),
        scratch=tuple(scratch),
        optional=(*given, *(label for label in made if label in [term.name for term in right])),
        nondiff=tuple(dict.fromkeys((*own.nondiff, *sorted(extremes), *constant))),
    )


def _dims(slot: Slot, taken: Names, shared: bool) -> tuple[Expr | None, ...] | None:
    """The dims of an input; those that a tangent shares have a name each."""
    if not shared or not slot.is_input:
        return slot.dims
    known = slot.dims or (None,) * slot.leaf.ndim
    return tuple(d if d is not None else name(taken.fresh(f"{slot.name}_{k}")) for k, d in enumerate(known))


def _own_arguments(function: Callable[..., Any], plan: OpPlan) -> Callable[..., Any]:
    """A callable for ``dim`` or ``shapes``, which knows nothing of tangents."""
    own = {p.name for p in plan.parameters}

    def call(**given: Any) -> Any:
        return ask(function, {name: value for name, value in given.items() if name in own})

    return call


def refused(title: str, what: str, error: Exception) -> GradientError:
    """What is said where a derivative is asked for that can't be had."""
    return GradientError(
        f"{title}: {what}: {error}; give the op a differentiable backward with register_backward, or with the option backward"
        if what != "jvp"
        else f"{title}: jvp: {error}"
    )


def unbuilt(title: str, what: str, kernel: KernelSignature, error: object) -> GradientError:
    """What is said where Warp can't build the tangent kernel."""
    where = f"{kernel.file}:{kernel.line}"
    return refused(
        title, what, TangentError(f"Warp can't build the tangent kernel of {kernel.name}: {error} ({where})")
    )
