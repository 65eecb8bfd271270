"""``warp_program``: one op of a Python function that launches several kernels."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import warp as wp

from . import _warp
from .backward import declared_backward
from .declaration import Declaration, declare
from .decorator import Dim, build_backward
from .effects import ArrayEffects, Effects, Site
from .emission.backward import Backward
from .errors import SignatureError
from .generic import align, resolve_types
from .instance import Instance
from .kernel import KernelSignature, inspect_kernel
from .op import WarpOp
from .plan import OpPlan, plan_op
from .program_run import Runner
from .source import compile_text

FUNCTIONS = ("allocate", "forward", "forward_into", "prepare", "backward_into", "backward")


def warp_program(
    signature: str | None = None,
    /,
    *,
    name: str | None = None,
    shapes: Mapping[str, Dim] | None = None,
    init: str | float | Mapping[str, str | float] | None = None,
    mutates: str | Iterable[str] | None = None,
    scratch: str | Iterable[str] | None = None,
    sizes: str | Iterable[str] | None = None,
    optional: str | Iterable[str] | None = None,
    nondiff: str | Iterable[str] | None = None,
    tensor_scalars: str | Iterable[str] | None = None,
    backward: wp.Kernel | WarpOp | Callable[..., Any] | None = None,
) -> Callable[[Callable[..., None]], WarpOp]:
    """Make a function that launches several kernels one PyTorch operator.

    The function's arguments are annotated as a kernel's. It gets a ``wp.array`` for each tensor, and numbers, and
    launches kernels with ``wp.launch``, with loops and branches over the numbers. It may also call ``wp.copy``,
    ``array.fill_``, ``array.zero_``, ``wp.utils.array_scan`` and the sorts of ``wp.utils``. It returns nothing: results
    are what it writes into the arrays on the right of the signature.

    The gradient runs the function again on private copies, then the adjoint of each launch, last first. So the function
    must do the same each time it is given the same arguments. Copies, fills and scans have gradients; sorts and sums of
    ``wp.utils`` have none.

    Launches go to the tensors' device and to PyTorch's current stream. Give arrays that the function makes for itself
    that device (``wp.zeros(n, device=x.device)``); their memory is Warp's. Better is ``scratch``, which is PyTorch's.

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
        nondiff: inputs that get no gradient.
        tensor_scalars: numbers that arrive as 0-d CPU tensors, so that a change costs no recompilation.
        backward: a kernel or a ``WarpOp`` that computes the gradients in place of the launches' adjoints.

    Returns:
        A decorator that makes a :class:`WarpOp` of the function.

    Raises:
        SignatureError: the declaration can't be read or says too little; at a call, where the function writes an input.
        GradientError: in backward, where the gradient passes through a call that has none.

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
    options = {
        "name": name,
        "shapes": shapes,
        "init": init,
        "mutates": mutates,
        "scratch": scratch,
        "sizes": sizes,
        "optional": optional,
        "nondiff": nondiff,
        "tensor_scalars": tensor_scalars,
        "backward": backward,
    }
    return lambda function: build(function, signature, options)


class Program:
    """A program's function with its types: what a ``wp.Kernel`` is to a kernel's op."""

    def __init__(self, function: Callable[..., None], arguments: list[tuple[str, Any]]) -> None:
        self.func = function
        self.key = function.__name__
        code = function.__code__
        self.adj = types.SimpleNamespace(
            args=[types.SimpleNamespace(label=label, type=warp_type) for label, warp_type in arguments],
            filename=code.co_filename,
            fun_lineno=code.co_firstlineno,
        )
        self.options: dict[str, Any] = {"enable_backward": True}
        self.is_generic = False
        self.overloads: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<Program {self.func.__qualname__}>"

    def add_overload(self, warp_types: list[Any]) -> Program:
        """The program for concrete types, as for a generic kernel."""
        labels = [argument.label for argument in self.adj.args]
        return Program(self.func, list(zip(labels, warp_types, strict=True)))


def as_program(function: Any) -> Program:
    """A program of an annotated function."""
    if not isinstance(function, types.FunctionType):
        advice = "; for one kernel use warp_op" if _warp.is_kernel(function) else ""
        raise SignatureError(
            f"warp_program takes an annotated Python function, and got {type(function).__name__}{advice}"
        )
    code = function.__code__
    where = f"({code.co_filename}:{code.co_firstlineno})"
    if code.co_flags & 0x0C or code.co_kwonlyargcount or code.co_posonlyargcount:
        raise SignatureError(
            f"{function.__name__}: a program's arguments are plain ones, as a kernel's: no *args, **kwargs, / or * "
            f"{where}"
        )
    found = _warp.function_arguments(function)
    missing = [name for name in code.co_varnames[: code.co_argcount] if name not in found]
    if missing:
        raise SignatureError(
            f"{function.__name__}: the argument '{missing[0]}' has no annotation; annotate it as a kernel's, as in "
            f"{missing[0]}: wp.array[float] {where}"
        )
    return Program(function, [(name, found[name]) for name in code.co_varnames[: code.co_argcount]])


def build(function: Any, signature: str | None, options: dict[str, Any]) -> WarpOp:
    """Inspect, declare, plan, generate, register: as for a kernel, with the declaration believed."""
    program = as_program(function)
    declaration = declare(program.key, signature, **options)
    if declaration.right is None:
        declaration = dataclasses.replace(declaration, right=())
    found = _signature(program)
    program.is_generic = found.generic
    plan = _plan(found, declaration)

    def make(name: str, values: dict[str, Any]) -> Instance:
        concrete = _signature(program.add_overload(resolve_types(name, plan, values)))
        return align(make_instance(name, _plan(concrete, declaration)), plan)

    backward = None
    if declaration.backward is not None and plan.gradient == "custom":
        backward = declared_backward(plan, declaration.backward, build_backward)
    return WarpOp(plan, make, None if found.generic else (lambda name: make_instance(name, plan)), backward)


def _signature(program: Program) -> KernelSignature:
    found = inspect_kernel(program)
    return dataclasses.replace(found, program=True, generic=any(leaf.generic for leaf in found.leaves))


def _plan(found: KernelSignature, declaration: Declaration) -> OpPlan:
    try:
        plan = plan_op(found, declaration, declared_effects(found, declaration))
    except SignatureError as error:
        text = str(error).replace("the kernel", "the program").replace("@warp_op", "@warp_program")
        raise SignatureError(text) from None
    if plan.gradient != "adjoint":
        return plan
    return dataclasses.replace(
        plan, gradient_why="the program run again on private copies, then its launches' adjoints, last first"
    )


def declared_effects(found: KernelSignature, declaration: Declaration) -> Effects:
    """What the program does to its arrays, by its declaration. Nothing need be saved: the gradient runs it again."""
    written = {term.name for term in (*(declaration.right or ()), *declaration.scratch)}
    written |= {*declaration.mutates, *(name for name, _ in declaration.shapes)}
    here = (Site(found.file, found.line),)
    arrays = {
        leaf.label: ArrayEffects(
            leaf.label,
            leaf.ndim,
            stores=here if leaf.label in written else (),
            reads_back=False,
            filled_why="a program's writes aren't followed",
        )
        for leaf in found.leaves
        if leaf.is_array
    }
    return Effects(found.file, found.line, 0, arrays)


class ProgramEmitter(Backward):
    """Writes a program's functions: a kernel's checks and allocations, and a run of the program for the launch."""

    def __init__(self, op: str, plan: OpPlan, runner: Runner) -> None:
        super().__init__(op, plan, runner)  # type: ignore[arg-type]
        self.runner = runner
        self.values_of = [slot for slot in plan.slots if slot.role != "size"]

    def _dense(self, slot: Any, stride: str) -> str:
        return ""

    def name_strides(self, slots: Iterable[Any]) -> None:
        pass

    def _run(self, device: str) -> str:
        return f"{device}, ({', '.join(slot.name for slot in self.values_of)},)"

    def _numbers(self) -> None:
        self.prepare_numbers()
        if any(not slot.is_array for slot in self.plan.inputs):
            check = self.provide("check_numbers", self.runner.check_numbers)
            self.text.add(f"{check}({self.values()})")

    def _launch(self, shapes: dict[str, list[str]], dims: str, device: str) -> None:
        self._numbers()
        self.text.add(f"{self.launcher}.forward({self._run(device)})")

    def emit_backward_into(self) -> None:
        """The program's run with gradients, over given buffers."""
        text, plan = self.text, self.plan
        with text.function(self.function("backward_into"), [*self.backward_arguments(), *self.gradient_buffers()]):
            self.zero_gradients()
            self.describe_inputs(compare=False)
            device = self.find_device()
            self.bind_sizes()
            fresh = [slot for slot in plan.slots if slot.role in ("output", "scratch")]
            shapes = self.shapes_of(fresh)
            if fresh:
                names = ", ".join(slot.name for slot in fresh) + ("," if len(fresh) == 1 else "")
                sizes = ", ".join([device, *(size for slot in fresh for size in shapes[slot.name])])
                text.add(f"{names} = {self.function('allocate')}({sizes})")
            self._numbers()
            buffers = {slot.name for slot in (*self.cotangents(), *plan.gradients)}
            grads = [self.grad_name(slot) if slot.name in buffers else "None" for slot in self.values_of]
            text.add(f"{self.launcher}.backward({self._run(device)}, ({', '.join(grads)},))")


def make_instance(op: str, plan: OpPlan) -> Instance:
    """Generate the functions of a concrete program."""
    runner = Runner(op, plan)
    emitter = ProgramEmitter(op, plan, runner)
    emitter.emit_allocate()
    emitter.emit_forward()
    emitter.emit_forward_into()
    if plan.gradient == "adjoint":
        emitter.emit_prepare()
        emitter.emit_backward_into()
        emitter.emit_backward()
    header = f'"""{op}: runs of the program {plan.kernel.qualname}. Generated by warpops."""\n\n'
    text = header + emitter.text.result()
    compile_text(text, emitter.scope, f"{op}.launch")
    functions: dict[str, Any] = {name: emitter.scope.get(emitter.function(name)) for name in FUNCTIONS}
    return Instance(
        plan=plan,
        launcher=runner,  # type: ignore[arg-type]
        source=text,
        **functions,
    )


__all__ = ["Program", "warp_program"]
