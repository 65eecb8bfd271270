"""Registering one op with PyTorch: schemas, kernels, fake kernels, autograd, autocast.

Five operators per op. The public one is functional and differentiable. Two raw ones, forward and backward, are functional
and serve eager mode. Two more write into given buffers and serve compiled code, where Inductor plans the buffers. The
overload's name of each is the hash of the contract.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..calls.helper_ops import copy_op
from ..calls.instances import Instances
from ..calls.parts import Parts
from ..calls.remember import backward_into, forward_into
from ..calls.ways import Ways
from ..emit.call import CallWriter
from ..emit.schema import Schemas
from ..errors import SignatureError
from ..plan.model import OpPlan
from ..private import torch_modes, torch_registry
from ..sharding.rows import find_rows
from ..sharding.rules import Rules
from .contract import contract_hash, plan_text
from .unregister import Registered, Shim, register

_taken: set[str] = set()
"""The contracts that are registered, as ``namespace::name.hash``."""


class Lease:
    """Keeps an op's operators registered. Held by the ``WarpOp``, by pending backwards, and for good once compiled."""

    __slots__ = ("__weakref__", "key", "name", "transforms")

    def __init__(self, name: str, key: str) -> None:
        self.name, self.key = name, key
        self.transforms: Any = None


class Registration:
    """Everything that PyTorch holds of one op."""

    def __init__(
        self,
        name: str,
        plan: OpPlan,
        instances: Instances,
        transforms: Callable[[Any], Any],
        backward: Any = None,
        vmap: Any = None,
    ) -> None:
        """``transforms`` makes the op's functions for torch.func of its runtime."""
        self.name, self.plan, self.instances = name, plan, instances
        self.transforms, self.backward, self.vmap = transforms, backward, vmap
        self.emitter = CallWriter(name, plan)
        self.schemas = Schemas(plan)
        self.namespace, self.basename = name.split("::")
        self.rows = find_rows(plan)
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
        schemas = [self.schemas.forward_into()]
        if self.plan.differentiable and self.plan.gradient == "adjoint":
            schemas.append(self.schemas.backward_into())
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
            schemas.public(),
            schemas.forward_into(),
            schemas.backward_into(),
            self.emitter.emit(),
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
            copy_op()
        written = self.schemas
        schemas = {"": written.public(), "_fwd": written.forward(), "_fwd_": written.forward_into()}
        if self.plan.differentiable and self.plan.gradient == "adjoint":
            schemas |= {"_bwd": written.backward(), "_bwd_": written.backward_into()}
        register(self.namespace, {f"{self.basename}{suffix}": text for suffix, text in schemas.items()}, self._fill)

    def _fill(self, operators: Registered) -> tuple[dict[str, Any], Lease]:
        """Define and implement the operators."""
        self.key, number = self.contract, 0
        while f"{self.name}.{self.key}" in _taken:
            number += 1
            self.key = f"{self.contract}_{number}"
        operators.done = functools.partial(_taken.discard, f"{self.name}.{self.key}")
        _taken.add(f"{self.name}.{self.key}")
        self.lease = Lease(self.name, self.key)
        for name, schema in operators.schemas.items():
            torch_registry.forget(self.namespace, name)
            operators.library.define(f"{name}.{self.key}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
        overloads = {name: self._overload(name) for name in operators.schemas}
        self.public_op, self.forward_op, self.forward_into_op, *backward = overloads.values()
        self.backward_op: Any = backward[0] if backward else None
        self.backward_into_op: Any = backward[1] if backward else None
        torch_registry.stand_for(self.forward_op, self.public_op)
        self._implement(operators)
        return overloads, self.lease

    def _overload(self, name: str) -> Any:
        torch_registry.forget(self.namespace, name)
        return getattr(getattr(getattr(torch.ops, self.namespace), name), self.key)

    def _implement(self, operators: Registered) -> None:
        library, instances = operators.library, self.instances
        self.runtime = runtime = Ways(self.name, self.plan, instances, self)
        self.parts = Parts(self.name, self.emitter, runtime.helpers(), instances, self.lease)
        runtime.finish(self.parts)
        self.call = self.parts.call
        self.call.__name__ = self.plan.name
        self.call.__qualname__ = self.name  # Python's own messages about missing and unknown arguments name it

        def implement(suffix: str, function: Callable[..., Any], key: str, with_keyset: bool = False) -> None:
            if function is not torch.library.fallthrough_kernel:
                function = Shim(function)
                operators.shims.append(function)
            library.impl(f"{self.basename}{suffix}.{self.key}", function, key, with_keyset=with_keyset)

        implement("_fwd", instances.forward, "CompositeExplicitAutograd")
        if self.plan.differentiable:
            implement("_fwd", runtime.run_forward, "Autograd", with_keyset=True)
        else:
            implement("_fwd", torch.library.fallthrough_kernel, "Autograd")
        implement("_fwd_", forward_into(instances), "CompositeExplicitAutograd")
        implement("_fwd_", torch.library.fallthrough_kernel, "Autograd")
        torch_registry.shorten(self.forward_into_op, lambda through: forward_into(instances, through))
        fakes = {"": runtime.fake_public, "_fwd": runtime.fake_forward, "_fwd_": runtime.fake_forward_into}
        if self.backward_op is not None:
            implement("_bwd", instances.backward, "CompositeExplicitAutograd")
            implement("_bwd", torch.library.fallthrough_kernel, "Autograd")
            into = backward_into(instances)
            if self.plan.handles:
                implement("_bwd_", runtime.with_token(into), "CompositeExplicitAutograd")
            else:
                implement("_bwd_", into, "CompositeExplicitAutograd")
                torch_registry.shorten(self.backward_into_op, lambda through: backward_into(instances, through))
            implement("_bwd_", torch.library.fallthrough_kernel, "Autograd")
            fakes |= {"_bwd": runtime.fake_backward, "_bwd_": runtime.fake_backward_into}
        reference = weakref.ref(runtime)
        for suffix, fake in fakes.items():
            rules = Rules(reference, suffix)
            shim = Shim(fake)
            operators.shims.append(shim)
            torch_registry.register_python_side(library, f"{self.name}{suffix}.{self.key}", shim, rules)
        implement("", runtime.run_public, "Autograd")
        implement("", runtime.run_public, "CompositeExplicitAutograd")
        implement("", runtime.run_mapped, torch_modes.VMAP_KEY, with_keyset=True)
        for key in torch_modes.AUTOCAST.values():
            implement("", runtime.run_cast, key)
