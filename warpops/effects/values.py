"""The abstract values of the interpreter: numbers with their index forms, arrays, structs, and what taints them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from ..frozen import frozen, hashed, replace
from .forms import ALL, NO_TRUTH, NONE, Coordinates, Form, Truth, Unknown, Whole
from .model import Site

# ---------------------------------------------------------------------------------------------------------------------
# Tokens: why a value may be another one by the time Warp's adjoint needs it


@frozen
class Carried:
    """Assigned in a loop that Warp doesn't unroll: the adjoint doesn't have the iteration's value."""

    loop: int
    name: str
    frame: int


@hashed
class Held:
    """One binding of a local that a loop assigns: the reverse pass of the loop overwrites it."""

    frame: int
    name: str
    version: int


@frozen
class Counter:
    """The value that an atomic returned: the replay doesn't execute atomics."""

    array: str
    line: int


@frozen
class Component:
    """One binding of a local vector some of whose components are stored later."""

    frame: int
    name: str
    version: int


@hashed
class ReadOf:
    """Read from an array at a place, before (False) or possibly after (True) the kernel wrote the element."""

    array: str
    after: bool
    site: Site
    kind: str = "read"
    """``"read"``, or the atomic whose adjoint looks at the array."""


@frozen
class LocalArrayRead:
    """Read from an array that lives in the thread: its stores aren't replayed."""

    frame: int


@frozen
class Left:
    """Some threads may have left a loop that Warp doesn't unroll by ``return``: the adjoint goes on for them."""

    loop: int


@frozen
class Through:
    """The gradient of a value goes through a loop that Warp doesn't unroll."""

    loop: int
    skipped: bool = False
    """It is of a turn that ``continue`` ends, or ends what came before."""


@frozen
class Given:
    """Whatever is behind an argument of a function that is interpreted for all its calls."""

    parameter: int
    stray: bool
    """As an index it may be another one in the adjoint."""


Token: TypeAlias = Carried | Held | Counter | Component | ReadOf | LocalArrayRead | Left | Given
Tokens: TypeAlias = frozenset[Token]
NO_TOKENS: Tokens = frozenset()


@frozen
class Need:
    """The adjoint needs at ``site`` what is behind ``token``; ``order`` counts the steps of the analysis."""

    token: Token
    site: Site
    order: int
    loops: frozenset[int] = frozenset()
    """The loops around it."""


@frozen
class Needs:
    """The needs of one step."""

    tokens: Tokens
    site: Site
    order: int
    loops: frozenset[int]


@frozen
class Doubt:
    """What Warp's adjoint of a value has wrong: a ``Hazard``, if the value reaches a store."""

    kind: str
    site: Site
    message: str


@dataclass(eq=False, slots=True)
class Trace:
    """How a value came about: what its adjoint needs, and the values that its gradient goes on to.

    Nothing of it matters before the value reaches a store, so that ``hazards`` walks from the stores back.
    """

    sources: list[Trace]
    needs: tuple[Needs, ...] = ()
    doubts: tuple[Doubt | Through, ...] = ()


def merged(traces: Iterable[Trace | None]) -> Trace | None:
    """The trace of a value computed of others."""
    distinct: list[Trace] = []
    for trace in traces:
        if trace is not None and trace not in distinct:
            distinct.append(trace)
    return distinct[0] if len(distinct) == 1 else Trace(distinct) if distinct else None


# ---------------------------------------------------------------------------------------------------------------------
# Values


class _Nothing:
    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Any = _Nothing()


@hashed
class Value:
    """A number, vector, matrix, tile, query: anything that isn't an array or a struct.

    ``active`` says that a gradient may flow through it; ``coords`` that it depends on ``wp.tid()`` through arithmetic,
    ``data`` that it depends on array data or on something unknown; ``varies`` are all coordinates that it may depend on,
    through data too. ``const`` is the Python value of what Warp takes for a compile-time constant: a literal, a name from
    outside, a variable that is one. ``parts`` are the components stored so far into a vector that began without a gradient.
    ``type`` is its Warp type, where that is known. ``trace`` tells what its gradient takes.
    """

    form: Form | None = None
    active: bool = False
    coords: bool = False
    data: bool = False
    tokens: Tokens = NO_TOKENS
    const: Any = NOTHING
    truth: Truth = field(default=NO_TRUTH, hash=False)
    parts: frozenset[Any] | None = None
    varies: Coordinates = NONE
    type: Any = None
    trace: Trace | None = field(default=None, compare=False)


PLAIN = Value()
UNKNOWN = Value(Unknown("a value that can't be followed", varies=ALL), active=True, data=True, varies=ALL)


@frozen
class Ref:
    """One array that a name may stand for: an array argument's root, and the index fixed so far by axis."""

    root: str
    axes: tuple[Form, ...]
    view: bool = False

    @property
    def free(self) -> tuple[int, ...]:
        return tuple(axis for axis, form in enumerate(self.axes) if isinstance(form, Whole))


@frozen
class Array:
    """An array: one of ``refs``, or (``local``) one that isn't an argument. ``ndim`` 0 means unknown."""

    refs: frozenset[Ref]
    ndim: int
    dtype: Any = None
    local: bool = False
    tokens: Tokens = NO_TOKENS
    copied: bool = False
    """Not the argument itself, but a descriptor that the kernel made of it: a view, another name, a choice."""
    doubt: Doubt | None = None
    """What Warp's adjoint has wrong of the values that it holds."""


@frozen
class Struct:
    """A ``@wp.struct`` value: an argument's (``path``), or one made in the kernel; ``fields`` are those set here."""

    type: Any
    path: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    tokens: Tokens = NO_TOKENS
    """What stands for it as a whole; its fields have their own."""

    def with_field(self, name: str, value: Any) -> Struct:
        return replace(self, fields={**self.fields, name: value})


@frozen
class Tuple:
    items: tuple[Any, ...]


@frozen
class Shapes:
    """``x.shape``."""

    array: Array


@frozen
class Object:
    """A Python object known while compiling: a module, a type, a ``wp.func``, a builtin's name."""

    value: Any


class SomeType:
    """Stands for a value type that only Warp's type inference knows: ``type(x)``, ``x.dtype``."""


@frozen
class Builtin:
    name: str


@frozen
class Element:
    """An array element passed by reference (``wp.ref``)."""

    array: Array
    forms: tuple[Form, ...]
    component: bool


Abstract: TypeAlias = Value | Array | Struct | Tuple | Shapes | Object | Builtin | Element
_A = TypeVar("_A", bound=Abstract)


def variable(value: _A) -> _A:
    """The value, where Warp has a copy of it: that isn't a constant, whatever it is a copy of, and unrolls no loop."""
    if isinstance(value, Value):
        return value if value.const is NOTHING else replace(value, const=NOTHING)
    return Tuple(tuple(map(variable, value.items))) if isinstance(value, Tuple) else value  # type: ignore[return-value]


def less(tokens: Tokens, kind: type[Any]) -> Tokens:
    gone = [token for token in tokens if isinstance(token, kind)]
    return tokens.difference(gone) if gone else tokens


def tokens_of(value: Abstract) -> Tokens:
    if isinstance(value, (Value, Array)):
        return value.tokens
    if isinstance(value, Tuple):
        return frozenset().union(*(tokens_of(item) for item in value.items))
    if isinstance(value, Struct):
        return value.tokens.union(*(tokens_of(item) for item in value.fields.values()))
    return NO_TOKENS


def is_active(value: Abstract) -> bool:
    if isinstance(value, Value):
        return value.active
    if isinstance(value, Tuple):
        return any(is_active(item) for item in value.items)
    if isinstance(value, Struct):
        return any(is_active(item) for item in value.fields.values())
    return isinstance(value, Element)


def traces_of(value: Abstract) -> Sequence[Trace | None]:
    """The traces of all active numbers in a value."""
    if isinstance(value, Value):
        return (value.trace,) if value.active else ()
    if isinstance(value, (Tuple, Struct)):
        items = value.items if isinstance(value, Tuple) else value.fields.values()
        return [trace for item in items for trace in traces_of(item)]
    return ()


def with_trace(value: _A, trace: Trace) -> _A:
    """The value, of which all active numbers have that trace."""
    if isinstance(value, Value):
        return replace(value, trace=trace) if value.active else value
    if isinstance(value, Tuple):
        return replace(value, items=tuple(with_trace(item, trace) for item in value.items))
    if isinstance(value, Struct):
        return replace(value, fields={name: with_trace(item, trace) for name, item in value.fields.items()})
    return value


def without_tokens(
    value: Abstract,
    kind: type[Any] | tuple[type[Any], ...],
    frame: int | None = None,
    loops: Collection[int] | None = None,
) -> Abstract:
    """The value, without the tokens of a kind (that a frame, or a loop of these, made)."""

    if isinstance(value, (Value, Array)):
        if not value.tokens:
            return value
        gone = [
            token
            for token in value.tokens
            if isinstance(token, kind)
            and (frame is None or getattr(token, "frame", frame) == frame)
            and (loops is None or getattr(token, "loop", None) in loops)
        ]
        return replace(value, tokens=value.tokens.difference(gone)) if gone else value
    if isinstance(value, Tuple):
        return Tuple(tuple(without_tokens(item, kind, frame, loops) for item in value.items))
    if isinstance(value, Struct):
        fields = {n: without_tokens(item, kind, frame, loops) for n, item in value.fields.items()}
        own = without_tokens(Value(tokens=value.tokens), kind, frame, loops)
        return replace(value, fields=fields, tokens=tokens_of(own))
    return value
