"""PyTorch's private side: a ``torch.library.custom_op`` over an operator that is defined already.

``tests/test_torch_private.py`` fails first when a new torch changes any of it. Nothing else needs it.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch


@functools.cache
def _over() -> tuple[Any, Any]:
    kind: Any = getattr(torch.library, "CustomOpDef")  # noqa: B009  # what ``custom_op`` returns, and mypy doesn't know

    class Over(kind):  # type: ignore[misc]
        def _register_to_dispatcher(self, *given: Any) -> None:
            self._lib.define = lambda *_, **__: None  # it is defined
            super()._register_to_dispatcher(*given)
            del self._lib.define

    return kind, Over


@contextlib.contextmanager
def _overriding() -> Iterator[None]:
    """PyTorch warns of a kernel in place of another, once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        yield


def define_over(name: str, schema: str, run: Callable[..., Any]) -> Any:
    """The definition of an operator, ``run`` its kernel on every device."""
    kind, over = _over()
    with _overriding():
        made = over(*name.split("::"), schema, run)
        made.__class__ = kind
        made.register_kernel(None)(run)
    return made


def implement(made: Any, key: str, function: Callable[..., Any]) -> None:
    """Put a kernel over the definition's own."""
    with _overriding():
        made._lib.impl(made._name, function, key, with_keyset=True)


def implement_above(made: Any, function: Callable[..., Any]) -> None:
    """Put a kernel above the definition's autograd, which is its first argument."""
    from torch._library.autograd import make_autograd_impl

    implement(made, "Autograd", functools.partial(function, make_autograd_impl(made._opoverload, made)))


def drop(made: Any) -> None:
    """Take the definition's kernels out; those below them serve again."""
    made._lib._destroy()
