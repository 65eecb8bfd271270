"""torch.func: the op as an ``autograd.Function`` with a ``setup_context`` and a vmap rule. Made at the first such call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from . import _torch
from .errors import GradientError

if TYPE_CHECKING:
    from .register import Runtime

VmapRule = Callable[..., tuple[Any, Any]]


class Transforms:
    """One op's functions for use under transforms: its forward, and its backward as a function of its own."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.plan, self.front, self.name = runtime.plan, runtime.front, runtime.name
        self.vmap_rule: VmapRule | None = None
        self.backward_function = self._make_backward()
        self.forward_function = self._make_forward()

    def call(self, arguments: tuple[Any, ...]) -> Any:
        """The op under the active transforms."""
        if self.plan.mutated:
            if _torch.is_vmapped(arguments):
                raise GradientError(
                    f"{self.name}: vmap over an op that changes arrays in place (mutates) is not possible; make the "
                    f"arrays in-out in the signature"
                )
            if torch.is_grad_enabled():
                self.runtime.refuse_mutation(arguments)
        returned = self.forward_function.apply(*arguments)
        count = len(self.plan.results)
        if count == 0:
            return None
        if not isinstance(returned, tuple):
            return returned
        return returned[0] if count == 1 else returned[:count]

    def _loop(self, function: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        """The vmap rule that always holds: call once per element, stack the results."""
        results = []
        for index in range(info.batch_size):
            results.append(function(*[_select(value, dim, index) for value, dim in zip(arguments, in_dims, strict=True)]))
        if not results:
            raise GradientError(f"{self.name}: vmap over a batch of size 0 is not possible")
        if results[0] is None:
            return None, None
        if isinstance(results[0], torch.Tensor):
            return torch.stack(results), 0
        stacked = tuple(
            None if items[0] is None else torch.stack(items) for items in zip(*results, strict=True)
        )
        return stacked, tuple(None if item is None else 0 for item in stacked)

    def _make_forward(self) -> Any:
        transforms, plan, front, runtime = self, self.plan, self.front, self.runtime
        arguments = front.arguments
        tensors = [i for i, s in enumerate(plan.inputs) if s.is_array or s.role == "tensor_scalar"]
        rest = [i for i in range(len(arguments)) if i not in tensors]
        kept = [index for index, slot in enumerate(front.returned) if slot.saved]
        silent = [i for i, s in enumerate(front.returned) if not s.differentiable or s.role == "scratch"]

        class Forward(torch.autograd.Function):
            generate_vmap_rule = False

            @staticmethod
            def forward(*values: Any) -> Any:
                return runtime.forward_op(*values)

            @staticmethod
            def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
                outputs = output if isinstance(output, tuple) else (output,)
                ctx.set_materialize_grads(False)
                ctx.save_for_backward(*[inputs[i] for i in tensors], *[outputs[i] for i in kept])
                ctx.rest = [inputs[i] for i in rest]
                ctx.mark_non_differentiable(*[outputs[i] for i in silent if outputs[i] is not None])

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                nones = [None] * len(arguments)
                live = [g for g, s in zip(grads, front.returned, strict=True) if s.differentiable and s.role != "scratch"]
                if all(g is None for g in live):
                    return tuple(nones)
                if plan.gradient == "none":
                    runtime.refuse_gradient()
                saved = ctx.saved_tensors
                values = [None] * len(arguments)
                for position, value in zip(tensors, saved, strict=False):
                    values[position] = value
                for position, value in zip(rest, ctx.rest, strict=True):
                    values[position] = value
                positions = [arguments.index(s.name) for s in plan.gradients]
                needs = [bool(ctx.needs_input_grad[p]) for p in positions]
                order = {slot.name: k for k, slot in enumerate(s for s in front.returned if s.saved)}
                outputs = [saved[len(tensors) + order[slot.name]] for slot in plan.kept]
                found = transforms.backward_function.apply(*values, *outputs, *live, needs)
                result: list[Any] = list(nones)
                grads_in = iter(found if isinstance(found, tuple) else (found,))
                for position, need in zip(positions, needs, strict=True):
                    grad = next(grads_in)
                    result[position] = grad if need else None
                return tuple(result)

            @staticmethod
            def jvp(ctx: Any, *tangents: Any) -> Any:
                raise GradientError(f"{transforms.name}: jvp: Warp has no forward mode; use torch.func.vjp, grad or jacrev")

            @staticmethod
            def vmap(info: Any, in_dims: tuple[Any, ...], *values: Any) -> tuple[Any, Any]:
                if transforms.vmap_rule is not None:
                    return transforms.vmap_rule(info, in_dims, *values)
                return transforms._loop(Forward.apply, info, in_dims, values)

        Forward.__name__ = Forward.__qualname__ = plan.name
        return Forward

    def _make_backward(self) -> Any:
        transforms, plan, runtime = self, self.plan, self.runtime

        class Backward(torch.autograd.Function):
            generate_vmap_rule = False

            @staticmethod
            def forward(*values: Any) -> Any:
                found = iter(runtime.backward_op(*values))
                return tuple(next(found) if need else None for need in values[-1])

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
                return transforms._loop(Backward.apply, info, in_dims, values)

        Backward.__name__ = Backward.__qualname__ = f"{plan.name}_backward"
        return Backward


def _select(value: Any, dim: Any, index: int) -> Any:
    if dim is None or not isinstance(value, torch.Tensor):
        return value
    return value.select(dim, index)
