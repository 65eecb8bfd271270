"""A program in place of a kernel: its types, and its effects as they were declared."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any

from ..effects import ArrayEffects, Effects, Site
from ..emit.writer import Step
from ..errors import SignatureError
from ..kernel.signature import KernelSignature, inspect_kernel
from ..plan.declaration import Declaration
from ..plan.model import OpPlan
from ..plan.planner import plan_op
from ..private import warp_source
from ..private import warp_types as private_warp_types
from .reads import Reads, reads_of


class Program(warp_source.Defined):
    """A program's function with its types: what a ``wp.Kernel`` is to a kernel's op."""

    is_generic = False
    """Its signature tells: a program needn't be built."""

    def __init__(
        self, function: Callable[..., None], arguments: list[tuple[str, Any]], tangent_of: Program | None = None
    ) -> None:
        self.func = function
        self.tangent_of = tangent_of
        """Then its run tells its arguments by where they are, so that no two inputs may share memory."""
        self.key = function.__name__
        super().__init__(function, arguments)
        self.options: dict[str, Any] = {"enable_backward": True}
        self.overloads: dict[str, Any] = {}
        self._reads: Reads | None = None

    def __repr__(self) -> str:
        return f"<Program {self.func.__qualname__}>"

    def reads(self) -> Reads:
        """What the function reads besides its arguments, as it is now."""
        if self.tangent_of is not None:
            return self.tangent_of.reads()
        found = self._reads
        if found is None or not found.same():
            types = [warp_type for _, warp_type in private_warp_types.argument_types(self)]
            found = self._reads = reads_of(self.func, [t for t in types if private_warp_types.is_struct(t)])
        return found

    def plan(self, declaration: Declaration) -> OpPlan:
        """The plan of its op.

        Raises:
            SignatureError: the declaration can't be read, or says too little.
        """
        found = program_signature(self)
        try:
            plan = plan_op(found, declaration, declared_effects(found, declaration))
        except SignatureError as error:
            text = str(error).replace("the kernel", "the program").replace("@warp_op", "@warp_program")
            raise SignatureError(text) from None
        if plan.gradient != "adjoint":
            return plan
        return dataclasses.replace(
            plan,
            gradient_why="the program run again on private copies and compared with the forward, then its launches' "
            "adjoints, last first",
        )

    def step(self, op: str, plan: OpPlan) -> Step:
        """What its op's launches are in the text."""
        from .emit import run_step  # which the first op needs, not the import

        return run_step(op, plan)

    def tangent(self, twins: Mapping[str, str], zero: frozenset[str]) -> Program:
        """The program of values and tangents.

        Args:
            twins: by an array's label, the argument that is its tangent.
            zero: the arrays, by label, whose tangent is zero before the program runs.
        """
        from .tangent import on_tangents  # which few need

        made = Program(*on_tangents(self, twins, zero), tangent_of=self)
        made.defined_with(self)
        return made

    def add_overload(self, warp_types: list[Any]) -> Program:
        """The program for concrete types, as for a generic kernel."""
        labels = [name for name, _ in private_warp_types.argument_types(self)]
        return Program(self.func, list(zip(labels, warp_types, strict=True)))


def as_program(function: Any) -> Program:
    """A program of an annotated function."""
    if not isinstance(function, types.FunctionType):
        advice = "; for one kernel use warp_op" if private_warp_types.is_kernel(function) else ""
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
    found = private_warp_types.function_arguments(function)
    missing = [name for name in code.co_varnames[: code.co_argcount] if name not in found]
    if missing:
        raise SignatureError(
            f"{function.__name__}: the argument '{missing[0]}' has no annotation; annotate it as a kernel's, as in "
            f"{missing[0]}: wp.array[float] {where}"
        )
    return Program(function, [(name, found[name]) for name in code.co_varnames[: code.co_argcount]])


def program_signature(program: Program) -> KernelSignature:
    found = inspect_kernel(program)
    return dataclasses.replace(found, program=True, generic=any(leaf.generic for leaf in found.leaves))


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
