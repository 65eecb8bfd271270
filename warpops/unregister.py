"""Taking operators out of PyTorch's registry again, at a time and in an order that it survives.

PyTorch (2.13) knows an operator in two places: the dispatcher, by name and overload name, and TorchScript's table, by
name, arguments and results. Overloads that differ in nothing but their overload name, such as those of an op that was
defined twice, share one entry of that table. Removing one removes the entry; removing a second one then stops half-way,
and leaves a pointer to what is gone: the next look at the name crashes. So between two removals there has to be a
definition with the same arguments, which renews the entry; until one comes, the second operator stays.

The garbage collector may also ask for a removal while PyTorch walks over the operators of the same name. So nothing is
removed while anything is being registered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from . import _torch, locks

_lock = locks.reentrant()
_registering = 0
_entries: set[str] = set()
"""Entries of TorchScript's table that are there."""
_callable: dict[tuple[str, str], list[Any]] = {}
"""The public overloads of each name that can still be called, the newest last."""
_collected: list[Registered] = []
"""What nothing can call any more, and is still registered."""


@dataclass(frozen=True)
class Registered:
    """The operators of one op."""

    library: Any
    namespace: str
    names: tuple[str, ...]
    """The public one first."""
    public: Any
    entries: tuple[str, ...]
    done: Callable[[], None]
    """Called once they are gone."""


@contextlib.contextmanager
def registering() -> Iterator[None]:
    """While operators are registered, and looked up for the first time."""
    global _registering
    with _lock:
        _registering += 1
        try:
            yield
        finally:
            _registering -= 1
        _sweep()


def registered(
    library: Any, namespace: str, names: Iterable[str], overloads: Iterable[Any], done: Callable[[], None]
) -> Registered:
    """Note operators that were looked up just now, and make ``torch.ops`` call the first of them.

    Args:
        names: without the namespace, the public one first.
        overloads: of these names.
        done: called once they are gone.
    """
    names, overloads = tuple(names), list(overloads)
    entries = tuple(_entry(overload._schema) for overload in overloads)
    _entries.update(entries)
    _callable.setdefault((namespace, names[0]), []).append(overloads[0])
    _torch.publish(namespace, names[0], overloads[0])
    return Registered(library, namespace, names, overloads[0], entries, done)


def release(operators: Registered) -> None:
    """Unregister operators that nothing can call any more, now or as soon as that is safe."""
    with _lock:
        _callable[operators.namespace, operators.names[0]].remove(operators.public)
        _collected.append(operators)
        _sweep()
        _pin(operators)


def _entry(schema: torch.FunctionSchema) -> str:
    arguments = ", ".join(f"{'*' if a.kwarg_only else ''}{a.type} {a.name}" for a in schema.arguments)
    return f"{schema.name}({arguments}) -> ({', '.join(str(r.type) for r in schema.returns)})"


def _sweep() -> None:
    if _registering:
        return
    for operators in list(_collected):
        if operators not in _collected or not all(entry in _entries for entry in operators.entries):
            continue
        _collected.remove(operators)
        _entries.difference_update(operators.entries)
        for name in operators.names:
            _torch.forget(operators.namespace, name)
        _torch.destroy(operators.library)
        _pin(operators)
        operators.done()


def _pin(operators: Registered) -> None:
    """Make ``torch.ops`` call the newest op of a name that is left."""
    left = _callable.get((operators.namespace, operators.names[0]))
    if left:
        _torch.publish(operators.namespace, operators.names[0], left[-1])
