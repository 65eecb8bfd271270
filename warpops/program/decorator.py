"""``warp_program``: one op of a Python function that launches several kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from typing_extensions import Unpack

from ..backward import declared_backward
from ..build import build_backward
from ..calls.generic import align, resolve_types
from ..calls.instances import Instance, make_instance
from ..errors import SignatureError
from ..op import WarpOp
from ..plan.declaration import declare
from ..plan.options import ProgramOptions, check_options
from .kernel import as_program


def warp_program(
    signature: str | None = None, /, **options: Unpack[ProgramOptions]
) -> Callable[[Callable[..., None]], WarpOp]:
    """Make a function that launches several kernels one PyTorch operator.

    The function's arguments are annotated as a kernel's. It gets a ``wp.array`` for each tensor, and numbers, and
    launches kernels with ``wp.launch``, with loops and branches over the numbers. It may also call ``wp.copy``,
    ``array.fill_``, ``array.zero_``, ``wp.utils.array_scan`` and the sorts of ``wp.utils``. It returns nothing: results
    are what it writes into the arrays on the right of the signature.

    The gradient runs the function again on private copies, then the adjoint of each launch, last first. So the function
    must do the same then: launch the same over arrays of the same sizes, with the same numbers. That is compared, and a
    global that has another value at the backward, or a random number, is a ``GradientError``; pass such as an argument.
    What the function's own host data and global arrays hold isn't compared. Copies, fills and scans have gradients; sorts
    and sums of ``wp.utils`` have none. Second derivatives and forward mode run it on values and tangents, where each kernel
    that they pass through has a tangent.

    Its Python runs once per sizes, numbers and flags; then what it launched and called is launched again, and its side
    effects aren't repeated. That is so where all that it calls and reads is sure to stay: launches, copies, fills, scans,
    arrays and objects that it makes, Python's own functions of numbers and containers, functions that are such
    themselves, and globals and closure cells that are kernels or plain constants, which are compared at each call. Else it
    runs at every call, and :meth:`WarpOp.explain` names the line.

    Everything goes to the tensors' device and to PyTorch's current stream. Give arrays that the function makes for itself
    that device (``wp.zeros(n, device=x.device)``); their memory is Warp's where the function runs. Better is ``scratch``,
    which is PyTorch's.

    Args:
        signature: ``"inputs -> outputs"``, as in :func:`warpops.warp_op`. An array on both sides is in-out. Each output
            needs its sizes, in brackets or in ``shapes``: the function isn't read.
        name: ``"namespace::op"``; by default the root package of the function's module and its name.
        shapes: output shapes by name, in place of brackets.
        init: what outputs hold before the function runs: ``"auto"`` (zeros), ``"zeros"``, ``"empty"``, a number, or a
            dict by output.
        mutates: arrays that are changed in place.
        scratch: arrays made for the run and not returned, as in ``"tmp[n, 3]"``. They start as zeros.
        sizes: extra int arguments of the op, for use in shapes.
        optional: arrays that may be None.
        nondiff: inputs that get no gradient, and results that have none. An in-out array is both.
        tensor_scalars: numbers that arrive as 0-d CPU tensors, so that a change costs no recompilation.
        backward: a kernel or a ``WarpOp`` that computes the gradients in place of the launches' adjoints.

    Returns:
        A decorator that makes a :class:`WarpOp` of the function.

    Raises:
        SignatureError: the declaration can't be read or says too little; at a call, where the function writes an input.
        GradientError: in backward, where the gradient passes through a call that has none, or the function does something
            else than it did in the forward.

    Example:
        >>> import torch, warp as wp
        >>> from warpops import warp_program
        >>> @wp.kernel
        ... def blur(x: wp.array[float], y: wp.array[float]):
        ...     i = wp.tid()
        ...     n = x.shape[0]
        ...     y[i] = 0.5 * x[i] + 0.25 * (x[(i + 1) % n] + x[(i + n - 1) % n])
        >>> @warp_program("x[n] -> y[n]", scratch="tmp[n]")
        ... def blur_twice(x: wp.array[float], y: wp.array[float], tmp: wp.array[float]):
        ...     wp.launch(blur, dim=x.shape, inputs=[x], outputs=[tmp])
        ...     wp.launch(blur, dim=x.shape, inputs=[tmp], outputs=[y])
        >>> x = torch.tensor([16.0, 0.0, 0.0, 0.0], requires_grad=True)
        >>> blur_twice(x)
        tensor([6., 4., 2., 4.], grad_fn=<blur_twiceBackward>)
    """
    if signature is not None and not isinstance(signature, str):
        raise SignatureError(
            'warp_program: give the signature first, as in @warp_program("x[n] -> y[n]"): the function isn\'t read'
        )
    check_options("warp_program", options, ProgramOptions)
    return lambda function: build(function, signature, options)


def build(function: Any, signature: str | None, options: ProgramOptions) -> WarpOp:
    """Inspect, declare, plan, generate, register: as for a kernel, with the declaration believed."""
    program = as_program(function)
    declaration = declare(program.key, signature, **options)
    if declaration.right is None:
        declaration = dataclasses.replace(declaration, right=())
    plan = program.plan(declaration)

    def make(name: str, values: dict[str, Any]) -> Instance:
        if not plan.kernel.generic:
            return make_instance(name, plan)
        concrete = program.add_overload(resolve_types(name, plan, values)).plan(declaration)
        return align(make_instance(name, concrete), plan)

    backward = None
    if declaration.backward is not None and plan.gradient == "custom":
        backward = declared_backward(plan, declaration.backward, build_backward)
    return WarpOp(plan, make, backward)
