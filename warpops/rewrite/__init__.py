"""A kernel's source -> another kernel: with a batch coordinate for ``vmap``, and for its adjoint."""

from .batch import UnbatchableError, batch_source

__all__ = ["UnbatchableError", "batch_source"]
