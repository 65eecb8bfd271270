"""Taking operators out of PyTorch's registry again, at a time and in an order that it survives.

PyTorch (2.13) knows an operator in two places: the dispatcher, by name and overload name, and TorchScript's table, by
name, arguments and results. Overloads that differ in nothing but their overload name, such as those of an op that was
defined twice, share one entry of that table. Removing one removes the entry; removing a second one then stops half-way,
and leaves a pointer to what is gone: the next look at the name crashes. So between two removals there has to be a
definition with the same arguments, which renews the entry; until one comes, the second operator stays.

The garbage collector may also ask for a removal while PyTorch walks over the operators of the same name. So nothing is
removed while anything is being registered. Where an operator can't wait, since its name is to be defined anew
(``take_out``), an overload that nobody calls is defined in between, and waits in its place.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import ArgumentError
from ..private import locks, torch_registry

_lock = locks.reentrant()
_registering = False
_entries: set[str] = set()
"""Entries of TorchScript's table that are there."""
_callable: dict[tuple[str, str], list[Registered]] = {}
"""The ops of each name that can still be called, the newest last."""
_overloads: dict[tuple[str, str], dict[str, Any]] = {}
"""The overloads of each name, public and raw, by their own names: PyTorch must not make them anew."""
_waiting: dict[Registered, None] = {}
"""What nothing can call any more, and is still there."""
_later: list[Callable[[], None]] = []
"""What waits for the end of a registration."""
_spares = itertools.count()
_known: dict[Registered, None] = {}
"""All that is registered, in order. What it holds, no finaliser of PyTorch's takes out behind our back."""


def _gone(name: str, *arguments: Any, **named: Any) -> None:
    raise RuntimeError(f"{name} is gone: its WarpOp was collected")


def _nothing() -> None:
    pass


@dataclass(eq=False)
class Registered:
    """The operators of one op, from before the first is defined until the last is gone."""

    namespace: str
    schemas: dict[str, str]
    """By name, without the namespace, the public one first."""
    order: int | None = None
    """Its op's place among those of its name; None where the operators are no op's of its own."""
    released: Callable[[], None] = _nothing
    """Called once nothing can call them any more."""
    library: Any = None
    public: Any = None
    ways: Any = None
    """The op's record, while it can be called."""
    key: str = ""
    """The name of all its overloads."""
    shims: list[Shim] = field(default_factory=list)

    @property
    def name(self) -> str:
        return next(iter(self.schemas))

    @functools.cached_property
    def entries(self) -> list[str]:
        """What they have in TorchScript's table, once they are defined."""
        parse = torch_registry.parse_schema
        if parse is None:
            return []
        return [_entry(parse(f"{self.namespace}::{name}{text}")) for name, text in self.schemas.items()]


class Shim(functools.partial):  # type: ignore[type-arg]
    """A function that PyTorch is given. PyTorch keeps what it was given for good, so that this is emptied."""

    def empty(self, name: str) -> None:
        """Let go of the function of an op that nobody holds any more."""
        self.__setstate__((_gone, (name,), {}, None))  # type: ignore[attr-defined]


Fill = Callable[[Registered], tuple[dict[str, Any], Any]]


def register(
    namespace: str,
    schemas: dict[str, str],
    fill: Fill,
    order: int | None = None,
    released: Callable[[], None] = _nothing,
) -> Registered:
    """Register the operators of one op; an error, at whatever line, takes all of them back.

    Args:
        namespace: of the operators.
        schemas: by name, the public operator's first.
        fill: defines and implements them in the library that it is given, and looks them up. It returns the overloads
            by name, and an object that whoever can call them holds.
        order: the op's place among those of its name: ``torch.ops`` calls the last. None where it calls none of these.
        released: called once nothing can call them any more.
    """
    operators = Registered(namespace, schemas, order, released)
    with quiet():
        _define(operators, fill)
    return operators


def free_key(operators: Registered, key: str) -> str:
    """The overload's name for operators that are being registered: a contract, with a number where one is there."""
    there = [_overloads.get((operators.namespace, name), {}) for name in operators.schemas]
    numbered = (key, *(f"{key}_{number}" for number in range(1, 1 + sum(map(len, there)))))
    return next(one for one in numbered if not any(one in overloads for overloads in there))


def take_out(operators: Registered) -> None:
    """Take operators out now, since one of their names is to be defined anew."""
    with quiet():
        if operators in _known:
            spare = None
            if not all(entry in _entries for entry in operators.entries):
                spare = Registered(operators.namespace, operators.schemas)
                lease = _define(spare, _spare)
            _remove(operators)
            if spare is not None:
                del lease


def first_of_its_name(operators: Registered) -> None:
    """Have TorchScript find an op that ``torch.jit.trace`` records: it goes by names alone, and takes the oldest.

    Raises:
        ArgumentError: an older op of the name can still be called.
    """

    def older() -> list[Registered]:
        before = itertools.takewhile(lambda one: one is not operators, _known)
        return [one for one in before if one.order is not None and (one.namespace, one.name) == name]

    name = operators.namespace, operators.name
    if not _waiting.keys() >= set(older()):
        gc.collect()
    with quiet():
        for one in older():
            if one not in _waiting:
                raise ArgumentError(
                    f"{'::'.join(name)}: torch.jit.trace tells operators apart by their names, and an older op has this one; "
                    f"give the op another with name='namespace::op', or let go of the older one"
                )
            take_out(one)


def is_there(operators: Registered) -> bool:
    """Whether operators were defined, and not taken out since."""
    return operators in _known and operators.public is not None


def newest(namespace: str, name: str) -> Registered | None:
    """The operators of the newest op of a name that can be called."""
    left = _callable.get((namespace, name))
    return left[-1] if left else None


def when_quiet(act: Callable[[], None]) -> None:
    """Do what changes a name: now, or once what is being registered is there."""
    with _lock:
        _later.append(act)
        _sweep()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing is removed inside of it, nor done that waits, whatever the garbage collector finds."""
    with _lock:
        try:
            with _held():
                yield
        finally:
            _sweep()


@contextlib.contextmanager
def _held() -> Iterator[None]:
    global _registering
    before = _registering  # no counter: one that an interrupt left behind would be wrong for good
    try:
        _registering = True
        yield
    finally:
        _registering = before


def _define(operators: Registered, fill: Fill) -> Any:
    namespace = operators.namespace
    try:
        _known[operators] = None
        operators.library = torch.library.Library(namespace, "FRAGMENT")
        overloads, lease = fill(operators)
        operators.public = overloads[operators.name]
        operators.entries = [_entry(overload._schema) for overload in overloads.values()]
        operators.key = operators.public._overloadname  # by which they are taken back
        for name, overload in overloads.items():
            _overloads.setdefault((namespace, name), {})[overload._overloadname] = overload
        _entries.update(operators.entries)
        if operators.order is not None:
            same = _callable.setdefault((namespace, operators.name), [])
            same.append(operators)
            same.sort(key=lambda one: one.order or 0)  # an op that is registered anew stays behind those after it
        for name in operators.schemas:
            _publish(namespace, name)
        weakref.finalize(lease, release, operators).atexit = False
    except BaseException:
        _remove(operators)  # all of its entries are there, since it was defined last
        raise
    return lease


class _Spare:
    """What keeps an overload that nobody calls."""


def _spare(operators: Registered) -> tuple[dict[str, Any], Any]:
    """Overloads that renew the entries of others."""
    key, found = f"spare{next(_spares)}", {}
    for name, schema in operators.schemas.items():
        torch_registry.forget(operators.namespace, name)
        operators.library.define(f"{name}.{key}{schema}")
        torch_registry.forget(operators.namespace, name)
        found[name] = getattr(getattr(getattr(torch.ops, operators.namespace), name), key)
    return found, _Spare()


@atexit.register
def _leave() -> None:
    """At exit PyTorch takes all libraries out, in an order of its own: it mustn't look at names on the way."""
    for operators in _known:
        if operators.library is not None:
            torch_registry.clear(operators.library)


def release(operators: Registered) -> None:
    """Unregister operators that nothing can call any more, now or as soon as that is safe."""
    with _lock:
        if operators in _known:
            _waiting[operators] = None
        when_quiet(functools.partial(_let_go, operators))


def _let_go(operators: Registered) -> None:
    """Have the name stand for what is left of it."""
    if operators in _known:
        called = _uncallable(operators)
        _publish(operators.namespace, operators.name)
        _empty(operators)
        if called:
            operators.released()


def _entry(schema: torch.FunctionSchema) -> str:
    arguments = ", ".join(f"{'*' if a.kwarg_only else ''}{a.type} {a.name}" for a in schema.arguments)
    return f"{schema.name}({arguments}) -> ({', '.join(str(r.type) for r in schema.returns)})"


def _sweep() -> None:
    """Do what waits, one thing after the other: the garbage collector may come in the middle of each."""
    if _registering:
        return
    with _held():
        while act := _waits():
            act()
    if _later:
        _sweep()


def _waits() -> Callable[[], None] | None:
    """What can be done next: names first, then one removal."""
    if _later:
        return _later.pop()
    if torch_registry.parse_schema is not None:
        for operators in list(_waiting):
            if all(entry in _entries for entry in operators.entries):
                return functools.partial(_remove, operators)
    return None


def _remove(operators: Registered) -> None:
    """Take operators out of the registry; after an interrupt it is done again."""
    called = _uncallable(operators)
    _entries.difference_update(operators.entries)
    for name in operators.schemas:
        left = _overloads.get((operators.namespace, name), {})
        gone = left.pop(operators.key, None)
        if gone is not None:
            torch_registry.retire(gone)
        for overload in left.values():
            torch_registry.detach(overload, operators.key)
    _publish(operators.namespace, operators.name)
    if operators.library is not None:
        torch_registry.destroy(operators.library)
    for name in operators.schemas:
        _publish(operators.namespace, name)
    _empty(operators)
    _waiting.pop(operators, None)
    if operators in _known:
        del _known[operators]
        if called:
            operators.released()


def _empty(operators: Registered) -> None:
    for shim in operators.shims:
        shim.empty(f"{operators.namespace}::{operators.name}")
    operators.shims.clear()


def _uncallable(operators: Registered) -> bool:
    """Whether they could be called until now."""
    operators.ways = None
    left = _callable.get((operators.namespace, operators.name), [])
    if operators not in left:
        return False
    left.remove(operators)
    return True


def _publish(namespace: str, name: str) -> None:
    """Make ``torch.ops`` call the newest op of a name that is left, in one step, and find all overloads of the name.

    It may be the name of another op's raw operator, too: kernels are called ``f`` and ``f_bwd``.
    """
    left = _callable.get((namespace, name))
    if left:
        torch_registry.publish(namespace, name, left[-1].public)
    torch_registry.attach(namespace, name, _overloads.get((namespace, name), {}))
