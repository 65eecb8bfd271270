"""vmap in one launch: the kernel with one more leading dimension, and the plan of its op.

Everything is derived from the plan of the op that is mapped: its roles, its sizes with the batch before them, what it
holds before the launch and what its backward keeps. The new kernel is an op like any other (checked, differentiable,
mapped again where transforms are nested), but hidden.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ..arguments.callbacks import ask
from ..effects import analyse
from ..errors import SignatureError
from ..kernel.signature import inspect_kernel
from ..plan.declaration import Declaration, Term
from ..plan.model import OpPlan, Slot
from ..plan.planner import plan_op
from ..plan.sizes import Expr, name
from ..private import warp_code, warp_types
from ..rewrite.batch import UnbatchableError, batch_source
from ..rewrite.source import Names, make_kernel, read

MAX_RANK = 4
"""Dimensions of Warp's arrays and of its launches."""


def batched_plan(plan: OpPlan, batched: frozenset[str]) -> OpPlan:
    """The plan of a concrete op whose arrays ``batched`` (by schema name) have a leading batch axis.

    Fresh and in-out arrays always get one.

    Raises:
        UnbatchableError: ranks don't allow it, or the kernel can't be rewritten.
    """
    arrays = tuple(s for s in plan.arrays if s.name in batched or s.fresh or s.is_result)
    _check_ranks(plan, arrays)
    kernel = _batched_kernel(plan, arrays)
    declaration = _declaration(plan, arrays)
    try:
        made = plan_op(inspect_kernel(kernel), declaration, analyse(kernel))
    except SignatureError as error:
        raise UnbatchableError(str(error)) from error
    if [s.name for s in made.slots] != [s.name for s in plan.slots] or made.results != plan.results:
        raise UnbatchableError("the rewritten kernel is not what the op's kernel is")
    if plan.adjoint is not None and made.adjoint is None:
        raise UnbatchableError("the batched kernel's adjoint can't be made right")
    return _with_decisions(made, plan)


def _check_ranks(plan: OpPlan, arrays: tuple[Slot, ...]) -> None:
    rank = plan.effects.tid_rank
    if plan.kernel.program:
        raise UnbatchableError("a program launches kernels of its own")
    if rank is None or plan.effects.opaque:
        raise UnbatchableError("the kernel could not be followed everywhere")
    if plan.mutated:
        raise UnbatchableError("the op changes arrays in place")
    launch = plan.extents.launch
    if max(rank, 0 if callable(launch) else len(launch) + plan.declaration.tiled) + 1 > MAX_RANK:
        raise UnbatchableError(f"the launch has {rank} dimensions already")
    for slot in arrays:
        if slot.leaf.ndim + 1 > MAX_RANK:
            raise UnbatchableError(f"'{slot.label}' has {slot.leaf.ndim} dimensions already")
        if not slot.null_adjoint_safe and plan.gradient == "adjoint":
            # Warp gives a custom gradient the adjoint of the view itself, which is no array, and it would crash.
            raise UnbatchableError(f"a custom gradient writes to the adjoint of '{slot.label}'")


# --- the kernel -------------------------------------------------------------------------------------------------------


def _batched_kernel(plan: OpPlan, arrays: tuple[Slot, ...]) -> Any:
    kernel = plan.kernel.kernel
    if not warp_code.is_rewritable(kernel):
        raise UnbatchableError("the kernel was made in a way of its own")
    source = read(kernel)
    labels = [slot.label for slot in plan.slots]
    text, own, given = batch_source(source, [s.label for s in arrays], labels, plan.effects.tid_rank or 0)
    lifted = {slot.leaf.path for slot in arrays}
    annotations = {
        argument: _lifted_type(warp_type, (argument,), lifted)
        for argument, warp_type in warp_types.argument_types(kernel)
    }
    return make_kernel(kernel, text, own, given, annotations)


def _lifted_type(warp_type: Any, path: tuple[str, ...], lifted: set[tuple[str, ...]]) -> Any:
    """An argument's type with one more dimension for the arrays at ``lifted``."""
    if path in lifted:
        return warp_types.array_annotation(warp_type.dtype, warp_type.ndim + 1)
    fields = warp_types.struct_fields(warp_type)
    if fields is None or not any(other[: len(path)] == path for other in lifted):
        return warp_type
    return warp_types.make_struct(
        f"{warp_types.type_name(warp_type).split('.')[-1]}_vmap",
        {field: _lifted_type(inner, (*path, field), lifted) for field, inner in fields.items()},
    )


# --- the declaration --------------------------------------------------------------------------------------------------


def _declaration(plan: OpPlan, arrays: tuple[Slot, ...]) -> Declaration:
    """What a user would have declared for the batched kernel."""
    taken = {used for slot in plan.slots for used in (slot.label, slot.name)} | plan.size_names
    size = name(Names(taken).fresh("batch"))
    batched = {slot.name for slot in arrays}

    def dims_of(slot: Slot) -> tuple[Expr | None, ...] | None:
        if slot.name not in batched:
            return slot.dims
        return (size, *(slot.dims or (None,) * slot.leaf.ndim))

    left = tuple(Term(s.label, dims_of(s)) for s in plan.arrays if s.is_input)
    right: list[Term] = []
    shapes: list[tuple[str, Any]] = []
    lifted: dict[int, Callable[..., Any]] = {}
    for slot in plan.result_slots:
        if slot.role == "inout":
            right.append(Term(slot.label, dims_of(slot)))
        elif callable(slot.shape):
            right.append(Term(slot.label))
            if id(slot.shape) not in lifted:
                lifted[id(slot.shape)] = _lifted_callable(slot.shape, plan, batched)
            shapes.append((slot.label, lifted[id(slot.shape)]))
        else:
            right.append(Term(slot.label, (size, *(slot.shape or ()))))
    scratch = []
    for slot in plan.scratch:
        if slot.shape is None or callable(slot.shape):
            raise UnbatchableError("the shape of scratch is computed")
        scratch.append(Term(slot.label, (size, *slot.shape)))
    launch = plan.extents.launch
    rank = plan.effects.tid_rank
    dim: Any = (size,) if rank == 0 and not callable(launch) else None
    if dim is None:
        dim = _lifted_callable(launch, plan, batched, rank) if callable(launch) else (size, *launch)
    return plan.declaration.derive(
        "(batched)",
        left=left,
        right=tuple(right),
        dim=dim,
        shapes=tuple(shapes),
        inits=tuple((slot.label, slot.init) for slot in plan.result_slots if slot.role == "output"),
        scratch=tuple(scratch),
        optional=tuple(slot.label for slot in plan.arrays if slot.optional or slot.nullable),
    )


def _lifted_callable(
    function: Callable[..., Any], plan: OpPlan, batched: set[str], rank: int | None = None
) -> Callable[..., Any]:
    """A callable for ``dim`` or ``shapes``, asked about one element.

    It gets batched tensors without their batch axis and without data: a size that depends on data may differ from
    element to element, which the loop finds out, and one launch can't.
    """

    def lifted(**given: Any) -> tuple[int, ...]:
        sizes: list[int] = []

        def single(slot: Slot, value: Any) -> Any:
            if slot.name not in batched or value is None:
                return value
            sizes.append(int(value.shape[0]))
            return element(value)

        for parameter in plan.parameters:
            for slot in parameter.slots if parameter.struct else ():  # the namespaces are the call's own
                *path, last = slot.leaf.path[1:]
                owner = functools.reduce(getattr, path, given[parameter.name])
                setattr(owner, last, single(slot, getattr(owner, last)))
            if not parameter.struct:
                given[parameter.name] = single(parameter.slots[0], given[parameter.name])
        try:
            result = ask(function, given)
            dims = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        except Exception as error:  # whatever the user's function raises, the loop raises it again, or doesn't
            raise UnbatchableError("a callable needs data, or failed") from error
        return (sizes[0],) if rank == 0 else (sizes[0], *dims)

    return lifted


def element(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """One element of a batched tensor, as far as shape, strides and dtype go: it holds no data."""
    dim = dim % value.ndim
    shape, stride = list(value.shape), list(value.stride())
    del shape[dim], stride[dim]
    return torch.empty_strided(shape, stride, dtype=value.dtype, device="meta")


# --- the decisions ----------------------------------------------------------------------------------------------------


def _with_decisions(made: OpPlan, plan: OpPlan) -> OpPlan:
    """The batched plan with what was decided about the op: what is kept for backward must be the same, since either
    may run the backward of the other's forward."""
    slots = {}
    for slot in made.slots:
        own = plan.slot(slot.name)
        slots[slot.name] = replace(
            slot,
            init=own.init,
            init_why=own.init_why,
            differentiable=own.differentiable,
            saved=own.saved,
            replayed=own.replayed,
            state=own.state,
            retained=own.retained and slot.retained,
            null_adjoint_safe=own.null_adjoint_safe and slot.null_adjoint_safe,
        )
    parameters = tuple(
        replace(parameter, slots=tuple(slots[s.name] for s in parameter.slots)) for parameter in made.parameters
    )
    return replace(
        made,
        slots=tuple(slots.values()),
        parameters=parameters,
        gradient=plan.gradient,
        gradient_why=plan.gradient_why,
        hazards=(),
    )
