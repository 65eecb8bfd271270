"""The effects analysis: what a Warp kernel's body does to its arrays, read from its source.

``analyse(kernel)`` interprets the kernel's syntax tree abstractly, never Warp's generated code, and returns plain data
(``model``). It decides for certain or not at all. Data flows one way:

``names`` (whose code, which object a name means; ``reading``: what its text says) -> ``statements``, ``expressions``,
``functions`` (the interpreter, over ``values`` and ``state``) -> a ``Record`` of accesses and events -> ``conclude`` and
``hazards`` (``Effects``).
"""

import ast
from collections.abc import Sequence
from typing import Any

from .model import ArrayEffects, AxisUse, Below, Effects, Hazard, Limit, Need, Premise, Site


def analyse(kernel: Any) -> Effects:
    """What a kernel does to its arrays. The interpreter is imported at the first kernel, not with the package."""
    from .analysis import analyse as run

    return run(kernel)


def analyse_as(kernel: Any, code: Any, body: Sequence[ast.stmt]) -> Effects:
    """What a kernel of that code would do whose body were another one, with the user's lines."""
    from .analysis import analyse_as as run

    return run(kernel, code, body)


__all__ = [
    "ArrayEffects",
    "AxisUse",
    "Below",
    "Effects",
    "Hazard",
    "Limit",
    "Need",
    "Premise",
    "Site",
    "analyse",
    "analyse_as",
]
