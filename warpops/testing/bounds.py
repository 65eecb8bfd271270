"""Launches whose indices are compared."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..calls.remember import forget_all
from ..launch import switch


@contextlib.contextmanager
def bounds_checked(*, every: bool = False) -> Iterator[None]:
    """Compare indices with sizes at each launch, in the whole process, as long as the context is open.

    Each launch runs a rewritten kernel: in eager and compiled code, under vmap, in programs, on any device. It compares
    indices in loads, stores, atomics and views, of arrays, local vectors and matrices, in functions too; right is
    ``-size <= index < size``, as Warp wraps. The first wrong one ends its thread. Nothing is read or written outside of an
    array; what outputs and arrays in ``mutates`` hold is unspecified then. A backward runs the checked forward first. What
    can't be rewritten (native functions, tiles on a GPU, a launch that is captured into a CUDA graph) runs unchecked, with
    one ``RuntimeWarning``.

    It is for finding mistakes: each kernel is built once more, and a launch on a GPU is waited for. A CUDA graph that was
    captured before runs as it was captured. Contexts may be nested.

    Args:
        every: compare all indices, those as well that the analysis has proven to be inside.

    Raises:
        ArgumentError: from the call whose launch had a wrong index. It names the array, the index, the size, the thread and
            the line of the kernel.

    Example:
        >>> import torch, warp as wp, warpops
        >>> @warpops.warp_op("x[m], index[n] -> y[n]", dim="n")
        ... @wp.kernel
        ... def gather(x: wp.array[float], index: wp.array[int], y: wp.array[float]):
        ...     i = wp.tid()
        ...     y[i] = x[index[i]]
        >>> with warpops.testing.bounds_checked():
        ...     gather(torch.rand(3), torch.tensor([0, 1, 5], dtype=torch.int32))
        Traceback (most recent call last):
        ...
        warpops.errors.ArgumentError: ...gather: 'x' is indexed at 5 on axis 0, and has size 3, by thread 2 at ...
    """
    switch.scopes.append(every)
    try:
        forget_all()
        yield
    finally:
        switch.scopes.remove(every)
