"""``WarpOp``: what a user holds."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import warp as wp

from .arguments.kinds import kind_of
from .calls.instances import Instance, Instances
from .calls.own_backward import registered
from .calls.packaged import packaged_op
from .calls.ways import OwnBackward, Ways
from .errors import GradientError, SignatureError, did_you_mean
from .explain import explain
from .names import choose_name, enter, hidden_name, live_ops, lock
from .plan.model import OpPlan
from .private import torch_modes
from .register.custom import custom_op_of
from .register.registration import Registration
from .transforms.carried import carrier
from .transforms.exported import mapped_op

if TYPE_CHECKING:
    from .transforms.tangent_op import TangentOp


def _transforms(ways: Ways) -> Any:
    """An op's functions for torch.func, which are imported when they are met."""
    from .transforms.vmap import Transforms

    return Transforms(ways)


class WarpOp:
    """A Warp kernel as a PyTorch operator. Made by :func:`warpops.warp_op`.

    Calling it checks every argument, launches the kernel on the tensors' device and PyTorch's current stream, and
    returns fresh tensors (one, or a tuple). Gradients come from the kernel's own adjoint.
    """

    def __init__(
        self,
        plan: OpPlan,
        make: Callable[[str, dict[str, Any]], Instance],
        backward: OwnBackward | None = None,
        hidden: str | None = None,
        title: str | None = None,
    ) -> None:
        """``hidden``: the name of one that was made for another op, which no list shows, and ``title`` what messages call it."""
        kernel = plan.kernel
        with lock:
            if hidden is not None:
                self._named = hidden_name(hidden)
            else:
                self._named = choose_name(plan.declaration.name, kernel)
            self.name = self._named.name
            self._title = title
            self._instances = Instances(title or self.name, plan, make)
            self._register(plan, backward, None)
            enter(self, self._named)
        self.__name__, self.__qualname__, self.__module__ = plan.name, kernel.qualname, kernel.module
        self.__doc__ = kernel.doc
        self.__wrapped__ = kernel.kernel.func
        self.__signature__ = self._make_signature()

    def _register(self, plan: OpPlan, backward: Any, vmap: Any) -> None:
        """Register the op with PyTorch, anew where its backward or its vmap rule has changed."""
        for operator in (mapped_op, packaged_op):  # for programs that are loaded later
            operator.overload()
        carrier.overload()  # for graphs that are read from the disk
        named = self._named
        made = Registration(
            *(self.name, plan, self._instances, _transforms, backward, vmap),
            order=named.order,
            numbered=named.numbered,
            title=self._title,
        )
        self._plan, self._backward, self._vmap = plan, backward, vmap
        self._registration, self._call = made, made.call
        self._tangent: TangentOp | None = None

    def register_backward(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Give the op a backward of your own, in place of the kernel's adjoint.

        Args:
            fn: ``fn(ctx, *grads)`` gets one cotangent per result (zeros where none came) and returns one gradient per
                argument of the op, None where there is none. ``ctx.inputs`` and ``ctx.outputs`` are dicts by name.
                Built of differentiable operations it gives double backward.

        Returns:
            ``fn``, so that it can be used as a decorator.

        Raises:
            SignatureError: ``fn`` can't be called.
            GradientError: the op has no float input, or no float output.

        Example:
            >>> import torch, warp as wp
            >>> from warpops import warp_op
            >>> @warp_op("x[n] -> y[n]", dim="n")
            ... @wp.kernel
            ... def cube(x: wp.array[float], y: wp.array[float]):
            ...     i = wp.tid()
            ...     y[i] = x[i] * x[i] * x[i]
            >>> @cube.register_backward
            ... def cube_backward(ctx, grad_y):
            ...     return 3.0 * ctx.inputs["x"] ** 2 * grad_y
            >>> x = torch.tensor([2.0], requires_grad=True)
            >>> torch.autograd.grad(cube(x).sum(), x)
            (tensor([12.]),)
        """
        if not callable(fn):
            raise SignatureError(f"{self.name}: register_backward takes a function fn(ctx, *grads), and got {fn!r}")
        plan = self._plan
        if not plan.gradients or not any(s.differentiable for s in plan.result_slots):
            raise GradientError(f"{self.name}: register_backward: {plan.gradient_why}")
        with lock:
            plan = dataclasses.replace(
                plan, gradient="custom", gradient_why="registered with register_backward", hazards=()
            )
            self._register(plan, registered(fn), self._vmap)
        return fn

    def register_vmap(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Give the op a vmap rule of your own, in place of the one launch (or the loop) that warpops makes.

        Args:
            fn: ``fn(info, in_dims, *args)`` as for ``torch.library.register_vmap``: ``info.batch_size`` and
                ``info.randomness``, the batch axis of each argument (None: not batched), and the schema's arguments by
                position. It returns ``(outputs, out_dims)``.

        Returns:
            ``fn``, so that it can be used as a decorator.

        Example:
            >>> import torch, warp as wp
            >>> from warpops import warp_op
            >>> @warp_op("x[n] -> y[n]", dim="n")
            ... @wp.kernel
            ... def twice(x: wp.array[float], y: wp.array[float]):
            ...     i = wp.tid()
            ...     y[i] = 2.0 * x[i]
            >>> @twice.register_vmap
            ... def twice_vmap(info, in_dims, x):
            ...     x = x.movedim(in_dims[0], 0)
            ...     return twice(x.reshape(-1)).reshape(x.shape), 0
            >>> torch.vmap(twice)(torch.ones(2, 3))
            tensor([[2., 2., 2.],
                    [2., 2., 2.]])
        """
        if not callable(fn):
            raise TypeError(f"{self.name}: register_vmap takes a function, and got {type(fn).__name__}")
        with lock:
            self._register(self._plan, self._backward, fn)
        return fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._call(*args, **kwargs)
        except TypeError:
            self._check_binding(args, kwargs)
            raise

    def _check_binding(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise Python's own error for arguments that can't be bound, and what to do about it."""
        try:
            self.__signature__.bind(*args, **kwargs)
        except TypeError:
            results = self._plan.results
            given = [name for name in kwargs if name == "out" or name in results]
            known = self.__signature__.parameters
            if not given and len(args) <= len(known):
                unknown = next((name for name in kwargs if name not in known), None)
                if unknown is None:
                    return
                hint = did_you_mean(unknown, known, ".")
                raise TypeError(
                    f"{self.name}() got an unexpected keyword argument '{unknown}'{hint} It takes {self.__signature__}"
                ) from None
            what = f"argument {given[0]!r}" if given else f"{len(args)} positional arguments"
            returned = ", ".join(f"'{name}'" for name in results) or "nothing"
            raise TypeError(
                f"{self.name}() got {what}, and takes {self.__signature__}: outputs are made by the op and returned "
                f"({returned}), not given"
            ) from None

    def __repr__(self) -> str:
        return f"<WarpOp {self.name}{self.__signature__}>"

    def _make_signature(self) -> inspect.Signature:
        parameters = []
        star = False
        for parameter in self._plan.parameters:
            star = star or parameter.keyword_only
            slot = parameter.slots[0]
            known = None if parameter.struct else kind_of(slot).annotation(slot)
            annotation: Any = inspect.Parameter.empty if known is None else known
            kind = inspect.Parameter.KEYWORD_ONLY if star else inspect.Parameter.POSITIONAL_OR_KEYWORD
            parameters.append(inspect.Parameter(parameter.name, kind, default=parameter.default, annotation=annotation))
        if self._plan.device_argument:
            parameters.append(inspect.Parameter("device", inspect.Parameter.KEYWORD_ONLY, default=None))
        count = len(self._plan.results)
        result: Any = None if count == 0 else torch.Tensor
        if count > 1:
            result = tuple[(torch.Tensor,) * count]  # type: ignore[misc]
        return inspect.Signature(parameters, return_annotation=result)

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def kernel(self) -> wp.Kernel:
        """The ``wp.Kernel``; for a program, the function."""
        kernel: wp.Kernel = self._plan.kernel.kernel
        return kernel

    @property
    def overload(self) -> Any:
        """The ``OpOverload`` that ``torch.ops.namespace.name(...)`` calls, and that ``torch.library.opcheck`` takes."""
        return self._registration.ways.ops.public

    @property
    def custom_op(self) -> Any:
        """The ``torch.library.CustomOpDef`` of ``torch.ops.namespace.name.default``, made when it is first asked for.

        A kernel registered on it serves ``default`` alone, and goes when another op takes the name. Gradients are the op's
        own, of the op's own launch.

        Raises:
            ArgumentError: the name is a numbered one, or another op has it.

        Example:
            >>> import torch, warp as wp
            >>> from warpops import warp_op
            >>> @warp_op
            ... @wp.kernel
            ... def third(x: wp.array[float], y: wp.array[float]):
            ...     i = wp.tid()
            ...     y[i] = x[i] / 3.0
            >>> @third.custom_op.register_kernel("cpu")
            ... def third_on_cpu(x):
            ...     return x / 3.0
            >>> third.custom_op(torch.tensor([6.0]))
            tensor([2.])
        """
        with lock:
            return custom_op_of(self._registration.ways, self._named.order)

    @property
    def schema(self) -> str:
        """The operator's schema, as PyTorch prints it."""
        return str(self._registration.ways.ops.public._schema)

    @property
    def source(self) -> str:
        """The Python text that was generated for this op: its launches, its front-end, its autograd function."""
        return self._registration.source

    @property
    def tangent(self) -> TangentOp:
        """The op's tangent, an operator ``namespace::name_tangent``.

        It takes the op's arguments, then ``tangent_<name>`` for each float array or struct field (None is zero), and
        returns the op's results, then one tangent for each float result. Made when it is first asked for.

        Raises:
            GradientError: the op has no float input, or no float output.
        """
        self._make_tangent()
        assert self._tangent is not None
        return self._tangent

    @torch_modes.constant_while_tracing
    def _make_tangent(self) -> None:
        from .transforms.tangent_op import TangentOp

        with lock:
            if self._tangent is None:
                ways = self._registration.ways
                self._tangent = TangentOp(self, ways, ways.transforms, ways.plan)

    def explain(self) -> str:
        """Roles, shapes, launch size, initial values and gradient policy, each with its reason, as text.

        Example:
            >>> import warp as wp
            >>> from warpops import warp_op
            >>> @warp_op
            ... @wp.kernel
            ... def negate(x: wp.array[float], y: wp.array[float]):
            ...     i = wp.tid()
            ...     y[i] = -x[i]
            >>> print(negate.explain().split("launch size")[1].splitlines()[1])
              n (coordinate 0 of wp.tid(): it indexes axis 0 of 'x')
        """
        from .transforms.tangents import why_none

        return explain(self.name, self._plan, self._registration.rows, why_none)

    def preload(self, device: torch.device | str | None = None) -> None:
        """Build and load the kernel now, for example before a CUDA graph is captured.

        Args:
            device: where; None is PyTorch's default device.

        Raises:
            SignatureError: the kernel is generic, so that which kernel to load is known only at a call.
        """
        self._instances.preload(self.name, device)

    # --- copying ------------------------------------------------------------------------------------------------------

    def __copy__(self) -> WarpOp:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> WarpOp:
        return self

    def __reduce__(self) -> str:
        """By reference: the module attribute that is this op."""
        if self._named.numbered:
            raise pickle.PicklingError(
                f"{self.name}: the name was numbered because it was taken, and may stand for another op elsewhere; give "
                f"the op a name of its own with name='namespace::op' to pickle it"
            )
        found = _find_attribute(self)
        if found is None:
            raise pickle.PicklingError(
                f"{self.name}: no attribute of the module {self.__module__!r} is this op, so that it can't be pickled by "
                f"reference; assign it at the top of its module"
            )
        self.__qualname__ = found
        return found


def _find_attribute(op: WarpOp) -> str | None:
    module = sys.modules.get(op.__module__)
    if module is None:
        return None
    target: Any = module
    for part in op._plan.kernel.qualname.split("."):
        target = getattr(target, part, None)
    if target is op:
        return str(op._plan.kernel.qualname)
    for name, value in vars(module).items():
        if value is op:
            return name
    return None


def list_ops() -> list[WarpOp]:
    """The live ops by name, the newest of each.

    Example:
        >>> from warpops import list_ops
        >>> isinstance(list_ops(), list)
        True
    """
    return live_ops()
