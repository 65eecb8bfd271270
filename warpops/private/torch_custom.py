"""PyTorch's private side: a ``torch.library.custom_op`` over an operator that is defined already.

``tests/test_torch_private.py`` fails first when a new torch changes any of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch


class _Over(torch.library.CustomOpDef):
    def _register_to_dispatcher(self, *given: Any) -> None:
        library: Any = self._lib
        library.define = lambda *_, **__: None  # it is defined
        super()._register_to_dispatcher(*given)
        del library.define


def define_over(name: str, schema: str, run: Callable[..., Any]) -> Any:
    """The definition of an operator, ``run`` its kernel on every device."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        made = _Over(*name.split("::"), schema, run)
        made.__class__ = torch.library.CustomOpDef
        made.register_kernel(None)(run)
    return made


def implement(made: Any, key: str, function: Callable[..., Any]) -> None:
    """Put a kernel over the definition's own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        made._lib.impl(made._name, function, key, with_keyset=True)


def drop(made: Any) -> None:
    """Take the definition's kernels out; those below them serve again."""
    made._lib._destroy()
