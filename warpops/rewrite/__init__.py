"""A kernel's source -> another kernel: with a batch coordinate for ``vmap``, and for its adjoint."""

__all__ = []
