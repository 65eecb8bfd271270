"""An op's generated functions: ``call`` at once, the autograd function when a gradient is first wanted.

A model decorates more kernels than it calls, and text costs time to compile. What PyTorch traces has to be there when it
does, so ``call`` is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..emit.call import write_call
from ..emit.function import write_function
from ..emit.writer import OpWriter
from ..private import locks, torch_modes
from ..private.compiled import compile_text

_making = locks.reentrant()

PARTS = "parts of the op"
"""Where the scope keeps this object: no name that text could use."""


class Parts:
    """The generated functions of one op, and the scope that they share."""

    eager: Callable[..., Any]
    """The eager way past autocast and transforms: gradients where they are wanted, checks, launches."""

    def __init__(self, name: str, writer: OpWriter, lease: Any) -> None:
        self._name, self._writer, self._lease = name, writer, lease
        self._helpers: dict[str, Any] = {}
        self._function: Any = None
        self.scope: dict[str, Any] = {PARTS: self}

    def open(self, helpers: dict[str, Any]) -> Callable[..., Any]:
        """``call``, now that there is what the text calls."""
        self._helpers, self.eager = helpers, helpers["eager"]
        text, self._apply_name = self._writer.once(write_call), self._writer.use("apply")
        self.scope[self._apply_name] = self._first_apply
        self._compile(text, "call")
        call: Callable[..., Any] = self.scope[self._writer.use("call")]
        return call

    @property
    def apply(self) -> Callable[..., Any]:
        """The autograd function's, or what stands for it until there is one."""
        found: Callable[..., Any] = self.scope[self._apply_name]
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

    def source(self) -> str:
        """The text of all parts."""
        with _making:
            parts = [self._writer.once(write_call)]
            if self._writer.plan.differentiable:
                parts.append(self._writer.once(write_function))
        return "\n\n".join(parts)

    def _compile(self, text: str, part: str) -> None:
        for name, own in self._writer.helpers().items():
            if name in self._helpers:
                self.scope.setdefault(own, self._helpers[name])
        compile_text(text, self.scope, f"{self._name}.{part}")

    def _first_apply(self, *arguments: Any) -> Any:
        self.function()
        return self.apply(*arguments)
