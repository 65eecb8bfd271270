"""Operators of warpops' own, beside those of ops: what graphs call that they couldn't look into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import locks, torch_registry

_lock = locks.reentrant()


class HelperOp:
    """``warpops::<name>``, which is defined when it is first wanted."""

    def __init__(
        self,
        schema: str,
        run: Callable[..., Any],
        fake: Callable[..., Any],
        autograd: Callable[..., Any] | None = None,
        tags: tuple[torch.Tag, ...] = (),
    ) -> None:
        self._schema, self._tags = schema, tags
        self._kernels = {"CompositeExplicitAutograd": run} | ({"Autograd": autograd} if autograd is not None else {})
        self._fake = fake
        self._made: tuple[Any, Any] | None = None
        """The operator's overload, and the library that keeps it registered."""

    def overload(self) -> Any:
        """The operator, there from now on."""
        if self._made is None:
            with _lock:
                if self._made is None:
                    self._made = self._define()
        return self._made[0]

    def __call__(self, *values: Any) -> Any:
        return self.overload()(*values)

    def _define(self) -> tuple[Any, Any]:
        library, name = torch.library.Library("warpops", "FRAGMENT"), self._schema.partition("(")[0]
        library.define(self._schema, tags=self._tags)
        for key, kernel in self._kernels.items():
            library.impl(name, kernel, key)
        torch_registry.register_fake(library, f"warpops::{name}", self._fake)
        return getattr(torch.ops.warpops, name).default, library
