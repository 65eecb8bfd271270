"""Calls: user functions are interpreted at each call with the arguments' abstract values; builtins by what they do."""

from __future__ import annotations

import ast
from typing import Any

from ..frozen import frozen, replace
from ..private import warp_source
from ..private.warp_source import closure_of, declared_overloads, grad_target, is_function, parameters
from ..private.warp_types import holds_floats, is_array, is_reference, is_struct
from . import access, builtins, places
from . import numbers as effects_numbers
from .arguments import Arguments, arguments_of, arrays_in, bind, fits
from .forms import ALL, Unknown
from .joins import join, meet, with_tokens
from .names import (
    Code,
    as_abstract,
    code_of,
    is_address_of,
    is_grad,
    is_static,
    is_type,
    of_type,
)
from .record import Frame, Record
from .summaries import Bound, summarised
from .values import (
    NO_TOKENS,
    NOTHING,
    UNKNOWN,
    Abstract,
    Array,
    Builtin,
    Carried,
    Component,
    Counter,
    Doubt,
    Element,
    Held,
    LocalArrayRead,
    Object,
    SomeType,
    Struct,
    Value,
    is_active,
    merged,
    tokens_of,
    traces_of,
    variable,
    without_tokens,
)
from .wholes import parameters_as_wholes

MAX_DEPTH = 40


def call(record: Record, frame: Frame, node: ast.Call, *, used: bool) -> Abstract:
    """The effects and the result of a call."""
    target = record.evaluate(record, frame, node.func)
    if isinstance(target, Builtin):
        arguments = arguments_of(record, frame, node)
        result = builtins.builtin(record, frame, target.name, arguments, node, used)
        return _mapped(record, frame, arguments, result, node) if target.name == "tile_map" else result
    obj = target.value if isinstance(target, Object) else None
    if is_static(obj):
        return _static(record, frame, node)
    if is_address_of(obj):
        return _address_of(record, frame, node)
    arguments = arguments_of(record, frame, node)
    if is_function(obj):
        return _user_function(record, frame, obj, arguments, node)
    if is_struct(obj):
        return _construct(obj, arguments)
    if obj is type:
        given = arguments.positional[0] if arguments.positional else UNKNOWN
        struct = given.type if isinstance(given, (Struct, Value)) else None
        return Object(struct if is_struct(struct) else SomeType)
    if obj is not None and is_type(obj):
        return builtins.construct(record, frame, obj, arguments, node)
    if is_grad(obj):
        inner = arguments.positional[0] if arguments.positional else None
        return Object(_Gradient(inner))
    if isinstance(obj, _Gradient) or grad_target(obj) is not None:
        return _gradient(record, frame, arguments, node)
    if obj is not None:
        name = getattr(obj, "__name__", "")
        return builtins.builtin(record, frame, name, arguments, node, used)
    record.opaque.setdefault(frame.code.site(node))
    return _leaves_sight(record, frame, arguments, node, active=True)


@frozen
class _Gradient:
    """What ``wp.grad(f)`` makes; its calls take no part in differentiation."""

    function: Any


def _gradient(record: Record, frame: Frame, arguments: Arguments, node: ast.Call) -> Value:
    """A call of ``wp.grad(f)``: no gradient passes it, nor the function that holds it."""
    site = frame.code.site(node)
    frame.lost = Doubt(
        "no-adjoint", site, "Warp doesn't differentiate what wp.grad computes, nor a function that calls it"
    )
    result = _leaves_sight(record, frame, arguments, node, active=True)
    return record.doubting(result, [frame.lost])


def _mapped(record: Record, frame: Frame, arguments: Arguments, result: Abstract, node: ast.Call) -> Abstract:
    """``wp.tile_map(f, ..)``: the function runs on the tiles' elements."""
    function, *tiles = arguments.positional or (UNKNOWN,)
    if isinstance(function, Builtin):
        numbers = [tile for tile in tiles if isinstance(tile, Value)]
        inner: Abstract = effects_numbers.differentiated(record, frame, function.name, numbers, None, node)
    elif isinstance(function, Object) and is_function(function.value):
        inner = _user_function(
            record, frame, function.value, Arguments(tuple(tiles), {}, (None,) * len(tiles), {}), node
        )
    else:
        return result
    assert isinstance(result, Value)
    return replace(result, active=is_active(inner), trace=merged(traces_of(inner)))


def _static(record: Record, frame: Frame, node: ast.Call) -> Abstract:
    """A ``wp.static`` that Warp left for later, since it depends on the variable of an unrolled loop."""
    constants = {
        name: value.const
        for name, value in frame.env.items()
        if isinstance(value, Value) and value.const is not NOTHING
    }
    found = _evaluate_static(frame.code, node, constants)
    if found is NOTHING:
        return UNKNOWN
    return as_abstract(found)


def _evaluate_static(code: Code, node: ast.Call, constants: dict[str, Any]) -> Any:
    """The value of ``wp.static(...)``, or NOTHING where it depends on what isn't known yet."""
    argument = node.args[0] if node.args else node.keywords[0].value if node.keywords else None
    if argument is None:
        return NOTHING
    scope = {**code.func.__globals__, **closure_of(code.func), **code.given, **constants}
    try:
        compiled = compile(ast.fix_missing_locations(ast.Expression(argument)), code.file, "eval")
        return eval(compiled, scope)
    except Exception:  # the user's expression: whatever it raises, its value isn't known here
        return NOTHING


def _address_of(record: Record, frame: Frame, node: ast.Call) -> Abstract:
    for argument in node.args:
        place = places.locate(record, frame, argument)
        array = place.array if place.array is not None else place.value
        if isinstance(array, Array):
            access.escape(record, array, frame.code.site(node))
    record.opaque.setdefault(frame.code.site(node))
    return UNKNOWN


def _leaves_sight(record: Record, frame: Frame, arguments: Arguments, node: ast.AST, *, active: bool) -> Value:
    """A call that can't be followed: every array in it escapes, and every local given to it may change."""
    record.acts()
    site = frame.code.site(node)
    for value in arguments.values:
        record.stores(value, tokens_of(value), site)
        for array in arrays_in(value):
            access.escape(record, array, site)
    active = active and any(is_active(value) for value in arguments.values)
    return Value(Unknown("the result of a call that can't be followed"), active=active, data=True, varies=ALL)


def _construct(struct: Any, arguments: Arguments) -> Struct:
    fields = dict(zip(struct.vars, arguments.positional, strict=False))
    return Struct(struct, None, {**fields, **arguments.keywords})


# ---------------------------------------------------------------------------------------------------------------------
# User functions


def _user_function(record: Record, frame: Frame, function: Any, arguments: Arguments, node: ast.Call) -> Abstract:
    candidates = []
    for overload in declared_overloads(function):
        bound = bind(overload, arguments)
        if bound is not None and all(fits(t, bound[name][0]) for name, t in parameters(overload).items()):
            candidates.append((overload, bound))
    if not candidates or record.depth >= MAX_DEPTH:
        record.opaque.setdefault(frame.code.site(node))
        return _leaves_sight(record, frame, arguments, node, active=True)
    if len(candidates) == 1:
        return _invoke(record, frame, *candidates[0], node)
    return _alternatives(record, frame, candidates, node)


def _alternatives(record: Record, frame: Frame, candidates: list[tuple[Any, Bound]], node: ast.Call) -> Abstract:
    """Overloads that can't be told apart without types: one of them is called."""
    before, ends, result = record.state, [], None
    record.possible += 1
    for function, bound in candidates:
        record.state = before.copy()
        value = _invoke(record, frame, function, bound, node)
        ends.append(record.state)
        result = value if result is None else join(result, value)
    record.possible -= 1
    record.state = meet(before, ends)
    return result if result is not None else UNKNOWN


def _invoke(record: Record, frame: Frame, function: Any, bound: Bound, node: ast.Call) -> Abstract:
    site = frame.code.site(node)
    given = [value for value, _ in bound.values()]
    arrays = [array for value in given for array in arrays_in(value)]
    native = getattr(function, "native_snippet", None) is not None
    custom = getattr(function, "custom_grad_func", None) is not None
    if custom or getattr(function, "adj_native_snippet", None) is not None:
        record.unsafe.update(ref.root for array in arrays for ref in array.refs)
    if custom or getattr(function, "custom_replay_func", None) is not None:
        record.revisited.update(ref.root for array in arrays for ref in array.refs)
    if native:
        return _native(record, frame, function, bound, arrays, node)
    if custom and any(array.copied and holds_floats(array.dtype) for array in arrays):
        record.warn(
            Doubt(
                "view",
                site,
                f"'{function.key}' has a gradient of its own, which writes to a null array where it is given a view of an "
                f"array; give it the array and the index",
            )
        )
    # The adjoint gets a vector, a struct or a random state as it is then.
    whole = NO_TOKENS.union(*map(tokens_of, given))
    whole = frozenset(token for token in whole if isinstance(token, Component))
    stored = len(record.stored)
    record.shielded += custom
    replayed = getattr(function, "custom_replay_func", None) is None
    record.inside += replayed
    result = summarised(record, frame, function, bound, node, _inline)
    if result is None:
        record.within[function] = None
        result = _inline(record, frame, function, bound, node)
    record.shielded -= custom
    record.inside -= replayed
    if not replayed:
        result = without_tokens(result, Counter)
    if whole and len(record.stored) > stored:
        record.stores(Value(), whole, site)
    return record.needing(result, whole, site)


def _inline(record: Record, frame: Frame, function: Any, bound: Bound, node: ast.Call) -> Abstract:
    types = parameters(function)
    references = frozenset(name for name, warp_type in types.items() if is_reference(warp_type))
    env: dict[str, Abstract] = {}
    for name, (value, argument) in bound.items():
        if name in references and argument is not None:
            env[name] = _by_reference(record, frame, value, argument)
        else:
            env[name] = variable(value)
    callee = Frame(code_of(function), record.path(frame, node, function), env, references)
    parameters_as_wholes(record, callee, env.keys() - references)
    for name in callee.code.looped & env.keys():
        env[name] = with_tokens(env[name], frozenset({Held(callee.id, name, 0)}))
    before = record.state
    record.state = before.copy()
    record.depth += 1
    record.execute(record, callee, callee.code.body)
    record.depth -= 1
    record.state = meet(before, record.ends(callee))
    for name in references:
        argument = bound[name][1]
        if isinstance(argument, ast.Name) and not isinstance(env[name], Element):
            frame.env[argument.id] = UNKNOWN
    result: Abstract | None = None
    for state, value in callee.returns:
        own = access.settled(value, state.facts) if len(callee.returns) > 1 else value
        result = own if result is None else join(result, own)
    if isinstance(result, Value) and len(callee.returns) > 1:
        chosen_by = (c.varies for state, _ in callee.returns for c in state.conditions)
        result = replace(result, varies=result.varies.union(*chosen_by))
    if result is None:
        return Value(Unknown("a call without a result"))
    site = frame.code.site(node)
    if len(callee.returns) > 1:
        # The adjoint of the function goes the way that these conditions say.
        conditions = [c for state, _ in callee.returns for c in state.conditions[len(before.conditions) :]]
        taken = NO_TOKENS.union(*(c.tokens for c in conditions))
        result = with_tokens(record.needing(result, taken, site), taken)
    if callee.lost is not None:
        result = record.doubting(result, [callee.lost])
    # Replaying the call gives the right result, whatever loops are inside.
    return variable(without_tokens(result, (Carried, Component, Held, LocalArrayRead), callee.id))


def _by_reference(record: Record, frame: Frame, value: Abstract, node: ast.expr) -> Abstract:
    place = places.locate(record, frame, node)
    if place.array is not None:
        return Element(place.array, place.forms, place.component)
    return value


def _native(record: Record, frame: Frame, function: Any, bound: Bound, arrays: list[Array], node: ast.Call) -> Abstract:
    """A native snippet: its arrays escape, and what it refers to may change."""
    site = frame.code.site(node)
    types = parameters(function)
    memory = bool(arrays)
    for name, (_, argument) in bound.items():
        if is_reference(types.get(name)) and argument is not None:
            memory = True
            place = places.locate(record, frame, argument)
            if place.array is not None:
                access.escape(record, place.array, site)
            elif isinstance(argument, ast.Name):
                frame.env[argument.id] = UNKNOWN
    for array in arrays:
        access.escape(record, array, site)
    values = [value for value, _ in bound.values()]
    doubts = []
    if getattr(function, "adj_native_snippet", None) is None:
        message = f"the native function '{function.key}' has no adj_snippet, so that no gradient passes it"
        doubts.append(Doubt("no-adjoint", site, message))
    if memory:
        record.acts()
        for value in values:
            record.stores(value, tokens_of(value), site)
        if any(map(is_active, values)) or any(holds_floats(array.dtype) for array in arrays):
            record.warn(*doubts)
    result = Value(
        Unknown(f"the result of the native function '{function.key}'"),
        active=any(map(is_active, values)),
        data=True,
        varies=ALL,
        trace=merged(trace for value in values for trace in traces_of(value)),
    )
    result = record.doubting(record.needing(result, NO_TOKENS.union(*map(tokens_of, values)), site), doubts)
    returned = warp_source.returned_type(function)
    if is_array(returned) or is_struct(returned):
        record.opaque.setdefault(site)
        return of_type(None, returned)
    return result
