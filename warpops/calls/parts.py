"""An op's generated functions: ``call`` at once, the rest at the first call that gets there.

A model decorates more kernels than it calls, and text costs time to compile. What PyTorch traces has to be there when it
does, so ``call`` is; ``eager`` and the autograd function are written and compiled when they are first wanted.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from ..emit.call import write_call, write_eager
from ..emit.function import write_function
from ..emit.writer import OpWriter
from ..private import locks, torch_modes
from ..private.compiled import compile_text
from .instances import Instance, Instances

_making = locks.reentrant()

PARTS = "parts of the op"
"""Where the scope keeps this object: no name that text could use."""


class Parts:
    """The generated functions of one op, and the scope that they share."""

    def __init__(self, name: str, writer: OpWriter, instances: Instances, lease: Any) -> None:
        self._name, self._writer, self._instances, self._lease = name, writer, instances, lease
        self._helpers: dict[str, Any] = {}
        self._function: Any = None
        self._has_eager = False
        self.scope: dict[str, Any] = {PARTS: self}

    def open(self, helpers: dict[str, Any]) -> Callable[..., Any]:
        """``call``, now that there is what the text calls."""
        self._helpers = helpers
        text, own = self._writer.once(write_call), self._writer.helpers()
        self._eager_name, self._apply_name = own["eager"], self._writer.use("apply")
        self.scope |= {self._eager_name: self._first_eager, self._apply_name: self._first_apply}
        self._compile(text, "call")
        self._instances.when_made(functools.partial(_use_launches, weakref.ref(self)))
        call: Callable[..., Any] = self.scope[own["call"]]
        return call

    @property
    def eager(self) -> Callable[..., Any]:
        """The eager way past autocast and transforms: gradients where they are wanted, checks, launches."""
        found: Callable[..., Any] = self.scope[self._eager_name]
        return found

    def function(self) -> Any:
        """The autograd function; None where nothing is differentiable."""
        if self._function is None and self._writer.plan.differentiable:
            with _making:
                if self._function is None:
                    self._compile(self._writer.once(write_function), "function")
                    function = self.scope[self._writer.classname]
                    function.lease = self._lease
                    self.scope[self._apply_name] = torch_modes.quick_apply(function)
                    self._function = function
        return self._function

    def use_launches(self, instance: Instance) -> None:
        """Call the launches of the one instance, now that there is one, with no look for it."""
        own = self._writer.helpers()
        for what in ("forward", "backward"):
            name = own.get(f"launch_{what}")
            if name is not None:
                self.scope[name] = instance.launches[what]

    def source(self) -> str:
        """The text of all parts."""
        with _making:
            parts = [self._writer.once(write_call), self._writer.once(write_eager)]
            if self._writer.plan.differentiable:
                parts.append(self._writer.once(write_function))
        return "\n\n".join(parts)

    def _compile(self, text: str, part: str) -> None:
        for name, own in self._writer.helpers().items():
            if name in self._helpers:
                self.scope.setdefault(own, self._helpers[name])
        compile_text(text, self.scope, f"{self._name}.{part}")
        made = self._instances.made
        if made is not None:
            self.use_launches(made)

    # What stands for a part until there is one.

    def _first_eager(self, *arguments: Any) -> Any:
        with _making:
            if not self._has_eager:
                self._compile(self._writer.once(write_eager), "eager")
                self._has_eager = True
        return self.eager(*arguments)

    def _first_apply(self, *arguments: Any) -> Any:
        self.function()
        return self.scope[self._apply_name](*arguments)


def _use_launches(reference: weakref.ref[Parts], instance: Instance) -> None:
    """PyTorch's registry holds the instances, so that they hold the functions weakly."""
    parts = reference()
    if parts is not None:
        parts.use_launches(instance)
