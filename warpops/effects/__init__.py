"""The effects analysis: what a Warp kernel's body does to its arrays, read from its source.

``analyse(kernel)`` interprets the kernel's syntax tree abstractly, never Warp's generated code, and returns plain data
(``model``). It decides for certain or not at all. Data flows one way:

``source`` (whose code, which object a name means) -> ``statements`` / ``expressions`` / ``calls`` (the interpreter,
over ``values`` and ``state``) -> a ``Record`` of accesses and events -> ``conclude`` and ``hazards`` (``Effects``).
"""

from typing import Any

from .model import ArrayEffects, AxisUse, Below, Effects, Guard, Hazard, Limit, Need, Premise, Site


def analyse(kernel: Any) -> Effects:
    """What a kernel does to its arrays. The interpreter is imported at the first kernel, not with the package."""
    from .analysis import analyse as run

    return run(kernel)


__all__ = [
    "ArrayEffects",
    "AxisUse",
    "Below",
    "Effects",
    "Guard",
    "Hazard",
    "Limit",
    "Need",
    "Premise",
    "Site",
    "analyse",
]
