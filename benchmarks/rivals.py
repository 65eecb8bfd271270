"""The kernels that are timed, and the other ways to call them from PyTorch, each written out by hand.

Annotations are no strings here: Warp's ``jax_kernel`` reads them as they are.
"""

from collections.abc import Callable
from typing import Any

import torch
import warp as wp

from warpops import warp_op


@wp.kernel
def himmelblau(p: wp.array[wp.vec2], f: wp.array[float]):
    i = wp.tid()
    x = p[i][0]
    y = p[i][1]
    a = x * x + y - 11.0
    b = x + y * y - 7.0
    f[i] = a * a + b * b


@wp.kernel
def logistic(x: wp.array[float], y: wp.array[float]):
    """Shape in, shape out: what the long chains are made of."""
    i = wp.tid()
    y[i] = 3.2 * x[i] * (1.0 - x[i])


@wp.kernel
def multiply(a: wp.array[float], b: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = a[i] * b[i]


@wp.kernel
def add_1(x0: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x0[i]


@wp.kernel
def add_4(x0: wp.array[float], x1: wp.array[float], x2: wp.array[float], x3: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x0[i] + x1[i] + x2[i] + x3[i]


@wp.kernel
def add_16(
    x0: wp.array[float],
    x1: wp.array[float],
    x2: wp.array[float],
    x3: wp.array[float],
    x4: wp.array[float],
    x5: wp.array[float],
    x6: wp.array[float],
    x7: wp.array[float],
    x8: wp.array[float],
    x9: wp.array[float],
    x10: wp.array[float],
    x11: wp.array[float],
    x12: wp.array[float],
    x13: wp.array[float],
    x14: wp.array[float],
    x15: wp.array[float],
    y: wp.array[float],
):
    i = wp.tid()
    s = x0[i] + x1[i] + x2[i] + x3[i] + x4[i] + x5[i] + x6[i] + x7[i]
    y[i] = s + x8[i] + x9[i] + x10[i] + x11[i] + x12[i] + x13[i] + x14[i] + x15[i]


wp.config.log_level = wp.LOG_ERROR
wp.init()  # the recipes need it; warpops would see to it at the first call

himmelblau_op = warp_op(himmelblau)
logistic_op = warp_op(logistic)
multiply_op = warp_op(multiply)
add_ops = {1: warp_op(add_1), 4: warp_op(add_4), 16: warp_op(add_16)}


def library_recipe(kernel: wp.Kernel, dtype: Any) -> Callable[[torch.Tensor, int], torch.Tensor]:
    """``torch.library.custom_op`` and ``register_autograd``, as Warp's manual goes about it.

    Tensors are wrapped by ``wp.from_torch`` at each launch, the output is Warp's, the number of elements is an
    argument, and what the backward op needs is left on the context. The kernel maps an array of ``dtype`` to floats.
    """
    name = f"recipe::{kernel.key}"

    @torch.library.custom_op(name, mutates_args=())
    def forward_op(source: torch.Tensor, count: int) -> torch.Tensor:
        array = wp.from_torch(source, dtype=dtype, requires_grad=False)
        result = wp.zeros(count, dtype=wp.float32, device=array.device, requires_grad=False)
        wp.launch(kernel, dim=count, inputs=[array], outputs=[result], device=array.device)
        return wp.to_torch(result)

    @forward_op.register_fake
    def forward_fake(source: torch.Tensor, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.float32, device=source.device)

    @torch.library.custom_op(f"{name}_adjoint", mutates_args=())
    def adjoint_op(source: torch.Tensor, count: int, result: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
        gradient = torch.zeros_like(source)
        array = wp.from_torch(source, dtype=dtype, requires_grad=False)
        wp.launch(
            kernel,
            dim=count,
            inputs=[array],
            outputs=[wp.from_torch(result, requires_grad=False)],
            adj_inputs=[wp.from_torch(gradient, dtype=dtype, requires_grad=False)],
            adj_outputs=[wp.from_torch(cotangent, requires_grad=False)],
            device=array.device,
            adjoint=True,
        )
        return gradient

    @adjoint_op.register_fake
    def adjoint_fake(source: torch.Tensor, count: int, result: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(source)

    def keep(ctx: Any, inputs: tuple[torch.Tensor, int], output: torch.Tensor) -> None:
        ctx.source, ctx.count = inputs
        ctx.result = output

    def differentiate(ctx: Any, cotangent: torch.Tensor) -> tuple[torch.Tensor, None]:
        return adjoint_op(ctx.source, ctx.count, ctx.result, cotangent), None

    forward_op.register_autograd(differentiate, setup_context=keep)
    return forward_op


def function_recipe(kernel: wp.Kernel, dtype: Any) -> Callable[[torch.Tensor, int], torch.Tensor]:
    """The ``torch.autograd.Function`` of Warp's manual. ``torch.compile(fullgraph=True)`` refuses it."""

    def stream_of(tensor: torch.Tensor) -> wp.ScopedStream:
        return wp.ScopedStream(wp.stream_from_torch(tensor.device) if tensor.is_cuda else None)

    class Recipe(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, source: torch.Tensor, count: int) -> torch.Tensor:
            ctx.save_for_backward(source)
            with stream_of(source):
                ctx.array = wp.from_torch(source.detach(), dtype=dtype, requires_grad=False)
                ctx.result = wp.zeros(count, dtype=wp.float32, device=ctx.array.device, requires_grad=False)
                wp.launch(kernel, dim=count, inputs=[ctx.array], outputs=[ctx.result], device=ctx.array.device)
            return wp.to_torch(ctx.result)

        @staticmethod
        def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[torch.Tensor, None]:
            (source,) = ctx.saved_tensors
            gradient = torch.zeros_like(source)
            with stream_of(source):
                wp.launch(
                    kernel,
                    dim=ctx.result.shape[0],
                    inputs=[ctx.array],
                    outputs=[ctx.result],
                    adj_inputs=[wp.from_torch(gradient, dtype=dtype, requires_grad=False)],
                    adj_outputs=[wp.from_torch(cotangent, requires_grad=False)],
                    device=ctx.array.device,
                    adjoint=True,
                )
            return gradient, None

    return Recipe.apply


class Launches:
    """Warp alone, with every array made beforehand: what is left when PyTorch is taken away."""

    def __init__(self, kernel: wp.Kernel, dtype: Any, source: torch.Tensor):
        self.kernel, self.device = kernel, wp.device_from_torch(source.device)
        self.count = source.shape[0]
        self.array = wp.from_torch(source.detach(), dtype=dtype, requires_grad=False)
        self.result = wp.zeros(self.count, dtype=float, device=self.device)
        self.gradient = wp.zeros_like(self.array)
        self.cotangent = wp.full(self.count, 1.0, dtype=float, device=self.device)
        self.stream = None
        if source.is_cuda:
            self.stream = wp.stream_from_torch(torch.cuda.current_stream(source.device))
        self.recorded = self._launch(record_cmd=True)
        self.recorded_adjoint = self._launch_adjoint(record_cmd=True)

    def _launch(self, **options: Any) -> Any:
        return wp.launch(
            self.kernel,
            dim=self.count,
            inputs=[self.array],
            outputs=[self.result],
            device=self.device,
            stream=self.stream,
            **options,
        )

    def _launch_adjoint(self, **options: Any) -> Any:
        return wp.launch(
            self.kernel,
            dim=self.count,
            inputs=[self.array],
            outputs=[self.result],
            adj_inputs=[self.gradient],
            adj_outputs=[self.cotangent],
            adjoint=True,
            device=self.device,
            stream=self.stream,
            **options,
        )

    def forward(self) -> None:
        self._launch()

    def forward_backward(self) -> None:
        self._launch()
        self.gradient.zero_()
        self._launch_adjoint()

    def recorded_forward(self) -> None:
        self.recorded.launch(stream=self.stream)

    def recorded_forward_backward(self) -> None:
        self.recorded.launch(stream=self.stream)
        self.gradient.zero_()
        self.recorded_adjoint.launch(stream=self.stream)
