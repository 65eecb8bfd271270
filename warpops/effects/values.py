"""The abstract values of the interpreter: numbers with their index forms, arrays, structs, and what taints them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from .forms import NO_TRUTH, Form, Truth, Unknown, Whole, join_forms
from .model import Site

# ---------------------------------------------------------------------------------------------------------------------
# Tokens: why a value may be another one by the time Warp's adjoint needs it


@dataclass(frozen=True)
class Carried:
    """Assigned in a loop that Warp doesn't unroll: the adjoint doesn't have the iteration's value."""

    loop: int
    name: str
    frame: int


@dataclass(frozen=True)
class Held:
    """One binding of a local that a loop assigns: the reverse pass of the loop overwrites it."""

    frame: int
    name: str
    version: int


@dataclass(frozen=True)
class Counter:
    """The value that an atomic returned: the replay doesn't execute atomics."""

    array: str
    line: int


@dataclass(frozen=True)
class Component:
    """One binding of a local vector some of whose components are stored later."""

    frame: int
    name: str
    version: int


@dataclass(frozen=True)
class ReadOf:
    """Read from an array, before (False) or possibly after (True) the kernel stored to the element."""

    array: str
    after: bool


@dataclass(frozen=True)
class LocalArrayRead:
    """Read from an array that lives in the thread: its stores aren't replayed."""

    frame: int


@dataclass(frozen=True)
class Left:
    """Some threads may have left a loop that Warp doesn't unroll by ``return``: the adjoint goes on for them."""

    loop: int


@dataclass(frozen=True)
class Through:
    """The gradient of a value goes through a loop that Warp doesn't unroll."""

    loop: int


Token: TypeAlias = Carried | Held | Counter | Component | ReadOf | LocalArrayRead | Left
Tokens: TypeAlias = frozenset[Token]
NO_TOKENS: Tokens = frozenset()


@dataclass(frozen=True)
class Need:
    """The adjoint needs at ``site`` what is behind ``token``; ``order`` counts the steps of the analysis."""

    token: Token
    site: Site
    order: int
    loops: frozenset[int] = frozenset()
    """The loops around it."""


@dataclass(frozen=True)
class Doubt:
    """What Warp's adjoint of a value has wrong: a ``Hazard``, if the value reaches a store."""

    kind: str
    site: Site
    message: str


@dataclass(eq=False)
class Trace:
    """How a value came about: what its adjoint needs, and the values that its gradient goes on to.

    Nothing of it matters before the value reaches a store, so that ``hazards`` walks from the stores back.
    """

    sources: list[Trace]
    needs: tuple[Need, ...] = ()
    doubts: tuple[Doubt | Through, ...] = ()


def merged(traces: Iterable[Trace | None]) -> Trace | None:
    """The trace of a value computed of others."""
    distinct = list({id(trace): trace for trace in traces if trace is not None}.values())
    return distinct[0] if len(distinct) == 1 else Trace(distinct) if distinct else None


# ---------------------------------------------------------------------------------------------------------------------
# Values


class _Nothing:
    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Any = _Nothing()


@dataclass(frozen=True)
class Value:
    """A number, vector, matrix, tile, query: anything that isn't an array or a struct.

    ``active`` says that a gradient may flow through it; ``coords`` that it depends on ``wp.tid()`` through arithmetic,
    ``data`` that it depends on array data or on something unknown. ``const`` is the Python value of what Warp takes for
    a compile-time constant. ``parts`` are the components stored so far into a vector that began without a gradient.
    ``type`` is its Warp type, where that is known. ``trace`` tells what its gradient takes.
    """

    form: Form | None = None
    active: bool = False
    coords: bool = False
    data: bool = False
    tokens: Tokens = NO_TOKENS
    const: Any = NOTHING
    truth: Truth = NO_TRUTH
    parts: frozenset[Any] | None = None
    type: Any = None
    trace: Trace | None = field(default=None, compare=False)


PLAIN = Value()
UNKNOWN = Value(Unknown("a value that can't be followed"), active=True, data=True)


@dataclass(frozen=True)
class Ref:
    """One array that a name may stand for: an array argument's root, and the index fixed so far by axis."""

    root: str
    axes: tuple[Form, ...]
    view: bool = False

    @property
    def free(self) -> tuple[int, ...]:
        return tuple(axis for axis, form in enumerate(self.axes) if isinstance(form, Whole))


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Struct:
    """A ``@wp.struct`` value: an argument's (``path``), or one made in the kernel; ``fields`` are those set here."""

    type: Any
    path: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def with_field(self, name: str, value: Any) -> Struct:
        return replace(self, fields={**self.fields, name: value})


@dataclass(frozen=True)
class Tuple:
    items: tuple[Any, ...]


@dataclass(frozen=True)
class Shapes:
    """``x.shape``."""

    array: Array


@dataclass(frozen=True)
class Object:
    """A Python object known while compiling: a module, a type, a ``wp.func``, a builtin's name."""

    value: Any


class SomeType:
    """Stands for a value type that only Warp's type inference knows: ``type(x)``, ``x.dtype``."""


@dataclass(frozen=True)
class Builtin:
    name: str


@dataclass(frozen=True)
class Element:
    """An array element passed by reference (``wp.ref``)."""

    array: Array
    forms: tuple[Form, ...]
    component: bool


Abstract: TypeAlias = Value | Array | Struct | Tuple | Shapes | Object | Builtin | Element
_A = TypeVar("_A", bound=Abstract)


def tokens_of(value: Abstract) -> Tokens:
    if isinstance(value, (Value, Array)):
        return value.tokens
    if isinstance(value, Tuple):
        return frozenset().union(*(tokens_of(item) for item in value.items))
    if isinstance(value, Struct):
        return frozenset().union(*(tokens_of(item) for item in value.fields.values()))
    return NO_TOKENS


def is_active(value: Abstract) -> bool:
    if isinstance(value, Value):
        return value.active
    if isinstance(value, Tuple):
        return any(is_active(item) for item in value.items)
    if isinstance(value, Struct):
        return any(is_active(item) for item in value.fields.values())
    return isinstance(value, Element)


def traces_of(value: Abstract) -> Iterator[Trace | None]:
    """The traces of all active numbers in a value."""
    if isinstance(value, Value):
        if value.active:
            yield value.trace
    elif isinstance(value, (Tuple, Struct)):
        for item in value.items if isinstance(value, Tuple) else value.fields.values():
            yield from traces_of(item)


def with_trace(value: _A, trace: Trace) -> _A:
    """The value, of which all active numbers have that trace."""
    if isinstance(value, Value):
        return replace(value, trace=trace) if value.active else value
    if isinstance(value, Tuple):
        return replace(value, items=tuple(with_trace(item, trace) for item in value.items))
    if isinstance(value, Struct):
        return replace(value, fields={name: with_trace(item, trace) for name, item in value.fields.items()})
    return value


def with_tokens(value: Abstract, tokens: Tokens) -> Abstract:
    """The value, tainted by more tokens."""
    if not tokens:
        return value
    if isinstance(value, (Value, Array)):
        return value if tokens <= value.tokens else replace(value, tokens=value.tokens | tokens)
    if isinstance(value, Tuple):
        return Tuple(tuple(with_tokens(item, tokens) for item in value.items))
    if isinstance(value, Struct):
        from .source import struct_field  # the types of fields are Warp's

        names = getattr(value.type, "vars", {})
        return replace(value, fields={name: with_tokens(struct_field(value, name), tokens) for name in names})
    return value


def without_tokens(
    value: Abstract,
    kind: type[Any] | tuple[type[Any], ...],
    frame: int | None = None,
    loops: Collection[int] | None = None,
) -> Abstract:
    """The value, without the tokens of a kind (that a frame, or a loop of these, made)."""

    def kept(token: Token) -> bool:
        of_frame = frame is None or getattr(token, "frame", frame) == frame
        return not (isinstance(token, kind) and of_frame and (loops is None or getattr(token, "loop", None) in loops))

    if isinstance(value, (Value, Array)):
        if not value.tokens:
            return value
        return replace(value, tokens=frozenset(token for token in value.tokens if kept(token)))
    if isinstance(value, Tuple):
        return Tuple(tuple(without_tokens(item, kind, frame, loops) for item in value.items))
    if isinstance(value, Struct):
        return replace(value, fields={n: without_tokens(item, kind, frame, loops) for n, item in value.fields.items()})
    return value


def join(a: Abstract | None, b: Abstract | None) -> Abstract:
    """A value that is either: exact only where both agree."""
    if a is None or b is None:
        # Warp takes a variable assigned on one path only as that path's; it is undefined elsewhere.
        present = a if b is None else b
        assert present is not None
        return present
    if a is b:
        return a
    if isinstance(a, Value) and isinstance(b, Value):
        trace = merged((*traces_of(a), *traces_of(b)))
        if a == b:
            return replace(a, trace=trace)
        return Value(
            form=join_forms(a.form, b.form),
            active=a.active or b.active,
            coords=a.coords or b.coords,
            data=a.data or b.data,
            tokens=a.tokens | b.tokens,
            parts=None if a.parts is None or b.parts is None else a.parts | b.parts,
            type=a.type if a.type is b.type else None,
            trace=trace,
        )
    if isinstance(a, Array) and isinstance(b, Array):
        return Array(
            refs=a.refs | b.refs,
            ndim=a.ndim if a.ndim == b.ndim else 0,
            dtype=a.dtype if a.dtype is b.dtype else (a.dtype or b.dtype),
            local=a.local or b.local,
            tokens=a.tokens | b.tokens,
            copied=True,
            doubt=a.doubt or b.doubt,
        )
    if isinstance(a, Struct) and isinstance(b, Struct) and a.type is b.type:
        return _join_structs(a, b)
    if a == b and not isinstance(a, Tuple):
        return a
    if isinstance(a, Tuple) and isinstance(b, Tuple) and len(a.items) == len(b.items):
        return Tuple(tuple(join(x, y) for x, y in zip(a.items, b.items, strict=True)))
    refs = frozenset().union(*(v.refs for v in (a, b) if isinstance(v, Array)))
    if refs:
        return Array(refs, 0, local=True, tokens=tokens_of(a) | tokens_of(b))
    return replace(UNKNOWN, tokens=tokens_of(a) | tokens_of(b), trace=merged((*traces_of(a), *traces_of(b))))


def _join_structs(a: Struct, b: Struct) -> Struct:
    from .source import struct_field  # the types of fields are Warp's

    if a == b:
        return replace(a, fields={name: join(item, b.fields[name]) for name, item in a.fields.items()})
    fields = {}
    for name in getattr(a.type, "vars", {}):
        fields[name] = join(struct_field(a, name), struct_field(b, name))
    return Struct(a.type, None, fields)
