"""PyTorch's private side: its registry of operators.

``tests/test_torch_private.py`` fails first when a new torch changes any of it; ``tests/test_taken_away.py`` does without.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable
from typing import Any

import torch

from ..errors import ArgumentError
from . import locks
from .short import FAST, either, found
from .torch_export import schema_to_read

MOST_ARGUMENTS = 64
"""How many arguments PyTorch's dispatcher takes."""

OpOverload: Any = type(torch.ops.aten.sin.default)

for _member in vars(OpOverload).values():
    locks.renewed(getattr(_member, "lock", None))  # a cached_property's, until Python 3.11

parse_schema: Callable[[str], torch.FunctionSchema] | None = found(lambda: torch._C.parse_schema)
"""Where there is none, no operator is ever taken out again."""


def _defined_in_public(name: str) -> bool:
    namespace, _, base = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    return packet is not None and "default" in packet.overloads()


def _short_defined() -> Callable[[str], bool]:
    known, find = torch._C._dispatch_has_kernel, torch._C._dispatch_find_schema_or_throw

    def defined(name: str) -> bool:
        if not known(name):  # an error takes longer
            return False
        try:
            find(name, "")
        except RuntimeError:
            return False
        return True

    return defined


is_defined: Callable[[str], bool] = either(_short_defined, _defined_in_public)
"""Whether there is an operator ``namespace::name``, whoever defined it."""


class PublishedOverload(OpOverload):  # type: ignore[misc]
    """An overload that stands where its packet would: the packet's other overloads are found on it."""

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {key!r}")
        return getattr(self._overloadpacket, key)


class RawOverload(OpOverload):  # type: ignore[misc]
    """A raw operator that lists and sets take for the public one: those of selective checkpointing meet raw ones."""

    public: Any

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.public

    def __hash__(self) -> int:
        return hash(self.public)


class PlainOverload(OpOverload):  # type: ignore[misc]
    """An operator under its plain name, which programs are saved with.

    Programs hold the path by which they look it up, in their code and on disk: ``torch.ops.namespace.op.default.form``.
    The last step is an attribute of its own, which tells schemas apart. It gives the operator itself, or what refuses.
    """

    form: str

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except RuntimeError as error:
            if "Declaration: " not in str(error):  # not of PyTorch's parser of arguments
                raise
            raise ArgumentError(
                f"{self.name()}: the call doesn't fit the op as it is now; if it comes from a program that was exported "
                f"for another schema, export the program again: {error}"
            ) from error

    def __getattr__(self, key: str) -> Any:
        if _FORM.fullmatch(key) is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {key!r}")
        return self if key == self.form else _stale(self, key)

    @property
    def _schema(self) -> Any:
        return schema_to_read(self.__dict__["_schema"])


_FORM = re.compile("(schema|inplace)_[0-9a-f]{16}")


def form_of(schema: str) -> str:
    """What tells a schema from others: its names, types and in-place changes, not its default values."""
    kind = "inplace" if "!" in schema else "schema"
    return f"{kind}_{hashlib.sha256(re.sub('=[^,)]+', '', schema).encode()).hexdigest()[:16]}"


def make_plain(overload: Any, schema: str) -> Any:
    """Make an overload one that programs are saved with."""
    overload.__class__ = PlainOverload
    _find_by(overload, form_of(schema))
    return overload


def _find_by(overload: Any, form: str) -> None:
    overload.form = form
    overload.__name__ = f"{overload._overloadpacket.__name__}.{overload._overloadname}.{form}"


class _Retired(OpOverload):  # type: ignore[misc]
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{self.name()} is gone: its WarpOp was collected")


class _Replaced(PlainOverload):
    """What a program was exported for, where the op has another schema now."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        now = self.now()
        if now is not self and getattr(now, "form", None) == self.form:
            return now(*args, **kwargs)
        raise self.refusal()

    def now(self) -> Any:
        space, _, name = self.name().partition("::")
        return getattr(getattr(torch.ops, space), name).default

    def refusal(self) -> ArgumentError:
        known = self.__dict__["_schema"]
        was = "another schema" if isinstance(known, _Unknown) else str(known)
        return ArgumentError(
            f"{self.name()}: the op is {self.now()._schema} now, and the program was exported for {was}; export the program "
            f"again"
        )

    @property
    def _schema(self) -> Any:
        return schema_to_read(self.__dict__["_schema"], fits=False)


class _Unknown:
    """A schema of which only its form is known: PyTorch asks whether calls may be dropped, then for the arguments."""

    overload_name, returns = "", ()

    def __init__(self, overload: _Replaced) -> None:
        self.name, self.is_mutable = overload.name(), overload.form.startswith("inplace")
        self._overload = overload

    @property
    def arguments(self) -> Any:
        raise self._overload.refusal()


def _stale(now: Any, form: str) -> Any:
    """What a program finds that was exported for another form."""
    made: Any = object.__new__(_Replaced)
    made.__dict__.update(now.__dict__)
    _find_by(made, form)
    made.__dict__["_schema"] = _Unknown(made)
    return made


def retire(overload: Any) -> None:
    """Have an overload whose operator is taken out say so: PyTorch would crash."""
    overload.__class__ = _Replaced if isinstance(overload, PlainOverload) else _Retired


def stand_for(raw: Any, public: Any) -> None:
    """Make a raw operator's overload equal to the public one's."""
    raw.__class__, raw.public = RawOverload, public


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
    _unlist(space, name)
    setattr(space, name, overload)


def _unlist(space: Any, name: str) -> None:
    """PyTorch's walks over packets go by this list; the latest is looked for first."""
    if isinstance(space.__dict__.get(name), OpOverload):  # published, and unlisted then
        return
    backwards = getattr(space, "_dir", [])[::-1]
    if name in backwards:
        del space._dir[len(backwards) - 1 - backwards.index(name)]


def attach(namespace: str, name: str, overloads: dict[str, Any]) -> None:
    """Let what ``torch.ops`` has for a name find these overloads, in place of objects that it would make anew."""
    space = getattr(torch.ops, namespace)
    there = space.__dict__.get(name)
    if not isinstance(there, OpOverload):
        if there is not None and all(there.__dict__.get(key) is overload for key, overload in overloads.items()):
            return
        forget(namespace, name)  # a new packet, that no overload holds: they would keep each other
    for key, overload in overloads.items():
        if overload is not getattr(space, name):
            setattr(getattr(space, name), key, overload)


def detach(overload: Any, key: str) -> None:
    """Forget another overload that is gone."""
    overload.__dict__.pop(key, None)


def forget(namespace: str, name: str, key: str | None = None) -> None:
    """Drop what ``torch.ops`` remembers of a name, so that the next look finds what is registered then.

    With ``key``, the name of an overload, a name that was given to another op since is left alone.
    """
    space = getattr(torch.ops, namespace)
    found = space.__dict__.get(name)
    if found is None or (key is not None and isinstance(found, OpOverload) and found._overloadname != key):
        return
    _unlist(space, name)
    delattr(space, name)


class Rules:
    """The rules for tensor subclasses of one operator: PyTorch's own, then ``rule`` for ``classes``, which may be those that
    there are by then."""

    __slots__ = ("classes", "own", "rule")
    own: Any

    def __init__(self, rule: Callable[..., Any], classes: Callable[[], tuple[type, ...]]) -> None:
        self.rule, self.classes = rule, classes

    def find(self, kind: type) -> Any:
        return self.own.find(kind) or (self.rule if issubclass(kind, self.classes()) else None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


def _short_python_side() -> tuple[Callable[..., None], Callable[..., None]]:
    entries, kernel = torch._library.simple_registry.singleton, torch._library.utils.Kernel
    entries.find, entries._data  # noqa: B018  # of another registry either is gone

    def fake_kernel(library: Any, name: str, fake: Callable[..., Any]) -> None:
        entries.find(name).fake_impl.kernels.append(kernel(fake, "warpops"))
        library.impl(name, fake, "Meta")

    def dispatch_rules(library: Any, name: str, rules: Rules) -> None:
        entry = entries.find(name)
        rules.own = entry.torch_dispatch_rules
        entry.torch_dispatch_rules = rules  # type: ignore[assignment]

    return fake_kernel, dispatch_rules


def _public_fake_kernel(library: Any, name: str, fake: Callable[..., Any]) -> None:
    torch.library.register_fake(name, fake, lib=library)


def _public_dispatch_rules(library: Any, name: str, rules: Rules) -> None:
    for kind in rules.classes():
        torch.library.register_torch_dispatch(name, kind, rules.rule, lib=library)


register_fake: Callable[[Any, str, Callable[..., Any]], None]
register_dispatch: Callable[[Any, str, Rules], None]
register_fake, register_dispatch = either(_short_python_side, (_public_fake_kernel, _public_dispatch_rules))
"""What PyTorch keeps of an operator outside of its dispatcher: its fake kernel, its rules for tensor subclasses.

The short ways are what ``torch.library.register_fake`` and ``register_torch_dispatch`` do, without a look at the caller's
source file, for which Python goes through all modules, without an undoing of each, since ``destroy`` drops the whole entry,
and for classes that needn't exist yet.
"""


def clear(library: Any) -> None:
    """Have a library that PyTorch takes out look at no names on the way."""
    with contextlib.suppress(AttributeError):
        library._op_defs.clear()


def destroy(library: Any) -> None:
    """Take a library's operators out of the registry and out of ``torch.ops``, where another op's overload stays.

    PyTorch's own way clears a name whoever has it now, and once more when the library is collected.
    """
    names = set(getattr(library, "_op_defs", ()))
    clear(library)
    with contextlib.suppress(AttributeError):
        torch.library._defs.difference_update(names)
    with contextlib.suppress(AttributeError):
        library._destroy()
    for name in names:
        with contextlib.suppress(AttributeError):
            torch._library.simple_registry.singleton._data.pop(name, None)
        namespace, _, rest = name.partition("::")
        forget(namespace, *rest.split("."))


def shorten(overload: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put ``make(way)`` in place of an operator's way into the dispatcher, for calls from Python."""
    if FAST and hasattr(overload, "_op"):
        overload._op = make(overload._op)
