"""The kernel that the adjoint launch of a plan with wrong loops runs: the user's, with what its reverse pass lacks.

Its forward pass is never launched. Warp's adjoint of it is right: a loop's turns are counted before it, each turn begins
with the values of its variables put back, and what follows a loop sees what the loop left.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import warp as wp

from .. import _warp
from ..effects.source import code_of, declared_overloads, is_function
from .builtins import replace_builtins
from .flow import CONTINUE, Loop, Place, Structure, Uses, assign, is_exit, name, part_for, place, root, targets
from .locals import as_vectors, local_arrays, stores_into
from .loops import AdjointPlan, FunctionPlan, LoopPlan, found_by_query, is_range, queries
from .memory import LAST_ONLY, Toolbox, Walk, shape_for
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


@dataclass(frozen=True)
class AdjointKernel:
    """The kernel, the text of all that was written for it, and where the user's functions in it begin."""

    kernel: Any
    text: str
    lines: dict[str, tuple[str, int]]


def make_adjoint(kernel: Any, plan: AdjointPlan) -> AdjointKernel:
    """Write the kernel of a plan. Builds nothing."""
    tools = Toolbox(code_of(kernel.adj).func)
    made: dict[Any, Any] = {}
    again: dict[Any, Any] = {}
    keys: dict[str, Any] = {}
    texts: list[str] = []
    found = _warp.local_types(kernel)
    own = code_of(kernel.adj).func
    result: Any = None
    for function, one in plan.functions.items():
        for python, owner, types, results in found:
            if python is not function:
                continue
            stores = {(line, column) for f, line, column in plan.array_stores if f is function}
            writer = _Writer(one, stores, types, results, tools, made, again)
            text = writer.write()
            texts += writer.texts
            if function is own:
                annotations = dict(_warp.argument_types(kernel))
                python_function = make_function(function, text, writer.name, writer.given, annotations)
                result = make_kernel(kernel, python_function, writer.name)
            else:
                _function_of(writer, text, owner, keys, function in plan.writers)
    codes = [code_of(one.owner.adj) for one in plan.functions.values()]
    lines = {code.func.__name__: (code.file, code.first_line) for code in codes}
    return AdjointKernel(result, "\n\n\n".join(texts) + "\n", lines)


def _function_of(writer: _Writer, text: str, owner: Any, keys: dict[str, Any], writes: bool) -> None:
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
    _warp.give_replay(new, make_function(python, replay, own, given, types))


def _plain(function: Any) -> Any:
    """The function behind an instance of a generic one."""
    return getattr(function, "generic_parent", None) or function


@dataclass
class _Writer:
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
        self.source: Source = read(self.plan.owner)
        self.names: Names = self.source.names
        replace_builtins(self.source, self.plan.remainders, self.named)
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
        self.name = self.names.fresh(f"{self.source.tree.name}_adjoint")
        self.warp = self.names.fresh("warp")
        self.given[self.warp] = wp
        self.count = 0
        self._types: list[tuple[Any, str]] = []

    def write(self) -> str:
        body, _ = self._block(self.body, set(self.source.parameters))
        self._call(body, self.made)
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
        body, _ = part_for(Uses(source, self.stores), source.tree.body, ())
        self._call(body, self.again)
        text = "\n".join([head, *indented(lines_of(body or [ast.Pass()], source.tree.name))])
        self.texts.append(text)
        return text, self.given

    def _call(self, body: Sequence[ast.AST], versions: dict[Any, Any]) -> None:
        """Let calls of functions that have another version call that."""
        for call, called in calls_in(self.source, body):
            if called is None or not is_function(called) or called.is_builtin():
                continue
            new = next((v for o in declared_overloads(called) if (v := versions.get(code_of(o.adj).func))), None)
            if new is not None:
                call.func = name(self.named(new.key, new))

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
                inner, found = self._block(statement.body, defined | self.uses.writes(statement.target))
                result.append(ast.copy_location(ast.For(statement.target, statement.iter, inner, [], None), statement))
                defined |= found
            else:
                result += self._simple(statement)
                defined |= self.uses.writes(statement)
        return result, defined

    def _simple(self, statement: ast.stmt) -> list[ast.stmt]:
        """A component of a local is assigned by making a new local: what it was may still be needed."""
        if not isinstance(statement, (ast.Assign, ast.AugAssign)) or self.uses.stores_to_array(statement):
            return [statement]
        target = targets(statement)[0]
        base = root(target)
        if not isinstance(target, (ast.Subscript, ast.Attribute)) or base is None or base not in self.types:
            return [statement]
        if _warp.is_tile(self.types[base]):
            return [statement]
        value = statement.value
        if isinstance(statement, ast.AugAssign):
            value = ast.BinOp(_loaded(target), statement.op, statement.value)
        return self._store_part(target, value)

    def _store_part(self, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        """``target = value``, where the target is a variable or a part of one."""
        if isinstance(target, ast.Name):
            return [ast.Assign([target], value)]
        assert isinstance(target, (ast.Subscript, ast.Attribute))
        owner = self._type_of(target.value)
        if _warp.struct_fields(owner) is not None and isinstance(target, ast.Attribute):
            fields = [
                value if f == target.attr else ast.Attribute(_loaded(target.value), f, ast.Load())
                for f in _warp.struct_fields(owner) or ()
            ]
            made = ast.Call(name(self._type_name(owner)), fields, [])
            return self._store_part(_stored(target.value), made)
        if isinstance(target.value, ast.Name):
            return [self._store_component(target, target.value.id, owner, value)]
        part = self.names.fresh("part")
        self.source.local.add(part)
        if owner is not None:
            self.types[part] = owner
        place_in: ast.Subscript | ast.Attribute = (
            ast.Subscript(name(part), target.slice, ast.Store())
            if isinstance(target, ast.Subscript)
            else ast.Attribute(name(part), target.attr, ast.Store())
        )
        first = assign(part, _loaded(target.value))
        stored = self._store_component(place_in, part, owner, value)
        return [first, stored, *self._store_part(_stored(target.value), name(part))]

    def _store_component(
        self, target: ast.Subscript | ast.Attribute, base: str, owner: Any, value: ast.expr
    ) -> ast.stmt:
        """A local vector, matrix, quaternion or transform with another component."""
        if isinstance(target, ast.Attribute):
            index = "xyzw".find(target.attr) if target.attr != "p" else -1
            if index < 0 and target.attr in ("p", "q") and owner is not None:
                parts = [value if f == target.attr else ast.Attribute(name(base), f, ast.Load()) for f in ("p", "q")]
                return assign(base, ast.Call(name(self._type_name(owner)), parts, []))
            indices: list[ast.expr] = [ast.Constant(index)]
        else:
            indices = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
        if any(isinstance(i, ast.Slice) for i in indices):
            return ast.Assign([target], value)
        function = self.named("with_component", _warp.builtin("assign_copy"))
        return assign(base, ast.Call(name(function), [name(base), *indices, value], []))

    def named(self, wanted: str, value: Any) -> str:
        """The one name that stands for an object."""
        known = next((n for n, other in self.given.items() if other is value), None)
        return known or self.give(wanted, value)

    def _type_of(self, node: ast.expr) -> Any:
        """The type of a variable, or of a field of one; None for other parts."""
        if isinstance(node, ast.Name):
            return self.types.get(node.id)
        if isinstance(node, ast.Attribute):
            fields = _warp.struct_fields(self._type_of(node.value))
            return None if fields is None else fields.get(node.attr)
        return None

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
            return [*first, _with(loop, inner)]
        self.count += 1
        # A variable that the loop makes is there before it, so that its gradient lives through all turns.
        outside = plan.after | plan.restored | plan.state | (assigned & self._read_outside(loop))
        first = [assign(n, self._nothing(self.types[n])) for n in sorted(outside - defined)]
        # What a variable held before the loop stays: the loop's reverse pass overwrites the variable.
        first += [assign(n, name(n)) for n in sorted(assigned & defined)]
        written = _LoopText(self, loop, plan)
        result = [*first, *written.before()]
        if plan.mode == "after":
            inner, _ = self._block(list(loop.body), defined | outside | target)
            result.append(_with(loop, inner))
        elif plan.mode == "turns":
            inner, _ = self._block([s for s in loop.body if not is_exit(s)], defined | outside | target)
            result.append(written.counted(inner))
        return [*result, *written.behind()]

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
        simple = not hasattr(warp_type, "_wp_scalar_type_") and _warp.struct_fields(warp_type) is None
        return ast.Call(name(self._type_name(warp_type)), [ast.Constant(0)] if simple else [], [])

    def _type_name(self, warp_type: Any) -> str:
        for other, known in self._types:
            if other is warp_type:
                return known
        found = self.give("type_" + _warp.type_name(warp_type).split(".")[-1].split("[")[0], warp_type)
        self._types.append((warp_type, found))
        return found

    def give(self, wanted: str, value: Any) -> str:
        """A free name that stands for an object."""
        clean = "".join(c if c.isalnum() or c == "_" else "_" for c in wanted)
        found = self.names.fresh(clean)
        self.given[found] = value
        return found

    def memory(self, wanted: str, warp_type: Any, size: int) -> str:
        """An array of the thread's own."""
        found = self.names.fresh(wanted)
        make = ast.Attribute(name(self.warp), "zeros", ast.Load())
        shape = ast.keyword("shape", ast.Tuple([ast.Constant(size)], ast.Load()))
        call = ast.Call(make, [], [shape, ast.keyword("dtype", name(self._type_name(warp_type)))])
        self.memories.append(assign(found, call))
        return found


def _with(loop: Loop, body: list[ast.stmt]) -> Loop:
    if isinstance(loop, ast.For):
        return ast.copy_location(ast.For(loop.target, loop.iter, body or [ast.Pass()], [], None), loop)
    return ast.copy_location(ast.While(loop.test, body or [ast.Pass()], []), loop)


def _loaded(node: ast.expr) -> ast.expr:
    """The expression of a target."""
    return ast.parse(ast.unparse(node), mode="eval").body


def _stored(node: ast.expr) -> ast.expr:
    """The target of an expression."""
    made = _loaded(node)
    if isinstance(made, (ast.Name, ast.Subscript, ast.Attribute)):
        made.ctx = ast.Store()
    return made


def copied(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Statements that may be changed."""
    return copy.deepcopy(list(body))


class _LoopText:
    """What is written around one loop."""

    def __init__(self, writer: _Writer, loop: Loop, plan: LoopPlan) -> None:
        self.writer, self.loop, self.plan = writer, loop, plan
        number, fresh = writer.count, writer.names.fresh
        types = writer.types
        state = sorted(plan.state)
        self.query = not (isinstance(loop, ast.For) and is_range(loop)) and (
            bool(found_by_query(writer.uses, loop))
            or bool(isinstance(loop, ast.While) and writer.uses.writes(loop.test))
        )
        self.keeps = plan.mode == "turns" and bool(plan.restored or self._sought())
        shape = shape_for([types[n] for n in state], restarts=self.query) if self.keeps else LAST_ONLY
        self.shape = shape
        memory = {n: writer.memory(f"{n}_of_{number}", types[n], shape.size) for n in state}
        turns = writer.memory(f"turn_of_{number}", wp.int32, shape.size) if self.keeps else ""
        self.bounds: list[tuple[str, ast.expr]] = []
        if plan.mode == "turns" and isinstance(loop, ast.For) and is_range(loop):
            assert isinstance(loop.iter, ast.Call)
            a = loop.iter.args
            start, stop, step = (
                (ast.Constant(0), a[0], ast.Constant(1))
                if len(a) == 1
                else (a[0], a[1], a[2] if len(a) > 2 else ast.Constant(1))
            )
            named = zip(("begin", "end", "step"), (start, stop, step), strict=True)
            self.bounds = [(fresh(f"{n}_{number}"), value) for n, value in named]
        own = queries(writer.uses, loop)
        rest = sorted(plan.given if not self.bounds else self._given_by_body())
        rest = [*rest, *(n for n, _ in self.bounds)]
        self.rest = list(dict.fromkeys([*rest, *sorted(own)]))
        self.walk = Walk(
            name=fresh(f"walk_{number}"),
            shape=shape,
            state=memory,
            turns=turns,
            parameters=[*state, *self.rest],
            first=fresh("first"),
            stop=fresh("stop"),
            fresh=fresh,
        )
        self.turns, self.turn, self.at = fresh(f"turns_{number}"), fresh(f"turn_{number}"), fresh(f"at_{number}")
        self._make()

    def _given_by_body(self) -> set[str]:
        """Without what only the loop's bounds are made of: those are arguments themselves."""
        uses, loop = self.writer.uses, self.loop
        body, _ = part_for(uses, loop.body, self.plan.state)
        assigned = uses.writes(loop)
        return {n for s in body for n in uses.reads(s)} & self.plan.given - assigned

    def _make(self) -> None:
        writer, loop, walk = self.writer, self.loop, self.walk
        uses = writer.uses
        body, _ = part_for(uses, copied(loop.body), self.plan.state | self._tested())
        writer._call(body, writer.again)
        lines = [
            line for s in body if not is_exit(s) for line in ast.unparse(ast.fix_missing_locations(s)).splitlines()
        ]
        exits = [s for s in loop.body if is_exit(s)]
        leave = f"{writer.structure.flags[place(loop)]} > {CONTINUE}" if exits else ""
        text = walk.text(self._head, lines, leave, query=self.query)
        annotations = self._annotations(walk.arguments())
        writer.texts.append(text)
        made = writer.tools.func(text, walk.name, self._scope(), annotations)
        writer.given[walk.name] = made
        if self.keeps:
            look = writer.names.fresh(f"look_{writer.count}")
            text = walk.look_text(look, walk.name, self.rest, query=self.query)
            tree = ast.parse(text).body[0]
            assert isinstance(tree, ast.FunctionDef)
            annotations = self._annotations([a.arg for a in tree.args.args])
            writer.texts.append(text)
            writer.given[look] = writer.tools.func(text, look, {walk.name: made}, annotations)
            self.look = look

    def _tested(self) -> set[str]:
        return self.writer.uses.reads(self.loop.test) if isinstance(self.loop, ast.While) else set()

    def _scope(self) -> dict[str, Any]:
        return dict(self.writer.given)

    def _head(self, turn: str) -> str:
        loop = self.loop
        if isinstance(loop, ast.While):
            return f"while {ast.unparse(loop.test)}:"
        target = ast.unparse(loop.target)
        if not self.bounds:
            return f"for {target} in {ast.unparse(loop.iter)}:"
        begin, end, step = (n for n, _ in self.bounds)
        return f"for {target} in range({begin} + {turn} * {step}, {end}, {step}):"

    def _annotations(self, arguments: Sequence[str]) -> dict[str, Any]:
        types, memory = self.writer.types, {m: n for n, m in self.walk.state.items()}
        found: dict[str, Any] = {}
        for argument in arguments:
            if argument in memory:
                found[argument] = _warp.array_annotation(types[memory[argument]], 1)
            elif argument == self.walk.turns:
                found[argument] = _warp.array_annotation(wp.int32, 1)
            else:
                found[argument] = types.get(argument, int)
        return found

    def before(self) -> list[ast.stmt]:
        """Count the turns, and keep their states and what the loop leaves."""
        result: list[ast.stmt] = [assign(n, ast.Call(name("int"), [value], [])) for n, value in self.bounds]
        walk = self.walk
        memories = [*([walk.turns] if walk.turns else []), *walk.state.values()]
        arguments: list[ast.expr] = [name(m) for m in memories]
        if self.keeps:
            arguments += [ast.Constant(0), ast.Constant(-1)]
        arguments += [name(n) for n in walk.parameters]
        result.append(assign(self.turns, ast.Call(name(walk.name), arguments, [])))
        return result

    def counted(self, body: list[ast.stmt]) -> ast.stmt:
        """The loop with its number of turns known, and each beginning with what it had."""
        loop, walk = self.loop, self.walk
        first: list[ast.stmt] = []
        if self.keeps:
            memories = [walk.turns, *walk.state.values()]
            arguments = [*memories, self.turn, self.turns, *self.rest]
            first.append(assign(self.at, ast.Call(name(self.look), [name(n) for n in arguments], [])))
            first += [self._point(n, name(self.at)) for n in sorted(self.plan.restored | self._sought())]
        if self.bounds:
            assert isinstance(loop, ast.For)
            assert isinstance(loop.target, ast.Name)
            begin, _, step = (name(n) for n, _ in self.bounds)
            value = ast.BinOp(begin, ast.Add(), ast.BinOp(name(self.turn), ast.Mult(), step))
            first.append(assign(loop.target.id, value))
        count = ast.Call(name("range"), [name(self.turns)], [])
        target = ast.Name(self.turn, ast.Store())
        return ast.copy_location(ast.For(target, count, [*first, *body] or [ast.Pass()], [], None), loop)

    def _sought(self) -> set[str]:
        """What a query finds at each turn."""
        found = found_by_query(self.writer.uses, self.loop)
        return {found} if found is not None else set()

    def behind(self) -> list[ast.stmt]:
        return [self._point(n, ast.Constant(self.shape.end)) for n in sorted(self.plan.after)]

    def _point(self, variable: str, at: ast.expr) -> ast.stmt:
        writer = self.writer
        made = writer.tools.point(writer.types[variable])
        function = writer.named(made.key, made)
        return assign(variable, ast.Call(name(function), [name(variable), name(self.walk.state[variable]), at], []))
