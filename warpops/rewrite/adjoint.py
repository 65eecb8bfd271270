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
from ..private import warp_built, warp_types
from ..private.warp_source import declared_overloads, is_function
from .builtins import cast_unrolled, replace_builtins, setters_as_stores, states_by_value
from .flow import Loop, Place, Structure, Uses, assign, is_exit, name, part_for, place, with_body
from .kept import Kept, as_kept
from .locals import as_vectors, local_arrays, stores_into
from .memory import Toolbox
from .model import AdjointPlan, FunctionPlan
from .own import as_variables
from .parts import Parts
from .small import write_out
from .source import (
    Names,
    Source,
    UnreadableError,
    calls_in,
    indented,
    lines_of,
    make_func,
    make_function,
    make_kernel,
    read,
)
from .turns import LoopText
from .views import index_views


@dataclass(frozen=True)
class AdjointKernel:
    """The kernel, the text of all that was written for it, and where the user's functions in it begin."""

    kernel: Any
    text: str
    lines: dict[str, tuple[str, int]]
    kept: tuple[str, ...] = ()
    """The arrays whose stores keep what they overwrite. For each the kernel has three more arguments."""
    counts: Any = None
    """The kernel that counts what is kept: it takes the same arguments, and stores to these arrays alone."""


def make_adjoint(kernel: Any, plan: AdjointPlan) -> AdjointKernel:
    """Write the kernel of a plan. Builds nothing."""
    tools = Toolbox(code_of(kernel).func)
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
            stores = {(line, column) for f, line, column in plan.array_stores if f is function}
            writer = Writer(one, stores, types, results, tools, made, again)
            text = writer.write()
            texts += writer.texts
            if function is own:
                annotations = dict(warp_types.argument_types(kernel))
                annotations |= {n: writer.types[n] for kept in writer.kept for n in kept.added}
                python_function = make_function(function, text, writer.name, writer.given, annotations)
                result = make_kernel(kernel, python_function, writer.name)
                if writer.kept:
                    name, text, given = writer.counting()
                    python_function = make_function(function, text, name, given, annotations)
                    counts = make_kernel(kernel, python_function, name, enable_backward=False)
                    texts.append(text)
            else:
                _function_of(writer, text, owner, keys, function in plan.writers)
    codes = [code_of(one.owner) for one in plan.functions.values()]
    lines = {code.func.__name__: (code.file, code.first_line) for code in codes}
    return AdjointKernel(result, "\n\n\n".join(texts) + "\n", lines, plan.kept, counts)


def _function_of(writer: Writer, text: str, owner: Any, keys: dict[str, Any], writes: bool) -> None:
    """The function's new version; where the reverse pass runs forward again, it runs the user's, less what that stores."""
    python = writer.plan.function
    types = dict(owner.input_types)
    function = make_function(python, text, writer.name, writer.given, types, python.__defaults__)
    first, first_again = keys.get(owner.key), keys.get(f"{owner.key} again")  # those of another overload
    new = make_func(function, writer.name if first is None else first.key, first)
    keys.setdefault(owner.key, new)
    writer.made.setdefault(python, new)
    own = writer.names.fresh(f"{writer.source.tree.name}_again") if first_again is None else first_again.key
    replay, given = writer.replay(own, owner, writes=writes)
    if writes:
        found = make_func(make_function(python, replay, own, given, types, python.__defaults__), own, first_again)
        keys.setdefault(f"{owner.key} again", found)
        writer.again.setdefault(python, found)
    wp.func_replay(new)(make_function(python, replay, own, given, types))


def _plain(function: Any) -> Any:
    """The function behind an instance of a generic one."""
    return getattr(function, "generic_parent", None) or function


def _is_number(warp_type: Any) -> bool:
    """No vector, and no struct."""
    return not hasattr(warp_type, "_wp_scalar_type_") and warp_types.struct_fields(warp_type) is None


@dataclass
class Writer:
    """Writes one function."""

    plan: FunctionPlan
    stores: set[Place]
    types: dict[str, Any]
    results: list[Any]
    tools: Toolbox
    made: dict[Any, Any]
    """The new versions of functions."""
    again: dict[Any, Any]
    """The versions of functions without what they store."""
    given: dict[str, Any] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    memories: list[ast.stmt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._types: list[tuple[Any, str]] = []
        self.source: Source = read(self.plan.owner)
        self.names: Names = self.source.names
        write_out(self.source, self.plan.small)
        setters_as_stores(self.source)
        cast_unrolled(self.source, self.plan.loops)
        states_by_value(self.source, self.named)
        self.texts += index_views(self.source, self.named)
        replace_builtins(self.source, self.plan.remainders, self.named)
        for array, variable in as_variables(self.source, self.plan.own, self._where_there_is_one).items():
            self.types[variable] = self._element_type(array)
        self.name = self.names.fresh(f"{self.source.tree.name}_adjoint")
        self.warp = self.names.fresh("warp")
        self.given[self.warp] = wp
        self.kept = self._keep(self.source)
        self.unwound = replace(self.source, tree=copy.deepcopy(self.source.tree)) if self.kept else self.source
        vectors, _ = local_arrays(self.source)
        self.stores = self.stores - stores_into(self.source, vectors)
        as_vectors(self.source, vectors, self.named)
        self.types |= vectors
        self.structure = Structure(self.names, self.plan.loops, len(self.results))
        self.body, _ = self.structure.block(self.source.tree.body)
        flags = self.structure.flags.values()
        self.source.local |= {*flags, *self.structure.returned}
        self.uses = Uses(self.source, self.stores)
        self.types |= dict.fromkeys(flags, wp.int32) | dict(zip(self.structure.returned, self.results, strict=True))
        self.parts = Parts(self)
        self.count = 0
        self.declared: set[str] = set()
        self.unrolled = 0
        """The unrolled loops around."""

    def write(self) -> str:
        body, _ = self._block(self.body, set(self.source.parameters))
        self.call(body, self.made)
        title = self.source.tree.name
        head = f"def {self.name}({', '.join(self.source.parameters)}):"
        text = "\n".join([head, *indented(lines_of([*self.memories, *body], title))])
        self.texts.append(text)
        return text

    def replay(self, own: str, owner: Any, *, writes: bool) -> tuple[str, dict[str, Any]]:
        """What the reverse pass runs where it runs the function forward again, and what that calls."""
        parameters = ", ".join(self.source.parameters)
        head = f"def {own}({parameters}):"
        if not writes:
            original = self.names.fresh("original")
            call = f"{original}({parameters})"
            return f"{head}\n    {'return ' if self.results else ''}{call}", {original: _plain(owner)}
        source = read(owner)
        setters_as_stores(source)
        body, _ = part_for(Uses(source, self.stores), source.tree.body, ())
        self.call(body, self.again)
        text = "\n".join([head, *indented(lines_of(body or [ast.Pass()], source.tree.name))])
        self.texts.append(text)
        return text, self.given

    def call(self, body: Sequence[ast.AST], versions: dict[Any, Any]) -> None:
        """Let calls of functions that have another version call that, and hand it on."""

        def new(node: ast.expr) -> ast.expr:
            called = self.source.meaning(node)
            if not is_function(called) or called.is_builtin():
                return node
            made = next((v for o in declared_overloads(called) if (v := versions.get(code_of(o).func))), None)
            return node if made is None else name(self.named(made.key, made))

        for call, _ in calls_in(self.source, body):
            call.func = new(call.func)
            call.args = [new(argument) for argument in call.args]

    def _keep(self, source: Source) -> list[Kept]:
        """Let stores keep what they overwrite."""

        def cast(array: str, value: ast.expr) -> ast.expr:
            element = self._element_type(array)
            return ast.Call(name(self.type_name(element)), [value], []) if _is_number(element) else value

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

    def counting(self) -> tuple[str, str, dict[str, Any]]:
        """A kernel that does what is kept, and nothing else: its name and text, and what that calls."""
        source, own = self.unwound, self.names.fresh(f"{self.source.tree.name}_counts")
        body, _ = part_for(Uses(source, self.stores), source.tree.body, {kept.top for kept in self.kept})
        self.call(body, self.again)
        lines = lines_of(body, self.source.tree.name)
        return own, "\n".join([f"def {own}({', '.join(source.parameters)}):", *indented(lines)]), self.given

    def _element_type(self, array: str) -> Any:
        return warp_built.strict_type(warp_types.type_at(self.types, array).dtype)

    def _where_there_is_one(self, array: str, element: ast.Subscript, load: ast.stmt) -> list[ast.stmt]:
        """The load of an element that the thread may have no need of, as a variable's first value."""
        indices = element.slice.elts if isinstance(element.slice, ast.Tuple) else [element.slice]
        inside = " and ".join(
            f"-{array}.shape[{axis}] <= {ast.unparse(index)} < {array}.shape[{axis}]"
            for axis, index in enumerate(indices)
        )
        assert isinstance(load, ast.Assign)
        nothing = ast.Assign(load.targets, self._nothing(self._element_type(array)))
        return [nothing, ast.If(ast.parse(inside, mode="eval").body, [load], [])]

    # --- statements ---------------------------------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt], defined: set[str]) -> tuple[list[ast.stmt], set[str]]:
        """Statements as the adjoint needs them; ``defined`` are the variables that there are before them."""
        result: list[ast.stmt] = []
        defined = set(defined)
        for statement in body:
            if isinstance(statement, ast.If) and not is_exit(statement):
                one, one_defined = self._block(statement.body, defined)
                other, other_defined = self._block(statement.orelse, defined)
                result.append(ast.copy_location(ast.If(statement.test, one, other), statement))
                defined |= one_defined | other_defined
            elif self.structure.is_run_time(statement):
                assert isinstance(statement, (ast.For, ast.While))
                result += self._loop(statement, defined)
                defined |= self.uses.writes(statement)
            elif isinstance(statement, ast.For):
                self.unrolled += 1
                inner, found = self._block(statement.body, defined | self.uses.writes(statement.target))
                self.unrolled -= 1
                result.append(ast.copy_location(ast.For(statement.target, statement.iter, inner, [], None), statement))
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
        target = self.uses.writes(loop.target) if isinstance(loop, ast.For) else set()
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
        found: set[str] = set()

        def visit(body: Sequence[ast.stmt]) -> None:
            for statement in body:
                if statement is loop or (self.structure.is_run_time(statement) and place(statement) == place(loop)):
                    continue
                if isinstance(statement, (ast.If, ast.While)):
                    found.update(self.uses.reads(statement.test))
                    visit(statement.body)
                    visit(statement.orelse)
                elif isinstance(statement, ast.For):
                    found.update(self.uses.reads(statement.iter))
                    visit(statement.body)
                else:
                    found.update(self.uses.reads(statement))

        visit(self.body)
        return found

    def _nothing(self, warp_type: Any) -> ast.expr:
        """A value of a type, to begin with."""
        return ast.Call(name(self.type_name(warp_type)), [ast.Constant(0)] if _is_number(warp_type) else [], [])

    def type_name(self, warp_type: Any) -> str:
        for other, known in self._types:
            if other is warp_type:
                return known
        found = self.give("type_" + warp_types.type_name(warp_type).split(".")[-1].split("[")[0], warp_type)
        self._types.append((warp_type, found))
        return found

    def named(self, wanted: str, value: Any) -> str:
        """The one name that stands for an object."""
        known = next((n for n, other in self.given.items() if other is value), None)
        return known or self.give(wanted, value)

    def give(self, wanted: str, value: Any) -> str:
        """A free name that stands for an object."""
        clean = "".join(c if c.isalnum() or c == "_" else "_" for c in wanted)
        found = self.names.fresh(clean)
        self.given[found] = value
        return found

    def memory(self, wanted: str, warp_type: Any, size: int) -> tuple[str, ast.stmt]:
        """The name of an array of the thread's own, and what makes it."""
        found = self.names.fresh(wanted)
        make = ast.Attribute(name(self.warp), "zeros", ast.Load())
        shape = ast.keyword("shape", ast.Tuple([ast.Constant(size)], ast.Load()))
        call = ast.Call(make, [], [shape, ast.keyword("dtype", name(self.type_name(warp_type)))])
        return found, assign(found, call)
