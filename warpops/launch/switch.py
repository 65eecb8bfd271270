"""Whether launches compare their indices. For the whole process: what is compiled, and other threads, launch too."""

from __future__ import annotations

scopes: list[bool] = []
"""One item for each ``bounds_checked`` that is open: whether it trusts no proof. Nothing where indices aren't compared."""
