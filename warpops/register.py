"""Registering one op with PyTorch: schemas, kernels, fake kernels, autograd, autocast.

Five operators per op. The public one is functional and differentiable. Two raw ones, forward and backward, are functional
and serve eager mode. Two more write into given buffers and serve compiled code, where Inductor plans the buffers. The
overload's name of each is the hash of the contract.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from . import _torch, sharding
from .contract import contract_hash, plan_text
from .front import FrontEmitter, compile_front, emit_front, front_scope
from .instance import Instances
from .mapped import mapped_op
from .plan import OpPlan
from .recall import backward_into, forward_into
from .runtime import FUNCTION, Runtime
from .schema import Front
from .source import compile_text
from .unregister import registered, registering, release

_taken: set[str] = set()
"""The contracts that are registered, as ``namespace::name.hash``."""


class Lease:
    """Keeps an op's operators registered. Held by the ``WarpOp``, by pending backwards, and for good once compiled."""

    __slots__ = ("__weakref__", "key", "name", "transforms")

    def __init__(self, name: str, key: str) -> None:
        self.name, self.key = name, key
        self.transforms: Any = None


_making = threading.RLock()


class FunctionMaker:
    """Makes an op's autograd function at the first call that needs gradients."""

    def __init__(
        self, name: str, emitter: FrontEmitter, scope: dict[str, Any], helpers: dict[str, Any], lease: Lease
    ) -> None:
        self.name, self.emitter, self.scope, self.helpers, self.lease = name, emitter, scope, helpers, lease
        self.made: Any = None
        self.made_known: Callable[[], None] = lambda: None

    def __call__(self) -> Any:
        if self.made is None:
            with _making:
                if self.made is None:
                    text = self.emitter.emit_function()
                    for name, helper in front_scope(self.emitter, self.helpers).items():
                        self.scope.setdefault(name, helper)
                    compile_text(text, self.scope, f"{self.name}.function")
                    function = self.scope[self.emitter.classname]
                    function.lease = self.lease
                    self.made_known()
                    self.scope[self.emitter.helpers()["apply"]] = _torch.quick_apply(function)
                    self.made = function
        return self.made

    def first_apply(self, *arguments: Any) -> Any:
        """Stands for ``apply`` until there is one."""
        self()
        return self.scope[self.emitter.helpers()["apply"]](*arguments)


class Registration:
    """Everything that PyTorch holds of one op."""

    def __init__(self, name: str, plan: OpPlan, instances: Instances, backward: Any = None, vmap: Any = None) -> None:
        self.name, self.plan, self.instances = name, plan, instances
        self.backward, self.vmap = backward, vmap
        self.front = Front(plan)
        self.front_text, self.emitter = emit_front(name, plan)
        self.namespace, self.basename = name.split("::")
        self.contract = contract_hash(self._contract_parts(), self._callables())
        self._register()

    @property
    def source(self) -> str:
        """The generated text: launches, front-end, autograd function."""
        parts = [self.instances.source(), self.front_text]
        if self.emitter.has_function:
            parts.append(self.emitter.emit_function())
        return "\n\n".join(parts)

    def _contract_parts(self) -> list[str]:
        front = self.front
        return [front.public(), front.forward_into(), front.backward_into(), self.front_text, plan_text(self.plan)]

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

    @property
    def differentiable(self) -> bool:
        return bool(self.plan.gradients) and bool(self.front.cotangents)

    def _register(self) -> None:
        mapped_op()
        with registering():
            self.key = self.contract
            suffix = 0
            while f"{self.name}.{self.key}" in _taken:
                suffix += 1
                self.key = f"{self.contract}_{suffix}"
            _taken.add(f"{self.name}.{self.key}")
            self.lease = Lease(self.name, self.key)
            self.library = torch.library.Library(self.namespace, "FRAGMENT")
            front = self.front
            self._define("", front.public())
            self._define("_fwd", front.forward())
            self._define("_fwd_", front.forward_into())
            names = [self.basename, f"{self.basename}_fwd", f"{self.basename}_fwd_"]
            if self.differentiable and self.plan.gradient == "adjoint":
                self._define("_bwd", front.backward())
                self._define("_bwd_", front.backward_into())
                names += [f"{self.basename}_bwd", f"{self.basename}_bwd_"]
            self.public_op = self._overload("")
            self.forward_op = self._overload("_fwd")
            self.forward_into_op = self._overload("_fwd_")
            self.backward_op = self.backward_into_op = None
            if f"{self.basename}_bwd" in names:
                self.backward_op = self._overload("_bwd")
                self.backward_into_op = self._overload("_bwd_")
            self._implement()
            overloads = [self.public_op, self.forward_op, self.forward_into_op]
            overloads += [op for op in (self.backward_op, self.backward_into_op) if op is not None]
            key = f"{self.name}.{self.key}"
            done = functools.partial(_taken.discard, key)
            operators = registered(self.library, self.namespace, names, overloads, done)
            weakref.finalize(self.lease, release, operators)

    def _define(self, suffix: str, schema: str) -> None:
        _torch.forget(self.namespace, f"{self.basename}{suffix}")
        self.library.define(f"{self.basename}{suffix}.{self.key}{schema}", tags=(torch.Tag.pt2_compliant_tag,))

    def _overload(self, suffix: str) -> Any:
        _torch.forget(self.namespace, f"{self.basename}{suffix}")
        return getattr(getattr(getattr(torch.ops, self.namespace), f"{self.basename}{suffix}"), self.key)

    def _implement(self) -> None:
        library, instances = self.library, self.instances
        runtime = Runtime(self.name, self.plan, self.front, instances, self)
        helpers = runtime.helpers()
        scope = compile_front(self.name, self.front_text, self.emitter, helpers)
        own = self.emitter.helpers()
        self.call = scope[own["call"]]
        self.call.__name__ = self.plan.name
        self.call.__qualname__ = self.name  # Python's own messages about missing and unknown arguments name it
        self.eager = scope[own["eager"]]
        if self.emitter.has_function:
            scope[FUNCTION] = FunctionMaker(self.name, self.emitter, scope, helpers, self.lease)
            scope[own["apply"]] = scope[FUNCTION].first_apply
        runtime.finish(self.eager)
        front = weakref.ref(self.eager)

        emitter = self.emitter

        def use_launches(instance: Any) -> None:
            eager = front()
            if eager is not None:
                for what in ("forward", "backward"):
                    name = emitter.helpers().get(f"launch_{what}")
                    if name is not None:
                        eager.__globals__[name] = getattr(instance, what)

        instances.when_made(use_launches)
        if self.emitter.has_function:
            scope[FUNCTION].made_known = lambda: instances.when_made(use_launches)
        self.runtime = runtime

        def implement(suffix: str, function: Callable[..., Any], key: str) -> None:
            library.impl(f"{self.basename}{suffix}.{self.key}", function, key)

        implement("_fwd", instances.forward, "CompositeExplicitAutograd")
        implement("_fwd_", forward_into(self.plan, instances), "CompositeExplicitAutograd")
        _torch.shorten(self.forward_into_op, lambda through: forward_into(self.plan, instances, through))
        raw = ["_fwd", "_fwd_"]
        if self.backward_op is not None:
            implement("_bwd", instances.backward, "CompositeExplicitAutograd")
            into = backward_into(self.plan, instances)
            if self.front.handles:  # the last argument only has to live until then
                implement("_bwd_", lambda *values: into(*values[:-1]), "CompositeExplicitAutograd")
            else:
                implement("_bwd_", into, "CompositeExplicitAutograd")
                _torch.shorten(self.backward_into_op, lambda through: backward_into(self.plan, instances, through))
            raw += ["_bwd", "_bwd_"]
        for suffix in raw:
            guarded = suffix == "_fwd" and self.differentiable
            implement(suffix, runtime.raw_autograd() if guarded else torch.library.fallthrough_kernel, "Autograd")
        fakes = {
            "_fwd": runtime.fake_forward,
            "_fwd_": runtime.fake_forward_into,
            "_bwd": runtime.fake_backward,
            "_bwd_": runtime.fake_backward_into,
        }
        for suffix in raw:
            _torch.register_fake(library, f"{self.name}{suffix}.{self.key}", fakes[suffix])
        public = runtime.public_kernel(weakref.ref(self.eager))
        implement("", public, "Autograd")
        implement("", public, "CompositeExplicitAutograd")
        _torch.register_fake(library, f"{self.name}.{self.key}", runtime.fake_public)
        library.impl(f"{self.basename}.{self.key}", runtime.vmap_kernel(), _torch.VMAP_KEY, with_keyset=True)
        for key in _torch.DISPATCH_KEYS_OF_AUTOCAST:
            implement("", runtime.autocast_kernel(self.public_op, key), key)
        sharding.register(library, runtime, {s: f"{self.name}{s}.{self.key}" for s in ("", *raw)})
