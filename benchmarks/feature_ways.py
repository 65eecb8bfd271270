"""The ways to join a kernel to a framework. Each makes a function of tensors out of a case."""

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import torch
import warp as wp

from feature_cases import ROWS, Case, Op
from warpops import warp_op


def by_warpops(case: Case) -> Op:
    return warp_op(case.kernel, case.signature) if case.signature else warp_op(case.kernel)


def wrapped(case: Case, tensor: torch.Tensor) -> wp.array:
    """As the manual wraps: with the dtype of vectors, which have to be contiguous, and never with a gradient."""
    if case.is_vector:
        return wp.from_torch(tensor, dtype=case.dtype, requires_grad=False)
    return wp.from_torch(tensor, requires_grad=False)


def forward_launch(case: Case, inputs: tuple[torch.Tensor, ...], count: int) -> torch.Tensor:
    if case.in_out:
        result = inputs[0].clone()
        wp.launch(case.kernel, dim=count, inputs=[wrapped(case, t) for t in (result, *inputs[1:])])
        return result
    arrays = [wrapped(case, t.contiguous() if case.is_vector else t) for t in inputs]
    output = wp.zeros(arrays[0].shape, dtype=case.dtype, device=arrays[0].device, requires_grad=False)
    wp.launch(case.kernel, dim=count, inputs=arrays, outputs=[output], device=arrays[0].device)
    return wp.to_torch(output)


def adjoint_launch(
    case: Case, inputs: tuple[torch.Tensor, ...], count: int, result: torch.Tensor, cotangent: torch.Tensor
) -> list[torch.Tensor]:
    if case.is_vector:
        inputs, cotangent = tuple(t.contiguous() for t in inputs), cotangent.contiguous()
    gradients = [torch.zeros_like(t) for t in inputs]
    outputs, adj_outputs = [wrapped(case, result)], [wrapped(case, cotangent)]
    if case.in_out:  # one array, so one adjoint: the cotangent goes in, the gradient comes out
        gradients[0] = cotangent.clone()
        outputs, adj_outputs = [], []
    wp.launch(
        case.kernel,
        dim=count,
        inputs=[wrapped(case, t) for t in inputs],
        outputs=outputs,
        adj_inputs=[wrapped(case, t) for t in gradients],
        adj_outputs=adj_outputs,
        adjoint=True,
    )
    return gradients


def by_custom_op(case: Case) -> Op:
    name, arguments = f"features::{case.kernel.key}", ", ".join(f"Tensor {name}" for name in case.inputs)
    results = ", ".join("Tensor" for _ in case.inputs)

    def forward(*given: Any) -> torch.Tensor:
        return forward_launch(case, given[:-1], given[-1])

    def adjoint(result: torch.Tensor, cotangent: torch.Tensor, *given: Any) -> Any:
        gradients = adjoint_launch(case, given[:-1], given[-1], result, cotangent)
        return gradients[0] if len(gradients) == 1 else tuple(gradients)

    forward_op = torch.library.custom_op(
        name, forward, mutates_args=(), schema=f"({arguments}, SymInt count) -> Tensor"
    )
    adjoint_op = torch.library.custom_op(
        f"{name}_adjoint",
        adjoint,
        mutates_args=(),
        schema=f"(Tensor result, Tensor cotangent, {arguments}, SymInt count) -> ({results})",
    )
    forward_op.register_fake(lambda *given: torch.empty(given[0].shape, device=given[0].device))

    @adjoint_op.register_fake
    def _(result: torch.Tensor, cotangent: torch.Tensor, *given: Any) -> Any:
        gradients = tuple(torch.empty_like(t) for t in given[:-1])
        return gradients[0] if len(gradients) == 1 else gradients

    def keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.inputs, ctx.result = inputs, output  # as the manual's custom operator does

    def differentiate(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
        gradients = adjoint_op(ctx.result, cotangent, *ctx.inputs)
        return (*gradients, None) if isinstance(gradients, (tuple, list)) else (gradients, None)

    forward_op.register_autograd(differentiate, setup_context=keep)
    return lambda *given: forward_op(*given, given[0].shape[0])


def by_function(case: Case) -> Op:
    class Recipe(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, count: int, *inputs: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(*inputs)
            ctx.count = count
            ctx.result = forward_launch(case, tuple(t.detach() for t in inputs), count)
            return ctx.result.detach()  # what stays on the context must not be the result itself: a cycle

        @staticmethod
        def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
            return None, *adjoint_launch(case, ctx.saved_tensors, ctx.count, ctx.result, cotangent)

    return lambda *given: Recipe.apply(given[0].shape[0], *given)


def by_tape(case: Case) -> Op:
    class Recipe(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(*inputs)
            if case.is_vector:
                inputs = tuple(t.contiguous() for t in inputs)
            result = torch.zeros_like(inputs[0])
            tensors = [*inputs, result]
            if case.in_out:
                result = inputs[0].clone()
                tensors = [result, *inputs[1:]]
            ctx.buffers = [torch.zeros_like(t) for t in tensors]
            arrays = [
                wp.from_torch(t.detach(), dtype=case.dtype, requires_grad=True, grad=g)
                for t, g in zip(tensors, ctx.buffers, strict=True)
            ]
            ctx.output = arrays[0] if case.in_out else arrays[-1]
            with wp.Tape() as ctx.tape:
                wp.launch(case.kernel, dim=inputs[0].shape[0], inputs=arrays, device=arrays[0].device)
            ctx.arrays = arrays
            return result

        @staticmethod
        def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[torch.Tensor, ...]:
            inputs = ctx.saved_tensors
            if case.is_vector:
                cotangent = cotangent.contiguous()
            for buffer in ctx.buffers:
                buffer.zero_()
            ctx.tape.backward(grads={ctx.output: wp.from_torch(cotangent, dtype=case.dtype, requires_grad=False)})
            gradients = tuple(g.clone() for g in ctx.buffers[: len(inputs)])
            ctx.tape.zero()
            return gradients

    return Recipe.apply


def by_nvalchemi(case: Case) -> Op:
    from nvalchemiops.torch.autograd import (
        OutputSpec,
        WarpAutogradContextManager,
        attach_for_backward,
        needs_grad,
        warp_custom_op,
        warp_from_torch,
    )

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        recorded = needs_grad(*inputs)
        tensors = [t.contiguous() if case.is_vector else t for t in inputs]
        result = torch.zeros_like(tensors[0])
        tensors.append(result)
        if case.in_out:
            result = inputs[0].clone()
            tensors = [result, *inputs[1:]]
        arrays = [warp_from_torch(t, case.dtype, requires_grad=recorded) for t in tensors]
        with WarpAutogradContextManager(recorded) as tape:
            wp.launch(case.kernel, dim=inputs[0].shape[0], inputs=arrays)
        if recorded:
            output = arrays[0] if case.in_out else arrays[-1]
            attach_for_backward(result, tape=tape, result=output, **dict(zip(case.inputs, arrays, strict=False)))
        return result

    def one(points: torch.Tensor) -> torch.Tensor:
        return run(points)

    def two(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return run(left, right)

    def decayed(y: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
        return run(y, rate)

    function = {"points": one, "left": two, "y": decayed}[case.inputs[0]]
    return warp_custom_op(
        name=f"features_nvalchemi::{case.kernel.key}",
        outputs=[OutputSpec("result", case.dtype, lambda *given: tuple(given[0].shape))],
        grad_arrays=["result", *case.inputs],
    )(function)


def by_jax(case: Case, count: int | None = None) -> Op:
    names = ["y"] if case.in_out else None
    launch = count if case is ROWS else None
    function = wp.jax_kernel(case.kernel, in_out_argnames=names, launch_dims=launch, enable_backward=True)
    return lambda *given: function(*given)[0]


MAKERS: dict[str, Callable[[Case], Op]] = {
    "warpops": by_warpops,
    "custom_op": by_custom_op,
    "Function": by_function,
    "Function+Tape": by_tape,
    "jax_kernel": by_jax,
    "nvalchemi": by_nvalchemi,
}
PACKAGES = {"jax_kernel": "jax", "nvalchemi": "nvalchemiops"}
