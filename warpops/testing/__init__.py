"""Checks for your own ops, to be called from your own tests."""

from __future__ import annotations

from typing import Any

from ..op import WarpOp
from .bounds import bounds_checked

__all__ = ["CheckError", "bounds_checked", "check"]


class CheckError(AssertionError):
    """An op fails a check. The text is a report of everything that was found wrong."""


def check(op: WarpOp, /, *args: Any, **kwargs: Any) -> None:
    """Check an op on one call: the kernel, what was declared of it, and how it fits into PyTorch.

    What is checked:

    - ``torch.library.opcheck``;
    - the gradients of all inputs that can have one against finite differences, at the accuracy of their dtype, with the
      line of the kernel that is suspected, where one is;
    - compiled code against eager code, with ``aot_eager`` and with Inductor, and other sizes without recompiling;
    - the same call and the same backward again;
    - cotangents that are expanded, or that others use, and inputs that are not contiguous;
    - elements that the kernel doesn't write, or reads before it does, or that several threads store to;
    - inputs that change.

    All of it runs within ``bounds_checked(every=True)``: an index outside of an array is found, and touches nothing.

    Small tensors are best, since every input is perturbed hundreds of times. Generic values (random, none of them 0, no
    two the same) show most. A call takes some seconds, for compiling.

    Args:
        op: the op.
        args: its arguments, positional, as in ``op(*args, **kwargs)``. Nothing is changed, arrays in ``mutates``
            included. Whether tensors require grad makes no difference.
        kwargs: its arguments, by keyword.

    Raises:
        CheckError: something is wrong, be it an index outside of an array, or a launch of a program that is too wide.
        ArgumentError: the call doesn't fit the op.

    Example:
        >>> import torch, warp as wp, warpops, warpops.testing
        >>> @warpops.warp_op
        ... @wp.kernel
        ... def cube(x: wp.array[float], y: wp.array[float]):
        ...     i = wp.tid()
        ...     y[i] = x[i] * x[i] * x[i]
        >>> warpops.testing.check(cube, torch.rand(5))
    """
    from .run import run_checks

    with bounds_checked(every=True):
        report = run_checks(op, args, kwargs)
    if report.findings:
        raise CheckError(report.text())
