"""The operator under an op's plain name, ``torch.ops.namespace.op.default``: what programs are saved with.

It has no contract in its name, so that a program finds it after an edit of the kernel. It belongs to the name, not to an
op, and calls the newest op of the name: a program in memory does so too. Another schema is another operator, whose
predecessor raises from then on.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..calls.dispatched import PUBLIC
from ..calls.traced import fake_public
from ..calls.ways import Plain, by_name, plain_of
from ..errors import SignatureError
from ..private import torch_registry
from ..sharding.rules import rules
from .custom import forget_custom_op
from .unregister import Registered, Shim, is_there, newest, register, take_out, when_quiet

_registered: dict[str, Registered] = {}
"""By name. They stay: of overloads of one schema, PyTorch can't have all taken out."""


def check_free(name: str) -> None:
    """Refuse a name that no op of warpops has.

    Raises:
        SignatureError: an operator of another library's is called so.
    """
    if not torch_registry.is_defined(name):
        return
    there = _registered.get(name)
    if there is None or not is_there(there):
        raise SignatureError(
            f"{name}: the name is taken by an operator of another library, {name}.default; give the op another with "
            f"name='namespace::op'"
        )


def follow(namespace: str, basename: str) -> None:
    """Have the plain name stand for the newest op that is left."""
    name, found = f"{namespace}::{basename}", newest(namespace, basename)
    if found is None:
        by_name.pop(name, None)
        return
    by_name[name] = found.ways
    when_quiet(functools.partial(_define, name))


def _define(name: str) -> None:
    namespace, basename = name.split("::")
    found = newest(namespace, basename)
    if found is None:
        return
    schema = found.ways.schema
    forget_custom_op(name, found.order)
    there = _registered.get(name)
    if there is not None and is_there(there):
        if plain_of(name).schema == schema:
            return
        take_out(there)
    register(namespace, {basename: schema}, functools.partial(_fill, plain_of(name)))


class _Lease:
    """Keeps the operator registered."""


def _fill(plain: Plain, operators: Registered) -> tuple[dict[str, Any], _Lease]:
    namespace, basename, library = operators.namespace, operators.name, operators.library
    _registered[plain.name] = operators
    plain.schema, plain.lease = operators.schemas[basename], _Lease()
    torch_registry.forget(namespace, basename)
    library.define(f"{basename}{plain.schema}", tags=(torch.Tag.pt2_compliant_tag,))
    default = getattr(getattr(torch.ops, namespace), basename).default
    plain.overload = torch_registry.make_plain(default, plain.schema)

    for key, function, with_keyset in PUBLIC:
        operators.shims.append(Shim(function, plain))
        library.impl(basename, operators.shims[-1], key, with_keyset=with_keyset)
    operators.shims.append(Shim(fake_public, plain))
    torch_registry.register_fake(library, plain.name, operators.shims[-1])
    torch_registry.register_dispatch(library, plain.name, rules(functools.partial(by_name.get, plain.name), ""))
    return {basename: plain.overload}, plain.lease
