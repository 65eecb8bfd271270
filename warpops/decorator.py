"""``warp_op``: which form it was called in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import warp as wp
from typing_extensions import Unpack

from .build import build
from .op import WarpOp
from .plan.options import Options, check_options


@overload
def warp_op(
    kernel: wp.Kernel | Callable[..., Any], signature: str | None = None, /, **options: Unpack[Options]
) -> WarpOp: ...


@overload
def warp_op(
    signature: str | None = None, /, **options: Unpack[Options]
) -> Callable[[wp.Kernel | Callable[..., Any]], WarpOp]: ...


def warp_op(*args: Any, **options: Any) -> Any:
    """Make a Warp kernel a PyTorch operator.

    Use it as a decorator, ``@warp_op`` or ``@warp_op("x[n] -> y[n]", ...)``, above ``@wp.kernel`` (or above a plain
    annotated function), or call it: ``warp_op(kernel, "x[n] -> y[n]")``. Nothing is compiled here.

    Args:
        kernel: a ``wp.Kernel``, or an annotated Python function, which is made one.
        signature: ``"inputs -> outputs"``, each a list of ``name`` or ``name[sizes]``. Sizes are those of the Warp array:
            a vec3 array of torch shape ``(n, 3)`` is ``x[n]``. An array on both sides is in-out: a new tensor is returned.
        name: ``"namespace::op"``; by default the root package of the kernel's module and the function's name.
        dim: the launch size: ``"n, k"``, an int, a tuple, or a callable of the op's arguments.
        shapes: output shapes by name, in place of brackets.
        init: what outputs hold before the launch: ``"auto"``, ``"zeros"``, ``"empty"``, a number, or a dict by output.
        mutates: arrays that are changed in place.
        scratch: arrays made for the launch and not returned, as in ``"tmp[n, 3]"``.
        sizes: extra int arguments of the op, for use in shapes and ``dim``.
        optional: arrays that may be None.
        nondiff: inputs that get no gradient, and results that have none. An in-out array is both.
        tensor_scalars: numbers that arrive as 0-d CPU tensors, so that a change costs no recompilation.
        backward: a kernel or a ``WarpOp`` that computes the gradients in place of the adjoint; its arguments are named after
            the forward's, or a dict says what they stand for: ``(kernel, {"its_argument": "grad_y", "flag": 1})``.
        block_dim: threads per block, as in ``wp.launch``.
        tiled: launch as ``wp.launch_tiled`` does; ``dim`` leaves the lane axis out.

    Returns:
        A :class:`WarpOp`, or a decorator where no kernel is given.

    Raises:
        SignatureError: the declaration can't be read, says too little, or contradicts the kernel.

    Example:
        >>> import torch, warp as wp
        >>> from warpops import warp_op
        >>> @warp_op("x[n] -> y[n]", dim="n")
        ... @wp.kernel
        ... def double(x: wp.array[float], y: wp.array[float]):
        ...     i = wp.tid()
        ...     y[i] = 2.0 * x[i]
        >>> double(torch.tensor([1.0, 2.0]))
        tensor([2., 4.])
    """
    given = bool(args) and not isinstance(args[0], str) and args[0] is not None
    rest = args[1:] if given else args
    if len(rest) > 1:
        raise TypeError(f"warp_op takes a kernel and a signature, and got {len(args)} positional arguments")
    signature = rest[0] if rest else options.pop("signature", None)
    check_options("warp_op", options, Options)
    if given:
        return build(args[0], signature, options)
    return lambda kernel: build(kernel, signature, options)
