"""The kernel that the adjoint launch of a plan with wrong loops runs: the user's, with what its reverse pass lacks.

Its forward pass is never launched. Warp's adjoint of it is right: a loop's turns are counted before it, each turn begins
with the values of its variables put back, and what follows a loop sees what the loop left.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import warp as wp

from ..effects.names import code_of
from ..frozen import frozen
from ..private import warp_built, warp_types
from .builtins import cast_unrolled, replace_builtins, setters_as_stores, states_by_value
from .flow import Structure, Uses, is_exit, part_for, with_body
from .kept import Kept, as_kept
from .locals import as_vectors, local_arrays, stores_into
from .model import AdjointPlan, FunctionPlan
from .own import as_variables
from .parts import Parts
from .small import write_out
from .source import (
    Names,
    Source,
    UnreadableError,
    definition,
    definitions,
    lines_of,
    make_func,
    make_function,
    make_kernel,
    read,
)
from .trees import Loop, assign, calling, compound, indices_of, name, parsed, place, statements_of
from .turns import LoopText, Points
from .views import index_views


@frozen
class AdjointKernel:
    """The kernel, and the text of all that was written for it."""

    kernel: Any
    text: str
    kept: tuple[str, ...] = ()
    """The arrays whose stores keep what they overwrite. For each the kernel has three more arguments."""
    counts: Any = None
    """The kernel that counts what is kept: it takes the same arguments, and stores to these arrays alone."""


def make_adjoint(kernel: Any, plan: AdjointPlan) -> AdjointKernel:
    """Write the kernel of a plan. Builds nothing."""
    points = Points(code_of(kernel).func)
    made: dict[Any, Any] = {}
    again: dict[Any, Any] = {}
    keys: dict[str, Any] = {}
    texts: list[str] = []
    found = warp_built.local_types(kernel)
    own = code_of(kernel).func
    result: Any = None
    counts: Any = None
    for function, one in plan.functions.items():
        for python, owner, types, results in found:
            if python is not function:
                continue
            writer = Writer(one, types, results, points, made, again)
            text = writer.write()
            texts += writer.texts
            if function is own:
                annotations = dict(warp_types.argument_types(kernel))
                annotations |= {n: writer.types[n] for kept in writer.kept for n in kept.added}
                result = make_kernel(kernel, text, writer.name, writer.given, annotations)
                if writer.kept:
                    counting, text = writer.counting()
                    counts = make_kernel(kernel, text, counting, writer.given, annotations, enable_backward=False)
                    texts.append(text)
            else:
                _function_of(writer, text, owner, keys)
    return AdjointKernel(result, "\n\n\n".join(texts) + "\n", plan.kept, counts)


def _function_of(writer: Writer, text: str, owner: Any, keys: dict[str, Any]) -> None:
    """The function's new version; where the reverse pass runs forward again, it runs the user's, less what that stores."""
    python = writer.plan.function
    types = dict(owner.input_types)
    first, first_again = keys.get(owner.key), keys.get(f"{owner.key} again")  # those of another overload
    new = make_func(python, text, writer.name, writer.given, types, python.__defaults__, first)
    keys.setdefault(owner.key, new)
    writer.made.setdefault(python, new)
    own = writer.names.fresh(f"{writer.source.tree.name}_again") if first_again is None else first_again.key
    replay, given = writer.replay(own, owner)
    if writer.plan.writes:
        found = make_func(python, replay, own, given, types, python.__defaults__, first_again)
        keys.setdefault(f"{owner.key} again", found)
        writer.again.setdefault(python, found)
    wp.func_replay(new)(make_function(python, replay, own, given, types))


def _is_number(warp_type: Any) -> bool:
    """No vector, and no struct."""
    return not hasattr(warp_type, "_wp_scalar_type_") and warp_types.struct_fields(warp_type) is None


@dataclass
class Writer:
    """Writes one function."""

    plan: FunctionPlan
    types: dict[str, Any]
    results: list[Any]
    points: Points
    made: dict[Any, Any]
    """The new versions of functions."""
    again: dict[Any, Any]
    """The versions of functions without what they store."""
    texts: list[str] = field(default_factory=list)
    memories: list[ast.stmt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.source: Source = read(self.plan.owner)
        self.names: Names = self.source.names
        self.given, self.named = self.names.given, self.names.give
        write_out(self.source, self.plan.small)
        setters_as_stores(self.source)
        self.types |= dict.fromkeys(cast_unrolled(self.source, self.plan.loops), wp.int32)
        states_by_value(self.source)
        self.texts += index_views(self.source)
        replace_builtins(self.source, self.plan.remainders)
        for array, variable in as_variables(self.source, self.plan.own, self._where_there_is_one).items():
            self.types[variable] = self._element_type(array)
        self.name = self.names.fresh(f"{self.source.tree.name}_adjoint")
        self.warp = self.named(wp, "warp")
        self.kept = self._keep(self.source)
        self.unwound = replace(self.source, tree=copy.deepcopy(self.source.tree)) if self.kept else self.source
        vectors, _ = local_arrays(self.source)
        self.stores = self.plan.stores - stores_into(self.source, vectors)
        as_vectors(self.source, vectors)
        self.types |= vectors
        self.structure = Structure(self.source, self.plan.loops, len(self.results))
        flags = self.structure.flags.values()
        self.uses = Uses(self.source, self.stores)
        self.types |= dict.fromkeys(flags, wp.int32) | dict(zip(self.structure.returned, self.results, strict=True))
        self.parts = Parts(self)
        self.count = 0
        self.declared: set[str] = set()
        self.unrolled = 0
        """The unrolled loops around."""

    def write(self) -> str:
        body, _ = self._block(self.structure.body, set(self.source.parameters))
        self.call(body, self.made)
        text = self._definition(self.name, [*self.memories, *body])
        self.texts.append(text)
        return text

    def replay(self, own: str, owner: Any) -> tuple[str, dict[str, Any]]:
        """What the reverse pass runs where it runs the function forward again, and what that calls."""
        if not self.plan.writes:
            original = self.names.fresh("original")
            again = f"{original}({', '.join(self.source.parameters)})"
            text = definition(own, self.source.parameters, [f"return {again}" if self.results else again])
            return text, {original: getattr(owner, "generic_parent", None) or owner}
        source = read(owner)
        setters_as_stores(source)
        body, _ = part_for(Uses(source, self.stores), source.tree.body, ())
        self.call(body, self.again)
        return self._definition(own, body), self.given

    def _definition(self, own: str, body: Sequence[ast.stmt]) -> str:
        """The text of a function with the parameters of this one."""
        return definition(own, self.source.parameters, lines_of(body, self.source.tree.name))

    def call(self, body: Sequence[ast.AST], versions: dict[Any, Any]) -> None:
        """Let calls of functions that have another version call that, and hand it on."""

        def new(node: ast.expr) -> ast.expr:
            made = next((versions[f] for f in definitions(self.source.meaning(node)) if f in versions), None)
            return node if made is None else name(self.named(made, made.key))

        for call, _ in self.source.calls(body):
            call.func = new(call.func)
            call.args = [new(argument) for argument in call.args]

    def _keep(self, source: Source) -> list[Kept]:
        """Let stores keep what they overwrite."""

        def cast(array: str, value: ast.expr) -> ast.expr:
            element = self._element_type(array)
            return calling(self.type_name(element), value) if _is_number(element) else value

        def typed(variable: str, array: str | None) -> None:
            self.types[variable] = wp.int32 if array is None else self._element_type(array)

        made = as_kept(source, self.plan.kept, self.plan.threads, self.warp, cast, typed)
        for kept in made:
            array, element = self.types[kept.array], self._element_type(kept.array)
            self.types |= kept.types(array, element)
            for own, (function, text) in kept.functions(self.plan.function, array, element).items():
                self.given[own] = function
                self.texts.append(text)
        return made

    def counting(self) -> tuple[str, str]:
        """A kernel that does what is kept, and nothing else: its name and text."""
        source, own = self.unwound, self.names.fresh(f"{self.source.tree.name}_counts")
        body, _ = part_for(Uses(source, self.stores), source.tree.body, {kept.top for kept in self.kept})
        self.call(body, self.again)
        return own, self._definition(own, body)

    def _element_type(self, array: str) -> Any:
        return warp_built.strict_type(warp_types.type_at(self.types, array).dtype)

    def _where_there_is_one(self, array: str, element: ast.Subscript, load: ast.stmt) -> list[ast.stmt]:
        """The load of an element that the thread may have no need of, as a variable's first value."""
        inside = " and ".join(
            f"-{array}.shape[{axis}] <= {ast.unparse(index)} < {array}.shape[{axis}]"
            for axis, index in enumerate(indices_of(element))
        )
        assert isinstance(load, ast.Assign)
        nothing = ast.Assign(load.targets, self._nothing(self._element_type(array)))
        return [nothing, ast.If(parsed(inside), [load], [])]

    # --- statements ---------------------------------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt], defined: set[str]) -> tuple[list[ast.stmt], set[str]]:
        """Statements as the adjoint needs them; ``defined`` are the variables that there are before them."""
        result: list[ast.stmt] = []
        defined = set(defined)
        for statement in body:
            if isinstance(statement, ast.If) and not is_exit(statement):
                one, one_defined = self._block(statement.body, defined)
                other, other_defined = self._block(statement.orelse, defined)
                result.append(compound(statement, statement.test, one, other))
                defined |= one_defined | other_defined
            elif self.structure.is_run_time(statement):
                result += self._loop(statement, defined)
                defined |= self.uses.writes(statement)
            elif isinstance(statement, ast.For):
                self.unrolled += 1
                inner, found = self._block(statement.body, defined | self.uses.sets(statement))
                self.unrolled -= 1
                result.append(with_body(statement, inner))
                defined |= found
            else:
                result += self.parts.of(statement)
                defined |= self.uses.writes(statement)
        return result, defined

    # --- loops --------------------------------------------------------------------------------------------------------

    def _loop(self, loop: Loop, defined: set[str]) -> list[ast.stmt]:
        plan = self.plan.loops[place(loop)]
        assigned = self.uses.writes(loop)
        unknown = assigned - self.types.keys()
        target = self.uses.sets(loop)
        if plan.mode != "as it is" and unknown and unknown != assigned:
            raise UnreadableError(f"the type of '{min(unknown)}' isn't known")
        if plan.mode == "as it is" or unknown:  # Warp drops what isn't reached
            first = [assign(n, name(n)) for n in sorted(plan.needs.before & defined)]
            inner, _ = self._block(loop.body, defined | target)
            return [*first, with_body(loop, inner)]
        self.count += 1
        # A variable that the loop makes is there before it, so that its gradient lives through all turns.
        outside = plan.after | plan.restored | plan.state | (assigned & self._read_outside(loop))
        self._declare(outside - defined)
        # What a variable held before the loop stays: the loop's reverse pass overwrites the variable.
        first = [assign(n, name(n)) for n in sorted(assigned & defined)]
        written = LoopText(self, loop, plan)
        result = [*first, *written.before()]
        if plan.mode == "after":
            inner, _ = self._block(list(loop.body), defined | outside | target)
            result.append(with_body(loop, inner))
        elif plan.mode == "turns":
            inner, _ = self._block([s for s in loop.body if not is_exit(s)], defined | outside | target)
            result.append(written.counted(inner))
        return [*result, *written.behind()]

    def _declare(self, names: set[str]) -> None:
        """Let variables be there from the beginning."""
        for n in sorted(names - self.declared):
            self.declared.add(n)
            self.memories.append(assign(n, self._nothing(self.types[n])))

    def _read_outside(self, loop: Loop) -> set[str]:
        inside = set(statements_of([loop]))
        return {n for s in statements_of(self.structure.body) if s not in inside for n in self.uses.reads_first(s)}

    def _nothing(self, warp_type: Any) -> ast.expr:
        """A value of a type, to begin with."""
        return calling(self.type_name(warp_type), *([ast.Constant(0)] if _is_number(warp_type) else []))

    def type_name(self, warp_type: Any) -> str:
        return self.named(warp_type, "type_" + warp_types.type_name(warp_type).split(".")[-1].split("[")[0])
