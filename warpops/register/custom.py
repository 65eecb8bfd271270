"""``op.custom_op``: the operator under the plain name as a ``torch.library.custom_op``, with the methods of one.

It is made when it is asked for. PyTorch's kernels lie over ours then, and what a user registers lies over the op's own
launch, for ``default`` alone. It goes when another op takes the name.
"""

from __future__ import annotations

from typing import Any

import torch

from ..calls.dispatched import fake_plain, run_plain
from ..calls.special import has_tangents, refuse_mutation
from ..calls.traced import check_exported
from ..calls.ways import Plain, Ways, many, newest, plain_of
from ..private import torch_custom, torch_modes

_made: dict[str, tuple[int | None, Any]] = {}
"""By name: the order of the op that it was made for, and the definition."""


def custom_op_of(ways: Ways, order: int | None) -> Any:
    """The definition of the plain operator.

    Raises:
        ArgumentError: another op has the name.
    """
    check_exported(ways)
    if ways.name not in _made:
        _made[ways.name] = order, _define(plain_of(ways.name))
    return _made[ways.name][1]


def forget_custom_op(name: str, order: int | None) -> None:
    """Take the definition out, unless the op with this order still has the name."""
    if name in _made and _made[name][0] != order:
        torch_custom.drop(_made.pop(name)[1])


def _define(plain: Plain) -> Any:
    def run(*arguments: Any, **named: Any) -> Any:
        ways = newest(plain.name)
        with torch.no_grad():
            return ways.live().eager(*ways.complete(arguments, named))

    def fake(*arguments: Any, **named: Any) -> Any:
        return fake_plain(plain, *arguments, **named)

    made = torch_custom.define_over(plain.name, plain.schema, run)
    made.register_fake(fake)
    if newest(plain.name).plan.mutated:
        torch_custom.implement(made, "Autograd", _guard(plain))
    else:
        made.register_autograd(_backward(plain.name), setup_context=_setup(plain.name))
        torch_custom.implement_above(made, _forward_mode(plain))
    return made


def _setup(name: str) -> Any:
    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any, keyword_only_inputs: Any = None) -> None:
        values = newest(name).complete(inputs, keyword_only_inputs or {})
        places = [place for place, value in enumerate(values) if isinstance(value, torch.Tensor)]
        ctx.save_for_backward(*(values[place] for place in places))
        ctx.places, ctx.rest = places, [None if place in places else value for place, value in enumerate(values)]

    return setup


def _backward(name: str) -> Any:
    """The op's own gradients, of its own launch: the kernel that ran may be a user's, which leaves nothing for them."""

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        values, needed = list(ctx.rest), [place for place, need in enumerate(ctx.needs_input_grad) if need]
        for place, value in zip(ctx.places, ctx.saved_tensors, strict=True):
            values[place] = value
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            for place in needed:
                values[place] = (
                    values[place].view_as(values[place]) if again else values[place].detach().requires_grad_()
                )
            results = many(newest(name).call_public(tuple(values)))
            live = [(r, g) for r, g in zip(results, grads, strict=True) if r.requires_grad and g is not None]
            found = torch.autograd.grad(
                *([part for part, _ in live], [values[place] for place in needed], [part for _, part in live]),
                create_graph=again,
                allow_unused=True,
            )
        made = dict(zip(needed, found, strict=True))
        return tuple(made.get(place) for place in range(len(ctx.needs_input_grad)))

    return backward


def _forward_mode(plain: Plain) -> Any:
    """Above PyTorch's autograd for such an op, which loses tangents: they come of the op's own launch, too."""

    def run(below: Any, keyset: Any, *arguments: Any, **named: Any) -> Any:
        given = (*arguments, *named.values())
        if torch_modes.is_wrapped(given) or has_tangents(given):  # the first is refused there in words
            return run_plain(plain, *arguments, **named)
        return below(keyset, *arguments, **named)

    return run


def _guard(plain: Plain) -> Any:
    """Above the kernels of an op that mutates: PyTorch has no gradients for one, and doesn't refuse what can't have any."""

    def guard(keyset: Any, *arguments: Any, **named: Any) -> Any:
        ways = newest(plain.name)
        values = ways.complete(arguments, named)
        if has_tangents(values):
            return run_plain(plain, *arguments, **named)
        if torch.is_grad_enabled():
            refuse_mutation(ways, values)
            if any(values[place] is not None and values[place].requires_grad for place in ways.plan.gradient_places):
                return run_plain(plain, *arguments, **named)
        return plain.overload.redispatch(keyset.remove(keyset.highestPriorityTypeId()), *arguments, **named)

    return guard
