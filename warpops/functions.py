"""The autograd functions of one op for use under transforms: its forward, and its backward as a function of its own.

Both have a ``setup_context``, which torch.func asks for, and hand vmap to the rules of ``Transforms``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import handles
from .copies import copy_of
from .errors import GradientError

if TYPE_CHECKING:
    from .transforms import Transforms


def make_forward(transforms: Transforms) -> Any:
    """The forward: of the op's arguments, then of copies of the mutated arrays that backward needs as they were."""
    plan, front, runtime = transforms.plan, transforms.front, transforms.runtime
    arguments = front.arguments
    tensors = [i for i, s in enumerate(plan.inputs) if s.is_array or s.role == "tensor_scalar"]
    rest = [i for i in range(len(arguments)) if i not in tensors]
    count = len(plan.results)
    custom = plan.gradient == "custom"
    kept = list(range(count)) if custom else [i for i, slot in enumerate(front.returned) if slot.saved]
    silent = [i for i, s in enumerate(front.returned) if not s.differentiable or s.role == "scratch"]
    positions = [arguments.index(s.name) for s in plan.gradients]
    found = [arguments.index(s.name) for s in plan.saved_before]
    left = {arguments.index(s.name): s for s in plan.inputs if plan.saved_after(s)}
    names = [s.name for s in front.returned]

    class Forward(torch.autograd.Function):
        generate_vmap_rule = False

        @staticmethod
        def forward(*values: Any) -> Any:
            return runtime.forward_op(*values[: len(arguments)])

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            outputs = output if isinstance(output, tuple) else (output,)
            ctx.set_materialize_grads(False)
            saved = dict(enumerate(inputs)) | dict(zip(found, inputs[len(arguments) :], strict=False))
            for position, slot in left.items():
                if slot.role == "inout":
                    saved[position] = outputs[names.index(slot.name)]
                else:
                    saved[position] = copy_of(inputs[position])
            ctx.save_for_backward(*[saved[i] for i in tensors], *[outputs[i] for i in kept])
            ctx.extra = len(inputs) - len(arguments)
            ctx.rest = [inputs[i] for i in rest]
            ctx.alive = handles.alive(*(inputs[arguments.index(name)] for name in front.handles))
            ctx.mark_non_differentiable(*[outputs[i] for i in silent if outputs[i] is not None])

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            live = [g for g, s in zip(grads, front.returned, strict=True) if s.differentiable and s.role != "scratch"]
            if all(g is None for g in live):
                return (None,) * (len(arguments) + ctx.extra)
            if plan.gradient == "none":
                transforms.refuse_gradient()
            runtime.check_alive(ctx.alive)
            saved = ctx.saved_tensors
            values: list[Any] = [None] * len(arguments)
            for position, value in zip([*tensors, *rest], [*saved[: len(tensors)], *ctx.rest], strict=True):
                values[position] = value
            outputs = saved[len(tensors) :]
            if custom:
                given = tuple(torch.zeros_like(r) if g is None else g for g, r in zip(grads, outputs, strict=False))
                needed = tuple(ctx.needs_input_grad[: len(arguments)])
                own = runtime.custom_backward(tuple(values), tuple(outputs), given, needed)
                return (*own, *(None for _ in range(ctx.extra)))
            needs = [bool(ctx.needs_input_grad[p]) for p in positions]
            order = {front.returned[k].name: value for k, value in zip(kept, outputs, strict=True)}
            grads = transforms.backward_function.apply(*values, *(order[s.name] for s in plan.kept), *live, needs)
            result: list[Any] = [None] * (len(arguments) + ctx.extra)
            for position, grad in zip(positions, grads, strict=True):
                result[position] = grad
            return tuple(result)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise GradientError(f"{transforms.name}: jvp: Warp has no forward mode; use torch.func.vjp, grad or jacrev")

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], *values: Any) -> tuple[Any, Any]:
            return transforms.map_forward(info, in_dims, values)

    Forward.__name__ = Forward.__qualname__ = plan.name
    return Forward


def make_backward(transforms: Transforms) -> Any:
    plan, runtime = transforms.plan, transforms.runtime

    class Backward(torch.autograd.Function):
        generate_vmap_rule = False

        @staticmethod
        def forward(*values: Any) -> Any:
            assert runtime.backward_op is not None
            found = iter(runtime.backward_op(*values))
            # An optional array that isn't given has no gradient to be had.
            return tuple(
                next(found) if need and values[position] is not None else None
                for need, position in zip(values[-1], positions, strict=True)
            )

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise GradientError(
                f"{transforms.name}: double backward: the gradient of this op comes from Warp's adjoint, which is "
                f"differentiable once; give the op a differentiable backward with register_backward"
            )

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise GradientError(f"{transforms.name}: jvp of the backward: Warp has no forward mode")

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], *values: Any) -> tuple[Any, Any]:
            return transforms.map_backward(info, in_dims, values)

    positions = [transforms.front.arguments.index(s.name) for s in plan.gradients]
    Backward.__name__ = Backward.__qualname__ = f"{plan.name}_backward"
    return Backward
