"""The autograd functions of one op for use under transforms: its forward, and its backward as a function of its own.

Both have a ``setup_context``, which torch.func asks for, and hand vmap to the rules of ``Transforms``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from ..arguments.handle import alive, check_unchanged
from ..arguments.ran import latest_ran
from ..calls.copies import copy_of
from ..calls.own_backward import custom_backward
from ..calls.special import refuse_gradient
from ..calls.ways import many, one_or_many


def _seen_further_out(jvp: Callable[..., Any]) -> Callable[..., Any]:
    """A ``jvp`` of the saved tensors and the tangents, which has tangents of its own at levels further out.

    PyTorch calls it with forward mode off, which all levels share, and gives what is dual at this one.
    """

    @functools.wraps(jvp)
    def run(ctx: Any, *tangents: Any) -> Any:
        recorded = torch.is_grad_enabled()
        # Leaving inference mode is what turns forward mode on, and autograd with it.
        with torch.inference_mode(False), torch.set_grad_enabled(recorded):
            return jvp(ctx, [_primal(t) for t in ctx.saved_tensors], *map(_primal, tangents))

    return run


def _primal(value: Any) -> Any:
    unpack: Any = forward_ad.unpack_dual
    return value if value is None else unpack(value).primal


def make_forward(transforms: Any) -> Any:
    """The forward: of the op's arguments, then of copies of the mutated arrays that backward needs as they were."""
    plan, ways = transforms.plan, transforms.ways
    arguments = plan.arguments
    tensors = len(plan.tensor_places)
    custom = plan.gradient == "custom"
    kept = list(range(len(plan.results))) if custom else [i for i, slot in enumerate(plan.returned) if slot.saved]
    silent = [i for i, s in enumerate(plan.returned) if not s.differentiable or s.role == "scratch"]
    mutated = [i for i, s in enumerate(plan.inputs) if s.role == "mutated"]
    given = len(arguments)
    names = [s.name for s in plan.returned]

    class Forward(torch.autograd.Function):
        generate_vmap_rule = False

        @staticmethod
        def forward(*values: Any) -> Any:
            """The op's arguments, then what its mutated ones hold before."""
            return transforms.run_forward(values[:given])

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            outputs = many(output)
            ctx.set_materialize_grads(False)
            before = dict(zip(mutated, inputs[given:], strict=True))
            own = [before.get(i, inputs[i]) for i in plan.tensor_places]
            left = [
                outputs[names.index(s.name)] if s.role == "inout" else copy_of(inputs[arguments.index(s.name)])
                for s in plan.written_back
            ]
            ctx.save_for_backward(*own, *[outputs[i] for i in kept], *left)
            ctx.save_for_forward(*own, *outputs)
            ctx.rest = [inputs[i] for i in plan.other_places]
            ctx.ran = latest_ran() if plan.runs_again else None
            ctx.alive = alive(*(inputs[arguments.index(name)] for name in plan.holding))
            ctx.mark_non_differentiable(*[outputs[i] for i in silent if outputs[i] is not None])

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            live = [g for g, s in zip(grads, plan.returned, strict=True) if s.differentiable and s.role != "scratch"]
            if all(g is None for g in live):
                return (None,) * (given + len(mutated))
            if plan.gradient == "none":
                refuse_gradient(ways)
            check_unchanged(ways.name, [plan.slot(name).label for name in plan.holding], ctx.alive)
            saved = ctx.saved_tensors
            values, outputs = plan.join(saved[:tensors], ctx.rest), saved[tensors:]
            if custom:
                whole = tuple(torch.zeros_like(r) if g is None else g for g, r in zip(grads, outputs, strict=False))
                needed = tuple(ctx.needs_input_grad[:given])
                return (
                    *custom_backward(ways, tuple(values), tuple(outputs), whole, needed),
                    *(None for _ in mutated),
                )
            needs = [bool(ctx.needs_input_grad[p]) for p in plan.gradient_places]
            order = {plan.returned[k].name: value for k, value in zip(kept, outputs, strict=False)}
            found = transforms.backward_function.apply(
                *values, *(order[s.name] for s in plan.kept), *outputs[len(kept) :], *live, needs
            )
            transforms.check_again(ctx)
            return (*plan.spread(found), *(None for _ in mutated))

        @staticmethod
        @_seen_further_out
        def jvp(ctx: Any, saved: list[Any], *tangents: Any) -> Any:
            active = {arguments[p]: tangents[p] for p in plan.gradient_places if tangents[p] is not None}
            if not active:  # what moves has no derivative
                moved = [i not in silent for i in range(len(plan.returned))]
                outputs = saved[tensors:]
                return one_or_many(
                    tuple(torch.zeros_like(r) if m else None for r, m in zip(outputs, moved, strict=True))
                )
            values = plan.join(saved[:tensors], ctx.rest)
            tangent = transforms.tangent(tuple(values), frozenset(active), "jvp")
            named = dict(zip([*names, *arguments], [*saved[tensors:], *values], strict=True))
            found = tangent.call(named, active)
            transforms.check_again(ctx)
            return one_or_many(tuple(found.get(s.name) for s in plan.returned))

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], *values: Any) -> Any:
            return transforms.map_forward(info, in_dims[:given], values[:given])

    Forward.__name__ = Forward.__qualname__ = plan.name
    return Forward


def make_backward(transforms: Any) -> Any:
    plan = transforms.plan
    arguments = plan.arguments
    positions = plan.gradient_places
    known = [*arguments, *(slot.name for slot in plan.kept)]
    last = len(known)
    """Where what the launch left in given arrays begins."""
    left = [arguments.index(s.name) for s in plan.written_back]
    first = last + len(left)
    """Where the cotangents begin."""
    places = [*plan.tensor_places, *range(len(arguments), first + len(plan.cotangents))]

    class Backward(torch.autograd.Function):
        """The op's arguments, the arrays kept for backward, what the launch left in given arrays whose adjoint needs that,
        one cotangent per float result, and which gradients are wanted; the result is one gradient per input that can
        have one."""

        generate_vmap_rule = False

        @staticmethod
        def forward(*values: Any) -> Any:
            given = list(values[:last])
            for position, value in zip(left, values[last:first], strict=True):
                given[position] = value
            found = iter(transforms.run_backward((*given, *values[first:])))
            # An optional array that isn't given has no gradient to be had.
            return tuple(
                next(found) if need and values[position] is not None else None
                for need, position in zip(values[-1], positions, strict=True)
            )

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*[inputs[p] for p in places])
            ctx.save_for_forward(*[inputs[p] for p in places])
            ctx.rest = [inputs[p] for p in plan.other_places]
            ctx.needs = inputs[-1]
            ctx.ran = latest_ran() if plan.runs_again else None
            ctx.alive = alive(*(inputs[arguments.index(name)] for name in plan.holding))

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            values = whole(ctx.saved_tensors, ctx)
            asked = [bool(need) for need in ctx.needs_input_grad]
            active = {s.name: g for s, g in zip(plan.gradients, grads, strict=True) if g is not None}
            result: list[Any] = [None] * (first + len(plan.cotangents) + 1)
            if not active:
                return tuple(result)
            if any(asked[first:]):
                tangent = transforms.tangent(tuple(values[: len(arguments)]), frozenset(active), "double backward")
                found = tangent.call(dict(zip(known, values, strict=False)), active)
                transforms.check_again(ctx)
                for place, slot in enumerate(plan.cotangents, first):
                    result[place] = found.get(slot.name) if asked[place] else None
            wanted = frozenset(arguments[p] for p in positions if asked[p])
            if wanted:
                found = second(ctx, values, active, "double backward", wanted)
                for position in positions:
                    result[position] = found.get(arguments[position])
            return tuple(result)

        @staticmethod
        @_seen_further_out
        def jvp(ctx: Any, saved: list[Any], *tangents: Any) -> Any:
            values = whole(saved, ctx)
            active = {arguments[p]: tangents[p] for p in positions if tangents[p] is not None}
            moved = tangents[first : first + len(plan.cotangents)]
            wanted = frozenset(s.name for s, need in zip(plan.gradients, ctx.needs, strict=True) if need)
            made: dict[str, Any] = {}
            if any(t is not None for t in moved):
                found = transforms.backward_function.apply(*values[:first], *moved, ctx.needs)
                transforms.check_again(ctx)
                made = {s.name: g for s, g in zip(plan.gradients, found, strict=True) if g is not None}
            if active:
                for slot, grad in second(ctx, values, active, "jvp of the backward", wanted).items():
                    made[slot] = made[slot] + grad if slot in made else grad
            for slot, position in zip(plan.gradients, positions, strict=True):
                if slot.name in wanted and slot.name not in made and values[position] is not None:
                    made[slot.name] = torch.zeros_like(values[position])
            return tuple(made.get(s.name) for s in plan.gradients)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], *values: Any) -> Any:
            return transforms.map_backward(info, in_dims, values)

    def second(
        ctx: Any, values: list[Any], active: dict[str, Any], what: str, wanted: frozenset[str]
    ) -> dict[str, Any]:
        """The derivative of the gradients along ``active``, by the inputs."""
        given = dict(zip(known, values, strict=False))
        cotangents = {s.name: v for s, v in zip(plan.cotangents, values[first:], strict=True) if v is not None}
        tangent = transforms.tangent(tuple(values[: len(arguments)]), frozenset(active), what)
        found: dict[str, Any] = tangent.gradient(given, active, cotangents, wanted)
        transforms.check_again(ctx)
        return found

    def whole(saved: Sequence[Any], ctx: Any) -> list[Any]:
        values: list[Any] = [None] * (first + len(plan.cotangents))
        for place, value in zip([*places, *plan.other_places], [*saved, *ctx.rest], strict=True):
            values[place] = value
        return values

    Backward.__name__ = Backward.__qualname__ = f"{plan.name}_backward"
    return Backward
