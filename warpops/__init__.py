"""warpops: one decorator turns an NVIDIA Warp kernel into a PyTorch operator.

Differentiable by the kernel's own adjoint, safe under ``torch.compile(fullgraph=True)``, checked before every launch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .decorator import warp_op
from .errors import ArgumentError, GradientError, GradientWarning, SignatureError, WarpOpError
from .op import WarpOp, list_ops
from .register.contract import VERSION

if TYPE_CHECKING:
    from . import testing
    from .program.decorator import warp_program

__version__ = VERSION

__all__ = [
    "ArgumentError",
    "GradientError",
    "GradientWarning",
    "SignatureError",
    "WarpOp",
    "WarpOpError",
    "__version__",
    "list_ops",
    "testing",
    "warp_op",
    "warp_program",
]


def __getattr__(name: str) -> Any:
    """Import what only some programs use when it is asked for."""
    if name == "warp_program":
        from .program.decorator import warp_program

        return warp_program
    if name == "testing":
        return importlib.import_module(".testing", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
