"""``warp_op``: from a kernel and a declaration to a ``WarpOp``."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import warp as wp

from . import _warp
from .backward import declared_backward
from .declaration import Declaration, declare
from .effects import Effects, analyse
from .errors import GradientWarning, SignatureError
from .generic import align, check_followed, resolve
from .instance import Instance, make_instance
from .kernel import inspect_kernel
from .op import WarpOp
from .plan import OpPlan, plan_op

Dim = str | int | tuple[int | str, ...] | Callable[..., Any]


@overload
def warp_op(kernel: wp.Kernel | Callable[..., Any], /) -> WarpOp: ...


@overload
def warp_op(
    kernel: wp.Kernel | Callable[..., Any],
    signature: str | None = None,
    /,
    *,
    name: str | None = None,
    dim: Dim | None = None,
    shapes: Mapping[str, Dim] | None = None,
    init: str | float | Mapping[str, str | float] | None = None,
    mutates: str | Iterable[str] | None = None,
    scratch: str | Iterable[str] | None = None,
    sizes: str | Iterable[str] | None = None,
    optional: str | Iterable[str] | None = None,
    nondiff: str | Iterable[str] | None = None,
    tensor_scalars: str | Iterable[str] | None = None,
    backward: wp.Kernel | WarpOp | Callable[..., Any] | None = None,
    block_dim: int | None = None,
    tiled: bool = False,
) -> WarpOp: ...


@overload
def warp_op(
    signature: str | None = None,
    /,
    *,
    name: str | None = None,
    dim: Dim | None = None,
    shapes: Mapping[str, Dim] | None = None,
    init: str | float | Mapping[str, str | float] | None = None,
    mutates: str | Iterable[str] | None = None,
    scratch: str | Iterable[str] | None = None,
    sizes: str | Iterable[str] | None = None,
    optional: str | Iterable[str] | None = None,
    nondiff: str | Iterable[str] | None = None,
    tensor_scalars: str | Iterable[str] | None = None,
    backward: wp.Kernel | WarpOp | Callable[..., Any] | None = None,
    block_dim: int | None = None,
    tiled: bool = False,
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
        nondiff: inputs that get no gradient.
        tensor_scalars: numbers that arrive as 0-d CPU tensors, so that a change costs no recompilation.
        backward: a kernel or a ``WarpOp`` that computes the gradients in place of the adjoint.
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
    if args and not isinstance(args[0], str) and args[0] is not None:
        kernel, rest = args[0], args[1:]
        if len(rest) > 1:
            raise TypeError(f"warp_op takes a kernel and a signature, and got {len(args)} positional arguments")
        return build(kernel, rest[0] if rest else options.pop("signature", None), options)
    if len(args) > 1:
        raise TypeError(f"warp_op takes one signature, and got {len(args)} positional arguments")
    signature = args[0] if args else options.pop("signature", None)
    return lambda kernel: build(kernel, signature, options)


def as_kernel(value: Any) -> Any:
    """A kernel of a kernel, or of an annotated function."""
    if _warp.is_kernel(value):
        return value
    if isinstance(value, WarpOp):
        raise SignatureError(f"warp_op: {value.name} is an op already")
    if callable(value) and hasattr(value, "__code__"):
        count = value.__code__.co_argcount
        bare = [name for name in value.__code__.co_varnames[:count] if name not in value.__annotations__]
        if bare or value.__name__ == "<lambda>":
            what = "a lambda" if value.__name__ == "<lambda>" else f"arguments without a type: {', '.join(bare)}"
            raise SignatureError(f"warp_op takes a kernel (@wp.kernel) or an annotated Python function, and got {what}")
        return wp.kernel(value)
    raise SignatureError(
        f"warp_op takes a kernel (@wp.kernel) or an annotated Python function, and got {type(value).__name__}"
    )


def build(value: Any, signature: str | None, options: dict[str, Any]) -> WarpOp:
    """The way through the house: inspect, analyse, declare, plan, generate, register."""
    kernel = as_kernel(value)
    try:
        declaration = declare(kernel.key, signature, **options)
        return build_declared(kernel, declaration)
    except Exception as error:
        if kernel is not value:  # made here, and nobody's: Warp would build it with the other kernels of its module
            _warp.disown(kernel)
        if isinstance(error, TypeError):
            raise TypeError(str(error).replace("declare()", "warp_op()")) from None
        raise


def build_declared(kernel: Any, declaration: Declaration, hidden: str | None = None, stacklevel: int = 4) -> WarpOp:
    """An op of a kernel and a parsed declaration; a hidden one has a name of its own that no list shows."""
    effects = analyse(kernel)
    found = inspect_kernel(kernel)
    plan = plan_op(found, declaration, effects)
    if found.generic:
        check_followed(plan)
    for hazard in plan.hazards[:1]:
        more = f" (and {len(plan.hazards) - 1} more; see explain())" if len(plan.hazards) > 1 else ""
        warnings.warn(
            f"{plan.name}: Warp's adjoint may be wrong at {hazard.site}: {hazard.message}{more}",
            GradientWarning,
            stacklevel=stacklevel,
        )
    backward = None
    if declaration.backward is not None and plan.gradient == "custom":
        backward = declared_backward(plan, declaration.backward, build_backward)

    if found.generic:
        return WarpOp(plan, functools.partial(make_concrete, plan, declaration, effects), None, backward, hidden)
    return WarpOp(plan, None, functools.partial(make_instance, plan=plan), backward, hidden)


def build_backward(kernel: Any, declaration: Declaration, forward: str) -> WarpOp:
    """The op of a kernel given with ``backward=``: registered, not listed."""
    return build_declared(kernel, declaration, hidden=f"warpops::{forward}_backward_{kernel.key.split('.')[-1]}")


def make_concrete(
    plan: OpPlan, declaration: Declaration, effects: Effects, name: str, values: dict[str, Any]
) -> Instance:
    """The launches of a generic kernel for the types of one call."""
    concrete = plan_op(inspect_kernel(resolve(name, plan, values)), declaration, effects)
    return align(make_instance(name, concrete), plan)
