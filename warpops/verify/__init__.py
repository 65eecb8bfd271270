"""What ``warpops.testing.check`` runs: each module finds one kind of fault in a user's kernel or declaration."""

from __future__ import annotations

from .run import run_checks

__all__ = ["run_checks"]
