"""warpops: one decorator turns an NVIDIA Warp kernel into a PyTorch operator.

Differentiable by the kernel's own adjoint, safe under ``torch.compile(fullgraph=True)``, checked before every launch.
``warp_op`` makes an operator of a kernel; ``warp_program`` one of a function that launches several.
``warpops.testing.check`` checks an operator of yours.

The package, for who reads its source. What a decoration makes, from left to right::

    kernel ── kernel/ ─▶ KernelSignature ─┐
       └──── effects/ ─▶ Effects ─────────┼─▶ plan/ ─▶ OpPlan ─▶ emit/ ─▶ text ─▶ calls/ ─▶ Ways ─▶ register/ ─▶ op.py
    options ─ plan/declaration.py ────────┘              │         ╲             ╱
                                                     rewrite/    arguments/  launch/

A room knows those that it is made of, and none that come later; ``build.py`` is the way through:

- ``private``: what is no public API of Warp, PyTorch or Python, each with a public twin;
- ``kernel``: what a kernel says of itself: types, names, defaults;
- ``effects``: what its body does to its arrays, read from its source, and where Warp's adjoint isn't the derivative;
- ``plan``: every decision about one op, with its reason: roles, shapes, launch size, what is checked;
- ``arguments``: what a caller may give, one file for each kind of argument;
- ``launch``: the bytes of a launch, and Warp's entry points;
- ``emit``: the plan as Python text, which ``op.source`` shows;
- ``calls``: the ways that a call takes: eager, remembered, traced, by PyTorch's dispatcher, in Inductor's code;
- ``register``: what PyTorch's registry holds of an op, and how it comes out again;
- ``rewrite``: a kernel's source made another kernel's: for its adjoint, with a batch coordinate, its tangent;
- ``transforms``, ``sharding``: ``torch.func``, forward mode and second derivatives; DTensor;
- ``program``: ``warp_program``, which joins at the plan and at the launch;
- ``testing``: ``check``.
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
