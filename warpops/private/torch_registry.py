"""PyTorch's private side: its registry of operators.

``tests/test_torch_private.py`` fails first when a new torch changes any of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

MOST_ARGUMENTS = 64
"""How many arguments PyTorch's dispatcher takes."""


class PublishedOverload(torch._ops.OpOverload):
    """An overload that stands where its packet would: the packet's other overloads are found on it."""

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {key!r}")
        return getattr(self._overloadpacket, key)


def publish(namespace: str, name: str, overload: Any) -> None:
    """Make ``torch.ops.namespace.name`` one overload, whatever else is registered under the name.

    Compiled code that calls it then holds the overload's whole name, contract included, where the usual packet would
    leave the bare name in the keys of PyTorch's caches.
    """
    overload.__class__ = PublishedOverload
    key = overload._overloadname
    setattr(overload, key, overload)
    overload.overloads = lambda: [key]
    overload.op_overloads = lambda: [overload]
    space = getattr(torch.ops, namespace)
    setattr(space, name, overload)
    if name in space._dir:  # PyTorch's walks over packets go by this list
        space._dir.remove(name)


def forget(namespace: str, name: str, key: str | None = None) -> None:
    """Drop what ``torch.ops`` remembers of a name, so that the next look finds what is registered then.

    With ``key``, the name of an overload, a name that was given to another op since is left alone.
    """
    space = getattr(torch.ops, namespace)
    found = space.__dict__.get(name)
    if found is None or (key is not None and isinstance(found, torch._ops.OpOverload) and found._overloadname != key):
        return
    delattr(space, name)
    if name in getattr(space, "_dir", []):
        space._dir.remove(name)


class Rules:
    """The rules for tensor subclasses of one operator: PyTorch's own, then the one of a class that is met for the first
    time."""

    __slots__ = ("own",)
    own: Any

    def of_class(self, kind: type) -> Callable[..., Any] | None:
        raise NotImplementedError

    def find(self, kind: type) -> Any:
        return self.own.find(kind) or self.of_class(kind)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


def register_python_side(library: Any, name: str, fake: Callable[..., Any], rules: Rules) -> None:
    """What PyTorch keeps of an operator outside of its dispatcher: its fake kernel, its rules for tensor subclasses.

    It is what ``torch.library.register_fake`` and ``register_torch_dispatch`` do, without a look at the caller's source
    file, without an undoing of each, since ``destroy`` drops the whole entry, and for classes that needn't exist yet.
    """
    entry = torch._library.simple_registry.singleton.find(name)
    entry.fake_impl.kernels.append(torch._library.utils.Kernel(fake, "warpops"))
    library.impl(name, fake, "Meta")
    rules.own = entry.torch_dispatch_rules
    entry.torch_dispatch_rules = rules  # type: ignore[assignment]


def destroy(library: Any) -> None:
    """Take a library's operators out of the registry and out of ``torch.ops``, where another op's overload stays.

    PyTorch's own way clears a name whoever has it now, and once more when the library is collected.
    """
    names = set(library._op_defs)
    library._op_defs.clear()
    torch.library._defs.difference_update(names)
    library._destroy()
    for name in names:
        torch._library.simple_registry.singleton._data.pop(name, None)
        namespace, _, rest = name.partition("::")
        forget(namespace, *rest.split("."))


def shorten(overload: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put ``make(way)`` in place of an operator's way into the dispatcher, for calls from Python."""
    overload._op = make(overload._op)
