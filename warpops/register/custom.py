"""``op.custom_op``: the operator under the plain name as a ``torch.library.custom_op``, with the methods of one.

It is made when it is asked for. PyTorch's kernels lie over ours then, and what a user registers lies over the op's own
launch, for ``default`` alone. It goes when another op takes the name.
"""

from __future__ import annotations

from typing import Any

import torch

from ..calls.dispatched import run_mapped, run_public
from ..calls.special import has_tangents, refuse_mutation
from ..calls.traced import check_exported, fake_public
from ..calls.ways import Plain, Ways, many, newest, one_or_many, plain_of
from ..errors import GradientError
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
        return fake_public(plain, *arguments, **named)

    guard = _Guard(plain)
    made = torch_custom.define_over(plain.name, plain.schema, run, guard.over)
    made.register_fake(fake)
    if not newest(plain.name).plan.mutated:
        made.register_autograd(_backward(plain.name), setup_context=_setup(plain.name))
    torch_custom.implement(made, torch_modes.VMAP_KEY, guard.map)
    guard.own = torch_custom.registered(made)
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


class _Guard:
    """Above the definition's kernels: as long as they are the op's own, the plain operator does what it does without them.

    A user's kernel is called as PyTorch calls one, with the op's own gradients. What PyTorch would answer with zeros or with
    none then is refused here.
    """

    made: Any
    below: Any
    own: Any = None

    def __init__(self, plain: Plain) -> None:
        self.plain = plain

    def over(self, made: Any, below: Any) -> Any:
        self.made, self.below = made, below
        return self.call

    def _is_own(self) -> bool:
        return bool(torch_custom.registered(self.made) == self.own)

    def call(self, keyset: Any, *arguments: Any, **named: Any) -> Any:
        ways = newest(self.plain.name)
        values = ways.complete(arguments, named)
        if self._is_own() or torch_modes.is_wrapped(values):
            return run_public(self.plain, *arguments, **named)
        if has_tangents(values):
            raise GradientError(
                f"{ways.name}: a kernel that was registered on op.custom_op has no forward mode; call op(...) for that"
            )
        if not ways.plan.mutated:
            return self.below(keyset, *arguments, **named)
        if torch.is_grad_enabled():
            refuse_mutation(ways, values)
            if any(values[place] is not None and values[place].requires_grad for place in ways.plan.gradient_places):
                return run_public(self.plain, *arguments, **named)
        return self.plain.overload.redispatch(keyset.remove(keyset.highestPriorityTypeId()), *arguments, **named)

    def map(self, keyset: Any, *arguments: Any, **named: Any) -> Any:
        if self._is_own() or newest(self.plain.name).plan.mutated:
            return run_mapped(self.plain, keyset, *arguments, **named)
        return torch_modes.call_vmap_rule(self._map_one_by_one, self.plain.overload, arguments, named)

    def _map_one_by_one(self, info: Any, in_dims: Any, /, *arguments: Any, **named: Any) -> Any:
        ways = newest(self.plain.name)
        values = ways.complete(arguments, named)
        dims = (*in_dims, *(None for _ in values[len(in_dims) :]))
        if not info.batch_size:
            return ways.transforms().map_forward(info, dims, values, public=True)
        found = []
        for row in range(info.batch_size):
            one = [value if dim is None else value.select(dim, row) for value, dim in zip(values, dims, strict=True)]
            found.append(many(ways.call_public(tuple(one), self.plain.overload)))
        results = tuple(torch.stack(rows) for rows in zip(*found, strict=True))
        return one_or_many(results), one_or_many((0,) * len(results))
