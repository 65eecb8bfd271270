"""PyTorch's private side: a ``torch.library.custom_op`` over an operator that is defined already.

``tests/test_torch_private.py`` fails first when a new torch changes any of it. Nothing else needs it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

_KIND: Any = getattr(torch.library, "CustomOpDef")  # noqa: B009  # what ``custom_op`` returns, and mypy doesn't know


@contextlib.contextmanager
def _overriding() -> Iterator[None]:
    """PyTorch warns of a kernel in place of another, once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        yield


def define_over(name: str, schema: str, run: Callable[..., Any], above: Callable[[Any, Any], Any]) -> Any:
    """The definition of an operator, ``run`` its kernel on every device.

    Args:
        name: with the namespace.
        schema: without the name.
        run: the kernel.
        above: makes what is called for autograd, of the definition and of PyTorch's own function for that.
    """

    class Over(_KIND):  # type: ignore[misc]
        def _register_to_dispatcher(self, *given: Any) -> None:
            self._lib.define = lambda *_, **__: None  # it is defined
            super()._register_to_dispatcher(*given)
            del self._lib.define

        def _register_autograd_dispatcher_impl(self) -> None:
            implement = self._lib.impl
            self._lib.impl = lambda op, below, *rest, **named: implement(op, above(self, below), *rest, **named)
            super()._register_autograd_dispatcher_impl()
            del self._lib.impl

    with _overriding():
        made = Over(*name.split("::"), schema, run)
        made.__class__ = _KIND
        made.register_kernel(None)(run)
    return made


def implement(made: Any, key: str, function: Callable[..., Any]) -> None:
    """Put a kernel over the operator's own."""
    with _overriding():
        made._lib.impl(made._name, function, key, with_keyset=True)


def registered(made: Any) -> tuple[Any, ...]:
    """The kernels and the backward that a definition has."""
    return dict(made._backend_fns), made._backward_fn


def drop(made: Any) -> None:
    """Take the definition's kernels out; those below them serve again."""
    made._lib._destroy()
