"""Registering one op with PyTorch: schemas, kernels, fake kernels, autograd, autocast.

Five operators per op. The public one is functional and differentiable. Two raw ones, forward and backward, are functional
and serve eager mode. Two more write into given buffers and serve compiled code, where Inductor plans the buffers. Where
short ways are forbidden there is a sixth, the raw forward less what it does for autograd. The overload's name of each is the
hash of the contract.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..arguments.handle import with_token
from ..arguments.ran import noting
from ..calls.copies import copy_op
from ..calls.dispatched import PUBLIC, run_forward, run_raw
from ..calls.helpers import helpers
from ..calls.instances import Instances, make_instance
from ..calls.parts import Parts
from ..calls.remember import remembering
from ..calls.traced import fake_backward, fake_forward, fake_into, fake_public
from ..calls.ways import Lease, Ops, OwnBackward, Ways, by_key
from ..emit.call import write_call
from ..emit.schema import Schemas
from ..emit.writer import OpWriter
from ..errors import SignatureError
from ..plan.model import OpPlan
from ..private import torch_modes, torch_registry
from ..private.short import FAST
from ..sharding.rows import find_rows
from ..sharding.rules import rules
from .contract import contract_hash, plan_text
from .plain import check_free, follow
from .unregister import Registered, Shim, first_of_its_name, free_key, quiet, register

OPERATORS = {
    "": "public",
    "_fwd": "forward",
    "_fwd_": "forward_into",
    "_bwd": "backward",
    "_bwd_": "backward_into",
    "_run": "run",
}
"""The fields of ``Ops``, by the suffix of an operator's name."""
FAKES = {"": fake_public, "_fwd": fake_forward, "_fwd_": fake_into, "_bwd": fake_backward, "_bwd_": fake_into}
"""By the suffix of an operator's name."""


@dataclass(eq=False)
class Registration:
    """Everything that PyTorch holds of one op."""

    name: str
    plan: OpPlan
    instances: Instances
    transforms: Callable[[Ways], Any]
    """Makes the op's functions for torch.func."""
    backward: OwnBackward | None = None
    vmap: Callable[..., Any] | None = None
    title: str | None = None
    """Its name in messages, where that is another."""
    order: int | None = None
    """Its place among the ops of its name, by the time that they were made; None where it has no name of its own."""
    numbered: bool = False

    def __post_init__(self) -> None:
        self.writer = OpWriter(self.name, self.plan)
        self.schemas = Schemas(self.plan)
        self.namespace, self.basename = self.name.split("::")
        self.rows = find_rows(self.plan)
        self._check_size()
        self.contract = contract_hash(self._contract_parts(), self._callables())
        self._register()

    @property
    def source(self) -> str:
        """The generated text: launches, front-end, autograd function."""
        return f"{self.instances.source()}\n\n{self.parts.source()}"

    def _check_size(self) -> None:
        """Refuse an op with more values than an operator may have.

        Raises:
            SignatureError: one of its operators would have more arguments than PyTorch takes.
        """
        schemas = [self.schemas.forward_into]
        if self.plan.differentiable and self.plan.gradient == "adjoint":
            schemas.append(self.schemas.backward_into)
        count = max(schema[: schema.rindex(" -> ")].count(",") + 1 for schema in schemas)
        if count > torch_registry.MOST_ARGUMENTS:
            what = "its backward has" if len(schemas) > 1 and count > schemas[0].count(",") + 1 else "it has"
            raise SignatureError(
                f"{self.name}: PyTorch's operators take at most {torch_registry.MOST_ARGUMENTS} arguments, and {what} {count}; "
                f"put arrays together, or name inputs that need no gradient in nondiff"
            )

    def _contract_parts(self) -> list[str]:
        schemas = self.schemas
        return [
            schemas.public,
            schemas.forward_into,
            schemas.backward_into,
            self.writer.once(write_call),
            plan_text(self.plan, self.rows.arrays),
        ]

    def _callables(self) -> list[Any]:
        declaration = self.plan.declaration
        found: list[Any] = [shape for _, shape in declaration.shapes if callable(shape)]
        if callable(declaration.dim):
            found.append(declaration.dim)
        if self.backward is not None:
            found.append(self.backward.meaning)
        if self.vmap is not None:
            found.append(self.vmap)
        return found

    def _register(self) -> None:
        if self.plan.mutated and self.plan.differentiable:
            copy_op.overload()
        written = self.schemas
        schemas = {"": written.public, "_fwd": written.forward, "_fwd_": written.forward_into}
        if self.plan.differentiable and self.plan.gradient == "adjoint":
            schemas |= {"_bwd": written.backward, "_bwd_": written.backward_into}
        if not FAST:
            schemas["_run"] = written.forward
        named = {f"{self.basename}{suffix}": text for suffix, text in schemas.items()}
        if self.order is None:
            register(self.namespace, named, self._fill)
            return
        moved = partial(follow, self.namespace, self.basename)
        with quiet():
            check_free(self.name)
            register(self.namespace, named, self._fill, self.order, moved)
        moved()

    def _fill(self, operators: Registered) -> tuple[dict[str, Any], Lease]:
        """Define and implement the operators."""
        self.key = free_key(operators, self.contract)
        self.lease = Lease()
        for name, schema in operators.schemas.items():
            torch_registry.forget(self.namespace, name)
            operators.library.define(f"{name}.{self.key}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
        overloads = {name: self._overload(name) for name in operators.schemas}
        by_suffix = {name[len(self.basename) :]: overload for name, overload in overloads.items()}
        ops = Ops(**{field: by_suffix.get(suffix) for suffix, field in OPERATORS.items()})
        torch_registry.stand_for(ops.forward, ops.public)
        self._open(operators, ops)
        self._implement(operators, ops)
        operators.ways = self.ways
        return overloads, self.lease

    def _overload(self, name: str) -> Any:
        torch_registry.forget(self.namespace, name)
        return getattr(getattr(getattr(torch.ops, self.namespace), name), self.key)

    def _open(self, operators: Registered, ops: Ops) -> None:
        """Make the record of the op, and what the user calls."""
        forward = ops.run or ops.forward

        def forward_op(*arguments: Any) -> Any:
            if torch_modes.tracing():
                first_of_its_name(operators)
            return forward(*arguments)

        self.parts = Parts(self.name, self.writer, self.lease)
        self.ways = Ways(
            name=self.title or self.name,
            key=f"{self.name}.{self.key}",
            plan=self.plan,
            instances=self.instances,
            ops=ops,
            custom=self.backward,
            vmap=self.vmap,
            rows=self.rows.arrays,
            schema=self.schemas.public,
            named=self.order is not None,
            numbered=self.numbered,
            lease=weakref.ref(self.lease),
            parts=weakref.ref(self.parts),
            make_transforms=self.transforms,
        )
        by_key[self.ways.key] = self.ways
        self.call = self.parts.open(helpers(self.ways, forward_op))
        self.call.__name__ = self.plan.name
        self.call.__qualname__ = self.name  # Python's own messages about missing and unknown arguments name it

    def _implement(self, operators: Registered, ops: Ops) -> None:
        """Give PyTorch the kernels of each operator."""
        library, ways, instances = operators.library, self.ways, self.instances
        fallthrough = torch.library.fallthrough_kernel

        def shim(function: Callable[..., Any], *given: Any) -> Shim:
            operators.shims.append(Shim(function, *given))
            return operators.shims[-1]

        def implement(suffix: str, key: str, function: Any, with_keyset: bool = False) -> None:
            library.impl(f"{self.basename}{suffix}.{self.key}", function, key, with_keyset=with_keyset)

        def into(way: str) -> Callable[..., Any]:
            return remembering(instances, way, partial(run_raw, ways, way))

        def implement_into(suffix: str, way: str) -> None:
            implement(suffix, "CompositeExplicitAutograd", shim(into(way)))
            torch_registry.shorten(getattr(ops, way), lambda through: remembering(instances, way, through, True))

        for key, function, with_keyset in PUBLIC:
            implement("", key, shim(function, ways), with_keyset)
        implement("_fwd", "CompositeExplicitAutograd", shim(instances.launch, "forward"))
        if self.plan.differentiable:
            implement("_fwd", "Autograd", shim(run_forward, ways), with_keyset=True)
        else:
            implement("_fwd", "Autograd", fallthrough)
        implement("_fwd_", "Autograd", fallthrough)
        if self.plan.runs_again:
            places = [place for place, slot in enumerate(self.plan.inputs) if slot.role == "inout"]
            count = len(self.plan.arguments)
            run = noting(into("forward_into"), [*places, *range(count, count + len(self.plan.fresh))])
            implement("_fwd_", "CompositeExplicitAutograd", shim(run))
        else:
            implement_into("_fwd_", "forward_into")
        if ops.backward is not None:
            implement("_bwd", "CompositeExplicitAutograd", shim(run_raw, ways, "backward"))
            implement("_bwd", "Autograd", fallthrough)
            implement("_bwd_", "Autograd", fallthrough)
            if self.plan.token:
                labels = [self.plan.slot(name).label for name in self.plan.handles]
                run = with_token(ways.name, labels, into("backward_into"))
                implement("_bwd_", "CompositeExplicitAutograd", shim(run))
            else:
                implement_into("_bwd_", "backward_into")
        if ops.run is not None:
            implement("_run", "CompositeExplicitAutograd", shim(instances.launch, "forward"))
            implement("_run", "Autograd", fallthrough)
            for key in ("Meta", "Python", "Tracer"):  # a fake's, a mode's or a subclass's, torch.jit's
                implement("_run", key, shim(ops.forward))
        reference = weakref.ref(ways)
        for name in operators.schemas:
            suffix = name[len(self.basename) :]
            if suffix not in FAKES:
                continue
            fake = shim(FAKES[suffix], ways)
            qualified = f"{self.namespace}::{name}.{self.key}"
            torch_registry.register_fake(library, qualified, fake)
            torch_registry.register_dispatch(library, qualified, rules(reference, suffix))


def hidden_registration(
    plan: OpPlan,
    title: str,
    identity: tuple[Any, ...],
    transforms: Callable[[Ways], Any],
    backward: OwnBackward | None = None,
) -> Registration:
    """Register an op that is made for another one, with that one's name in its messages.

    Its own name follows from its ``identity`` (the other's name, and what was made of it), so that compiled graphs find
    it again in another process, and is no other live op's: PyTorch's tracing looks operators up by name.
    """
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:8]
    internal = f"warpops::_{plan.name}_{digest}"
    instance = make_instance(title, plan)
    instances = Instances(internal, plan, lambda name, values: instance)
    return Registration(internal, plan, instances, transforms, backward, title=title)
