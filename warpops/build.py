"""The way through the house: inspect, analyse, declare, plan, make the op."""

from __future__ import annotations

import ast
import functools
import warnings
from typing import Any

import warp as wp

from .backward import declared_backward
from .calls.generic import align, check_followed, resolve
from .calls.instances import Instance, make_instance
from .effects import Effects, analyse
from .errors import GradientWarning, SignatureError
from .kernel.signature import inspect_kernel
from .launch.reverse import Reverse
from .names import default_name
from .op import WarpOp
from .plan.declaration import Declaration, declare
from .plan.model import OpPlan
from .plan.planner import check_nullable, plan_op
from .private import warp_code, warp_source, warp_types


def as_kernel(value: Any) -> Any:
    """A kernel of a kernel, or of an annotated function."""
    if warp_types.is_kernel(value):
        return value
    if isinstance(value, WarpOp):
        raise SignatureError(f"warp_op: {value.name} is an op already")
    if callable(value) and hasattr(value, "__code__"):
        count = value.__code__.co_argcount
        bare = [name for name in value.__code__.co_varnames[:count] if name not in value.__annotations__]
        if bare or value.__name__ == "<lambda>":
            what = "a lambda" if value.__name__ == "<lambda>" else f"arguments without a type: {', '.join(bare)}"
            raise SignatureError(f"warp_op takes a kernel (@wp.kernel) or an annotated Python function, and got {what}")
        kernel = wp.kernel(value)
        above = [ast.unparse(decorator).split("(")[0] for decorator in warp_source.tree_of(kernel).decorator_list]
        if any(name.split(".")[-1] == "kernel" for name in above):
            warp_code.disown(kernel)
            raise SignatureError(
                f"warp_op: {value.__name__} has @wp.kernel above @warp_op; write @warp_op first, and @wp.kernel under it"
            )
        return kernel
    raise SignatureError(
        f"warp_op takes a kernel (@wp.kernel) or an annotated Python function, and got {type(value).__name__}"
    )


def build(value: Any, signature: str | None, options: dict[str, Any]) -> WarpOp:
    """The way through the house: inspect, analyse, declare, plan, generate, register."""
    kernel = as_kernel(value)
    try:
        declaration = declare(kernel.func.__name__, signature, **options)
        return build_declared(kernel, declaration)
    except Exception:
        if kernel is not value:  # made here, and nobody's: Warp would build it with the other kernels of its module
            warp_code.disown(kernel)
        raise


def build_declared(
    kernel: Any, declaration: Declaration, hidden: str | None = None, title: str | None = None, stacklevel: int = 4
) -> WarpOp:
    """An op of a kernel and a parsed declaration; a hidden one has a name of its own that no list shows, and ``title`` in
    messages."""
    found = inspect_kernel(kernel)
    effects = analyse(kernel)
    plan = plan_op(found, declaration, effects)
    if hidden is None:  # who writes a backward names nothing optional: a call says what is wrong
        check_nullable(plan)
    if found.generic:
        check_followed(plan)
    _warn(plan, stacklevel)
    backward = None
    if declaration.backward is not None and plan.gradient == "custom":
        backward = declared_backward(plan, declaration.backward, build_backward)
    make = functools.partial(make_launches, plan, declaration, effects)
    return WarpOp(plan, make, backward, hidden, title)


def _warn(plan: OpPlan, stacklevel: int) -> None:
    """Say once where the gradient may be wrong."""
    for hazard in plan.hazards[:1]:
        more = f" (and {len(plan.hazards) - 1} more; see explain())" if len(plan.hazards) > 1 else ""
        warnings.warn(
            f"{plan.name}: Warp's adjoint may be wrong at {hazard.site}: {hazard.advised}{more}",
            GradientWarning,
            stacklevel=stacklevel + 1,
        )


def build_backward(kernel: Any, declaration: Declaration, forward: OpPlan) -> WarpOp:
    """The op of a kernel given with ``backward=``: registered, not listed."""
    title = f"{forward.declaration.name or default_name(forward.kernel)}: backward {kernel.func.__name__}"
    hidden = f"warpops::{forward.name}_backward_{kernel.key.split('.')[-1]}"
    return build_declared(kernel, declaration, hidden, title)


def make_launches(
    plan: OpPlan, declaration: Declaration, effects: Effects, name: str, values: dict[str, Any]
) -> Instance:
    """The launches of a kernel; of a generic one, for the types of one call."""
    if not plan.kernel.generic:
        return make_instance(name, plan)
    concrete = plan_op(inspect_kernel(resolve(name, plan, values)), declaration, effects)
    if not plan.hazards:  # what is right for the types in general isn't for these
        _warn(concrete, 2)
    instance = make_instance(name, concrete)
    if plan.adjoint is not None and concrete.adjoint is None and concrete.gradient == "adjoint":
        why = "; ".join(str(hazard.message) for hazard in concrete.hazards[:1])
        instance.launcher.reverse = Reverse(name, f"{name} has no gradient for these types: {why}")
    return align(instance, plan)
